"""
Erasure (`forget`) of memories, their texts and derived data (DESIGN section 6a).

The plan of an erasure is stored as a note before it starts, so that another process can finish it after a crash.
The note contains ids, which are derived from text. It is deleted before the disk is cleaned.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, Protocol

import attrs
import msgspec
import numpy as np

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import Forgotten
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.codec import MemoryRecord, memory_of, record_of
from mama_structs.memory.types.engine import (
    SYSTEM,
    Direction,
    Engine,
    Filter,
    Progress,
    Reader,
    Writer,
    in_pages,
    in_turns,
)
from mama_structs.memory.types.model import (
    OUTCOME_OF,
    SUPERSEDES,
    DecisionMetadata,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    digests_in,
    is_reason,
    parse_kept,
)
from mama_structs.memory.types.requests import LinkRequest, check_id, check_ids, check_topic

WAIT: Final = 2.0
"""Seconds to wait for processes that read the erased data. After that, a later call removes it from disk."""

_NOTE: Final = "forgetting/"
_PAGE: Final = 500
# Replaces an erased id in the texts of other memories.
_GONE: Final = "forgotten"
# The end of an id, by which ids are found in texts. It contains no words, unlike the rest of an id.
_END: Final = re.compile(r"_(?=([0-9]{10,}_[0-9a-z]{4,8}))")
_read_record: Final = msgspec.json.Decoder(MemoryRecord[msgspec.Raw]).decode
_read_label: Final = msgspec.json.Decoder(LinkMetadata).decode


@attrs.frozen
class Doomed:
    """Identifies what conversations must erase: text hashes and ends of memory ids."""

    digests: frozenset[str]
    ends: frozenset[str]

    def names(self, text: str) -> bool:
        """Return True if a text contains the id of an erased memory."""
        return not self.ends.isdisjoint(_END.findall(text))


class EraseTexts(Protocol):
    """Callback that erases refs with given text hashes, and descriptors with erased ids."""

    def __call__(self, doomed: Doomed, *, dry_run: bool) -> Awaitable[tuple[int, tuple[str, ...]]]:
        """Return how many were erased, and messages about the copies that remain."""


async def no_texts(doomed: Doomed, *, dry_run: bool) -> tuple[int, tuple[str, ...]]:  # noqa: ARG001 - required by the protocol
    """Erase nothing. The `EraseTexts` of a store without refs."""
    return 0, ()


class _Left(msgspec.Struct, frozen=True):
    """
    Remaining work of an erasure.

    It has memory ids, ids of memories that mention them, text hashes, and ends of ids.
    """

    ids: tuple[str, ...] = ()
    naming: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


_read_left: Final = msgspec.json.Decoder(_Left).decode


@attrs.frozen(kw_only=True)
class ForgetRequest:
    """Selects the memories to erase. A memory must match all criteria that are set."""

    ids: tuple[str, ...] | None
    about: str | None
    source: str | None
    before: datetime | None

    @classmethod
    def checked(cls, ids: object, about: object, source: object, before: object) -> ForgetRequest:
        """
        Return a validated request.

        Raise `InvalidArgument` if there is no criterion, which would select everything.
        """
        if ids is about is source is before is None:
            raise InvalidArgument(
                "forget needs ids, about, source or before", hint="say what is to be forgotten; nothing means nothing"
            )
        if about is not None:
            check_topic(about, "about")
        return cls(
            ids=None if ids is None else check_ids("ids", [ids] if isinstance(ids, str) else ids),
            about=None if about is None else check_id("about", about),
            source=None if source is None else _check.text("source", source),
            before=None if before is None else _check.moment("before", before),
        )

    def candidates(self, reader: Reader) -> list[str]:
        """Return the ids of memories that match all criteria except the source."""
        found = np.sort(reader.window(Filter(until=self.before)))
        if self.ids is not None:
            found = np.intersect1d(found, [saving.found(reader, memory_id) for memory_id in self.ids])
        if self.about is not None:
            topic, mention = Filter(topic=self.about), Filter(mentions=frozenset({self.about}))
            found = np.intersect1d(found, np.union1d(reader.window(topic), reader.window(mention)))
        return reader.ids(found)

    def is_from(self, memory: Memory) -> bool:
        """Return True if the source or the evidence of a memory is the requested source."""
        if self.source is None or getattr(memory.metadata, "source", None) == self.source:
            return True
        kept = [one.source for item in memory.evidence if (one := parse_kept(item)) is not None]
        # Handles match with and without their version.
        return self.source in {*memory.evidence, *kept, *(source.partition("@")[0] for source in kept)}


async def forget(
    engine: Engine,
    request: ForgetRequest,
    chosen: Sequence[str],
    erase_texts: EraseTexts,
    *,
    dry_run: bool,
    progress: Progress | None,
) -> Forgotten:
    """
    Erase the *chosen* candidates that match the request, or return the counts of a dry run.

    Args:
        engine: The memories.
        request: The criteria.
        chosen: Ids of memories that match all criteria except the source.
        erase_texts: Erases refs and descriptors.
        dry_run: If True, nothing is erased.
        progress: Called with the number of erased memories and their total number.

    """
    if request.source is not None:
        chosen = [one.id async for one in _memories(engine, chosen) if request.is_from(one)]
    reasons = [one async for page in in_pages(engine.read, chosen, _reasons) for one in page]
    ids = tuple(dict.fromkeys([*chosen, *reasons]))
    kinds: Counter[str] = Counter()
    digests: dict[str, None] = {}
    async for memory in _memories(engine, ids):
        kinds[memory.type.value] += 1
        digests.update(dict.fromkeys(digests_in(memory.evidence)))
    if not ids:
        return Forgotten(dry_run=True) if dry_run else Forgotten(pending=await resume(engine, erase_texts))
    naming = await _naming(engine, ids)
    if dry_run:
        counted = await engine.read(lambda reader: _links(reader, ids))
        kept = {digest for one in await _others(engine, ids) for digest in digests_in(one.evidence)}
        own = digests.keys() - kept
        refs, held = await erase_texts(Doomed(frozenset(own), frozenset(_ends(ids))), dry_run=True)
        return Forgotten(
            memories=dict(kinds),
            links=counted,
            mended=len(naming),
            texts=len(own),
            refs=refs,
            pending=held,
            dry_run=True,
        )
    name = f"{_NOTE}{secrets.token_hex(8)}"
    left = _Left(ids=ids, naming=naming, digests=tuple(digests), ends=tuple(_ends(ids)))
    await engine.write(lambda writer: _note(writer, name, left))
    links, texts, refs, held = await _finish(engine, name, left, erase_texts, progress)
    held += await engine.erase(wait=WAIT)
    return Forgotten(memories=dict(kinds), links=links, mended=len(naming), texts=texts, refs=refs, pending=held)


async def resume(engine: Engine, erase_texts: EraseTexts) -> tuple[str, ...]:
    """
    Finish interrupted erasures, and return messages about remaining copies.

    Cheap if there are none.
    """
    held: tuple[str, ...] = ()
    for name, text in (await engine.read(lambda reader: reader.notes(_NOTE))).items():
        held += (await _finish(engine, name, _read_left(text), erase_texts, None))[-1]
    return held + await engine.erase(wait=WAIT)


async def _finish(
    engine: Engine, name: str, left: _Left, erase_texts: EraseTexts, progress: Progress | None
) -> tuple[int, int, int, tuple[str, ...]]:
    """
    Erase the remaining items.

    Return the numbers of links, texts and refs, and messages about remaining copies.
    """
    doomed = frozenset(left.ids)
    ends = _ends(doomed)

    def mend(writer: Writer, memory_id: str) -> None:
        node = writer.find(memory_id)
        if node is not None:
            writer.leave_no_trace()
            (memory,) = writer.get([node])
            links = [link for link in writer.read_links(node, "out") if _named_in(link.metadata, ends)]
            writer.put(_without_ids(memory, ends), links=[_unlabelled(link, ends) for link in links])

    def erase(writer: Writer, memory_id: str) -> int:
        if writer.find(memory_id) is None:
            return 0
        writer.leave_no_trace()
        _mend_outcome(writer, memory_id, doomed)
        bridged = _bridges(writer, memory_id, doomed)
        count = writer.delete(memory_id)
        for link in bridged:
            saving.add_link(
                writer,
                link.from_id,
                LinkRequest(to_id=link.to_id, relationship=SUPERSEDES, confidence=link.confidence),
                LinkType.EVOLUTION,
                created_by=link.created_by,
                now=link.created_at,
            )
        return count

    async for _ in in_turns(engine.write, left.naming, mend, most=_PAGE):
        pass
    links = done = 0
    async for some in in_turns(engine.write, left.ids, erase, most=_PAGE):
        links, done = links + sum(some), done + len(some)
        if progress is not None:
            progress(done, len(left.ids))
    kept = await engine.read(lambda reader: reader.known_contents(left.digests))
    gone = tuple(digest for digest in left.digests if digest not in kept)
    rest = _Left(digests=gone, ends=left.ends)
    if left.ids:
        # Remove the ids from the note before the disk is cleaned.
        await engine.write(lambda writer: _note(writer, name, rest))
    refs, held = await erase_texts(Doomed(frozenset(gone), frozenset(left.ends)), dry_run=False)
    await engine.write(lambda writer: _note(writer, name, rest if held else None))
    return links, len(gone), refs, held


def _note(writer: Writer, name: str, left: _Left | None) -> None:
    writer.leave_no_trace()
    writer.set_note(name, None if left is None else msgspec.json.encode(left).decode())


async def _memories(engine: Engine, ids: Sequence[str]) -> AsyncIterator[Memory]:
    """
    Yield memories page by page, so that other plans can run in between.

    Deleted ones are skipped.
    """
    async for some in in_pages(engine.read, ids, lambda reader, nodes: reader.get(nodes)):
        for memory in some:
            yield memory


async def _others(engine: Engine, ids: Collection[str]) -> list[Memory]:
    """Return all memories with evidence texts, except those with the given ids."""
    every = await engine.read(lambda reader: reader.ids(np.sort(reader.window())))
    others = [one for one in every if one not in frozenset(ids)]
    return [memory async for memory in _memories(engine, others) if digests_in(memory.evidence)]


def _reasons(reader: Reader, nodes: list[int]) -> list[str]:
    """Return the memories that store the reasons of the outcomes of some decisions."""
    links = [link for own in reader.links_of_many(nodes, "in") for link in own]
    told = [link.from_id for link in links if link.metadata.original_relationship == OUTCOME_OF]
    found = [node for node in reader.find_many(told) if node is not None]
    return [memory.id for memory in reader.get(found) if is_reason(memory)]


def _links(reader: Reader, ids: Sequence[str]) -> int:
    nodes = [node for node in reader.find_many(ids) if node is not None]
    return len({link.id for own in reader.links_of_many(nodes) for link in own})


def _ends(ids: Iterable[str]) -> dict[str, list[str]]:
    """Return ids grouped by their ends."""
    found: dict[str, list[str]] = {}
    for one in ids:
        for end in _END.findall(one)[-1:]:
            found.setdefault(end, []).append(one)
    return found


async def _naming(engine: Engine, ids: Collection[str]) -> tuple[str, ...]:
    """Return the other memories that mention some ids, in their fields or link metadata."""
    ends, doomed = _ends(ids), frozenset(ids)

    def plan(reader: Reader, nodes: list[int]) -> list[str]:
        table = reader.links(np.array(nodes, np.int64), "out")
        # The metadata of automatic links is generated and contains no ids.
        labelled = np.unique(table.sources[table.creators != SYSTEM])
        said: list[tuple[str, object]] = [(one.id, record_of(one)) for one in reader.get(nodes)]
        said += [(link.from_id, link.metadata) for own in reader.links_of_many(labelled, "out") for link in own]
        return list(dict.fromkeys(one for one, record in said if _named_in(record, ends)))

    every = await engine.read(lambda reader: reader.ids(np.sort(reader.window())))
    others = [one for one in every if one not in doomed]
    return tuple([one async for page in in_pages(engine.read, others, plan) for one in page])


def _named_in(record: object, ends: dict[str, list[str]]) -> list[str]:
    """
    Return the ids mentioned in any field, longest first.

    An id may be a prefix of another one, so longer ids must be replaced first.
    """
    text = msgspec.json.encode(record).decode()
    likely = {one for end in set(_END.findall(text)) for one in ends.get(end, ())}
    return sorted((one for one in likely if _in_json(one) in text), key=len, reverse=True)


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _replaced(record: object, named: Iterable[str]) -> str:
    """Return a record as JSON, with some ids replaced."""
    text = msgspec.json.encode(record).decode()
    for one in named:
        text = text.replace(_in_json(one), _GONE)
    return text


def _without_ids(memory: Memory, ends: dict[str, list[str]]) -> Memory:
    """Return a memory without mentions of the erased ids."""
    named = _named_in(record_of(memory), ends)
    memory = attrs.evolve(
        memory,
        mentions=tuple(one for one in memory.mentions if one not in named),
        evidence=tuple(one for one in memory.evidence if one not in named),
    )
    # Keep its own id, even if it was derived from a text with an erased id, since others refer to it.
    return attrs.evolve(memory_of(_read_record(_replaced(record_of(memory), named))), id=memory.id)


def _unlabelled(link: Link, ends: dict[str, list[str]]) -> Link:
    return attrs.evolve(link, metadata=_read_label(_replaced(link.metadata, _named_in(link.metadata, ends))))


def _bridges(reader: Reader, memory_id: str, doomed: Collection[str]) -> list[Link]:
    """
    Return links that reconnect a chain around an erased memory.

    They lead from the memories that superseded it to those that it superseded.
    """
    node = reader.find(memory_id)
    # Older memories are erased first, so that a long chain is traversed only once.
    if node is None or not len(reader.links(np.array([node]), "out", [LinkType.EVOLUTION])):
        return []

    def ends(direction: Direction) -> list[Link]:
        """Return the evolution links that connect remaining memories with the erased ones."""
        found, seen, waiting = [], {memory_id}, [memory_id]
        while waiting:
            nodes = [node for node in reader.find_many(waiting) if node is not None]
            links = [one for own in reader.links_of_many(nodes, direction) for one in own]
            links = [one for one in links if one.link_type is LinkType.EVOLUTION]
            others = {one.from_id if direction == "in" else one.to_id: one for one in links}
            found += [one for other, one in others.items() if other not in doomed]
            waiting = [other for other in others if other in doomed and other not in seen]
            seen.update(waiting)
        return found

    pairs = itertools.product(ends("in"), ends("out"))
    return [attrs.evolve(one, to_id=other.to_id) for one, other in pairs if one.from_id != other.to_id]


def _mend_outcome(writer: Writer, memory_id: str, doomed: Collection[str]) -> None:
    """Remove the reason of an outcome from its decision, which contains the same text."""
    node = writer.find(memory_id)
    (memory,) = writer.get([] if node is None else [node])
    if node is None or not is_reason(memory):
        return
    for link in writer.read_links(node, "out"):
        decided = writer.find(link.to_id)
        if link.metadata.original_relationship != OUTCOME_OF or decided is None or link.to_id in doomed:
            continue
        (decision,) = writer.get([decided])
        if isinstance(decision.metadata, DecisionMetadata):
            writer.put(_without_reason(decision, decision.metadata, memory.content))


def _without_reason(decision: Memory, metadata: DecisionMetadata, reason: str) -> Memory:
    history = tuple(attrs.evolve(one, reason=None) if one.reason == reason else one for one in metadata.history)
    current = None if metadata.outcome_reason == reason else metadata.outcome_reason
    return attrs.evolve(decision, metadata=attrs.evolve(metadata, history=history, outcome_reason=current))
