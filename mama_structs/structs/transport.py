"""
What the node answers to one GET, and what its errors mean: they are told apart by the body first.

This module imports aiohttp; the client loads it when it is first used.
"""

import functools
import re
from typing import Any

import attrs

from mama_structs.errors import EntityNotFound, MalformedResponse
from mama_structs.references.http_api import HttpAnswer, HttpApi
from mama_structs.structs.answers import Envelope
from mama_structs.structs.routes import NodeQuery

_HEIGHT = re.compile(r"[0-9]{1,20}", re.ASCII)
_WRONG_BASE = "is the base URL that of the chain's REST interface (port 1317 on a local node)?"


@attrs.frozen(kw_only=True)
class Transport(HttpApi):
    """The API of one node."""

    wrong_base: str = _WRONG_BASE

    async def get(self, request: NodeQuery) -> Envelope:
        """Return the JSON object that the node answers with, or raise what it answers, or that it does not."""
        return await self.ask(request.path, request.target, functools.partial(_envelope, request))


def _envelope(request: NodeQuery, answer: HttpAnswer) -> Envelope:
    payload = answer.payload
    code, message = _error_of(payload)
    is_answer = isinstance(payload, dict) and request.key in payload
    # A body that came with a good status may be an error nevertheless, as the docs of the chain have it.
    if answer.is_error or (code not in (None, 0) and message is not None and not is_answer):
        # The chain answers 500 for an id that does not exist: only the body tells.
        if request.asked is not None and code is not None and message is not None and "not found" in message.lower():
            raise EntityNotFound(request.asked)
        answer.refuse(code=code, message=message)
    if not is_answer:
        raise MalformedResponse(f"the answer of {request.path} is no object with {request.key!r}", hint=_WRONG_BASE)
    height = answer.headers.get("Grpc-Metadata-X-Cosmos-Block-Height", "")
    return Envelope(payload, height=int(height) if _HEIGHT.fullmatch(height) else None)


def _error_of(payload: Any) -> tuple[int | None, str | None]:
    """Return code and message of an error body, None for what it does not have."""
    if not isinstance(payload, dict):
        return None, None
    code, message = payload.get("code"), payload.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        message if isinstance(message, str) else None,
    )
