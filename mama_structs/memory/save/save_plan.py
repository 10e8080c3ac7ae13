"""Plans that save memories with their requested and automatic links."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, MemoryNotFound
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.save.automatic_links import LinkingContext, choose_automatic_links, find_candidates
from mama_structs.memory.save.conflict_detection import apply_verdicts, detect_conflicts, find_same_subject
from mama_structs.memory.save.conflict_records import add_conflict_links
from mama_structs.memory.save.link_candidates import PendingLinks, SimilarityBaseline, query_terms_to_prefetch
from mama_structs.memory.types.duplicates import duplicate_fingerprint, find_current_duplicate, with_repetition
from mama_structs.memory.types.engine import EngineFilter, NewMemory, Nodes, Prefetch, Reader, Vectors, Writer
from mama_structs.memory.types.judge import Verdict
from mama_structs.memory.types.model import (
    IMPLEMENTS_WORD,
    MAX_STORED_TEXT_BYTES,
    OUTCOME_OF_WORD,
    SUPERSEDES_WORD,
    CreatedBy,
    DecisionMetadata,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    OutcomeChange,
    RecordMetadata,
    RelatedMemory,
    SaveWarnings,
    StoredEvidence,
    evidence_digests,
    is_id,
    is_misspelled_id,
    new_link_id,
    parse_stored_evidence,
    text_digest,
    with_text,
)
from mama_structs.memory.types.relationships import (
    EXAMPLE_WORDS,
    classify_by_example,
    look_up_type,
    normalize_relationship,
)
from mama_structs.memory.types.requests import LinkRequest, SaveRequest
from mama_structs.memory.types.text_analysis import embedded_text, embedded_texts
from mama_structs.provenance import ORIGINS, UNKNOWN_ORIGIN, Origin, Provenance, get_inserted_provenance, least_trusted
from mama_structs.settings import MemorySettings

FindContent = Callable[[str], tuple[str, str] | tuple[str, str, Provenance] | None]
"""Resolves a handle to its versioned handle, its text and the text's provenance; returns None for other texts.

