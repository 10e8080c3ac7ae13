"""
Erasure of memories, their texts and derived data (DESIGN section 6a).

The plan of an erasure is stored in a note before the erasure starts. After a crash another process can finish it.
The note contains memory ids, which are derived from text. So they are deleted before erased data is removed from disk.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, Protocol

import attrs
import msgspec
import numpy as np

from mama_structs._internal import validation as _check
from mama_structs._internal.caches import clear_text_caches
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import ErasureReport
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.codec import MemoryRecord, from_memory_record, to_memory_record
from mama_structs.memory.types.engine import (
    SYSTEM_CREATOR_INDEX,
    Direction,
    Engine,
    EngineFilter,
    Nodes,
    ProgressCallback,
    Reader,
    Writer,
    read_in_pages,
    write_in_transactions,
)
from mama_structs.memory.types.model import (
    OUTCOME_OF_WORD,
    SUPERSEDES_WORD,
    DecisionMetadata,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    evidence_digests,
    is_outcome_reason,
    parse_stored_evidence,
)
from mama_structs.memory.types.requests import LinkRequest, check_id, check_ids, check_topic

DISK_WAIT_SECONDS: Final = 2.0
"""Seconds to wait for processes that read the erased data. After that, a later call removes it from disk."""

NOTE_PREFIX: Final = "forgetting/"
PAGE_MEMORIES: Final = 500
UNERASED_PLACES: Final = (
    "backups that were made before",
    "exports, and other files that were written",
    "other namespaces, other memories, and refs that only quote the erased texts",
    "the names of erased refs, which remain to report the erasure",
    "the source of a migration from v1.0",
)
"""Places that an erasure does not reach in any backend."""
# Replaces an erased id in the texts of other memories.
ERASED_ID: Final = "forgotten"
# Matches the suffix of a memory id: the last two parts, which contain no words of the erased text.
ID_END_PATTERN: Final = re.compile(r"_(?=([0-9]{10,}_[0-9a-z]{4,8}))")
STORED_ID_END_PATTERN: Final = re.compile(ID_END_PATTERN.pattern.encode())
_read_record: Final = msgspec.json.Decoder(MemoryRecord[msgspec.Raw]).decode
_read_label: Final = msgspec.json.Decoder(LinkMetadata).decode


@attrs.frozen
class ErasureSet:
    """
    Identifies the content to erase from conversations: by the hashes of texts and the suffixes of memory ids.

    *find_missing_ids* returns those ids that no memory has. Recall logs must not contain them.
    """

    digests: frozenset[str]
    ends: frozenset[str]
    find_missing_ids: Callable[[Collection[str]], Awaitable[frozenset[str]]]

    def contains_id(self, text: str) -> bool:
        """Return True if a text contains the id of an erased memory."""
        return not self.ends.isdisjoint(ID_END_PATTERN.findall(text))


class EraseTexts(Protocol):
    """Callback that erases refs with the given texts, descriptors that mention erased ids, and ids in recall logs."""

    def __call__(self, doomed: ErasureSet, *, dry_run: bool) -> Awaitable[tuple[int, tuple[str, ...]]]:
        """Return the number of erased refs and descriptors, and a message for each obstacle."""


async def erase_no_texts(doomed: ErasureSet, *, dry_run: bool) -> tuple[int, tuple[str, ...]]:  # noqa: ARG001 - required by the protocol
    """Erase nothing. Used as `EraseTexts` by stores without refs."""
    return 0, ()


class _PendingErasure(msgspec.Struct, frozen=True):
    """
    Remaining work of an interrupted erasure, as stored in its note.

    It contains the ids to erase, the ids of other memories that mention them, text hashes, and suffixes of ids.
    """

    ids: tuple[str, ...] = ()
    naming: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


_read_pending: Final = msgspec.json.Decoder(_PendingErasure).decode


@attrs.frozen(kw_only=True)
class EraseRequest:
    """Criteria that select the memories to erase. A memory must match all criteria that are set."""

    ids: tuple[str, ...] | None = None
    where: EngineFilter = attrs.field(factory=EngineFilter)
    about: str | None = None
    source: str | None = None

    @classmethod
    def checked(cls, *, ids: object, about: object, source: object, before: datetime | None) -> EraseRequest:
        """
        Return a validated request of a tool.

        Args:
            ids: Ids of memories.
            about: A mention or a topic, matched exactly, without a search.
            source: A source of memories, or an item of evidence; a handle with or without its version.
            before: Only memories that were created before this time.

        Raises:
            InvalidArgument: No criterion is set, because such a request would select all memories.

        """
        if ids is about is source is before is None:
            raise InvalidArgument(
                "forget needs ids, about, source or before", hint="say what is to be forgotten; nothing means nothing"
            )
        if about is not None:
            check_topic(about, "about")
        return cls(
            ids=None if ids is None else check_ids("ids", [ids] if isinstance(ids, str) else ids),
            where=EngineFilter(until=before),
            about=None if about is None else check_id("about", about),
            source=None if source is None else _check.check_text("source", source),
        )

    def candidates(self, reader: Reader) -> list[str]:
        """Return the ids of the memories that match all criteria except the source."""
        found = select_nodes(reader, self.ids, self.where)
        if self.about is not None:
            topic, mention = EngineFilter(topic=self.about), EngineFilter(mentions=frozenset({self.about}))
            found = np.intersect1d(found, np.union1d(reader.window(topic), reader.window(mention)))
        return reader.ids(found)

    def has_source(self, memory: Memory) -> bool:
        """Return True if the memory's metadata or evidence names the requested source, or if no source is requested."""
        if self.source is None or memory.source == self.source:
            return True
        kept = [one.source for item in memory.evidence if (one := parse_stored_evidence(item)) is not None]
        # A handle of a ref matches with or without its version ("@...").
        return self.source in {*memory.evidence, *kept, *(source.partition("@")[0] for source in kept)}


