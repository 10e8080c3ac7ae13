"""
Selection of the memory tools that a model sees, from the words of a message.

Cues, selection rules, request patterns, learned weights and thresholds are data files in ``data/``. They are read
before the first message, not on import.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import math
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.refs.messages.provider_messages import extract_user_text
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS, MEMORY_TOOLS

# Cues of this kind detect requests that belong to no context.
OTHER_KIND: Final = "other"
ALWAYS_EXPOSED: Final[tuple[str, ...]] = ("save/decision", "save/checkpoint", "load/checkpoint")
# The kinds, in the order in which weights.tsv lists the weights of a feature.
LEARNED_KINDS: Final[tuple[str | None, ...]] = (None, "resuming", "deciding", "searching", "tracking")
# Letters that encode the values in weights.tsv.
WEIGHT_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase

HANGUL_PATTERN = re.compile("[가-힣]")
LETTER_PATTERNS: Final = {"ko": HANGUL_PATTERN, "en": re.compile("[a-z]")}


# Cues and selection rules


def _convert_tuple(value: object) -> object:
    # Return a string unchanged instead of splitting it into characters, so that the validator rejects it.
    return value if isinstance(value, str) or not hasattr(value, "__iter__") else tuple(value)


def _check_texts(_owner: object, field: Any, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
        raise InvalidArgument(f"{field.name} must be a tuple of texts that are not blank, got {repr_short(value)}")


@attrs.frozen(kw_only=True)
class Cue(JsonMixin):
    """
    Words by which a request of the user is recognized.

    Cues match the user's own words in normalized form: NFC, lower case, one sentence per line, without quotations and
    code. A pattern's dot does not match a line break, and ``^`` and ``$`` match at the ends of a sentence.

    Args:
        kind: Context that the cue indicates; ``"other"`` for a request that no context covers; None for words without
            meaning here ("success message"): its matches are removed before other cues are matched.
        words: Words or phrases, matched as prefixes of words: ``search`` matches ``searching`` but not ``research``.
            Spaces between words are optional.
        pattern: A regular expression, instead of *words*.
        weight: Confidence of the cue alone, from 0 to 1.
        is_request: Whether the cue is a request. A statement only counts if the message contains no other request.
        language: ``"en"`` and ``"ko"`` match only texts with letters of the script; other names are informational.
            For ``"en"``, only ASCII letters are part of a word, since a Korean particle may follow directly.

    Raises:
        InvalidArgument: Neither or both of *words* and *pattern* are given, or a value is out of its range.

    """

    kind: str | None
    words: tuple[str, ...] = attrs.field(default=(), converter=_convert_tuple, validator=_check_texts)
    pattern: str | None = None
    weight: float = 0.8
    is_request: bool = True
    language: str = ""
    regex: re.Pattern[str] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Raise if the cue is invalid, never matches or matches the empty text."""
        if self.kind is not None and not (isinstance(self.kind, str) and self.kind.strip()):
            raise InvalidArgument(f"kind must be a text or None, got {repr_short(self.kind)}")
        if bool(self.words) == (self.pattern is not None):
            raise InvalidArgument("a cue needs either words or a pattern", hint='such as words=("weiter",)')
        if not (isinstance(self.weight, int | float) and 0 < self.weight <= 1):
            raise InvalidArgument(f"weight must be above 0 and at most 1, got {repr_short(self.weight)}")
        object.__setattr__(self, "regex", self._compile())
        if self.regex.search("") is not None:
            raise InvalidArgument("the pattern of a cue must not match the empty text")

    def _compile(self) -> re.Pattern[str]:
        if self.pattern is None:
            # Sort by length, because the longest alternative must match. Korean is often typed without spaces.
            ordered = sorted(self.words, key=len, reverse=True)
            each = (r"\s*".join(map(re.escape, unicodedata.normalize("NFC", one).lower().split())) for one in ordered)
            source = rf"(?<!\w)(?:{'|'.join(each)})"
        elif isinstance(self.pattern, str):
            source = unicodedata.normalize("NFC", self.pattern)
        else:
            raise InvalidArgument(f"pattern must be a text, got {type(self.pattern).__name__}")
        try:
            # A Korean particle may directly follow an English word. With re.ASCII, the word ends before it.
            return re.compile(source, re.MULTILINE | (re.ASCII if self.language == "en" else re.NOFLAG))
        except re.error as error:
            raise InvalidArgument(
                f"the pattern of a cue must be a regular expression, got {repr_short(source)}: {error}",
                hint="escape what is meant literally, or give it as words=(...)",
            ) from error


