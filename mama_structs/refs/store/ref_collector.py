"""Collection of refs from the text of a model's message or stream."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from mama_structs._internal.offload import MAX_SYNC_CHARS, MAX_SYNC_REFS, InputSize, check_sync_size, measure_input
from mama_structs._internal.reprs import FieldReprMixin
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.refs.markup.parser import (
    Diagnostic,
    Event,
    PlainText,
    RefEnd,
    RefParser,
    RefStart,
    RefText,
    decode_json_text,
    parse_ref_id,
)
from mama_structs.refs.messages.provider_messages import DeltaReader, describe_item, extract_model_text, may_be_chunk
from mama_structs.refs.store.entries import Ref

_log = logging.getLogger("mama_structs")

_LINE_BREAKS: Final = ("\r\n", "\n", "\r")


def trim_line_breaks(text: str, *, closed: bool = True) -> str:
    r"""
    Remove one line break after an opening tag and one before the closing tag.

    A line break is ``\n``, ``\r\n`` or ``\r``. If the opening tag ended its line with ``\n``, a final ``\r`` is
    content, so that text on lines of its own is restored exactly.
    """
    opening = next((kind for kind in _LINE_BREAKS if text.startswith(kind)), "")
    text = text[len(opening) :]
    kinds = ("\n",) if opening == "\n" else _LINE_BREAKS
    closing = next((kind for kind in kinds if closed and text.endswith(kind)), "")
    return text[: len(text) - len(closing)]


@attrs.define
class MarkedText:
    """
    A ref that is not stored yet: its tag, and its position in the text.

    *position* and *position_after* are the positions before and after it in the complete text, from 1.
    *visible_start* and *end* are offsets in the visible text.
    """

    id: str
    attributes: Mapping[str, str]
    position: int
    visible_start: int
    end: int = -1
    position_after: int = -1
    complete: bool = False
    is_json: bool = False  # True if the tag and the content are in a JSON string


@attrs.frozen
class CollectedRefs:
    """
    The refs of one message, in order of their opening tags, and its text.

    Contains the parser's diagnostics, the complete text, and the visible text without tags.
    """

    marked: tuple[MarkedText, ...]
    diagnostics: tuple[Diagnostic, ...]
    text: str = attrs.field(repr=False)
    visible: str = attrs.field(repr=False)

    def content(self, marked: MarkedText) -> str:
        """Return a ref's content. The tags of nested refs, and one line break at each end, are removed."""
        # Compute contents lazily, because the contents of nested refs may total 64 times the size of the text.
        text = self.visible[marked.visible_start : marked.end]
        return trim_line_breaks(decode_json_text(text) if marked.is_json else text, closed=marked.complete)

    def compact(self, stored: Mapping[int, Ref]) -> str:
        """
        Return the text with a mention in place of each outermost stored ref.

        *stored* contains the refs by position. Other refs are left unchanged.
        """
        parts: list[str] = []
        at = 0
        for marked in self.marked:
            ref = stored.get(marked.position)
            if ref is not None and marked.position > at:
                mention = format_mention(ref)
                mention = mention.replace('"', r"\"") if marked.is_json else mention
                parts += self.text[at : marked.position - 1], mention
                at = marked.position_after - 1
        return "".join([*parts, self.text[at:]])


_JSON_CONTENT: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)


def _mark_json_strings(all_marked: Sequence[MarkedText], text: str, visible: str) -> tuple[MarkedText, ...]:
    """
    Mark the refs with single-quoted tags that are in JSON strings, if the complete text is JSON.

    The parser recognizes only tags with escaped quotes, because other tags look the same in ordinary text.
    """

    def convert(marked: MarkedText) -> MarkedText:
        if marked.is_json or not _JSON_CONTENT.fullmatch(visible, marked.visible_start, marked.end):
            return marked
        attributes = {name: decode_json_text(value) for name, value in marked.attributes.items()}
        return attrs.evolve(marked, attributes=attributes, is_json=True)

    if all(marked.is_json for marked in all_marked) or not _is_json(text):
        return tuple(all_marked)
    return tuple(map(convert, all_marked))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def measure_pieces(pieces: Sequence[str]) -> InputSize:
    """Return the input size of a message. The opening and closing tags of its refs count as items."""
    tags = sum(lowered.count("<ref") + lowered.count("</ref") for lowered in map(str.lower, pieces))
    return InputSize(sum(map(len, pieces)), tags)


def measure_message(message: object) -> InputSize:
    """Return the input size of a message. The tags of a long message are not counted."""
    load = measure_input(message)
    return measure_pieces(extract_model_text(message)) if load.is_inline else load


