"""
The process that answers ``mama-structs hook``: it keeps a store open, and ends when nobody has asked for a while.

A request is a namespace, the characters of the answer, and the event as the agent wrote it, with NULs between; the
answer is a line of JSON, and a second one that says what went wrong, if anything did. Until the encoder is loaded,
memories are found by words alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from mama_structs.cli.hook import QUIT, SOCKET

if TYPE_CHECKING:
    import asyncio

    from mama_structs.refs.conversations.recall_log import Told
    from mama_structs.session.session import Session

_IDLE: Final = 1_800.0
# Seconds that a helper may take to close its store.
_ENDING: Final = 10.0
# Agents at work on one store, each a conversation that knows what it was told.
_CONVERSATIONS: Final = 8
_RESUMING: Final = (
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
_TEXTS: Final = ("prompt", "user_prompt", "userPrompt", "message", "text", "input", "query", "content")
_NAMES: Final = ("hook_event_name", "hookEventName", "event_name", "eventName", "event", "agent_action_name", "type")
_CONVERSATION_IDS: Final = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id")
_NESTED: Final = ("tool_info", "data", "payload", "params", "input")


def main() -> None:
    """Serve the store in the working directory, unless another helper does."""
    if not _is_the_one():
        return
    os.umask(0o077)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)  # noqa: PTH108 - of one that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(SOCKET)
    os.chmod(SOCKET, 0o600)  # noqa: PTH101 - as above
    # Who asks waits for an answer from here on, and no more for the socket.
    listening.listen(16)

    import asyncio  # noqa: PLC0415 - see above

    asyncio.run(HookHelper(os.getcwd()).serve(listening))  # noqa: PTH109


def _is_the_one() -> bool:
    """Tell whether this process may serve the directory, waiting for the end of another one that serves no more."""
    directory = os.open(".", os.O_RDONLY)
    until = time.monotonic() + _ENDING
    while time.monotonic() < until:
        try:
            # Held until the process ends.
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if os.path.exists(SOCKET):  # noqa: PTH110 - pathlib takes longer to import than this
                return False
            time.sleep(0.01)
        else:
            return True
    return False


def _version() -> int | None:
    """Return what another version of this package would change."""
    with contextlib.suppress(OSError):
        return os.stat(__file__).st_mtime_ns  # noqa: PTH116 - as above
    return None


def _said_of(error: Exception) -> str:
    """Return an error as a line, without what could be somebody's text."""
    from mama_structs.errors import MamaStructsError  # noqa: PLC0415 - see `main`

    return f"{' '.join(str(error).split()) if isinstance(error, MamaStructsError) else type(error).__name__}\n"


class _FewCues:
    """Tells who goes on with earlier work; all the cues of an `Exposure` take a fifth of a second to compile."""

    kind: str | None = None

    def detect(self, text: str) -> _FewCues:
        """Say it as an `Exposure` does."""
        lower = text.lower()
        self.kind = "resuming" if any(words in lower for words in _RESUMING) else None
        return self