def _check_pattern(_rule: object, field: Any, value: object) -> None:
    try:
        if value is not None:
            # *value* comes from the host and may be of any type. `re.compile` raises TypeError for a wrong one.
            re.compile(value)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise InvalidArgument(f"{field.name} must be a regular expression, got {repr_short(value)}: {error}") from error


@attrs.frozen(kw_only=True)
class SelectionRule(JsonMixin):
    """
    The memory tools that a model sees if a message has this context.

    Args:
        kind: Name of the context, as in its cues.
        tools: Names, or patterns such as ``search/*``, in addition to the tools that are always exposed.
        priority: The tools that are listed first, in order.
        doubt_words: A regular expression for words that may request a tool that is not in *tools*. If it matches,
            no tool is hidden, because a missing tool is worse than an additional one.

    """

    kind: str
    tools: tuple[str, ...] = attrs.field(converter=_convert_tuple, validator=_check_texts)
    priority: tuple[str, ...] = attrs.field(default=(), converter=_convert_tuple, validator=_check_texts)
    doubt_words: str | None = attrs.field(default=None, validator=_check_pattern)


# Built-in data


def _read_data_lines(name: str) -> list[str]:
    lines = files("mama_structs.tools").joinpath("data", name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _read_patterns(name: str) -> Iterator[tuple[list[str], str]]:
    """
    Yield the header and pattern of each record in a data file.

    ``{NAME}`` in a pattern is replaced by the part of that name, which is defined earlier in the file.
    """
    parts: dict[str, str] = {}
    lines = _read_data_lines(name)
    heads = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in itertools.pairwise([*heads, len(lines)]):
        joined = "|".join(line[2:] for line in lines[start + 1 : end])
        pattern = re.sub(r"\{([A-Z_]+)\}", lambda found: parts[found[1]], joined)
        if lines[start].startswith("="):
            parts[lines[start][1:]] = pattern
        else:
            yield lines[start].split(), pattern


@functools.cache
def _load_default_cues() -> tuple[Cue, ...]:
    # Lazy: compiling about 400 patterns takes a fifth of a second.
    return tuple(
        Cue(
            kind=None if kind == "None" else kind,
            weight=float(weight),
            pattern=pattern,
            is_request="tells" not in told,
            language=language,
        )
        for language in ("en", "ko")
        for (kind, weight, *told), pattern in _read_patterns(f"cues_{language}.txt")
    )


@functools.cache
def _load_default_rules() -> tuple[SelectionRule, ...]:
    return tuple(
        SelectionRule(kind=kind, tools=tools.split(","), priority=priority.split(","), doubt_words=doubts)
        for (kind, tools, priority), doubts in _read_patterns("contexts.txt")
    )


class _LearnedWeights(NamedTuple):
    numbers: Mapping[str, float]
    bias: tuple[float, ...]
    features: Mapping[str, tuple[int, ...]]


@functools.cache
def _load_weights() -> _LearnedWeights:
    """
    Load the thresholds and the learned weights of features.

    Weights are multiples of ``unit``.
    """
    named: dict[str, str] = {}
    pieces: dict[str, tuple[int, ...]] = {}
    for line in _read_data_lines("weights.tsv"):
        match line.split("\t"):
            case [name, value, _meaning]:
                named[name] = value
            case [piece, letters]:
                pieces[piece.replace("_", " ")] = tuple(
                    WEIGHT_LETTERS.index(one) - WEIGHT_LETTERS.index("a") for one in letters
                )
    bias = tuple(map(float, named.pop("bias").split()))
    return _LearnedWeights({name: float(value) for name, value in named.items()}, bias, pieces)


def _get_threshold(name: str) -> float:
    return _load_weights().numbers[name]


@functools.cache
def _load_request_patterns() -> Mapping[str, re.Pattern[str]]:
    """Load the patterns that recognize requests, statements and negations."""
    return {name: re.compile(pattern) for (name,), pattern in _read_patterns("asking.txt")}


# Extraction of the user's own words: quotations, pasted text and code do not show what the user wants.
# The limits bound the cost for long messages, whose requests are at the beginning or end.

# Replaces removed text, so that the object of a request remains, as in "mark `auth` as failed".
PLACEHOLDER: Final = "◻"
# Maximum characters to read from the beginning and from the end of a message.
MAX_HEAD_CHARS, MAX_TAIL_CHARS = 3_000, 5_000
# Maximum characters of the beginning and of the end after quoted and pasted text is removed.
MAX_KEPT_HEAD_CHARS, MAX_KEPT_TAIL_CHARS = 300, 600
# Longer sentences are split, because a request and its object are usually close together.
MAX_SENTENCE_CHARS = 240
# Features are extracted from at most this number of sentences.
MAX_SENTENCES: Final = 40
NGRAM_LENGTHS: Final = (2, 3, 4)
FENCE: Final = "```"
FENCED_PATTERN = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
INLINE_CODE_PATTERN = re.compile(r"`[^`\n]{1,300}`")
QUOTATION_PATTERN = re.compile(
    r"\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|„[^“”\n]{1,400}[“”]|«[^»\n]{1,400}»|「[^」\n]{1,400}」|『[^』\n]{1,400}』"
    r"|(?<!\w)['\u2018][^'\u2019\n]{2,400}['\u2019](?!\w)"
)
# Matches lines of logs, stack traces, diffs, shell sessions and quoted mail.
PASTED_LINE_PATTERN = re.compile(
    r"^[ \t]*(?:>|\$ |\+\+\+|@@|(?:[-+] ?){3}|\d{4}-\d\d-\d\d[ T]\d|\[?\d\d:\d\d:\d\d"
    r"|Traceback |File \"|at [\w.$<>]+\("
    r"|\[?(?:ERROR|INFO|WARN(?:ING)?|DEBUG|FATAL|TRACE|FAILED|PASSED)\b|E {2,}|\w+(?:Error|Exception)\b).*$",
    re.MULTILINE,
)
MEMORY_ID_PATTERN = re.compile(r"\b(?:decision|checkpoint|insight)_\w+", re.ASCII)
# Matches URLs, paths, calls, file names and identifiers. With re.ASCII, a following Korean particle is not included.
IDENTIFIER_PATTERN = re.compile(
    r"https?://[^\s가-힣]+|(?<!\S)[~.]?/[\w./-]{2,}|\b\w+(?:\.\w+)*\(\)|\b[A-Za-z0-9]*_[A-Za-z0-9_]+"
    r"|\b[\w-]+\.(?:py|js|ts|tsx|md|json|ya?ml|toml|rs|go|txt|log|csv|sql|sh|html|css|java|kt|db)\b"
    r"|\b[A-Z][a-z]+[A-Z]\w*",
    re.ASCII,
)
SENTENCE_END_PATTERN = re.compile(r"(?<=[.!?;。?!…])\s+|\n+")
BLANKS_PATTERN = re.compile(r"[ \t\r\f\v\u00a0\u3000]+")
# Matches the contracted "did" in "where'd we get to" and "what'd you say".
CONTRACTION_PATTERN = re.compile(r"\b(where|what|how|why|who|when)'?d(?= (?:we|i|you|u|they|he|she|the|that|it)\b)")
# Matches "u" for "you", as in "u remember".
SHORT_YOU_PATTERN = re.compile(r"(?<![\w'-])u(?![\w'-])")
APOSTROPHE_TRANSLATION: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})


