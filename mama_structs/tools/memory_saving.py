"""The tools that save: decisions, checkpoints, insights."""
# ruff: noqa: D417 - these docstrings are for models, who never see the store

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypedDict

from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.memory.contents import parse_kept
from mama_structs.memory.model import Link, Memory, MemoryType
from mama_structs.memory.store import MemoryStore
from mama_structs.tools.memory_answers import MAX_LINKS_SHOWN, MadeLink, made_links
from mama_structs.tools.memory_arguments import Id, Ids, Item, Items, Links, Share, Text, Topic, as_mappings


class Saved(TypedDict):
    """What a tool that saves answers."""

    id: str
    type: str
    topic: str | None
    supersedes: str | None
    links: list[MadeLink]
    more_links: int
    note: str | None


async def save_decision(
    topic: Topic,
    decision: Text,
    reasoning: str,
    *,
    confidence: Share = 0.7,
    supersedes: Id | None = None,
    implements: Ids = (),
    links: Links = (),
    evidence: Items = (),
    memories: MemoryStore,
) -> Saved:
    """
    Save a decision with its reasons, so that later conversations find it.

    Use it when something was decided that later work has to respect: a choice between ways, a rule, a design.
    Don't use it for what was merely learnt (save/insight), for where the work stands (save/checkpoint), to replace a
    decision whose id you have (evolve/supersede), or to say how one turned out (evolve/outcome).

    Args:
        topic: What it is about, in a word or two such as auth_strategy; use the same topic for what belongs together
        decision: What was decided, in a sentence or two that stand alone
        reasoning: Why, with the alternatives that were turned down
        confidence: How sure it is
        supersedes: The id of the decision whose place it takes
        implements: Ids of decisions that it carries out
        links: Further links to memories that there are
        evidence: What it rests on: ref:<id> or fd:<number>, whose text is kept with it, ids of memories, or addresses

    """
    _refuse_hashes(evidence)
    async with naming_the_decision(memories, "supersedes", supersedes):
        memory = await memories.save_decision(
            topic,
            decision,
            reasoning,
            confidence=confidence,
            supersedes=supersedes,
            implements=implements,
            links=as_mappings(links),
            evidence=evidence,
            created_by="llm",
        )
    return await saved(memories, memory, supersedes=supersedes)


async def save_checkpoint(
    summary: Text, *, open_files: Items = (), next_steps: Items = (), implements: Ids = (), memories: MemoryStore
) -> Saved:
    """
    Save where the work stands, so that another conversation can go on from there; load/checkpoint gives the newest.

    Use it at the end of a piece of work, before a break, or when the user says that they will go on later.
    Don't use it for a choice that was made (save/decision) or for what was learnt (save/insight).

    Args:
        summary: What was done, what holds, and what is open
        open_files: Paths of the files that are being worked on
        next_steps: What is to be done next, one step an item
        implements: Ids of the decisions that this work carries out

    """
    memory = await memories.save_checkpoint(
        summary, open_files=open_files, next_steps=next_steps, implements=implements, created_by="llm"
    )
    return await saved(memories, memory)


async def save_insight(
    content: Text,
    *,
    category: Item | None = None,
    tags: Items = (),
    source: Item | None = None,
    links: Links = (),
    memories: MemoryStore,
) -> Saved:
    """
    Save something that was learnt and is worth knowing later.

    Use it for a fact, cause, pattern or preference that was found out: why something broke, what the user likes.
    Don't use it for a choice between ways (save/decision), for how a decision turned out (evolve/outcome), or for
    where the work stands (save/checkpoint).

    Args:
        content: What was learnt, in a sentence or two that stand alone
        category: What kind of insight it is, in a word such as performance
        tags: Words to group insights by
        source: Where it comes from, such as a file, an address or a person
        links: Links to memories that there are

    """
    memory = await memories.save_insight(
        content, category=category, tags=tags, source=source, links=as_mappings(links), created_by="llm"
    )
    return await saved(memories, memory)


def _refuse_hashes(evidence: Sequence[str]) -> None:
    """Refuse the form in which the store keeps evidence: nobody shows it to a model, so what it names is made up."""
    for position, item in enumerate(evidence):
        if parse_kept(item.strip()) is not None:
            raise InvalidArgument(
                f"evidence[{position}] must not name a text by its hash",
                hint="give the handle alone, such as ref:name or fd:1, or the id of the memory that rests on it",
            )


async def saved(
    memories: MemoryStore, memory: Memory, *, supersedes: str | None = None, note: str | None = None
) -> Saved:
    """
    Say what was saved, with the links that were made.

    Args:
        memories: Where it was saved.
        memory: What was saved.
        supersedes: The decision whose place it took.
        note: What else a model should know.

    """
    links = made_links(await links_if_any(memories, memory.id), memory.id)
    return {
        "id": memory.id,
        "type": memory.type.value,
        "topic": memory.topic,
        "supersedes": supersedes,
        "links": links[:MAX_LINKS_SHOWN],
        "more_links": max(0, len(links) - MAX_LINKS_SHOWN),
        "note": note,
    }


@contextlib.asynccontextmanager
async def naming_the_decision(memories: MemoryStore, name: str, memory_id: str | None) -> AsyncIterator[None]:
    """
    Say which argument it was when a store refuses what is no decision, and what gives decisions.

    Args:
        memories: Where it was refused.
        name: The tool's argument.
        memory_id: The argument's value.

    Raises:
        InvalidArgument: The memory is of another type, or whatever else was refused.

    """
    try:
        yield
    except InvalidArgument:
        memory = None if memory_id is None else await memory_if_any(memories, memory_id)
        if memory is None or memory.type is MemoryType.DECISION:
            raise
        raise InvalidArgument(
            f"{name} must be the id of a decision, and {memory_id!r:.200} is of the type {memory.type.value}",
            hint="search/by_topic gives the decisions of a topic, search/by_context with types=['decision'] any others",
        ) from None


async def memory_if_any(memories: MemoryStore, memory_id: str) -> Memory | None:
    """Return a memory; None where it cannot be read."""
    try:
        return await memories.get(memory_id)
    except MamaStructsError:
        return None


async def links_if_any(memories: MemoryStore, memory_id: str) -> list[Link]:
    """Return the links of a memory; none where it cannot be read again, for what was done before that is done."""
    try:
        return await memories.links_of(memory_id)
    except MamaStructsError:
        return []
