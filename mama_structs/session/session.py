"""The `Session`: the object that a host opens, uses and closes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, Self, runtime_checkable

import attrs

import mama_structs  # for the annotations: the names load when a session opens, or type hints are evaluated
from mama_structs._internal.budget import Budget
from mama_structs._internal.event_loop import (
    LoopBound,
    enter_session,
    in_own_thread,
    leave_session,
    open_sessions,
    to_its_end,
    using_session,
)
from mama_structs._internal.offload import measure, run_inline_or_in_thread
from mama_structs._internal.reprs import Figures, boxed, counted, escaped, heading, table
from mama_structs._internal.telemetry import load, observed
from mama_structs._internal.validation import is_address, whole
from mama_structs.errors import (
    DescriptorError,
    InvalidArgument,
    SessionClosed,
    StoreBusy,
    StoreError,
    StoreReadOnly,
    shown,
)
from mama_structs.memory.types.copy_report import Copied
from mama_structs.memory.types.extraction_result import Learned
from mama_structs.memory.types.judge import Judge
from mama_structs.memory.types.model import Maintained
from mama_structs.memory.types.reranker import Reranker
from mama_structs.provenance import UNKNOWN_ORIGIN, Origin, Provenance, least_trusted, trusts_in, using_inserted_texts
from mama_structs.recall import Recall
from mama_structs.references.decorator import ReferenceDecorator, bound_to
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import EntitySource, check_sources
from mama_structs.refs.conversations.conversation_info import Conversations
from mama_structs.refs.markup.parser import Event
from mama_structs.settings import Settings, with_its_tools
from mama_structs.storage.files import check_path, is_store
from mama_structs.storage.sqlite_errors import Finding
from mama_structs.tools.pass_by_reference import Passed, passed
from mama_structs.tools.wire_names import SUCCESSORS, WireNames, in_profile

if TYPE_CHECKING:
    from mama_structs.memory.records.record_store import RecordStore
    from mama_structs.refs.store.observed_messages import Heard
    from mama_structs.session.backend import Conversation, Home
    from mama_structs.tools.tool import Tool

_log = logging.getLogger("mama_structs")

# A smaller budget has no room for an answer that says what it omits.
_LEAST_BUDGET = 100
# Maximum bytes of a file name in common file systems.
_MAX_PART = 255
# Hint for code that uses a session without opening it.
_FORGOTTEN = (
    "session = await Session.open(...), or async with Session.open(...) as session; "
    "where nothing can be awaited: from mama_structs.sync import Session"
)


@runtime_checkable
class OffersTools(Protocol):
    """A source with ready-made tools."""

    def tools(self, resolver: Resolver, options: ReferenceOptions = ..., /) -> Iterable[Callable[..., Awaitable[Any]]]:
        """
        Return read-only tools that resolve entities with *resolver*.

        *options* are the host's, if set.
        """


@attrs.define(eq=False)
class _Common:
    """State that a session shares with its forks. `closing` runs when the last of them closes."""

    home: Home
    # A directory as the caller passed it; it may be relative to the working directory.
    location: Path | str | None
    memories: mama_structs.MemoryStore
    resolver: Resolver
    references: ReferenceOptions | None
    loop: LoopBound
    closing: AsyncExitStack
    # Names of the ready-made tools of sources, including those that the profile excludes.
    ready_made: frozenset[str] = frozenset()
    users: int = 0

    async def leave(self, conversation: Conversation) -> None:
        """Remove one session; the last one closes the shared state."""
        self.users -= 1
        # Every step runs, even if others raise. The last one pushed runs first.
        async with AsyncExitStack() as steps:
            if self.users == 0:
                steps.push_async_callback(self.closing.aclose)
            steps.push_async_callback(self.home.leave, conversation)


class Session:
    """
    Memories, refs, references and tools of one agent; created by `Session.open`.

    Belongs to the event loop that opened it.
    Inside ``async with``, it is also the session that an unbound `with_references` or `with_descriptors` uses.

    Attributes:
        settings: The given settings; descriptors are disabled if the tool profile lacks ``read_fd``.
        location: The session's directory, or its server's address without the password; None for a temporary session.
        conversation: Name of the conversation, with which `open` continues it.
        memories: Decisions, checkpoints, insights and contexts; forks share them.
        records: JSON values that hosts store under labels and a key; forks share them.
        refs: The store of refs and descriptors.
        resolver: Resolves references; forks share it.
        references: Defaults and ceilings of tools that add references, as given to `open`; None for the built-in ones.
        tools: All tools, including those that the model does not see.
        exposed: The tools that the model sees.

    """

    def __init__(
        self,
        common: _Common,
        conversation: Any,
        *,
        settings: Settings,
        exposure: mama_structs.Exposure | None,
        tools: Iterable[mama_structs.Tool] = (),
        added: Iterable[mama_structs.Tool] = (),
    ) -> None:
        from mama_structs.refs.store.observed_messages import Heard  # noqa: PLC0415
        from mama_structs.session.wiring import contents_of, reference_share  # noqa: PLC0415 - lazy import
        from mama_structs.tools.exposed_tools import ToolView  # noqa: PLC0415
        from mama_structs.tools.memory_tools import memory_tools  # noqa: PLC0415
        from mama_structs.tools.ref_tools import ref_tools  # noqa: PLC0415
        from mama_structs.tools.tool import ToolSet  # noqa: PLC0415

        self._common = common
        self._conversation: Conversation = conversation
        self._exposure = exposure
        self.settings: Settings = settings
        self.location: Path | str | None = common.location
        self.conversation: str = conversation.key.name
        self.refs: mama_structs.RefStore = conversation.refs
        self.memories: mama_structs.MemoryStore = common.memories.resolving(contents_of(self.refs))
        self.records: RecordStore = self.memories.records
        self.resolver: Resolver = common.resolver
        self.references: ReferenceOptions | None = common.references
        self.refs.own_share = reference_share(self.resolver)
        self.tools: ToolSet = ToolSet()
        self.exposed: ToolView = ToolView(self.tools, exposure=exposure, mode=settings.tools.dynamic)
        self._heard: Heard = Heard()
        self._observing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        own = ref_tools(self.refs)
        if settings.tools.memory:
            deprecated = self._deprecated.values() if settings.tools.deprecated else ()
            forgets = settings.tools.forget
            own = [*memory_tools(self.memories, self.refs, forget=forgets), *own, *deprecated]
        named = [tool.name for tool in own]
        chosen = in_profile(settings.tools.profile, [*named, *common.ready_made])
        self._own: dict[str, Tool] = {tool.name: tool for tool in own if tool.name in chosen}
        for tool in (*self._own.values(), *(one for one in tools if one.name in chosen)):
            self.tools.add(tool)
        for tool in added:
            self.tools.add(tool, replace=True)
        common.users += 1
        self._closed = False
        open_sessions.add(self)

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str] | None = None,
        *,
        structs: str | Any | None = None,
        sources: Iterable[EntitySource] = (),
        embedder: mama_structs.Embedder | None = None,
        reranker: Reranker | None = None,
        judge: Judge | None = None,
        namespace: str = "default",
        reads: Iterable[str] = (),
        conversation: str | None = None,
        files: str | os.PathLike[str] | None = None,
        references: ReferenceOptions | None = None,
        resolver: Resolver | None = None,
        settings: Settings | None = None,
        exposure: mama_structs.Exposure | None = None,
    ) -> Opening:
        """
        Open a session.

        Use ``async with Session.open(...) as session`` or ``session = await Session.open(...)``.

        Args:
            location: The session's directory, created if missing (mode 0700), or the URL of a PostgreSQL server
                (``postgresql://user@host/database``, extra ``postgres``), which stores memories, refs and descriptors;
                None for a temporary session that leaves nothing on disk.
            structs: A Structs node's URL, a `StructsClient`, or any object with ``async fetch(entity_id)``.
            sources: Further sources of entities.
            embedder: Converts texts to vectors for the memories. None for the embedder that the store was written with,
                or the default in a new store: `UniversalSentenceEmbedder` if it is installed, else `HashEmbedder`.
            reranker: Reorders the best hits of a search by reading them with the query; None for no reranking.
            judge: Classifies each new memory against older ones on the same subject, see
                `mama_structs.memory.types.judge.Judge`; None for no judge.
            namespace: Namespace of the memories and conversations. Others are not accessible, except for *reads*.
            reads: Further namespaces whose memories can be read but not written; see `Memory.namespace`.
            conversation: Name of the conversation to continue or create; None for a fresh one.
            files: Directory below which models may write files; it is created with the first file. None: models have
                no tool that writes files.
            references: Defaults for the ready-made tools and for `with_references` of this session, and ceilings for
                the values that models request; see `ReferenceOptions`.
            resolver: A resolver that several sessions share. Its sources replace *structs* and *sources*; its cache,
                its limits and its ``settings.references`` apply. Its creator closes it, after the sessions.
            settings: See `Settings`.
            exposure: Detects the topic of a message for `tools_for`; None for the built-in cues.

        Raises:
            InvalidArgument: An argument breaks its rule; raised immediately, before anything is opened.
            StoreError: The directory cannot be used; raised when the session opens.
                Subclasses give the reason, such as `StoreBusy` if another process has the conversation open.
            EmbedderMismatch: Another embedder made the vectors of the memories; raised when the session opens.
            WrongLoop: *resolver* belongs to another event loop; raised when the session opens.
            SessionClosed: *resolver* is closed; raised when the session opens.
            ImportError: *settings* enable OpenTelemetry, which is not installed; raised immediately.

        """
        from mama_structs.memory.store.factory import check_helpers, open_memories  # noqa: PLC0415
        from mama_structs.memory.types.requests import check_scopes  # noqa: PLC0415
        from mama_structs.refs.conversations.conversation_log import check_conversation  # noqa: PLC0415
        from mama_structs.refs.store.ref_store import RefStore  # noqa: PLC0415
        from mama_structs.session.backend import Home  # noqa: PLC0415
        from mama_structs.session.wiring import (  # noqa: PLC0415
            MEMORY_IDS,
            chain_ids,
            erasing,
            memory_source,
            mentions_in,
            recall_from,
        )
        from mama_structs.tools.exposure import Exposure  # noqa: PLC0415
        from mama_structs.tools.tool import Tool, ToolAnnotations  # noqa: PLC0415

        known = _known(settings)
        if exposure is not None and not isinstance(exposure, Exposure):
            raise InvalidArgument(f"exposure must be an Exposure, got {shown(exposure)}")
        all_sources = _sources(structs, sources, resolver=resolver, references=references)
        place = None if location is None else _place(location)
        name = None if conversation is None else check_conversation(conversation)
        check_helpers(embedder, reranker, judge)
        own_namespace, *granted = check_scopes(namespace, reads)
        refs = RefStore(settings=known.descriptors, answers=known.answers, files=files)

        async def make() -> Session:
            loop = LoopBound("session")
            loop.check()
            closing = AsyncExitStack()
            entered = None
            try:
                home = await Home.at(place, options=known.server)
                closing.push_async_callback(home.close)
                schemes = [MEMORY_IDS, *(source.scheme for source in all_sources)]
                memories, close_memories = await open_memories(
                    home.engines,
                    namespace=own_namespace,
                    reads=granted,
                    embedder=embedder,
                    reranker=reranker,
                    judge=judge,
                    settings=known.memory,
                    loop=loop,
                    find_mentions=functools.partial(mentions_in, schemes=schemes),
                    erase_texts=erasing(functools.partial(home.erase_texts, namespace=own_namespace)),
                )
                closing.push_async_callback(close_memories)
                shared = resolver or Resolver(all_sources, settings=known.references, home=loop)
                if shared is not resolver:
                    closing.push_async_callback(shared.close)
                asking = shared.joined_by([memory_source(memories)], recall=recall_from(memories), strange=chain_ids)
                closing.push_async_callback(asking.close)
                entered = await home.enter(own_namespace, name, refs)
                # Best effort: if another process is writing, or the store is read-only, the next opening does the
                # maintenance.
                with suppress(StoreBusy, StoreReadOnly):
                    await memories.maintain()
                    await _expire(home, entered, known)
                annotations = ToolAnnotations(read_only=True)
                ready_made = [_offered(one, asking, references) for one in all_sources if isinstance(one, OffersTools)]
                tools = [
                    Tool.from_function(tool, annotations=annotations) for several in ready_made for tool in several
                ]
                where = place if isinstance(place, Path) else home.location
                names = frozenset(tool.name for tool in tools)
                common = _Common(home, where, memories, asking, references, loop, closing, names)
                return cls(common, entered, settings=known, exposure=exposure, tools=tools)
            except BaseException:
                if entered is not None:
                    closing.push_async_callback(home.leave, entered)
                await to_its_end(closing.aclose())
                raise

        return Opening(make)

    @staticmethod
    async def conversations(location: str | os.PathLike[str], *, namespace: str = "default") -> Conversations:
        """
        Return the conversations of a store, last used first, without opening a session.

        Args:
            location: A session's directory, or its server's URL.
            namespace: The namespace of the conversations.

        Raises:
            InvalidArgument: *location* is not a session's directory, or *namespace* breaks its rule.
            StoreError: The store cannot be read.

        """
        from mama_structs.session.backend import home_at  # noqa: PLC0415 - lazy import

        place = await _store(location)
        async with home_at(place) as home:
            found = await home.conversations(namespace)
            where = place if isinstance(place, Path) else home.location

        async def delete(name: str) -> None:
            async with home_at(place) as home:
                await home.delete(name, namespace=namespace)

        return Conversations(found, what=f"{shown(namespace)} at {str(where)!r}", delete=delete)

    @staticmethod
    async def namespaces(location: str | os.PathLike[str]) -> tuple[str, ...]:
        """
        Return the sorted namespaces of a store that have memories or conversations.

        Args:
            location: A session's directory, or its server's URL.

        Raises:
            InvalidArgument: *location* is not a session's directory.
            StoreError: The store cannot be read.

        """
        from mama_structs.session.backend import home_at  # noqa: PLC0415 - lazy import

        async with home_at(await _store(location)) as home:
            return await home.namespaces()

    @staticmethod
    async def copy(
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        namespace: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Copied:
        """
        Copy the content of a store to another one, and compare the two.

        Repeating the call, such as after a crash, adds only missing data. Data in *target* is never replaced or
        deleted, and *source* is not written to. A directory is copied from a consistent snapshot.

        Args:
            source: A session's directory, or the URL of a server, which should not be written to during the copy.
            target: The directory or URL to copy to: empty, or from an earlier run.
            namespace: Copy only the memories and conversations of this namespace; None for all.
            progress: Called with the number of finished steps and the number of known steps.

        Raises:
            InvalidArgument: *source* is not a session's directory, or *target* contains other files.
            UnknownNamespace: The source has no such *namespace*.
            StoreDiffers: The target has other data in a namespace, or could not be made equal.
            EmbedderMismatch: The target has vectors of another embedder.
            StoreError: One of the two cannot be read or written.

        """
        from mama_structs.session.store_copy import copy  # noqa: PLC0415 - lazy import

        return await copy(await _store(source), _place(target), namespace=namespace, progress=progress)

    def __repr__(self) -> str:
        where = f" at {str(self.location)!r}" if self.location else ""
        handles = self._conversation.refs.usage.handles
        held, state = counted(handles, "handle"), ", closed" if self._closed else ""
        return f"<Session{where}, {len(self.tools)} tools, {held}{state}>"

    def _repr_html_(self) -> str:
        if self._closed or self._common.loop.is_elsewhere:
            return boxed(escaped(repr(self)))
        figures = self.memories.figures()
        rows = {
            "location": self.location or "none: nothing is left of it",
            "conversation": self.conversation,
            "namespace": ", reads ".join([self.memories.namespace, *self.memories.reads]),
            "memories": f"{figures.get('memories', 0):,}",
            "links": f"{figures.get('links', 0):,}",
            "embedder": self.memories.embedder.name,
            "refs": counted(len(self.refs), "handle"),
            "tools": f"{len(self.tools):,}",
        }
        return boxed(heading("Session"), table([*rows.items()]))

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of callable tools that models do not see: by default the v1.0 tools."""
        return tuple(name for name in SUCCESSORS if name not in self.tools) if self.settings.tools.memory else ()

    @property
    def wire_names(self) -> WireNames:
        """Names of all tools in the form that every provider accepts, and the reverse mapping."""
        return WireNames.of(self.tools, hidden=self.hidden)

    @functools.cached_property
    def _deprecated(self) -> dict[str, Tool]:
        # Lazy: most sessions never need the deprecated tools.
        from mama_structs.tools.deprecated import deprecated_tools  # noqa: PLC0415

        return {tool.name: tool for tool in deprecated_tools(self.memories)}

    @property
    def is_open(self) -> bool:
        """True if the session can be used: neither it nor its event loop is closed."""
        return not self._closed and not self._common.loop.is_over

    @property
    def with_references(self) -> ReferenceDecorator:
        """The decorator `with_references`, bound to this session."""
        return bound_to(self.resolver, self.references)

    def tools_for(self, message: object) -> list[mama_structs.Tool]:
        """
        Return the tools that a model should see for a user's message, the most relevant first.

        Memory tools are omitted only if the topic of the message is clear; see `Exposure`. Omitted tools can still be
        called. Tools of the host, of refs and of the chain are never omitted.

        Args:
            message: A text, or a provider's message or list of messages, whose last user message is used.

        """
        self._check_here()
        self.exposed.for_message(message)
        return self.exposed.tools()

    def allowed_for(self, message: object) -> tuple[str, ...]:
        """
        Return the names of the tools for a user's message, the most relevant first.

        For providers that restrict the choice without changing the tool list, as ``allowed_tools`` does: prompt caches
        and runs depend on that list. It does not change the results of `tools` and `exposed`.

        Args:
            message: As for `tools_for`.

        """
        self._check_here()
        return self.exposed.allowed_for(message)

    async def call(
        self,
        tool_name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        host: Mapping[str, Any] | None = None,
        max_chars: int | Literal["settings"] | None = "settings",
    ) -> Any:
        """
        Run a tool with a model's arguments, and return the result as JSON data.

        Any tool can be called, even if the model does not see it at the moment.
        An argument ``{"$ref": "ref:x"}`` is replaced by the text of the handle, up to 100 levels deep.
        In parameters that accept any text, or a list of texts, a text that is exactly ``ref:x`` or ``fd:1`` is
        replaced, too, and so is ``{{ref:x}}`` or ``{{ref:x:10-20}}`` (lines) inside a longer text. A preceding
        backslash, or ``resolve=False`` of the tool, prevents it. The log, and an adapter's answer to the model, name
        the inserted handles; see `resolved`. The compact JSON of the answer fits into the budget of the settings. A
        longer result is truncated by its structure and says so under ``shortened``; handles give the rest; see
        `RefStore.wrap`. References may use half of the budget, and lose fields before they are omitted. Each part of
        the result without a JSON form is replaced by a text that says that the tool has run.

        Args:
            tool_name: Name of one of `tools`, or of a deprecated tool; wire names such as ``save__decision`` work, too.
            arguments: The arguments by name, or their JSON text, which are validated with the tool's schema.
            host: Values for the tool's parameters ``ctx``, ``run_context`` and ``tool_context``.
            max_chars: ``"settings"`` for the budget of ``settings.answers``; None for the whole result of any length,
                for code of the host; a number for a budget in characters, 100 or more.

        Raises:
            UnknownTool: There is no such tool.
            InvalidArgument: An argument is missing, unknown or of the wrong type; the tool did not run.
            HandleNotFound: A handle in an argument does not exist; the tool did not run.

        """
        self._check()
        budget = self._budget(max_chars)
        load = measure(arguments)
        tool, asked = self._tool(tool_name), await run_inline_or_in_thread(load, _read, arguments)
        # Compare the version, not the number of handles: answers of memory tools replace older ones.
        version, inserted = self.refs._version, None  # noqa: SLF001 - internal API of this package, as below
        try:
            given = await self.refs.look(load, lambda refs: passed(asked, tool, refs.get))
        except (DescriptorError, InvalidArgument) as error:
            if tool.on_error is None:
                raise
            result = tool.on_error(error, asked)
        else:
            inserted = given.provenance
            if given.handles:
                note = f"{tool.name} got the text of {', '.join(given.handles)}"
                _log.info("%s", note)
                self._heard.say(note)
            about = {"conversation__id": self.conversation}
            with (
                using_session(self),
                using_inserted_texts(given.provenance),
                observed("execute_tool", tool.name, **about) as found,
            ):
                result = await tool.run(given.arguments, host=host)
                if kind := getattr(result, "type", None) if isinstance(result, str) else None:
                    found["error__type"] = kind
        from mama_structs.refs.store.decorator import shorten  # noqa: PLC0415 - lazy import

        with using_inserted_texts(inserted):
            shown = await shorten(
                self.refs, result, lambda refs, keeps: self._told(tool, result, budget, refs=refs, keeps=keeps)
            )
        if self.refs._version != version:  # noqa: SLF001
            try:
                await self.flush()
            except StoreError as error:
                # The tool has run and its result is readable, so the call succeeds. The next flush writes the data.
                _log.warning("what %s stored is not on disk yet: %s", tool.name, error)
        return shown

    def _budget(self, max_chars: int | str | None) -> Budget | None:
        """Return the budget of an answer, or None if it is unlimited."""
        if max_chars != "settings" and max_chars is not None:
            return Budget(whole("max_chars", max_chars, _LEAST_BUDGET))
        # Without descriptors, no tool can read the rest of a truncated result.
        return self.refs.budget if max_chars is not None and self.settings.descriptors.enabled else None

    def _told(self, tool: Tool, result: Any, budget: Budget | None, *, refs: mama_structs.RefStore, keeps: bool) -> Any:
        """
        Return a tool's result as data within the budget.

        May run in a thread, with a draft of the refs.
        """
        from mama_structs._internal.control_flow import is_framework_result  # noqa: PLC0415
        from mama_structs._internal.jsonable import to_answer  # noqa: PLC0415
        from mama_structs.refs.messages.media import with_blocks  # noqa: PLC0415
        from mama_structs.refs.store.decorator import within_budget  # noqa: PLC0415
        from mama_structs.refs.store.entries import TOOL_RESULT  # noqa: PLC0415
        from mama_structs.tools.memory_results import make_room  # noqa: PLC0415
        from mama_structs.tools.tool import ErrorText  # noqa: PLC0415

        if is_framework_result(result):
            return result
        is_error = isinstance(result, ErrorText)
        data = result if is_error else to_answer(with_blocks(result))
        if budget is None:
            return data
        # Results of the handle tools are stored already. Old answers of memories are removed to make room for new ones.
        keeps = keeps and tool.wrapped and not is_error and self.settings.descriptors.enabled
        is_own = self._is_own(tool)
        source = tool.name if is_own or tool.name in self.hidden else TOOL_RESULT
        if keeps and is_own:
            make_room(refs)
        # Memories in an answer are marked with their trust. Other tools show memories among the references only, and
        # the tools of v1.0 mark them in text.
        marked = data if is_own else data.get("references") if isinstance(data, dict) else None
        trusts = [UNKNOWN_ORIGIN] if tool.deprecated else trusts_in(marked)
        shown_by = Provenance("tool", least_trusted(["tool", *trusts]))
        shown = within_budget(
            refs,
            data,
            what=tool.name,
            budget=budget,
            keeps=keeps,
            schema=tool.output_schema,
            source=source,
            provenance=shown_by,
        )
        return ErrorText(str(shown), result.type) if is_error and shown is not data else shown

    def resolved(self, tool_name: str, arguments: Mapping[str, Any] | str | None = None) -> Passed:
        """
        Return a tool's arguments as `call` would pass them, for approval by a person.

        Args:
            tool_name: As for `call`.
            arguments: As for `call`.

        Raises:
            UnknownTool: There is no such tool.
            InvalidArgument: An argument is missing, unknown or of the wrong type.
            HandleNotFound: A handle in an argument does not exist.

        """
        self._check_here()
        return passed(_read(arguments), self._tool(tool_name), self.refs.get)

    def _tool(self, name: str) -> Tool:
        """Return a tool by its name or wire name. Includes the deprecated tools."""
        name = name if name in self.tools else self.wire_names.by_wire.get(name, name)
        return self._deprecated[name] if name in self.hidden else self.tools[name]

    def _is_own(self, tool: Tool) -> bool:
        """
        Return True for the memory and ref tools of this session.

        A fork creates its own; a host may replace them.
        """
        return self._own.get(tool.name) is tool

    # Memories

    async def recall(self, message: object, *, max_chars: int = 2_000, again: bool = False) -> Recall:
        """
        Return the memories that are relevant to a message; empty if there are none.

        The text contains the last state of the work (if the message continues it), current memories on the topic,
        failures with their reasons, and contradictory memories. A conversation and its forks get each fact once, until
        it changes.

        Args:
            message: A text, or a provider's message or list of messages, whose last user message is used.
            max_chars: Maximum number of characters of the text, 300 or more.
            again: Whether to repeat facts that were already recalled, as after the conversation was compacted.

        Raises:
            EmbeddingFailed: The embedder failed.
            StoreError: The memories cannot be read.

        """
        from mama_structs.session.recall_builder import recall  # noqa: PLC0415 - lazy import

        self._check()
        told = self._conversation.told
        if again:
            told.clear()
        namespace = self.memories.namespace
        about = {"data_source__id": namespace, "conversation__id": self.conversation}
        with observed("retrieval", namespace, **about):
            return await recall(self.memories, message, told=told, exposure=self._exposure, max_chars=max_chars)

    def is_recalled(self, text: str) -> bool:
        """Return True if a text only repeats text that `recall` returned in this conversation."""
        from mama_structs.session.recall_builder import is_recalled  # noqa: PLC0415

        self._check_here()
        return is_recalled(text, self._conversation.told)

    async def remember(self, messages: object, *, extract: Callable[..., Any], origin: Origin | None = None) -> Learned:
        """
        Extract memories from a conversation with a model of the host, and save the valid ones.

        *extract* is called as ``extract(prompt, schema)``, once per about 24,000 characters of messages: it passes the
        prompt to a model, with the JSON schema if the provider supports one, and returns the answer, as text or data.
        The source messages of each memory are stored as evidence, and its trust is the lowest of theirs. Text from
        memories, recalled or returned by a tool, is not extracted again; duplicates are merged. Only the session's
        judge can retire older memories.

        Args:
            messages: One message, a list, or a whole request or run, in any provider's format; a text is the user's.
            extract: A function, async or not; a synchronous one runs in a thread.
            origin: Upper limit for the trust of all messages, such as ``"outside"`` for mails; None for the author of
                each.

        Raises:
            InvalidArgument: An item is not a message, or another argument breaks its rule; nothing was saved.
            EmbeddingFailed: The embedder failed; nothing was saved.
            StoreError: The memories cannot be written.

        """
        from mama_structs.memory.store.extraction import Utterance, learn  # noqa: PLC0415
        from mama_structs.refs.messages.transcript import spoken_in  # noqa: PLC0415
        from mama_structs.session.wiring import author_of  # noqa: PLC0415 - lazy import

        self._check()

        def read(refs: mama_structs.RefStore) -> list[Utterance]:
            return [
                Utterance(
                    speaker=one.speaker,
                    origin=author_of(one.text, one.speaker, refs),
                    text=one.text,
                    source=f"message:{one.speaker}{'' if one.id is None else f'/{one.id}'}",
                )
                for one in spoken_in(messages)
            ]

        said = await self.refs.look(measure(messages), read)
        return await learn(self.memories, said, extract, is_recalled=self.is_recalled, origin=origin)

    def _author_of(self, text: str, speaker: Origin) -> Origin:
        """Return the least trusted author of a message, which may show the text of handles."""
        from mama_structs.session.wiring import author_of  # noqa: PLC0415 - lazy import

        return author_of(text, speaker, self.refs)

    # Refs and descriptors

    async def observe(self, message: object) -> mama_structs.Ingested:
        """
        Store the refs of a model's answer. They are on disk when this returns.

        Idempotent: the same message may be observed again, such as by an adapter. Diagnostics about the marks in the
        message are reported to the model with the next tool result of an adapter.

        Args:
            message: See `RefStore.ingest`. Any size is accepted; a large message is processed in a thread.

        Raises:
            InvalidArgument: *message* is not a model's answer; nothing was stored.
            StoreBusy: Other calls changed the refs during each of several attempts to store a large message.
            StoreError: The disk is not writable; the refs can be used, and the next `flush` tries again.

        """
        from mama_structs.refs.store.ref_collector import message_load  # noqa: PLC0415 - lazy import

        self._check()
        load = message_load(message)
        # An adapter and the host may observe one message concurrently: the second one must find the first.
        async with self._observing:
            ingested = await run_inline_or_in_thread(load, self._heard.before, message)
            if ingested is None:
                ingested = await self.refs.change(load, lambda refs: refs.ingest(message))
                self._heard.keep(message, ingested)
        await self.flush()
        return ingested

    def stream(self) -> SessionStream:
        """Return a stream for an answer in chunks: ``feed(chunk)``, then ``await close()``."""
        self._check_here()
        return SessionStream(self.refs.stream(), self._streamed)

    async def _streamed(self, ingested: mama_structs.Ingested) -> None:
        self._heard.streamed(ingested)
        await self.flush()

    async def wrap(self, result: Any, *, source: str = "tool_result") -> Any:
        """
        Return a result as a model should read it, truncated if it is long.

        The full result is stored on disk.

        A large result is processed in a thread.

        Args:
            result: See `RefStore.wrap`. Do not change it before the call returns.
            source: The source of the result, which determines the origin of the new handles: ``"user_input"`` and
                ``"host"`` are the user's, ``"tool_result"`` is a tool's, every other one, such as ``"web"``, is from
                outside. With ``"user_input"`` the user's own words around the pasted text stay visible.

        Raises:
            StoreError: The disk is not writable.

        """
        self._check()
        shown = await self.refs.change(measure(result), lambda refs: refs.wrap(result, source=source))
        if shown is not result:
            await self.flush()
        return shown

    def system_prompt(self, *, handles: bool = False) -> str:
        """
        Return the part of the system prompt that explains memories, refs and descriptors.

        It uses wire names, and names only existing tools.

        Args:
            handles: Whether to list the existing refs and descriptors.

        """
        from mama_structs.recall import SENTENCE  # noqa: PLC0415 - lazy import
        from mama_structs.tools.instructions import memory_instructions  # noqa: PLC0415

        self._check_here()
        memory = self.wire_names.said(memory_instructions(self.tools, recalled=SENTENCE))
        return "\n\n".join(filter(None, (memory, self.refs.prompt(handles=handles))))

    def fork(self, conversation: str | None = None) -> Session:
        """
        Return a session with copied refs and descriptors, and shared memories and resolver.

        Later refs and descriptors are not shared, and closing one session leaves the other one open.
        The fork has the tools that were added to this session; ready-made tools work on the fork's own refs.
        With a name on a server, the call blocks for the server's answer, limited by the timeouts in the settings.

        Args:
            conversation: Name of the fork; None for a fresh one.

        Raises:
            InvalidArgument: The namespace has a conversation with this name.
            StoreBusy: Another process has it open.

        """
        self._check_here()
        forked = self._common.home.fork(self._conversation, conversation, self._common.loop.loop)
        session = type(self)(
            self._common,
            forked,
            settings=self.settings,
            exposure=self._exposure,
            added=[tool for tool in self.tools.values() if not self._is_own(tool)],
        )
        for name in set(session.tools) - set(self.tools):
            session.tools.remove(name)
        return session

    async def check(self) -> CheckReport:
        """
        Check the session's files for damage, without changing anything.

        Raises:
            StoreError: The directory cannot be read at all.

        """
        self._check()
        findings = await self._common.home.check()
        return CheckReport((*findings, *await self.memories.check()))

    async def backup(
        self, path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
    ) -> Path:
        """
        Copy the session's whole directory as a consistent snapshot.

        Other processes may keep writing.

        Args:
            path: A directory that is missing or empty; a session can be opened in the copy.
            progress: Called with the number of copied pages of the database, and the total number.

        Returns:
            The copy's path.

        Raises:
            InvalidArgument: The session has no directory, or *path* is not empty.
            StoreError: The copy failed; its files were removed.

        """
        from mama_structs.storage.backup import backup  # noqa: PLC0415

        self._check()
        directory = self._common.home.path
        if directory is None:
            hint = (
                "open it with a location" if self.location is None else "use the server's own: pg_dump -n mama_structs"
            )
            raise InvalidArgument("a session without a directory cannot be backed up", hint=hint)
        target = _path(path)
        await self.flush()
        await backup(directory, target, progress=progress)
        return target

    async def maintain(self) -> Maintained:
        """
        Prune weak and old automatic links, at most once a week. Cheap if nothing is due.

        Also deletes conversations that were not used for ``settings.descriptors.conversation_ttl`` seconds.
        Runs automatically when a session opens.

        Raises:
            StoreError: The directory cannot be written to.

        """
        self._check()
        await _expire(self._common.home, self._conversation, self.settings)
        return await self.memories.maintain()

    async def warm_up(self) -> None:
        """
        Load the embedder, the views, the reranker and the cues, which are slow on first use.

        Raises:
            EmbeddingFailed: The embedder cannot be loaded.
            StoreError: The memories cannot be read.

        """
        self._check()
        # Compiling the cues takes a quarter of a second, for which `tools_for` would block the event loop.
        await in_own_thread(lambda: self.exposed.exposure.detect(""))
        await self.memories.warm_up()

    def stats(self) -> dict[str, Any]:
        """
        Return statistics of memories (as of the last call), refs and references.

        The repr is a table.
        """
        self._check_here()
        return Figures(
            memories=self.memories.figures(),
            refs={"handles": len(self.refs)},
            references=attrs.asdict(self.resolver.stats),
        )

    async def flush(self) -> None:
        """
        Wait until everything stored so far is on disk.

        Raises:
            StoreError: The disk is not writable; no data is lost, and the next flush tries again.

        """
        self._check()
        await self._common.home.flush()

    async def close(self) -> None:
        """
        Cancel running calls, write pending data to disk, and release connections. Idempotent.

        Runs to completion once started, even if the caller is cancelled.

        Raises:
            WrongLoop: The session belongs to another event loop, and stays open there.
            StoreError: Pending data could not be written. The conversation stays locked until another call
                succeeds or the process ends; everything else was released.

        """
        self._common.loop.check()
        self._closed = True
        open_sessions.discard(self)
        loop = asyncio.get_running_loop()
        if self._closing is None:
            self._closing = loop.create_task(self._common.leave(self._conversation))
        elif self._closing.done() and not self._closing.cancelled() and self._closing.exception() is not None:
            self._closing = loop.create_task(self._common.home.finish())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        self._check()
        enter_session(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave_session(self)
        await self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._common.loop.is_elsewhere:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def _check_here(self) -> None:
        """Raise unless the session is open and used in its thread. Needs no running loop."""
        if self._closed:
            raise SessionClosed("the session is closed", hint="work inside its with block, or open another one")
        self._common.loop.check_thread()

    def _check(self) -> None:
        self._check_here()
        self._common.loop.check()


class SessionStream:
    """
    A stream for a model's answer: ``feed`` every chunk, then ``await close()``.

    Args:
        stream: The stream of the ref store, which parses and stores the refs.
        closed: Called with the result when the stream closes; waits for the disk.

    """

    def __init__(self, stream: Any, closed: Callable[[mama_structs.Ingested], Awaitable[None]]) -> None:
        self._stream = stream
        self._closed = closed

    def __repr__(self) -> str:
        return f"<SessionStream of {self._stream!r}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Process the next chunk, and return the new parser events; see `RefStream.feed`.

        Raises:
            InvalidArgument: *chunk* is not part of an answer, or has more than 1,000,000 characters or 1,000 refs.
            SessionClosed: The stream was closed.

        """
        events: list[Event] = self._stream.feed(chunk)
        return events

    async def close(self) -> mama_structs.Ingested:
        """
        Store the refs, which are on disk when this returns.

        Idempotent: a second call returns the same result.

        Raises:
            StoreError: The disk is not writable; the refs can be used, and the next `Session.flush` tries again.

        """
        ingested: mama_structs.Ingested = await self._stream.finish()
        await self._closed(ingested)
        return ingested


async def _expire(home: Home, conversation: Conversation, settings: Settings) -> None:
    """Delete the conversations that were not used within the TTL, if the settings have one."""
    ttl = settings.descriptors.conversation_ttl
    if ttl is not None and home.location is not None:
        before = conversation.refs.now() - timedelta(seconds=ttl)
        count = await home.expire(conversation.key.namespace, before)
        _log.log(logging.INFO if count else logging.DEBUG, "%d conversations were deleted, unused for %g s", count, ttl)


@attrs.frozen
class CheckReport:
    """
    Result of `Session.check`; ``str()`` of it has one line for each finding.

    Args:
        findings: All findings. Those with severity "warning" are not damage.

    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{one.severity}: {one.message}" for one in self.findings) or "no damage found"


class Opening:
    """
    A session that is not open yet: await it, or enter it with ``async with``.

    Any other use raises an error that explains how to open it.
    """

    def __init__(self, make: Callable[[], Awaitable[Session]]) -> None:
        self._make = make
        self._opening = asyncio.Lock()
        self._session: Session | None = None

    def __repr__(self) -> str:
        """Return a text that explains how to open the session."""
        return f"<Session that is not open: {_FORGOTTEN}>"

    # Hidden from type checkers, so that they report the mistake in the caller's code.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"the session is not open, so it has no {name!r} ({_FORGOTTEN})")

        def __enter__(self) -> NoReturn:
            raise InvalidArgument("a session is entered with async with", hint=_FORGOTTEN)

        def __exit__(self, *_: object) -> None:
            """Required by the protocol: without it, `with` would not call `__enter__`."""

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def _open(self) -> Session:
        async with self._opening:
            if self._session is None:
                self._session = await self._make()
        return self._session

    async def __aenter__(self) -> Session:
        return await (await self._open()).__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, traceback)


def _known(settings: object) -> Settings:
    """Validate a session's settings, and load OpenTelemetry if they enable it."""
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidArgument(f"settings must be Settings, got {shown(settings)}")
    known = with_its_tools(settings or Settings())
    if known.telemetry.enabled:
        load()
    return known


def _read(arguments: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    from mama_structs.tools.argument_repair import read_arguments  # noqa: PLC0415 - lazy import

    return read_arguments(arguments) if arguments is None or isinstance(arguments, str) else arguments


def _structs_source(structs: object) -> EntitySource:
    # Lazy: the chain's models take longer to load than all other modules, and most sessions do not need them.
    from mama_structs.structs.source import StructsSource  # noqa: PLC0415

    return structs if isinstance(structs, StructsSource) else StructsSource(structs)


def _offered(
    source: OffersTools, resolver: Resolver, options: ReferenceOptions | None
) -> Iterable[Callable[..., Awaitable[Any]]]:
    """Return the tools of a source. *options* are passed only if its method accepts them."""
    if options is None:
        return source.tools(resolver)
    try:
        inspect.signature(source.tools).bind(resolver, options)
    except TypeError:
        return source.tools(resolver)
    return source.tools(resolver, options)


def _sources(
    structs: object, sources: Iterable[EntitySource], *, resolver: object, references: object
) -> tuple[EntitySource, ...]:
    """Return the sources to use, or raise `InvalidArgument` for an invalid combination."""
    if references is not None and not isinstance(references, ReferenceOptions):
        raise InvalidArgument(f"references must be ReferenceOptions, got {shown(references)}")
    own = check_sources(sources)
    every = own if structs is None else check_sources([_structs_source(structs), *own])
    if resolver is None:
        return every
    if not isinstance(resolver, Resolver):
        raise InvalidArgument(f"resolver must be a Resolver, got {shown(resolver)}")
    if every:
        raise InvalidArgument(
            "resolver= has its own sources, so structs= and sources= must not be given with it",
            hint="Resolver([StructsSource(URL), ...]) for all sessions, or leave resolver out",
        )
    return resolver.sources


async def _store(location: str | os.PathLike[str]) -> Path | str:
    place = _place(location)
    if isinstance(place, Path):
        if not is_store(place):
            raise InvalidArgument(f"{os.fspath(place)!r:.200} is no session's directory")
        return place
    from mama_structs.storage.postgres.pool import has_session  # noqa: PLC0415 - lazy import

    if not await in_own_thread(lambda: has_session(place)):
        raise InvalidArgument("in that database was no session yet", hint="nothing was made; check its address")
    return place


def _place(location: str | os.PathLike[str]) -> Path | str:
    """Return a session's location: a directory, or the URL of a server."""
    if not is_address(location):
        return _path(location)
    from mama_structs.storage.postgres.pool import check_url  # noqa: PLC0415 - lazy import

    return check_url(location)


def _path(location: str | os.PathLike[str]) -> Path:
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"location must be a directory or None, got {shown(location)}")
    if is_address(text):
        raise InvalidArgument("this must be a directory, and is the address of a server")
    try:
        path = Path(text)
        too_long = any(len(part.encode()) > _MAX_PART for part in path.parts)
        is_file = path.exists() and not path.is_dir()
    except (OSError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"location cannot be a directory: {shown(text)}") from error
    if too_long:
        raise InvalidArgument(f"location has a name of more than {_MAX_PART} bytes: {shown(text)}")
    if is_file:
        raise InvalidArgument(f"location must be a directory, and {shown(text)} is a file")
    check_path(path.absolute() / "journal")
    return path