async def erase_memories(
    engine: Engine,
    request: EraseRequest,
    candidate_ids: Sequence[str],
    erase_texts: EraseTexts,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
) -> ErasureReport:
    """
    Erase the candidates that match the request. A dry run only counts them.

    Args:
        engine: The memories.
        request: The criteria.
        candidate_ids: Ids of memories that match all criteria except the source.
        erase_texts: Erases refs and descriptors.
        dry_run: If True, nothing is erased.
        progress: Called with the number of erased memories and their total number.

    """
    if request.source is not None:
        candidate_ids = [one.id async for one in _iter_memories(engine, candidate_ids) if request.has_source(one)]
    reasons = [one async for page in read_in_pages(engine.read, candidate_ids, find_outcome_reasons) for one in page]
    ids = tuple(dict.fromkeys([*candidate_ids, *reasons]))
    kinds: Counter[str] = Counter()
    digests: dict[str, None] = {}
    async for memory in _iter_memories(engine, ids):
        kinds[memory.type.value] += 1
        digests.update(dict.fromkeys(evidence_digests(memory.evidence)))
    out_of_scope = (*UNERASED_PLACES, *engine.unerasable_places)
    if not ids:
        held = () if dry_run else await resume_erasure(engine, erase_texts)
        return ErasureReport(pending=held, out_of_scope=out_of_scope, dry_run=dry_run)
    naming = await _find_mentioning(engine, ids)
    if dry_run:
        link_count, own = await engine.read(lambda reader: _find_exclusive_data(reader, ids, digests))
        refs, held = await erase_texts(_make_erasure_set(engine, own, _group_by_end(ids)), dry_run=True)
        return ErasureReport(
            memories=dict(kinds),
            links=link_count,
            updated_memories=len(naming),
            evidence_texts=len(own),
            refs=refs,
            pending=held,
            out_of_scope=out_of_scope,
            dry_run=True,
        )
    name = f"{NOTE_PREFIX}{secrets.token_hex(8)}"
    left = _PendingErasure(ids=ids, naming=naming, digests=tuple(digests), ends=tuple(_group_by_end(ids)))
    await engine.write(lambda writer: _write_note(writer, name, left))
    links, texts, refs, held = await _run_erasure(engine, name, left, erase_texts, progress)
    held += await engine.erase(wait=DISK_WAIT_SECONDS)
    return ErasureReport(
        memories=dict(kinds),
        links=links,
        updated_memories=len(naming),
        evidence_texts=texts,
        refs=refs,
        pending=held,
        out_of_scope=out_of_scope,
    )


async def resume_erasure(engine: Engine, erase_texts: EraseTexts) -> tuple[str, ...]:
    """
    Finish interrupted erasures, and return a message for each copy that could not be erased.

    Fast if no erasure was interrupted.
    """
    held: tuple[str, ...] = ()
    for name, text in (await engine.read(lambda reader: reader.notes(NOTE_PREFIX))).items():
        held += (await _run_erasure(engine, name, _read_pending(text), erase_texts, None))[-1]
    return held + await engine.erase(wait=DISK_WAIT_SECONDS)


