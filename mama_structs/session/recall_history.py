"""Memories that were recalled into a conversation, according to its recall log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal

import attrs

from mama_structs.memory.graph.traversal import Successors
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.types.engine import Reader
from mama_structs.memory.types.model import Memory
from mama_structs.refs.conversations.recall_log import LoggedFact, RecallLog
from mama_structs.session.recall_text import make_conflict_state, make_state

RecalledState = Literal["unchanged", "changed", "unknown"]
"""Whether a memory is still as it was recalled. It is unknown for a memory that is not found."""


@attrs.frozen(kw_only=True)
class RecalledItem:
    """
    A memory, or a pair of contradictory memories, that was recalled into a conversation.

    Args:
        fact: The entry of the recall log.
        memories: The memory or both memories as they are now, without those that were deleted; empty if the log does
            not name them.
        state: Whether the memories have changed since the last recall.
        successor_id: Id of the memory that was named as its successor, or of the current one if it has changed; or
            None.

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

    """

    items: tuple[RecalledItem, ...]
    total: int


async def read_recall_history(
    memories: MemoryStore, recall_log: RecallLog, *, offset: int = 0, limit: int = 50
) -> RecallHistory:
    """Return a page of the items of a recall log, with the memories of the store's namespace."""
    facts = recall_log.facts()
    page = facts[offset : offset + limit]
    ids = list(dict.fromkeys(chain.from_iterable(one.ids for one in page)))
    known, successors = await memories._shared.read(lambda reader: _read_memories(reader, ids))
    return RecallHistory(items=tuple(_make_item(one, known, successors) for one in page), total=len(facts))


def _read_memories(reader: Reader, ids: Sequence[str]) -> tuple[dict[str, Memory], dict[str, str]]:
    """Return those memories that exist, and the ids of their current successors, by their ids."""
    nodes = [node for node in reader.find_many(ids) if node is not None]
    newest = Successors(reader).newest(nodes) if nodes else {}
    names = dict(zip(every := list({*newest, *newest.values()}), reader.ids(every), strict=True))
    return {one.id: one for one in reader.get(nodes)}, {names[one]: names[other] for one, other in newest.items()}


def _make_item(fact: LoggedFact, known: Mapping[str, Memory], successors: Mapping[str, str]) -> RecalledItem:
    found = tuple(known[one] for one in fact.ids if one in known)
    if not found or len(found) < len(fact.ids):
        return RecalledItem(fact=fact, memories=found)
    last = fact.events[0]
    if len(found) > 1:
        is_same = last.has_state(make_conflict_state(found))
        return RecalledItem(fact=fact, memories=found, state="unchanged" if is_same else "changed")
    named, current = fact.successor_id, successors.get(fact.ids[0])
    if current in (None, named) and last.has_state(make_state(found[0], named)):
        return RecalledItem(fact=fact, memories=found, state="unchanged", successor_id=named)
    return RecalledItem(fact=fact, memories=found, state="changed", successor_id=current)