class NormalizedMessage(NamedTuple):
    """The user's own words (NFC, lower case, one sentence per line), possibly incomplete."""

    words: str
    is_complete: bool


def normalize_message(text: str) -> NormalizedMessage:
    """
    Extract the user's own words from a message.

    From a long message, use its beginning and end.
    """
    is_complete = len(text) <= MAX_HEAD_CHARS + MAX_TAIL_CHARS
    plain = unicodedata.normalize("NFC", _truncate_message(text))
    plain = FENCED_PATTERN.sub(f"\n{PLACEHOLDER}\n", plain) if FENCE in plain or "~~~" in plain else plain
    plain = QUOTATION_PATTERN.sub(PLACEHOLDER, INLINE_CODE_PATTERN.sub(PLACEHOLDER, PASTED_LINE_PATTERN.sub("", plain)))
    if not plain.strip(f"{PLACEHOLDER} \n\t.,:;!?"):
        # If the whole message is a quotation, the user's words are inside it. This does not apply to code fences.
        is_wrapped = QUOTATION_PATTERN.fullmatch(text.strip()) is not None
        plain = text[:MAX_KEPT_HEAD_CHARS].strip("\"'“”\u2018\u2019「」『』«» \n\t") if is_wrapped else ""
        plain = unicodedata.normalize("NFC", plain)
    plain = IDENTIFIER_PATTERN.sub(PLACEHOLDER, MEMORY_ID_PATTERN.sub("that decision", plain))
    lines = filter(None, (BLANKS_PATTERN.sub(" ", line).strip() for line in SENTENCE_END_PATTERN.split(plain)))
    short = (
        line[start : start + MAX_SENTENCE_CHARS] for line in lines for start in range(0, len(line), MAX_SENTENCE_CHARS)
    )
    words = "\n".join(short).lower().translate(APOSTROPHE_TRANSLATION)
    words = SHORT_YOU_PATTERN.sub("you", CONTRACTION_PATTERN.sub(r"\1 did", words))
    if len(words) > MAX_KEPT_HEAD_CHARS + MAX_KEPT_TAIL_CHARS:
        return NormalizedMessage(f"{words[:MAX_KEPT_HEAD_CHARS]}\n{words[-MAX_KEPT_TAIL_CHARS:]}", is_complete=False)
    return NormalizedMessage(words, is_complete)


