"""What ties a session's parts together: the directory that sessions share, and handles in arguments."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.descriptors.events import Event
from mama_structs.descriptors.ingesting import Ingested, RefStream
from mama_structs.descriptors.journal import (
    ConversationJournal,
    check_conversation,
    load,
    missing_texts,
    reclaim,
    start_key,
)
from mama_structs.descriptors.shelf import Shelf
from mama_structs.descriptors.store import RefStore, root_of
from mama_structs.errors import InvalidArgument, StoreBusy, StoreError, StoreReadOnly
from mama_structs.loops import LoopBound
from mama_structs.references.resolver import Resolver
from mama_structs.settings import DescriptorSettings
from mama_structs.storage import DirectoryLocks, Finding, Storage

_REF: Final = "$ref"
_HANDLES: Final = ("fd:", "ref:")
_MAX_DEPTH: Final = 100


def with_contents(
    arguments: Mapping[str, Any], text_of: Callable[[str], str], *, handles: Collection[str] = ()
) -> Mapping[str, Any]:
    """
    Return a tool's arguments with the text in place of every ``{"$ref": "ref:x"}``.

    Any other mapping with such a key, a JSON Schema's for one, stays as it is; so does one 100 levels deep.

    Args:
        arguments: As the model gave them; they are not changed.
        text_of: Gives the text of a handle.
        handles: Names of arguments that are handles themselves, and get the handle in place of the text.

    Raises:
        HandleNotFound: Nothing has one of the handles.
        InvalidHandle: One is no handle.

    """
    if not isinstance(arguments, Mapping):
        return arguments
    return {
        name: (_handle_in(value) or value) if name in handles else _with_content(value, text_of, _MAX_DEPTH)
        for name, value in arguments.items()
    }


def _handle_in(value: Any) -> str | None:
    """Return the handle of ``{"$ref": "ref:x"}``, None for everything else."""
    handle = value.get(_REF) if isinstance(value, Mapping) and len(value) == 1 else None
    return handle if isinstance(handle, str) and handle.startswith(_HANDLES) else None


def _with_content(value: Any, text_of: Callable[[str], str], depth: int) -> Any:
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        if handle := _handle_in(value):
            return text_of(handle)
        return {key: _with_content(item, text_of, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_content(item, text_of, depth - 1) for item in value]
    return value


class SessionStream:
    """
    Takes a model's answer as it comes: ``feed`` every chunk, then ``await close()``.

    Args:
        stream: Scans and stores.
        flush: Waits for the disk.

    """

    def __init__(self, stream: RefStream, flush: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._flush = flush

    def __repr__(self) -> str:
        return f"<SessionStream of {self._stream!r}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Take the next part and return what is known by now; see `RefStream.feed`.

        Raises:
            InvalidArgument: It is no chunk of an answer.
            SessionClosed: The stream was closed.

        """
        return self._stream.feed(chunk)

    async def close(self) -> Ingested:
        """
        Store the refs, which are on disk when this returns; again, the same.

        Raises:
            StoreError: The disk does not take it; the refs can be used, and the next `Session.flush` tries again.

        """
        ingested = self._stream.close()
        await self._flush()
        return ingested


@attrs.frozen
class CheckReport:
    """
    What `Session.check` found; ``str()`` of it is a line for each.

    Args:
        findings: One for each thing found; warnings among them are no damage.

    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged or in danger."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{one.severity}: {one.message}" for one in self.findings) or "nothing found"


@attrs.define(eq=False)
class Place:
    """
    An open conversation.

    Args:
        conversation: Its name.
        refs: What it holds.
        journal: Where that is kept, None where it is not.
        users: Sessions that have it open.

    """

    conversation: str
    refs: RefStore
    journal: ConversationJournal | None = None
    users: int = 1


@attrs.define(eq=False)
class _Directory:
    """A session directory as this process has it open, whichever loops use it."""

    path: Path
    opening: threading.Lock = attrs.field(factory=threading.Lock)
    storage: Storage | None = None
    locks: DirectoryLocks | None = None
    places: dict[str, Place] = attrs.field(factory=dict)
    users: int = 0
    _gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    def gate(self) -> asyncio.Lock:
        """Return what lets one session of a loop at a time take a conversation up, so that two at once share it."""
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Lock())


class _Directories:
    """The session directories that this process has open, by their real paths."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[str, _Directory] = {}

    def forget(self) -> None:
        """Start anew in a forked child: what is open is its parent's."""
        self.__init__()  # type: ignore[misc]  # in place: this object is a module's name

    def join(self, path: Path) -> _Directory:
        """Return a directory, open; blocks until it is, and is undone by `leave`."""
        _make(path)
        key = os.path.realpath(path)
        with self._guard:
            directory = self._open.setdefault(key, _Directory(path))
            directory.users += 1
        try:
            with directory.opening:
                if directory.storage is None:
                    storage = Storage.open(Path(key) / "journal")
                    directory.locks, directory.storage = DirectoryLocks(Path(key)), storage
        except BaseException:
            self.leave(directory)
            raise
        return directory

    def leave(self, directory: _Directory) -> bool:
        """Use a directory no more, and tell whether nobody does."""
        with self._guard:
            directory.users -= 1
            if directory.users == 0:
                self._open = {key: one for key, one in self._open.items() if one is not directory}
            return directory.users == 0


_directories: Final = _Directories()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_directories.forget)


