"""Opening of a session: checks the arguments, then opens and connects backend, memories, resolver and tools."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import attrs

import mama_structs  # for annotations only, because importing names from this package here would be circular
from mama_structs._internal.event_loop import LoopGuard, run_to_completion
from mama_structs._internal.telemetry import load_opentelemetry
from mama_structs.errors import InvalidArgument, StoreBusy, StoreReadOnly, repr_short
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.store import maintenance
from mama_structs.memory.store.factory import check_helpers, open_memories
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.judge import Judge
from mama_structs.memory.types.requests import check_scopes
from mama_structs.memory.types.reranker import Reranker
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import EntitySource, Source, check_sources
from mama_structs.refs.conversations.conversation_log import check_conversation_name
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.session.backend import Backend, OpenConversation
from mama_structs.session.location import Location, check_location
from mama_structs.session.upkeep import expire_conversations
from mama_structs.session.wiring import (
    MEMORY_ID_SCHEME,
    find_mentions,
    load_chain_schemes,
    make_decision_finder,
    make_memory_source,
    make_text_eraser,
)
from mama_structs.settings import Settings, disable_unreadable_descriptors
from mama_structs.tools.exposure import ToolSelector
from mama_structs.tools.tool import Tool, ToolAnnotations


@runtime_checkable
class ToolProvider(Protocol):
    """A source that also provides ready-made tools."""

    def tools(self, resolver: Resolver, options: ReferenceOptions = ..., /) -> Iterable[Callable[..., Awaitable[Any]]]:
        """
        Return read-only tools that resolve entities with *resolver*.

        *options* are the host's, if set.
        """


@attrs.define(eq=False)
class SharedState:
    """State shared by a session and its forks. The last of them to close runs `closing`."""

    home: Backend
    # A directory is stored as passed, which may be a relative path.
    location: Path | str | None
    memories: MemoryStore
    resolver: Resolver
    references: ReferenceOptions | None
    loop: LoopGuard
    closing: AsyncExitStack
    # Tools of the sources, including those excluded by the profile.
    source_tools: Sequence[Tool]
    users: int = 0

    async def leave(self, conversation: OpenConversation) -> None:
        """Unregister one session. The last one closes the shared state."""
        self.users -= 1
        # The stack runs its steps in reverse order, and runs all of them even if one raises.
        async with AsyncExitStack() as steps:
            if self.users == 0:
                steps.push_async_callback(self.closing.aclose)
            steps.push_async_callback(self.home.close_conversation, conversation)


def _check_settings(settings: Settings | None) -> Settings:
    """Validate a session's settings, and load OpenTelemetry if they enable it."""
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidArgument(f"settings must be Settings, got {repr_short(settings)}")
    checked = disable_unreadable_descriptors(settings or Settings())
    if checked.telemetry.enabled:
        load_opentelemetry()
    return checked


def _check_tool_selector(selector: ToolSelector | None) -> ToolSelector | None:
    if selector is not None and not isinstance(selector, ToolSelector):
        raise InvalidArgument(f"tool_selector must be a ToolSelector, got {repr_short(selector)}")
    return selector