def _truncate_message(text: str) -> str:
    if len(text) <= MAX_HEAD_CHARS + MAX_TAIL_CHARS:
        return text
    # If a fence opens before the tail and closes in it, open the fence again at the start of the tail.
    opens = text.count(FENCE, 0, len(text) - MAX_TAIL_CHARS) % 2 == 1
    head = text[:MAX_HEAD_CHARS]
    closed = f"\n{FENCE}" if head.count(FENCE) % 2 else ""
    return f"{head}{closed}\n{FENCE if opens else ''}{text[-MAX_TAIL_CHARS:]}"


def extract_features(words: str) -> set[str]:
    """Return a text's features: character n-grams, words, word pairs, first and last words."""
    found: set[str] = set()
    for sentence in words.split("\n")[:MAX_SENTENCES]:
        line = f" {sentence} "
        for length in NGRAM_LENGTHS:
            found.update(line[start : start + length] for start in range(len(line) - length + 1))
        each = line.split()
        found.update(f" {word} " for word in each)
        found.update(f" {word} {following} " for word, following in itertools.pairwise(each))
        if each:
            found.update((f"^{each[0]} ", f"^{' '.join(each[:2])} ", f" {each[-1]}$"))
    return found


# Detection of requests without a known cue, for which no tools can be selected

# Clauses with fewer words are greetings or fillers, not requests.
MIN_REQUEST_WORDS: Final = 3
MIN_KOREAN_REQUEST_WORDS: Final = 2


def _has_other_request(words: str, match_starts: list[int]) -> bool:
    """Return True if any clause contains a request but no recognized cue."""
    asking = _load_request_patterns()
    breaks = [found.end() for found in asking["breaks"].finditer(words)]
    for start, end in itertools.pairwise([0, *breaks, len(words)]):
        if any(start <= place < end for place in match_starts):
            continue
        clause = words[start:end].strip()
        count = len(clause.split())
        if HANGUL_PATTERN.search(clause) is not None:
            if count >= MIN_KOREAN_REQUEST_WORDS and asking["urges_in_korean"].search(clause) is not None:
                return True
        elif count >= MIN_REQUEST_WORDS and (
            asking["urges"].search(clause) is not None or asking["tells"].match(clause) is None
        ):
            return True
    return False


# Decision


