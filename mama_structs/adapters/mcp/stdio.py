"""
MCP transport over stdin and stdout.

Pending requests are answered even after stdin has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self, cast

import anyio
import attrs
import mcp_types as types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from mama_structs.adapters.mcp.jsonrpc import DecodedMessage, IdScanner, Rejection, decode, reject_too_long
from mama_structs.adapters.mcp.server import McpServer, ensure_server
from mama_structs.errors import MamaStructsError
from mama_structs.session.session import Session

_log = logging.getLogger("mama_structs")

MAX_LINE_BYTES: Final = 4 * 2**20
"""Maximum bytes of a line, the same limit as for a request over HTTP."""

# Seconds without input after which an incomplete line is processed as a complete one.
LINE_SECONDS: Final = 60.0
# Maximum bytes of unanswered requests. Reading pauses above this limit, which bounds the memory use.
MAX_PENDING_BYTES: Final = 64 * 2**20
# Bytes added to the size of each message, so that the limit also bounds many small messages.
_MESSAGE_OVERHEAD_BYTES: Final = 4_096
# Seconds to answer pending requests after stdin has ended, so that a crashed client does not keep the process alive.
DRAIN_SECONDS: Final = 600.0
_CHUNK_BYTES: Final = 65_536
# Seconds between the last progress notification of a request and its answer. The TypeScript SDK processes an answer
# before a notification that it has read together with it, and some clients then end the connection.
PROGRESS_GAP_SECONDS: Final = 0.02
# The only released protocol version in which servers receive batches.
BATCH_VERSION: Final = "2025-03-26"

_DUPLICATE_ID_MESSAGE: Final = "a request with this id is still running, so this one was not run"

Line = bytes | Rejection
Key = tuple[type, str | int]


async def serve_stdio(served: Session | McpServer) -> None:
    """
    Serve one client over stdin and stdout until stdin ends and all requests are answered.

    Cancel the caller to stop earlier. Meanwhile stdout is reserved for the protocol: write other output to stderr.

    Args:
        served: A session, or the result of `server`; it is not closed.

    Raises:
        MamaStructsError: The process has no stdin or no stdout.

    """
    own = ensure_server(served)
    lines = split_lines(functools.partial(_read_bytes, _get_stdin_descriptor()))
    try:
        # The SDK writes to stdout. The SDK must not read stdin, because it drops lines that it cannot parse.
        async with stdio_server(stdin=cast("Any", _no_lines())) as (unused, sent):
            await unused.aclose()
            await _serve(own, lines, sent)
    except* OSError as gone:
        _log.info("the client disconnected: %s", type(gone.exceptions[0]).__name__)


async def _serve(own: McpServer, lines: Iterator[Line], sent: WriteStream[SessionMessage]) -> None:
    requests, received = anyio.create_memory_object_stream[SessionMessage | Exception]()
    connection = StdioConnection(sent)
    reading = asyncio.create_task(connection.read(_decode_lines(lines, connection.budget), requests))
    try:
        await own.run(received, connection, own.create_initialization_options())
    finally:
        reading.cancel()
        (ended,) = await asyncio.gather(reading, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


async def _no_lines() -> AsyncIterator[str]:
    nothing: tuple[str, ...] = ()
    for line in nothing:
        yield line


def _get_stdin_descriptor() -> int:
    try:
        sys.stdout.fileno()
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError) as missing:
        raise MamaStructsError("there is no stdin or stdout to serve over", hint="serve over HTTP") from missing


def _read_bytes(file: int, seconds: float | None) -> bytes | None:
    """Return the next bytes, b"" at the end, or None after *seconds* without input."""
    if seconds is not None and hasattr(select, "poll"):
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return None
    return os.read(file, _CHUNK_BYTES)


def split_lines(read: Callable[[float | None], bytes | None], *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """
    Yield the lines of a stream, and a rejection for each line longer than *max_bytes*.

    The last line needs no newline. A line that is not continued for `LINE_SECONDS` is yielded unfinished, and its rest
    is skipped.

    Args:
        read: Called with a timeout in seconds. Returns bytes, b"" at the end, or None after the timeout.
        max_bytes: The limit, without the newline.

    """
    parts: list[bytes] = []
    size = 0
    scanner: IdScanner | None = None
    is_skipped = False
    try:
        while (chunk := read(LINE_SECONDS if size and not is_skipped else None)) != b"":
            if chunk is None:
                yield b"".join(parts) if scanner is None else reject_too_long(scanner, max_bytes)
                parts, scanner, is_skipped = [], None, True
                continue
            *ended, rest = chunk.split(b"\n")
            for number, part in enumerate([*ended, rest]):
                size += len(part)
                if not is_skipped:
                    parts.append(part)
                    if size > max_bytes:
                        scanner = scanner or IdScanner()
                        scanner.feed(b"".join(parts))
                        parts = []
                if number < len(ended):
                    if not is_skipped:
                        yield b"".join(parts) if scanner is None else reject_too_long(scanner, max_bytes)
                    parts, size, scanner, is_skipped = [], 0, None, False
    except OSError as gone:
        _log.info("stdin failed: %s", type(gone).__name__)
    if size and not is_skipped:
        yield b"".join(parts) if scanner is None else reject_too_long(scanner, max_bytes)


class ByteBudget:
    """Byte semaphore for pending requests: acquired in a thread, released in the event loop."""

    def __init__(self, limit: int = MAX_PENDING_BYTES) -> None:
        self._available = limit
        self._changed = threading.Condition()

    def acquire(self, size: int) -> None:
        """Block until *size* bytes are available, and acquire them."""
        with self._changed:
            self._changed.wait_for(lambda: self._available >= size)
            self._available -= size

    def release(self, size: int) -> None:
        """Release bytes."""
        with self._changed:
            self._available += size
            self._changed.notify()


@attrs.frozen
class DecodedLine:
    """A decoded line: its messages and the bytes reserved for them. *is_batch* is True if the messages are a batch."""

    messages: list[DecodedMessage]
    is_batch: bool
    size: int


async def _decode_lines(lines: Iterator[Line], budget: ByteBudget) -> AsyncIterator[DecodedLine]:
    """
    Yield decoded lines, which a daemon thread reads.

    A thread that is not a daemon would delay the exit while it waits for input.
    """
    decoded: asyncio.Queue[DecodedLine | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read_all() -> None:
        for line in lines:
            found = line if isinstance(line, Rejection) else decode(line)
            if found is None:
                continue
            messages = found if isinstance(found, list) else [found]
            size = _MESSAGE_OVERHEAD_BYTES * len(messages) + (0 if isinstance(line, Rejection) else len(line))
            size = min(size, MAX_PENDING_BYTES)
            budget.acquire(size)
            loop.call_soon_threadsafe(decoded.put_nowait, DecodedLine(messages, isinstance(found, list), size))
        loop.call_soon_threadsafe(decoded.put_nowait, None)

    def run() -> None:
        # A RuntimeError means that the event loop is closed, so drop the decoded line.
        with contextlib.suppress(RuntimeError):
            read_all()

    threading.Thread(target=run, name="mama-structs stdin", daemon=True).start()
    while (one := await decoded.get()) is not None:
        yield one


@attrs.frozen
class SerializedMessage:
    """Pre-serialized message, in place of a pydantic model."""

    text: str

    def model_dump_json(self, **_options: object) -> str:
        """Return the text. The signature is that of pydantic's method, because the SDK calls it."""
        return self.text