class HookHelper:
    """Answers hooks out of one store."""

    def __init__(self, store: str, *, idle: float = _IDLE) -> None:
        self._store = store
        self._idle = idle
        self._sessions: dict[tuple[str, str], Session] = {}
        # What the conversation was told that asked last.
        self._told: Told | None = None
        self._is_warm = False
        self._warming: asyncio.Task[None] | None = None

    async def serve(self, listening: socket.socket) -> None:
        """Answer until nobody asks for long enough, or somebody says that it is to end."""
        import asyncio  # noqa: PLC0415 - see `main`

        from mama_structs.cli.hook_messages import MAX_REQUEST_BYTES, read_request, send_answer  # noqa: PLC0415

        version, asked, done = _version(), asyncio.Event(), asyncio.Event()
        turn = asyncio.Lock()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            request, wrong = await read_request(reader)
            async with turn:
                answer = f"{{}}\n{wrong}\n".encode() if wrong else await self._answered(request)
                told = None if wrong else self._told
            # A hook that has given up was told nothing.
            if not await send_answer(writer, answer) and told is not None:
                told.clear()
            # Where another version was installed in this one's place, the next hook starts that.
            if request.split("\0")[1:2] == [QUIT] or _version() != version:
                done.set()
            if self._warming is None and self._sessions:
                self._warming = asyncio.create_task(self._warm_up())

        running: set[asyncio.Task[None]] = set()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Once a request is read whole nothing else holds what answers it: it would be collected as it waits.
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
            # Who comes now starts another helper, which waits for the end of this one.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET)  # noqa: PTH108
        await self.close()

    async def close(self) -> None:
        """Close the store."""
        if self._warming is not None:
            self._warming.cancel()
        for session in self._sessions.values():
            await session.close()

    async def _answered(self, request: str) -> bytes:
        """Return the answer to a request, whatever is wrong with it: the next ones come here, too."""
        import json  # noqa: PLC0415 - see `main`

        self._told = None
        told: dict[str, Any] = {}
        wrong = ""
        try:
            namespace, chars, event = request.split("\0", 2)
            if chars != QUIT:
                told = await self.answer(namespace, int(chars), event)
        except Exception as error:  # noqa: BLE001 - as above
            wrong = _said_of(error)
        return f"{json.dumps(told)}\n{wrong}".encode(errors="replace")

    async def _warm_up(self) -> None:
        """Load the encoder and the cues once; where there is no encoder, words are all there is."""
        import asyncio  # noqa: PLC0415 - see `main`

        from mama_structs.errors import MamaStructsError  # noqa: PLC0415
        from mama_structs.tools.exposure import Exposure  # noqa: PLC0415

        session = next(iter(self._sessions.values()))
        await asyncio.to_thread(lambda: Exposure().detect("continue"))
        with contextlib.suppress(MamaStructsError):
            await session.warm_up()
            self._is_warm = True

    async def answer(self, namespace: str, max_chars: int, event: str) -> dict[str, Any]:
        """Return the answer to an event as an agent wrote it, in the form that this agent reads."""
        import json  # noqa: PLC0415 - see `main`

        given = json.loads(event) if event.strip() else {}
        if not isinstance(given, dict):
            return {}
        name = first(given, _NAMES)
        message = text_in(given)
        kind = kind_of(name, message)
        if kind is None:
            return {}
        session = await self._session(namespace, first(given, _CONVERSATION_IDS))
        # What the agent's context loses is told again.
        again = kind == "compact" or given.get("source") in ("clear", "compact")
        recalled = await self._recalled(session, message if kind == "prompt" else "", max_chars, again=again)
        return formed(name, kind, recalled)

    async def _recalled(self, session: Session, message: str, max_chars: int, *, again: bool) -> str:
        """Do as `Session.recall`, without what is not loaded; where nobody said anything, for work that goes on."""
        from mama_structs.memory.store.lexical_store import WordsAlone  # noqa: PLC0415 - see `main`
        from mama_structs.session.recall_builder import recall  # noqa: PLC0415

        self._told = told = session._conversation.told  # noqa: SLF001 - as there
        if again:
            told.clear()
        # The words alone are another view of the same memories.
        memories = session.memories if self._is_warm else WordsAlone(session.memories._shared)  # noqa: SLF001 - as above
        few: Any = None if self._is_warm else _FewCues()
        return (
            await recall(memories, message, told=told, exposure=few, resuming=not message, max_chars=max_chars)
        ).text

    async def _session(self, namespace: str, conversation: str) -> Session:
        """Return the session of an agent's conversation, the last one used being the last one closed."""
        from mama_structs.memory.store.factory import Unavailable  # noqa: PLC0415 - see `main`
        from mama_structs.session.session import Session  # noqa: PLC0415
        from mama_structs.settings import Settings, ToolSettings  # noqa: PLC0415

        key = (namespace, conversation[:100])
        session = self._sessions.pop(key, None)
        if session is None:
            session = await Session.open(
                self._store,
                namespace=namespace,
                conversation=f"hook {key[1]}".strip(),
                embedder=Unavailable(),
                # Nobody calls any tool here.
                settings=Settings(tools=ToolSettings(memory=False)),
            )
        self._sessions[key] = session
        if len(self._sessions) > _CONVERSATIONS:
            await self._sessions.pop(next(iter(self._sessions))).close()
        return session


def first(given: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the first text that an event has under one of some names, empty where it has none."""
    return next((value for name in names if isinstance(value := given.get(name), str) and value), "")


def text_in(given: dict[str, Any]) -> str:
    """Return what the user said, wherever an agent puts it: a text, blocks of texts, or a level further down."""
    for name in _TEXTS:
        value = given.get(name)
        if isinstance(value, dict):
            value = text_in(value)
        elif isinstance(value, list):
            value = "\n".join(part if isinstance(part, str) else text_in(part) for part in value if part)
        if isinstance(value, str) and value.strip():
            return value
    return next((text for name in _NESTED if isinstance(given.get(name), dict) and (text := text_in(given[name]))), "")


def kind_of(name: str, message: str) -> str | None:
    """Return which of the three an event is by an agent's own name for it, None for any other."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if "compact" in plain or "compress" in plain:
        return "compact"
    if "session" in plain and "start" in plain:
        return "start"
    if "prompt" in plain or plain in ("", "beforeagent", "usermessage", "message"):
        return "prompt" if message else None
    return None


def formed(name: str, kind: str, text: str) -> dict[str, Any]:
    """Return an answer as the agent reads it that calls the event so; before compaction most take no text."""
    if not text:
        return {}
    if name[:1].isupper():
        # Claude Code, Codex, Gemini CLI.
        return {} if kind == "compact" else {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}
    return {"additional_context": text}