@attrs.frozen
class ToolSelection(JsonMixin):
    """
    Result of a detection: the kind of a message, and the memory tools for it.

    Args:
        kind: ``"resuming"``, ``"deciding"``, ``"searching"``, ``"tracking"``, or a host's kind; None if no context
            matches.
        confidence: Confidence, from 0 to 1, that the kind is right and nothing else is requested; 0 if *kind* is None.
        tool_names: Names of the visible memory tools, or ``"all"``.
        priority: Names of the tools that are listed first; empty if all are visible, which keeps their order.

    """

    kind: str | None
    confidence: float
    tool_names: frozenset[str] | Literal["all"]
    priority: tuple[str, ...]


NO_CONTEXT: Final = ToolSelection(None, 0.0, "all", ())


class _CueMatch(NamedTuple):
    """A match of a cue in a message: kind, weight and position. *asks* is True for a request."""

    kind: str
    weight: float
    asks: bool
    start: int
    end: int


@attrs.frozen(kw_only=True)
class ToolSelector(JsonMixin):
    """
    Selects the memory tools that a model should see for a message.

    Only the memory tools and their deprecated names of v1.0 are ever hidden, and only if one context is clear and
    nothing else is requested.

    Args:
        cues: Cues for the contexts; ``(*ToolSelector().cues, Cue(...))`` adds to the built-in ones. With the built-in
            cues, learned weights of typical messages count, too.
        rules: Tools of each context; the built-in ones are ``ToolSelector().rules``.
        always: Tools that are never hidden.
        threshold: Minimum confidence for hiding tools.

    Raises:
        InvalidArgument: A value is of the wrong type or out of its range, two rules have the same kind, or a cue's
            kind has no rule.

    """

    cues: tuple[Cue, ...] = attrs.field(factory=_load_default_cues, converter=_convert_tuple, repr=False)
    rules: tuple[SelectionRule, ...] = attrs.field(factory=_load_default_rules, converter=_convert_tuple, repr=False)
    always: tuple[str, ...] = attrs.field(default=ALWAYS_EXPOSED, converter=_convert_tuple, validator=_check_texts)
    threshold: float = 0.7
    _uses_weights: bool = attrs.field(init=False, eq=False, repr=False, default=False)

    def __attrs_post_init__(self) -> None:
        """Reject inconsistent arguments."""
        if not (isinstance(self.threshold, int | float) and 0 <= self.threshold <= 1):
            raise InvalidArgument(f"threshold must be from 0 to 1, got {repr_short(self.threshold)}")
        for name, items, item_class in (("cues", self.cues, Cue), ("rules", self.rules, SelectionRule)):
            if not isinstance(items, tuple) or not all(isinstance(item, item_class) for item in items):
                raise InvalidArgument(f"{name} must be objects of {item_class.__name__}, got {repr_short(items)}")
        kinds = [rule.kind for rule in self.rules]
        if len(set(kinds)) < len(kinds):
            raise InvalidArgument(f"rules must have distinct kinds, got {', '.join(kinds):.200}")
        for cue in self.cues:
            if cue.kind not in (None, OTHER_KIND, *kinds):
                raise InvalidArgument(
                    f"the kind of a cue must be one of {', '.join((*kinds, OTHER_KIND))} or None, "
                    f"got {repr_short(cue.kind)}",
                    hint="add a SelectionRule for a kind of your own",
                )
        learned = {*LEARNED_KINDS[1:]} <= {*kinds} and {*_load_default_cues()} <= {*self.cues}
        object.__setattr__(self, "_uses_weights", learned)

    def detect(self, message: object) -> ToolSelection:
        """
        Return the kind of request of a message and the tools that it needs.

        Args:
            message: A text; or content blocks, a message, a list of messages or a request, as dicts or as a provider's
                objects. Their last text of the user is used. None and unknown formats match no context.

        """
        wording = normalize_message(extract_user_text(message))
        matches = self._find_matches(wording.words)
        context = self._decide(matches, wording)
        # Apply the learned weights only with the built-in cues, with which they were trained.
        # The weights do not recognize negations or requests outside all contexts, so keep results of these cues.
        keeps = any(
            not sign.weight or (sign.kind == OTHER_KIND and sign.weight >= _get_threshold("sure")) for sign in matches
        )
        if not self._uses_weights or context.kind not in LEARNED_KINDS or (context.kind is None and keeps):
            return context
        return self._apply_weights(context, matches, wording)

    def select(self, names: Iterable[str], context: ToolSelection) -> tuple[str, ...]:
        """
        Return the names of the visible tools, starting with the priority tools of *context*.

        Args:
            names: Names of any tools; only memory tools are hidden.
            context: Result of `detect`.

        """
        allowed = context.tool_names
        visible_names = [
            name
            for name in names
            if allowed == "all"
            or DEPRECATED_SUCCESSORS.get(name, name) in allowed
            or (name not in DEPRECATED_SUCCESSORS and name not in MEMORY_TOOLS)
        ]
        first = [name for name in context.priority if name in visible_names]
        return (*first, *(name for name in visible_names if name not in first))

    def _find_matches(self, text: str) -> list[_CueMatch]:
        absent = {language for language, letters in LETTER_PATTERNS.items() if letters.search(text) is None}
        cues = [cue for cue in self.cues if cue.language not in absent]
        for cue in cues:
            if cue.kind is None:
                text = cue.regex.sub(PLACEHOLDER, text)
        max_matches = int(_get_threshold("matches"))
        matches = []
        for cue in cues:
            # Try `search` first: most cues do not match, and it is faster than an iterator.
            if cue.kind is not None and cue.regex.search(text) is not None:
                for found in itertools.islice(cue.regex.finditer(text), max_matches):
                    # A negated match has the weight 0.
                    weighs = not _is_negated(text, found)
                    matches.append(_CueMatch(cue.kind, cue.weight * weighs, cue.is_request and weighs, *found.span()))
        return [_weaken_if_misread(sign, matches) for sign in matches]

    def _decide(self, matches: list[_CueMatch], wording: NormalizedMessage) -> ToolSelection:
        elsewhere = max((sign.weight for sign in matches if sign.kind == OTHER_KIND), default=0.0)
        strengths = {
            rule.kind: _compute_strength(rule.kind, matches, has_other_request=bool(elsewhere)) for rule in self.rules
        }
        other_at = _find_last_request(OTHER_KIND, matches) if elsewhere >= _get_threshold("sure") else -1
        needed = {
            kind: _get_threshold("sure" if other_at > _find_last_request(kind, matches) else "named")
            for kind in strengths
        }
        named = [kind for kind, strength in strengths.items() if strength >= needed[kind]]
        if not named:
            return NO_CONTEXT
        best = max(strengths[one] for one in named)
        close = [one for one in named if strengths[one] >= best - _get_threshold("clearly")]
        kind = max(close, key=lambda one: (_find_last_request(one, matches), strengths[one]))
        rivals = (elsewhere, *(strength for rival, strength in strengths.items() if rival != kind))
        confidence = math.prod((1 - _get_threshold("rivalry") * each for each in rivals), start=strengths[kind])
        if self._has_doubts(kind, wording, [sign for sign in matches if sign.weight >= _get_threshold("strong")]):
            confidence = min(confidence, self.threshold - _get_threshold("doubt"))
        confidence = round(max(confidence, 0.0), 3)
        return (
            _make_unsure_context(kind, confidence)
            if confidence < self.threshold
            else self._make_narrowed_context(kind, confidence)
        )

    def _apply_weights(
        self, context: ToolSelection, matches: list[_CueMatch], wording: NormalizedMessage
    ) -> ToolSelection:
        """Combine the context that the cues indicate with the learned weights."""
        likely = _compute_probabilities(wording.words, context)
        unsure = max(self.threshold - _get_threshold("doubt"), 0.0)
        if context.tool_names != "all":
            needed = _get_threshold("unlike" if context.confidence >= _get_threshold("firm") else "likely_enough")
            return context if likely[context.kind] >= needed else _make_unsure_context(context.kind, unsure)
        kind = max(likely, key=lambda one: likely[one])
        if kind is not None and kind == context.kind and likely[kind] >= _get_threshold("likeliest"):
            rivals = any(sign.kind != kind and sign.weight >= _get_threshold("named") for sign in matches)
            if not rivals and not self._has_doubts(kind, wording, [sign for sign in matches if sign.weight]):
                return self._make_narrowed_context(kind, max(_get_threshold("clear"), self.threshold))
        if kind == context.kind or likely[kind] < _get_threshold("likely"):
            return context
        return NO_CONTEXT if kind is None else _make_unsure_context(kind, min(round(likely[kind], 3), unsure))

    def _has_doubts(self, kind: str, wording: NormalizedMessage, understood: list[_CueMatch]) -> bool:
        """Return True if the message may contain a further request that was omitted or not recognized."""
        doubts = self._get_rule(kind).doubt_words
        return (
            not wording.is_complete
            or (doubts is not None and re.search(doubts, wording.words) is not None)
            or _has_other_request(wording.words, [sign.start for sign in understood if sign.kind == kind])
        )

    def _make_narrowed_context(self, kind: str, confidence: float) -> ToolSelection:
        rule = self._get_rule(kind)
        patterns = (*self.always, *rule.tools, *rule.priority)
        allowed = frozenset(name for name in MEMORY_TOOLS if any(fnmatch.fnmatchcase(name, each) for each in patterns))
        return ToolSelection(kind, confidence, allowed, rule.priority)

    def _get_rule(self, kind: str) -> SelectionRule:
        return next(rule for rule in self.rules if rule.kind == kind)