class Home:
    """
    What a session shares with its forks, and with every session of the process on the same directory.

    Args:
        directory: What is on disk, None for nothing.
        path: Where, as the host wrote it.
        resolver: What resolves references.
        loop: The loop of the session and its forks.

    """

    def __init__(self, directory: _Directory | None, *, path: Path | None, resolver: Resolver, loop: LoopBound) -> None:
        self.path = path
        self.resolver = resolver
        self.loop = loop
        self.users = 0
        self._directory = directory
        # Conversations without a directory; those with one are known there.
        self._names: set[str] = set()

    @classmethod
    async def open(cls, path: Path | None, *, resolver: Resolver, loop: LoopBound) -> Home:
        """
        Open a directory, or share it.

        Raises:
            StoreError: It cannot be used; its children say why.

        """
        directory = None
        if path is not None:
            joining = asyncio.ensure_future(asyncio.to_thread(_directories.join, path))
            try:
                directory = await asyncio.shield(joining)
            except asyncio.CancelledError:
                # The thread goes on all the same: what it opens is closed again.
                await asyncio.wait([joining])
                if joining.exception() is None:
                    await _close(joining.result())
                raise
        return cls(directory, path=path, resolver=resolver, loop=loop)

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
        directory = self._directory
        if directory is None or directory.storage is None or directory.locks is None:
            self._names.add(name)
            return Place(name, RefStore(settings=settings))
        async with directory.gate():
            place = directory.places.get(name)
            if place is not None:
                _check_shareable(place, settings)
                place.users += 1
                return place
            _claim(directory.locks, name)
            try:
                if conversation is None:
                    shelf, journal = Shelf(settings), ConversationJournal(directory.storage, name)
                else:
                    shelf, journal = await load(directory.storage, name, settings)
            except BaseException:
                directory.locks.release(name)
                raise
            place = Place(name, RefStore.kept(shelf, journal, settings=settings), journal)
            directory.places[name] = place
            return place

    def fork(self, place: Place, conversation: str | None) -> Place:
        """
        Return a conversation that begins with all that another one holds.

        Args:
            place: The other one.
            conversation: The name, None for a fresh one.

        Raises:
            InvalidArgument: There is a conversation of this name.
            StoreBusy: It is open in another process.

        """
        name = _fresh() if conversation is None else check_conversation(conversation)
        directory = self._directory
        known = f"there is a conversation {name!r:.80} already"
        hint = "come back to it with Session.open(..., conversation=...), or choose another name"
        if directory is None or directory.storage is None or directory.locks is None or place.journal is None:
            if name in self._names:
                raise InvalidArgument(known, hint="choose another name")
            self._names.add(name)
            return Place(name, place.refs.fork())
        if name in directory.places:
            raise InvalidArgument(known, hint=hint)
        _claim(directory.locks, name)
        if conversation is not None and directory.storage.has(start_key(name)):
            directory.locks.release(name)
            raise InvalidArgument(known, hint=hint)
        refs, journal = place.refs.fork(), place.journal.fork(name, place.refs.now())
        forked = Place(name, refs, journal)
        refs.keep(journal)
        directory.places[name] = forked
        return forked

    async def flush(self) -> None:
        """
        Wait until everything stored so far is on disk.

        Raises:
            StoreError: The disk does not take it.

        """
        if self._directory is not None and self._directory.storage is not None:
            await self._directory.storage.flush()

    async def check(self) -> CheckReport:
        """
        Look for damage on disk.

        Raises:
            StoreError: The store cannot be read.

        """
        if self._directory is None or self._directory.storage is None:
            return CheckReport(())
        storage = self._directory.storage
        findings = await storage.check()
        for key, text in await missing_texts(storage):
            findings.append(Finding("error", "missing", f"the text of {key} is gone: {text}", key))
        return CheckReport(tuple(findings))

    async def leave(self, place: Place | None) -> None:
        """
        End one session's use, and close what nobody uses any more.

        Args:
            place: The session's conversation, None for a session that never came to have one.

        Raises:
            StoreError: The disk did not take what was not yet written.

        """
        async with AsyncExitStack() as steps:
            # Each runs, whatever happens to the others; the last one pushed runs first.
            self.users -= 1
            if self.users <= 0:
                if self._directory is not None:
                    steps.push_async_callback(_close, self._directory)
                steps.push_async_callback(self.resolver.close)
            if place is not None and self._directory is not None and self._directory.storage is not None:
                steps.push_async_callback(self._put_away, place, self._directory)

    async def _put_away(self, place: Place, directory: _Directory) -> None:
        place.users -= 1
        if directory.storage is None or directory.locks is None:
            return
        try:
            if place.journal is not None and place.journal.deleted:
                place.journal.deleted = False
                await reclaim(directory.storage)
            await directory.storage.flush()
        finally:
            if place.users == 0:
                directory.places.pop(place.conversation, None)
                directory.locks.release(place.conversation)


async def _close(directory: _Directory) -> None:
    if not _directories.leave(directory):
        return
    if directory.locks is not None:
        directory.locks.close()
    if directory.storage is not None:
        await directory.storage.close()


def _fresh() -> str:
    return uuid.uuid4().hex


def _claim(locks: DirectoryLocks, conversation: str) -> None:
    try:
        locks.claim(conversation)
    except StoreBusy as error:
        raise StoreBusy(
            f"the conversation {conversation!r:.80} is open in another process or event loop",
            waited=error.waited,
            hint="close it there first, or take another name",
        ) from error


def _check_shareable(place: Place, settings: DescriptorSettings) -> None:
    if not place.refs.is_here:
        raise StoreBusy(
            f"the conversation {place.conversation!r:.80} is open in another thread of this process",
            waited=0.0,
            hint="close it there first, or take another name",
        )
    if place.refs.settings != settings or place.refs.root != root_of(settings):
        raise InvalidArgument(
            f"the conversation {place.conversation!r:.80} is open with other settings",
            hint="open it with the same settings.descriptors, or close the other session first",
        )


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except PermissionError as error:
        raise StoreReadOnly(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
    except OSError as error:
        raise StoreError(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