Without a provenance, the text counts as from outside.
"""

EMPTY_TRUSTS: Final[Mapping[str, Origin]] = MappingProxyType({})

RECORDS_PER_YIELD: Final = 50
"""Number of records to check before yielding to other tasks."""
MAX_BATCH_RECORDS: Final = 32
"""Maximum number of records per batch. A single record takes twice as long to link as one of a large batch."""

TRUST_LINK_TYPES: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION)
"""Types of links from a memory to one that it is based on, whose trust limits its own."""

_MAX_NEAREST_IDS: Final = 3
_HANDLE_PATTERN: Final = re.compile(r"(?P<escape>\\*)(?P<handle>(?:fd|ref):\S{1,300})")
_NO_NODES: Final = np.empty(0, np.int64)
# Shorter texts are hashed without a thread, because starting it would take longer than hashing.
_MIN_THREADED_HASH_CHARS: Final = 2**20


@attrs.frozen(kw_only=True, eq=False)
class PreparedSave:
    """
    A memory to save, with its evidence texts by hash.

    `prepare_saves` adds vectors and link types. *verdicts* are the judge's verdicts on older memories. If the judge was
    not consulted, *note* says why.
    """

    request: SaveRequest
    memory: Memory
    contents: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    vectors: NDArray[np.float32] = attrs.field(factory=lambda: np.empty((0, 0), np.float32))
    link_types: Mapping[str, LinkType] = attrs.field(factory=dict)
    trusts: Mapping[str, Origin] = attrs.field(factory=dict)
    """Trust of each evidence text, by hash."""
    now: datetime
    """The time of the save. The memory itself may have an earlier time."""
    outcome_of: str | None = None
    """Id of the decision whose outcome this memory explains."""
    verdicts: Mapping[str, Verdict] = attrs.field(factory=dict)
    note: str | None = None


def no_content(_item: str) -> None:
    """Return None. Used as `FindContent` by callers that resolve no handles."""


async def draft_save(
    request: SaveRequest,
    namespace: str,
    find_content: FindContent,
    *,
    now: datetime,
    settings: MemorySettings,
    resolve: bool = False,
) -> PreparedSave:
    """
    Return the prepared save of a requested memory, with the texts of the handles in its evidence.

    Args:
        request: The requested memory.
        namespace: The namespace of the memory.
        find_content: Resolves handles.
        now: The current time.
        settings: The maximum lengths of texts.
        resolve: Whether to replace a content or reasoning that is exactly a handle with the handle's text.

    """
    inserted = [get_inserted_provenance()]
    if resolve:
        given = {name: getattr(request, name, None) for name in ("content", "reasoning")}
        changed, found_texts = insert_handle_texts(given, find_content)
        request = attrs.evolve(request, **changed)
        inserted += found_texts
    memory = request.memory(namespace, now=now, max_content=settings.max_content)
    written_by = Provenance.from_author(memory.origin).merge_with(*inserted)
    found = [
        _handle_text(f"evidence[{position}]", item, find_content, settings.max_evidence)
        for position, item in enumerate(memory.evidence)
    ]
    texts = {one.text for one in found if one is not None}

    def hashes() -> dict[str, str]:
        return {text: text_digest(text) for text in texts}

    digests = await run_in_own_thread(hashes) if sum(map(len, texts)) > _MIN_THREADED_HASH_CHARS else hashes()
    evidence = tuple(
        item if one is None else str(StoredEvidence(one.source, digests[one.text]))
        for item, one in zip(memory.evidence, found, strict=True)
    )
    trusts: dict[str, Origin] = {}
    for one in found:
        if one is not None:
            known = trusts.get(digests[one.text], ORIGINS[0])
            trusts[digests[one.text]] = least_trusted([known, one.provenance.origin, one.provenance.trust])
    return PreparedSave(
        request=request,
        memory=attrs.evolve(
            memory,
            evidence=evidence,
            origin=written_by.origin,
            trust=least_trusted([written_by.trust, *trusts.values()]),
        ),
        contents={digest: text for text, digest in digests.items()},
        trusts=trusts,
        now=now,
    )


@attrs.frozen
class _HandleText:
    """Result of a `FindContent`: the versioned handle, its text and its provenance."""

    source: str
    text: str
    provenance: Provenance = Provenance(UNKNOWN_ORIGIN, UNKNOWN_ORIGIN)  # noqa: RUF009 - immutable


def insert_handle_texts(
    texts: Mapping[str, object], find_content: FindContent
) -> tuple[dict[str, Any], list[Provenance]]:
    """
    Return the handle's text for each field that consists of one handle, and the provenance of these texts.

    A backslash before a handle is removed and prevents the replacement. Other fields are not returned.
    """
    changed: dict[str, Any] = {}
    inserted: list[Provenance] = []
    for name, given in texts.items():
        exact = _HANDLE_PATTERN.fullmatch(given) if isinstance(given, str) else None
        if exact is None:
            continue
        try:
            found = find_content(exact["handle"])
        except InvalidHandle:
            continue
        except HandleNotFound as error:
            if not exact["escape"]:
                error.hint = f"{error.hint}; to save the words themselves, write \\{exact['handle']}"
                raise
            found = None
            changed[name] = exact[0][1:]
        if found is not None and exact["escape"]:
            changed[name] = exact[0][1:]
        elif found is not None:
            content = _HandleText(*found)
            changed[name] = content.text
            inserted.append(content.provenance)
    return changed, inserted


def _handle_text(name: str, item: str, find_content: FindContent, max_evidence: int) -> _HandleText | None:
    """Return the text of a handle used as evidence, or None if the item is no handle or its text is already stored."""
    given = None if parse_stored_evidence(item) is not None else find_content(item)
    if given is None:
        return None
    found = _HandleText(*given)
    if parse_stored_evidence(str(StoredEvidence(found.source, "0" * 64))) is None:
        raise ValueError("find_content gave a source that is no handle")
    most = min(max_evidence, MAX_STORED_TEXT_BYTES)
    size = len(_check.check_encodable(name, found.text, owner=" of its text"))
    if size > most:
        more = ", or raise settings.memory.max_evidence" if most < MAX_STORED_TEXT_BYTES else ""
        raise InvalidArgument(
            f"{name} must refer to at most {most} bytes of text, got {size}",
            hint=f"mark the part that matters as a ref of its own{more}",
        )
    return found


async def prepare_saves(
    embedding: EmbeddingService, asked: Sequence[PreparedSave], find_mentions: Callable[[str], Sequence[str]]
) -> list[PreparedSave]:
    """Embed memories, and determine their mentions and the types of their links."""
    kinds = await resolve_link_types(
        embedding, sorted({link.relationship for one in asked for link in one.request.links})
    )
    memories = []
    for position, one in enumerate(asked):
        if position and position % RECORDS_PER_YIELD == 0:
            await asyncio.sleep(0)
        text = embedded_text(one.memory)
        mentions = await run_inline_or_in_thread(measure_input(text), find_mentions, text)
        memories.append(attrs.evolve(one.memory, mentions=tuple(mentions)))
    vectors = await embed_memories(embedding, memories)
    return [
        attrs.evolve(one, memory=memory, vectors=pieces, link_types=kinds)
        for one, memory, pieces in zip(asked, memories, vectors, strict=True)
    ]


async def embed_memories(embedding: EmbeddingService, memories: Sequence[Memory]) -> list[Vectors]:
    """Return the vectors of each memory, of shape (chunks, dimensions)."""
    return await embed_text_groups(embedding, [embedded_texts(memory) for memory in memories])


async def embed_text_groups(embedding: EmbeddingService, texts: Sequence[Sequence[str]]) -> list[Vectors]:
    """Return the vectors of each group of texts, of shape (chunks, dimensions)."""
    pieces = iter(await embedding.embed_documents([text for own in texts for text in own]))
    return [np.concatenate([next(pieces) for _ in own]) for own in texts]


async def resolve_link_types(embedding: EmbeddingService, words: Sequence[str]) -> dict[str, LinkType]:
    """Return the link type of each relationship word."""
    kinds = {word: kind for word in words if (kind := look_up_type(word)) is not None}
    unknown = [word for word in words if word not in kinds]
    if unknown:
        found = await embedding.embed_documents([*map(normalize_relationship, unknown), *EXAMPLE_WORDS])
        vectors = [pieces[0] for pieces in found]
        examples = np.stack(vectors[len(unknown) :])
        kinds |= {
            word: classify_by_example(word, vector, examples) for word, vector in zip(unknown, vectors, strict=False)
        }
    return kinds


def require_node(reader: Reader, memory_id: str) -> int:
    """Return the node of a memory, or raise `MemoryNotFound` with similar ids."""
    node = reader.find(memory_id)
    if node is None:
        hint = None
        if reader.damaged:
            hint = f"{reader.damaged} damaged memories are left out, and it may be one of them: see admin.check()"
        similar = reader.nearest_ids(memory_id, _MAX_NEAREST_IDS)
        nearest = tuple(one for one in similar if is_misspelled_id(memory_id, one))
        raise MemoryNotFound(memory_id, nearest=nearest, hint=hint)
    return node


def require_decision(reader: Reader, memory_id: str) -> Memory:
    """Return the decision with this id. Raise `InvalidArgument` if the memory has another type."""
    (memory,) = reader.get([require_node(reader, memory_id)])
    if memory.type is not MemoryType.DECISION:
        raise InvalidArgument(f"{memory_id!r:.200} must be a decision, and is of the type {memory.type.value}")
    return memory


def check_link_targets(reader: Reader, asked: PreparedSave) -> Memory | None:
    """
    Raise if a link target or a text referenced by hash does not exist.

    Return the superseded decision, or None if the save supersedes none.
    """
    before = None if asked.request.supersedes is None else require_decision(reader, asked.request.supersedes)
    for to_id in (*asked.request.implements, *(link.to_id for link in asked.request.links)):
        require_node(reader, to_id)
    for position, item in enumerate(asked.memory.evidence):
        kept = parse_stored_evidence(item)
        if kept is not None and kept.digest not in asked.contents and not reader.known_contents([kept.digest]):
            raise InvalidArgument(
                f"evidence[{position}] names a text by its hash that no memory keeps",
                hint="give the handle alone, such as ref:name or fd:1",
            )
    return before


def save(writer: Writer, prepared: PreparedSave, linking: LinkingContext) -> Memory:
    """Save a memory with its links, and return it."""
    return save_batch(writer, [prepared], linking)[0]


def save_batch(writer: Writer, prepared: Sequence[PreparedSave], linking: LinkingContext) -> list[Memory]:
    """
    Save memories in order as one batch.

    They get nearly the same links as if they were saved one by one.
    """
    writer.expect(lambda ahead: _prefetch_reads(ahead, prepared))
    numbers = (
        [duplicate_fingerprint(one.memory) for one in prepared]
        if any(one.request.can_merge for one in prepared)
        else []
    )
    known = {number for number, nodes in zip(numbers, writer.duplicates(numbers), strict=True) if len(nodes)}
    known.update(number for number, times in Counter(numbers).items() if times > 1)
    saved: list[Memory] = []
    together: list[PreparedSave] = []
    for one in prepared:
        first = None
        if one.request.can_merge and duplicate_fingerprint(one.memory) in known:
            # Save the pending batch first, because it may contain the memory that this one duplicates.
            saved += _save_new(writer, together, linking)
            together = []
            first = find_current_duplicate(writer, one.memory)
        if first is None:
            together.append(one)
        else:
            merged = with_repetition(first, one.memory.created_at)
            writer.put(merged)
            saved.append(attrs.evolve(merged, warnings=SaveWarnings(duplicate_of=(RelatedMemory(first.id, 1.0),))))
    return saved + _save_new(writer, together, linking)


def _prefetch_reads(ahead: Prefetch, prepared: Sequence[PreparedSave]) -> None:
    """Prefetch all data that a save reads before it writes."""
    memories = [one.memory for one in prepared]
    ahead.duplicates([duplicate_fingerprint(memory) for memory in memories])
    ahead.find_many(list(dict.fromkeys([*(memory.id for memory in memories), *_referenced_ids(prepared)])))
    ahead.known_contents(
        [one.digest for memory in memories for one in map(parse_stored_evidence, memory.evidence) if one]
    )
    ahead.links(np.zeros(0, np.int64))
    ahead.sample()
    for memory in memories:
        ahead.rarity(query_terms_to_prefetch(memory))


def _referenced_ids(prepared: Iterable[PreparedSave]) -> list[str]:
    """Return all ids to which the saves refer."""
    named: list[str | None] = []
    for one in prepared:
        named += [one.request.supersedes, *one.request.implements, one.outcome_of, *one.verdicts]
        named += [*(link.to_id for link in one.request.links), *filter(is_id, one.memory.evidence)]
    return [end for end in named if end is not None]


def check_all_link_targets(reader: Reader, asked: Sequence[PreparedSave]) -> None:
    """Raise if any record has a missing link target, so that no record is saved."""
    reader.expect(lambda ahead: ahead.find_many(list(dict.fromkeys(_referenced_ids(asked)))))
    for position, one in enumerate(asked):
        try:
            check_link_targets(reader, one)
        except (MemoryNotFound, InvalidArgument) as error:
            error.add_note(f"in items[{position}]")
            raise


def _save_new(writer: Writer, prepared: Sequence[PreparedSave], linking: LinkingContext) -> list[Memory]:
    """Save memories without merging duplicates."""
    if not prepared:
        return []
    new = [_build_new_memory(writer, one) for one in prepared]
    usual = SimilarityBaseline.from_reader(writer, linking.calibration, linking.shared_dimensions)
    seen: list[SaveWarnings] = []

    def links_of(nodes: Nodes) -> list[list[Link]]:
        asked = [
            PendingLinks(
                memory=one.memory,
                vectors=one.vectors,
                explicit=[link.to_id for link in one.links],
                node=node,
                fresh=True,
            )
            for one, node in zip(new, nodes.tolist(), strict=True)
        ]
        found = find_candidates(writer, asked, linking, usual)
        detects = linking.detects_conflicts
        detected = (
            detect_conflicts(writer, asked, found, linking.calibration) if detects else [SaveWarnings()] * len(asked)
        )
        seen.extend(apply_verdicts(what, one.verdicts, one.note) for what, one in zip(detected, prepared, strict=True))
        chosen = choose_automatic_links(writer, asked, linking, usual, found=found)
        return [
            add_conflict_links(one.memory, what, links, one.explicit, now=save.now) if what else links
            for one, what, links, save in zip(asked, seen, chosen, prepared, strict=True)
        ]

    writer.put_new(new, links_of)
    return [attrs.evolve(one.memory, warnings=what) for one, what in zip(new, seen, strict=True)]


def find_judge_candidates(reader: Reader, prepared: PreparedSave, linking: LinkingContext) -> list[Memory]:
    """
    Return the memories to pass to a judge before a save.

    Return an empty list if the save will be merged into an existing memory.
    """
    request, memory = prepared.request, prepared.memory
    if request.can_merge and find_current_duplicate(reader, memory) is not None:
        return []
    explicit = [*request.implements, *(link.to_id for link in request.links)]
    asked = PendingLinks(memory=memory, vectors=prepared.vectors, explicit=explicit)
    usual = SimilarityBaseline.from_reader(reader, linking.calibration, linking.shared_dimensions)
    return find_same_subject(reader, asked, find_candidates(reader, [asked], linking, usual))


@attrs.define
class BatchSizer:
    """Adapts the batch size of saves to the waiting time of other writers."""

    size: int = 1

    def save(self, writer: Writer, prepared: Sequence[PreparedSave], linking: LinkingContext) -> list[Memory]:
        """
        Save at least one memory, and continue until other writers have waited long enough.

        Returns the saved memories.
        """
        saved: list[Memory] = []
        while len(saved) < len(prepared):
            saved += save_batch(writer, prepared[len(saved) : len(saved) + self.size], linking)
            if writer.should_yield:
                self.size = max(min(len(saved) // 2, MAX_BATCH_RECORDS), 1)
                break
            self.size = min(2 * self.size, MAX_BATCH_RECORDS)
        return saved


def _build_new_memory(writer: Writer, prepared: PreparedSave) -> NewMemory:
    """Return the memory to store, with the requested links."""
    request, memory = prepared.request, prepared.memory
    before = check_link_targets(writer, prepared)
    asked = [
        *((_certain_link_request(to_id, IMPLEMENTS_WORD), LinkType.IMPLEMENTATION) for to_id in request.implements),
        *((link, prepared.link_types[link.relationship]) for link in request.links),
    ]
    if prepared.outcome_of is not None:
        asked.append((_certain_link_request(prepared.outcome_of, OUTCOME_OF_WORD), LinkType.IMPLEMENTATION))
    # Evolution links connect decisions only, so a verdict on other types creates no link.
    replaced = [memory_id for memory_id, verdict in prepared.verdicts.items() if verdict == "replace"]
    if replaced and memory.type is MemoryType.DECISION:
        older = writer.get([require_node(writer, memory_id) for memory_id in replaced])
        asked += [(_judge_link_request(one.id), LinkType.EVOLUTION) for one in older if one.type is MemoryType.DECISION]
    if before is not None:
        at = _clamp_to_decision(
            "created_at", memory.created_at, before, " that it supersedes", is_dated=request.created_at is not None
        )
        memory = attrs.evolve(memory, created_at=at, updated_at=at)
        asked.insert(0, (_certain_link_request(before.id, SUPERSEDES_WORD), LinkType.EVOLUTION))
    # Keep one link per target and relationship word: the link with the highest confidence, or the first of equal ones.
    explicit: dict[tuple[str, str], Link] = {}
    for one, link_type in asked:
        key = (one.to_id, normalize_relationship(one.relationship))
        if key not in explicit or explicit[key].confidence < one.confidence:
            explicit[key] = _build_link(memory.id, one, link_type, memory.metadata.created_by, memory.created_at)
    memory = apply_trust(writer, memory, explicit.values(), prepared.trusts)
    return NewMemory(memory=memory, vectors=prepared.vectors, links=[*explicit.values()], contents=prepared.contents)


def add_link(
    writer: Writer,
    from_id: str,
    asked: LinkRequest,
    link_type: LinkType,
    *,
    created_by: CreatedBy,
    now: datetime,
    reason_trust: Origin = ORIGINS[0],
) -> Link:
    """
    Create a link, or raise the confidence of an equal one, and return it.

    A link that is not automatic replaces the automatic links between both memories. The memory at its start is trusted
    no more than the link's reason, because both are displayed together.
    """
    writer.expect(lambda ahead: (ahead.find_many([from_id, asked.to_id]), ahead.links_of_many(_NO_NODES, "out")))
    ends = [require_node(writer, from_id), require_node(writer, asked.to_id)]
    if from_id == asked.to_id:
        raise InvalidArgument(f"a memory cannot be linked to itself, and {from_id!r:.200} is both ends")
    # Read only outgoing links, because a memory may have thousands of incoming links, each stored in another row.
    links = [link for own in writer.links_of_many(ends, "out") for link in own]
    between = [link for link in links if link.to_id in {from_id, asked.to_id}]
    word = normalize_relationship(asked.relationship)
    same = [
        link
        for link in between
        if link.to_id == asked.to_id
        # An explicit link is not merged with an automatic one, but replaces it below.
        and (link.created_by == "system") == (created_by == "system")
        and normalize_relationship(link.metadata.original_relationship) == word
    ]
    if same:
        known = same[0].metadata
        metadata = attrs.evolve(known, reason=asked.reason or known.reason, tags=tuple(asked.tags) or known.tags)
        link = attrs.evolve(same[0], confidence=max(same[0].confidence, asked.confidence), metadata=metadata)
        if link == same[0]:
            _lower_to_reason(writer, ends[0], reason_trust)
            return link
    else:
        link = _build_link(from_id, asked, link_type, created_by, now)
        if created_by != "system":
            writer.delete_links([one.id for one in between if is_automatic(one)])
    writer.put_link(link)
    if link.link_type in TRUST_LINK_TYPES:
        lower_trust(writer, ends[0], ORIGINS[int(writer.facts(np.array(ends)).trusts[1])])
    _lower_to_reason(writer, ends[0], reason_trust)
    return link


def _lower_to_reason(writer: Writer, node: int, trust: Origin) -> None:
    if trust != ORIGINS[0]:
        lower_trust(writer, node, trust)


def apply_trust(
    reader: Reader, memory: Memory, links: Iterable[Link], text_trusts: Mapping[str, Origin] = EMPTY_TRUSTS
) -> Memory:
    """
    Return *memory* with its trust lowered to that of its least trusted source.

    Sources are its evidence, and the targets of those *links* whose type is in `TRUST_LINK_TYPES`.
    """
    ids = [item for item in memory.evidence if is_id(item)]
    ids += [link.to_id for link in links if link.link_type in TRUST_LINK_TYPES]
    digests = evidence_digests(memory.evidence)
    named = [digest for digest in digests if digest not in text_trusts]
    trusts = [text_trusts[digest] for digest in digests if digest in text_trusts]
    trusts += _stored_text_trusts(reader, named)
    if ids:
        nodes = np.array([node for node in reader.find_many(ids) if node is not None], np.int64)
        trusts += [ORIGINS[trust] for trust in reader.facts(nodes).trusts.tolist()]
    return attrs.evolve(memory, trust=least_trusted([memory.trust, *trusts])) if trusts else memory


def _stored_text_trusts(reader: Reader, digests: Iterable[str]) -> list[Origin]:
    """Return the trust of each stored text, which is the trust of the most trusted memory that cites it."""
    found: list[Origin] = []
    for digest in digests:
        nodes = reader.users_of_content(digest)
        if len(nodes):
            found.append(ORIGINS[int(reader.facts(nodes).trusts.min())])
    return found


def lower_trust(writer: Writer, node: int, trust: Origin) -> None:
    """Lower the trust of a memory, and of all memories based on it, to at most *trust*."""
    nodes = np.array([node], np.int64)
    while len(nodes := nodes[writer.facts(nodes).trusts < ORIGINS.index(trust)]):
        memories = writer.get(nodes)
        for memory in memories:
            writer.put(attrs.evolve(memory, trust=trust))
        nodes = np.unique(
            np.concatenate([writer.links(nodes, "in", TRUST_LINK_TYPES).sources, *_citing_memories(writer, memories)])
        )


def _citing_memories(reader: Reader, memories: Iterable[Memory]) -> list[Nodes]:
    """Return the memories that cite each of the given memories as evidence."""
    return [reader.window(EngineFilter(evidence=frozenset({memory.id}))) for memory in memories]


def is_automatic(link: Link) -> bool:
    """
    Return True if a link was created automatically.

    Evolution and implementation links never are.
    """
    return link.created_by == "system" and link.link_type in {LinkType.ASSOCIATION, LinkType.TEMPORAL}


def set_outcome(
    writer: Writer,
    memory_id: str,
    change: OutcomeChange,
    reason: PreparedSave | None,
    linking: LinkingContext,
    *,
    is_dated: bool,
) -> Memory:
    """
    Set the outcome of a decision and save its reason as a separate memory.

    Returns the decision.
    """
    if reason is not None:
        writer.expect(lambda ahead: _prefetch_reads(ahead, [reason]))
    memory = require_decision(writer, memory_id)
    change = attrs.evolve(change, at=_clamp_to_decision("at", change.at, memory, is_dated=is_dated))
    history = tuple(sorted((*_outcome_history(memory), change), key=lambda one: one.at))
    changed = _with_outcome_history(memory, history, max(memory.updated_at, change.at))
    writer.put(changed)
    if reason is None:
        return changed
    save(writer, reason, linking)
    # The reason is displayed as part of the decision, so the decision is trusted no more than the reason.
    trust = least_trusted([changed.trust, reason.memory.trust])
    if trust == changed.trust:
        return changed
    node = require_node(writer, memory_id)
    lower_trust(writer, node, trust)
    return writer.get([node])[0]


def memory_as_of(memory: Memory, moment: datetime) -> Memory:
    """
    Return a memory as it was at *moment*.

    It gets its text of that time. Later outcomes and repeats are left out.
    """
    repeats = tuple(at for at in memory.repeated_at if at <= moment)
    if len(repeats) < len(memory.repeated_at):
        memory = attrs.evolve(memory, repeated_at=repeats)
    if isinstance(memory.metadata, RecordMetadata):
        return _record_as_of(memory, memory.metadata, moment)
    history = tuple(one for one in _outcome_history(memory) if one.at <= moment)
    former = tuple(one for one in memory.previous_texts if one.until <= moment)
    if len(history) == len(_outcome_history(memory)) and len(former) == len(memory.previous_texts):
        return memory
    updated_at = max([memory.created_at, *(one.at for one in history), *(one.until for one in former)])
    if len(former) < len(memory.previous_texts):
        previous = memory.previous_texts[len(former)]
        memory = with_text(memory, content=previous.content, reasoning=previous.reasoning)
    memory = attrs.evolve(memory, previous_texts=former, updated_at=updated_at)
    return _with_outcome_history(memory, history, updated_at) if history != _outcome_history(memory) else memory


def _record_as_of(memory: Memory, own: RecordMetadata, moment: datetime) -> Memory:
    """Return a record as it was at *moment*, or unchanged if its history begins later."""
    then = [one for one in own.history if one.at <= moment]
    if memory.updated_at <= moment or not then:
        return memory
    metadata = attrs.evolve(
        own, value=then[-1].value, version=then[-1].version, text_lengths=(), history=tuple(then[:-1])
    )
    content = memory.content if then[-1].text is None else then[-1].text
    former = tuple(one for one in memory.previous_texts if one.until <= moment)
    return attrs.evolve(memory, content=content, metadata=metadata, previous_texts=former, updated_at=then[-1].at)


def _outcome_history(memory: Memory) -> tuple[OutcomeChange, ...]:
    return memory.metadata.history if isinstance(memory.metadata, DecisionMetadata) else ()


def _with_outcome_history(memory: Memory, history: tuple[OutcomeChange, ...], updated_at: datetime) -> Memory:
    outcome, reason, at = attrs.astuple(history[-1]) if history else (None, None, None)
    fields = {"history": history, "outcome": outcome, "outcome_reason": reason, "outcome_at": at}
    metadata = attrs.evolve(memory.metadata, **fields)
    return attrs.evolve(memory, metadata=metadata, updated_at=updated_at)


def _clamp_to_decision(name: str, at: datetime, decided: Memory, which: str = "", *, is_dated: bool) -> datetime:
    """
    Return *at*, or the time of the decision if *at* is earlier.

    Raise if the caller passed the earlier time (*is_dated*). Otherwise it comes from a clock that stepped back.
    """
    first = decided.created_at
    if is_dated and at < first:
        was = f"when the decision was made{which}, got {at.isoformat()}"
        raise InvalidArgument(f"{name} must not be before {first.isoformat()}, {was}")
    return max(at, first)


def _judge_link_request(to_id: str) -> LinkRequest:
    return attrs.evolve(_certain_link_request(to_id, SUPERSEDES_WORD), reason="the judge said so", tags=("judge",))


def _certain_link_request(to_id: str, relationship: str) -> LinkRequest:
    return LinkRequest(to_id=to_id, relationship=relationship, confidence=1.0)


def _build_link(
    from_id: str, asked: LinkRequest, link_type: LinkType, created_by: CreatedBy, created_at: datetime
) -> Link:
    return Link(
        id=new_link_id(),
        from_id=from_id,
        to_id=asked.to_id,
        link_type=link_type,
        confidence=asked.confidence,
        created_by=created_by,
        metadata=LinkMetadata(original_relationship=asked.relationship, reason=asked.reason, tags=tuple(asked.tags)),
        created_at=created_at,
    )
