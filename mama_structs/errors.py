"""
Every error that this package raises on purpose.

.. code-block:: text

    MamaStructsError                         error             .hint: what to do about it
    ├─ InvalidArgument (ValueError)          invalid_argument  a value at the door breaks a rule
    │  └─ InvalidSetting                     invalid_setting   .name: the setting or environment variable
    ├─ StructsError                          source_error      the Structs chain, or another source of entities
    │  ├─ EntityNotFound (LookupError)       not_found         .entity_id
    │  ├─ RateLimited                        rate_limited      .retry_after: seconds, or None
    │  ├─ StructsAPIError                    api_error         .status .code .message
    │  ├─ MalformedResponse (ValueError)     malformed         .path: a JSON path such as $.Player.guildId
    │  ├─ ResponseTooLarge                   too_large         .limit: bytes
    │  └─ StructsUnreachable (ConnectionError)  unreachable
    ├─ QueryTimeout (TimeoutError)           timeout           .seconds
    ├─ UnknownTool (LookupError)             unknown_tool      .tool
    ├─ StoreError                            store_error       a session's directory
    │  └─ StoreReadOnly (PermissionError)    read_only
    ├─ NoSession (RuntimeError)              no_session        a bare decorator found no session to use
    ├─ SessionClosed (RuntimeError)          closed            used after it was closed
    └─ WrongLoop (RuntimeError)              wrong_loop        used from another event loop, thread or process

The middle column is the error's ``type``: a word for programs, such as a tool's answer to a model or a statistic.
Data sits in attributes and ``str()`` is for people.
No text holds a secret.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

Error = TypeVar("Error", bound="MamaStructsError")


class MamaStructsError(Exception):
    """
    The root of every error that this package raises on purpose.

    Each class has a *type*: a word in snake_case that says what went wrong, for programs.

    Args:
        message: What went wrong, naming the argument, the value and the rule.
        hint: What to do about it.

    """

    type: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with `args` alone, which lack the keywords and hold the finished message.
        return _remade, (type(self), self.args), self.__dict__.copy()

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


def _remade(kind: type[Error], args: tuple[Any, ...]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InvalidArgument(MamaStructsError, ValueError):
    """An argument breaks a rule; nothing was done."""

    type: ClassVar[str] = "invalid_argument"


class InvalidSetting(InvalidArgument):
    """A setting, or the environment variable that gives it, breaks a rule."""

    type: ClassVar[str] = "invalid_setting"

    def __init__(self, message: str, *, name: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.name = name


class StructsError(MamaStructsError):
    """A source of entities (the Structs chain first of all) did not answer as asked."""

    type: ClassVar[str] = "source_error"


class EntityNotFound(StructsError, LookupError):
    """The source says that no entity has this id."""

    type: ClassVar[str] = "not_found"

    def __init__(self, entity_id: object, *, hint: str | None = None) -> None:
        super().__init__(f"no entity has the id {entity_id}", hint=hint)
        self.entity_id = entity_id


class RateLimited(StructsError):
    """The node refuses more requests for now; *retry_after* is in seconds where the node says it."""

    type: ClassVar[str] = "rate_limited"

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class StructsAPIError(StructsError):
    """
    The node answered with an error.

    Args:
        text: What happened, for people.
        status: The HTTP status.
        code: The gRPC code of the body, None where the body has none.
        message: The node's own words, None where it gave none.

    """

    type: ClassVar[str] = "api_error"

    def __init__(
        self, text: str, *, status: int, code: int | None = None, message: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(text, hint=hint)
        self.status = status
        self.code = code
        self.message = message


class MalformedResponse(StructsError, ValueError):
    """The answer is not what the interface promises; *path* (JSON path) says where."""

    type: ClassVar[str] = "malformed"

    def __init__(self, message: str, *, path: str = "$", hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path


class ResponseTooLarge(StructsError):
    """The answer's body, decompressed, is over *limit* bytes."""

    type: ClassVar[str] = "too_large"

    def __init__(self, limit: int, *, hint: str | None = None) -> None:
        super().__init__(f"the answer is larger than {limit} bytes", hint=hint)
        self.limit = limit


class StructsUnreachable(StructsError, ConnectionError):
    """No connection to the node, or none that lasted until the answer was there."""

    type: ClassVar[str] = "unreachable"


class QueryTimeout(MamaStructsError, TimeoutError):
    """A query had no answer within *seconds*."""

    type: ClassVar[str] = "timeout"

    def __init__(self, message: str, *, seconds: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class UnknownTool(MamaStructsError, LookupError):
    """No tool has this name."""

    type: ClassVar[str] = "unknown_tool"

    def __init__(self, tool: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no tool named {tool!r}", hint=hint)
        self.tool = tool


class StoreError(MamaStructsError):
    """A session's directory cannot be used."""

    type: ClassVar[str] = "store_error"


class StoreReadOnly(StoreError, PermissionError):
    """A session's directory cannot be written to."""

    type: ClassVar[str] = "read_only"


class NoSession(MamaStructsError, RuntimeError):
    """A decorator that is bound to no resolver found no session, or several, to use."""

    type: ClassVar[str] = "no_session"


class SessionClosed(MamaStructsError, RuntimeError):
    """The session, resolver or client was closed before this call."""

    type: ClassVar[str] = "closed"


class WrongLoop(MamaStructsError, RuntimeError):
    """The object belongs to another event loop or process."""

    type: ClassVar[str] = "wrong_loop"
