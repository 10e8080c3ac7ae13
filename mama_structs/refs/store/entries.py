"""Entries of a conversation (refs and descriptors), their handles, and quotas."""

from __future__ import annotations

import difflib
import re
from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, Self, TypeAlias, TypeVar

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs._internal.reprs import ReprContent, ReprMixin, format_count
from mama_structs.errors import (
    HandleDamaged,
    HandleNotFound,
    InvalidHandle,
    InvalidParameter,
    QuotaExceeded,
    repr_short,
)
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance
from mama_structs.refs.markup.content_types import Category
from mama_structs.refs.markup.parser import ID_RULE, parse_ref_id
from mama_structs.refs.store.text import TEXT_MIME_TYPE, Content
from mama_structs.settings import DescriptorSettings

K = TypeVar("K")
V = TypeVar("V")

_NUMBER_PATTERN: Final = re.compile(r"[1-9][0-9]{0,17}")
_HANDLE_HINT: Final = "write fd:1, ref:name, or ref:name@1 for a version"
_MAX_NEAREST: Final = 3
_MAX_COMPARED_HANDLES: Final = 2_000
_MAX_MISSING_REASONS: Final = 64
TOOL_RESULT_SOURCE: Final = "tool_result"
"""Prefix of the source of results of a host's tools."""
EXTRACT_SOURCE_PREFIX: Final = "extract of "
"""Prefix of the source of an excerpt of another text; the handle of that text follows."""


@attrs.frozen
class FdHandle:
    """Handle of a large input or result: ``fd:<number>``, from 1."""

    number: int

    def __str__(self) -> str:
        return f"fd:{self.number}"


@attrs.frozen
class RefHandle:
    """
    Handle of a marked part of a model's answer.

    ``ref:<id>`` is its newest version, ``ref:<id>@<version>`` a fixed one, from 1.
    """

    id: str
    version: int | None = None

    def __str__(self) -> str:
        return f"ref:{self.id}" if self.version is None else f"ref:{self.id}@{self.version}"


Handle = FdHandle | RefHandle


def parse_handle(text: object) -> Handle:
    """Parse a handle, or raise `InvalidHandle`."""
    if isinstance(text, FdHandle | RefHandle):
        return text
    if not isinstance(text, str):
        raise InvalidHandle(f"a handle must be text, got {type(text).__name__}", hint=_HANDLE_HINT)
    kind, _, name = text.partition(":")
    if kind == "fd" and _NUMBER_PATTERN.fullmatch(name):
        return FdHandle(int(name))
    if kind == "ref":
        said, at, version = name.partition("@")
        ref_id = parse_ref_id(said)
        if ref_id is not None and (not at or _NUMBER_PATTERN.fullmatch(version)):
            return RefHandle(ref_id, int(version) if at else None)
    said = text if len(text) <= 80 else f"{text[:80]}…"  # noqa: PLR2004
    meant = f"fd:{text}" if _NUMBER_PATTERN.fullmatch(text) else f"ref:{text}" if parse_ref_id(text) else None
    hint = _HANDLE_HINT if meant is None else f"did you mean {meant}?"
    raise InvalidHandle(f"{repr_short(text)} is no handle", handle=said, hint=hint)


@attrs.frozen(kw_only=True, repr=False)
class _StoredText(ReprMixin):
    """A stored text or binary content, with its provenance."""

    category: Category
    created_at: datetime
    page_size: int
    content: Content
    origin: Origin = UNKNOWN_ORIGIN
    trust: Origin = UNKNOWN_ORIGIN

    @property
    def provenance(self) -> Provenance:
        """The author of the text, and the least trusted origin among its sources."""
        return Provenance(self.origin, self.trust)

    @property
    def text(self) -> str:
        """The original text."""
        return self.content.text

    @property
    def body(self) -> Content:
        """The content that is read, counted, searched, edited, passed to tools and exported."""
        return self.content

    @property
    def chars(self) -> int:
        """The number of characters of the body."""
        return self.body.chars

    @property
    def lines(self) -> int:
        """The number of lines of the body."""
        return self.body.lines

    @property
    def pages(self) -> int:
        """The number of pages of the body."""
        return len(self.body.pages(self.page_size))

    @property
    def size(self) -> int:
        """The size of the content in bytes."""
        return self.content.size

    @property
    def _counts(self) -> tuple[str, ...]:
        return format_count(self.chars, "character"), format_count(self.lines, "line")


