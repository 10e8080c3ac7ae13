"""
Which memory tools a model should see: a pure decision from the words of a message.

The cues, the rules of the contexts, the wording of requests, the learned weights and the tuned numbers are data, in
``data/``, which is read before the first message and not before.
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

from mama_structs.errors import InvalidArgument, shown
from mama_structs.refs.messages.provider_messages import said_by_user
from mama_structs.tools.wire_names import MEMORY_TOOLS, SUCCESSORS

# The kind of cues for requests that none of the contexts covers.
OTHER: Final = "other"
ALWAYS: Final[tuple[str, ...]] = ("save/decision", "save/checkpoint", "load/checkpoint")
# The order in which the learned weights of a piece stand, and the letters that they are written in.
_LEARNED: Final[tuple[str | None, ...]] = (None, "resuming", "deciding", "searching", "tracking")
_SCALE: Final = string.ascii_uppercase + string.ascii_lowercase

_HANGUL = re.compile("[가-힣]")
_LETTERS: Final = {"ko": _HANGUL, "en": re.compile("[a-z]")}


# What cues and contexts are


def _as_tuple(value: object) -> object:
    # A text is iterable, too, and would fall apart into letters; what is no collection stays, to be refused.
    return value if isinstance(value, str) or not hasattr(value, "__iter__") else tuple(value)


def _check_texts(_owner: object, field: Any, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
        raise InvalidArgument(f"{field.name} must be a tuple of texts that are not blank, got {shown(value)}")


@attrs.frozen(kw_only=True)
class Cue:
    """
    Words that tell what a user wants.

    Matched against the user's own words: composed (NFC), in lower case, one sentence a line, without quotations and
    code. A pattern's dot does not leave the sentence, and its ``^`` and ``$`` are the sentence's ends.

    Args:
        kind: The context that it speaks for; ``"other"`` where it asks for what no context covers; None where the
            words mean nothing here ("success message"): what it matches is taken out before the others look.
        words: Words or phrases; each counts where a word starts with it, so that ``search`` is found in ``searching``
            and not in ``research``. Spaces between words may be missing.
        pattern: A regular expression, in place of *words*.
        weight: 0 to 1: how sure it is on its own.
        asks: Whether it asks for something. What only tells something counts as long as nothing else is asked.
        language: ``"en"`` and ``"ko"`` are looked for only in texts with such letters; any other name is for people.
            To ``"en"``, only ASCII letters make a word, since a Korean particle may follow at once.

    Raises:
        InvalidArgument: Neither or both of *words* and *pattern* are given, or a value is out of its range.

    """

    kind: str | None
    words: tuple[str, ...] = attrs.field(default=(), converter=_as_tuple, validator=_check_texts)
    pattern: str | None = None
    weight: float = 0.8
    asks: bool = True
    language: str = ""
    regex: re.Pattern[str] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what could never match, or would match everything."""
        if self.kind is not None and not (isinstance(self.kind, str) and self.kind.strip()):
            raise InvalidArgument(f"kind must be a text or None, got {shown(self.kind)}")
        if bool(self.words) == (self.pattern is not None):
            raise InvalidArgument("a cue needs either words or a pattern", hint='such as words=("weiter",)')
        if not (isinstance(self.weight, int | float) and 0 < self.weight <= 1):
            raise InvalidArgument(f"weight must be above 0 and at most 1, got {shown(self.weight)}")
        object.__setattr__(self, "regex", self._compiled())
        if self.regex.search("") is not None:
            raise InvalidArgument("the pattern of a cue must not match the empty text")

    def _compiled(self) -> re.Pattern[str]:
        if self.pattern is None:
            # Longer ones first, so that the match is the longest; Korean is often typed without its spaces.
            ordered = sorted(self.words, key=len, reverse=True)
            each = (r"\s*".join(map(re.escape, unicodedata.normalize("NFC", one).lower().split())) for one in ordered)
            source = rf"(?<!\w)(?:{'|'.join(each)})"
        elif isinstance(self.pattern, str):
            source = unicodedata.normalize("NFC", self.pattern)
        else:
            raise InvalidArgument(f"pattern must be a text, got {type(self.pattern).__name__}")
        try:
            # A Korean particle may follow an English word at once: to an English cue, that is where the word ends.
            return re.compile(source, re.MULTILINE | (re.ASCII if self.language == "en" else re.NOFLAG))
        except re.error as error:
            raise InvalidArgument(
                f"the pattern of a cue must be a regular expression, got {shown(source)}: {error}",
                hint="escape what is meant literally, or give it as words=(...)",
            ) from error


