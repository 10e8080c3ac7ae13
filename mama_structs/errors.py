"""
All errors that this package raises deliberately.

.. code-block:: text

    MamaStructsError                         error             .hint: what to do about it
    ├─ InvalidArgument (ValueError)          invalid_argument  an argument breaks a rule
    │  ├─ InvalidSetting                     invalid_setting   .name: the setting or environment variable
    │  ├─ NoSource (LookupError)             no_source         .entity_id: no source resolves ids of this form
    │  └─ UnknownNamespace (LookupError)     unknown_namespace .namespace
    ├─ StructsError                          source_error      the Structs chain, or another source of entities
    │  ├─ EntityNotFound (LookupError)       not_found         .entity_id
    │  ├─ RateLimited                        rate_limited      .retry_after: seconds, or None
    │  ├─ StructsAPIError                    api_error         .status .code .message
    │  ├─ MalformedResponse (ValueError)     malformed         .path: a JSON path such as $.Player.guildId
    │  ├─ ResponseTooLarge                   too_large         .limit: bytes
    │  └─ StructsUnreachable (ConnectionError)  unreachable  .host .port
    ├─ QueryTimeout (TimeoutError)           timeout           .seconds
    ├─ UnknownTool (LookupError)             unknown_tool      .tool
    ├─ DescriptorError                       descriptor_error  .handle: the ref: or fd: handle, or None
    │  ├─ HandleNotFound (LookupError)       not_found         .nearest .deleted_at
    │  ├─ InvalidHandle (InvalidArgument)    invalid_id
    │  ├─ InvalidRange (InvalidArgument)     invalid_range     .valid: the first and the last line or character
    │  │  └─ InvalidPage                     invalid_page      .valid: the first and the last page
    │  ├─ InvalidParameter (InvalidArgument)  invalid_parameter .parameter
    │  ├─ HandleDamaged                      damaged           the content on disk fails its checksum
    │  ├─ QuotaExceeded                      quota_exceeded    .quota: name of the setting .used .limit
    │  ├─ SearchTimeout (TimeoutError)       search_timeout    .seconds
    │  └─ ExportError                        export_error      .path: the requested path
    │     ├─ ExportExists (FileExistsError)  file_exists
    │     ├─ ExportMissing (FileNotFoundError)  file_not_found
    │     ├─ PathDenied (PermissionError)    path_denied       .root: outside of it, or not a regular file
    │     ├─ ExportDenied (PermissionError)  permission_denied  the operating system denies access
    │     └─ ExportDiskFull (OSError)        disk_full
    ├─ MemoryStoreError                      memory_error      memories, links and their vectors
    │  ├─ MemoryNotFound (LookupError)       not_found         .memory_id .nearest
    │  ├─ LinkNotFound (LookupError)         not_found         .link_id
    │  ├─ MemoryReadOnly (PermissionError)   memory_read_only  .id .namespace: the owner
    │  ├─ EmbedderMismatch                   embedder_mismatch .stored .given: name and fingerprint
    │  ├─ EmbeddingFailed                    embedding_failed  the embedder raised, or returned no usable vectors
    │  ├─ RerankingFailed                    reranking_failed  the reranker cannot work, or returned too few scores
    │  ├─ VersionConflict (RuntimeError)     version_conflict  .labels .key .version: current version, 0 if missing
    │  └─ MigrationError                     migration_failed  .path: the old file, which is unchanged
    ├─ StoreError                            store_error       a session's directory, or its server
    │  ├─ StoreBusy (TimeoutError)           busy              .waited: seconds
    │  ├─ StoreMismatch                      store_differs     .namespace .ids: items that differ from the copy
    │  ├─ StoreFull (OSError)                store_full
    │  ├─ StoreDamaged                       store_damaged     .file .findings
    │  ├─ StoreReadOnly (PermissionError)    read_only         .namespace .role: if a server denies a role to write
    │  └─ StoreUnreachable (ConnectionError)  store_unreachable  the server is down, or did not answer in time
    ├─ NoSession (RuntimeError)              no_session        an unbound decorator found no session to use
    ├─ SessionClosed (RuntimeError)          closed            used after it was closed
    └─ WrongLoop (RuntimeError)              wrong_loop        used from another event loop, thread or process

The middle column is the error's ``type``: a word for programs, such as a tool's answer to a model or a statistic.
Attributes contain data; ``str()`` is for people.
Messages contain no secrets and no text that could be the content of a memory: see `repr_short`.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import numbers
import re
from typing import Any, ClassVar, Final, TypeVar

Error = TypeVar("Error", bound="MamaStructsError")

# A text with "://" does not count as a name, because it may be a URL with a password.
NAME_PATTERN: Final = re.compile(r"(?!.*://)[\w.,:/@+*-]*")
SHOWABLE_TYPES: Final = (numbers.Number, enum.Enum, type, dt.date, dt.time, dt.timedelta, type(None))


def repr_short(value: object, *, max_chars: int = 64) -> str:
    """
    Return a description of a value that is safe in an error message.

    Numbers and short texts that look like names are shown; all other values are described by type and length, because
    they may be the text of a memory, a model's answer or a secret.

    Args:
        value: Any value.
        max_chars: Maximum number of characters of a name.

    """
    kind = type(value).__name__
    try:
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            is_name = len(value) <= max_chars and NAME_PATTERN.fullmatch(value)
            return repr(str(value)) if is_name else f"a text of {len(value)} characters"
        if isinstance(value, SHOWABLE_TYPES) or value in ((), [], {}):
            return f"{value!r:.80}"
        return (
            f"a {kind} of length {len(value)}"
            if isinstance(value, (list, tuple, set, frozenset, dict, bytes))
            else f"a {kind}"
        )
    # An int of 5,000 digits has no repr, and a caller's object may raise any exception.
    except Exception:  # noqa: BLE001
        return f"a {kind}"


class MamaStructsError(Exception):
    """
    Root of all errors that this package raises deliberately.

    Each class has a *type*: a word in snake_case that names the error for programs.

    Args:
        message: The problem, with the argument, the value and the rule.
        hint: What to do about it.

    """

    type: ClassVar[str] = "error"

    def __init__(self, message: str, /, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.hint = hint
        names = _get_attributes(type(self))  # type: ignore[arg-type]  # typeshed takes a class for its objects
        if not data.keys() <= names.keys():
            raise TypeError(f"{type(self).__name__}() takes no {', '.join(data.keys() - names.keys())}")
        for name, default in names.items():
            if default is ... and name not in data:
                raise TypeError(f"{type(self).__name__}() needs {name}")
            setattr(self, name, data.get(name, default))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickle would call the class with `args` only, without the required keyword arguments.
        return _restore_error, (type(self), self.args), self.__dict__.copy()

    def __str__(self) -> str:
        message = f"{super().__str__()}{self._format_details()}"
        return f"{message} ({self.hint})" if self.hint else message

    def _format_details(self) -> str:
        """Return details for people. They are not part of `args`, so models do not see them."""
        return ""


@functools.cache
def _get_attributes(kind: type[MamaStructsError]) -> dict[str, Any]:
    """Return the attributes of an error class with their defaults, or `...` for required attributes."""
    ours = [one for one in reversed(kind.__mro__) if one.__module__ == __name__]
    names = [name for one in ours for name in one.__annotations__ if name != "type"]
    return {name: getattr(kind, name, ...) for name in names}


def _restore_error(kind: type[Error], args: tuple[Any, ...]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InvalidArgument(MamaStructsError, ValueError):
    """An argument breaks a rule. Nothing was changed."""

    type = "invalid_argument"


class InvalidSetting(InvalidArgument):
    """A setting is invalid. It was passed in code or read from an environment variable."""

    type = "invalid_setting"
    name: str


class NoSource(InvalidArgument, LookupError):
    """No source of the session resolves ids such as *entity_id*."""

    type = "no_source"
    entity_id: str


class StructsError(MamaStructsError):
    """A source of entities, such as the Structs chain, returned an error or no valid answer."""

    type = "source_error"


class EntityNotFound(StructsError, LookupError):
    """The source has no entity with this id."""

    type = "not_found"
    entity_id: object

    def __init__(self, entity_id: object, *, hint: str | None = None) -> None:
        super().__init__(f"no entity has the id {entity_id}", hint=hint, entity_id=entity_id)


class RateLimited(StructsError):
    """
    The node rejects requests for now.

    *retry_after* is in seconds, None if the node does not send it.
    """

    type = "rate_limited"
    retry_after: float | None = None


class StructsAPIError(StructsError):
    """
    The node returned an error.

    *status* is the HTTP status, *code* the gRPC code of the body, and *message* the node's message; None if missing.
    """

    type = "api_error"
    status: int
    code: int | None = None
    message: str | None = None


class MalformedResponse(StructsError, ValueError):
    """The answer does not match the expected format. *path* is the JSON path of the mismatch."""

    type = "malformed"
    path: str

    def __init__(self, message: str, *, path: str = "$", hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint, path=path)


class ResponseTooLarge(StructsError):
    """The decompressed body of an answer exceeds *limit* bytes."""

    type = "too_large"
    limit: int

    def __init__(self, limit: int, *, hint: str | None = None) -> None:
        super().__init__(f"the answer is larger than {limit} bytes", hint=hint, limit=limit)


class StructsUnreachable(StructsError, ConnectionError):
    """
    No connection to the node, or the connection broke before the answer was complete.

    *host* and *port* are those of the node; None if unknown. ``str()`` names them, and models do not see them.
    """

    type = "unreachable"
    host: str | None = None
    port: int | None = None

    def _format_details(self) -> str:
        return "" if self.host is None else f" at {self.host}{'' if self.port is None else f':{self.port}'}"


class QueryTimeout(MamaStructsError, TimeoutError):
    """A query got no answer within *seconds*."""

    type = "timeout"
    seconds: float


class UnknownNamespace(InvalidArgument, LookupError):
    """The store contains no such namespace."""

    type = "unknown_namespace"
    namespace: str

    def __init__(self, namespace: str, *, hint: str | None = None) -> None:
        super().__init__(f"the store has no namespace {repr_short(namespace)}", hint=hint, namespace=namespace)


class UnknownTool(MamaStructsError, LookupError):
    """No tool has this name."""

    type = "unknown_tool"
    tool: str

    def __init__(self, tool: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no tool named {repr_short(tool)}", hint=hint, tool=tool)


class DescriptorError(MamaStructsError):
    """
    The content of a handle (``ref:`` or ``fd:``) cannot be read, created or written.

    *handle* is the requested handle, if any.
    """

    type = "descriptor_error"
    handle: str | None = None


class HandleNotFound(DescriptorError, LookupError):
    """
    No content has this handle, or it was deleted.

    *nearest* are similar existing handles. *deleted_at* is the time of the deletion (UTC), None if it was never
    deleted.
    """

    type = "not_found"
    nearest: tuple[str, ...] = ()
    deleted_at: dt.datetime | None = None


class InvalidHandle(DescriptorError, InvalidArgument):
    """Not a handle: neither ``fd:<n>`` nor ``ref:<id>`` nor ``ref:<id>@<version>``."""

    type = "invalid_id"


class InvalidRange(DescriptorError, InvalidArgument):
    """
    The content or file does not contain the requested line or character.

    *valid* is the first and last that exist.
    """

    type = "invalid_range"
    valid: tuple[int, int]

    def __init__(
        self, message: str, *, valid: tuple[int, int], handle: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, handle=handle, valid=valid, hint=hint or f"valid: {valid[0]} to {valid[1]}")


class InvalidPage(InvalidRange):
    """The content does not contain the requested page. *valid* is the range of its pages: first and last."""

    type = "invalid_page"


class InvalidParameter(DescriptorError, InvalidArgument):
    """
    A parameter of a read, search or export breaks its rule. Nothing was changed.

    *candidates* are possible lines of the text, with their numbers. The message omits them, since they are content.
    """

    type = "invalid_parameter"
    parameter: str
    candidates: tuple[str, ...] = ()


class HandleDamaged(DescriptorError):
    """
    The content of this handle on disk differs from the stored content.

    Other handles are intact.
    """

    type = "damaged"


class QuotaExceeded(DescriptorError):
    """
    Storing this would exceed a quota. Nothing was stored.

    *quota* is the setting's name, such as ``max_bytes``, *limit* its value, and *used* the amount in use.
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
    """A file was not written and is unchanged. *path* is the requested path."""

    type = "export_error"
    path: str


