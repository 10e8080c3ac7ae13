"""Commands for reading and deleting memories: list, show, search, recall, view, erase."""

# ruff: noqa: PLC0415 - slow imports are local, so that the command starts fast

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs._internal.reprs import escape_unprintable, format_count, truncate_line
from mama_structs.cli.arguments import open_session
from mama_structs.cli.hook import stop_helper
from mama_structs.cli.output import confirm, format_table, print_answer, print_lines, report_progress, write_stderr
from mama_structs.errors import InvalidArgument, MamaStructsError

# Maximum width of a table cell, in terminal columns.
_TEXT_COLUMNS = 72
_TOPIC_COLUMNS = 24


async def list_memories(given: argparse.Namespace) -> None:
    """List memories, newest first."""
    async with open_session(given) as session:
        found = await session.memories.list(limit=given.limit, type=given.types or None, topic=given.topic)
    _print_memories(given, found, [[*_create_row(memory)] for memory in found])


async def show(given: argparse.Namespace) -> None:
    """Show one memory in full, with its evolution, its evidence and the memories linked to it."""
    from mama_structs._internal.jsonable import to_jsonable

    async with open_session(given) as session:
        around = await session.memories.details(given.id)
        evidence = await session.memories.evidence(given.id)
    figures = to_jsonable(around)
    figures.update(evidence=to_jsonable(evidence))
    print_answer(given, figures, "\n".join(map(escape_unprintable, _format_memory(around, evidence))))


async def search(given: argparse.Namespace) -> None:
    """Find memories by meaning and words, best first."""
    from mama_structs.errors import EmbeddingFailed
    from mama_structs.memory.store.lexical_store import LexicalMemoryStore

    filters: dict[str, Any] = {"limit": given.limit, "type": given.types or None, "topic": given.topic}
    async with open_session(given) as session:
        try:
            hits = await session.memories.search(given.query, **filters)
        except EmbeddingFailed as error:
            write_stderr(f"mama-structs: searched by words only: {error}\n")
            hits = await LexicalMemoryStore(session.memories._shared).search(given.query, **filters)
    rows = [
        [f"{hit.relevance:.2f}", *_create_row(hit.memory, is_superseded=hit.superseded_by is not None)] for hit in hits
    ]
    _print_memories(given, hits, rows)


async def recall(given: argparse.Namespace) -> None:
    """Print the text that is recalled for a model before it answers a message."""
    from mama_structs._internal.jsonable import to_jsonable

    async with open_session(given) as session:
        found = await session.recall(given.message, max_chars=given.max_chars, explain=given.explain)
    lines = found.text.splitlines() or ["nothing"]
    if found.lines:
        lines += ["", "Why each line is there:"]
        lines += [f"{', '.join(one.id for one in line.memories)}: {line.explanation}" for line in found.lines]
    if found.left_out:
        lines += ["", "Found, but left out:"]
        lines += [f"{one.memory.id}: {one.explanation}" for one in found.left_out]
    print_answer(given, to_jsonable(found), "\n".join(map(escape_unprintable, lines)))


async def view(given: argparse.Namespace) -> None:
    """Write one HTML file of memories for a browser, with a filter, timelines and links between memories."""
    from mama_structs.memory.types.filters import Filter

    try:
        from mama_structs._internal.reprs import require_extra

        require_extra("jinja2", extra="ui")
    except ImportError as missing:
        raise MamaStructsError(str(missing)) from missing
    from mama_structs.ui.static_export import create_export

    where = Filter(
        type=given.types or None,
        topic=given.topic,
        outcome=given.outcome,
        origin=given.origins or None,
        tags=given.tags or None,
        source=given.source,
        since=given.since,
        until=given.before,
    )
    async with open_session(given) as session:
        page = await create_export(session.memories, where=where, query=given.query, limit=given.limit)
    if page.notice is not None:
        write_stderr(f"mama-structs: searched by words only: {page.notice}\n")
    target = _choose_target(given)
    page.write(target)
    print_lines(escape_unprintable(f"{page.count:,} of {page.total:,} memories are in {target}"))
    if not page.total:
        write_stderr("mama-structs: no memory satisfies the conditions; topics and tags are case-sensitive\n")


