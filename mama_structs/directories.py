"""
Where conversations and memories are kept: in a session directory that all sessions of the process share, or nowhere.

A directory holds ``journal/``, the store; ``locks``, by which a conversation is open in one process only;
and ``views/``, what was derived from the memories in the store, which can be deleted at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
import weakref
from pathlib import Path
from typing import Final, Protocol

import attrs

from mama_structs._async import in_own_thread
from mama_structs.descriptors.entries import Entries
from mama_structs.descriptors.log import ConversationLog, check_conversation, load, missing_texts, reclaim, start_key
from mama_structs.descriptors.store import RefStore, root_of
from mama_structs.errors import InvalidArgument, StoreBusy, StoreError, StoreReadOnly
from mama_structs.memory.embedded.engine import EmbeddedEngines
from mama_structs.memory.engine import Engines
from mama_structs.settings import DescriptorSettings
from mama_structs.storage.locks import DirectoryLocks
from mama_structs.storage.opening import Finding
from mama_structs.storage.store import Storage

_log = logging.getLogger("mama_structs")


@attrs.define(eq=False)
class Place:
    """
    An open conversation.

    Args:
        conversation: Its name.
        refs: What it holds.
        journal: Where that is kept, None where it is not.
        loops: The event loops of the sessions that have it open, one for each.

    """

    conversation: str
    refs: RefStore
    journal: ConversationLog | None = None
    loops: list[asyncio.AbstractEventLoop] = attrs.field(factory=list)

    @property
    def is_forsaken(self) -> bool:
        """Whether nobody can close it any more: its sessions were forgotten with their loops, or could not finish."""
        return all(loop.is_closed() for loop in self.loops)


def embedded_engines(storage: Storage, *, views: Path | None) -> Engines:
    """Return the engines that keep memories in a store: the one place that decides which these are."""
    return EmbeddedEngines(storage, snapshots=views)


class Keeper(Protocol):
    """Keeps conversations for sessions."""

    async def enter(self, conversation: str | None, settings: DescriptorSettings) -> Place:
        """Take up a conversation where it was left, or begin one."""

    def fork(self, place: Place, conversation: str | None, loop: asyncio.AbstractEventLoop) -> Place:
        """Return a conversation that begins with all that another one holds."""

    async def leave(self, place: Place) -> None:
        """End one session's use of a conversation."""

    @property
    def engines(self) -> Engines:
        """The namespaces of memories."""

    async def flush(self) -> None:
        """Wait until everything stored so far is on disk."""

    async def check(self) -> list[Finding]:
        """Look for damage."""

    async def close(self) -> None:
        """End a session's use of the keeper."""


