"""What a conversation holds: refs and descriptors, their handles, what was deleted or damaged, and how much room."""

from __future__ import annotations

import difflib
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, Self, TypeVar

import attrs

from mama_structs._provenance import UNKNOWN_ORIGIN, Origin, Provenance
from mama_structs._showing import Seen, Showing, counted
from mama_structs.descriptors.kinds import Category
from mama_structs.descriptors.parser import ref_id_in
from mama_structs.descriptors.text import TEXT, Content
from mama_structs.errors import HandleDamaged, HandleNotFound, InvalidHandle, InvalidParameter, QuotaExceeded, shown
from mama_structs.settings import DescriptorSettings

K = TypeVar("K")
V = TypeVar("V")

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")
_HINT: Final = "write fd:1, ref:name, or ref:name@1 for a version"
_NEAREST: Final = 3
_COMPARED: Final = 2_000
_REMEMBERED: Final = 64
TOOL_RESULT: Final = "tool_result"
"""How the source of what a host's tools gave begins."""
EXTRACT: Final = "extract of "
"""How the source of a part of another text begins; that one's handle follows."""


@attrs.frozen
class FdHandle:
    """A large input or result: ``fd:<number>``, from 1."""

    number: int

    def __str__(self) -> str:
        return f"fd:{self.number}"


@attrs.frozen
class RefHandle:
    """A marked part of a model's answer: ``ref:<id>`` for its newest version, or ``ref:<id>@<version>``, from 1."""

    id: str
    version: int | None = None

    def __str__(self) -> str:
        return f"ref:{self.id}" if self.version is None else f"ref:{self.id}@{self.version}"


Handle = FdHandle | RefHandle


def parse_handle(text: object) -> Handle:
    """Read a handle, or raise `InvalidHandle`."""
    if isinstance(text, FdHandle | RefHandle):
        return text
    if not isinstance(text, str):
        raise InvalidHandle(f"a handle must be text, got {type(text).__name__}", hint=_HINT)
    kind, _, name = text.partition(":")
    if kind == "fd" and _NUMBER.fullmatch(name):
        return FdHandle(int(name))
    if kind == "ref":
        said, at, version = name.partition("@")
        ref_id = ref_id_in(said)
        if ref_id is not None and (not at or _NUMBER.fullmatch(version)):
            return RefHandle(ref_id, int(version) if at else None)
    said = text if len(text) <= 80 else f"{text[:80]}…"  # noqa: PLR2004
    meant = f"fd:{text}" if _NUMBER.fullmatch(text) else f"ref:{text}" if ref_id_in(text) else None
    hint = _HINT if meant is None else f"did you mean {meant}?"
    raise InvalidHandle(f"{shown(text)} is no handle", handle=said, hint=hint)


@attrs.frozen(kw_only=True, repr=False)
class _StoredText(Showing):
    """A stored text or binary content, with its provenance."""

    category: Category
    created_at: datetime
    page_size: int
    content: Content
    origin: Origin = UNKNOWN_ORIGIN
    trust: Origin = UNKNOWN_ORIGIN

    @property
    def provenance(self) -> Provenance:
        """The author of the text, and its least trusted basis."""
        return Provenance(self.origin, self.trust)

    @property
    def text(self) -> str:
        """The text as it came."""
        return self.content.text

    @property
    def body(self) -> Content:
        """What is read, counted, searched, edited, passed on and written."""
        return self.content

    @property
    def chars(self) -> int:
        """Characters of the body."""
        return self.body.chars

    @property
    def lines(self) -> int:
        """Lines of the body."""
        return self.body.lines

    @property
    def pages(self) -> int:
        """Pages of the body."""
        return len(self.body.pages(self.page_size))

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self.content.size

    @property
    def _counts(self) -> tuple[str, ...]:
        return counted(self.chars, "character"), counted(self.lines, "line")


