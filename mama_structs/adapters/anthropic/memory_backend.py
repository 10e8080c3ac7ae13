"""Anthropic's memory tool with its files in a session; needs the extra ``anthropic``."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, overload

from mama_structs import sync
from mama_structs.adapters.anthropic.memory_files import MemoryFiles
from mama_structs.adapters.anthropic.memory_texts import FileError
from mama_structs.adapters.shared.loop_bridge import Bridge
from mama_structs.errors import InvalidArgument, MamaStructsError, SessionClosed, WrongLoop
from mama_structs.session.session import Session

try:
    from anthropic.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
    from anthropic.types.beta import BetaCacheControlEphemeralParam
    from anthropic.types.beta import BetaMemoryTool20250818CreateCommand as Create
    from anthropic.types.beta import BetaMemoryTool20250818DeleteCommand as Delete
    from anthropic.types.beta import BetaMemoryTool20250818InsertCommand as Insert
    from anthropic.types.beta import BetaMemoryTool20250818RenameCommand as Rename
    from anthropic.types.beta import BetaMemoryTool20250818StrReplaceCommand as StrReplace
    from anthropic.types.beta import BetaMemoryTool20250818ViewCommand as View
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.anthropic.memory_backend needs Anthropic's SDK: pip install 'mama-structs[anthropic]'"
    ) from _missing

_LABELS: Final = ("anthropic",)
_FILES: Final = "memories"


@overload
def memory_tool(
    session: Session, *, labels: Sequence[str] = ..., cache_control: BetaCacheControlEphemeralParam | None = ...
) -> BetaAsyncAbstractMemoryTool: ...


@overload
def memory_tool(
    session: sync.Session, *, labels: Sequence[str] = ..., cache_control: BetaCacheControlEphemeralParam | None = ...
) -> BetaAbstractMemoryTool: ...


def memory_tool(
    session: Session | sync.Session,
    *,
    labels: Sequence[str] = _LABELS,
    cache_control: BetaCacheControlEphemeralParam | None = None,
) -> BetaAsyncAbstractMemoryTool | BetaAbstractMemoryTool:
    """
    Return Anthropic's memory tool, for ``client.beta.messages.tool_runner(tools=[...])``.

    Claude reads and writes text files below ``/memories``. Each is a record of the session, and is found by its text as
    memories are: ``/memories/people/ada.txt`` is the key ``ada.txt`` under the labels *labels*, ``memories`` and
    ``people``. An edit makes a version, and `RecordStore.history` has the former ones; a deleted file has none. An edit
    is never made over what somebody else wrote meanwhile.
    What goes wrong is a `ToolError`, which tells the model what to change; only a session that was closed, or belongs
    to another event loop, raises its own error.

    Args:
        session: Where the files are. One of `mama_structs.sync` is for the client without ``await``.
        labels: What their labels begin with: give each user of an agent their own, such as ``("anthropic", "ada")``.
        cache_control: Up to which tool the provider caches the prompt.

    Raises:
        InvalidArgument: *labels* is a text, or empty, or one of them is ``memories``.

    """
    if isinstance(labels, str) or not labels:
        raise InvalidArgument("labels must be a tuple of one or more texts", hint=f"such as {(*_LABELS, 'ada')}")
    if _FILES in labels:
        # Below others without it, it would be a folder of their files.
        raise InvalidArgument(f"labels must not have {_FILES!r} among them: it follows them")
    bridge = Bridge(session)
    kind = _MemoryTool if bridge.session is session else _SyncMemoryTool
    tool = kind(cache_control=cache_control)
    tool.bridge, tool.files = bridge, MemoryFiles(bridge.session, (*labels, _FILES))
    return tool


async def _told(answer: Awaitable[str]) -> str:
    """Return an answer, or raise what went wrong in Anthropic's form."""
    try:
        return await answer
    except (SessionClosed, WrongLoop):
        raise
    except (FileError, MamaStructsError) as error:
        raise ToolError(str(error)) from error


class _MemoryTool(BetaAsyncAbstractMemoryTool):
    """The tool for a client with ``await``."""

    bridge: Bridge
    files: MemoryFiles

    async def view(self, command: View) -> str:
        return await self._answer(command)

    async def create(self, command: Create) -> str:
        return await self._answer(command)

    async def str_replace(self, command: StrReplace) -> str:
        return await self._answer(command)

    async def insert(self, command: Insert) -> str:
        return await self._answer(command)

    async def delete(self, command: Delete) -> str:
        return await self._answer(command)

    async def rename(self, command: Rename) -> str:
        return await self._answer(command)

    async def clear_all_memory(self) -> str:
        return await self.bridge.arun(lambda: _told(self.files.clear()))

    async def _answer(self, command: Any) -> str:
        return await self.bridge.arun(lambda: _told(self.files.run(dict(command))))


class _SyncMemoryTool(BetaAbstractMemoryTool):
    """The tool for a client without ``await``."""

    bridge: Bridge
    files: MemoryFiles

    def view(self, command: View) -> str:
        return self._answer(command)

    def create(self, command: Create) -> str:
        return self._answer(command)

    def str_replace(self, command: StrReplace) -> str:
        return self._answer(command)

    def insert(self, command: Insert) -> str:
        return self._answer(command)

    def delete(self, command: Delete) -> str:
        return self._answer(command)

    def rename(self, command: Rename) -> str:
        return self._answer(command)

    def clear_all_memory(self) -> str:
        return self.bridge.run(lambda: _told(self.files.clear()))

    def _answer(self, command: Any) -> str:
        return self.bridge.run(lambda: _told(self.files.run(dict(command))))