@attrs.frozen(kw_only=True, repr=False)
class Ref(_StoredText):
    """
    A part of a model's answer that the model marked.

    Args:
        id: The id chosen by the model.
        version: From 1; reusing an id creates the next version.
        category: ``code``, ``data`` or ``text``, from the attributes or else from the content.
        attributes: The other attributes of the tag, by lower-case name.
        is_complete: False if the answer ended before the tag was closed.
        created_at: When it was stored (UTC).
        page_size: Characters per page.
        content: The original marked text. Reading, counting and writing use `body` instead.
        origin: The least trusted author of the text, as for `Memory`; ``"outside"`` if an earlier version stored it.
        trust: The least trusted origin of the text and of the texts that it is based on.

    """

    _json_properties = ("handle", "versioned_handle")

    id: str
    version: int
    attributes: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    is_complete: bool = True

    def _repr_content(self) -> ReprContent:
        state = None if self.is_complete else "never closed"
        return ReprContent(text=self.body.text, facts=(self.category, *self._counts, state), id=self.versioned_handle)

    @property
    def body(self) -> Content:
        """
        The content, without the code fence if a fence encloses all of it.

        The fence is part of the body if the tag has ``fence="keep"``, or if the language of the fence is Markdown.
        """
        return self.content if self.attributes.get("fence", "").lower() == "keep" else self.content.body

    @property
    def language(self) -> str | None:
        """The language in the tag (``lang`` or ``language``), or else in the enclosing fence."""
        said = self.attributes.get("lang") or self.attributes.get("language")
        return said or (None if self.body is self.content else self.content.language)

    @property
    def handle(self) -> str:
        """``ref:<id>``: the newest version of this id."""
        return str(RefHandle(self.id))

    @property
    def versioned_handle(self) -> str:
        """``ref:<id>@<version>``: this version, even if a newer one exists."""
        return str(RefHandle(self.id, self.version))


@attrs.frozen(kw_only=True, repr=False)
class Descriptor(_StoredText):
    """
    A long text, or binary content such as an image, that the session stores under a number.

    For binary content, `text` and `body` raise `InvalidParameter`, and there are no characters, lines or pages.

    Args:
        number: From 1 in each conversation, never reused.
        source: The source of the content, such as ``tool_result`` or ``user_input``.
        category: ``code``, ``data`` or ``text``, from the content.
        created_at: When it was stored (UTC).
        page_size: Characters per page.
        content: The text or bytes.
        mime_type: ``text/plain``, or the type of the binary content.
        origin: As for `Ref`.
        trust: As for `Ref`.

    """

    _json_properties = ("handle",)

    number: int
    source: str
    mime_type: str = TEXT_MIME_TYPE

    def _repr_content(self) -> ReprContent:
        text, counts = (self.content.text, self._counts) if self.is_text else (self._type_and_size, ())
        return ReprContent(text=text, facts=(self.source, *counts), id=self.handle)

    @property
    def is_text(self) -> bool:
        """True for text, False for binary content."""
        return self.content.is_text

    @property
    def data(self) -> bytes:
        """The content as bytes; text is encoded as UTF-8."""
        return self.content.data

    @property
    def body(self) -> Content:
        """The text. Raises `InvalidParameter` for binary content."""
        if self.is_text:
            return self.content
        raise InvalidParameter(
            f"{self.handle} is {self._type_and_size}, and no text",
            parameter="fd",
            handle=self.handle,
            hint="it cannot be read or searched; it can be written to a file as it is",
        )

    @property
    def text(self) -> str:
        """The text. Raises `InvalidParameter` for binary content."""
        return self.body.text

    @property
    def chars(self) -> int:
        """The number of characters of the text."""
        return self.content.chars

    @property
    def lines(self) -> int:
        """The number of lines of the text."""
        return self.content.lines

    @property
    def pages(self) -> int:
        """The number of pages of the text; 0 for binary content."""
        return super().pages if self.is_text else 0

    @property
    def _type_and_size(self) -> str:
        return f"{self.mime_type} of {self.size:,} bytes"

    @property
    def handle(self) -> str:
        """``fd:<number>``."""
        return str(FdHandle(self.number))

    @property
    def versioned_handle(self) -> str:
        """Same as `handle`, because a descriptor has no versions."""
        return self.handle