@attrs.define(eq=False)
class BatchAnswers:
    """Collects the answers to one batch. The batch is sent when its last answer is added."""

    expected: int
    answers: list[str] = attrs.field(factory=list)

    def add(self, answer: str | None) -> SerializedMessage | None:
        """Add an answer, or None for a cancelled request; return the batch once it is complete."""
        self.expected -= 1
        if answer is not None:
            self.answers.append(answer)
        return SerializedMessage(f"[{','.join(self.answers)}]") if self.expected == 0 and self.answers else None


@attrs.define(eq=False)
class PendingRequest:
    """A request that is not answered yet."""

    size: int
    method: str
    batch: BatchAnswers | None
    progress_token: object = None
    # Time of the last progress notification, as in the event loop.
    progress_at: float | None = None
    # Rejections of later messages that reuse this id. They are sent after the answer to this request,
    # because a client assigns the first answer with an id to its first request.
    later_rejections: list[tuple[Rejection, BatchAnswers | None]] = attrs.field(factory=list)
    done: asyncio.Event = attrs.field(factory=asyncio.Event)


class StdioConnection:
    """
    The pending requests of one client, and the stream for answers.

    The SDK uses it as its write stream: an answer that passes through completes its request.
    """

    def __init__(self, sent: WriteStream[SessionMessage]) -> None:
        self.budget: ByteBudget = ByteBudget()
        self._sent = sent
        self._pending: dict[Key, PendingRequest] = {}
        self._version: str | None = None

    async def read(
        self, incoming: AsyncIterator[DecodedLine], requests: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        """
        Pass requests to the SDK and reject invalid messages.

        Close *requests* when all are answered.
        """
        async with requests:
            async for one in incoming:
                await self._process_line(one, requests)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._drain()

    async def _drain(self) -> None:
        # Do not wait for subscriptions, because the SDK ends and answers them when the connection ends.
        while waiting := [one for one in self._pending.values() if one.method != "subscriptions/listen"]:
            await waiting[0].done.wait()

    async def _process_line(
        self, incoming: DecodedLine, requests: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        messages, batch = incoming.messages, None
        if incoming.is_batch:
            if self._version != BATCH_VERSION:
                messages = self._reject_batch(messages)
            else:
                messages = [_check_batch_member(one) for one in messages]
                batch = BatchAnswers(sum(isinstance(one, types.JSONRPCRequest | Rejection) for one in messages))
        size = incoming.size
        for message in messages:
            match message:
                case types.JSONRPCRequest() if _create_key(message.id) not in self._pending:
                    await self._accept(
                        message, PendingRequest(size, message.method, batch, _get_progress_token(message)), requests
                    )
                    # Charge the bytes of a whole batch to its first request.
                    size = 0
                case types.JSONRPCRequest():
                    await self._reject(Rejection(types.INVALID_REQUEST, _DUPLICATE_ID_MESSAGE, message.id), batch)
                case Rejection():
                    await self._reject(message, batch)
                case _:
                    await requests.send(SessionMessage(message))
        self.budget.release(size)

    def _reject_batch(self, messages: list[DecodedMessage]) -> list[DecodedMessage]:
        """Return one rejection per request of an unsupported batch, or a single one if no request has an id."""
        error = f"batches are part of protocol version {BATCH_VERSION} only"
        ids = [one.id for one in messages if isinstance(one, types.JSONRPCRequest | Rejection)]
        known = [one for one in ids if one is not None]
        return [Rejection(types.INVALID_REQUEST, error, one) for one in known or (None,)]

    async def _accept(
        self,
        message: types.JSONRPCRequest,
        request: PendingRequest,
        requests: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        self._pending[_create_key(message.id)] = request
        # The SDK calls this when a request ends without an answer, for example when it was cancelled.
        unanswered = functools.partial(self._complete_request, message.id, None)
        await requests.send(SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered)))
        if message.method == "initialize":
            # The answer determines the protocol version, which affects the decoding of the next lines.
            await request.done.wait()

    async def send(self, item: SessionMessage) -> None:
        """Send a message of the SDK to the client."""
        message = item.message
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._record_progress(message)
            text = _serialize(message)
            if text is not None:
                await self._sent.send(SessionMessage(cast("Any", SerializedMessage(text))))
            return
        if isinstance(message, types.JSONRPCResponse) and self._method(message.id) == "initialize":
            self._version = message.result.get("protocolVersion")
        await self._complete_request(
            message.id, _serialize(message) or _serialize(_create_serialization_error(message.id))
        )

    def _record_progress(self, message: types.JSONRPCRequest | types.JSONRPCNotification) -> None:
        if message.method == "notifications/progress":
            token = (message.params or {}).get("progressToken")
            for request in self._pending.values():
                if request.progress_token == token:
                    request.progress_at = asyncio.get_running_loop().time()

    def _method(self, found: str | int | None) -> str | None:
        request = None if found is None else self._pending.get(_create_key(found))
        return None if request is None else request.method

    async def _complete_request(self, found: str | int | None, text: str | None) -> None:
        """Send an answer and the deferred rejections with the same id, then remove the request."""
        request = None if found is None else self._pending.get(_create_key(found))
        if request is None or found is None:
            if text is not None:
                await self._sent.send(SessionMessage(cast("Any", SerializedMessage(text))))
            return
        try:
            if request.progress_at is not None:
                waited = asyncio.get_running_loop().time() - request.progress_at
                await asyncio.sleep(max(0.0, PROGRESS_GAP_SECONDS - waited))
            await self._write(text, request.batch)
            while request.later_rejections:
                rejected, batch = request.later_rejections.pop(0)
                await self._write(_serialize(rejected.answer()), batch)
        finally:
            # Remove the request after the write. Once no request is pending, stdin closes and the SDK cancels writes.
            self._pending.pop(_create_key(found), None)
            self.budget.release(request.size)
            request.done.set()

    async def _reject(self, rejected: Rejection, batch: BatchAnswers | None) -> None:
        """Send a rejection, after the answer to any pending request with the same id."""
        _log.info("a message is rejected with %d: %s", rejected.code, rejected.message)
        found = rejected.id
        earlier = self._pending.get(_create_key(found)) if isinstance(found, str | int) else None
        if earlier is not None:
            earlier.later_rejections.append((rejected, batch))
        else:
            await self._write(_serialize(rejected.answer()), batch)

    async def _write(self, text: str | None, batch: BatchAnswers | None) -> None:
        wire = batch.add(text) if batch is not None else None if text is None else SerializedMessage(text)
        if wire is not None:
            await self._sent.send(SessionMessage(cast("Any", wire)))

    async def aclose(self) -> None:
        """Close the stream for answers."""
        await self._sent.aclose()

    async def __aenter__(self) -> Self:
        """Enter the context of the stream, which closes on exit."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream for answers."""
        await self.aclose()


def _get_progress_token(message: types.JSONRPCRequest) -> object:
    meta = (message.params or {}).get("_meta")
    return meta.get("progressToken") if isinstance(meta, dict) else None


def _create_key(found: str | int) -> Key:
    return type(found), found


def _check_batch_member(message: DecodedMessage) -> DecodedMessage:
    if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
        return Rejection(types.INVALID_REQUEST, "initialize must not be part of a batch", message.id)
    return message


def _serialize(message: types.JSONRPCMessage) -> str | None:
    """Return a message as JSON, or None if it cannot be serialized."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True)
    # PydanticSerializationError is a ValueError. Raising it would make the SDK end the connection.
    except (ValueError, RecursionError) as error:
        _log.error("a message to the client has no JSON form: %s", type(error).__name__)
        return None


def _create_serialization_error(found: str | int | None) -> types.JSONRPCError:
    text = "the request was processed, but its result has no JSON form"
    return types.JSONRPCError(jsonrpc="2.0", id=found, error=types.ErrorData(code=types.INTERNAL_ERROR, message=text))