def _check_pattern(_rule: object, field: Any, value: object) -> None:
    try:
        if value is not None:
            re.compile(value)  # type: ignore[call-overload]  # whatever a host gave: a wrong type is an error below
    except (re.error, TypeError) as error:
        raise InvalidArgument(f"{field.name} must be a regular expression, got {shown(value)}: {error}") from error


@attrs.frozen(kw_only=True)
class ContextRule:
    """
    Which memory tools a context calls for.

    Args:
        kind: The context's name, as its cues have it.
        tools: Names, or patterns such as ``search/*``; what is always exposed need not be named.
        priority: The tools that come first, in order.
        doubts: A regular expression for words that may ask for a tool that is not among *tools*: where one is found,
            nothing is hidden, however clear the context. Better one too many than one too few.

    """

    kind: str
    tools: tuple[str, ...] = attrs.field(converter=_as_tuple, validator=_check_texts)
    priority: tuple[str, ...] = attrs.field(default=(), converter=_as_tuple, validator=_check_texts)
    doubts: str | None = attrs.field(default=None, validator=_check_pattern)


# The data that comes along


def _data(name: str) -> list[str]:
    lines = files("mama_structs.tools").joinpath("data", name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _patterns(name: str) -> Iterator[tuple[list[str], str]]:
    """Yield the head of each record of a file with its pattern: alternatives, with {NAME} for the parts above."""
    parts: dict[str, str] = {}
    lines = _data(name)
    heads = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in itertools.pairwise([*heads, len(lines)]):
        joined = "|".join(line[2:] for line in lines[start + 1 : end])
        pattern = re.sub(r"\{([A-Z_]+)\}", lambda found: parts[found[1]], joined)
        if lines[start].startswith("="):
            parts[lines[start][1:]] = pattern
        else:
            yield lines[start].split(), pattern


@functools.cache
def _default_cues() -> tuple[Cue, ...]:
    # Some 400 patterns take a fifth of a second to compile, which no session needs before its first message.
    return tuple(
        Cue(
            kind=None if kind == "None" else kind,
            weight=float(weight),
            pattern=pattern,
            asks="tells" not in told,
            language=language,
        )
        for language in ("en", "ko")
        for (kind, weight, *told), pattern in _patterns(f"cues_{language}.txt")
    )


@functools.cache
def _default_contexts() -> tuple[ContextRule, ...]:
    return tuple(
        ContextRule(kind=kind, tools=tools.split(","), priority=priority.split(","), doubts=doubts)
        for (kind, tools, priority), doubts in _patterns("contexts.txt")
    )


class _LearnedWeights(NamedTuple):
    numbers: Mapping[str, float]
    bias: tuple[float, ...]
    pieces: Mapping[str, tuple[int, ...]]


@functools.cache
def _weights() -> _LearnedWeights:
    """Read the tuned numbers, and the learned weights of pieces in steps of ``unit``."""
    named: dict[str, str] = {}
    pieces: dict[str, tuple[int, ...]] = {}
    for line in _data("weights.tsv"):
        match line.split("\t"):
            case [name, value, _meaning]:
                named[name] = value
            case [piece, letters]:
                pieces[piece.replace("_", " ")] = tuple(_SCALE.index(one) - _SCALE.index("a") for one in letters)
    bias = tuple(map(float, named.pop("bias").split()))
    return _LearnedWeights({name: float(value) for name, value in named.items()}, bias, pieces)


def _number(name: str) -> float:
    return _weights().numbers[name]


@functools.cache
def _asking() -> Mapping[str, re.Pattern[str]]:
    """Read by what words requests are told from statements, and from what is not wanted."""
    return {name: re.compile(pattern) for (name,), pattern in _patterns("asking.txt")}


# A user's own words: what is quoted, pasted or code says nothing about what the user wants. The bounds keep a pasted
# megabyte as cheap as a long paragraph: requests stand at a message's beginning or end.

# Stands for what was taken out, so that "mark `auth` as failed" still has an object.
GAP: Final = "◻"
# Characters that are read of a long message, before and after taking out what is not the user's own.
_HEAD, _TAIL = 3_000, 5_000
_KEPT_HEAD, _KEPT_TAIL = 300, 600
# Longer sentences are cut: a request and its object stand closer together.
_SENTENCE = 240
# What pieces are taken from.
_SENTENCES: Final = 40
_LETTERS_IN_A_ROW: Final = (2, 3, 4)
_FENCE: Final = "```"
_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]{1,300}`")
_QUOTED = re.compile(
    r"\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|„[^“”\n]{1,400}[“”]|«[^»\n]{1,400}»|「[^」\n]{1,400}」|『[^』\n]{1,400}』"
    r"|(?<!\w)['\u2018][^'\u2019\n]{2,400}['\u2019](?!\w)"
)
# Lines of logs, stack traces, diffs, shells and quoted mail.
_PASTED = re.compile(
    r"^[ \t]*(?:>|\$ |\+\+\+|@@|(?:[-+] ?){3}|\d{4}-\d\d-\d\d[ T]\d|\[?\d\d:\d\d:\d\d"
    r"|Traceback |File \"|at [\w.$<>]+\("
    r"|\[?(?:ERROR|INFO|WARN(?:ING)?|DEBUG|FATAL|TRACE|FAILED|PASSED)\b|E {2,}|\w+(?:Error|Exception)\b).*$",
    re.MULTILINE,
)
_MEMORY_ID = re.compile(r"\b(?:decision|checkpoint|insight)_\w+", re.ASCII)
# Addresses, paths, calls, file names and identifiers; ASCII, as a Korean particle that follows is not part of one.
_NAMES = re.compile(
    r"https?://[^\s가-힣]+|(?<!\S)[~.]?/[\w./-]{2,}|\b\w+(?:\.\w+)*\(\)|\b[A-Za-z0-9]*_[A-Za-z0-9_]+"
    r"|\b[\w-]+\.(?:py|js|ts|tsx|md|json|ya?ml|toml|rs|go|txt|log|csv|sql|sh|html|css|java|kt|db)\b"
    r"|\b[A-Z][a-z]+[A-Z]\w*",
    re.ASCII,
)
_SENTENCE_END = re.compile(r"(?<=[.!?;。?!…])\s+|\n+")
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0\u3000]+")
# "where'd we get to", "what'd you say", "u remember".
_SHORTENED = re.compile(r"\b(where|what|how|why|who|when)'?d(?= (?:we|i|you|u|they|he|she|the|that|it)\b)")
_YOU = re.compile(r"(?<![\w'-])u(?![\w'-])")
_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})


class Wording(NamedTuple):
    """What a user said: composed (NFC), in lower case, one sentence a line; and whether nothing was left out."""

    words: str
    whole: bool


def own_words(text: str) -> Wording:
    """Find the user's own words in a message, of a long one in its beginning and its end."""
    whole = len(text) <= _HEAD + _TAIL
    plain = unicodedata.normalize("NFC", _bounded(text))
    plain = _FENCED.sub(f"\n{GAP}\n", plain) if _FENCE in plain or "~~~" in plain else plain
    plain = _QUOTED.sub(GAP, _INLINE.sub(GAP, _PASTED.sub("", plain)))
    if not plain.strip(f"{GAP} \n\t.,:;!?"):
        # Nothing else was said, so that the quotation marks are only wrapping; a fence is not.
        is_wrapped = _QUOTED.fullmatch(text.strip()) is not None
        plain = text[:_KEPT_HEAD].strip("\"'“”\u2018\u2019「」『』«» \n\t") if is_wrapped else ""
        plain = unicodedata.normalize("NFC", plain)
    plain = _NAMES.sub(GAP, _MEMORY_ID.sub("that decision", plain))
    lines = filter(None, (_BLANKS.sub(" ", line).strip() for line in _SENTENCE_END.split(plain)))
    short = (line[start : start + _SENTENCE] for line in lines for start in range(0, len(line), _SENTENCE))
    words = "\n".join(short).lower().translate(_APOSTROPHES)
    words = _YOU.sub("you", _SHORTENED.sub(r"\1 did", words))
    if len(words) > _KEPT_HEAD + _KEPT_TAIL:
        return Wording(f"{words[:_KEPT_HEAD]}\n{words[-_KEPT_TAIL:]}", whole=False)
    return Wording(words, whole)


def _bounded(text: str) -> str:
    if len(text) <= _HEAD + _TAIL:
        return text
    # A fence may begin in the head or in what is left out, and end in the tail.
    opens = text.count(_FENCE, 0, len(text) - _TAIL) % 2 == 1
    head = text[:_HEAD]
    closed = f"\n{_FENCE}" if head.count(_FENCE) % 2 else ""
    return f"{head}{closed}\n{_FENCE if opens else ''}{text[-_TAIL:]}"


def pieces(words: str) -> set[str]:
    """Return what a text is made of: two to four letters in a row, words, pairs of words, how sentences begin."""
    found: set[str] = set()
    for sentence in words.split("\n")[:_SENTENCES]:
        line = f" {sentence} "
        for length in _LETTERS_IN_A_ROW:
            found.update(line[start : start + length] for start in range(len(line) - length + 1))
        each = line.split()
        found.update(f" {word} " for word in each)
        found.update(f" {word} {following} " for word, following in itertools.pairwise(each))
        if each:
            found.update((f"^{each[0]} ", f"^{' '.join(each[:2])} ", f" {each[-1]}$"))
    return found


# Whether a message asks for something beside what was recognised: if so, its tools are not known.

# Shorter ones are greetings and fillers.
_WORDS: Final = 3
_KOREAN_WORDS: Final = 2


def _asks_beside(words: str, understood: list[int]) -> bool:
    """Tell whether a clause asks for something in which no understood cue begins."""
    asking = _asking()
    breaks = [found.end() for found in asking["breaks"].finditer(words)]
    for start, end in itertools.pairwise([0, *breaks, len(words)]):
        if any(start <= place < end for place in understood):
            continue
        clause = words[start:end].strip()
        count = len(clause.split())
        if _HANGUL.search(clause) is not None:
            if count >= _KOREAN_WORDS and asking["urges_in_korean"].search(clause) is not None:
                return True
        elif count >= _WORDS and (asking["urges"].search(clause) is not None or asking["tells"].match(clause) is None):
            return True
    return False


# The decision


@attrs.frozen
class Context:
    """
    What a message is about, as far as the choice of tools goes.

    Args:
        kind: ``"resuming"``, ``"deciding"``, ``"searching"``, ``"tracking"``, or a kind of the host's; None where
            nothing of the sort was found.
        confidence: 0 to 1: how sure that is, and that nothing else is asked for; 0 where *kind* is None.
        allowed: The memory tools to see, or ``"all"``.
        priority: The tools that come first; empty where all are seen, so that their order stays as it is.

    """

    kind: str | None
    confidence: float
    allowed: frozenset[str] | Literal["all"]
    priority: tuple[str, ...]


NO_CONTEXT: Final = Context(None, 0.0, "all", ())


class _Sign(NamedTuple):
    """A cue that was found."""

    kind: str
    weight: float
    asks: bool
    start: int
    end: int


@attrs.frozen(kw_only=True)
class Exposure:
    """
    Decides from a message which memory tools a model should see.

    Only the ten memory tools and their seven names of v1.0 are ever hidden, and only where one context is clear and
    nothing else is asked for.

    Args:
        cues: What tells a context; ``(*Exposure().cues, Cue(...))`` adds to ours. Beside ours, what messages of each
            kind are made of counts, too.
        contexts: Which tools each context calls for; ours are ``Exposure().contexts``.
        always: Tools that are never hidden.
        threshold: The confidence from which tools are hidden.

    Raises:
        InvalidArgument: A value is of the wrong type or out of its range, a context is there twice, or a cue's kind
            has no context.

    """

    cues: tuple[Cue, ...] = attrs.field(factory=_default_cues, converter=_as_tuple, repr=False)
    contexts: tuple[ContextRule, ...] = attrs.field(factory=_default_contexts, converter=_as_tuple, repr=False)
    always: tuple[str, ...] = attrs.field(default=ALWAYS, converter=_as_tuple, validator=_check_texts)
    threshold: float = 0.7
    _learned: bool = attrs.field(init=False, eq=False, repr=False, default=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what does not fit together."""
        if not (isinstance(self.threshold, int | float) and 0 <= self.threshold <= 1):
            raise InvalidArgument(f"threshold must be from 0 to 1, got {shown(self.threshold)}")
        for name, items, wanted in (("cues", self.cues, Cue), ("contexts", self.contexts, ContextRule)):
            if not isinstance(items, tuple) or not all(isinstance(item, wanted) for item in items):
                raise InvalidArgument(f"{name} must be objects of {wanted.__name__}, got {shown(items)}")
        kinds = [rule.kind for rule in self.contexts]
        if len(set(kinds)) < len(kinds):
            raise InvalidArgument(f"contexts must have one rule a kind, got {', '.join(kinds):.200}")
        for cue in self.cues:
            if cue.kind not in (None, OTHER, *kinds):
                raise InvalidArgument(
                    f"the kind of a cue must be one of {', '.join((*kinds, OTHER))} or None, got {shown(cue.kind)}",
                    hint="add a ContextRule for a kind of your own",
                )
        learned = {*_LEARNED[1:]} <= {*kinds} and {*_default_cues()} <= {*self.cues}
        object.__setattr__(self, "_learned", learned)

    def detect(self, message: object) -> Context:
        """
        Tell what the user wants now.

        Args:
            message: A text; or content blocks, a message, a list of messages or a request, as dicts or as a provider's
                objects. The user's last text in them counts. None and unknown shapes match no context.

        """
        wording = own_words(said_by_user(message))
        signs = self._signs(wording.words)
        context = self._decide(signs, wording)
        # The weights were learned beside our cues, and say nothing where a host has its own instead. Nor can pieces
        # tell what is not to be done, or a fact that is to be kept from a rule.
        keeps = any(not sign.weight or (sign.kind == OTHER and sign.weight >= _number("sure")) for sign in signs)
        if not self._learned or context.kind not in _LEARNED or (context.kind is None and keeps):
            return context
        return self._weighed(context, signs, wording)

    def select(self, names: Iterable[str], context: Context) -> tuple[str, ...]:
        """
        Return the names of the tools to show: those of *context* first, then the others in their order.

        Args:
            names: Of tools of any sort; only memory tools are left out.
            context: From `detect`.

        """
        allowed = context.allowed
        seen = [
            name
            for name in names
            if allowed == "all"
            or SUCCESSORS.get(name, name) in allowed
            or (name not in SUCCESSORS and name not in MEMORY_TOOLS)
        ]
        first = [name for name in context.priority if name in seen]
        return (*first, *(name for name in seen if name not in first))

    def _signs(self, text: str) -> list[_Sign]:
        absent = {language for language, letters in _LETTERS.items() if letters.search(text) is None}
        cues = [cue for cue in self.cues if cue.language not in absent]
        for cue in cues:
            if cue.kind is None:
                text = cue.regex.sub(GAP, text)
        most = int(_number("matches"))
        signs = []
        for cue in cues:
            # Most cues find nothing, and `search` says so faster than an iterator would.
            if cue.kind is not None and cue.regex.search(text) is not None:
                for found in itertools.islice(cue.regex.finditer(text), most):
                    # What is said and not wanted weighs nothing.
                    weighs = not _negated(text, found)
                    signs.append(_Sign(cue.kind, cue.weight * weighs, cue.asks and weighs, *found.span()))
        return [_read_again(sign, signs) for sign in signs]

    def _decide(self, signs: list[_Sign], wording: Wording) -> Context:
        elsewhere = max((sign.weight for sign in signs if sign.kind == OTHER), default=0.0)
        strengths = {rule.kind: _strength(rule.kind, signs, elsewhere=bool(elsewhere)) for rule in self.contexts}
        other_at = _last_asked(OTHER, signs) if elsewhere >= _number("sure") else -1
        needed = {kind: _number("sure" if other_at > _last_asked(kind, signs) else "named") for kind in strengths}
        named = [kind for kind, strength in strengths.items() if strength >= needed[kind]]
        if not named:
            return NO_CONTEXT
        best = max(strengths[one] for one in named)
        close = [one for one in named if strengths[one] >= best - _number("clearly")]
        kind = max(close, key=lambda one: (_last_asked(one, signs), strengths[one]))
        rivals = (elsewhere, *(strength for rival, strength in strengths.items() if rival != kind))
        confidence = math.prod((1 - _number("rivalry") * each for each in rivals), start=strengths[kind])
        if self._doubts(kind, wording, [sign for sign in signs if sign.weight >= _number("strong")]):
            confidence = min(confidence, self.threshold - _number("doubt"))
        confidence = round(max(confidence, 0.0), 3)
        return _unsure(kind, confidence) if confidence < self.threshold else self._narrowed(kind, confidence)

    def _weighed(self, context: Context, signs: list[_Sign], wording: Wording) -> Context:
        """Weigh what the cues say against what messages of each kind are made of."""
        likely = _likeness(wording.words, context)
        unsure = max(self.threshold - _number("doubt"), 0.0)
        if context.allowed != "all":
            needed = _number("unlike" if context.confidence >= _number("firm") else "likely_enough")
            return context if likely[context.kind] >= needed else _unsure(context.kind, unsure)
        kind = max(likely, key=lambda one: likely[one])
        if kind is not None and kind == context.kind and likely[kind] >= _number("likeliest"):
            rivals = any(sign.kind != kind and sign.weight >= _number("named") for sign in signs)
            if not rivals and not self._doubts(kind, wording, [sign for sign in signs if sign.weight]):
                return self._narrowed(kind, max(_number("clear"), self.threshold))
        if kind == context.kind or likely[kind] < _number("likely"):
            return context
        return NO_CONTEXT if kind is None else _unsure(kind, min(round(likely[kind], 3), unsure))

    def _doubts(self, kind: str, wording: Wording, understood: list[_Sign]) -> bool:
        """Tell whether the message may ask for anything else: in what was not read, or not understood."""
        doubts = self._rule(kind).doubts
        return (
            not wording.whole
            or (doubts is not None and re.search(doubts, wording.words) is not None)
            or _asks_beside(wording.words, [sign.start for sign in understood if sign.kind == kind])
        )

    def _narrowed(self, kind: str, confidence: float) -> Context:
        rule = self._rule(kind)
        patterns = (*self.always, *rule.tools, *rule.priority)
        allowed = frozenset(name for name in MEMORY_TOOLS if any(fnmatch.fnmatchcase(name, each) for each in patterns))
        return Context(kind, confidence, allowed, rule.priority)

    def _rule(self, kind: str) -> ContextRule:
        return next(rule for rule in self.contexts if rule.kind == kind)


def _unsure(kind: str | None, confidence: float) -> Context:
    return Context(kind, confidence, "all", ())


def _negated(text: str, found: re.Match[str]) -> bool:
    start, end = found.span()
    first = max(0, start - int(_number("reach")))
    first = text.rfind("\n", first, start) + 1 or first
    # The end of the match may already be within the ending.
    return (
        _asking()["not_before"].search(text[first:start]) is not None
        or _asking()["not_after"].search(text, max(start, end - 4), end + 8) is not None
    )


def _likeness(words: str, context: Context) -> dict[str | None, float]:
    """Tell how likely each kind is, by what the labelled messages of that kind are made of."""
    numbers, bias, table = _weights()
    known = [weights for weights in map(table.get, pieces(words)) if weights is not None]
    scale = numbers["unit"] / math.sqrt(len(known) or 1)
    sums = map(sum, zip(*known, strict=True)) if known else [0] * len(_LEARNED)
    logits = [total * scale + start for total, start in zip(sums, bias, strict=True)]
    if context.kind is None:
        logits[0] += numbers["no_kind_counts"]
    else:
        logits[_LEARNED.index(context.kind)] += numbers["kind_counts"] * context.confidence
    odds = [math.exp(logit) for logit in logits]
    return {kind: each / sum(odds) for kind, each in zip(_LEARNED, odds, strict=True)}


def _read_again(sign: _Sign, signs: list[_Sign]) -> _Sign:
    """Weaken a sign where another kind reads the same words better: in "did we decide on it?" nothing is decided."""
    for other in signs:
        overlaps = other.start < sign.end and sign.start < other.end
        if not overlaps or other.kind == sign.kind or OTHER in (sign.kind, other.kind):
            continue
        contains = (
            other.start <= sign.start and sign.end <= other.end and other.end - other.start > sign.end - sign.start
        )
        if other.weight >= sign.weight + _number("clearly") or (contains and other.weight >= sign.weight):
            return sign._replace(weight=sign.weight * _number("misread"))
    return sign


def _strength(kind: str, signs: list[_Sign], *, elsewhere: bool) -> float:
    told = _number("told")
    own = (sign.weight * (1 if sign.asks or not elsewhere else told) for sign in signs if sign.kind == kind)
    first, second, *_ = *sorted(own, reverse=True), 0.0, 0.0
    return 1 - (1 - first) * (1 - _number("second") * second)


def _last_asked(kind: str, signs: list[_Sign]) -> int:
    """Return where this kind is asked for last; before the text where it is not asked for."""
    return max((sign.start for sign in signs if sign.kind == kind and sign.asks), default=-1)
