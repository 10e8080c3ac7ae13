"""The session: what a host opens, uses and closes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from mama_structs.errors import InvalidArgument, SessionClosed, StoreError, StoreReadOnly
from mama_structs.loops import LoopBound
from mama_structs.references import binding
from mama_structs.references.decorator import ReferenceDecorator, bound_to
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import EntitySource, check_sources
from mama_structs.settings import Settings
from mama_structs.tools import ToolAnnotations, ToolSet


@runtime_checkable
class OffersTools(Protocol):
    """A source that brings ready-made tools along."""

    def tools(self, resolver: Resolver) -> Iterable[Callable[..., Awaitable[Any]]]:
        """Return the tools, which only read, asking through *resolver*."""


class Session:
    """
    References and tools for one agent; made by `Session.open`.

    Belongs to the event loop that opened it.
    Used with ``async with`` it is also the one that a bare `with_references` in that block uses.
    """

    def __init__(self, *, location: Path | None, sources: tuple[EntitySource, ...], settings: Settings) -> None:
        self.location: Path | None = location
        self.settings: Settings = settings
        self._closed = True
        self._loop = LoopBound("session")
        self._loop.check()
        self.resolver: Resolver = Resolver(sources, settings=settings.references, home=self._loop)
        self.tools: ToolSet = ToolSet()
        for source in sources:
            if isinstance(source, OffersTools):
                for tool in source.tools(self.resolver):
                    self.tools.add(tool, annotations=ToolAnnotations(read_only=True))
        self._closed = False
        binding.add(self)

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str] | None = None,
        *,
        structs: str | Any | None = None,
        sources: Iterable[EntitySource] = (),
        settings: Settings | None = None,
    ) -> Opening:
        """
        Open a session: ``async with Session.open(...) as session`` or ``session = await Session.open(...)``.

        Args:
            location: The session's directory, made if missing (mode 0700), or None for none.
                This version keeps nothing in it: memory and refs, which come next, will.
            structs: A Structs node's URL, a `StructsClient`, or anything with ``async fetch(entity_id)``.
            sources: Further sources of entities.
            settings: See `Settings`.

        Raises:
            InvalidArgument: An argument breaks its rule; raised at once, before anything is opened.
            StoreError: The directory cannot be made; raised when the session opens.

        """
        if settings is not None and not isinstance(settings, Settings):
            raise InvalidArgument(f"settings must be Settings, got {settings!r:.80}")
        own = check_sources(sources)
        all_sources = own if structs is None else check_sources([_structs_source(structs), *own])
        path = _path(location)
        return Opening(lambda: cls(location=_prepared(path), sources=all_sources, settings=settings or Settings()))

    def __repr__(self) -> str:
        where = f" at {os.fspath(self.location)!r}" if self.location else ""
        return f"<Session{where}, {len(self.tools)} tools{', closed' if self._closed else ''}>"

    @property
    def is_open(self) -> bool:
        """Whether the session can be used: not closed, and its event loop still there."""
        return not self._closed and not self._loop.is_over

    @property
    def with_references(self) -> ReferenceDecorator:
        """The decorator `with_references`, bound to this session."""
        return bound_to(self.resolver)

    async def call(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """
        Run a tool with arguments as a model gives them, and return data that JSON can hold.

        Args:
            tool_name: The name of one of `tools`.
            arguments: Its arguments by name, checked against the tool's schema.

        Raises:
            UnknownTool: There is no such tool.
            InvalidArgument: An argument is missing, unknown or of the wrong type; the tool did not run.

        """
        self._check()
        return await self.tools.call(tool_name, arguments or {})

    async def close(self) -> None:
        """
        Cancel what is under way and release connections; again is no error.

        Once begun it runs to its end, even if the caller is cancelled.

        Raises:
            WrongLoop: The session belongs to another event loop, and stays open there.

        """
        self._loop.check()
        self._closed = True
        binding.remove(self)
        await self.resolver.close()

    async def __aenter__(self) -> Self:
        self._check()
        binding.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        binding.leave(self)
        await self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._loop.is_elsewhere:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def _check(self) -> None:
        if self._closed:
            raise SessionClosed("the session is closed", hint="open another one")
        self._loop.check()


class Opening:
    """A session that is about to open: await it, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], Session]) -> None:
        self._make = make
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def _open(self) -> Session:
        if self._session is None:
            self._session = self._make()
        return self._session

    async def __aenter__(self) -> Session:
        return await (await self._open()).__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, traceback)


def _structs_source(structs: object) -> EntitySource:
    # The chain's models take longer to load than everything else together, and a session without a chain needs none.
    from mama_structs.structs.source import StructsSource  # noqa: PLC0415

    return structs if isinstance(structs, StructsSource) else StructsSource(structs)


def _path(location: str | os.PathLike[str] | None) -> Path | None:
    if location is None:
        return None
    if not isinstance(location, str | os.PathLike) or not os.fspath(location):
        raise InvalidArgument(f"location must be a directory or None, got {location!r:.80}")
    if os.fspath(location).startswith(("postgresql://", "postgres://")):
        raise InvalidArgument("a PostgreSQL location is not supported yet", hint="give a directory")
    path = Path(location)
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"location must be a directory, and {os.fspath(path)!r} is a file")
    return path


def _prepared(path: Path | None) -> Path | None:
    if path is not None:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except PermissionError as error:
            raise StoreReadOnly(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
        except OSError as error:
            raise StoreError(f"the directory {os.fspath(path)!r} cannot be made: {error.strerror}") from error
    return path
