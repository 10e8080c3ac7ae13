"""What tells what a user wants, and which tools that calls for: plain data, which a host can extend."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument

# The kind of cues for requests that none of the contexts covers.
OTHER: Final = "other"


def _compiled(cue: Cue) -> re.Pattern[str]:
    if cue.pattern is not None:
        if not isinstance(cue.pattern, str):
            raise InvalidArgument(f"pattern must be a text, got {type(cue.pattern).__name__}")
        source = unicodedata.normalize("NFC", cue.pattern)
    else:
        check_texts(cue, "words", cue.words)
        # Longer ones first, so that the match is the longest; Korean is often typed without its spaces.
        ordered = sorted(cue.words, key=len, reverse=True)
        each = (r"\s*".join(map(re.escape, unicodedata.normalize("NFC", words).lower().split())) for words in ordered)
        source = rf"(?<!\w)(?:{'|'.join(each)})"
    try:
        # A Korean particle may follow an English word at once: to an English cue, that is where the word ends.
        return re.compile(source, re.MULTILINE | (re.ASCII if cue.language == "en" else re.NOFLAG))
    except re.error as error:
        raise InvalidArgument(
            f"the pattern of a cue must be a regular expression, got {source!r:.80}: {error}",
            hint="escape what is meant literally, or give it as words=(...)",
        ) from error


def check_texts(_owner: object, field: Any, value: object) -> None:
    """Refuse what is no tuple of texts."""
    if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
        name = field if isinstance(field, str) else field.name
        raise InvalidArgument(f"{name} must be a tuple of texts that are not blank, got {value!r:.80}")


def as_tuple(value: object) -> object:
    """Take any collection for a tuple; what is none stays itself, to be refused."""
    # A text is iterable, too, and would fall apart into letters.
    return value if isinstance(value, str) or not hasattr(value, "__iter__") else tuple(value)


@attrs.frozen(kw_only=True)
class Cue:
    """
    Words that tell what a user wants.

    Matched against the user's own words: composed (NFC), in lower case, one sentence a line, without quotations and
    code. A pattern's dot does not leave the sentence, and its ``^`` and ``$`` are the sentence's ends.

    Args:
        kind: The context that it speaks for; `OTHER` where it asks for what no context covers; None where the words
            mean nothing here ("success message"): what it matches is taken out before the others look.
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
    words: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    pattern: str | None = None
    weight: float = 0.8
    asks: bool = True
    language: str = ""
    regex: re.Pattern[str] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_compiled, takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        """Refuse what could never match, or would match everything."""
        if self.kind is not None and not (isinstance(self.kind, str) and self.kind.strip()):
            raise InvalidArgument(f"kind must be a text or None, got {self.kind!r:.80}")
        if bool(self.words) == (self.pattern is not None):
            raise InvalidArgument("a cue needs either words or a pattern", hint='such as words=("weiter",)')
        if not (isinstance(self.weight, int | float) and 0 < self.weight <= 1):
            raise InvalidArgument(f"weight must be above 0 and at most 1, got {self.weight!r:.80}")
        if self.regex.search("") is not None:
            raise InvalidArgument("the pattern of a cue must not match the empty text")


def check_pattern(_rule: object, field: Any, value: object) -> None:
    """Refuse what is no regular expression."""
    try:
        if value is not None:
            re.compile(value)  # type: ignore[call-overload]  # whatever a host gave: a wrong type is an error below
    except (re.error, TypeError) as error:
        raise InvalidArgument(f"{field.name} must be a regular expression, got {value!r:.80}: {error}") from error


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
    tools: tuple[str, ...] = attrs.field(converter=as_tuple, validator=check_texts)
    priority: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, validator=check_texts)
    doubts: str | None = attrs.field(default=None, validator=check_pattern)


