"""
Memories that were recalled into a conversation, according to its recall log.

The log contains only hashes of ids and states, which are compared with those of the stored memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Final, Literal

import attrs
import numpy as np

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.memory.graph.traversal import Successors
from mama_structs.memory.save.conflict_records import REPLACEMENT_WORD
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import LinkType, Memory
from mama_structs.memory.types.relationships import normalize_relationship
from mama_structs.refs.conversations.recall_log import LoggedFact, RecallLog
from mama_structs.session.recall_text import (
    make_conflict_state,
    make_conflict_subject,
    make_state,
    make_successor_note,
)
from mama_structs.session.related_memories import CONTRADICTION_WORDS

# Contradictory pairs, and successors that a state names, are searched among at most this many recalled memories.
MAX_COMPARED_MEMORIES: Final = 400

RecalledState = Literal["unchanged", "changed", "unknown"]
"""Whether a memory is still as it was recalled. It is unknown for a memory that is not found."""


@attrs.frozen(kw_only=True)
class RecalledItem:
    """
    A memory, or a pair of contradictory memories, that was recalled into a conversation.

    Args:
        fact: The entry of the recall log.
        memories: The memory or both memories as they are now; empty if it was deleted or is in another namespace.
        state: Whether the memories have changed since.
        successor_id: Id of the memory that was named as its successor, or None.

    """

    fact: LoggedFact
    memories: tuple[Memory, ...] = ()
    state: RecalledState = "unknown"
    successor_id: str | None = None


@attrs.frozen(kw_only=True)
class RecallHistory:
    """
    A part of the items that were recalled into a conversation, the last recalled first.

    Args:
        items: The requested items.
        total: Number of all items.
        unknown: Number of items of the log whose memories are not found.

    """

    items: tuple[RecalledItem, ...]
    total: int
    unknown: int


async def read_recall_history(
    memories: MemoryStore, recall_log: RecallLog, *, offset: int = 0, limit: int = 50
) -> RecallHistory:
    """Return a page of the items of a recall log, with the memories of all readable namespaces."""
    facts = recall_log.facts()
    if not facts:
        return RecallHistory(items=(), total=0, unknown=0)
    page = facts[offset : offset + limit]
    subjects = await _find_subjects(memories, recall_log, facts)
    wanted = _split_subjects(subjects[one.key] for one in page if one.key in subjects)
    read = await memories._read_each_namespace(lambda reader: _read_memories(reader, wanted))
    known = {memory.id: memory for some, _ in reversed(read) for memory in some}
    successors = {key: value for _, some in reversed(read) for key, value in some.items()}
    others = _split_subjects(subjects.values())[:MAX_COMPARED_MEMORIES]
    items = await run_in_own_thread(
        lambda: tuple(_make_item(one, subjects.get(one.key), known, successors, others) for one in page)
    )
    return RecallHistory(items=items, total=len(facts), unknown=sum(one.key not in subjects for one in facts))


def _split_subjects(subjects: Iterable[str]) -> list[str]:
    """Return the ids in some subjects, deduplicated."""
    return list(dict.fromkeys(chain.from_iterable(subject.split("\0") for subject in subjects)))


async def _find_subjects(memories: MemoryStore, recall_log: RecallLog, facts: Sequence[LoggedFact]) -> dict[str, str]:
    """Return the subjects of the facts by their keys: ids of memories, or joined ids of contradictory ones."""
    ids = chain.from_iterable(await memories._read_each_namespace(lambda reader: reader.ids(reader.window())))
    subjects = await run_in_own_thread(lambda: recall_log.find_subjects(ids))
    # A conflict has no shown range.
    if all(one.key in subjects or one.shown is not None for one in facts):
        return subjects
    linked = chain.from_iterable(await memories._read_each_namespace(_read_contradictory_pairs))
    recalled = list(dict.fromkeys(subjects.values()))[:MAX_COMPARED_MEMORIES]
    pairs = map(make_conflict_subject, chain(combinations(recalled, 2), linked))
    return subjects | await run_in_own_thread(lambda: recall_log.find_subjects(pairs))


def _read_contradictory_pairs(reader: Reader) -> list[tuple[str, str]]:
    """Return the ids of memories that a link marks as contradictory, including resolved conflicts."""
    words = {one for one in reader.relationships() if normalize_relationship(one) in CONTRADICTION_WORDS}
    words.add(REPLACEMENT_WORD)
    table = reader.links(np.sort(reader.window()), "out", [LinkType.ASSOCIATION], words=words)
    return list(zip(reader.ids(table.sources), reader.ids(table.targets), strict=True))


def _read_memories(reader: Reader, ids: Sequence[str]) -> tuple[list[Memory], dict[str, str]]:
    """Return those memories that exist, and the ids of their current successors."""
    nodes = [node for node in reader.find_many(ids) if node is not None]
    newest = Successors(reader).newest(nodes) if nodes else {}
    names = dict(zip(every := list({*newest, *newest.values()}), reader.ids(every), strict=True))
    return reader.get(nodes), {names[one]: names[other] for one, other in newest.items()}


def _make_item(
    fact: LoggedFact,
    subject: str | None,
    known: Mapping[str, Memory],
    successors: Mapping[str, str],
    others: Sequence[str],
) -> RecalledItem:
    found = tuple(known[one] for one in (subject or "").split("\0") if one in known)
    if subject is None or len(found) != len(subject.split("\0")):
        return RecalledItem(fact=fact)
    if len(found) > 1:
        newest_first = tuple(sorted(found, key=lambda one: (one.created_at, one.id), reverse=True))
        is_same = any(map(fact.has_state, map(make_conflict_state, (newest_first, newest_first[::-1]))))
        return RecalledItem(fact=fact, memories=newest_first, state="unchanged" if is_same else "changed")
    (memory,) = found
    for successor_id in _generate_successors(memory, successors, others):
        notes = () if successor_id is None else (make_successor_note(successor_id),)
        if fact.has_state(make_state(memory, notes)):
            return RecalledItem(fact=fact, memories=found, state="unchanged", successor_id=successor_id)
    return RecalledItem(fact=fact, memories=found, state="changed", successor_id=successors.get(memory.id))


def _generate_successors(memory: Memory, successors: Mapping[str, str], others: Iterable[str]) -> Iterator[str | None]:
    """Yield None, and the ids of memories that may have been named as successors when the memory was recalled."""
    yield None
    if memory.id in successors:
        yield successors[memory.id]
    # An outdated statement is recalled together with the newer one.
    yield from others
