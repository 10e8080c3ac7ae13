"""Why a reference could not be resolved, in words that an agent can use."""

from __future__ import annotations

import re
from typing import Final

import attrs

from mama_structs.errors import (
    EntityNotFound,
    MamaStructsError,
    QueryTimeout,
    RateLimited,
    SessionClosed,
    StructsError,
)

_LONGEST: Final = 200
_SECRETS: Final = re.compile(
    r"(?<=://)[^/?#\s]+(?=@)"  # a user and password before a host
    r"|(?<=\?)\S+"  # the query of a URL
    r"|\b(?:bearer|basic|token|api[-_]?key|password|passwd|secret|authorization)\b[\"']?"
    r"\s*[:= ]\s*(?:(?:bearer|basic)\s+)?\S+",
    re.IGNORECASE,
)


@attrs.frozen
class Failure:
    """
    Why there is no answer for an id.

    Args:
        kind: A word for statistics, such as ``not_found`` or ``timeout``.
        error: What happened, for the agent.
        cause: The exception, where there was one.

    """

    kind: str
    error: str
    cause: BaseException | None = attrs.field(default=None, eq=False, repr=False)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that *error* means."""
    if isinstance(error, StructsError):
        kind = error.type
    else:
        kind = QueryTimeout.type if isinstance(error, TimeoutError) else StructsError.type
    if kind == "not_found":
        return Failure(kind, "Entity not found", error)
    if isinstance(error, RateLimited) and error.retry_after is not None:
        return Failure(kind, f"Rate limited: ask again in {error.retry_after:g} s", error)
    return Failure(kind, _text(error), error)


def _text(error: BaseException) -> str:
    try:
        # A hint is for whoever runs the program, not for the agent that reads the reference.
        text = " ".join(str(error.args[0] if isinstance(error, MamaStructsError) and error.args else error).split())
    except Exception:  # noqa: BLE001 - a host's exception may fail to describe itself
        text = ""
    if not isinstance(error, MamaStructsError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = _SECRETS.sub("***", text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def timed_out(seconds: float) -> Failure:
    """Return the failure of a query that had its time."""
    return Failure("timeout", f"No answer within {seconds:g} s")


def past_deadline(seconds: float) -> Failure:
    """Return the failure of a reference that the whole call could not wait for."""
    return Failure("deadline", f"No answer before the deadline of {seconds:g} s for all references")


def gone(*, closed: bool) -> Failure:
    """Return the failure of a query that was cancelled, by itself or because the resolver closed."""
    return Failure("closed", "The resolver was closed") if closed else Failure("cancelled", "The query was cancelled")


def not_found() -> Failure:
    """Return the failure of an id that names nothing."""
    return Failure("not_found", "Entity not found")


def exception_of(failed: Failure, key: str) -> BaseException:
    """Return the exception for who asked for *key* alone: the source's own where there is one."""
    if failed.kind == "not_found":
        # A new one for each caller: one that is raised again and again carries every traceback with it.
        return EntityNotFound(key)
    if failed.kind == "closed":
        return SessionClosed("the resolver was closed before the answer was there")
    return failed.cause or MamaStructsError(failed.error)


def unknown_id(entity_id: str) -> Failure:
    """Return the failure of an id that no source answers for."""
    return Failure("unsupported", f"No source answers for ids such as {entity_id[:80]}")