@attrs.frozen(eq=False, kw_only=True)
class OpenRequest:
    """The arguments of `Session.open`. They are checked in the order of the fields."""

    settings: Settings = attrs.field(converter=_check_settings)
    tool_selector: ToolSelector | None = attrs.field(converter=_check_tool_selector)
    reference_options: ReferenceOptions | None
    resolver: Resolver | None
    structs: Any
    sources: Iterable[Source | EntitySource]
    all_sources: tuple[EntitySource, ...] = attrs.field(init=False)
    location: Path | str | None = attrs.field(converter=attrs.converters.optional(check_location))
    conversation: str | None = attrs.field(converter=attrs.converters.optional(check_conversation_name))
    embedder: Embedder | None
    reranker: Reranker | None
    judge: Judge | None
    namespace: str
    read_namespaces: Iterable[str]
    scopes: tuple[str, ...] = attrs.field(init=False)
    files_root: Location | None
    refs: RefStore = attrs.field(init=False)

    @all_sources.default
    def _find_sources(self) -> tuple[EntitySource, ...]:
        if self.reference_options is not None and not isinstance(self.reference_options, ReferenceOptions):
            given = repr_short(self.reference_options)
            raise InvalidArgument(f"reference_options must be ReferenceOptions, got {given}")
        own = check_sources(self.sources)
        every = own if self.structs is None else check_sources([_make_structs_source(self.structs), *own])
        if self.resolver is None:
            return every
        if not isinstance(self.resolver, Resolver):
            raise InvalidArgument(f"resolver must be a Resolver, got {repr_short(self.resolver)}")
        if every:
            raise InvalidArgument(
                "resolver= has its own sources, so structs= and sources= must not be given with it",
                hint="Pass Resolver([StructsSource(URL), ...]) to all sessions, or omit resolver.",
            )
        return self.resolver.sources

    @scopes.default
    def _check_memories(self) -> tuple[str, ...]:
        check_helpers(self.embedder, self.reranker, self.judge)
        return check_scopes(self.namespace, self.read_namespaces)

    @refs.default
    def _make_refs(self) -> RefStore:
        return RefStore(settings=self.settings.descriptors, answers=self.settings.answers, files_root=self.files_root)

    async def open(self, kind: type[mama_structs.Session]) -> mama_structs.Session:
        """Open the session and return it as an instance of *kind*."""
        loop = LoopGuard("session")
        loop.check()
        closing = AsyncExitStack()
        entered = None
        try:
            home = await Backend.open(self.location, options=self.settings.server)
            closing.push_async_callback(home.close)
            memories = await self._open_memories(home, loop, closing)
            resolver = self._join_resolver(memories, loop, closing)
            entered = await home.open_conversation(self.scopes[0], self.conversation, self.refs)
            # Best effort: skip the maintenance if another process is writing or the store is read-only.
            with suppress(StoreBusy, StoreReadOnly):
                await maintenance.maintain(memories._shared)
                await expire_conversations(home, self.scopes[0], self.settings, now=entered.refs._now())
            tools = [
                Tool.from_function(function, annotations=ToolAnnotations(read_only=True))
                for source in self.all_sources
                if isinstance(source, ToolProvider)
                for function in _get_source_tools(source, resolver, self.reference_options)
            ]
            location = self.location if isinstance(self.location, Path) else home.location
            shared = SharedState(home, location, memories, resolver, self.reference_options, loop, closing, tools)
            return kind(shared, entered, settings=self.settings, tool_selector=self.tool_selector)
        except BaseException:
            if entered is not None:
                closing.push_async_callback(home.close_conversation, entered)
            await run_to_completion(closing.aclose())
            raise

    async def _open_memories(self, home: Backend, loop: LoopGuard, closing: AsyncExitStack) -> MemoryStore:
        namespace, *reads = self.scopes
        schemes = [MEMORY_ID_SCHEME, *(source.scheme for source in self.all_sources)]
        memories, close = await open_memories(
            home.engines,
            namespace=namespace,
            reads=reads,
            embedder=self.embedder,
            reranker=self.reranker,
            judge=self.judge,
            settings=self.settings.memory,
            loop=loop,
            find_mentions=functools.partial(find_mentions, schemes=schemes),
            erase_texts=make_text_eraser(functools.partial(home.erase_texts, namespace=namespace)),
        )
        closing.push_async_callback(close)
        return memories

    def _join_resolver(self, memories: MemoryStore, loop: LoopGuard, closing: AsyncExitStack) -> Resolver:
        """Return a resolver that also resolves memories, based on the passed or a new one."""
        base = self.resolver
        if base is None:
            base = Resolver(self.all_sources, settings=self.settings.references, home=loop)
            closing.push_async_callback(base.close)
        joined = base._joined_by(
            [make_memory_source(memories)], recall=make_decision_finder(memories), strange=load_chain_schemes
        )
        closing.push_async_callback(joined.close)
        return joined


def _make_structs_source(structs: object) -> EntitySource:
    # Imported lazily: the chain's models load slowly, and most sessions do not need them.
    from mama_structs.structs.source import StructsSource  # noqa: PLC0415

    if isinstance(structs, StructsSource):
        return structs
    try:
        return StructsSource(structs)
    except InvalidArgument as error:
        message = str(error.args[0])
        if not message.startswith("base_url"):
            raise
        # The message names only the argument of `StructsClient`, which the caller did not pass.
        raise InvalidArgument(f"structs: {message}", hint=error.hint) from None


def _get_source_tools(
    source: ToolProvider, resolver: Resolver, options: ReferenceOptions | None
) -> Iterable[Callable[..., Awaitable[Any]]]:
    """Return the tools of a source. *options* are passed only if its method accepts them."""
    if options is None:
        return source.tools(resolver)
    try:
        inspect.signature(source.tools).bind(resolver, options)
    except TypeError:
        return source.tools(resolver)
    return source.tools(resolver, options)
