"""
HTTP transport to a Structs node.

It parses the responses of GET requests and maps error bodies to exceptions.
This module imports aiohttp, so the client imports it lazily.
"""

import functools
import re
from typing import Any

import attrs

from mama_structs.errors import EntityNotFound, MalformedResponse
from mama_structs.references.http_api import HttpClient, HttpResponse
from mama_structs.structs.answers import RawAnswer
from mama_structs.structs.routes import ChainRequest

_HEIGHT_PATTERN = re.compile(r"[0-9]{1,20}", re.ASCII)
# gRPC status codes of an error body. With the code of an unknown error, the message may contain the error of another
# service with its own code.
_GRPC_UNKNOWN = 2
_GRPC_NOT_FOUND = 5
_GRPC_CODE_PATTERN = re.compile(r"\bcode ?= ?(\w+)")
_WRONG_BASE_URL_HINT = "is the base URL that of the chain's REST interface (port 1317 on a local node)?"


@attrs.frozen(kw_only=True)
class NodeTransport(HttpClient):
    """HTTP transport to the API of one node."""

    wrong_base_url_hint: str = _WRONG_BASE_URL_HINT

    async def get(self, request: ChainRequest) -> RawAnswer:
        """Return the JSON object of the response, or raise the error that it represents."""
        return await self.send_get(request.path, request.target, functools.partial(_parse_envelope, request))


def _parse_envelope(request: ChainRequest, answer: HttpResponse) -> RawAnswer:
    payload = answer.payload
    code, message = _parse_error(payload)
    is_answer = isinstance(payload, dict) and request.key in payload
    has_error = code not in (None, 0) and (message is not None or code == _GRPC_NOT_FOUND)
    # Also check responses with a success status, because the chain's documentation allows an error body in them.
    if answer.is_error or (has_error and not is_answer):
        # The chain answers 500 for an unknown id, so check the body instead of the status.
        if request.requested_id is not None and _says_not_found(code, message or ""):
            raise EntityNotFound(request.requested_id)
        answer.raise_error(code=code, message=message)
    if not is_answer:
        raise MalformedResponse(
            f"the answer of {request.path} is no object with {request.key!r}", hint=_WRONG_BASE_URL_HINT
        )
    height = answer.headers.get("Grpc-Metadata-X-Cosmos-Block-Height", "")
    return RawAnswer(payload, height=int(height) if _HEIGHT_PATTERN.fullmatch(height) else None)


def _says_not_found(code: int | None, message: str) -> bool:
    """Return True if the body of an error reports a missing entity, by its gRPC code or in its message."""
    if code not in (None, 0, _GRPC_UNKNOWN):
        return code == _GRPC_NOT_FOUND
    if named := _GRPC_CODE_PATTERN.search(message):
        return named[1] == "NotFound"
    return code is not None and "not found" in message.lower()


def _parse_error(payload: Any) -> tuple[int | None, str | None]:
    """Return the code and the message of an error body, None for missing ones."""
    if not isinstance(payload, dict):
        return None, None
    code, message = payload.get("code"), payload.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        message if isinstance(message, str) else None,
    )
