"""
Builds the `Recall` for a message (DESIGN 6a): finds memories and renders new facts.

Finding takes one search and one more read of the store; the other functions are pure.
"""

from __future__ import annotations

import functools
from typing import Final

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.search.query_rewriting import has_words_besides_period
from mama_structs.memory.search.time_expressions import find_period
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import EngineFilter, RelevanceBounds
from mama_structs.memory.types.model import to_milliseconds
from mama_structs.recall import Recall
from mama_structs.refs.conversations.recall_log import RecallLog
from mama_structs.refs.messages.provider_messages import extract_user_text
from mama_structs.session.recall_text import RecallPlan, normalize
from mama_structs.session.related_memories import RelatedMemories
from mama_structs.tools.exposure import ToolSelector

MIN_RECALL_CHARS: Final = 300
MAX_HITS: Final = 10
RECALL_BOUNDS: Final = RelevanceBounds(relevance=0.28, share=0.25)
"""
Relevance bounds for recall: nothing is recalled if the best hit is below them.

They are stricter than for a search, because most messages need no memory: 90 % of the messages in tests/data/recall
that no memory answers recall nothing.
"""
# Number of characters from the beginning and the end of a message that are used as the query.
# The middle of a long message rarely contains a request.
HEAD_CHARS, TAIL_CHARS = 1_500, 1_500


async def build_recall(
    memories: MemoryStore,
    message: object,
    *,
    recall_log: RecallLog | None = None,
    tool_selector: ToolSelector | None = None,
    is_resuming: bool = False,
    max_chars: int = 2_000,
    explain: bool = False,
    is_log_shared: bool = True,
) -> Recall:
    """
    Find the memories that are relevant to a message, and record them in *recall_log*.

    Args:
        memories: The store to search.
        message: As for `Session.recall`.
        recall_log: Log of the facts that were already recalled; None for an empty log that is not stored.
        tool_selector: Detects if the message continues earlier work; None for the built-in cues.
        is_resuming: Whether to treat any message as a continuation, as at the start of a conversation.
        max_chars: As for `Session.recall`.
        explain: As for `Session.recall`.
        is_log_shared: Whether other tasks use *recall_log*. If not, the text is rendered in a thread.

    """
    checked_max_chars = _check.check_integer("max_chars", max_chars, MIN_RECALL_CHARS)
    recall_log = RecallLog() if recall_log is None else recall_log
    text = await run_inline_or_in_thread(measure_input(message), _get_query, message)
    hits: list[Hit] = []
    others: list[Hit] = []
    # A message such as "today" asks for nothing.
    if text.strip() and has_words_besides_period(text, find_period(text, memories._shared.now)):
        hits, others = await memories._search_for_prompt(text, limit=MAX_HITS, bounds=RECALL_BOUNDS)
        is_resuming = is_resuming or await _resumes(text, tool_selector)
    if not hits and not is_resuming:
        left_out = RecallPlan().explain(Recall(), (), others, bounds=RECALL_BOUNDS) if explain else ()
        return Recall(left_out=tuple(left_out))
    read = functools.partial(
        RelatedMemories.read,
        hits=hits,
        others=others,
        query=text,
        where=memories._exclude_expired(EngineFilter()),
        shared_dimensions=memories._shared_dimensions,
        resuming=is_resuming,
    )
    related = attrs.evolve(
        RelatedMemories.merge(await memories._read_each_namespace(read)),
        own_namespace=memories.namespace,
        hits={hit.memory.id: hit for hit in (*hits, *others)},
    )
    # A memory that was erased since the search must not be recalled, nor its id be logged.
    hits = [hit for hit in hits if hit.memory.id in related.memories]

    def render() -> Recall:
        plan = RecallPlan.make(related, hits, recall_log)
        recall = plan.render(recall_log, checked_max_chars, at_ms=to_milliseconds(memories._shared.now))
        if not explain:
            return attrs.evolve(recall, lines=())
        left_out = plan.explain(recall, hits, others, bounds=RECALL_BOUNDS, recall_log=recall_log)
        return attrs.evolve(recall, left_out=tuple(left_out))

    return render() if is_log_shared else await run_in_own_thread(render)


def _get_query(message: object) -> str:
    """
    Return the text to search for.

    Lone surrogates are replaced, since UTF-8 cannot encode them.
    """
    return _truncate_query(extract_user_text(message)).encode("utf-8", "replace").decode()


async def _resumes(text: str, tool_selector: ToolSelector | None) -> bool:
    """Return True if a message continues earlier work."""
    if tool_selector is None and _get_default_tool_selector.cache_info().currsize:
        found = await run_inline_or_in_thread(measure_input(text), _get_default_tool_selector().detect, text)
    else:
        # The first call of a selector compiles its cues, which takes a quarter of a second, so it runs in a thread.
        found = await run_in_own_thread(lambda: (tool_selector or _get_default_tool_selector()).detect(text))
    return found.kind == "resuming"


@functools.cache
def _get_default_tool_selector() -> ToolSelector:
    # Create the default `ToolSelector` once per process, because validating the cues takes longer than matching them.
    selector = ToolSelector()
    selector.detect("continue")
    return selector


def is_recalled(text: str, recall_log: RecallLog) -> bool:
    """Return True if a text only repeats recalled text. Such a text must not be saved."""
    rest = remove_recalled(text)
    return (rest != text and not rest.strip()) or recall_log.contains_text(normalize(rest))


def _truncate_query(text: str) -> str:
    return text if len(text) <= HEAD_CHARS + TAIL_CHARS else f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