async def _run_erasure(
    engine: Engine, name: str, pending: _PendingErasure, erase_texts: EraseTexts, progress: ProgressCallback | None
) -> tuple[int, int, int, tuple[str, ...]]:
    """
    Run the remaining steps of one erasure.

    Return the numbers of erased links, texts and refs, and a message for each copy that could not be erased.
    """
    doomed = frozenset(pending.ids)
    ends = _group_by_end(doomed)

    def redact(writer: Writer, memory_id: str) -> None:
        node = writer.find(memory_id)
        if node is not None:
            writer.mark_for_erasure()
            (memory,) = writer.get([node])
            links = [link for link in writer.read_links(node, "out") if _find_named_ids(link.metadata, ends)]
            writer.put(_redact_memory(memory, ends), links=[_redact_link(link, ends) for link in links])

    def erase(writer: Writer, memory_id: str) -> int:
        if writer.find(memory_id) is None:
            return 0
        writer.mark_for_erasure()
        _redact_outcome(writer, memory_id, doomed)
        bridged = _bridging_links(writer, memory_id, doomed)
        count = writer.delete(memory_id)
        for link in bridged:
            saving.add_link(
                writer,
                link.from_id,
                LinkRequest(to_id=link.to_id, relationship=SUPERSEDES_WORD, confidence=link.confidence),
                LinkType.EVOLUTION,
                created_by=link.created_by,
                now=link.created_at,
            )
        return count

    async for _ in write_in_transactions(engine.write, pending.naming, redact, max_items=PAGE_MEMORIES):
        pass
    links = done = 0
    async for some in write_in_transactions(engine.write, pending.ids, erase, max_items=PAGE_MEMORIES):
        links, done = links + sum(some), done + len(some)
        if progress is not None:
            progress(done, len(pending.ids))
    kept = await engine.read(lambda reader: reader.known_contents(pending.digests))
    gone = tuple(digest for digest in pending.digests if digest not in kept)
    rest = _PendingErasure(digests=gone, ends=pending.ends)
    if pending.ids:
        # Remove the ids from the note before erased data is removed from disk, because ids are derived from text.
        await engine.write(lambda writer: _write_note(writer, name, rest))
    refs, held = await erase_texts(_make_erasure_set(engine, gone, pending.ends), dry_run=False)
    await engine.write(lambda writer: _write_note(writer, name, rest if held else None))
    clear_text_caches()
    return links, len(gone), refs, held


def _make_erasure_set(engine: Engine, digests: Iterable[str], ends: Iterable[str]) -> ErasureSet:
    async def find_missing_ids(ids: Collection[str]) -> frozenset[str]:
        known = read_in_pages(engine.read, sorted(ids), lambda reader, nodes: reader.ids(nodes))
        return frozenset(ids).difference([one async for page in known for one in page])

    return ErasureSet(frozenset(digests), frozenset(ends), find_missing_ids)


def _write_note(writer: Writer, name: str, pending: _PendingErasure | None) -> None:
    writer.mark_for_erasure()
    writer.set_note(name, None if pending is None else msgspec.json.encode(pending).decode())


async def _iter_memories(engine: Engine, ids: Sequence[str]) -> AsyncIterator[Memory]:
    """Yield existing memories page by page, so that other plans can run between two pages."""
    async for some in read_in_pages(engine.read, ids, lambda reader, nodes: reader.get(nodes)):
        for memory in some:
            yield memory


def select_nodes(reader: Reader, ids: Sequence[str] | None, where: EngineFilter) -> Nodes:
    """
    Return the nodes of memories with the given ids that match the conditions, in order of saving.

    None selects all ids. Raise `MemoryNotFound` for an unknown id.
    """
    if ids is None:
        return np.sort(reader.window(where))
    found = np.unique(np.array([saving.require_node(reader, memory_id) for memory_id in ids], np.int64))
    return found if where == EngineFilter() else np.intersect1d(found, reader.window(where))


def find_outcome_reasons(reader: Reader, nodes: list[int]) -> list[str]:
    """Return the ids of the memories that contain the outcome reasons of the given decisions."""
    links = [link for own in reader.links_of_many(nodes, "in") for link in own]
    told = [link.from_id for link in links if link.metadata.original_relationship == OUTCOME_OF_WORD]
    found = [node for node in reader.find_many(told) if node is not None]
    return [memory.id for memory in reader.get(found) if is_outcome_reason(memory)]


def _find_exclusive_data(reader: Reader, ids: Sequence[str], digests: Iterable[str]) -> tuple[int, frozenset[str]]:
    """Return the number of links of memories, and those *digests* whose texts no other memory cites."""
    nodes = [node for node in reader.find_many(ids) if node is not None]
    link_ids = {link.id for own in reader.links_of_many(nodes) for link in own}
    return len(link_ids), frozenset(one for one in digests if set(reader.users_of_content(one).tolist()) <= set(nodes))