@attrs.frozen(kw_only=True, repr=False)
class Ref(_StoredText):
    """
    A part of a model's answer that the model marked.

    Args:
        id: As the model chose it.
        version: From 1; a repeated id makes the next.
        category: ``code``, ``data`` or ``text``, from the attributes or else from the content.
        attributes: What else the tag said, by lower-case name.
        complete: False when the answer ended before the tag was closed.
        created_at: When it was stored (UTC).
        page_size: Characters of its pages.
        content: The marked text as it came; `body` is what everything that reads, counts or writes goes by.
        origin: The least trusted author of the text, as for `Memory`; ``"outside"`` if an earlier version stored it.
        trust: The least trusted origin of the text and of the texts that it is based on.

    """

    id: str
    version: int
    attributes: Mapping[str, str] = attrs.field(factory=dict)
    complete: bool = True

    def _seen(self) -> Seen:
        state = None if self.complete else "never closed"
        return Seen(text=self.body.text, facts=(self.category, *self._counts, state), id=self.versioned)

    @property
    def body(self) -> Content:
        """
        The content without a code fence around all of it.

        The fence stays where the tag said ``fence="keep"``, or where it says that it holds Markdown.
        """
        return self.content if self.attributes.get("fence", "").lower() == "keep" else self.content.body

    @property
    def language(self) -> str | None:
        """The language that the tag (``lang`` or ``language``), or else the fence around the content, names."""
        said = self.attributes.get("lang") or self.attributes.get("language")
        return said or (None if self.body is self.content else self.content.language)

    @property
    def handle(self) -> str:
        """The handle ``ref:<id>``. It refers to this ref until a newer version of the id exists."""
        return str(RefHandle(self.id))

    @property
    def versioned(self) -> str:
        """``ref:<id>@<version>``: always this text."""
        return str(RefHandle(self.id, self.version))


@attrs.frozen(kw_only=True, repr=False)
class Descriptor(_StoredText):
    """
    A long text, or bytes such as an image, that the session keeps under a number.

    `text` and `body` of bytes raise `InvalidParameter`; they have no characters, lines and pages.

    Args:
        number: From 1 in each conversation, never used again.
        source: Where it came from, such as ``tool_result`` or ``user_input``.
        category: ``code``, ``data`` or ``text``, from the content.
        created_at: When it was stored (UTC).
        page_size: Characters of its pages.
        content: The text, or the bytes.
        mime_type: ``text/plain``, or what the bytes are.
        origin: As for `Ref`.
        trust: As for `Ref`.

    """

    number: int
    source: str
    mime_type: str = TEXT

    def _seen(self) -> Seen:
        text, counts = (self.content.text, self._counts) if self.is_text else (self._kind, ())
        return Seen(text=text, facts=(self.source, *counts), id=self.handle)

    @property
    def is_text(self) -> bool:
        """Whether it can be read."""
        return self.content.is_text

    @property
    def data(self) -> bytes:
        """Its bytes, of a text in UTF-8."""
        return self.content.data

    @property
    def body(self) -> Content:
        """The text."""
        if self.is_text:
            return self.content
        raise InvalidParameter(
            f"{self.handle} is {self._kind}, and no text",
            parameter="fd",
            handle=self.handle,
            hint="it cannot be read or searched; it can be written to a file as it is",
        )

    @property
    def text(self) -> str:
        """The text."""
        return self.body.text

    @property
    def chars(self) -> int:
        """Characters of the text."""
        return self.content.chars

    @property
    def lines(self) -> int:
        """Lines of the text."""
        return self.content.lines

    @property
    def pages(self) -> int:
        """The number of pages of the text, 0 for binary content."""
        return super().pages if self.is_text else 0

    @property
    def _kind(self) -> str:
        return f"{self.mime_type} of {self.size:,} bytes"

    @property
    def handle(self) -> str:
        """``fd:<number>``."""
        return str(FdHandle(self.number))

    @property
    def versioned(self) -> str:
        """The handle: a descriptor never changes."""
        return self.handle


@attrs.frozen
class Erasure:
    """
    Which texts are to leave no trace.

    Args:
        digests: The hashes (SHA-256) of some of them.
        is_read: Tells by its source whether a descriptor was read from what goes.
        names: Tells whether what a tool gave names what goes.

    """

    digests: frozenset[str]
    is_read: Callable[[str], bool]
    names: Callable[[str], bool]

    def takes(self, one: Entry) -> bool:
        """Tell whether an entry is to go."""
        if not one.content.is_text:
            return False
        if isinstance(one, Ref):
            return one.body.hash in self.digests
        is_of_tool = one.source.partition(" ")[0] == TOOL_RESULT
        return one.body.hash in self.digests or self.is_read(one.source) or (is_of_tool and self.names(one.text))