# What each tool may be asked for with. Only what the context's own cues need is left out.
_SAVES: Final = (
    r"\b(?:keep in mind|bear in mind|don't forget|never forget|record (?!of)|write (?:it|this|that|down)|jot"
    r"|log (?:it|this|that)"
    r"|facts?|save|store|saving|remember (?!what|how|why|when|which|where|the decision)"
    r"|memori[sz]e|note (?:that|down|to|this|for|it)|notes? to self"
    r"|lessons?|insights?|takeaways?|wrap|(?:create|make|write|take|set|drop|leave) "
    r"(?:\w+ ){0,3}checkpoint|progress|handover)\b"
    r"|저장|세이브|기억해|메모해|메모 ?남|적어|남겨|외워|알아 ?둬|참고로|까먹지|교훈|인사이트|배운|잊지"
    r"|체크 ?포인트[^\n]{0,8}(?:남|만들"
    r"|찍)|진행 ?상황"
)
_EVOLVES: Final = (
    r"\b(?:mark|marked|as of (?:now|today)|close the loop|supersede|replace|outcomes?|outdated|obsolete|no longer"
    r" (?:true|valid"
    r"|holds)|update (?:it|that|this|the)"
    r"|change (?:it|that|this|to|the (?:decision|rule|policy))|revise|revoke|overturn|overrul\w+|overrid\w+|overwrite"
    r"|revers\w+|undo|retract|withdraw|flag "
    r"(?:it|that|this|as)|set (?:it|that|this|the decision))\b"
    r"|표시|처리해|바꿔 ?(?:줘|주|라|놔|버)|바꾸자|변경해|변경하|대체|교체|업데이트|업뎃|수정해|갱신|철회|뒤집|번복"
    r"|무효|폐기"
    r"|취소|(?:실패|성공)(?:으)?로"
)
_FAILS: Final = (
    r"\b(?:fail\w*|succe\w*|work(?:ed|s)|mistake|backfir\w*|regret\w*|paid off|turned out|disaster|flop\w*|feedback"
    r"|partial\w*|(?:didn't|did not|doesn't|does not) (?:work|help|hold|pay)"
    r"|went (?:well|badly|wrong|south)|(?:good|bad|right|wrong) (?:call|decision|choice))\b"
    r"|실패|성공|실수|이득|줄었|늘었|빨라졌|느려졌|망했|망함|후회|효과|잘 ?됐|안 ?됐|통했|먹혔|손해|대박|반영|달아"
)
_SEARCHES: Final = (
    r"\b(?:find|search|look(?:ing)? (?:up|for|into)|recall|remind|similar|history|related"
    r"|depend\w*|what did|why did|how did|what else"
    r"|did we|have we|which of|anything"
    r"|show me|notes?|past|earlier|previous|tricks?|what (?:was|were) (?:the|that|our)|choices|how come)\b|찾|검색"
    r"|비슷|이력"
    r"|히스토리|관련|뭐였|뭐라고|왜 |어떻게 ?했|알려|보여|궁금|입장|언제|적 ?있"
)
_CONTEXTS: Final = r"\b(?:context|details?|in full|whole|graph|everything)\b|맥락|상세|자세|전체|컨텍스트"

DEFAULT_CONTEXTS: Final[tuple[ContextRule, ...]] = (
    ContextRule(
        kind="resuming",
        tools=("load/context", "search/recent"),
        priority=("load/checkpoint",),
        doubts=rf"{_SAVES}|{_EVOLVES}|{_FAILS}|{_SEARCHES}|\b(?:deci\w+|topics?|rules?|whatever)\b|결정|규칙|주제|이유|근거"
        r"|\bwhat was (?:the|that|our|your)\b|\btricks?\b|\bkeep an?\b|쓰자고|합의|얼마|몇 |\b(?:why|reasons?|notes?"
        r"|dig|wrote (?:it"
        r"|that) down)\b",
    ),
    ContextRule(
        kind="deciding",
        tools=("save/insight", "search/by_context", "search/by_topic", "evolve/supersede"),
        priority=("save/decision",),
        doubts=(
            rf"checkpoint|progress|체크 ?포인트|진행 ?상황|\b(?:mark|outcomes?|recent|latest|list|load|resume"
            rf"|continue)\b|표시|최근|목록|옛날|예전|며칠|전문|열어|\b(?:what changed|over the last|history|past)\b"
            rf"|불러|이어서|{_FAILS}|{_CONTEXTS}"
        ),
    ),
    ContextRule(
        kind="searching",
        tools=("search/*", "load/context"),
        priority=("search/by_context",),
        doubts=rf"{_SAVES}|{_EVOLVES}|{_FAILS}",
    ),
    ContextRule(
        kind="tracking",
        tools=("evolve/*", "search/by_topic", "search/recent"),
        priority=("evolve/outcome",),
        doubts=rf"{_SAVES}|{_SEARCHES}|{_CONTEXTS}|\?|더라|[였했]지",
    ),
)
