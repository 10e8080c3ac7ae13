"""Large results of tools as descriptors of a session."""

from __future__ import annotations

from typing import Final

from mama_structs.errors import HandleNotFound, InvalidHandle
from mama_structs.session import Session

_BYTES: Final = "application/octet-stream"


class SessionOverflowStore:
    """Keeps what is too large to show under ``fd:<n>``, which a session's own tools read, too."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def write(self, key: str, data: bytes) -> str:  # noqa: ARG002 - a session names its descriptors itself
        """Keep a result, on disk when this returns, and return its handle."""
        try:
            descriptor = self._session.refs.add(data.decode(), source="tool_result")
        except UnicodeDecodeError:
            descriptor = self._session.refs.add(data, source="tool_result", mime_type=_BYTES)
        await self._session.flush()
        return descriptor.handle

    async def read(self, handle: str) -> bytes:
        """Return a result, or what a model marked."""
        try:
            return self._session.refs.get(handle).content.data
        except (HandleNotFound, InvalidHandle) as error:
            # What the harness tells a model to correct.
            raise FileNotFoundError(str(error)) from error