def _make_unsure_context(kind: str | None, confidence: float) -> ToolSelection:
    return ToolSelection(kind, confidence, "all", ())


def _is_negated(text: str, found: re.Match[str]) -> bool:
    start, end = found.span()
    first = max(0, start - int(_get_threshold("reach")))
    first = text.rfind("\n", first, start) + 1 or first
    # Search before the end of the match, because it may end inside the suffix that negates it.
    return (
        _load_request_patterns()["not_before"].search(text[first:start]) is not None
        or _load_request_patterns()["not_after"].search(text, max(start, end - 4), end + 8) is not None
    )


def _compute_probabilities(words: str, context: ToolSelection) -> dict[str | None, float]:
    """Return the probability of each kind of context, computed from the learned weights."""
    numbers, bias, table = _load_weights()
    feature_weights = [weights for weights in map(table.get, extract_features(words)) if weights is not None]
    scale = numbers["unit"] / math.sqrt(len(feature_weights) or 1)
    sums = map(sum, zip(*feature_weights, strict=True)) if feature_weights else [0] * len(LEARNED_KINDS)
    logits = [total * scale + start for total, start in zip(sums, bias, strict=True)]
    if context.kind is None:
        logits[0] += numbers["no_kind_counts"]
    else:
        logits[LEARNED_KINDS.index(context.kind)] += numbers["kind_counts"] * context.confidence
    odds = [math.exp(logit) for logit in logits]
    return {kind: each / sum(odds) for kind, each in zip(LEARNED_KINDS, odds, strict=True)}


