"""
Helper process of ``mama-structs hook``: keeps a store open and exits when idle.

A request consists of a namespace, a number of characters and the agent's event, separated by NULs. The answer is a
line of JSON, followed by a line with the error if there was one. Until the sentence encoder is loaded, memories are
searched by words only.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from mama_structs.cli.hook import QUIT_COMMAND, SOCKET_NAME

if TYPE_CHECKING:
    import asyncio

    from mama_structs.refs.conversations.recall_log import RecallLog
    from mama_structs.session.session import Session

_IDLE_SECONDS: Final = 1_800.0
# Seconds to wait until another helper has closed the store and exited.
_SHUTDOWN_SECONDS: Final = 10.0
# Maximum number of conversations that are open at a time. Each one has its own recall log.
_MAX_CONVERSATIONS: Final = 8
_RESUME_PHRASES: Final = (
    "continue",
    "carry on",
    "resume",
    "pick up",
    "where were we",
    "we left off",
    "이어서",
    "계속",
    "어디까지",
)
_TEXT_KEYS: Final = ("prompt", "user_prompt", "userPrompt", "message", "text", "input", "query", "content")
_EVENT_NAME_KEYS: Final = (
    "hook_event_name",
    "hookEventName",
    "event_name",
    "eventName",
    "event",
    "agent_action_name",
    "type",
)
_CONVERSATION_ID_KEYS: Final = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id")
_NESTED_KEYS: Final = ("tool_info", "data", "payload", "params", "input")


def main() -> None:
    """Serve the store in the working directory, unless another helper does."""
    if not _acquire_directory():
        return
    # Nearly all objects that the imports create stay alive. Looking for garbage among them delays the first answer.
    gc.disable()
    os.umask(0o077)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET_NAME)  # noqa: PTH108 - left by a killed helper
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(SOCKET_NAME)
    os.chmod(SOCKET_NAME, 0o600)  # noqa: PTH101 - importing pathlib is slow
    # From here on, clients connect to this helper and wait for its answer.
    listening.listen(16)

    import asyncio  # noqa: PLC0415 - imported lazily, because a hook must start fast

    asyncio.run(HookServer(os.getcwd()).serve(listening))  # noqa: PTH109


def _acquire_directory() -> bool:
    """
    Return True if this process has the directory's lock.

    Wait for a helper that is exiting; return False if another one serves the directory.
    """
    directory = os.open(".", os.O_RDONLY)
    until = time.monotonic() + _SHUTDOWN_SECONDS
    while time.monotonic() < until:
        try:
            # The lock is held until the process exits.
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if os.path.exists(SOCKET_NAME):  # noqa: PTH110 - importing pathlib is slow
                return False
            time.sleep(0.01)
        else:
            return True
    return False


def _get_version() -> int | None:
    """Return a number that changes when another version of this package is installed."""
    with contextlib.suppress(OSError):
        return os.stat(__file__).st_mtime_ns  # noqa: PTH116 - importing pathlib is slow
    return None


def _format_error(error: Exception) -> str:
    """Return an error as one line that contains no user data."""
    from mama_structs.errors import MamaStructsError  # noqa: PLC0415 - imported after the socket is ready

    return f"{' '.join(str(error).split()) if isinstance(error, MamaStructsError) else type(error).__name__}\n"


class _ResumeDetector:
    """
    Detects messages that resume work.

    Replaces `ToolSelector`, which takes a fifth of a second to load.
    """

    kind: str | None = None

    def detect(self, text: str) -> _ResumeDetector:
        """Classify a message. Has the interface of `ToolSelector.detect`."""
        lower = text.lower()
        self.kind = "resuming" if any(words in lower for words in _RESUME_PHRASES) else None
        return self


class HookServer:
    """Answers hook events from one store."""

    def __init__(self, store: str, *, idle: float = _IDLE_SECONDS) -> None:
        self._store = store
        self._idle = idle
        self._sessions: dict[tuple[str, str], Session] = {}
        # Recall log used by the last request.
        self._recall_log: RecallLog | None = None
        self._is_warm = False
        self._warm_up_task: asyncio.Task[None] | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Serve requests until the idle time has passed or a client sends `QUIT_COMMAND`."""
        import asyncio  # noqa: PLC0415 - imported after the socket is ready

        from mama_structs.cli.hook_messages import MAX_REQUEST_BYTES, read_request, send_answer  # noqa: PLC0415

        version, asked, done = _get_version(), asyncio.Event(), asyncio.Event()
        turn = asyncio.Lock()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            request, wrong = await read_request(reader)
            async with turn:
                answer = f"{{}}\n{wrong}\n".encode() if wrong else await self._answer_request(request)
                told = None if wrong else self._recall_log
            gc.enable()
            # The agent did not receive the text, so clear the log: the next request recalls it again.
            if not await send_answer(writer, answer) and told is not None:
                told.clear()
            # After an upgrade, exit, so that the next hook starts a helper of the new version.
            if request.split("\0")[1:2] == [QUIT_COMMAND] or _get_version() != version:
                done.set()
            if self._warm_up_task is None and self._sessions:
                self._warm_up_task = asyncio.create_task(self._warm_up())

        running: set[asyncio.Task[None]] = set()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Store the task, because the event loop's weak reference does not prevent garbage collection.
            task = asyncio.create_task(serve(reader, writer))
            running.add(task)
            task.add_done_callback(running.discard)

        async with await asyncio.start_unix_server(begin, sock=listening, limit=MAX_REQUEST_BYTES):
            while not done.is_set():
                asked.clear()
                waiting = [asyncio.create_task(one.wait()) for one in (asked, done)]
                finished, left = await asyncio.wait(waiting, timeout=self._idle, return_when=asyncio.FIRST_COMPLETED)
                for task in left:
                    task.cancel()
                if not finished:
                    break
            # Remove the socket first, so that a new client starts another helper, which waits for this one to exit.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET_NAME)  # noqa: PTH108
        await self.close()

    async def close(self) -> None:
        """Close the store."""
        if self._warm_up_task is not None:
            self._warm_up_task.cancel()
        for session in self._sessions.values():
            await session.close()

    async def _answer_request(self, request: str) -> bytes:
        """Return the answer to a request, including any error, so that the helper keeps running."""
        import json  # noqa: PLC0415 - imported after the socket is ready

        self._recall_log = None
        told: dict[str, Any] = {}
        wrong = ""
        try:
            namespace, chars, event = request.split("\0", 2)
            if chars != QUIT_COMMAND:
                told = await self.answer(namespace, int(chars), event)
        except Exception as error:  # noqa: BLE001 - the helper must keep running
            wrong = _format_error(error)
        return f"{json.dumps(told)}\n{wrong}".encode(errors="replace")

    async def _warm_up(self) -> None:
        """Load the encoder and the cues. Without an encoder, search remains lexical."""
        import asyncio  # noqa: PLC0415 - imported after the socket is ready

        from mama_structs.errors import MamaStructsError  # noqa: PLC0415
        from mama_structs.tools.exposure import ToolSelector  # noqa: PLC0415

        session = next(iter(self._sessions.values()))
        await asyncio.to_thread(lambda: ToolSelector().detect("continue"))
        with contextlib.suppress(MamaStructsError):
            await session.preload()
            self._is_warm = True

    async def answer(self, namespace: str, max_chars: int, event: str) -> dict[str, Any]:
        """Return the answer to an agent's event, in the format that the agent expects."""
        import json  # noqa: PLC0415 - imported after the socket is ready

        # PowerShell writes a byte order mark before the text that it pipes to a command.
        event = event.removeprefix("\ufeff")
        given = json.loads(event) if event.strip() else {}
        if not isinstance(given, dict):
            return {}
        name = find_text(given, _EVENT_NAME_KEYS)
        message = extract_message(given)
        kind = classify_event(name, message)
        if kind is None:
            return {}
        session = await self._get_session(namespace, find_text(given, _CONVERSATION_ID_KEYS))
        # The agent's context was compacted or cleared and lost the recalled text, so recall it again.
        if kind == "compact" or given.get("source") in ("clear", "compact"):
            session._conversation.recall_log.clear()
        if not accepts_text(name, kind):
            return {}
        return format_answer(name, kind, await self._recall(session, message if kind == "prompt" else "", max_chars))

    async def _recall(self, session: Session, message: str, max_chars: int) -> str:
        """
        Recall as `Session.recall` does. Until the warm-up has finished, search by words only.

        Without a message, return the state of the work for resuming.
        """
        from mama_structs.memory.store.lexical_store import LexicalMemoryStore  # noqa: PLC0415 - imported after the socket is ready
        from mama_structs.session.recall_builder import build_recall  # noqa: PLC0415

        self._recall_log = told = session._conversation.recall_log
        # Both stores share the same memories. The lexical one needs no encoder.
        memories = session.memories if self._is_warm else LexicalMemoryStore(session.memories._shared)
        few: Any = None if self._is_warm else _ResumeDetector()
        return (
            await build_recall(
                memories, message, recall_log=told, tool_selector=few, is_resuming=not message, max_chars=max_chars
            )
        ).text

    async def _get_session(self, namespace: str, conversation: str) -> Session:
        """
        Return the conversation's session.

        If too many are open, close the least recently used one.
        """
        from mama_structs.memory.store.factory import UnavailableEmbedder  # noqa: PLC0415 - imported after the socket is ready
        from mama_structs.session.session import Session  # noqa: PLC0415
        from mama_structs.settings import Settings, ToolSettings  # noqa: PLC0415

        key = (namespace, conversation[:100])
        session = self._sessions.pop(key, None)
        if session is None:
            session = await Session.open(
                self._store,
                namespace=namespace,
                conversation=f"hook {key[1]}".strip(),
                embedder=UnavailableEmbedder(),
                # Hooks do not call tools, so do not create them.
                settings=Settings(tools=ToolSettings(memory=False)),
            )
        self._sessions[key] = session
        if len(self._sessions) > _MAX_CONVERSATIONS:
            await self._sessions.pop(next(iter(self._sessions))).close()
        return session


