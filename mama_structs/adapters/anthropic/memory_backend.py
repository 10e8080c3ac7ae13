"""Anthropic's memory tool, storing its files in a session; needs the extra ``anthropic``."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, overload

from mama_structs import sync
from mama_structs.adapters.anthropic.memory_files import MemoryFiles
from mama_structs.adapters.anthropic.memory_texts import FileError
from mama_structs.adapters.shared.loop_bridge import LoopBridge
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
        "mama_structs.adapters.anthropic needs Anthropic's SDK: pip install 'mama-structs[anthropic]'"
    ) from _missing

_DEFAULT_LABELS: Final = ("anthropic",)
_FILES_LABEL: Final = "memories"


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
    labels: Sequence[str] = _DEFAULT_LABELS,
    cache_control: BetaCacheControlEphemeralParam | None = None,
) -> BetaAsyncAbstractMemoryTool | BetaAbstractMemoryTool:
    """
    Return Anthropic's memory tool, for ``client.beta.messages.tool_runner(tools=[...])``.

    Claude reads and writes text files below ``/memories``. Each file is a record of the session, and its text can be
    searched like memories. ``/memories/people/ada.txt`` is the key ``ada.txt`` under the labels *labels*, ``memories``
    and ``people``. An edit creates a version; `RecordStore.history` returns the former ones. Deleting a file deletes
    its history. An edit never overwrites a concurrent change.
    Errors are raised as `ToolError`, which tells the model what to change. Only a closed session, or one of another
    event loop, raises its own error.

    Args:
        session: The session that stores the files. Use one of `mama_structs.sync` for the synchronous client.
        labels: The first labels of the files. Give each user of an agent their own, such as ``("anthropic", "ada")``.
        cache_control: Marks the tool as the end of the prompt prefix that the provider caches.

    Raises:
        InvalidArgument: *labels* is a text, or empty, or one of them is ``memories``.

    """
    if isinstance(labels, str) or not labels:
        raise InvalidArgument(
            "labels must be a tuple of one or more texts", hint=f"such as {(*_DEFAULT_LABELS, 'ada')}"
        )
    if _FILES_LABEL in labels:
        # Otherwise a tool whose labels are a prefix of *labels* could list the files of this tool as its own.
        raise InvalidArgument(f"labels must not contain {_FILES_LABEL!r}: it is appended to them")
    bridge = LoopBridge(session)
    kind = _MemoryTool if bridge.session is session else _SyncMemoryTool
    tool = kind(cache_control=cache_control)
    tool.bridge, tool.files = bridge, MemoryFiles(bridge.session, (*labels, _FILES_LABEL))
    return tool


async def _convert_errors(answer: Awaitable[str]) -> str:
    """Await the tool's answer, and convert errors to Anthropic's `ToolError` for the model."""
    try:
        return await answer
    except (SessionClosed, WrongLoop):
        raise
    except (FileError, MamaStructsError) as error:
        raise ToolError(str(error)) from error


class _MemoryTool(BetaAsyncAbstractMemoryTool):
    """Anthropic's memory tool for the asynchronous client."""

    bridge: LoopBridge
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
        return await self.bridge.arun(lambda: _convert_errors(self.files.clear()))

    async def _answer(self, command: Any) -> str:
        return await self.bridge.arun(lambda: _convert_errors(self.files.run(dict(command))))


class _SyncMemoryTool(BetaAbstractMemoryTool):
    """Anthropic's memory tool for the synchronous client."""

    bridge: LoopBridge
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
        return self.bridge.run(lambda: _convert_errors(self.files.clear()))

    def _answer(self, command: Any) -> str:
        return self.bridge.run(lambda: _convert_errors(self.files.run(dict(command))))