def _group_by_end(ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the ids, grouped by their suffixes (see `ID_END_PATTERN`)."""
    found: dict[str, list[str]] = {}
    for one in ids:
        for end in ID_END_PATTERN.findall(one)[-1:]:
            found.setdefault(end, []).append(one)
    return found


async def _find_mentioning(engine: Engine, ids: Collection[str]) -> tuple[str, ...]:
    """Return the ids of other memories that mention any of the given ids in a field or in link metadata."""
    ends, doomed = _group_by_end(ids), frozenset(ids)
    if not ends:
        return ()
    stored_ends = {end.encode() for end in ends}

    def plan(reader: Reader, nodes: list[int]) -> list[str]:
        # Search the stored bytes first, because decoding all memories takes about five times as long.
        nodes = reader.filter_stored(nodes, lambda row: not stored_ends.isdisjoint(STORED_ID_END_PATTERN.findall(row)))
        table = reader.links(np.array(nodes, np.int64), "out")
        # The metadata of automatic links is generated and contains no ids.
        labelled = np.unique(table.sources[table.creators != SYSTEM_CREATOR_INDEX])
        said: list[tuple[str, object]] = [(one.id, to_memory_record(one)) for one in reader.get(nodes)]
        said += [(link.from_id, link.metadata) for own in reader.links_of_many(labelled, "out") for link in own]
        return list(dict.fromkeys(one for one, record in said if _find_named_ids(record, ends)))

    every = await engine.read(lambda reader: reader.ids(np.sort(reader.window())))
    others = [one for one in every if one not in doomed]
    return tuple([one async for page in read_in_pages(engine.read, others, plan) for one in page])


def _find_named_ids(record: object, ends: dict[str, list[str]]) -> list[str]:
    """
    Return the ids that a record mentions in any field, longest first.

    One id may be a prefix of another, so longer ids must be replaced first.
    """
    text = msgspec.json.encode(record).decode()
    likely = {one for end in set(ID_END_PATTERN.findall(text)) for one in ends.get(end, ())}
    return sorted((one for one in likely if _in_json(one) in text), key=len, reverse=True)


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _replace_ids(record: object, named: Iterable[str]) -> str:
    """Return a record as JSON, with the given ids replaced with `ERASED_ID`."""
    text = msgspec.json.encode(record).decode()
    for one in named:
        text = text.replace(_in_json(one), ERASED_ID)
    return text


def _redact_memory(memory: Memory, ends: dict[str, list[str]]) -> Memory:
    """Return a memory in which the erased ids are replaced."""
    named = _find_named_ids(to_memory_record(memory), ends)
    memory = attrs.evolve(
        memory,
        mentions=tuple(one for one in memory.mentions if one not in named),
        evidence=tuple(one for one in memory.evidence if one not in named),
    )
    # Keep the memory's own id, even if it was derived from a text with an erased id, because links refer to it.
    return attrs.evolve(from_memory_record(_read_record(_replace_ids(to_memory_record(memory), named))), id=memory.id)


def _redact_link(link: Link, ends: dict[str, list[str]]) -> Link:
    return attrs.evolve(link, metadata=_read_label(_replace_ids(link.metadata, _find_named_ids(link.metadata, ends))))


def _bridging_links(reader: Reader, memory_id: str, doomed: Collection[str]) -> list[Link]:
    """
    Return links that bridge the gap that an erased memory leaves in an evolution chain.

    Each link leads from a memory that superseded the erased one to a memory that the erased one superseded.
    """
    node = reader.find(memory_id)
    # Older memories are erased first, so that a long chain is traversed only once.
    if node is None or not len(reader.links(np.array([node]), "out", [LinkType.EVOLUTION])):
        return []

    def ends(direction: Direction) -> list[Link]:
        """Return the evolution links between remaining and erased memories at one end of the gap."""
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


def _redact_outcome(writer: Writer, memory_id: str, doomed: Collection[str]) -> None:
    """Remove the reason of an outcome from its decision, because the erased memory contains the same text."""
    node = writer.find(memory_id)
    (memory,) = writer.get([] if node is None else [node])
    if node is None or not is_outcome_reason(memory):
        return
    for link in writer.read_links(node, "out"):
        decided = writer.find(link.to_id)
        if link.metadata.original_relationship != OUTCOME_OF_WORD or decided is None or link.to_id in doomed:
            continue
        (decision,) = writer.get([decided])
        if isinstance(decision.metadata, DecisionMetadata):
            writer.put(_without_reason(decision, decision.metadata, memory.content))


def _without_reason(decision: Memory, metadata: DecisionMetadata, reason: str) -> Memory:
    history = tuple(attrs.evolve(one, reason=None) if one.reason == reason else one for one in metadata.history)
    current = None if metadata.outcome_reason == reason else metadata.outcome_reason
    return attrs.evolve(decision, metadata=attrs.evolve(metadata, history=history, outcome_reason=current))