@attrs.frozen
class EntryErasure:
    """
    Selection of the texts to erase without a trace.

    Args:
        digests: SHA-256 hashes of texts to erase.
        is_read: Returns True for the source of a descriptor that was read from an erased text.
        mentions_erased: Returns True for a tool result that names an erased item.
        find_missing_ids: Returns those ids whose memories do not exist, so that recall logs must not name them.

    """

    digests: frozenset[str]
    is_read: Callable[[str], bool]
    mentions_erased: Callable[[str], bool]
    find_missing_ids: Callable[[Collection[str]], Awaitable[frozenset[str]]]

    def includes(self, one: Entry) -> bool:
        """Return True if the selection includes this entry, so that it must be erased."""
        if not one.content.is_text:
            return False
        if isinstance(one, Ref):
            return one.body.hash in self.digests
        is_of_tool = one.source.partition(" ")[0] == TOOL_RESULT_SOURCE
        return (
            one.body.hash in self.digests or self.is_read(one.source) or (is_of_tool and self.mentions_erased(one.text))
        )


@attrs.frozen
class DeletedEntry:
    """Tombstone of an entry that was deleted at a time (UTC)."""

    at: datetime


@attrs.frozen
class DamagedEntry:
    """Placeholder for an entry that could not be read from disk, with the reason."""

    reason: str


Entry = Ref | Descriptor
HandleLike: TypeAlias = str | Ref | Descriptor
"""A handle, or the entry itself. A `Ref` means its own version, and not the newest one."""
Slot = Entry | DeletedEntry | DamagedEntry


class ForkableMap(ChainMap[K, V]):
    """
    Mapping with frozen layers, which forks share, and one private layer for writes.

    Items are never removed.
    """

    def fork(self) -> Self:
        """Return an independent mapping with the same items."""
        # Merge layers until each one is more than twice as large as the layer above it.
        # With these sizes, a lookup visits O(log n) layers, and each item is copied O(log n) times.
        top, *below = self.maps
        if top:
            while below and len(below[0]) <= 2 * len(top):
                # Create a new dict, because other forks still read the old ones.
                top = {**below.pop(0), **top}
            self.maps[:] = [{}, top, *below]
        return type(self)({}, *self.maps[1:])


@attrs.frozen
class Usage(JsonMixin):
    """
    Handles and bytes that a conversation uses, and their limits.

    Each version of a ref counts as a handle; each distinct text counts once.
    """

    handles: int
    max_handles: int
    bytes: int
    max_bytes: int


