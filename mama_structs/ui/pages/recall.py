"""Recall preview: the text for a message, with the reasons for each line and each omission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from aiohttp import web

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.graph.score_parts import describe_score_parts
from mama_structs.memory.types.model import Memory
from mama_structs.recall import RECALL_REASON_TEXTS, LeftOut, Recall, RecallLine
from mama_structs.refs.conversations.recall_log import RecallLog
from mama_structs.session.recall_builder import MIN_RECALL_CHARS, build_recall
from mama_structs.ui.rendering import get_namespace, link_to, render
from mama_structs.ui.workspace import WORKSPACE

DEFAULT_CHARS: Final = 2_000
MAX_CHARS: Final = 100_000
CHARS_PER_TOKEN: Final = 4
MAX_LINK_CHARS: Final = 4_000
"""Maximum length of an address. A preview of a longer message has no address of its own."""
MAX_CHOICES: Final = 50
"""Maximum number of conversations in the form."""
SECTION_WORDS: Final = {
    "checkpoint": "last state of the work",
    "current": "current",
    "outdated": "outdated",
    "failed": "failed or partly successful",
    "conflict": "contradiction",
}


@attrs.frozen(kw_only=True)
class _PreviewLine:
    """A line for the page. *source* is the memory on which the line depends."""

    line: RecallLine
    section: str
    reason: str
    parts: tuple[str, ...]
    source: Memory | None


@attrs.frozen(kw_only=True)
class _Preview:
    recall: Recall
    lines: tuple[_PreviewLine, ...]
    left_out: tuple[tuple[LeftOut, Memory | None], ...]
    tokens: int
    why_nothing: str | None


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:  # noqa: ARG001 - as the other pages
    """Return the routes of the page. It changes nothing, also if the message is posted."""
    return [web.get("/recall", show), web.post("/recall", submit)]


async def show(request: web.Request) -> web.Response:
    """Show the form, and the preview of the message in the address."""
    return await _show(request, request.query)


async def submit(request: web.Request) -> web.Response:
    """Redirect to the address of a short message, and show the preview of a long one."""
    fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
    # A session starts without a message.
    names = ("start" if fields.get("start") else "message", "max_chars", "conversation", "dialogue")
    target = link_to("/recall", namespace=request.query.get("namespace"), **{name: fields.get(name) for name in names})
    if len(target) <= MAX_LINK_CHARS:
        raise web.HTTPSeeOther(target)
    return await _show(request, fields)


async def _show(request: web.Request, fields: Mapping[str, str]) -> web.Response:
    workspace, namespace = request.app[WORKSPACE], get_namespace(request)
    # Browsers send line feeds of a text area as pairs.
    message = fields.get("message", "").replace("\r\n", "\n")
    max_chars = _parse_max_chars(fields.get("max_chars") or str(DEFAULT_CHARS))
    conversation, dialogue = fields.get("conversation") or None, fields.get("dialogue") or None
    memories = await workspace.open_memories(namespace)
    home = workspace.session._shared.home
    recall_log = RecallLog()
    if conversation is not None:
        recall_log = (await home.read_conversation(conversation, namespace=namespace)).recall_log
    has_dialogues = any(one.dialogue is not None for one in recall_log.facts())
    if dialogue is not None:
        recall_log = recall_log.for_conversation(dialogue)
    preview = None
    # Hooks of coding agents recall the last state of the work before the first message.
    is_start = bool(fields.get("start"))
    if message or is_start:
        recall = await build_recall(
            memories,
            "" if is_start else message,
            is_resuming=is_start,
            recall_log=recall_log,
            tool_selector=workspace.session._tool_selector,
            max_chars=max_chars,
            explain=True,
            is_log_shared=False,
        )
        preview = await _make_preview(memories, message, recall, is_start=is_start)
    names = [one.name for one in (await home.conversations(namespace))[:MAX_CHOICES]]
    return await render(
        request,
        "recall.html",
        message=message,
        max_chars=max_chars,
        min_chars=MIN_RECALL_CHARS,
        most_chars=MAX_CHARS,
        conversation=conversation,
        dialogue=dialogue,
        has_dialogues=has_dialogues or dialogue is not None,
        conversations=[*([] if conversation in {None, *names} else [conversation]), *names],
        preview=preview,
        is_start=is_start,
    )


def _parse_max_chars(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not MIN_RECALL_CHARS <= number <= MAX_CHARS:
        raise InvalidArgument(
            f"the maximum must be between {MIN_RECALL_CHARS:,} and {MAX_CHARS:,} characters, got {text!r:.40}"
        )
    return number


async def _make_preview(
    memories: mama_structs.MemoryStore, message: str, recall: Recall, *, is_start: bool
) -> _Preview:
    known = {memory.id: memory for line in recall.lines for memory in line.memories}
    known |= {one.memory.id: one.memory for one in recall.left_out}
    hits = {hit.memory.id: hit for hit in recall.hits}
    return _Preview(
        recall=recall,
        lines=tuple(
            _PreviewLine(
                line=line,
                section=SECTION_WORDS[line.section],
                reason=RECALL_REASON_TEXTS[line.reason],
                parts=_describe_parts(hits.get(line.memories[0].id)) if line.reason == "match" else (),
                source=known.get(line.source_id or ""),
            )
            for line in recall.lines
        ),
        left_out=tuple((one, known.get(one.superseded_by or "")) for one in recall.left_out),
        tokens=-(-len(recall.text) // CHARS_PER_TOKEN),
        why_nothing=None if recall else await _explain_nothing(memories, message, recall, is_start=is_start),
    )


def _describe_parts(hit: Hit | None) -> tuple[str, ...]:
    """Return why a search found a memory, the most important part first."""
    parts = [] if hit is None else describe_score_parts(hit)
    return tuple(one.words for one in sorted(parts, key=lambda one: -abs(one.value)))


async def _explain_nothing(memories: mama_structs.MemoryStore, message: str, recall: Recall, *, is_start: bool) -> str:
    """Return why a recall is empty."""
    if any(one.reason == "no room" for one in recall.left_out):
        return "The maximum is too small for any of the memories that answer the message."
    if any(one.reason == "already recalled" for one in recall.left_out):
        return "This conversation already got each memory that answers the message, and none has changed since."
    if recall.left_out:
        best = max(recall.left_out, key=lambda one: one.relevance)
        return f"No memory is relevant enough. The best one is {best.explanation}."
    if not await memories.count():
        return "There are no memories in this namespace."
    if is_start:
        return "No checkpoint is stored, so there is no last state of the work."
    return "The message asks for nothing that could be looked up." if message.strip() else "The message is empty."
