"""Which memory tools a model should see for a message: a pure decision from the words of the message."""

from __future__ import annotations

import fnmatch
import functools
import math
import re
import string
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import attrs

from mama_structs.descriptors.messages import said_by_user
from mama_structs.errors import InvalidArgument
from mama_structs.tools.clauses import asks_beside
from mama_structs.tools.cues import DEFAULT_CONTEXTS, OTHER, ContextRule, Cue, as_tuple, check_texts
from mama_structs.tools.wording import GAP, Wording, own_words, pieces

# The only tools that are ever hidden, by their whole names: a host's own `save/file` is none of them.
MEMORY_TOOLS: Final[tuple[str, ...]] = (
    "save/decision",
    "save/checkpoint",
    "save/insight",
    "load/checkpoint",
    "load/context",
    "search/by_topic",
    "search/by_context",
    "search/recent",
    "evolve/outcome",
    "evolve/supersede",
)
# A name of v1.0 is seen whenever the tool that took its place is.
SUCCESSORS: Final[dict[str, str]] = {
    "save_decision": "save/decision",
    "recall_decision": "search/by_topic",
    "suggest_decision": "search/by_context",
    "list_decisions": "search/recent",
    "update_outcome": "evolve/outcome",
    "save_checkpoint": "save/checkpoint",
    "load_checkpoint": "load/checkpoint",
}
ALWAYS: Final[tuple[str, ...]] = ("save/decision", "load/checkpoint")


def _default_cues() -> tuple[Cue, ...]:
    # Their patterns take a fifth of a second to compile, which no session needs before its first message.
    from mama_structs.tools.cues_default import DEFAULT_CUES  # noqa: PLC0415 - see above

    return DEFAULT_CUES


# The order in which the learned weights of a piece stand, and the weights of a text without known pieces.
_LEARNED: Final[tuple[str | None, ...]] = (None, "resuming", "deciding", "searching", "tracking")
_SCALE: Final = string.ascii_uppercase + string.ascii_lowercase


@functools.cache
def _weights() -> tuple[dict[str, tuple[int, ...]], tuple[float, ...], float]:
    # Read with the cues, before the first message and not before.
    from mama_structs.tools.cues_learned import (  # noqa: PLC0415 - see above
        ENGLISH_PIECES,
        KOREAN_PIECES,
        PIECE_BIAS,
        PIECE_UNIT,
    )

    kinds = len(_LEARNED)
    table = {
        entry[kinds:]: tuple(_SCALE.index(letter) - _SCALE.index("a") for letter in entry[:kinds])
        for entry in (*ENGLISH_PIECES.split("|"), *KOREAN_PIECES.split("|"))
    }
    return table, PIECE_BIAS, PIECE_UNIT


# A kind is named from here on; below, the message is taken to be about none.
_NAMED: Final = 0.45
# The same where what no context covers is asked for after it.
_SURE: Final = 0.8
# A second sign of the same kind counts for little, since two cues often see the same words.
_SECOND: Final = 0.3
# How much a rival takes away. With 0.7, a rival that is strong enough to be named leaves less than the threshold.
_RIVALRY: Final = 0.7
# What is only told counts this much when something else is asked for.
_TOLD: Final = 0.4
_MATCHES: Final = 4
# Signs from here on are close to what is asked for; weaker ones may span a whole sentence.
_STRONG: Final = 0.7
# How far below the threshold doubts put a confidence at least.
_DOUBT: Final = 0.1
# By how much another kind must be surer of the same words, and what is then left of a sign.
_CLEARLY: Final = 0.15
_MISREAD: Final = 0.3
# How likely another kind must be, by what messages of each kind are made of, to take the place of an unsure one; and
# how likely at least the kind of a sure one.
_LIKELY: Final = 0.4
_UNLIKE: Final = 0.5
# A confidence below the first needs more than that: the second.
_FIRM: Final = 0.8
_LIKELY_ENOUGH: Final = 0.75
# Where pieces are this sure of the kind that weak cues name, and nothing else is asked for, the kind is clear.
_LIKELIEST: Final = 0.85
_CLEAR: Final = 0.75
# What cues say, as evidence beside the pieces.
_KIND_COUNTS: Final = 1.5
_NO_KIND_COUNTS: Final = 0.3