class ExportExists(ExportError, FileExistsError):
    """The file exists, and *exist_ok* is False."""

    type = "file_exists"


class ExportMissing(ExportError, FileNotFoundError):
    """The file is missing and *create* is False, or its directory is missing."""

    type = "file_not_found"


class PathDenied(ExportError, PermissionError):
    """
    The path leaves the root, is not a regular file, or models may not write to it.

    *root* is the directory below which files are written. ``str()`` names it, and models do not see it.
    """

    type = "path_denied"
    root: str | None = None

    def _format_details(self) -> str:
        return "" if self.root is None else f"; the root is {self.root}, and Session.open(files_root=) sets another"


class ExportDenied(ExportError, PermissionError):
    """The operating system denies the export."""

    type = "permission_denied"


class ExportDiskFull(ExportError, OSError):
    """The disk has no space for the file."""

    type = "disk_full"


class MemoryStoreError(MamaStructsError):
    """Root of the errors about memories, links and their vectors."""

    type = "memory_error"


class MemoryNotFound(MemoryStoreError, LookupError):
    """No memory has this id. *nearest* are similar existing ids."""

    type = "not_found"
    memory_id: object
    nearest: tuple[str, ...]

    def __init__(self, memory_id: object, *, nearest: tuple[str, ...] = (), hint: str | None = None) -> None:
        if hint is None and nearest:
            hint = f"did you mean {' or '.join(nearest)}?"
        shown = repr_short(memory_id, max_chars=200)
        is_name = not isinstance(memory_id, str) or shown == repr(memory_id)
        message = f"there is no memory with the id {shown}" if is_name else f"{shown} is no memory id"
        super().__init__(message, hint=hint, memory_id=memory_id, nearest=nearest)


