"""The `Session`: the object that a host opens, uses and closes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import os
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import attrs

import mama_structs  # for annotations only; its names are imported when a session opens or type hints are evaluated
from mama_structs._internal.event_loop import enter_session, leave_session, open_sessions, run_in_own_thread
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs._internal.reprs import StatsTable, escape_html, format_count, format_heading, format_table, wrap_html
from mama_structs._internal.telemetry import instrument
from mama_structs.errors import InvalidArgument, SessionClosed
from mama_structs.memory.types.judge import Judge
from mama_structs.memory.types.reports import ExtractionResult
from mama_structs.memory.types.reranker import Reranker
from mama_structs.provenance import Origin
from mama_structs.recall import Recall
from mama_structs.references.decorator import ReferenceDecorator, make_decorator
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.resolver import Resolver
from mama_structs.references.schemes import EntitySource, Source
from mama_structs.refs.markup.parser import Event
from mama_structs.session.ui_server import UiServer
from mama_structs.settings import Settings
from mama_structs.tools.pass_by_reference import ResolvedArguments

if TYPE_CHECKING:
    from mama_structs.memory.records.record_store import RecordStore
    from mama_structs.refs.store.observed_messages import ObservedMessages
    from mama_structs.session.backend import OpenConversation
    from mama_structs.session.opening import SharedState

# Maximum number of suggested ids per answer, because each note costs tokens.
MAX_SUGGESTIONS = 3
# Error hint for code that uses a session before opening it.
NOT_OPEN_HINT = (
    "session = await Session.open(...), or async with Session.open(...) as session; "
    "where nothing can be awaited: from mama_structs.sync import Session"
)


@with_call_hints(peer_names.SESSION)
class Session:
    """
    Memories, refs, references and tools of one agent; created by `Session.open`.

    Belongs to the event loop that opened it.
    Inside ``async with``, it is also the session that an unbound `with_references` or `with_descriptors` uses.

    Attributes:
        settings: The given settings; descriptors are disabled if the tool profile lacks ``read_fd``.
        location: The session's directory, or its server's URL without the password; None for a temporary session.
        namespace: Namespace of the memories, records and conversations.
        conversation: Name of the conversation, with which `open` continues it.
        memories: Decisions, checkpoints, insights and contexts; forks share them.
        records: JSON values that hosts store under labels and a key; forks share them.
        refs: The store of refs and descriptors.
        resolver: Resolves references; forks share it.
        reference_options: Defaults and ceilings of tools that add references; None for the built-in ones.
        tools: All tools, including those that the model does not see.
        exposed_tools: The tools that the model sees.

    """

    def __init__(
        self,
        common: Any,
        conversation: Any,
        *,
        settings: Settings,
        tool_selector: mama_structs.ToolSelector | None,
        inherited_tools: Iterable[mama_structs.Tool] | None = None,
    ) -> None:
        from mama_structs.memory.records.record_store import RecordStore  # noqa: PLC0415 - lazy import
        from mama_structs.refs.store.observed_messages import ObservedMessages  # noqa: PLC0415
        from mama_structs.session.tool_calls import ToolCalls  # noqa: PLC0415 - lazy import
        from mama_structs.session.wiring import make_content_finder, make_reference_budget  # noqa: PLC0415 - lazy import
        from mama_structs.tools.exposed_tools import ExposedTools  # noqa: PLC0415

        self._shared: SharedState = common
        self._conversation: OpenConversation = conversation
        self._tool_selector = tool_selector
        self.settings: Settings = settings
        self.location: Path | str | None = common.location
        self.conversation: str = conversation.key.name
        self.refs: mama_structs.RefStore = conversation.refs
        self.memories: mama_structs.MemoryStore = common.memories._resolving(make_content_finder(self.refs))
        self.records: RecordStore = RecordStore(self.memories._shared)
        self.resolver: Resolver = common.resolver
        self.reference_options: ReferenceOptions | None = common.references
        self.refs._own_share = make_reference_budget(self.resolver)
        self._observed_messages: ObservedMessages = ObservedMessages()
        self._tool_calls: ToolCalls = ToolCalls(
            self.memories,
            self.refs,
            self._observed_messages,
            settings=settings,
            source_tools=common.source_tools,
            inherited=inherited_tools,
        )
        self.tools: mama_structs.ToolSet = self._tool_calls.tools
        self.exposed_tools: ExposedTools = ExposedTools(self.tools, selector=tool_selector, mode=settings.tools.dynamic)
        self._observe_lock = asyncio.Lock()
        self._close_task: asyncio.Task[None] | None = None
        self._ui_server: UiServer | None = None
        self._ui_lock = asyncio.Lock()
        common.users += 1
        self._closed = False
        open_sessions.add(self)

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str] | None = None,
        *,
        structs: str | Any | None = None,
        sources: Iterable[Source | EntitySource] = (),
        embedder: mama_structs.Embedder | None = None,
        reranker: Reranker | None = None,
        judge: Judge | None = None,
        namespace: str = "default",
        read_namespaces: Iterable[str] = (),
        conversation: str | None = None,
        files_root: str | os.PathLike[str] | None = None,
        reference_options: ReferenceOptions | None = None,
        resolver: Resolver | None = None,
        settings: Settings | None = None,
        tool_selector: mama_structs.ToolSelector | None = None,
    ) -> SessionOpening:
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
                or the default in a new store: `SentenceEmbedder` if it is installed, else `HashEmbedder`.
            reranker: Reorders the best hits of a search by reading them with the query; None for no reranking.
            judge: Classifies each new memory against older ones on the same subject, see
                `mama_structs.memory.types.judge.Judge`; None for no judge.
            namespace: Namespace of the memories and conversations. Others are not accessible, except for
                *read_namespaces*.
            read_namespaces: Further namespaces whose memories can be read but not written; see `Memory.namespace`.
            conversation: Name of the conversation to continue or create; None for a fresh one.
            files_root: Directory below which models may write files; it is created with the first file. None: models
                have no tool that writes files.
            reference_options: Defaults for the ready-made tools and for `with_references` of this session, and ceilings
                for the values that models request; see `ReferenceOptions`.
            resolver: A resolver that several sessions share. Its sources replace *structs* and *sources*; its cache,
                its limits and its ``settings.references`` apply. Its creator closes it, after the sessions.
            settings: See `Settings`.
            tool_selector: Detects the topic of a message for `tools_for`; None for the built-in cues.

        Raises:
            InvalidArgument: An argument breaks its rule; raised immediately, before anything is opened.
            StoreError: The directory cannot be used; raised when the session opens.
                Subclasses give the reason, such as `StoreBusy` if another process has the conversation open.
            EmbedderMismatch: Another embedder made the vectors of the memories; raised when the session opens.
            WrongLoop: *resolver* belongs to another event loop; raised when the session opens.
            SessionClosed: *resolver* is closed; raised when the session opens.
            ImportError: *settings* enable OpenTelemetry, which is not installed; raised immediately.

        """
        from mama_structs.session.opening import OpenRequest  # noqa: PLC0415 - lazy import

        request = OpenRequest(
            location=location,
            structs=structs,
            sources=sources,
            embedder=embedder,
            reranker=reranker,
            judge=judge,
            namespace=namespace,
            read_namespaces=read_namespaces,
            conversation=conversation,
            files_root=files_root,
            reference_options=reference_options,
            resolver=resolver,
            settings=settings,
            tool_selector=tool_selector,
        )
        return SessionOpening(functools.partial(request.open, cls))

    def __repr__(self) -> str:
        where = f" at {str(self.location)!r}" if self.location else ""
        where += f" in namespace {self.namespace!r}"
        handles = self._conversation.refs.usage.handles
        handle_count, state = format_count(handles, "handle"), ", closed" if self._closed else ""
        return f"<Session{where}, {len(self.tools)} tools, {handle_count}{state}>"

    def _repr_html_(self) -> str:
        if self._closed or self._shared.loop.is_forked_child:
            return wrap_html(escape_html(repr(self)))
        figures = self.memories._figures()
        rows = {
            "location": self.location or "none: nothing is left of it",
            "conversation": self.conversation,
            "namespace": ", reads ".join([self.memories.namespace, *self.memories.read_namespaces]),
            "memories": f"{figures.get('memories', 0):,}",
            "links": f"{figures.get('links', 0):,}",
            "embedder": self.memories.embedder.name,
            "refs": format_count(len(self.refs), "handle"),
            "tools": f"{len(self.tools):,}",
        }
        return wrap_html(format_heading("Session"), format_table([*rows.items()]))

    @property
    def namespace(self) -> str:
        """The namespace of the memories, records and conversations."""
        return self.memories.namespace

    @property
    def _hidden(self) -> tuple[str, ...]:
        """Names of callable tools that models do not see: by default the v1.0 tools."""
        return self._tool_calls.hidden

    @property
    def is_open(self) -> bool:
        """True if neither the session nor its event loop is closed."""
        return not self._closed and not self._shared.loop.is_unusable

    @property
    def with_references(self) -> ReferenceDecorator:
        """The decorator `with_references`, bound to this session."""
        return make_decorator(self.resolver, self.reference_options)

    def tools_for(self, message: object) -> list[mama_structs.Tool]:
        """
        Return the tools that a model should see for a user's message, the most relevant first.

        Memory tools are omitted only if the topic of the message is clear; see `ToolSelector`. Omitted tools can still
        be called. Tools of the host, of refs and of the chain are never omitted.

        Args:
            message: A text, or a provider's message or list of messages, whose last user message is used.

        """
        self._check_here()
        self.exposed_tools.for_message(message)
        return self.exposed_tools.tools()

    def tool_names_for(self, message: object) -> tuple[str, ...]:
        """
        Return the names of the tools that `tools_for` selects, most relevant first.

        For providers that restrict the choice without changing the tool list, as ``allowed_tools`` does: prompt caches
        and runs depend on that list. It does not change the results of `tools` and `exposed_tools`.

        Args:
            message: As for `tools_for`.

        """
        self._check_here()
        return self.exposed_tools.tool_names_for(message)

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
        backslash, or ``resolves_handles=False`` of the tool, prevents it. The log, and an adapter's answer to the
        model, name the inserted handles; see `resolve_arguments`. The compact JSON of the answer fits into the budget
        of the settings. A longer result is truncated by its structure and says so under ``shortened``; handles give
        the rest; see `RefStore.wrap`. References may use half of the budget, and lose fields before they are omitted.
        Each part of the result without a JSON form is replaced by a text that says that the tool has run.

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
            Exception: A tool of the host raised it; it is passed on unchanged.

        """
        self._check()
        return await self._tool_calls.call(self, tool_name, arguments, host=host, max_chars=max_chars)

    def resolve_arguments(self, tool_name: str, arguments: Mapping[str, Any] | str | None = None) -> ResolvedArguments:
        """
        Return a tool's arguments as `call` would pass them, so that a person can approve them.

        Args:
            tool_name: As for `call`.
            arguments: As for `call`.

        Raises:
            UnknownTool: There is no such tool.
            InvalidArgument: An argument is missing, unknown or of the wrong type.
            HandleNotFound: A handle in an argument does not exist.

        """
        self._check_here()
        return self._tool_calls.resolved(tool_name, arguments)

    # Memories

    async def recall(
        self,
        message: object,
        *,
        max_chars: int = 2_000,
        repeat: bool = False,
        conversation: str | None = None,
        explain: bool = False,
    ) -> Recall:
        """
        Return the memories that are relevant to a message; empty if there are none.

        The text contains the last state of the work (if the message continues it), current memories on the topic,
        failures with their reasons, and contradictory memories. Of a long memory, the text contains the passage that
        answers. An outdated statement is in a section of its own, and only with the current one. A conversation and its
        forks get each passage once, until the memory changes.

        Args:
            message: A text, or a provider's message or list of messages, whose last user message is used.
            max_chars: Maximum number of characters of the text, 300 or more.
            repeat: Whether to repeat facts that were already recalled, as after the conversation was compacted.
            conversation: Name of the dialogue that gets the text, if several share this session; None for the
                session's own conversation. The log of what each dialogue got is kept with that conversation.
            explain: Whether `Recall.lines` gives the reason for each line, and `Recall.left_out` the memories that were
                found and left out.

        Raises:
            InvalidArgument: *max_chars* or *conversation* is invalid.
            EmbeddingFailed: The embedder failed.
            StoreError: The memories cannot be read.

        """
        from mama_structs.session.recall_builder import build_recall  # noqa: PLC0415 - lazy import

        self._check()
        recall_log = self._conversation.recall_log
        if conversation is not None and conversation != self.conversation:
            recall_log = recall_log.for_conversation(conversation)
        if repeat:
            recall_log.clear()
        namespace = self.memories.namespace
        about = {"data_source__id": namespace, "conversation__id": self.conversation}
        with instrument("retrieval", namespace, **about):
            return await build_recall(
                self.memories,
                message,
                recall_log=recall_log,
                tool_selector=self._tool_selector,
                max_chars=max_chars,
                explain=explain,
            )

    def was_recalled(self, text: str) -> bool:
        """Return True if a text only repeats text that `recall` returned in this conversation."""
        from mama_structs.session.recall_builder import is_recalled  # noqa: PLC0415

        self._check_here()
        return is_recalled(text, self._conversation.recall_log)

    async def remember(
        self, messages: object, *, extract: Callable[..., Any], origin: Origin | None = None
    ) -> ExtractionResult:
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
        from mama_structs.memory.store.extraction import Utterance, extract_memories  # noqa: PLC0415
        from mama_structs.refs.messages.transcript import extract_transcript  # noqa: PLC0415
        from mama_structs.session.wiring import find_author  # noqa: PLC0415 - lazy import

        self._check()

        def read(refs: mama_structs.RefStore) -> list[Utterance]:
            return [
                Utterance(
                    speaker=one.speaker,
                    origin=find_author(one.text, one.speaker, refs),
                    text=one.text,
                    source=f"message:{one.speaker}{'' if one.id is None else f'/{one.id}'}",
                )
                for one in extract_transcript(messages)
            ]

        utterances = await self.refs._run_read(measure_input(messages), read)
        return await extract_memories(self.memories, utterances, extract, is_recalled=self.was_recalled, origin=origin)

    # Refs and descriptors

    async def observe(self, message: object) -> mama_structs.ObservedMessage:
        """
        Store the refs of a model's answer. They are on disk when this returns.

        Idempotent: the same message may be observed again, such as by an adapter. Diagnostics about the marks in the
        message are reported to the model with the next tool result of an adapter.

        Args:
            message: See `RefStore.observe`. Any size is accepted; a large message is processed in a thread.

        Raises:
            InvalidArgument: *message* is not a model's answer; nothing was stored.
            StoreBusy: Other calls changed the refs during each of several attempts to store a large message.
            StoreError: The disk is not writable; the refs can be used, and the next `flush` tries again.

        """
        from mama_structs.refs.store.ref_collector import measure_message  # noqa: PLC0415 - lazy import

        self._check()
        load = measure_message(message)
        # If an adapter and the host observe one message concurrently, the second call must find the first.
        async with self._observe_lock:
            ingested = await run_inline_or_in_thread(load, self._observed_messages.find_earlier, message)
            if ingested is None:
                ingested = await self.refs._change(load, lambda refs: refs.observe(message))
                self._observed_messages.record(message, ingested)
                await self._add_suggestions(ingested)
        await self.flush()
        return ingested

    def stream(self) -> SessionStream:
        """Return a stream for an answer in chunks: ``feed(chunk)``, then ``await close()``."""
        self._check_here()
        return SessionStream(self.refs.stream(), self._finish_stream)

    async def _finish_stream(self, ingested: mama_structs.ObservedMessage) -> None:
        if self._observed_messages.record_stream(ingested):
            await self._add_suggestions(ingested)
        await self.flush()

    async def _add_suggestions(self, ingested: mama_structs.ObservedMessage) -> None:
        """Add notes with suggested ids for the code blocks of a message that are not marked, if the host wants them."""
        settings = self.settings.descriptors
        if not (settings.suggest_refs and settings.marks_enabled):
            return
        text = ingested.text
        if not self._observed_messages.is_first(text):
            return
        found = await self.refs._run_read(measure_input(text), lambda refs: refs.suggest_refs(text))
        # Another note is about the tags in these blocks.
        tags = [one.position for one in ingested.diagnostics if one.kind == "in_code"]
        new = (one for one in found if not any(one.start <= position <= one.end for position in tags))
        for one in itertools.islice(new, MAX_SUGGESTIONS):
            self._observed_messages.add_note(
                f'the code block at line {one.line} is not stored: put it between <ref id="{one.id}"> and </ref>'
                " if it may be needed again"
            )

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
        answer = await self.refs._change(measure_input(result), lambda refs: refs.wrap(result, source=source))
        if answer is not result:
            await self.flush()
        return answer

    def system_prompt(self, *, handles: bool = False) -> str:
        """
        Return the part of the system prompt that explains memories, refs and descriptors.

        It uses wire names, and names only existing tools.

        Args:
            handles: Whether to list the existing refs and descriptors.

        """
        from mama_structs.recall import SENTENCE  # noqa: PLC0415 - lazy import
        from mama_structs.tools.instructions import render_memory_instructions  # noqa: PLC0415
        from mama_structs.tools.ref_tools import TOOL_NAMES  # noqa: PLC0415

        self._check_here()
        memory = self.tools.wire_names._replace_tool_names(render_memory_instructions(self.tools, recalled=SENTENCE))
        refs = self.refs._render_prompt(TOOL_NAMES - self.tools.keys(), handles=handles)
        return "\n\n".join(filter(None, (memory, refs)))

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
        forked = self._shared.home.fork(self._conversation, conversation, self._shared.loop.loop)
        session = type(self)(
            self._shared,
            forked,
            settings=self.settings,
            tool_selector=self._tool_selector,
            inherited_tools=[tool for tool in self.tools.values() if not self._tool_calls.is_own(tool)],
        )
        for name in set(session.tools) - set(self.tools):
            session.tools.remove(name)
        return session

    async def ui(self, *, port: int = 0, write: bool | None = None) -> UiServer:
        """
        Return the server of a local web page that shows the store, and start it if necessary.

        It listens on 127.0.0.1 only, and stops when the session closes.
        A session has one server: further calls return it. A call with another *port* or *write* replaces it with a
        server that has a new address.

        Args:
            port: The port, 0 for any.
            write: Whether the page can change and delete memories. None does not change a running server, and starts a
                new one as read-only.

        Raises:
            InvalidArgument: *port* or *write* is invalid.
            MamaStructsError: The port is in use.
            ImportError: The extra ``ui`` is not installed.

        """
        self._check()
        # Import by name, because the layer of the pages is above this one.
        pages = importlib.import_module("mama_structs.ui.server")
        async with self._ui_lock:
            running = self._ui_server
            self._ui_server = await pages.serve_ui(self, port=port, write=write, running=running)
            if running not in {None, self._ui_server}:
                await running.close()
        if self._closed:
            # It was closed meanwhile, without this server.
            await self._ui_server.close()
            self._check()
        return self._ui_server

    async def preload(self) -> None:
        """
        Load the embedder, the views, the reranker and the cues, which are slow on first use.

        Raises:
            EmbeddingFailed: The embedder cannot be loaded.
            StoreError: The memories cannot be read.

        """
        self._check()

        def load() -> None:
            from mama_structs.session import recall_builder  # noqa: F401, PLC0415 - loaded for later calls

            self.exposed_tools.selector.detect("")

        # Use a thread. Otherwise `recall` and `tools_for` would block the event loop for a quarter of a second.
        await run_in_own_thread(load)
        await self.memories._warm_up()

    def stats(self) -> dict[str, Any]:
        """
        Return statistics of memories (as of the last call), refs and references.

        The repr is a table.
        """
        self._check_here()
        return StatsTable(
            memories=self.memories._figures(),
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
        await self._shared.home.flush()

    async def close(self) -> None:
        """
        Cancel running calls, write pending data to disk, and release connections. Idempotent.

        Runs to completion once started, even if the caller is cancelled.

        Raises:
            WrongLoop: The session belongs to another event loop, and stays open there.
            StoreError: Pending data could not be written. The conversation stays locked until another call
                succeeds or the process ends; everything else was released.

        """
        self._shared.loop.check()
        self._closed = True
        open_sessions.discard(self)
        loop = asyncio.get_running_loop()
        if self._close_task is None:
            self._close_task = loop.create_task(self._leave())
        elif self._close_task.done() and not self._close_task.cancelled() and self._close_task.exception() is not None:
            self._close_task = loop.create_task(self._shared.home.finish())
        await asyncio.shield(self._close_task)

    async def _leave(self) -> None:
        # The data must be written even if a server does not stop.
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._shared.leave, self._conversation)
            if self._ui_server is not None:
                stack.push_async_callback(self._ui_server.close)

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
        if not getattr(self, "_closed", True) and not self._shared.loop.is_forked_child:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def _check_here(self) -> None:
        """
        Raise if the session is closed or used in another thread.

        Works without a running event loop.
        """
        if self._closed:
            raise SessionClosed("the session is closed", hint="work inside its with block, or open another one")
        self._shared.loop.check_thread()

    def _check(self) -> None:
        self._check_here()
        self._shared.loop.check()


class SessionStream:
    """
    A stream for a model's answer: ``feed`` every chunk, then ``await close()``.

    Args:
        stream: The stream of the ref store, which parses and stores the refs.
        closed: Called with the result when the stream closes; waits for the disk.

    """

    def __init__(self, stream: Any, closed: Callable[[mama_structs.ObservedMessage], Awaitable[None]]) -> None:
        self._stream = stream
        self._on_close = closed

    def __repr__(self) -> str:
        return f"<SessionStream of {self._stream!r}>"

    def feed(self, chunk: object) -> list[Event]:
        """
        Process the next chunk of the answer; return new parser events, see `RefStream.feed`.

        Raises:
            InvalidArgument: *chunk* is not part of an answer, or has more than 1,000,000 characters or 1,000 refs.
            SessionClosed: The stream was closed.

        """
        events: list[Event] = self._stream.feed(chunk)
        return events

    async def close(self) -> mama_structs.ObservedMessage:
        """
        Store the refs, which are on disk when this returns.

        Idempotent: a second call returns the same result.

        Raises:
            StoreError: The disk is not writable; the refs can be used, and the next `Session.flush` tries again.

        """
        ingested: mama_structs.ObservedMessage = await self._stream.finish()
        await self._on_close(ingested)
        return ingested


class SessionOpening:
    """
    A session that is not open yet: await it, or enter it with ``async with``.

    Any other use raises an error that explains how to open it.
    """

    def __init__(self, make: Callable[[], Awaitable[Session]]) -> None:
        self._make = make
        self._opening = asyncio.Lock()
        self._session: Session | None = None

    def __repr__(self) -> str:
        """Return a text that says how to open the session."""
        return f"<Session that is not open: {NOT_OPEN_HINT}>"

    # Type checkers do not see these methods, so they report the missing attribute in the caller's code.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"the session is not open, so it has no {name!r} ({NOT_OPEN_HINT})")

        def __enter__(self) -> NoReturn:
            raise InvalidArgument("a session is entered with async with", hint=NOT_OPEN_HINT)

        def __exit__(self, *_: object) -> None:
            """Required by `with`, which would otherwise not call `__enter__` with its helpful error."""

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