@attrs.define(eq=False)
class Entries:
    """The entries of one conversation. A fork shares the entries that existed when it was made."""

    _settings: DescriptorSettings
    # Entries, tombstones and damaged entries, by full handle (``fd:1``, ``ref:x@1``).
    _slots: ForkableMap[str, Slot] = attrs.field(factory=ForkableMap, kw_only=True)
    # Highest version of each ref id, even if that version was deleted.
    _newest_versions: ForkableMap[str, int] = attrs.field(factory=ForkableMap, kw_only=True)
    # Contents by hash, each with the number of entries that contain it.
    _contents: ForkableMap[str, tuple[Content, int]] = attrs.field(factory=ForkableMap, kw_only=True)
    # Reasons why marked refs were not stored, by ref id.
    _missing_reasons: dict[str, str] = attrs.field(factory=dict, kw_only=True)
    _last_fd: int = attrs.field(default=0, kw_only=True)
    _handles: int = attrs.field(default=0, kw_only=True)
    _bytes: int = attrs.field(default=0, kw_only=True)

    def fork(self) -> Self:
        """Return an independent copy."""
        return attrs.evolve(
            self,
            slots=self._slots.fork(),
            newest_versions=self._newest_versions.fork(),
            contents=self._contents.fork(),
            missing_reasons=dict(self._missing_reasons),
        )

    @property
    def usage(self) -> Usage:
        """The used handles and bytes, and their limits."""
        return Usage(self._handles, self._settings.max_handles, self._bytes, self._settings.max_bytes)

    @property
    def next_fd(self) -> int:
        """The number of the next descriptor."""
        return self._last_fd + 1

    def next_version(self, ref_id: str) -> int:
        """Return the version of the next ref with this id."""
        return (self._newest_versions.get(ref_id) or 0) + 1

    def deduplicate(self, content: Content) -> Content:
        """Return a stored content that equals *content*, to save memory, or else *content* itself."""
        held, entries = self._contents.get(content.hash) or (content, 0)
        return held if entries and held == content else content

    def check_room(self, *contents: Content) -> None:
        """Raise `QuotaExceeded` if adding one entry for each of the contents would exceed a limit."""
        new = {one.hash: one.size for one in contents if not (self._contents.get(one.hash) or (one, 0))[1]}
        usage = self.usage
        for unit, used, limit, wanted in (
            ("handle", usage.handles, usage.max_handles, len(contents)),
            ("byte", usage.bytes, usage.max_bytes, sum(new.values())),
        ):
            if used + wanted > limit:
                raise QuotaExceeded(
                    f"storing {wanted:,} more {unit}{'' if wanted == 1 else 's'} would pass the limit of {limit:,}"
                    f" ({used:,} in use)",
                    quota=f"max_{unit}s",
                    used=used,
                    limit=limit,
                    hint=f"the host can delete what is no longer needed, or raise settings.descriptors.max_{unit}s",
                )

    def put(self, handle: str, slot: Slot) -> None:
        """
        Store an entry, a tombstone or a damaged entry under a full handle (``fd:1``, ``ref:x@1``).

        The number in the handle is never reused.
        """
        for one, more in ((self._slots.get(handle), -1), (slot, 1)):
            if isinstance(one, Ref | Descriptor):
                self._count(one.content, more)
        self._slots[handle] = slot
        kind, _, name = handle.partition(":")
        if kind == "fd":
            self._last_fd = max(self._last_fd, int(name))
        else:
            ref_id, _, version = name.partition("@")
            self._newest_versions[ref_id] = max(self._newest_versions.get(ref_id) or 0, int(version))

    def record_missing(self, ref_id: str, why: str) -> None:
        """Record why a marked ref was not stored, so that a failed lookup can report the reason."""
        self._missing_reasons.pop(ref_id, None)
        self._missing_reasons[ref_id] = why
        if len(self._missing_reasons) > _MAX_MISSING_REASONS:
            del self._missing_reasons[next(iter(self._missing_reasons))]

    def _count(self, content: Content, more: int) -> None:
        """Add *more* (1 or -1) to the number of entries that have this content."""
        count = (self._contents.get(content.hash) or (content, 0))[1]
        self._contents[content.hash] = content, count + more
        self._handles += more
        if 0 in {count, count + more}:
            self._bytes += more * content.size

    def get(self, handle: str) -> Slot | None:
        """Return the entry, tombstone or damaged entry of a full handle (``fd:1``), or None if it was never used."""
        return self._slots.get(handle)

    def contains(self, handle: object) -> bool:
        """Return True if `find` would return an entry for this handle."""
        try:
            return isinstance(self._find_slot(parse_handle(handle)), Ref | Descriptor)
        except InvalidHandle:
            return False

    def find(self, text: object) -> Entry:
        """
        Return the entry of a handle.

        Raises:
            InvalidHandle: The text is not a handle.
            HandleNotFound: The entry never existed or was deleted.
            HandleDamaged: The entry could not be read from disk.

        """
        handle = parse_handle(text)
        slot = self._find_slot(handle)
        if isinstance(slot, Ref | Descriptor):
            return slot
        if isinstance(slot, DamagedEntry):
            raise HandleDamaged(
                f"{handle} was damaged on disk: {slot.reason}",
                handle=str(handle),
                hint="make it again; what is damaged is listed by check()",
            )
        nearest = self._find_nearest(handle)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "nothing is stored yet"
        if slot is None and isinstance(handle, RefHandle) and handle.id in self._missing_reasons:
            hint = f"{self._missing_reasons[handle.id]}; {hint}"
        deleted_at = slot.at if isinstance(slot, DeletedEntry) else None
        message = (
            f"{handle} was deleted on {deleted_at:%Y-%m-%d at %H:%M} UTC" if deleted_at else f"there is no {handle}"
        )
        raise HandleNotFound(message, handle=str(handle), nearest=nearest, deleted_at=deleted_at, hint=hint)

    def expand_handle(self, text: object) -> tuple[str, ...]:
        """
        Resolve a handle to full handles.

        A ref handle without a version gives the handles of all versions. Raises the errors of `find`.
        """
        handle = parse_handle(text)
        known = self.versions(handle.id) if isinstance(handle, RefHandle) and handle.version is None else ()
        return known or (self.find(handle).versioned_handle,)

    def _iter_newest_first(self, ref_id: str) -> Iterator[str]:
        """Yield the handles of all versions of a ref that were not deleted, newest first."""
        handles = (str(RefHandle(ref_id, number)) for number in range(self.next_version(ref_id) - 1, 0, -1))
        return (handle for handle in handles if isinstance(self._slots.get(handle), Ref | DamagedEntry))

    def versions(self, ref_id: str) -> tuple[str, ...]:
        """Return the handles of all versions of a ref that were not deleted, oldest first."""
        return tuple(self._iter_newest_first(ref_id))[::-1]

    def newest_version(self, ref_id: str) -> str | None:
        """Return the full handle of a ref's newest version that was not deleted, or None."""
        return next(self._iter_newest_first(ref_id), None)

    def newest_ref(self, ref_id: str) -> Ref | None:
        """Return the newest readable version of a ref, or None."""
        slot = self.get(self.newest_version(ref_id) or "")
        return slot if isinstance(slot, Ref) else None

    def iter_entries(self) -> Iterator[Entry]:
        """Yield all entries, oldest first."""
        return (slot for _, slot in self._slots.items() if isinstance(slot, Ref | Descriptor))

    def iter_slots(self) -> Iterator[tuple[str, Slot]]:
        """Yield all full handles, also of deleted and damaged entries, oldest first."""
        yield from self._slots.items()

    def find_erased(self, erasure: EntryErasure) -> tuple[Entry, ...]:
        """Return the entries to erase and their excerpts, oldest first."""
        going: dict[str, Entry] = {}
        for one in self.iter_entries():
            if erasure.includes(one) or (
                isinstance(one, Descriptor) and one.source.removeprefix(EXTRACT_SOURCE_PREFIX) in going
            ):
                going[one.versioned_handle] = one
        return tuple(going.values())

    def _find_slot(self, handle: Handle) -> Slot | None:
        if isinstance(handle, FdHandle) or handle.version is not None:
            return self._slots.get(str(handle))
        # If all versions were deleted, return the tombstone of the last one for the error message.
        return self._slots.get(
            self.newest_version(handle.id) or str(RefHandle(handle.id, self.next_version(handle.id) - 1))
        )

    def _find_nearest(self, handle: Handle) -> tuple[str, ...]:
        names = list(
            dict.fromkeys(entry.handle for entry in islice(reversed(list(self.iter_entries())), _MAX_COMPARED_HANDLES))
        )
        if isinstance(handle, RefHandle) and handle.version is not None and (known := self.versions(handle.id)):
            return known[-_MAX_NEAREST:]
        unversioned = str(handle if isinstance(handle, FdHandle) else RefHandle(handle.id))
        close = difflib.get_close_matches(unversioned, names, n=_MAX_NEAREST, cutoff=0.5)
        same_kind = [name for name in names if name.startswith(unversioned.partition(":")[0])]
        return tuple(close or same_kind[:_MAX_NEAREST] or names[:_MAX_NEAREST])


def with_kind(handle: Any) -> Any:
    """
    Return the handle of a `HandleLike`.

    Adds the prefix "ref:" to a ref id without one. The handle of a ref names its version. Values of other types are
    returned unchanged.
    """
    if isinstance(handle, Ref | Descriptor):
        return handle.versioned_handle
    return f"ref:{handle}" if isinstance(handle, str) and ":" not in handle else handle


def as_ref(entry: Entry, ref_id: HandleLike) -> Ref:
    """Return the entry if it is a ref, or raise `InvalidHandle`."""
    if not isinstance(entry, Ref):
        handle = with_kind(ref_id)
        raise InvalidHandle(f"{handle} is no ref", handle=handle, hint="only refs have versions: ref:<id>")
    return entry


def id_in(text: object) -> str:
    """Return the id of a ref, or raise `InvalidHandle`."""
    if isinstance(text, Ref):
        return text.id
    name = parse_ref_id(text.removeprefix("ref:")) if isinstance(text, str) else None
    if name is None:
        raise InvalidHandle(f"{repr_short(text)} is no id of a ref", handle=f"{text!s:.80}", hint=f"an id is {ID_RULE}")
    return name
