"""Tool calls of a session: find the tool, insert the texts of handles, run it, and fit its result into the budget."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import mama_structs  # for annotations only, because `mama_structs.session.session` imports this module
from mama_structs._internal.budget import Budget
from mama_structs._internal.control_flow import is_framework_result
from mama_structs._internal.event_loop import answer_room, using_session
from mama_structs._internal.jsonable import to_answer
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs._internal.telemetry import instrument
from mama_structs._internal.validation import check_integer
from mama_structs.errors import DescriptorError, InvalidArgument, StoreError
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.provenance import UNKNOWN_ORIGIN, Provenance, find_trusts, least_trusted, limit_stored_provenance
from mama_structs.references.section_truncation import AnswerRoom
from mama_structs.refs.messages.media import to_content_blocks
from mama_structs.refs.store.decorator import apply_to_result, shorten_to_budget
from mama_structs.refs.store.entries import TOOL_RESULT_SOURCE
from mama_structs.refs.store.observed_messages import ObservedMessages
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.session.wiring import make_answer_room
from mama_structs.settings import Settings
from mama_structs.tools.argument_repair import read_arguments
from mama_structs.tools.memory_results import free_quota
from mama_structs.tools.memory_tools import make_memory_tools
from mama_structs.tools.pass_by_reference import ResolvedArguments, substitute_handles
from mama_structs.tools.ref_tools import make_ref_tools
from mama_structs.tools.tool import ErrorText, Tool, ToolSet
from mama_structs.tools.wire_names import DEPRECATED_SUCCESSORS, select_profile

_log: Final = logging.getLogger("mama_structs")

# With a smaller budget, an answer could not say what it omits.
MIN_BUDGET_CHARS: Final = 100


class ToolCalls:
    """
    The tools of one session. Runs their calls.

    Args:
        memories: The memories that the memory tools use.
        refs: The store of the handles in arguments and results.
        heard: Receives a note about each insertion of texts.
        settings: The session's settings.
        source_tools: Ready-made tools of the session's sources.
        inherited: Tools of a fork's parent, except its memory and ref tools, in their order; None unless it is a fork.

    """

    def __init__(
        self,
        memories: MemoryStore,
        refs: RefStore,
        heard: ObservedMessages,
        *,
        settings: Settings,
        source_tools: Sequence[Tool],
        inherited: Iterable[Tool] | None,
    ) -> None:
        self.tools: ToolSet = ToolSet(hidden=lambda: self.hidden)
        self._memories = memories
        self._refs = refs
        self._heard = heard
        self._settings = settings
        own = make_ref_tools(refs)
        if settings.tools.memory:
            deprecated = self._deprecated.values() if settings.tools.deprecated else ()
            own = [*make_memory_tools(memories, refs, forget=settings.tools.forget), *own, *deprecated]
        chosen = select_profile(settings.tools.profile, [tool.name for tool in (*own, *source_tools)])
        self._own = {tool.name: tool for tool in own if tool.name in chosen}
        for tool in own if inherited is not None else (*own, *source_tools):
            if tool.name in chosen:
                self.tools.add(tool)
        for tool in inherited or ():
            self.tools.add(tool, replace=True)

    @functools.cached_property
    def _deprecated(self) -> dict[str, Tool]:
        # Lazy: most sessions never need the deprecated tools.
        from mama_structs.tools.deprecated import make_deprecated_tools  # noqa: PLC0415

        return {tool.name: tool for tool in make_deprecated_tools(self._memories)}

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of callable tools that models do not see."""
        return (
            tuple(name for name in DEPRECATED_SUCCESSORS if name not in self.tools)
            if self._settings.tools.memory
            else ()
        )

    def is_own(self, tool: Tool) -> bool:
        """
        Return True for the memory and ref tools of this session.

        A fork creates its own; a host may replace them.
        """
        return self._own.get(tool.name) is tool

    async def call(
        self,
        session: mama_structs.Session,
        tool_name: str,
        arguments: Mapping[str, Any] | str | None,
        *,
        host: Mapping[str, Any] | None,
        max_chars: int | str | None,
    ) -> Any:
        """Run a tool of *session* with a model's arguments, and return its answer; see `Session.call`."""
        budget = self._get_budget(max_chars)
        load = measure_input(arguments)
        tool = self._find_tool(tool_name)
        given_arguments = await run_inline_or_in_thread(load, _read_arguments, arguments)
        # Compare versions to detect new handles. Their number may stay equal, because new answers replace old ones.
        version, inserted = self._refs._version, None
        room = make_answer_room(self._refs, budget, tool.output_schema)
        try:
            resolved = await self._refs._run_read(
                load, lambda refs: substitute_handles(given_arguments, tool, refs.get)
            )
        except (DescriptorError, InvalidArgument) as error:
            if tool._on_error is None:
                raise
            result = tool._on_error(error, given_arguments)
        else:
            inserted = resolved.provenance
            result = await self._run(session, tool, resolved, host=host, room=room)
        with limit_stored_provenance(inserted):
            answer = await apply_to_result(
                self._refs, result, lambda refs, keeps: self._render_result(refs, tool, result, room, keeps=keeps)
            )
        if self._refs._version != version:
            try:
                await session.flush()
            except StoreError as error:
                # Report success: the tool has run and its result is readable. The next flush writes the data.
                _log.warning("what %s stored is not on disk yet: %s", tool.name, error)
        return answer

    def resolved(self, tool_name: str, arguments: Mapping[str, Any] | str | None) -> ResolvedArguments:
        """Return a tool's arguments as `call` would pass them."""
        return substitute_handles(_read_arguments(arguments), self._find_tool(tool_name), self._refs.get)

    def _get_budget(self, max_chars: int | str | None) -> Budget | None:
        """Return the budget of an answer, or None if it is unlimited."""
        if max_chars != "settings" and max_chars is not None:
            return Budget(check_integer("max_chars", max_chars, MIN_BUDGET_CHARS))
        # A result is not truncated if descriptors are disabled, since no tool could read the rest.
        return self._refs._budget if max_chars is not None and self._settings.descriptors.enabled else None

    def _find_tool(self, name: str) -> Tool:
        """Return a tool by its name or wire name. Includes the deprecated tools."""
        name = name if name in self.tools else self.tools.wire_names.by_wire.get(name, name)
        return self._deprecated[name] if name in self.hidden else self.tools[name]

    async def _run(
        self,
        session: mama_structs.Session,
        tool: Tool,
        resolved: ResolvedArguments,
        *,
        host: Mapping[str, Any] | None,
        room: AnswerRoom,
    ) -> Any:
        if resolved.handles:
            note = f"{tool.name} got the text of {', '.join(resolved.handles)}"
            _log.info("%s", note)
            self._heard.add_note(note)
        about = {"conversation__id": session.conversation}
        with (
            using_session(session),
            limit_stored_provenance(resolved.provenance),
            instrument("execute_tool", tool.name, **about) as found,
        ):
            token = answer_room.set(room)
            try:
                result = await tool.run(resolved.arguments, host=host)
            finally:
                answer_room.reset(token)
            if kind := getattr(result, "type", None) if isinstance(result, str) else None:
                found["error__type"] = kind
        return result

    def _render_result(self, refs: RefStore, tool: Tool, result: Any, room: AnswerRoom, *, keeps: bool) -> Any:
        """
        Return a tool's result as data within the budget.

        May run in a thread, with a draft of the refs.
        """
        if is_framework_result(result):
            return result
        is_error = isinstance(result, ErrorText)
        data = result if is_error else to_answer(to_content_blocks(result))
        budget = room.budget
        if budget is None:
            return data
        # Do not store results of the handle tools, because their texts are already stored.
        # Before an answer of a memory tool is stored, old memory answers are deleted to make room.
        keeps = keeps and tool._wrapped and not is_error and self._settings.descriptors.enabled
        is_own = self.is_own(tool)
        if keeps and is_own:
            free_quota(refs)
        # Answers of memory tools state the trust of each memory.
        # Answers of other tools contain memories only as references.
        # v1.0 tools state the trust in their text, so it is unknown here.
        marked = data if is_own else data.get("references") if isinstance(data, dict) else None
        trusts = [UNKNOWN_ORIGIN] if tool.deprecated else find_trusts(marked)
        answer = shorten_to_budget(
            refs,
            data,
            what=tool.name,
            budget=budget,
            keeps=keeps,
            schema=tool.output_schema,
            source=tool.name if is_own or tool.name in self.hidden else TOOL_RESULT_SOURCE,
            provenance=Provenance("tool", least_trusted(["tool", *trusts])),
            payload_chars=room.payload_chars,
        )
        return ErrorText(str(answer), result.type) if is_error and answer is not data else answer


def _read_arguments(arguments: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    return read_arguments(arguments) if arguments is None or isinstance(arguments, str) else arguments
