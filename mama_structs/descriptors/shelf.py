"""Which handles there are, what each holds, and how much room is left."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Self

import attrs

from mama_structs.descriptors.content import Content
from mama_structs.descriptors.entries import Damaged, Deleted, Descriptor, Entry, Ref, Slot
from mama_structs.descriptors.handles import FdHandle, Handle, RefHandle
from mama_structs.descriptors.layers import Layers
from mama_structs.errors import HandleDamaged, HandleNotFound, QuotaExceeded
from mama_structs.settings import DescriptorSettings

_NEAREST = 3
_COMPARED = 2_000


@attrs.frozen
class _Held:
    """A content and how many entries share it."""

    content: Content
    entries: int


@attrs.frozen
class Usage:
    """
    How much a conversation holds.

    Args:
        handles: Descriptors, and refs with each version counted.
        max_handles: How many it may hold.
        bytes: Bytes of content, each text counted once.
        max_bytes: How many it may hold.

    """

    handles: int
    max_handles: int
    bytes: int
    max_bytes: int


@attrs.define(eq=False)
class Shelf:
    """
    The entries of one conversation; forks share what was there before.

    Args:
        settings: The quotas.

    """

    _settings: DescriptorSettings
    # By ``fd:1`` and ``ref:x@1``; the newest version of each id, deleted ones counted; the texts by hash.
    _slots: Layers[str, Slot] = attrs.field(factory=Layers, kw_only=True)
    _newest: Layers[str, int] = attrs.field(factory=Layers, kw_only=True)
    _held: Layers[str, _Held] = attrs.field(factory=Layers, kw_only=True)
    _last_fd: int = attrs.field(default=0, kw_only=True)
    _handles: int = attrs.field(default=0, kw_only=True)
    _bytes: int = attrs.field(default=0, kw_only=True)

    def fork(self) -> Self:
        """Return a shelf that holds the same; later changes do not cross."""
        return attrs.evolve(self, slots=self._slots.fork(), newest=self._newest.fork(), held=self._held.fork())

    @property
    def usage(self) -> Usage:
        """How much is held, and how much may be."""
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
        held = self._held.get(content.hash)
        return held.content if held is not None and held.entries else content

    def _holds(self, digest: str) -> bool:
        held = self._held.get(digest)
        return held is not None and held.entries > 0

    def check_room(self, *contents: Content) -> None:
        """
        Refuse what would pass a quota.

        Args:
            *contents: What would be put, each as an entry.

        Raises:
            QuotaExceeded: There is no room for all of them.

        """
        if self._handles + len(contents) > self._settings.max_handles:
            raise _exceeded("max_handles", "handle", self._handles, self._settings.max_handles, wanted=len(contents))
        new = {content.hash: content.size for content in contents if not self._holds(content.hash)}
        more = sum(new.values())
        if self._bytes + more > self._settings.max_bytes:
            raise _exceeded("max_bytes", "byte", self._bytes, self._settings.max_bytes, wanted=more)

    def put(self, entry: Entry) -> None:
        """Hold an entry; quotas are checked before."""
        self._number(entry.versioned)
        self._slots[entry.versioned] = entry
        held = self._held.get(entry.content.hash)
        count = held.entries if held is not None else 0
        self._held[entry.content.hash] = _Held(entry.content, count + 1)
        self._handles += 1
        self._bytes += 0 if count else entry.content.size

    def put_damaged(self, handle: str, reason: str) -> None:
        """Remember that there is, or was, an entry which the disk did not give back."""
        self._drop(handle)
        self._slots[handle] = Damaged(reason)

    def delete(self, handle: str, at: datetime) -> None:
        """Leave a tombstone under a full handle, ``fd:1`` or ``ref:x@1``."""
        self._drop(handle)
        self._slots[handle] = Deleted(at)

    def _drop(self, handle: str) -> None:
        """Give back the room of what has this handle, and let no later entry take its number again."""
        self._number(handle)
        slot = self._slots.get(handle)
        if isinstance(slot, Ref | Descriptor):
            held = self._held.get(slot.content.hash)
            count = held.entries if held is not None else 1
            self._held[slot.content.hash] = _Held(slot.content, count - 1)
            self._handles -= 1
            self._bytes -= slot.content.size if count == 1 else 0

    def get(self, handle: str) -> Slot | None:
        """Return what is under a full handle, ``fd:1`` or ``ref:x@1``, None where nothing ever was."""
        return self._slots.get(handle)

    def holds(self, handle: Handle) -> bool:
        """Tell whether `find` gives something."""
        return isinstance(self._slot(handle), Ref | Descriptor)

    def find(self, handle: Handle) -> Entry:
        """
        Return what a handle stands for.

        Raises:
            HandleNotFound: Nothing, or what was deleted.
            HandleDamaged: Something that the disk did not give back.

        """
        slot = self._slot(handle)
        if isinstance(slot, Ref | Descriptor):
            return slot
        if isinstance(slot, Damaged):
            raise HandleDamaged(
                f"{handle} was damaged on disk: {slot.reason}",
                handle=str(handle),
                hint="make it again; what is damaged is listed by check()",
            )
        nearest = self._nearest(handle)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "nothing is stored yet"
        if isinstance(slot, Deleted):
            raise HandleNotFound(
                f"{handle} was deleted on {slot.at:%Y-%m-%d at %H:%M} UTC",
                handle=str(handle),
                nearest=nearest,
                deleted_at=slot.at,
                hint=hint,
            )
        raise HandleNotFound(f"there is no {handle}", handle=str(handle), nearest=nearest, hint=hint)

    def versions(self, ref_id: str) -> tuple[str, ...]:
        """Return the handles of all versions of a ref that were not deleted, the first version first."""
        handles = (str(RefHandle(ref_id, number)) for number in range(1, self.next_version(ref_id)))
        return tuple(handle for handle in handles if isinstance(self._slots.get(handle), Ref | Damaged))

    def newest(self, ref_id: str) -> str | None:
        """Return the full handle of a ref's newest version that was not deleted, None where there is none."""
        for number in range(self.next_version(ref_id) - 1, 0, -1):
            handle = str(RefHandle(ref_id, number))
            if isinstance(self._slots.get(handle), Ref | Damaged):
                return handle
        return None

    def live(self) -> Iterator[Entry]:
        """Go through all entries, the oldest first."""
        return (slot for _, slot in self._slots.items() if isinstance(slot, Ref | Descriptor))

    def damaged(self) -> Iterator[tuple[str, str]]:
        """Go through the handles that the disk did not give back, each with what was found."""
        return ((handle, slot.reason) for handle, slot in self._slots.items() if isinstance(slot, Damaged))

    def _slot(self, handle: Handle) -> Slot | None:
        if isinstance(handle, FdHandle) or handle.version is not None:
            return self._slots.get(str(handle))
        slot: Slot | None = None
        for number in range(self.next_version(handle.id) - 1, 0, -1):
            found = self._slots.get(str(RefHandle(handle.id, number)))
            if isinstance(found, Ref | Damaged):
                return found
            slot = slot or found
        return slot

    def _number(self, handle: str) -> None:
        """Let no later entry take this number again."""
        kind, _, name = handle.partition(":")
        if kind == "fd":
            self._last_fd = max(self._last_fd, int(name))
        else:
            ref_id, _, version = name.partition("@")
            self._newest[ref_id] = max(self._newest.get(ref_id) or 0, int(version))

    def _nearest(self, handle: Handle) -> tuple[str, ...]:
        names = list(dict.fromkeys(entry.handle for entry in islice(reversed(list(self.live())), _COMPARED)))
        if isinstance(handle, RefHandle) and handle.version is not None and (known := self.versions(handle.id)):
            return known[-_NEAREST:]
        unversioned = str(handle if isinstance(handle, FdHandle) else RefHandle(handle.id))
        close = difflib.get_close_matches(unversioned, names, n=_NEAREST, cutoff=0.5)
        same_kind = [name for name in names if name.startswith(unversioned.partition(":")[0])]
        return tuple(close or same_kind[:_NEAREST] or names[:_NEAREST])


def _exceeded(quota: str, unit: str, used: int, limit: int, *, wanted: int) -> QuotaExceeded:
    more = f"{wanted:,} more {unit}{'' if wanted == 1 else 's'}"
    return QuotaExceeded(
        f"storing {more} would pass the limit of {limit:,} ({used:,} in use)",
        quota=quota,
        used=used,
        limit=limit,
        hint=f"the host can delete what is no longer needed, or raise settings.descriptors.{quota}",
    )