@attrs.frozen
class DeletedEntry:
    """What is left of something that was deleted at a time (UTC)."""

    at: datetime


@attrs.frozen
class DamagedEntry:
    """What is left of something that the disk did not give back, and why."""

    reason: str


Entry = Ref | Descriptor
Slot = Entry | DeletedEntry | DamagedEntry


class ForkableMap(ChainMap[K, V]):
    """A mapping of frozen layers that forks share, and one of its own for later writes; nothing is ever removed."""

    def fork(self) -> Self:
        """Return a mapping that holds the same, and that later writes do not cross into or out of."""
        # Each layer is more than twice the one above it: *n* entries are found in O(log n) layers, and copied as often.
        top, *below = self.maps
        if top:
            while below and len(below[0]) <= 2 * len(top):
                # Into a new dict: other forks still read the old ones.
                top = {**below.pop(0), **top}
            self.maps[:] = [{}, top, *below]
        return type(self)({}, *self.maps[1:])


@attrs.frozen
class Usage:
    """How many handles (each version of a ref for itself) and bytes (each text once) a conversation holds, and may."""

    handles: int
    max_handles: int
    bytes: int
    max_bytes: int


@attrs.define(eq=False)
class Entries:
    """The entries of one conversation; forks share what was there before."""

    _settings: DescriptorSettings
    # By ``fd:1`` and ``ref:x@1``; the newest version of each id, deleted ones counted; by hash: texts, held how often.
    _slots: ForkableMap[str, Slot] = attrs.field(factory=ForkableMap, kw_only=True)
    _newest: ForkableMap[str, int] = attrs.field(factory=ForkableMap, kw_only=True)
    _held: ForkableMap[str, tuple[Content, int]] = attrs.field(factory=ForkableMap, kw_only=True)
    # Why refs that a model marked were not stored, by id.
    _missed: dict[str, str] = attrs.field(factory=dict, kw_only=True)
    _last_fd: int = attrs.field(default=0, kw_only=True)
    _handles: int = attrs.field(default=0, kw_only=True)
    _bytes: int = attrs.field(default=0, kw_only=True)

    def fork(self) -> Self:
        """Return one that holds the same; later changes do not cross."""
        return attrs.evolve(
            self,
            slots=self._slots.fork(),
            newest=self._newest.fork(),
            held=self._held.fork(),
            missed=dict(self._missed),
        )

    @property
    def usage(self) -> Usage:
        """How much the store holds, and its limits."""
        return Usage(self._handles, self._settings.max_handles, self._bytes, self._settings.max_bytes)

    @property
    def next_fd(self) -> int:
        """The number of the next descriptor."""
        return self._last_fd + 1

    def next_version(self, ref_id: str) -> int:
        """Return the version that the next ref of this id will be."""
        return (self._newest.get(ref_id) or 0) + 1

    def shared(self, content: Content) -> Content:
        """Return the equal content that is held already, or the one given."""
        held, entries = self._held.get(content.hash) or (content, 0)
        return held if entries and held == content else content

    def check_room(self, *contents: Content) -> None:
        """Raise `QuotaExceeded` unless there is room for all of them, each as an entry."""
        new = {one.hash: one.size for one in contents if not (self._held.get(one.hash) or (one, 0))[1]}
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
        """Hold an entry, or what is left of one, under a full handle (``fd:1``, ``ref:x@1``), and use up its number."""
        for one, more in ((self._slots.get(handle), -1), (slot, 1)):
            if isinstance(one, Ref | Descriptor):
                self._count(one.content, more)
        self._slots[handle] = slot
        kind, _, name = handle.partition(":")
        if kind == "fd":
            self._last_fd = max(self._last_fd, int(name))
        else:
            ref_id, _, version = name.partition("@")
            self._newest[ref_id] = max(self._newest.get(ref_id) or 0, int(version))

    def miss(self, ref_id: str, why: str) -> None:
        """Remember why a ref that was marked is not there, to say so when it is asked for."""
        self._missed.pop(ref_id, None)
        self._missed[ref_id] = why
        if len(self._missed) > _REMEMBERED:
            del self._missed[next(iter(self._missed))]

    def _count(self, content: Content, more: int) -> None:
        """Count an entry of a content, or one less."""
        count = (self._held.get(content.hash) or (content, 0))[1]
        self._held[content.hash] = content, count + more
        self._handles += more
        if 0 in {count, count + more}:
            self._bytes += more * content.size

    def get(self, handle: str) -> Slot | None:
        """Return what is under a full handle, ``fd:1`` or ``ref:x@1``, None where nothing ever was."""
        return self._slots.get(handle)

    def holds(self, handle: object) -> bool:
        """Tell whether `find` gives something."""
        try:
            return isinstance(self._slot(parse_handle(handle)), Ref | Descriptor)
        except InvalidHandle:
            return False

    def find(self, text: object) -> Entry:
        """Return what a handle stands for, or raise `InvalidHandle`, `HandleNotFound` or `HandleDamaged`."""
        handle = parse_handle(text)
        slot = self._slot(handle)
        if isinstance(slot, Ref | Descriptor):
            return slot
        if isinstance(slot, DamagedEntry):
            raise HandleDamaged(
                f"{handle} was damaged on disk: {slot.reason}",
                handle=str(handle),
                hint="make it again; what is damaged is listed by check()",
            )
        nearest = self._nearest(handle)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "nothing is stored yet"
        if slot is None and isinstance(handle, RefHandle) and handle.id in self._missed:
            hint = f"{self._missed[handle.id]}; {hint}"
        deleted_at = slot.at if isinstance(slot, DeletedEntry) else None
        message = (
            f"{handle} was deleted on {deleted_at:%Y-%m-%d at %H:%M} UTC" if deleted_at else f"there is no {handle}"
        )
        raise HandleNotFound(message, handle=str(handle), nearest=nearest, deleted_at=deleted_at, hint=hint)

    def named_by(self, text: object) -> tuple[str, ...]:
        """Return the full handles that a handle names, all of a ref's where it has no version; or raise as `find`."""
        handle = parse_handle(text)
        known = self.versions(handle.id) if isinstance(handle, RefHandle) and handle.version is None else ()
        return known or (self.find(handle).versioned,)

    def _from_newest(self, ref_id: str) -> Iterator[str]:
        """Go through the handles of all versions of a ref that were not deleted, the last version first."""
        handles = (str(RefHandle(ref_id, number)) for number in range(self.next_version(ref_id) - 1, 0, -1))
        return (handle for handle in handles if isinstance(self._slots.get(handle), Ref | DamagedEntry))

    def versions(self, ref_id: str) -> tuple[str, ...]:
        """Return the handles of all versions of a ref that were not deleted, the first version first."""
        return tuple(self._from_newest(ref_id))[::-1]

    def newest(self, ref_id: str) -> str | None:
        """Return the full handle of a ref's newest version that was not deleted, None where there is none."""
        return next(self._from_newest(ref_id), None)

    def live(self) -> Iterator[Entry]:
        """Go through all entries, the oldest first."""
        return (slot for _, slot in self._slots.items() if isinstance(slot, Ref | Descriptor))

    def going(self, erasure: Erasure) -> tuple[Entry, ...]:
        """Return what is to be erased, and what was extracted from that, the oldest first."""
        going: dict[str, Entry] = {}
        for one in self.live():
            if erasure.takes(one) or (isinstance(one, Descriptor) and one.source.removeprefix(EXTRACT) in going):
                going[one.versioned] = one
        return tuple(going.values())

    def _slot(self, handle: Handle) -> Slot | None:
        if isinstance(handle, FdHandle) or handle.version is not None:
            return self._slots.get(str(handle))
        # Where every version was deleted, it is the last one of which that is said.
        return self._slots.get(self.newest(handle.id) or str(RefHandle(handle.id, self.next_version(handle.id) - 1)))

    def _nearest(self, handle: Handle) -> tuple[str, ...]:
        names = list(dict.fromkeys(entry.handle for entry in islice(reversed(list(self.live())), _COMPARED)))
        if isinstance(handle, RefHandle) and handle.version is not None and (known := self.versions(handle.id)):
            return known[-_NEAREST:]
        unversioned = str(handle if isinstance(handle, FdHandle) else RefHandle(handle.id))
        close = difflib.get_close_matches(unversioned, names, n=_NEAREST, cutoff=0.5)
        same_kind = [name for name in names if name.startswith(unversioned.partition(":")[0])]
        return tuple(close or same_kind[:_NEAREST] or names[:_NEAREST])