def check_refs(name: str, pieces: Sequence[str], *, hint: str) -> None:
    """Raise `InvalidArgument` if a message is too large for a synchronous call."""
    load = measure_pieces(pieces)
    check_sync_size(name, InputSize(load.chars), hint=hint)
    if load.items > 2 * MAX_SYNC_REFS:
        message = (
            f"{name} must have at most {MAX_SYNC_REFS:,} refs in a synchronous call, got about {load.items // 2:,}"
        )
        raise InvalidArgument(message, hint=hint)


def format_mention(ref: Ref) -> str:
    """Return a tag that mentions a ref. A parser that reads this tag stores nothing."""
    state = "" if ref.is_complete else ' complete="false"'
    return f'<ref id="{ref.id}" lines="{ref.lines}"{state}/>'


_MENTION: Final = re.compile(r'<ref id=(\\?")([^"<>\\]{1,256})\1 lines=\1[0-9]{1,9}\1(?: complete=\1false\1)?/>')


def find_mentions(text: str) -> Iterator[str]:
    """Yield the ids of the mentions in a text, in the form that `format_mention` returns."""
    for match in _MENTION.finditer(text):
        if (ref_id := parse_ref_id(match[2])) is not None:
            yield ref_id


class RefCollector:
    """Parses the text of one message piece by piece, and collects its refs. Without *marks*, tags are plain text."""

    def __init__(self, *, marks: bool = True) -> None:
        self._marks = marks
        self._parser = RefParser()
        self._chunks: list[str] = []
        self._previous_chars = 0  # number of characters in all previous pieces
        self._visible: list[str] = []
        self._visible_chars = 0
        self._open: list[MarkedText] = []
        self._marked: list[MarkedText] = []
        self._diagnostics: list[Diagnostic] = []

    @property
    def count(self) -> int:
        """The number of refs and diagnostics found so far."""
        return len(self._marked) + len(self._diagnostics)

    def feed(self, chunk: str) -> list[Event]:
        """Parse the next chunk of the current piece, and return the events that later chunks cannot change."""
        self._chunks.append(chunk)
        return self._apply_events(self._parser.feed(chunk) if self._marks else [PlainText(chunk)] if chunk else [])

    def end_piece(self) -> list[Event]:
        """End the current piece, so that the next text starts a new one. Return the last events of the piece."""
        events = self._apply_events(self._parser.close())
        self._previous_chars += self._parser.position
        self._parser = RefParser()
        return events

    def finish(self) -> CollectedRefs:
        """Return the collected refs. Call `end_piece` first."""
        texts = "".join(self._chunks), "".join(self._visible)
        # A draft in thoughts is no problem if the answer marks the ref.
        ids = {one.id for one in self._marked}
        told = (one for one in self._diagnostics if one.kind != "in_thoughts" or one.id not in ids)
        return CollectedRefs(_mark_json_strings(self._marked, *texts), tuple(told), *texts)

    def _apply_events(self, events: Sequence[Event]) -> list[Event]:
        return [self._apply_event(event) for event in events]

    def _apply_event(self, event: Event) -> Event:
        if isinstance(event, PlainText | RefText):
            self._visible.append(event.text)
            self._visible_chars += len(event.text)
            return event
        moved = attrs.evolve(event, position=event.position + self._previous_chars)
        if isinstance(moved, RefStart):
            place = moved.position, self._visible_chars
            self._open.append(MarkedText(moved.id, moved.attributes, *place))
            self._marked.append(self._open[-1])
        elif isinstance(moved, RefEnd):
            closed = self._open.pop()
            closed.end, closed.position_after, closed.complete = self._visible_chars, moved.position, moved.is_complete
            closed.is_json = moved.is_json
        elif moved.kind == "in_thoughts":
            self._drop_thoughts(moved)
        else:
            self._diagnostics.append(moved)
        return moved

    def _drop_thoughts(self, thoughts: Diagnostic) -> None:
        """Replace the refs and diagnostics from the start of thoughts by one diagnostic for each ref."""
        while self._diagnostics and self._diagnostics[-1].position >= thoughts.position:
            self._diagnostics.pop()
        dropped: list[MarkedText] = []
        while self._marked and self._marked[-1].position >= thoughts.position:
            dropped.append(self._marked.pop())
        for one in reversed(dropped):
            message = (
                f"ref {one.id!r} was marked between <think> and </think>, and is not stored: mark it in the answer"
            )
            self._diagnostics.append(Diagnostic("in_thoughts", one.id, one.position, message))


