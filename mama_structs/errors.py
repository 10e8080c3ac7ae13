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
    ├─ DescriptorError                       descriptor_error  .handle: the ref: or fd: that it is about, or None
    │  ├─ HandleNotFound (LookupError)       not_found         .nearest .deleted_at
    │  ├─ InvalidHandle (InvalidArgument)    invalid_id
    │  ├─ InvalidRange (InvalidArgument)     invalid_range     .valid: the first and the last line or character
    │  │  └─ InvalidPage                     invalid_page      .valid: the first and the last page
    │  ├─ InvalidParameter (InvalidArgument)  invalid_parameter .parameter
    │  ├─ HandleDamaged                      damaged           its content on disk is not what was stored
    │  ├─ QuotaExceeded                      quota_exceeded    .quota: which .used .limit
    │  ├─ SearchTimeout (TimeoutError)       search_timeout    .seconds
    │  └─ ExportError                        export_error      .path: as it was asked for
    │     ├─ ExportExists (FileExistsError)  file_exists
    │     ├─ ExportMissing (FileNotFoundError)  file_not_found
    │     ├─ PathDenied (PermissionError)    path_denied       outside the root, or no regular file
    │     ├─ ExportDenied (PermissionError)  permission_denied  the operating system refuses
    │     └─ DiskFull (OSError)              disk_full
    ├─ MemoryStoreError                      memory_error      memories, links and their vectors
    │  ├─ MemoryNotFound (LookupError)       not_found         .memory_id .nearest
    │  ├─ LinkNotFound (LookupError)         not_found         .link_id
    │  ├─ EmbedderMismatch                   embedder_mismatch .stored .given: name and fingerprint
    │  ├─ EmbeddingFailed                    embedding_failed  the embedder raised, or gave no usable vectors
    │  └─ MigrationError                     migration_failed  .path: the old file; nothing of it was changed
    ├─ StoreError                            store_error       a session's directory
    │  ├─ StoreBusy (TimeoutError)           busy              .waited: seconds
    │  ├─ StoreFull (OSError)                store_full
    │  ├─ StoreDamaged                       store_damaged     .file .findings
    │  └─ StoreReadOnly (PermissionError)    read_only
    ├─ NoSession (RuntimeError)              no_session        a bare decorator found no session to use
    ├─ SessionClosed (RuntimeError)          closed            used after it was closed
    └─ WrongLoop (RuntimeError)              wrong_loop        used from another event loop, thread or process

