"""Socket messages of ``mama-structs hook`` and its helper, with size and time limits."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_REQUEST_BYTES: Final = 2**23
"""Maximum bytes of a request: the largest event of a hook plus its other parts."""
REQUEST_SECONDS: Final = 10.0
"""Seconds for receiving a request and for sending its answer. A hook gives up earlier."""


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Return a request and "", or "" and an error text."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            while part := await reader.read(2**16):
                size += len(part)
                if size > MAX_REQUEST_BYTES:
                    return "", f"the request is longer than {MAX_REQUEST_BYTES:,} bytes"
                parts.append(part)
    except TimeoutError:
        return "", f"the request was not complete after {REQUEST_SECONDS:g} seconds"
    except OSError as error:
        return "", f"the request was lost: {type(error).__name__}"
    return b"".join(parts).decode(errors="replace"), ""


async def send_answer(writer: asyncio.StreamWriter, answer: bytes) -> bool:
    """Send an answer and close the connection; return False if the client did not read it."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            writer.write(answer)
            await writer.drain()
    # This also catches TimeoutError, a subclass of OSError.
    except OSError:
        writer.transport.abort()
        return False
    writer.close()
    return True