class LinkNotFound(MemoryStoreError, LookupError):
    """No link has this id."""

    type = "not_found"
    link_id: object

    def __init__(self, link_id: object, *, hint: str | None = None) -> None:
        super().__init__(
            f"there is no link with the id {repr_short(link_id, max_chars=200)}", hint=hint, link_id=link_id
        )


class MemoryReadOnly(MemoryStoreError, PermissionError):
    """The memory or link *id* belongs to a *namespace* that the session may only read."""

    type = "memory_read_only"
    id: str
    namespace: str

    def __init__(
        self,
        id: str,  # noqa: A002 - the name of the public attribute
        *,
        namespace: str,
        what: str = "memory",
        hint: str | None = "save a memory of your own that says what is to be said of it; it can be named as evidence",
    ) -> None:
        message = f"the {what} {id!r:.200} belongs to the namespace {namespace!r:.200}, which is only read here"
        super().__init__(message, hint=hint, id=id, namespace=namespace)


class EmbedderMismatch(MemoryStoreError):
    """
    The stored vectors were made by a different embedder.

    *stored* and *given* are (name, fingerprint).
    """

    type = "embedder_mismatch"
    stored: tuple[str, str]
    given: tuple[str, str]


class EmbeddingFailed(MemoryStoreError):
    """The embedder raised an error or returned no usable vectors; nothing was saved."""

    type = "embedding_failed"


