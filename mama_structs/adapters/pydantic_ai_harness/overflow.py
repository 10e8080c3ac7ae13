"""Stores large tool results as descriptors of a session."""

from __future__ import annotations

from typing import Final

from mama_structs import Descriptor, RefStore, sync
from mama_structs._internal.offload import measure_input
from mama_structs._internal.sync_proxy import await_in_proxy_loop
from mama_structs.adapters.shared.loop_bridge import check_session
from mama_structs.errors import HandleNotFound, InvalidHandle
from mama_structs.session.session import Session

_BINARY_MIME_TYPE: Final = "application/octet-stream"


class SessionOverflowStore:
    """Store for large tool results with handles ``fd:<n>``, readable by the session's tools."""

    def __init__(self, session: Session | sync.Session) -> None:
        self._session = session
        self._own = check_session(session)

    async def write(self, key: str, data: bytes) -> str:  # noqa: ARG002 - the session assigns the handle
        """Store a result durably and return its handle."""

        def add(refs: RefStore) -> Descriptor:
            try:
                return refs._add_any(data.decode(), source="tool_result")
            except UnicodeDecodeError:
                return refs._add_any(data, source="tool_result", mime_type=_BINARY_MIME_TYPE)

        async def write() -> str:
            descriptor = await self._own.refs._change(measure_input(data), add)
            await self._own.flush()
            return descriptor.handle

        return await await_in_proxy_loop(self._session, write)

    async def read(self, handle: str) -> bytes:
        """Return the content of a handle: a stored result or a ref."""

        async def read() -> bytes:
            return self._own.refs.get(handle).content.data

        try:
            return await await_in_proxy_loop(self._session, read)
        except (HandleNotFound, InvalidHandle) as error:
            # The harness shows a FileNotFoundError to the model, so that it can correct the handle.
            raise FileNotFoundError(str(error)) from error