@attrs.frozen(kw_only=True, repr=False)
class ObservedMessage(FieldReprMixin):
    """
    The content of one message of a model.

    Args:
        refs: The stored refs, in order of their opening tags.
        diagnostics: Problems with tags, in order of positions. Report them to the model.
        text: The complete original text.
        visible_text: The text without the tags of refs, for people.
        compact_text: The text with ``<ref id="x" lines="30"/>`` in place of each stored ref, for the message history.
            Such a tag stores nothing when it is parsed again.

    """

    refs: tuple[Ref, ...]
    diagnostics: tuple[Diagnostic, ...]
    text: str = attrs.field(repr=False)
    visible_text: str = attrs.field(repr=False)
    compact_text: str = attrs.field(repr=False)


def unreadable_diagnostic(item: str) -> Diagnostic:
    """Return the diagnostic for a skipped item of a message. `describe_item` returns the description *item*."""
    return Diagnostic("unreadable", None, 1, f"{item} could not be read: refs in it were not stored")


class RefStream:
    """
    Receives a model's answer in chunks: ``feed`` each chunk, then ``close``.

    Chunks may be split anywhere; the stored refs are the same as for the complete answer. Created by `RefStore.stream`.
    """

    def __init__(
        self,
        collector: RefCollector,
        store: Callable[[CollectedRefs], ObservedMessage],
        store_any: Callable[[InputSize, CollectedRefs], Awaitable[ObservedMessage]],
    ) -> None:
        self._collector = collector
        self._deltas = DeltaReader()
        self._store = store
        self._store_in_thread = store_any
        self._result: ObservedMessage | None = None
        self._skipped: list[Diagnostic] = []
        self._finishing: CollectedRefs | None = None
        self._storing = asyncio.Lock()
        self._chars = 0

    def __repr__(self) -> str:
        return f"<RefStream{', closed' if self._result is not None else ''}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Parse the next chunk and return the events that are certain now, for display.

        A chunk of an unknown form adds nothing. It is logged, and reported among the diagnostics of `close`.

        Args:
            chunk: Text, or a stream event of the ``anthropic`` or ``openai`` packages (objects or dicts).

        Raises:
            InvalidArgument: *chunk* is a whole message, or a value that no stream yields; or it has more than
                1,000,000 characters or 1,000 refs.
            SessionClosed: The stream was closed.

        """
        if self._result is not None or self._finishing is not None:
            raise SessionClosed("the stream was closed", hint="take another one for the next answer: stream()")
        try:
            delta = self._deltas.read(chunk)
        except InvalidArgument:
            if not may_be_chunk(chunk):
                raise
            # Skip this chunk, so that the host can continue to feed the stream.
            self._skip(chunk)
            return []
        if delta is None:
            return []
        check_refs("chunk", [delta.text], hint="feed it in several chunks, with await asyncio.sleep(0) between them")
        self._chars += len(delta.text)
        events = self._collector.end_piece() if delta.starts_piece else []
        return [*events, *self._collector.feed(delta.text)] if delta.text else events

    def close(self) -> ObservedMessage:
        """
        Store the refs, and return them; idempotent.

        Raises:
            InvalidArgument: The answer has more than 1,000,000 characters or 1,000 refs. Use `finish` instead.

        """
        if self._result is None:
            count = self._collector.count
            if self._chars > MAX_SYNC_CHARS or count > MAX_SYNC_REFS:
                message = (
                    f"a synchronous call stores at most {MAX_SYNC_CHARS:,} characters and {MAX_SYNC_REFS:,} refs, "
                    f"got {self._chars:,} characters and {count:,} refs and diagnostics"
                )
                raise InvalidArgument(message, hint="await stream.finish(), which stores them in a thread")
            self._result = self._with_skipped(self._store(self._collect()))
        return self._result

    async def finish(self) -> ObservedMessage:
        """
        Store the refs of an answer of any size, and return them; idempotent.

        A large answer is stored in a thread.
        """
        async with self._storing:
            if self._result is None:
                load = InputSize(self._chars, 2 * self._collector.count)
                self._result = self._with_skipped(await self._store_in_thread(load, self._collect()))
        return self._result

    def _collect(self) -> CollectedRefs:
        if self._finishing is None:
            self._collector.end_piece()
            self._finishing = self._collector.finish()
        return self._finishing

    def _with_skipped(self, ingested: ObservedMessage) -> ObservedMessage:
        return attrs.evolve(ingested, diagnostics=(*ingested.diagnostics, *self._skipped))

    def _skip(self, chunk: object) -> None:
        item = describe_item(chunk, "a chunk")
        # Report each type of chunk once, because a stream may have thousands of chunks.
        if (diagnostic := unreadable_diagnostic(item)) not in self._skipped:
            _log.warning("%s cannot be read and is skipped", item)
            self._skipped.append(diagnostic)