class RerankingFailed(MemoryStoreError):
    """The reranker cannot work: a package or file is missing, or a text has no score."""

    type = "reranking_failed"


class VersionConflict(MemoryStoreError, RuntimeError):
    """
    A record's version differs from the version that the write expected.

    *version* is the current version, 0 if the record does not exist.
    """

    type = "version_conflict"
    labels: tuple[str, ...]
    key: str
    version: int


class MigrationError(MemoryStoreError):
    """
    Memories of an earlier version cannot be imported, or the import cannot be undone.

    *path* is the old file, which is unchanged.
    """

    type = "migration_failed"
    path: str


class StoreError(MamaStructsError):
    """The directory or server of a session cannot be used."""

    type = "store_error"


class StoreBusy(StoreError, TimeoutError):
    """Another process or session held the lock for *waited* seconds."""

    type = "busy"
    waited: float


class StoreMismatch(StoreError):
    """
    The target of a copy contains different data in a *namespace*.

    *ids* are some ids or names of that data.
    """

    type = "store_differs"
    namespace: str
    ids: tuple[str, ...] = ()


class StoreFull(StoreError, OSError):
    """The disk is full. Stored data can still be read and deleted."""

    type = "store_full"


class StoreDamaged(StoreError):
    """A *file* of the store is damaged. *findings* has one line for each problem."""

    type = "store_damaged"
    file: str
    findings: tuple[str, ...] = ()


class StoreReadOnly(StoreError, PermissionError):
    """
    The directory or server of a session cannot be written to.

    If the database denies a role to write, *namespace* and *role* name them; otherwise they are None.
    """

    type = "read_only"
    namespace: str | None = None
    role: str | None = None


class StoreUnreachable(StoreError, ConnectionError):
    """
    The server of a session is down or did not answer in time.

    The message says if a save may be stored.
    """

    type = "store_unreachable"


class NoSession(MamaStructsError, RuntimeError):
    """A decorator without a resolver found no session, or more than one."""

    type = "no_session"


class SessionClosed(MamaStructsError, RuntimeError):
    """The session, resolver, client, stream or parser was closed before this call."""

    type = "closed"


class WrongLoop(MamaStructsError, RuntimeError):
    """The object belongs to another event loop, thread or process."""

    type = "wrong_loop"