class Nowhere:
    """
    Keeps conversations in memory, for as long as their sessions are open, and memories in a temporary store.

    That store's directory is made when something is saved first.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._storage = Storage.temporary()
        self._engines = embedded_engines(self._storage, views=None)

    @property
    def engines(self) -> Engines:
        """The namespaces of memories."""
        return self._engines

    async def enter(self, conversation: str | None, settings: DescriptorSettings) -> Place:
        """Begin a conversation."""
        name = _fresh() if conversation is None else conversation
        self._names.add(name)
        return Place(name, RefStore(settings=settings), loops=[asyncio.get_running_loop()])

    def fork(self, place: Place, conversation: str | None, loop: asyncio.AbstractEventLoop) -> Place:
        """
        Return a conversation that begins with all that another one holds.

        Raises:
            InvalidArgument: There is one of this name.

        """
        name = _fresh() if conversation is None else check_conversation(conversation)
        if name in self._names:
            raise _known(name)
        self._names.add(name)
        return Place(name, place.refs.fork(), loops=[loop])

    async def leave(self, place: Place) -> None:
        """Take nothing more for a conversation."""
        self._names.discard(place.conversation)
        place.refs.close()

    async def flush(self) -> None:
        """Do nothing: there is no disk."""

    async def check(self) -> list[Finding]:
        """
        Look for damage in the temporary store.

        Raises:
            StoreError: It cannot be read.

        """
        return await self._storage.check()

    async def close(self) -> None:
        """Remove the temporary store."""
        await self._storage.close()


class Directory:
    """
    Keeps conversations in a directory; made by `opened`, and used by all sessions of the process, whatever their loops.

    Args:
        path: The real path.
        identity: Device and inode, which another directory of the same path would not have.

    """

    def __init__(self, path: Path, identity: tuple[int, int]) -> None:
        self.path: Path = path
        self.identity: tuple[int, int] = identity
        self.users: int = 0
        self._opening = threading.Lock()
        self._storage: Storage | None = None
        self._locks: DirectoryLocks | None = None
        self._engines: Engines | None = None
        self._places: dict[str, Place] = {}
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    @classmethod
    async def opened(cls, path: Path) -> Directory:
        """
        Open a directory, or share it; undone by `close`.

        Raises:
            StoreError: It cannot be used; its children say why.

        """
        joined: list[Directory] = []
        try:
            await in_own_thread(lambda: joined.append(_directories.join(path)))
        except asyncio.CancelledError:
            if joined:
                await in_own_thread(joined[0].close_now)
            raise
        return joined[0]

    @property
    def storage(self) -> Storage:
        """The store."""
        assert self._storage is not None, "the directory is open"  # noqa: S101 - `opened` returns no other
        return self._storage

    @property
    def engines(self) -> Engines:
        """The namespaces of memories."""
        assert self._engines is not None, "the directory is open"  # noqa: S101 - as above
        return self._engines

    @property
    def locks(self) -> DirectoryLocks:
        """The locks on conversations."""
        assert self._locks is not None, "the directory is open"  # noqa: S101 - as above
        return self._locks

    def open_once(self) -> None:
        """Open store and locks, or wait until another thread has; blocks."""
        with self._opening:
            if self._storage is None:
                storage = Storage.open(self.path / "journal")
                try:
                    self._locks = DirectoryLocks(self.path)
                except BaseException:
                    storage.close_now()
                    raise
                self._engines = embedded_engines(storage, views=self.path / "views")
                self._storage = storage

    async def enter(self, conversation: str | None, settings: DescriptorSettings) -> Place:
        """
        Take up a conversation where it was left, or begin it.

        Args:
            conversation: Its name, None for a fresh one.
            settings: For its refs.

        Raises:
            InvalidArgument: It is open in this process with other settings.
            StoreBusy: It is open in another process or event loop.
            StoreError: It cannot be read.

        """
        name = _fresh() if conversation is None else conversation
        loop = asyncio.get_running_loop()
        # One session of a loop at a time, so that two at once share what one of them opens.
        async with self._gates.setdefault(loop, asyncio.Lock()):
            place = self._places.get(name)
            if place is not None and place.is_forsaken:
                place.refs.close()
                await self._settle(place)
                place = None
            if place is not None:
                _check_shareable(place, settings, loop)
                place.loops.append(loop)
                return place
            _claim(self.locks, name)
            try:
                if conversation is None:
                    entries, journal = Entries(settings), ConversationLog(self.storage, name)
                else:
                    entries, journal = await load(self.storage, name, settings)
            except BaseException:
                self.locks.release(name)
                raise
            refs = RefStore.kept(entries, journal, settings=settings, directory=self.path)
            self._places[name] = place = Place(name, refs, journal, [loop])
            return place

    def fork(self, place: Place, conversation: str | None, loop: asyncio.AbstractEventLoop) -> Place:
        """
        Return a conversation that begins with all that another one holds.

        Args:
            place: The other one.
            conversation: The name, None for a fresh one.
            loop: The session's.

        Raises:
            InvalidArgument: There is a conversation of this name.
            StoreBusy: It is open in another process.

        """
        name = _fresh() if conversation is None else check_conversation(conversation)
        if name in self._places:
            raise _known(name)
        _claim(self.locks, name)
        try:
            if conversation is not None and self.storage.has(start_key(name)):
                raise _known(name)
            refs = place.refs.fork()
            assert place.journal is not None  # noqa: S101 - every place of a directory has one
            journal = place.journal.fork(name, refs.now())
            refs.keep(journal, directory=self.path)
        except BaseException:
            self.locks.release(name)
            raise
        self._places[name] = forked = Place(name, refs, journal, [loop])
        return forked

    async def leave(self, place: Place) -> None:
        """
        End one session's use of a conversation; after the last one it takes nothing more.

        Raises:
            StoreError: The disk does not take what was not yet written: the conversation stays locked until it does.

        """
        place.loops.remove(asyncio.get_running_loop())
        if place.loops:
            await self.storage.flush()
        else:
            place.refs.close()
            await self._settle(place)

    async def flush(self) -> None:
        """
        Wait until everything stored so far is on disk.

        Raises:
            StoreError: The disk does not take it.

        """
        unfinished = [place for place in self._places.values() if not place.loops]
        await self.storage.flush()
        for place in unfinished:
            self._let_go(place)

    async def check(self) -> list[Finding]:
        """
        Look for damage.

        Raises:
            StoreError: The store cannot be read.

        """
        findings = await self.storage.check()
        return findings + [
            Finding("error", "missing", f"{text} is gone, which {change} names", change)
            for text, change in await missing_texts(self.storage)
        ]

    async def close(self) -> None:
        """
        End one session's use of the directory; the last one closes it.

        Raises:
            StoreError: The disk did not take what was not yet written.

        """
        if not _directories.leave(self):
            return
        try:
            try:
                await reclaim(self.storage)
            except StoreError as error:
                # The next one to close the directory tries again.
                _log.warning("texts that nothing holds any more stay on disk: %s", error)
            await self.storage.close()
        finally:
            # Not before everything is written: another process may take the conversations up from here on.
            self.locks.close()

    def close_now(self) -> None:
        """Do as `close`, in a thread without a loop, for a session that never came to be."""
        if _directories.leave(self):
            try:
                self.storage.close_now()
            finally:
                self.locks.close()

    async def _settle(self, place: Place) -> None:
        await self.storage.flush()
        self._let_go(place)

    def _let_go(self, place: Place) -> None:
        if self._places.get(place.conversation) is place:
            del self._places[place.conversation]
            self.locks.release(place.conversation)


class _Directories:
    """The session directories that this process has open, by their real paths."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[str, Directory] = {}

    def forget(self) -> None:
        """Start anew in a forked child: what is open is its parent's."""
        self.__init__()  # type: ignore[misc]  # in place: this object is a module's name

    def join(self, path: Path) -> Directory:
        """Return a directory, open; blocks until it is."""
        key = _made(path)
        status = Path(key).stat()
        identity = (status.st_dev, status.st_ino)
        with self._guard:
            directory = self._open.get(key)
            if directory is None or directory.identity != identity:
                directory = self._open[key] = Directory(Path(key), identity)
            directory.users += 1
        try:
            directory.open_once()
        except BaseException:
            self.leave(directory)
            raise
        return directory

    def leave(self, directory: Directory) -> bool:
        """Use a directory no more, and tell whether nobody does."""
        with self._guard:
            directory.users -= 1
            if directory.users == 0:
                self._open = {key: one for key, one in self._open.items() if one is not directory}
            return directory.users == 0


