"""Large results of tools as descriptors of a session."""

from __future__ import annotations

from typing import Final

from mama_structs import Descriptor, RefStore
from mama_structs._internal.offload import measure
from mama_structs.errors import HandleNotFound, InvalidHandle
from mama_structs.session.session import Session

_BYTES: Final = "application/octet-stream"


class SessionOverflowStore:
    """Keeps what is too large to show under ``fd:<n>``, which a session's own tools read, too."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def write(self, key: str, data: bytes) -> str:  # noqa: ARG002 - a session names its descriptors itself
        """Keep a result, on disk when this returns, and return its handle."""

        def add(refs: RefStore) -> Descriptor:
            try:
                return refs.add_any(data.decode(), source="tool_result")
            except UnicodeDecodeError:
                return refs.add_any(data, source="tool_result", mime_type=_BYTES)

        descriptor = await self._session.refs.change(measure(data), add)
        await self._session.flush()
        return descriptor.handle

    async def read(self, handle: str) -> bytes:
        """Return a result, or what a model marked."""
        try:
            return self._session.refs.get(handle).content.data
        except (HandleNotFound, InvalidHandle) as error:
            # What the harness tells a model to correct.
            raise FileNotFoundError(str(error)) from error