_HANGUL = re.compile("[가-힣]")
_LATIN = re.compile("[a-z]")
_LETTERS: Final = {"ko": _HANGUL, "en": _LATIN}
# In English what is not to be done stands before the verb, in Korean behind it.
_NOT_BEFORE = re.compile(
    r"\b(?:do not|don't|dont|never|no need to|needn't|without|instead of|not|stop|rather than|shouldn't|avoid)"
    r" (?:\w+ ){0,2}$"
)
_NOT_AFTER = re.compile(
    r"[가-힣]{0,4}지 ?(?:는 |도 )?(?:마|말)|[가-힣]{0,3}[자다라냐까]는 ?(?:게|건|거|것이|말이|뜻이) ?아니"
    r"|[가-힣]{0,2}(?:할|하실) ?필요(?:는|가)? ?없"
)
_REACH: Final = 30


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


@attrs.frozen
class _Sign:
    """A cue that was found."""

    kind: str
    weight: float
    asks: bool
    start: int
    end: int


@attrs.frozen(kw_only=True)
class Exposure:
    """
    Tells from a message which memory tools a model should see.

    Only the ten memory tools and their seven names of v1.0 are ever hidden, and only where one context is clear and
    nothing else is asked for.

    Args:
        cues: What tells a context; ``(*DEFAULT_CUES, Cue(...))`` adds to ours. Beside ours, what messages of each
            kind are made of counts, too.
        contexts: Which tools each context calls for.
        always: Tools that are never hidden.
        threshold: The confidence from which tools are hidden.

    Raises:
        InvalidArgument: A value is of the wrong type or out of its range, a context is there twice, or a cue's kind
            has no context.

    """

    cues: tuple[Cue, ...] = attrs.field(factory=_default_cues, converter=as_tuple, repr=False)
    contexts: tuple[ContextRule, ...] = attrs.field(default=DEFAULT_CONTEXTS, converter=as_tuple, repr=False)
    always: tuple[str, ...] = attrs.field(default=ALWAYS, converter=as_tuple, validator=check_texts)
    threshold: float = 0.7
    _learned: bool = attrs.field(init=False, eq=False, repr=False, default=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what does not fit together."""
        if not (isinstance(self.threshold, int | float) and 0 <= self.threshold <= 1):
            raise InvalidArgument(f"threshold must be from 0 to 1, got {self.threshold!r:.80}")
        _check_items("cues", self.cues, Cue)
        _check_items("contexts", self.contexts, ContextRule)
        kinds = [rule.kind for rule in self.contexts]
        if len(set(kinds)) < len(kinds):
            raise InvalidArgument(f"contexts must have one rule a kind, got {', '.join(kinds):.200}")
        for cue in self.cues:
            if cue.kind not in (None, OTHER, *kinds):
                raise InvalidArgument(
                    f"the kind of a cue must be one of {', '.join((*kinds, OTHER))} or None, got {cue.kind!r:.80}",
                    hint="add a ContextRule for a kind of your own",
                )
        own = set(map(id, self.cues))
        learned = {*_LEARNED[1:]} <= {*kinds} and all(id(cue) in own for cue in _default_cues())
        object.__setattr__(self, "_learned", learned)

    def detect(self, message: object) -> Context:
        """
        Tell what the user wants now.

        Args:
            message: Text; or content blocks, a message, a list of messages or a request, as dicts or as a provider's
                objects, of which the user's last text counts; None, or a shape that is not known, tells nothing.

        """
        wording = own_words(said_by_user(message))
        signs = list(self._signs(wording.words))
        context = self._decide(signs, wording)
        # The weights were learned beside our cues, and say nothing where a host has its own instead. Nor can pieces
        # tell what is not to be done, or a fact that is to be kept from a rule.
        kept = context.kind is None and any(not sign.weight or _keeps(sign) for sign in signs)
        return context if kept or not self._learned else self._weighed(context, signs, wording)

    def select(self, names: Iterable[str], context: Context) -> tuple[str, ...]:
        """
        Choose among the tools' names: those of *context* first, the others in the order in which they came.

        Args:
            names: Of tools of any sort; only memory tools are left out.
            context: From `detect`.

        """
        allowed = context.allowed
        seen = [name for name in names if allowed == "all" or SUCCESSORS.get(name, name) in allowed or not _hides(name)]
        first = [name for name in context.priority if name in seen]
        return (*first, *(name for name in seen if name not in first))

    def _signs(self, text: str) -> Iterator[_Sign]:
        absent = {language for language, letters in _LETTERS.items() if letters.search(text) is None}
        cues = [cue for cue in self.cues if cue.language not in absent]
        for cue in cues:
            if cue.kind is None:
                text = cue.regex.sub(GAP, text) if cue.regex.search(text) else text
        for cue in cues:
            if cue.kind is not None:
                # Most cues find nothing, and `search` says so faster than an iterator would.
                found = cue.regex.search(text)
                for _ in range(_MATCHES):
                    if found is None:
                        break
                    if _negated(text, found):
                        # Said, but not wanted: it weighs nothing.
                        yield _Sign(cue.kind, 0.0, False, *found.span())
                    else:
                        yield _Sign(cue.kind, cue.weight, cue.asks, *found.span())
                    found = cue.regex.search(text, found.end())

    def _decide(self, signs: list[_Sign], wording: Wording) -> Context:
        signs = [_read_again(sign, signs) for sign in signs]
        elsewhere = max((sign.weight for sign in signs if sign.kind == OTHER), default=0.0)
        strengths = {rule.kind: _strength(rule.kind, signs, elsewhere=bool(elsewhere)) for rule in self.contexts}
        named = [
            kind
            for kind, strength in strengths.items()
            if strength
            >= (_SURE if elsewhere >= _SURE and _last_asked(OTHER, signs) > _last_asked(kind, signs) else _NAMED)
        ]
        if not named:
            return NO_CONTEXT
        best = max(strengths[one] for one in named)
        close = [one for one in named if strengths[one] >= best - _CLEARLY]
        kind = max(close, key=lambda one: (_last_asked(one, signs), strengths[one]))
        confidence = strengths[kind] * (1 - _RIVALRY * elsewhere)
        for rival, strength in strengths.items():
            if rival != kind:
                confidence *= 1 - _RIVALRY * strength
        rule = next(rule for rule in self.contexts if rule.kind == kind)
        understood = [sign.start for sign in signs if sign.kind == kind and sign.weight >= _STRONG]
        # What was not read, or not recognised, may ask for anything.
        if (
            not wording.whole
            or (rule.doubts is not None and re.search(rule.doubts, wording.words) is not None)
            or asks_beside(wording.words, understood)
        ):
            confidence = min(confidence, self.threshold - _DOUBT)
        confidence = round(max(confidence, 0.0), 3)
        if confidence < self.threshold:
            return Context(kind, confidence, "all", ())
        return Context(kind, confidence, self._allowed(rule), rule.priority)

    def _weighed(self, context: Context, signs: list[_Sign], wording: Wording) -> Context:
        if context.kind not in _LEARNED:
            return context
        likely = _likeness(wording.words, context)
        unsure = max(self.threshold - _DOUBT, 0.0)
        if context.allowed != "all":
            needed = _UNLIKE if context.confidence >= _FIRM else _LIKELY_ENOUGH
            return context if likely[context.kind] >= needed else Context(context.kind, unsure, "all", ())
        kind = max(likely, key=lambda one: likely[one])
        if kind is not None and kind == context.kind and likely[kind] >= _LIKELIEST:
            rule = next(rule for rule in self.contexts if rule.kind == kind)
            if _alone(rule, signs, wording):
                return Context(kind, max(_CLEAR, self.threshold), self._allowed(rule), rule.priority)
        if kind == context.kind or likely[kind] < _LIKELY:
            return context
        return NO_CONTEXT if kind is None else Context(kind, min(round(likely[kind], 3), unsure), "all", ())

    def _allowed(self, rule: ContextRule) -> frozenset[str]:
        patterns = (*self.always, *rule.tools, *rule.priority)
        return frozenset(name for name in MEMORY_TOOLS if any(fnmatch.fnmatchcase(name, each) for each in patterns))


def _check_items(name: str, items: object, wanted: type) -> None:
    if not isinstance(items, tuple) or not all(isinstance(item, wanted) for item in items):
        raise InvalidArgument(f"{name} must be objects of {wanted.__name__}, got {items!r:.80}")


def _hides(name: str) -> bool:
    return name in SUCCESSORS or name in MEMORY_TOOLS


def _negated(text: str, found: re.Match[str]) -> bool:
    start, end = found.span()
    line_start = text.rfind("\n", max(0, start - _REACH), start) + 1 or max(0, start - _REACH)
    if _NOT_BEFORE.search(text[line_start:start]) is not None:
        return True
    # The end of the match may already be within the ending.
    return _NOT_AFTER.search(text, max(start, end - 4), end + 8) is not None


def _alone(rule: ContextRule, signs: list[_Sign], wording: Wording) -> bool:
    """Tell whether nothing but this context is asked for."""
    read = [_read_again(sign, signs) for sign in signs]
    return (
        wording.whole
        and not any(sign.kind != rule.kind and sign.weight >= _NAMED for sign in read)
        and (rule.doubts is None or re.search(rule.doubts, wording.words) is None)
        and not asks_beside(wording.words, [sign.start for sign in read if sign.kind == rule.kind and sign.weight])
    )


def _keeps(sign: _Sign) -> bool:
    return sign.kind == OTHER and sign.weight >= _SURE


def _likeness(words: str, context: Context) -> dict[str | None, float]:
    """Tell how likely each kind is, by what the labelled messages of that kind are made of."""
    table, bias, unit = _weights()
    known = [weights for weights in map(table.get, pieces(words)) if weights is not None]
    scale = unit / math.sqrt(len(known) or 1)
    sums = map(sum, zip(*known, strict=True)) if known else [0] * len(_LEARNED)
    logits = [total * scale + start for total, start in zip(sums, bias, strict=True)]
    if context.kind is None:
        logits[0] += _NO_KIND_COUNTS
    else:
        logits[_LEARNED.index(context.kind)] += _KIND_COUNTS * context.confidence
    odds = [math.exp(logit) for logit in logits]
    return {kind: each / sum(odds) for kind, each in zip(_LEARNED, odds, strict=True)}


def _read_again(sign: _Sign, signs: list[_Sign]) -> _Sign:
    """
    Weaken a sign where another kind reads the same words better.

    In "did we decide on it?" nothing is decided, and "어디까지 했지" is more than a recollection.
    """
    for other in signs:
        overlaps = other.start < sign.end and sign.start < other.end
        if not overlaps or other.kind == sign.kind or OTHER in (sign.kind, other.kind):
            continue
        contains = (
            other.start <= sign.start and sign.end <= other.end and other.end - other.start > sign.end - sign.start
        )
        if other.weight >= sign.weight + _CLEARLY or (contains and other.weight >= sign.weight):
            return attrs.evolve(sign, weight=sign.weight * _MISREAD)
    return sign


def _strength(kind: str, signs: list[_Sign], *, elsewhere: bool) -> float:
    weights = sorted(
        (sign.weight * (1 if sign.asks or not elsewhere else _TOLD) for sign in signs if sign.kind == kind),
        reverse=True,
    )
    if not weights:
        return 0.0
    second = weights[1] if len(weights) > 1 else 0.0
    return 1 - (1 - weights[0]) * (1 - _SECOND * second)


def _last_asked(kind: str, signs: list[_Sign]) -> int:
    """Return where this kind is asked for last; before the text where it is not asked for."""
    return max((sign.start for sign in signs if sign.kind == kind and sign.asks), default=-1)