def _weaken_if_misread(match: _CueMatch, matches: list[_CueMatch]) -> _CueMatch:
    """Reduce the weight of a match if an overlapping match of another kind is stronger."""
    for other in matches:
        overlaps = other.start < match.end and match.start < other.end
        if not overlaps or other.kind == match.kind or OTHER_KIND in (match.kind, other.kind):
            continue
        contains = (
            other.start <= match.start and match.end <= other.end and other.end - other.start > match.end - match.start
        )
        if other.weight >= match.weight + _get_threshold("clearly") or (contains and other.weight >= match.weight):
            return match._replace(weight=match.weight * _get_threshold("misread"))
    return match


def _compute_strength(kind: str, matches: list[_CueMatch], *, has_other_request: bool) -> float:
    statement_factor = _get_threshold("told")
    own = (
        sign.weight * (1 if sign.asks or not has_other_request else statement_factor)
        for sign in matches
        if sign.kind == kind
    )
    first, second, *_ = *sorted(own, reverse=True), 0.0, 0.0
    return 1 - (1 - first) * (1 - _get_threshold("second") * second)


def _find_last_request(kind: str, matches: list[_CueMatch]) -> int:
    """Return the position of the last request of a kind, or -1 without one."""
    return max((sign.start for sign in matches if sign.kind == kind and sign.asks), default=-1)
