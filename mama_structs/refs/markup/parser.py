r"""
Incremental parser for ``<ref id="…">…</ref>`` tags in a model's answer.

Tags inside code are ignored. A tag starts with ``<ref`` or ``</ref`` (case-insensitive) followed by white space, ``/``
or ``>``. Anything else (``<refs>``, ``<reference>``, ``<ref`` before a no-break space or at the end of the text) is
plain text without a diagnostic. White space is as in HTML: space, tab, line feed, form feed, carriage return.

* An opening tag has attributes in any order. A name contains no white space, quotes, ``<``, ``>``, ``/`` or ``=``. A
  value is enclosed in double or single quotes and may contain anything else. It is not decoded: ``&amp;`` stays
  as written. A name without a value (``append``) has the value ``""``. White space around ``=`` and between attributes
  is optional. ``/`` is allowed only immediately before ``>``. The first of a repeated attribute counts.
* A closing tag contains only white space before its ``>``.
* A tag has at most 512 characters.
* In a JSON string, a tag has escaped quotes: ``<ref id=\\"x\\">``. Its values and its content are decoded. Only tags of
  this kind are recognized inside it, and it ends at the end of the string at the latest. A line break, or a quote that
  is not followed by white space, ``,``, ``:``, ``]`` or ``}``, proves that it is in no JSON string. From there, it is
  like any other ref, and its content is not decoded.

Text that starts like a tag but violates these rules is plain text and gets a diagnostic: malformed, too long, missing
id, or invalid id.

* A *fence* opens at the start of a line, after at most three spaces, with a run of three or more backticks or tildes. A
  line ends with ``\n``, ``\r\n`` or ``\r``. A run of backticks does not open a fence if a backtick follows on the same
  line within 1,000 characters. A fence closes at a line of at most three spaces, a run of the same character with at
  least the same length, and otherwise only spaces and tabs. An unclosed fence runs to the end of the text.
* A *span* opens with a run of backticks that is not a fence. It closes with the next run of the same length on the same
  line, at most 1,000 characters later. Without a closing run, the backticks are plain text.
* A run of more than 1,000 characters opens neither. It may close a fence.

Some providers send a model's thoughts as text, between ``<think>`` and ``</think>`` (or ``thinking``). Outside of code
and refs, at the start of a line after at most three spaces, the first tag opens *thoughts*. The next closing tag that
does not follow a backtick ends them, whatever is open there. Refs in thoughts are reported (``in_thoughts``) and must
not be stored. Thoughts that do not end are ordinary text, because a model that forgets the closing tag must not lose
its answer.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import attrs

from mama_structs._internal.reprs import FieldReprMixin
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.refs.markup.fences import (
    LINE_BREAK,
    MAX_FENCE_INDENT,
    MAX_RUN_CHARS,
    MAX_SPAN_CHARS,
    MIN_FENCE_CHARS,
    Fence,
)

MAX_TAG_CHARS: Final = 512
MAX_DEPTH: Final = 64
# Worst case: 1,000 opening backticks, followed by 1,000 characters that may contain the closing backticks.
MAX_BUFFERED_CHARS: Final = 2_000

MAX_ID_CHARS: Final = 64
ID_RULE: Final = f"1 to {MAX_ID_CHARS} letters of any script, digits, _ . and -, beginning with a letter or digit"
# Characters of letter or digit categories that are invisible: fillers, joiners and variation selectors.
_INVISIBLE_CHARS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

_LETTER_CATEGORIES: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Nd"})
_MARK_CATEGORIES: Final = frozenset({"Mn", "Mc"})


def parse_ref_id(text: str) -> str | None:
    """Validate an id. Return it normalized to NFC, or None if it is invalid."""
    if len(text) > 4 * MAX_ID_CHARS:
        return None
    name = unicodedata.normalize("NFC", text)
    kinds = [unicodedata.category(character) for character in name]
    allowed = all(
        kind in _LETTER_CATEGORIES | _MARK_CATEGORIES or one in "_.-" for one, kind in zip(name, kinds, strict=True)
    )
    is_id = (
        0 < len(name) <= MAX_ID_CHARS
        and kinds[0] in _LETTER_CATEGORIES
        and allowed
        and not _INVISIBLE_CHARS.search(name)
    )
    return name if is_id else None


def is_ref_id(text: str) -> bool:
    """Return True if the text is a valid ref id exactly as written."""
    return parse_ref_id(text) == text


# Parser events

IN_CODE_REASON: Final = "it was marked inside a code fence or inline code, where tags are text: put the tags outside"
IN_THOUGHTS_REASON: Final = "it was marked between <think> and </think>: mark it in the answer"
MENTIONED_REASON: Final = (
    'it was only named, as a history names what is stored: write its text between <ref id="..."> and </ref>'
)

DiagnosticKind = Literal[
    "unclosed",
    "nested",
    "missing_id",
    "invalid_id",
    "malformed",
    "too_long",
    "too_deep",
    "stray_close",
    "in_code",
    "in_thoughts",
    "new_version",
    "nothing_to_append",
    "open_fence",
    "invalid_text",
    "quota_exceeded",
    "unreadable",
]
_NOTE_KINDS: Final = frozenset({"nested", "new_version"})


@attrs.frozen(repr=False)
class PlainText(FieldReprMixin):
    """Text outside of refs, unchanged; never empty."""

    text: str


@attrs.frozen(repr=False)
class RefStart(FieldReprMixin):
    """
    Start of a ref. Attribute names are in lower case.

    *position* is that of the opening tag in the parsed text, counted from 1.
    """

    id: str
    attributes: Mapping[str, str]
    position: int = attrs.field(default=0, kw_only=True, eq=False)


@attrs.frozen(repr=False)
class RefText(FieldReprMixin):
    """Text inside open refs, unchanged, including its first and last line breaks; never empty."""

    text: str


@attrs.frozen(repr=False)
class RefEnd(FieldReprMixin):
    """
    End of the innermost open ref. *is_complete* is False if the text ended first.

    *position* is the first position after the ref, counted from 1. *is_json* is True if the tag and the content are in
    a JSON string, so that the content has escape sequences.
    """

    id: str
    is_complete: bool
    position: int = attrs.field(default=0, kw_only=True, eq=False)
    is_json: bool = attrs.field(default=False, kw_only=True, repr=False)


@attrs.frozen(repr=False)
class Diagnostic(FieldReprMixin):
    """A problem with a tag at *position* (from 1). *message* is addressed to the model."""

    kind: DiagnosticKind
    id: str | None  # None if no id can be read
    position: int
    message: str

    @property
    def is_note(self) -> bool:
        """True if the diagnostic reports no problem, but a nested ref or a new version."""
        return self.kind in _NOTE_KINDS


Event = PlainText | RefStart | RefText | RefEnd | Diagnostic


# JSON strings

_JSON_ESCAPE: Final = re.compile(r"\\(?:([\"\\/bfnrt])|u([0-9a-fA-F]{4}))")
_JSON_CHARS: Final[Mapping[str, str]] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def decode_json_text(text: str) -> str:
    """Replace the escape sequences of a JSON string. Invalid sequences stay unchanged."""

    def decode(match: re.Match[str]) -> str:
        return _JSON_CHARS.get(match[1], match[1]) if match[1] else chr(int(match[2], 16))

    # Combine surrogate pairs.
    return _JSON_ESCAPE.sub(decode, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


# Tags

# These patterns never backtrack. All quantifiers are possessive, and alternatives start with different characters.
_SPACE: Final = r"[ \t\n\r\f]"
_NAME: Final = r"[^ \t\n\r\f\"'<>/=]++"
_REF: Final = r"[rR][eE][fF]"
_AFTER_NAME: Final = r"[ \t\n\r\f/>]"

# Patterns for the text after "<": of a tag, and of a truncated tag (\Z) that may continue in the next chunk.
_TAG_BEGINS: Final = rf"(?:\\?+/)?+{_REF}{_AFTER_NAME}"
_TAG_MAY_BEGIN: Final = rf"(?:\\(?:\Z|(?=/)))?+/?+(?:\Z|[rR](?:\Z|[eE](?:\Z|[fF](?:\Z|{_AFTER_NAME}))))"
# A value in escaped quotes. Like all other parts of a tag, it may be truncated.
_JSON_VALUE: Final = r"""\\(?:"(?:[^"\\]++|\\[^"])*+(?:\\"|\\?+\Z)|\Z)"""

# The text may end (\Z) in every part of the tag. The group "end" matches only if the tag is complete.
_OPENING: Final = re.compile(
    rf"""<{_REF}(?={_AFTER_NAME}|\Z)"""
    rf"""(?:{_SPACE}*+{_NAME}(?:{_SPACE}*+={_SPACE}*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|{_JSON_VALUE}|\Z))?+)*+"""
    rf"""{_SPACE}*+(?P<slash>/?+)(?:(?P<end>>)|\Z)"""
)
_CLOSING: Final = re.compile(rf"<\\?+/{_REF}{_SPACE}*+(?:(?P<end>>)|\Z)")
_TAG_PREFIX: Final = re.compile(r"<(?:\\?+/?+(?:[rR](?:[eE][fF]?+)?+)?+)\Z")
_ATTRIBUTE: Final = re.compile(
    rf"""(?P<name>{_NAME})(?:{_SPACE}*+={_SPACE}*+(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'"""
    r"""|\\"(?P<json>(?:[^"\\]++|\\[^"])*+)\\"))?+"""
)


@attrs.frozen
class _OpeningTag:
    id: str
    attributes: Mapping[str, str]
    is_empty: bool  # True if the tag closes itself, as in ``<ref id="a"/>``.
    is_json: bool | None  # None if the tag has no double quotes, which would decide it.
    end: int

    @property
    def is_mention(self) -> bool:
        """True if the tag mentions a stored ref, as in a conversation's history: ``<ref id="a" lines="3"/>``."""
        return self.is_empty and "lines" in self.attributes


# Templates of the diagnostics of rejected tags. `_report` sets their position.
_make_diagnostic: Final = functools.partial(Diagnostic, position=0)
_MALFORMED_OPENING: Final = _make_diagnostic(
    "malformed",
    None,
    message="this opening tag is not well formed and was left as text:"
    ' write <ref id="name">, with every value in quotes',
)
_MALFORMED_CLOSING: Final = _make_diagnostic(
    "malformed", None, message="this closing tag is not well formed and was left as text: write </ref>, nothing else"
)
_UNFINISHED: Final = _make_diagnostic(
    "malformed", None, message="the text ended inside this tag, which was left as text"
)
_TOO_LONG: Final = _make_diagnostic(
    "too_long",
    None,
    message=f"this tag was left as text: a tag has at most {MAX_TAG_CHARS} characters, its quotes must be closed",
)
_MISSING_ID: Final = _make_diagnostic(
    "missing_id", None, message='this tag has no id and was left as text: write <ref id="name">'
)


def _read_tag(text: str, start: int, end: int, *, final: bool) -> _OpeningTag | Diagnostic | int | None:
    """
    Parse the tag at *start*, which lies within the text up to *end*.

    Returns:
        The opening tag, the index after a closing tag, or the diagnostic of a rejected tag. None if more text is
        needed, which never happens if *final*.

    """
    limit = min(end, start + MAX_TAG_CHARS)
    closing = text.startswith(("</", "<\\/"), start)
    match = (_CLOSING if closing else _OPENING).match(text, start, limit)
    if match is None:
        if not final and _TAG_PREFIX.match(text, start, end):
            return None
        return _MALFORMED_CLOSING if closing else _MALFORMED_OPENING
    if match["end"] is None:
        if limit == start + MAX_TAG_CHARS:
            return _TOO_LONG
        return _UNFINISHED if final else None
    return match.end() if closing else _opening_tag(text, match)


def _opening_tag(text: str, match: re.Match[str]) -> _OpeningTag | Diagnostic:
    attributes: dict[str, str] = {}
    quotes: set[bool] = set()
    for attribute in _ATTRIBUTE.finditer(text, match.start() + len("<ref"), match.end()):
        name, double, single, escaped = attribute.groups()
        quotes |= ({False} if double is not None else set()) | ({True} if escaped is not None else set())
        value = double or single or ""
        attributes.setdefault(name.lower(), value if escaped is None else decode_json_text(escaped))
    if len(quotes) > 1:
        return _MALFORMED_OPENING
    said = attributes.pop("id", None)
    if said is None:
        return _MISSING_ID
    ref_id = parse_ref_id(said)
    if ref_id is None:
        shown = said if len(said) <= 80 else f"{said[:80]}…"  # noqa: PLR2004 - enough to know it again
        message = f"{shown!r} is no id, so this tag was left as text: an id is {ID_RULE}"
        return _make_diagnostic("invalid_id", said, message=message)
    return _OpeningTag(ref_id, attributes, bool(match["slash"]), next(iter(quotes), None), match.end())


# Code

_RUN_PATTERNS: Final = {character: re.compile(f"{character}*+") for character in "`~"}
# Fast path for the most common code span: single backticks around text without "<", which might start a tag.
_PLAIN_SPAN: Final = rf"`[^`\r\n<]{{1,{MAX_SPAN_CHARS}}}+`(?=[^`])"
_LINE_START: Final = re.compile(rf"[\r\n] {{0,{MAX_FENCE_INDENT}}}\Z")


def _find_line_start(text: str, end: int) -> str:
    """Return the line break and spaces before *end* if a fence may start there, else ""."""
    match = _LINE_START.search(text, max(end - 1 - MAX_FENCE_INDENT, 0), end)
    return "" if match is None else match[0]


def _find_line_end(text: str, start: int, end: int) -> int:
    """Return the index of the first line break from *start*, or *end* if there is none before it."""
    match = LINE_BREAK.search(text, start, end)
    return end if match is None else match.start()


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the index at which a match at *at* ends, or *at* if the pattern does not match."""
    match = pattern.match(text, at)
    return at if match is None else match.end()


@attrs.define
class _CodeSpan:
    """
    A run of backticks that may open a code span or a fence.

    It opens a fence if no closing run follows and *may_be_fence* is still True.
    """

    length: int
    may_be_fence: bool
    searched_chars: int = 0  # number of searched characters after the run

    def end(self, text: str, start: int, *, final: bool) -> int | None:
        """Return the index of the closing run, or -1 without a closing run. Return None if more text is needed."""
        stop = _find_line_end(text, start, start + MAX_SPAN_CHARS + 1)
        known = final or stop <= len(text)
        at = text.find("`", start + self.searched_chars, stop)
        while at >= 0:
            self.may_be_fence = False
            behind = _match_end(_RUN_PATTERNS["`"], text, at)
            if behind == len(text) and not final and (behind < stop or behind - at <= self.length):
                self.searched_chars = at - start
                return None
            if behind - at == self.length:
                return at
            at = text.find("`", behind, stop)
        self.searched_chars = len(text) - start
        return -1 if known else None


def _open_code(character: str, length: int, *, begins_line: bool) -> Fence | _CodeSpan | None:
    """Return the code span or fence that a run of backticks or tildes may open, or None if it opens no code."""
    may_be_fence = begins_line and length >= MIN_FENCE_CHARS
    if length > MAX_RUN_CHARS:
        return None
    if character == "`":
        return _CodeSpan(length, may_be_fence)
    return Fence(character, length) if may_be_fence else None


# Thoughts


def _make_truncated_pattern(word: str, end: str) -> str:
    """Return a pattern of *word* in any case and then *end*, which the end of the text may truncate."""
    for letter in reversed(word):
        end = rf"(?:\Z|[{letter}{letter.upper()}]{end})"
    return end


_TRUNCATED_END: Final = r"(?:\Z|>)"
_THINK: Final = "[tT][hH][iI][nN][kK](?:[iI][nN][gG])?+>"
_THINK_SOURCES: Final = {
    True: _THINK,
    False: _make_truncated_pattern("think", rf"(?:>|{_make_truncated_pattern('ing', _TRUNCATED_END)})"),
}
_THOUGHTS_START: Final = re.compile(f"<{_THINK}")
_THOUGHTS_END: Final = re.compile(f"</{_THINK}")
_THOUGHTS_END_TAGS: Final = ("</think>", "</thinking>")


def _split_after_thoughts(text: str) -> list[str]:
    """Split a text after each tag that may end thoughts. Return the parts in reverse order."""
    ends = [match.end() for match in _THOUGHTS_END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)][::-1]


def _find_truncated_end_tag(text: str) -> int:
    """Return the index at which the end of a text may begin a tag that ends thoughts."""
    at = text.rfind("<")
    tail = text[at:].lower()
    return at if at >= 0 and any(tag.startswith(tail) for tag in _THOUGHTS_END_TAGS) else len(text)


# The parser

# Keyed by whether the text is complete: patterns for the start of a tag, and for text that can be skipped.
_TAG_START_SOURCES: Final = {True: _TAG_BEGINS, False: _TAG_MAY_BEGIN}
_TAG_START: Final = {final: re.compile(f"<(?={tag})") for final, tag in _TAG_START_SOURCES.items()}
_PLAIN_TEXT: Final = {
    final: re.compile(f"(?:[^<`~]++|{_PLAIN_SPAN}|<(?!{tag}|{_THINK_SOURCES[final]}))*+")
    for final, tag in _TAG_START_SOURCES.items()
}
_MARKUP_START: Final = {
    final: re.compile(f"<(?={tag}|{_THINK_SOURCES[final]})") for final, tag in _TAG_START_SOURCES.items()
}
# Text of a JSON string inside a ref, up to a tag, a line break, a quote, or a backslash that may need more text.
_JSON_TEXT: Final = {
    final: re.compile(rf'(?:[^<"\\\r\n]++|\\[^<\r\n]|<(?!{tag}))*+') for final, tag in _TAG_START_SOURCES.items()
}
_AFTER_JSON_STRING: Final = frozenset(" \t\n\r\f,:]}")

_NEEDS_MORE_TEXT: Final = -1


@attrs.define(eq=False, repr=False)
class RefParser:
    """
    Incremental parser for refs in a text that arrives in chunks of any size.

    The events do not depend on the chunk boundaries, once adjacent `Text` and adjacent `RefText` events are joined.
    Time is linear. At most 2,000 characters are buffered, and only after a possible tag that is incomplete or may be
    inside inline code.

    * The joined texts of all `Text` and `RefText` events equal the input without the tags of its refs, byte for byte.
      Text is `RefText` while a ref is open. Line breaks at the ends of a ref's content are not trimmed here.
    * A tag that violates a rule is text and yields a `Diagnostic`. Parsing continues directly after its ``<``, and its
      closing tag closes any other open ref.
    * In code outside of refs, tags are text. A valid opening tag there (in a fence: on one line) yields ``in_code``.
      Line starts are determined in the raw text. Inside a ref only tags are recognized.
    * Refs may be nested, 64 deep. A deeper opening tag is text (``too_deep``), and so is its closing tag.
    * ``<ref id="a"/>`` starts and ends a ref. With an attribute ``lines`` it is text that mentions a stored ref.
    * A closing tag without an open ref is text (``stray_close``).
    * Refs that are open at the end of the text are closed there, innermost first, with ``complete=False``
      (``unclosed``).

    A `Diagnostic` directly precedes its subject: the tag's text, its `RefStart`, or, for ``unclosed``, its `RefEnd`.
    """

    _position: int = attrs.field(default=0, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    # Ids and positions of the open refs, outermost first, and whether they are in a JSON string.
    _open_refs: list[tuple[str, int, bool]] = attrs.field(factory=list, init=False)
    # The position of the tag that opened the current thoughts, and whether they contain markup.
    _thoughts: int | None = attrs.field(default=None, init=False)
    _thoughts_have_markup: bool = attrs.field(default=False, init=False)
    # Start and end offsets of the thoughts that ended.
    _past_thoughts: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    # The last character of the text so far, if it is in thoughts.
    _last_thought: str = attrs.field(default="", init=False)
    # The beginning of a tag that may end the thoughts.
    _held_end: str = attrs.field(default="", init=False)
    # The text after a tag that opened thoughts, which must be scanned again, and the number of fed but unscanned
    # characters.
    _rest: str = attrs.field(default="", init=False)
    _unscanned_chars: int = attrs.field(default=0, init=False)
    # Number of opening tags beyond the maximum depth whose closing tags have not arrived yet.
    _too_deep_count: int = attrs.field(default=0, init=False)
    # The code span or fence that the text is or may be in. None in plain text and inside refs.
    _open_code: _CodeSpan | Fence | None = attrs.field(default=None, init=False)
    # The last emitted text, which the next scan needs as context.
    # The initial line break makes the beginning of the text the beginning of a line.
    _context: str = attrs.field(default="\n", init=False)
    # The text after `_context`, which was not emitted yet.
    _buffered: str = attrs.field(default="", init=False)
    # Text of the current scan.
    _text: str = attrs.field(default="", init=False)
    # Index of the first character in `_text` that was not emitted yet.
    _emitted_until: int = attrs.field(default=0, init=False)
    # Events of the current scan.
    _events: list[Event] = attrs.field(factory=list, init=False)

    @property
    def position(self) -> int:
        """The number of characters fed so far."""
        return self._position

    def feed(self, chunk: str) -> list[Event]:
        """
        Parse the next chunk. Return the events that later chunks cannot change.

        Args:
            chunk: The next part of the text.

        Raises:
            InvalidArgument: The chunk is not a text.
            SessionClosed: The parser was closed.

        """
        if not isinstance(chunk, str):
            raise InvalidArgument(
                f"chunk must be str, got {type(chunk).__name__}", hint="decode bytes as a whole first"
            )
        if self._closed:
            raise SessionClosed("this parser was closed", hint="make a new RefParser for each text")
        if not chunk:
            return []
        self._position += len(chunk)
        # Fast path: most chunks of a stream contain a few characters and no markup.
        if not (self._buffered or self._held_end or self._is_in_json) and "<" not in chunk:
            self._last_thought = chunk[-1]
            if self._open_refs:
                return [RefText(chunk)]
            if self._open_code is None:
                seen = self._context + chunk
                if "`" not in seen and "~" not in seen:
                    if self._context or "\n" in chunk or "\r" in chunk:
                        self._context = _find_line_start(seen, len(seen))
                    return [PlainText(chunk)]
            elif not (self._context or "\n" in chunk or "\r" in chunk) and type(self._open_code) is Fence:
                return [PlainText(chunk)]
        return self._scan(chunk, final=False)

    def close(self) -> list[Event]:
        """End the text, and return the last events, including the ends of open refs. Idempotent."""
        if self._closed:
            return []
        self._closed = True
        events = self._scan("", final=True)
        self._end_open_refs(0)
        return [*events, *self._take_events()]

    def _scan(self, chunk: str, *, final: bool) -> list[Event]:
        """Parse the buffered text and *chunk* until more text is needed, and return the events."""
        text, self._held_end = self._held_end + chunk, ""
        self._unscanned_chars = len(text)
        parts = _split_after_thoughts(text)
        is_split = len(parts) > 1
        while parts:
            part = parts.pop()
            if self._thoughts is None:
                self._scan_part(part, final=final and not parts)
            else:
                self._scan_thoughts(part, final=final and not parts)
            if self._rest:
                parts += _split_after_thoughts(self._rest)
                is_split, self._rest = True, ""
        events = self._take_events()
        return _join_texts(events) if is_split else events

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _scan_thoughts(self, part: str, *, final: bool) -> None:
        """Parse thoughts, which end with *part* if it ends with their closing tag."""
        end = _THOUGHTS_END.search(part)
        is_quoted = end is not None and (self._last_thought + part)[: -len(end[0])].endswith("`")
        if is_quoted:
            end = None
        stop = end.start() if end else len(part) if final or is_quoted else _find_truncated_end_tag(part)
        self._last_thought = part[:stop][-1:] or self._last_thought
        self._scan_part(part[:stop], final=final or end is not None)
        if end is None:
            self._held_end = part[stop:]
            return
        # An open ref or fence in the thoughts must not hide the answer.
        self._end_open_refs(0, is_reported=False)
        self._open_code, self._context = None, ""
        if self._thoughts_have_markup:
            message = "refs between <think> and </think> are not stored: mark them in the answer"
            self._events.append(Diagnostic("in_thoughts", None, self._thoughts or 0, message))
        self._unscanned_chars -= len(part) - stop
        self._past_thoughts.append(((self._thoughts or 1) - 1, self._position - self._unscanned_chars))
        self._thoughts = None
        self._events.append(PlainText(part[stop:]))

    def _scan_part(self, part: str, *, final: bool) -> None:
        self._unscanned_chars -= len(part)
        self._text = self._context + self._buffered + part
        self._emitted_until = len(self._context)
        at = 0
        while at != _NEEDS_MORE_TEXT:
            code = self._open_code
            if self._open_refs:
                at = self._parse_in_ref(at, final=final)
            elif code is None:
                at = self._parse_plain(at, final=final)
            elif isinstance(code, _CodeSpan):
                at = self._parse_span(code, at, final=final)
            else:
                at = self._parse_fence(code, at, final=final)
        self._text = ""

    # Each `_parse_` method parses in one state from an index, and returns the index from which to continue.
    # If more text is needed, a `_parse_` method returns `_NEEDS_MORE_TEXT`.

    def _parse_plain(self, at: int, *, final: bool) -> int:
        text = self._text
        at = _match_end(_PLAIN_TEXT[final], text, at)
        if at == len(text):
            return self._buffer_rest(before=_find_line_start(text, at))
        character = text[at]
        if character == "<":
            is_tag = _TAG_START[final].match(text, at)
            return self._parse_tag(at, final=final) if is_tag else self._open_thoughts(at)
        behind, beginning = _match_end(_RUN_PATTERNS[character], text, at), _find_line_start(text, at)
        if behind == len(text) and not final:
            # The next chunk may continue the run.
            return self._buffer_rest(before=beginning + text[at:behind][: MAX_RUN_CHARS + 1])
        self._open_code = _open_code(character, behind - at, begins_line=bool(beginning))
        return behind

    def _parse_in_ref(self, at: int, *, final: bool) -> int:
        text = self._text
        if not self._is_in_json:
            match = _TAG_START[final].search(text, at)
            return self._buffer_rest() if match is None else self._parse_tag(match.start(), final=final)
        at = _match_end(_JSON_TEXT[final], text, at)
        if at == len(text):
            return self._buffer_rest()
        if text[at] == "<":
            return self._parse_tag(at, final=final)
        is_last = at + 1 == len(text)
        if is_last and not final and text[at] in '"\\':
            return self._buffer_rest(held=at)
        if text[at] == '"' and (is_last or text[at + 1] in _AFTER_JSON_STRING):
            # The JSON string ends here.
            self._emit(at)
            self._end_open_refs(at)
            return at
        if text[at] != "\\":
            # This is no JSON string.
            self._open_refs = [(ref_id, position, False) for ref_id, position, _ in self._open_refs]
        return at + 1

    def _parse_span(self, span: _CodeSpan, at: int, *, final: bool) -> int:
        end = span.end(self._text, at, final=final)
        if end is None:
            # The text before the first tag can be emitted, because it is plain text whether or not it is code.
            match = _MARKUP_START[final].search(self._text, max(at, self._emitted_until))
            self._emit(len(self._text) if match is None else match.start())
            return self._buffer_rest(before=self._text[at : self._emitted_until], held=self._emitted_until)
        if end >= 0:
            self._open_code = None
            self._report_tags_in_code(at, end, final=True)
            return end + span.length
        self._open_code = Fence("`", span.length) if span.may_be_fence else None
        return at

    def _parse_fence(self, fence: Fence, at: int, *, final: bool) -> int:
        end = fence.end(self._text, at)
        if end >= 0:
            self._open_code = None
            self._report_tags_in_code(at, end, final=True)
            return end
        held = self._report_tags_in_code(at, len(self._text), final=final)
        if held != _NEEDS_MORE_TEXT:
            return self._buffer_rest(held=held)
        return self._buffer_rest(before=fence.partial_closing_line(self._text, at))

    def _parse_tag(self, at: int, *, final: bool) -> int:
        in_json = self._is_in_json
        if not in_json and self._text.startswith("<\\", at):
            return at + 1
        tag = _read_tag(self._text, at, len(self._text), final=final)
        if tag is None:
            # The text may also become a tag that opens thoughts.
            return self._buffer_rest(before=_find_line_start(self._text, at), held=at)
        if isinstance(tag, Diagnostic):
            self._report(tag, at)
            return at + 1
        if isinstance(tag, int):
            self._close_ref(at, tag)
            return tag
        is_json = in_json if tag.is_json is None else tag.is_json
        if self._open_refs and is_json is not in_json:
            if is_json:
                self._report(_MALFORMED_OPENING, at)
            return at + 1
        self._open_ref(tag, at, is_json=is_json)
        return tag.end

    @property
    def _is_in_json(self) -> bool:
        return bool(self._open_refs) and self._open_refs[-1][2]

    def _open_thoughts(self, at: int) -> int:
        beginning = _find_line_start(self._text, at)
        if self._thoughts is not None or not beginning:
            return at + 1
        tag = _THOUGHTS_START.match(self._text, at)
        if tag is None:
            return self._buffer_rest(before=beginning, held=at)
        self._thoughts, self._thoughts_have_markup, self._last_thought = self._compute_position(at), False, ""
        self._rest = self._text[tag.end() :]
        self._text = self._text[: tag.end()]
        self._unscanned_chars += len(self._rest)
        return self._buffer_rest()

    def _end_open_refs(self, at: int, *, is_reported: bool = True) -> None:
        """End the open refs at an index, innermost first, as incomplete."""
        end, self._too_deep_count = self._compute_position(at), 0
        while self._open_refs:
            ref_id, position, is_json = self._open_refs.pop()
            if is_reported:
                more = f'<ref id="{ref_id}" append>'
                message = f"ref {ref_id!r} was not closed with </ref>, and is incomplete: to go on write {more}"
                self._events.append(Diagnostic("unclosed", ref_id, position, message))
            self._events.append(RefEnd(ref_id, is_complete=False, position=end, is_json=is_json))

    def _open_ref(self, tag: _OpeningTag, at: int, *, is_json: bool) -> None:
        if tag.is_mention:
            return
        if len(self._open_refs) == MAX_DEPTH:
            message = f"ref {tag.id!r} was left as text, with its closing tag: refs may be nested {MAX_DEPTH} deep"
            self._report(_make_diagnostic("too_deep", tag.id, message=message), at)
            self._too_deep_count += not tag.is_empty
            return
        self._emit(at)
        if self._open_refs:
            outer = self._open_refs[-1][0]
            message = f"ref {tag.id!r} is inside ref {outer!r}: both hold the text of the inner one"
            self._report(_make_diagnostic("nested", tag.id, message=message), at)
        self._thoughts_have_markup = True
        self._events.append(RefStart(tag.id, tag.attributes, position=self._compute_position(at)))
        if tag.is_empty:
            end = self._compute_position(tag.end)
            self._events.append(RefEnd(tag.id, is_complete=True, position=end, is_json=is_json))
        else:
            self._open_refs.append((tag.id, self._compute_position(at), is_json))
        self._emitted_until = tag.end

    def _close_ref(self, at: int, end: int) -> None:
        if self._too_deep_count:
            self._too_deep_count -= 1
        elif self._open_refs:
            self._emit(at)
            ref_id, _, is_json = self._open_refs.pop()
            position = self._compute_position(end)
            self._events.append(RefEnd(ref_id, is_complete=True, position=position, is_json=is_json))
            self._emitted_until = end
        else:
            message = "no ref is open here, so this closing tag was left as text: write &lt;/ref> to show one"
            self._report(_make_diagnostic("stray_close", None, message=message), at)

    def _report_tags_in_code(self, start: int, end: int, *, final: bool) -> int:
        """Report opening tags in code. Return the index of an incomplete tag, or else `_NEEDS_MORE_TEXT`."""
        text = self._text
        at = max(start, self._emitted_until)
        while match := _TAG_START[final].search(text, at, end):
            at = match.start()
            limit = min(end, at + MAX_TAG_CHARS)
            line = _find_line_end(text, at, limit)
            tag = _read_tag(text, at, end if line == limit else line, final=final or line < limit)
            if tag is None:
                return at
            if isinstance(tag, _OpeningTag):
                if not tag.is_mention:
                    message = f"ref {tag.id!r} is in code, where tags are text, and is not stored: put the tags outside"
                    self._report(_make_diagnostic("in_code", tag.id, message=message), at)
                at = tag.end
            else:
                at += 1
        return _NEEDS_MORE_TEXT

    def _report(self, what: Diagnostic, at: int) -> None:
        self._emit(at)
        self._thoughts_have_markup = True
        self._events.append(Diagnostic(what.kind, what.id, self._compute_position(at), what.message))

    def _emit(self, end: int) -> None:
        """Emit the text before an index."""
        if end > self._emitted_until:
            text = self._text[self._emitted_until : end]
            self._events.append(RefText(text) if self._open_refs else PlainText(text))
            self._emitted_until = end

    def _buffer_rest(self, *, before: str = "", held: int | None = None) -> int:
        """Emit the text before *held* (all text if None), and buffer the rest and the context for the next chunk."""
        self._emit(len(self._text) if held is None else held)
        self._context = before
        self._buffered = "" if held is None else self._text[held:]
        return _NEEDS_MORE_TEXT

    def _compute_position(self, at: int) -> int:
        """Convert an index in the currently scanned text to a 1-based position in the complete text."""
        return self._position - self._unscanned_chars - len(self._text) + at + 1


def _join_texts(events: Sequence[Event]) -> list[Event]:
    """Join adjacent text events of the same type."""
    joined: list[Event] = []
    for kind, group in itertools.groupby(events, type):
        if kind is PlainText or kind is RefText:
            joined.append(kind("".join(event.text for event in group if isinstance(event, PlainText | RefText))))
        else:
            joined += group
    return joined