def find_text(given: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the first non-empty text among an event's values for *names*, or ""."""
    return next((value for name in names if isinstance(value := given.get(name), str) and value), "")


def extract_message(given: dict[str, Any]) -> str:
    """Extract the user's message from an event: a text, text blocks, or a nested mapping."""
    for name in _TEXT_KEYS:
        value = given.get(name)
        if isinstance(value, dict):
            value = extract_message(value)
        elif isinstance(value, list):
            value = "\n".join(part if isinstance(part, str) else extract_message(part) for part in value if part)
        if isinstance(value, str) and value.strip():
            return value
    return next(
        (text for name in _NESTED_KEYS if isinstance(given.get(name), dict) and (text := extract_message(given[name]))),
        "",
    )


def classify_event(name: str, message: str) -> str | None:
    """
    Classify an event by its name as "compact", "start" or "prompt".

    None means it is ignored.
    """
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if "compact" in plain or "compress" in plain:
        return "compact"
    if "session" in plain and "start" in plain:
        return "start"
    if "prompt" in plain or plain in ("", "beforeagent", "usermessage", "message"):
        return "prompt" if message else None
    return None


def accepts_text(name: str, kind: str) -> bool:
    """Return False for a compaction event of Claude Code, Codex, Gemini CLI and Cursor, which read no text then."""
    return kind != "compact" or not (name[:1].isupper() or name == "preCompact")


def format_answer(name: str, kind: str, text: str) -> dict[str, Any]:
    """Return an answer in the format that the agent with this event name expects."""
    if not text or not accepts_text(name, kind):
        return {}
    if name[:1].isupper():
        # Agents with capitalized event names use this format: Claude Code, Codex, Gemini CLI.
        return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}
    # Cursor's name of the event. Its answers say whether to send the prompt.
    return (
        {"continue": True, "additional_context": text} if name == "beforeSubmitPrompt" else {"additional_context": text}
    )