_directories: Final = _Directories()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_directories.forget)


def _fresh() -> str:
    return uuid.uuid4().hex


def _known(conversation: str) -> InvalidArgument:
    return InvalidArgument(
        f"there is a conversation {conversation!r:.80} already",
        hint="come back to it with Session.open(..., conversation=...), or choose another name",
    )


def _claim(locks: DirectoryLocks, conversation: str) -> None:
    try:
        locks.claim(conversation)
    except StoreBusy as error:
        raise _busy(conversation, "another process or event loop") from error


def _busy(conversation: str, where: str) -> StoreBusy:
    return StoreBusy(
        f"the conversation {conversation!r:.80} is open in {where}",
        waited=0.0,
        hint="close it there first, or take another name",
    )


def _check_shareable(place: Place, settings: DescriptorSettings, loop: asyncio.AbstractEventLoop) -> None:
    if not place.refs.is_here or any(one is not loop and not one.is_closed() for one in place.loops):
        raise _busy(place.conversation, "another event loop of this process")
    if place.refs.settings != settings or place.refs.root != root_of(settings):
        raise InvalidArgument(
            f"the conversation {place.conversation!r:.80} is open with other settings",
            hint="open it with the same settings.descriptors, or close the other session first",
        )


def _made(path: Path) -> str:
    """Make a directory where there is none, and return its real path."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.path.realpath(path, strict=True)
    except PermissionError as error:
        raise StoreReadOnly(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
    except OSError as error:
        raise StoreError(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