The middle column is the error's ``type``: a word for programs, such as a tool's answer to a model or a statistic.
Data sits in attributes and ``str()`` is for people.
No text holds a secret.
"""

from __future__ import annotations

from datetime import datetime
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


class DescriptorError(MamaStructsError):
    """
    A ``ref:`` or ``fd:`` cannot be read, made or written as asked.

    Args:
        message: What went wrong, for people and models.
        handle: The handle that it is about, as it was given; None where there is none.

    """

    type: ClassVar[str] = "descriptor_error"

    def __init__(self, message: str, *, handle: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.handle = handle


class HandleNotFound(DescriptorError, LookupError):
    """
    Nothing has this handle, or what had it was deleted.

    Args:
        message: What went wrong.
        handle: The handle asked for.
        nearest: Handles that exist and look most like it.
        deleted_at: When it was deleted (UTC), None if it never was.

    """

    type: ClassVar[str] = "not_found"

    def __init__(
        self,
        message: str,
        *,
        handle: str | None = None,
        nearest: tuple[str, ...] = (),
        deleted_at: datetime | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, handle=handle, hint=hint)
        self.nearest = nearest
        self.deleted_at = deleted_at


class InvalidHandle(DescriptorError, InvalidArgument):
    """No handle: neither ``fd:<n>`` nor ``ref:<id>`` nor ``ref:<id>@<version>``."""

    type: ClassVar[str] = "invalid_id"


class InvalidRange(DescriptorError, InvalidArgument):
    """
    The content or file has no such line or character.

    Args:
        message: What went wrong.
        valid: The first and the last that exist.
        handle: What was read.

    """

    type: ClassVar[str] = "invalid_range"

    def __init__(
        self, message: str, *, valid: tuple[int, int], handle: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, handle=handle, hint=hint or f"valid: {valid[0]} to {valid[1]}")
        self.valid = valid


class InvalidPage(InvalidRange):
    """The content has no such page; *valid* holds the first and the last."""

    type: ClassVar[str] = "invalid_page"


class InvalidParameter(DescriptorError, InvalidArgument):
    """A parameter of a read, search or export breaks its rule; nothing was done."""

    type: ClassVar[str] = "invalid_parameter"

    def __init__(self, message: str, *, parameter: str, handle: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, handle=handle, hint=hint)
        self.parameter = parameter


class HandleDamaged(DescriptorError):
    """What is on disk for this handle is not what was stored; the others are whole."""

    type: ClassVar[str] = "damaged"


class QuotaExceeded(DescriptorError):
    """
    Storing this would pass a quota; nothing was stored.

    Args:
        message: What went wrong.
        quota: The setting's name, such as ``max_bytes``.
        used: How much of it is in use.
        limit: Its value.

    """

    type: ClassVar[str] = "quota_exceeded"

    def __init__(
        self, message: str, *, quota: str, used: int, limit: int, handle: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, handle=handle, hint=hint)
        self.quota = quota
        self.used = used
        self.limit = limit


class SearchTimeout(DescriptorError, TimeoutError):
    """A search did not end within *seconds*."""

    type: ClassVar[str] = "search_timeout"

    def __init__(self, message: str, *, seconds: float, handle: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, handle=handle, hint=hint)
        self.seconds = seconds


class ExportError(DescriptorError):
    """
    A file was not written, and is as it was.

    Args:
        message: What went wrong.
        path: The path, as it was asked for.
        handle: What was to be written.

    """

    type: ClassVar[str] = "export_error"

    def __init__(self, message: str, *, path: str, handle: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, handle=handle, hint=hint)
        self.path = path


class ExportExists(ExportError, FileExistsError):
    """The file exists, and *exist_ok* is False."""

    type: ClassVar[str] = "file_exists"


class ExportMissing(ExportError, FileNotFoundError):
    """The file does not exist and *create* is False, or the directory that it should be in does not."""

    type: ClassVar[str] = "file_not_found"


class PathDenied(ExportError, PermissionError):
    """The path leads out of the root, or to something that is no regular file."""

    type: ClassVar[str] = "path_denied"


class ExportDenied(ExportError, PermissionError):
    """The operating system does not allow it."""

    type: ClassVar[str] = "permission_denied"


class DiskFull(ExportError, OSError):
    """There is no room for the file."""

    type: ClassVar[str] = "disk_full"


class MemoryStoreError(MamaStructsError):
    """Something about memories, links or their vectors went wrong."""

    type: ClassVar[str] = "memory_error"


class MemoryNotFound(MemoryStoreError, LookupError):
    """
    There is no memory with this id.

    Args:
        memory_id: The id asked for.
        nearest: Ids that exist and look most like it.

    """

    type: ClassVar[str] = "not_found"

    def __init__(self, memory_id: object, *, nearest: tuple[str, ...] = (), hint: str | None = None) -> None:
        if hint is None and nearest:
            hint = f"did you mean {' or '.join(nearest)}?"
        super().__init__(f"there is no memory with the id {memory_id!r:.200}", hint=hint)
        self.memory_id = memory_id
        self.nearest = nearest


class LinkNotFound(MemoryStoreError, LookupError):
    """There is no link with this id."""

    type: ClassVar[str] = "not_found"

    def __init__(self, link_id: object, *, hint: str | None = None) -> None:
        super().__init__(f"there is no link with the id {link_id!r:.200}", hint=hint)
        self.link_id = link_id


class EmbedderMismatch(MemoryStoreError):
    """
    The memories' vectors were made by another embedder.

    Args:
        message: What differs.
        stored: Name and fingerprint of the one that made them.
        given: Name and fingerprint of the one at hand.

    """

    type: ClassVar[str] = "embedder_mismatch"

    def __init__(
        self, message: str, *, stored: tuple[str, str], given: tuple[str, str], hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.stored = stored
        self.given = given


class EmbeddingFailed(MemoryStoreError):
    """The embedder raised, or what it gave are no vectors; nothing was saved."""

    type: ClassVar[str] = "embedding_failed"


class MigrationError(MemoryStoreError):
    """
    Memories of an earlier version cannot be taken over, or a take-over not be undone.

    Args:
        message: What is wrong.
        path: The old file, which was not changed.

    """

    type: ClassVar[str] = "migration_failed"

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class StoreError(MamaStructsError):
    """A session's directory cannot be used."""

    type: ClassVar[str] = "store_error"


class StoreBusy(StoreError, TimeoutError):
    """Another process or session holds what is needed, and did not let go within *waited* seconds."""

    type: ClassVar[str] = "busy"

    def __init__(self, message: str, *, waited: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.waited = waited


class StoreFull(StoreError, OSError):
    """There is no room on the disk; what was stored before can still be read."""

    type: ClassVar[str] = "store_full"


class StoreDamaged(StoreError):
    """
    A file of the store is not what was written.

    Args:
        message: What is wrong.
        file: The file's path.
        findings: One line for each thing found.

    """

    type: ClassVar[str] = "store_damaged"

    def __init__(self, message: str, *, file: str, findings: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.findings = findings


class StoreReadOnly(StoreError, PermissionError):
    """A session's directory cannot be written to."""

    type: ClassVar[str] = "read_only"


class NoSession(MamaStructsError, RuntimeError):
    """A decorator that is bound to no resolver found no session, or several, to use."""

    type: ClassVar[str] = "no_session"


class SessionClosed(MamaStructsError, RuntimeError):
    """The session, resolver, client, stream or parser was closed before this call."""

    type: ClassVar[str] = "closed"


class WrongLoop(MamaStructsError, RuntimeError):
    """The object belongs to another event loop or process."""

    type: ClassVar[str] = "wrong_loop"