async def erase(given: argparse.Namespace) -> int:
    """Erase memories permanently, with all copies of their texts in the store; asks first."""
    from mama_structs._internal.validation import is_url
    from mama_structs.memory.upkeep.erasure import EraseRequest

    if not given.ids and given.about is given.source is given.before is None:
        raise InvalidArgument("no memories were named", hint="pass ids, --about, --source or --before")
    request = EraseRequest.checked(ids=given.ids or None, about=given.about, source=given.source, before=given.before)
    if not is_url(given.store):
        # Stop a running hook helper, because its open conversations would keep the erasure pending.
        stop_helper(given.store)
    async with open_session(given) as session:
        planned = await session.memories._erase(request, dry_run=True)
        if given.dry_run or not planned.count:
            print_answer(given, planned.to_dict(), _format_report(planned))
            return 0
        if not given.yes and not confirm(f"erase {format_count(planned.count, 'memory', 'memories')} permanently?"):
            write_stderr("mama-structs: nothing was erased (--yes skips the question)\n")
            return 1
        with report_progress("erased", "memories") as progress:
            done = await session.memories._erase(request, dry_run=False, progress=progress)
    print_answer(given, done.to_dict(), _format_report(done))
    return 0


def _format_report(done: Any) -> str:
    counted = ", ".join(f"{count:,} {kind}" for kind, count in done.memories.items()) or "no memories"
    also = (
        (done.links, "links"),
        (done.updated_memories, "updated memories"),
        (done.evidence_texts, "evidence texts"),
        (done.refs, "refs"),
    )
    parts = [counted, *(f"{count:,} {what}" for count, what in also if count)]
    lines = [f"{'would be ' if done.dry_run else ''}erased: {', '.join(parts)}"]
    lines += [f"pending: {one}" for one in done.pending]
    lines += [f"out of scope: {one}" for one in done.out_of_scope]
    return "\n".join(map(escape_unprintable, lines))


def _choose_target(given: argparse.Namespace) -> Path:
    from mama_structs._internal.validation import is_url

    # Do not use parts of an address as a file name, because any part may contain a password.
    name = "memories" if is_url(given.store) else Path(given.store).resolve().name
    return Path(given.output or f"{name}.html")


def _print_memories(given: argparse.Namespace, found: Sequence[Any], rows: Sequence[Sequence[str]]) -> None:
    from mama_structs._internal.jsonable import to_jsonable

    print_answer(given, to_jsonable(list(found)), format_table(rows) if rows else "nothing found")


def _create_row(memory: mama_structs.Memory, *, is_superseded: bool = False) -> Iterator[str]:
    outcome = getattr(memory.metadata, "outcome", None)
    yield f"{memory.created_at:%Y-%m-%d}"
    yield memory.type.value
    yield truncate_line(
        " ".join(part for part in (memory.topic, f"[{outcome}]" if outcome else "") if part), _TOPIC_COLUMNS
    )
    yield f"{'(replaced) ' if is_superseded else ''}{truncate_line(memory.content, _TEXT_COLUMNS)}"
    yield memory.id


def _format_memory(around: Any, evidence: Iterable[Any]) -> Iterator[str]:
    memory, own = around.memory, around.memory.metadata
    facts = {
        "topic": memory.topic,
        "created": f"{memory.created_at:%Y-%m-%d %H:%M} UTC",
        "confidence": getattr(own, "confidence", None),
        "outcome": getattr(own, "outcome", None),
        "reason": getattr(own, "outcome_reason", None),
        "tags": ", ".join(getattr(own, "tags", ())),
        "source": getattr(own, "source", None),
        "labels": " / ".join(getattr(own, "labels", ())),
        "key": getattr(own, "key", None),
        "version": getattr(own, "version", None),
        "from": memory.origin if memory.trust == memory.origin else f"{memory.origin}, trusted as {memory.trust}",
        "valid until": memory.valid_until and f"{memory.valid_until:%Y-%m-%d %H:%M} UTC",
        "repeated": len(memory.repeated_at) or None,
    }
    yield memory.id
    yield from (f"{name}: {value}" for name, value in facts.items() if value not in (None, ""))
    yield from ("", *memory.content.splitlines())
    for title, lines in (
        ("Reasoning", getattr(own, "reasoning", "").splitlines()),
        ("Open files", getattr(own, "open_files", ())),
        ("Next", getattr(own, "next_steps", ())),
        ("Value", json.dumps(own.value, ensure_ascii=False, indent=1).splitlines() if hasattr(own, "value") else ()),
        ("Evidence", [one.source for one in evidence]),
        ("Previous texts", [" ".join(one.content.split()) for one in memory.previous_texts]),
        ("History", str(around.history).splitlines() if len(around.history) > 1 else ()),
        ("Links", [_format_link(link, memory.id) for link in around.links if link.link_type != "temporal"]),
    ):
        if lines:
            yield from ("", f"{title}:", *(f"  {line}" for line in lines))


def _format_link(link: Any, memory_id: str) -> str:
    word = link.metadata.original_relationship
    return f"{word} {link.to_id}" if link.from_id == memory_id else f"{link.from_id} {word} this"
