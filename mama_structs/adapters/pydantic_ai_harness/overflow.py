"""Stores large tool results as descriptors of a session."""

from __future__ import annotations

from typing import Final

from mama_structs import Descriptor, RefStore
from mama_structs._internal.offload import measure_input
from mama_structs.errors import HandleNotFound, InvalidHandle
from mama_structs.session.session import Session

_BINARY_MIME_TYPE: Final = "application/octet-stream"


class SessionOverflowStore:
    """Store for large tool results with handles ``fd:<n>``, readable by the session's tools."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def write(self, key: str, data: bytes) -> str:  # noqa: ARG002 - the session assigns the handle
        """Store a result durably and return its handle."""

        def add(refs: RefStore) -> Descriptor:
            try:
                return refs.add_any(data.decode(), source="tool_result")
            except UnicodeDecodeError:
                return refs.add_any(data, source="tool_result", mime_type=_BINARY_MIME_TYPE)

        descriptor = await self._session.refs.change(measure_input(data), add)
        await self._session.flush()
        return descriptor.handle

    async def read(self, handle: str) -> bytes:
        """Return the content of a handle: a stored result or a ref."""
        try:
            return self._session.refs.get(handle).content.data
        except (HandleNotFound, InvalidHandle) as error:
            # The harness shows a FileNotFoundError to the model, so that it can correct the handle.
            raise FileNotFoundError(str(error)) from error
