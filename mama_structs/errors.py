"""
Every error that this package raises on purpose.

.. code-block:: text

    MamaStructsError                         error             .hint: what to do about it
    ├─ InvalidArgument (ValueError)          invalid_argument  a value at the door breaks a rule
    │  ├─ InvalidSetting                     invalid_setting   .name: the setting or environment variable
    │  └─ UnknownNamespace (LookupError)     unknown_namespace .namespace
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
    │  ├─ MemoryReadOnly (PermissionError)   memory_read_only  .id .namespace: whose it is
    │  ├─ EmbedderMismatch                   embedder_mismatch .stored .given: name and fingerprint
    │  ├─ EmbeddingFailed                    embedding_failed  the embedder raised, or gave no usable vectors
    │  ├─ RerankingFailed                    reranking_failed  the reranker cannot work, or gave no score for each text
    │  ├─ VersionConflict (RuntimeError)     version_conflict  .labels .key .version: which it is at, 0 for none
    │  └─ MigrationError                     migration_failed  .path: the old file; nothing of it was changed
    ├─ StoreError                            store_error       a session's directory, or its server
    │  ├─ StoreBusy (TimeoutError)           busy              .waited: seconds
    │  ├─ StoreDiffers                       store_differs     .namespace .ids: of what is not the same in a copy
    │  ├─ StoreFull (OSError)                store_full
    │  ├─ StoreDamaged                       store_damaged     .file .findings
    │  ├─ StoreReadOnly (PermissionError)    read_only         .namespace .role: where a server denies a role to write
    │  └─ StoreUnreachable (ConnectionError)  store_unreachable  a server that is gone, or gave no answer in time
    ├─ NoSession (RuntimeError)              no_session        a bare decorator found no session to use
    ├─ SessionClosed (RuntimeError)          closed            used after it was closed
    └─ WrongLoop (RuntimeError)              wrong_loop        used from another event loop, thread or process

The middle column is the error's ``type``: a word for programs, such as a tool's answer to a model or a statistic.
Data sits in attributes and ``str()`` is for people.
No text holds a secret, or what could be the text of a memory: see `shown`.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import numbers
import re
from typing import Any, ClassVar, Final, TypeVar

Error = TypeVar("Error", bound="MamaStructsError")

# A password may stand in what has "://" in it.
_A_NAME: Final = re.compile(r"(?!.*://)[\w.,:/@+*-]*")
_SAYS_ITSELF: Final = (numbers.Number, enum.Enum, type, dt.date, dt.time, dt.timedelta, type(None))


def shown(value: object, *, most: int = 64) -> str:
    """
    Return what an error may say of a value: a number, or a text that can be a name, else only what it is.

    Whatever was given in place of something else may be the text of a memory, a model's answer or a secret.

    Args:
        value: It is anybody's.
        most: Characters that a name has at the most.

    """
    kind = type(value).__name__
    try:
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            is_name = len(value) <= most and _A_NAME.fullmatch(value)
            return repr(str(value)) if is_name else f"a text of {len(value)} characters"
        if isinstance(value, _SAYS_ITSELF) or value in ((), [], {}):
            return f"{value!r:.80}"
        return (
            f"a {kind} of length {len(value)}"
            if isinstance(value, (list, tuple, set, frozenset, dict, bytes))
            else f"a {kind}"
        )
    except Exception:  # noqa: BLE001 - an int of 5,000 digits has no repr, and a caller's object may raise anything
        return f"a {kind}"


class MamaStructsError(Exception):
    """
    The root of every error that this package raises on purpose.

    Each class has a *type*: a word in snake_case that says what went wrong, for programs.

    Args:
        message: What went wrong, naming the argument, the value and the rule.
        hint: What to do about it.

    """

    type: ClassVar[str] = "error"

    def __init__(self, message: str, /, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.hint = hint
        names = _data_of(type(self))  # type: ignore[arg-type]  # typeshed takes a class for its objects
        if not data.keys() <= names.keys():
            raise TypeError(f"{type(self).__name__}() takes no {', '.join(data.keys() - names.keys())}")
        for name, default in names.items():
            if default is ... and name not in data:
                raise TypeError(f"{type(self).__name__}() needs {name}")
            setattr(self, name, data.get(name, default))

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with `args` alone, which lack the keywords and hold the finished message.
        return _remade, (type(self), self.args), self.__dict__.copy()

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


@functools.cache
def _data_of(kind: type[MamaStructsError]) -> dict[str, Any]:
    """Return the attributes that our classes annotate, with their defaults; `...` where there is none."""
    ours = [one for one in reversed(kind.__mro__) if one.__module__ == __name__]
    names = [name for one in ours for name in one.__annotations__ if name != "type"]
    return {name: getattr(kind, name, ...) for name in names}


def _remade(kind: type[Error], args: tuple[Any, ...]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InvalidArgument(MamaStructsError, ValueError):
    """An argument breaks a rule; nothing was done."""

    type = "invalid_argument"


class InvalidSetting(InvalidArgument):
    """A setting, or the environment variable that gives it, breaks a rule."""

    type = "invalid_setting"
    name: str


class StructsError(MamaStructsError):
    """A source of entities (the Structs chain first of all) did not answer as asked."""

    type = "source_error"


class EntityNotFound(StructsError, LookupError):
    """The source says that no entity has this id."""

    type = "not_found"
    entity_id: object

    def __init__(self, entity_id: object, *, hint: str | None = None) -> None:
        super().__init__(f"no entity has the id {entity_id}", hint=hint, entity_id=entity_id)


class RateLimited(StructsError):
    """The node refuses more requests for now; *retry_after* is in seconds where the node says it."""

    type = "rate_limited"
    retry_after: float | None = None


class StructsAPIError(StructsError):
    """
    The node answered with an error.

    *status* is of HTTP, *code* the gRPC code of the body and *message* the node's own words, None where it has none.
    """

    type = "api_error"
    status: int
    code: int | None = None
    message: str | None = None


class MalformedResponse(StructsError, ValueError):
    """The answer is not what the interface promises; *path* (JSON path) says where."""

    type = "malformed"
    path: str

    def __init__(self, message: str, *, path: str = "$", hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint, path=path)


class ResponseTooLarge(StructsError):
    """The answer's body, decompressed, is over *limit* bytes."""

    type = "too_large"
    limit: int

    def __init__(self, limit: int, *, hint: str | None = None) -> None:
        super().__init__(f"the answer is larger than {limit} bytes", hint=hint, limit=limit)


class StructsUnreachable(StructsError, ConnectionError):
    """No connection to the node, or none that lasted until the answer was there."""

    type = "unreachable"


class QueryTimeout(MamaStructsError, TimeoutError):
    """A query had no answer within *seconds*."""

    type = "timeout"
    seconds: float


class UnknownNamespace(InvalidArgument, LookupError):
    """A store has nothing of this namespace."""

    type = "unknown_namespace"
    namespace: str

    def __init__(self, namespace: str, *, hint: str | None = None) -> None:
        super().__init__(f"the store has no namespace {shown(namespace)}", hint=hint, namespace=namespace)


class UnknownTool(MamaStructsError, LookupError):
    """No tool has this name."""

    type = "unknown_tool"
    tool: str

    def __init__(self, tool: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no tool named {shown(tool)}", hint=hint, tool=tool)


class DescriptorError(MamaStructsError):
    """A ``ref:`` or ``fd:`` cannot be read, made or written as asked; *handle* is as it was given, if there is one."""

    type = "descriptor_error"
    handle: str | None = None


class HandleNotFound(DescriptorError, LookupError):
    """
    Nothing has this handle, or what had it was deleted.

    *nearest* exist and look most like it; *deleted_at* is when it was deleted (UTC), None if it never was.
    """

    type = "not_found"
    nearest: tuple[str, ...] = ()
    deleted_at: dt.datetime | None = None


class InvalidHandle(DescriptorError, InvalidArgument):
    """No handle: neither ``fd:<n>`` nor ``ref:<id>`` nor ``ref:<id>@<version>``."""

    type = "invalid_id"


class InvalidRange(DescriptorError, InvalidArgument):
    """The content or file has no such line or character; *valid* holds the first and the last that exist."""

    type = "invalid_range"
    valid: tuple[int, int]

    def __init__(
        self, message: str, *, valid: tuple[int, int], handle: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, handle=handle, valid=valid, hint=hint or f"valid: {valid[0]} to {valid[1]}")


class InvalidPage(InvalidRange):
    """The content has no such page; *valid* holds the first and the last."""

    type = "invalid_page"


class InvalidParameter(DescriptorError, InvalidArgument):
    """
    A parameter of a read, search or export breaks its rule; nothing was done.

    *candidates* are the lines of a text that may be meant, with their numbers: of the content, so not in the message.
    """

    type = "invalid_parameter"
    parameter: str
    candidates: tuple[str, ...] = ()


class HandleDamaged(DescriptorError):
    """What is on disk for this handle is not what was stored; the others are whole."""

    type = "damaged"


class QuotaExceeded(DescriptorError):
    """
    Storing this would pass a quota; nothing was stored.

    *quota* is the setting's name, such as ``max_bytes``, *limit* its value, and *used* how much of it is in use.
    """

    type = "quota_exceeded"
    quota: str
    used: int
    limit: int


class SearchTimeout(DescriptorError, TimeoutError):
    """A search did not end within *seconds*."""

    type = "search_timeout"
    seconds: float


class ExportError(DescriptorError):
    """A file was not written, and is as it was; *path* is as it was asked for."""

    type = "export_error"
    path: str


class ExportExists(ExportError, FileExistsError):
    """The file exists, and *exist_ok* is False."""

    type = "file_exists"


class ExportMissing(ExportError, FileNotFoundError):
    """The file does not exist and *create* is False, or the directory that it should be in does not."""

    type = "file_not_found"


class PathDenied(ExportError, PermissionError):
    """The path leads out of the root, to what is no regular file, or to what no model may write."""

    type = "path_denied"


class ExportDenied(ExportError, PermissionError):
    """The operating system does not allow it."""

    type = "permission_denied"


class DiskFull(ExportError, OSError):
    """There is no room for the file."""

    type = "disk_full"


class MemoryStoreError(MamaStructsError):
    """Something about memories, links or their vectors went wrong."""

    type = "memory_error"


class MemoryNotFound(MemoryStoreError, LookupError):
    """There is no memory with this id; *nearest* exist and look most like it."""

    type = "not_found"
    memory_id: object
    nearest: tuple[str, ...]

    def __init__(self, memory_id: object, *, nearest: tuple[str, ...] = (), hint: str | None = None) -> None:
        if hint is None and nearest:
            hint = f"did you mean {' or '.join(nearest)}?"
        message = f"there is no memory with the id {shown(memory_id, most=200)}"
        super().__init__(message, hint=hint, memory_id=memory_id, nearest=nearest)


class LinkNotFound(MemoryStoreError, LookupError):
    """There is no link with this id."""

    type = "not_found"
    link_id: object

    def __init__(self, link_id: object, *, hint: str | None = None) -> None:
        super().__init__(f"there is no link with the id {shown(link_id, most=200)}", hint=hint, link_id=link_id)


class MemoryReadOnly(MemoryStoreError, PermissionError):
    """The memory or link of this *id* is of a *namespace* that the session only reads: nothing of it is changed."""

    type = "memory_read_only"
    id: str
    namespace: str

    def __init__(
        self,
        id: str,  # noqa: A002 - what it is
        *,
        namespace: str,
        what: str = "memory",
        hint: str | None = "save a memory of your own that says what is to be said of it; it can be named as evidence",
    ) -> None:
        message = f"the {what} {id!r:.200} belongs to the namespace {namespace!r:.200}, which is only read here"
        super().__init__(message, hint=hint, id=id, namespace=namespace)


class EmbedderMismatch(MemoryStoreError):
    """The memories' vectors are by another embedder; *stored* and *given* are name and fingerprint of the two."""

    type = "embedder_mismatch"
    stored: tuple[str, str]
    given: tuple[str, str]


class EmbeddingFailed(MemoryStoreError):
    """The embedder raised an error or returned no usable vectors; nothing was saved."""

    type = "embedding_failed"


class RerankingFailed(MemoryStoreError):
    """The reranker can never work as it is: its package or file is missing, or it gives no number for each text."""

    type = "reranking_failed"


class VersionConflict(MemoryStoreError, RuntimeError):
    """A record is at another version than a write was meant for; *version* is 0 where it is not there."""

    type = "version_conflict"
    labels: tuple[str, ...]
    key: str
    version: int


class MigrationError(MemoryStoreError):
    """
    Memories of an earlier version cannot be taken over, or a take-over not be undone.

    *path* is the old file, which was not changed.
    """

    type = "migration_failed"
    path: str


class StoreError(MamaStructsError):
    """A session's directory, or its server, cannot be used."""

    type = "store_error"


class StoreBusy(StoreError, TimeoutError):
    """Another process or session has the lock, and kept it for *waited* seconds."""

    type = "busy"
    waited: float


class StoreDiffers(StoreError):
    """What a copy was to become holds something else in a *namespace*; *ids* has some ids or names of that."""

    type = "store_differs"
    namespace: str
    ids: tuple[str, ...] = ()


class StoreFull(StoreError, OSError):
    """There is no room on the disk; what was stored before can still be read."""

    type = "store_full"


class StoreDamaged(StoreError):
    """A *file* of the store is not what was written; *findings* has one line for each thing found."""

    type = "store_damaged"
    file: str
    findings: tuple[str, ...] = ()


class StoreReadOnly(StoreError, PermissionError):
    """
    A session's directory or server cannot be written.

    Where the database denies a write to a role, *namespace* and *role* name them; otherwise they are None.
    """

    type = "read_only"
    namespace: str | None = None
    role: str | None = None


class StoreUnreachable(StoreError, ConnectionError):
    """The server of a session is gone, or gave no answer in time; the message says where a save may be stored."""

    type = "store_unreachable"


class NoSession(MamaStructsError, RuntimeError):
    """A decorator that is bound to no resolver found no session, or several, to use."""

    type = "no_session"


class SessionClosed(MamaStructsError, RuntimeError):
    """The session, resolver, client, stream or parser was closed before this call."""

    type = "closed"


class WrongLoop(MamaStructsError, RuntimeError):
    """The object belongs to another event loop or process."""

    type = "wrong_loop"
