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
from mama_structs._internal.event_loop import in_own_thread
from mama_structs._internal.offload import measure, run_inline_or_in_thread
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidHandle, MemoryNotFound
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.save.automatic_links import (
    Linking,
    Unlinked,
    Usual,
    automatic_links,
    candidates_of,
    terms_ahead,
)
from mama_structs.memory.save.conflict_detection import judged_by, noticed, of_the_matter
from mama_structs.memory.types.duplicates import repeated, standing_copy, wording
from mama_structs.memory.types.engine import Filter, NewMemory, Nodes, Prefetch, Reader, Vectors, Writer
from mama_structs.memory.types.judge import Verdict
from mama_structs.memory.types.model import (
    IMPLEMENTS,
    MAX_KEPT,
    OUTCOME_OF,
    SUPERSEDES,
    CreatedBy,
    DecisionMetadata,
    KeptItem,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    Noticed,
    NoticedMemory,
    OutcomeChange,
    RecordMetadata,
    digest_of,
    digests_in,
    is_id,
    new_link_id,
    parse_kept,
    said_otherwise,
)
from mama_structs.memory.types.relationships import EXAMPLES, known_type, nearest_type, normalised
from mama_structs.memory.types.requests import LinkRequest, SaveRequest
from mama_structs.memory.types.text_analysis import embedded_text, embedded_texts
from mama_structs.provenance import ORIGINS, UNKNOWN_ORIGIN, Origin, Provenance, inserted_texts, least_trusted
from mama_structs.settings import MemorySettings

FindContent = Callable[[str], tuple[str, str] | tuple[str, str, Provenance] | None]
"""Resolves a handle to its versioned handle, its text and the text's provenance; returns None for other texts.

Without a provenance, the text counts as from outside.
"""

NO_TRUSTS: Final[Mapping[str, Origin]] = MappingProxyType({})

AT_ONCE: Final = 50
"""Number of records to check before yielding to other tasks."""
TOGETHER: Final = 32
"""Maximum number of records per batch. A single record takes twice as long to link as one of a large batch."""

RESTING: Final = (LinkType.EVOLUTION, LinkType.IMPLEMENTATION)
"""Types of links from a memory to one that it is based on, whose trust limits its own."""

_NEAREST: Final = 3
_EXACT_HANDLE: Final = re.compile(r"(?P<escape>\\*)(?P<handle>(?:fd|ref):\S{1,300})")
_NONE: Final = np.empty(0, np.int64)
# Below this size, a thread costs more than the hashing.
_LONG: Final = 2**20


@attrs.frozen(kw_only=True, eq=False)
class PreparedSave:
    """
    A memory to save, with evidence texts by hash, and once prepared vectors and link types.

    *verdicts* are those of the judge on older memories. If it was not consulted, *note* says why.
    """

    request: SaveRequest
    memory: Memory
    contents: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    vectors: NDArray[np.float32] = attrs.field(factory=lambda: np.empty((0, 0), np.float32))
    link_types: Mapping[str, LinkType] = attrs.field(factory=dict)
    trusts: Mapping[str, Origin] = attrs.field(factory=dict)
    """Trust of each evidence text, by hash."""
    outcome_of: str | None = None
    """Id of the decision whose outcome this memory explains."""
    verdicts: Mapping[str, Verdict] = attrs.field(factory=dict)
    note: str | None = None


def no_content(_item: str) -> None:
    """Return None for every handle; a `FindContent`."""


async def draft(
    request: SaveRequest,
    namespace: str,
    find_content: FindContent,
    *,
    now: datetime,
    settings: MemorySettings,
    resolve: bool = False,
) -> PreparedSave:
    """
    Return a requested memory, with the texts of the handles in its evidence.

    Args:
        request: The requested memory.
        namespace: The namespace of the memory.
        find_content: Resolves handles.
        now: The current time.
        settings: The limits of texts.
        resolve: Whether a content or reasoning that is exactly a handle is replaced by its text.

    """
    inserted = [inserted_texts()]
    if resolve:
        request, found_texts = _with_texts(request, find_content)
        inserted += found_texts
    memory = request.memory(namespace, now=now, max_content=settings.max_content)
    written_by = Provenance.by(memory.origin).limited_by(*inserted)
    found = [
        _handle_text(f"evidence[{position}]", item, find_content, settings.max_evidence)
        for position, item in enumerate(memory.evidence)
    ]
    texts = {one.text for one in found if one is not None}

    def hashes() -> dict[str, str]:
        return {text: digest_of(text) for text in texts}

    digests = await in_own_thread(hashes) if sum(map(len, texts)) > _LONG else hashes()
    evidence = tuple(
        item if one is None else str(KeptItem(one.source, digests[one.text]))
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
    )


@attrs.frozen
class _HandleText:
    """The versioned handle, the text and the provenance that a `FindContent` returns."""

    source: str
    text: str
    provenance: Provenance = Provenance(UNKNOWN_ORIGIN, UNKNOWN_ORIGIN)  # noqa: RUF009 - immutable


def _with_texts(request: SaveRequest, find_content: FindContent) -> tuple[SaveRequest, list[Provenance]]:
    """
    Replace handles in a request by their texts, and return the provenance of each.

    A backslash escapes a handle.
    """
    changed: dict[str, Any] = {}
    inserted: list[Provenance] = []
    for name in (request.text, "reasoning"):
        given = getattr(request, name, None)
        exact = _EXACT_HANDLE.fullmatch(given) if isinstance(given, str) else None
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
    return attrs.evolve(request, **changed) if changed else request, inserted


def _handle_text(name: str, item: str, find_content: FindContent, max_evidence: int) -> _HandleText | None:
    """Return the versioned handle with its text and provenance, or None without a text."""
    given = None if parse_kept(item) is not None else find_content(item)
    if given is None:
        return None
    found = _HandleText(*given)
    if parse_kept(str(KeptItem(found.source, "0" * 64))) is None:
        raise ValueError("find_content gave a source that is no handle")
    most = min(max_evidence, MAX_KEPT)
    size = len(_check.encodable(name, found.text, whose=" of its text"))
    if size > most:
        more = ", or raise settings.memory.max_evidence" if most < MAX_KEPT else ""
        raise InvalidArgument(
            f"{name} must refer to at most {most} bytes of text, got {size}",
            hint=f"mark the part that matters as a ref of its own{more}",
        )
    return found


async def prepare(
    embedding: EmbeddingService, asked: Sequence[PreparedSave], find_mentions: Callable[[str], Sequence[str]]
) -> list[PreparedSave]:
    """Embed memories, and determine their mentions and the types of their links."""
    kinds = await link_types(embedding, sorted({link.relationship for one in asked for link in one.request.links}))
    memories = []
    for position, one in enumerate(asked):
        if position and position % AT_ONCE == 0:
            await asyncio.sleep(0)
        text = embedded_text(one.memory)
        mentions = await run_inline_or_in_thread(measure(text), find_mentions, text)
        memories.append(attrs.evolve(one.memory, mentions=tuple(mentions)))
    vectors = await documents(embedding, memories)
    return [
        attrs.evolve(one, memory=memory, vectors=pieces, link_types=kinds)
        for one, memory, pieces in zip(asked, memories, vectors, strict=True)
    ]


async def documents(embedding: EmbeddingService, memories: Sequence[Memory]) -> list[Vectors]:
    """Return the vectors of each memory, of shape (pieces, dimensions)."""
    return await together(embedding, [embedded_texts(memory) for memory in memories])


async def together(embedding: EmbeddingService, texts: Sequence[Sequence[str]]) -> list[Vectors]:
    """Return the vectors of each group of texts, of shape (pieces, dimensions)."""
    pieces = iter(await embedding.documents([text for own in texts for text in own]))
    return [np.concatenate([next(pieces) for _ in own]) for own in texts]


async def link_types(embedding: EmbeddingService, words: Sequence[str]) -> dict[str, LinkType]:
    """Return the link type of each relationship word."""
    kinds = {word: kind for word in words if (kind := known_type(word)) is not None}
    unknown = [word for word in words if word not in kinds]
    if unknown:
        found = await embedding.documents([*map(normalised, unknown), *EXAMPLES])
        vectors = [pieces[0] for pieces in found]
        examples = np.stack(vectors[len(unknown) :])
        kinds |= {word: nearest_type(word, vector, examples) for word, vector in zip(unknown, vectors, strict=False)}
    return kinds


def found(reader: Reader, memory_id: str) -> int:
    """Return the node of a memory, or raise `MemoryNotFound` with the nearest ids."""
    node = reader.find(memory_id)
    if node is None:
        hint = None
        if reader.damaged:
            hint = f"{reader.damaged} damaged memories are left out, and it may be one of them: see check()"
        raise MemoryNotFound(memory_id, nearest=tuple(reader.nearest_ids(memory_id, _NEAREST)), hint=hint)
    return node


def decision(reader: Reader, memory_id: str) -> Memory:
    """Return a decision. Raise `InvalidArgument` for a memory of another type."""
    (memory,) = reader.get([found(reader, memory_id)])
    if memory.type is not MemoryType.DECISION:
        raise InvalidArgument(f"{memory_id!r:.200} must be a decision, and is of the type {memory.type.value}")
    return memory


def check_ends(reader: Reader, asked: PreparedSave) -> Memory | None:
    """
    Raise if a link target or a text referenced by hash does not exist.

    Return the superseded decision.
    """
    before = None if asked.request.supersedes is None else decision(reader, asked.request.supersedes)
    for to_id in (*asked.request.implements, *(link.to_id for link in asked.request.links)):
        found(reader, to_id)
    for position, item in enumerate(asked.memory.evidence):
        kept = parse_kept(item)
        if kept is not None and kept.digest not in asked.contents and not reader.known_contents([kept.digest]):
            raise InvalidArgument(
                f"evidence[{position}] names a text by its hash that no memory keeps",
                hint="give the handle alone, such as ref:name or fd:1",
            )
    return before


def save(writer: Writer, prepared: PreparedSave, linking: Linking) -> Memory:
    """Save a memory with its links, and return it."""
    return save_some(writer, [prepared], linking)[0]


def save_some(writer: Writer, prepared: Sequence[PreparedSave], linking: Linking) -> list[Memory]:
    """Save memories in order as one batch, with nearly the links of single saves."""
    writer.expect(lambda ahead: _ask_ahead(ahead, prepared))
    numbers = [wording(one.memory) for one in prepared] if any(one.request.may_merge for one in prepared) else []
    known = {number for number, nodes in zip(numbers, writer.alike(numbers), strict=True) if len(nodes)}
    known.update(number for number, times in Counter(numbers).items() if times > 1)
    saved: list[Memory] = []
    together: list[PreparedSave] = []
    for one in prepared:
        first = None
        if one.request.may_merge and wording(one.memory) in known:
            # Save the pending batch first, because the memory may be a duplicate of one in it.
            saved += _save_new(writer, together, linking)
            together = []
            first = standing_copy(writer, one.memory)
        if first is None:
            together.append(one)
        else:
            merged = repeated(first, one.memory.created_at)
            writer.put(merged)
            saved.append(attrs.evolve(merged, noticed=Noticed(copy_of=(NoticedMemory(first.id, 1.0),))))
    return saved + _save_new(writer, together, linking)


def _ask_ahead(ahead: Prefetch, prepared: Sequence[PreparedSave]) -> None:
    """Prefetch everything that is read before memories are written."""
    memories = [one.memory for one in prepared]
    ahead.alike([wording(memory) for memory in memories])
    ahead.find_many(list(dict.fromkeys([*(memory.id for memory in memories), *_named(prepared)])))
    ahead.known_contents([one.digest for memory in memories for one in map(parse_kept, memory.evidence) if one])
    ahead.links(np.zeros(0, np.int64))
    ahead.sample()
    for memory in memories:
        ahead.rarity(terms_ahead(memory))


def _named(prepared: Iterable[PreparedSave]) -> list[str]:
    """Return all ids to which the saves refer."""
    named: list[str | None] = []
    for one in prepared:
        named += [one.request.supersedes, *one.request.implements, one.outcome_of, *one.verdicts]
        named += [*(link.to_id for link in one.request.links), *filter(is_id, one.memory.evidence)]
    return [end for end in named if end is not None]


def check_all_ends(reader: Reader, asked: Sequence[PreparedSave]) -> None:
    """Raise if a record has a missing link target, before any of the records is saved."""
    reader.expect(lambda ahead: ahead.find_many(list(dict.fromkeys(_named(asked)))))
    for position, one in enumerate(asked):
        try:
            check_ends(reader, one)
        except (MemoryNotFound, InvalidArgument) as error:
            error.add_note(f"in records[{position}]")
            raise


def _save_new(writer: Writer, prepared: Sequence[PreparedSave], linking: Linking) -> list[Memory]:
    """Save memories without merging duplicates."""
    if not prepared:
        return []
    new = [_new(writer, one) for one in prepared]
    usual = Usual.of(writer, linking.calibration)
    seen: list[Noticed] = []

    def links_of(nodes: Nodes) -> list[list[Link]]:
        asked = [
            Unlinked(
                memory=one.memory,
                vectors=one.vectors,
                explicit=[link.to_id for link in one.links],
                node=node,
                fresh=True,
            )
            for one, node in zip(new, nodes.tolist(), strict=True)
        ]
        found = candidates_of(writer, asked, linking, usual)
        detects = linking.detects_conflicts
        seen.extend(noticed(writer, asked, found, linking.calibration) if detects else [Noticed()] * len(asked))
        return automatic_links(writer, asked, linking, usual, found=found)

    writer.put_new(new, links_of)
    return [
        attrs.evolve(one.memory, noticed=judged_by(what, asked.verdicts, asked.note))
        for one, what, asked in zip(new, seen, prepared, strict=True)
    ]


def on_the_matter(reader: Reader, prepared: PreparedSave, linking: Linking) -> list[Memory]:
    """
    Return the memories to pass to a judge before a save.

    Returns nothing if the save will be merged into an existing memory.
    """
    request, memory = prepared.request, prepared.memory
    if request.may_merge and standing_copy(reader, memory) is not None:
        return []
    explicit = [*request.implements, *(link.to_id for link in request.links)]
    asked = Unlinked(memory=memory, vectors=prepared.vectors, explicit=explicit)
    return of_the_matter(reader, asked, candidates_of(reader, [asked], linking, Usual.of(reader, linking.calibration)))


@attrs.define
class Pace:
    """Adapts the batch size of saves to the waiting time of other writers."""

    size: int = 1

    def save(self, writer: Writer, prepared: Sequence[PreparedSave], linking: Linking) -> list[Memory]:
        """
        Save memories until other writers have waited long enough, but at least one.

        Returns the saved memories.
        """
        saved: list[Memory] = []
        while len(saved) < len(prepared):
            saved += save_some(writer, prepared[len(saved) : len(saved) + self.size], linking)
            if writer.is_due:
                self.size = max(min(len(saved) // 2, TOGETHER), 1)
                break
            self.size = min(2 * self.size, TOGETHER)
        return saved


def _new(writer: Writer, prepared: PreparedSave) -> NewMemory:
    """Return the memory to store, with the requested links."""
    request, memory = prepared.request, prepared.memory
    before = check_ends(writer, prepared)
    asked = [
        *((_certainly(to_id, IMPLEMENTS), LinkType.IMPLEMENTATION) for to_id in request.implements),
        *((link, prepared.link_types[link.relationship]) for link in request.links),
    ]
    if prepared.outcome_of is not None:
        asked.append((_certainly(prepared.outcome_of, OUTCOME_OF), LinkType.IMPLEMENTATION))
    # Evolution links connect decisions only.
    replaced = [memory_id for memory_id, verdict in prepared.verdicts.items() if verdict == "replace"]
    if replaced and memory.type is MemoryType.DECISION:
        older = writer.get([found(writer, memory_id) for memory_id in replaced])
        asked += [(_by_judge(one.id), LinkType.EVOLUTION) for one in older if one.type is MemoryType.DECISION]
    if before is not None:
        at = _not_before(
            "created_at", memory.created_at, before, " that it supersedes", is_dated=request.created_at is not None
        )
        memory = attrs.evolve(memory, created_at=at, updated_at=at)
        asked.insert(0, (_certainly(before.id, SUPERSEDES), LinkType.EVOLUTION))
    # Keep one link per target and word: the one with the highest confidence, or the first if they are equal.
    explicit: dict[tuple[str, str], Link] = {}
    for one, link_type in asked:
        key = (one.to_id, normalised(one.relationship))
        if key not in explicit or explicit[key].confidence < one.confidence:
            explicit[key] = _link(memory.id, one, link_type, memory.metadata.created_by, memory.created_at)
    memory = trusted(writer, memory, explicit.values(), prepared.trusts)
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
    Create a link, or strengthen an equal one, and return it. It replaces automatic links.

    The memory at its start is trusted no more than the link's reason, because both are displayed together.
    """
    writer.expect(lambda ahead: (ahead.find_many([from_id, asked.to_id]), ahead.links_of_many(_NONE, "out")))
    ends = [found(writer, from_id), found(writer, asked.to_id)]
    if from_id == asked.to_id:
        raise InvalidArgument(f"a memory cannot be linked to itself, and {from_id!r:.200} is both ends")
    # Read outgoing links only: incoming links may be thousands, each in another row.
    links = [link for own in writer.links_of_many(ends, "out") for link in own]
    between = [link for link in links if link.to_id in {from_id, asked.to_id}]
    word = normalised(asked.relationship)
    same = [
        link
        for link in between
        if link.to_id == asked.to_id
        # An automatic link is not equal to an explicit one, which replaces it below.
        and (link.created_by == "system") == (created_by == "system")
        and normalised(link.metadata.original_relationship) == word
    ]
    if same:
        known = same[0].metadata
        metadata = attrs.evolve(known, reason=asked.reason or known.reason, tags=tuple(asked.tags) or known.tags)
        link = attrs.evolve(same[0], confidence=max(same[0].confidence, asked.confidence), metadata=metadata)
        if link == same[0]:
            _lower_to_reason(writer, ends[0], reason_trust)
            return link
    else:
        link = _link(from_id, asked, link_type, created_by, now)
        if created_by != "system":
            writer.delete_links([one.id for one in between if is_automatic(one)])
    writer.put_link(link)
    if link.link_type in RESTING:
        lower(writer, ends[0], ORIGINS[int(writer.facts(np.array(ends)).trusts[1])])
    _lower_to_reason(writer, ends[0], reason_trust)
    return link


def _lower_to_reason(writer: Writer, node: int, trust: Origin) -> None:
    if trust != ORIGINS[0]:
        lower(writer, node, trust)


def trusted(
    reader: Reader, memory: Memory, links: Iterable[Link], text_trusts: Mapping[str, Origin] = NO_TRUSTS
) -> Memory:
    """
    Return *memory* with its trust lowered to that of everything that it is based on.

    *links* are the links that start at the memory.
    """
    ids = [item for item in memory.evidence if is_id(item)]
    ids += [link.to_id for link in links if link.link_type in RESTING]
    digests = digests_in(memory.evidence)
    named = [digest for digest in digests if digest not in text_trusts]
    trusts = [text_trusts[digest] for digest in digests if digest in text_trusts]
    trusts += _trusts_of_kept(reader, named)
    if ids:
        nodes = np.array([node for node in reader.find_many(ids) if node is not None], np.int64)
        trusts += [ORIGINS[trust] for trust in reader.facts(nodes).trusts.tolist()]
    return attrs.evolve(memory, trust=least_trusted([memory.trust, *trusts])) if trusts else memory


def _trusts_of_kept(reader: Reader, digests: Iterable[str]) -> list[Origin]:
    """Return the trust of stored texts: the lowest trust of the memories that cite them."""
    found: list[Origin] = []
    for digest in digests:
        nodes = reader.users_of_content(digest)
        if len(nodes):
            found.append(ORIGINS[int(reader.facts(nodes).trusts.min())])
    return found


def lower(writer: Writer, node: int, trust: Origin) -> None:
    """Lower the trust of a memory, and of all memories based on it, to at most *trust*."""
    nodes = np.array([node], np.int64)
    while len(nodes := nodes[writer.facts(nodes).trusts < ORIGINS.index(trust)]):
        memories = writer.get(nodes)
        for memory in memories:
            writer.put(attrs.evolve(memory, trust=trust))
        nodes = np.unique(np.concatenate([writer.links(nodes, "in", RESTING).sources, *_naming(writer, memories)]))


def _naming(reader: Reader, memories: Iterable[Memory]) -> list[Nodes]:
    """Return the memories that cite each of the given memories as evidence."""
    return [reader.window(Filter(evidence=frozenset({memory.id}))) for memory in memories]


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
    linking: Linking,
    *,
    is_dated: bool,
) -> Memory:
    """
    Set the outcome of a decision and save its reason as a separate memory.

    Returns the decision.
    """
    if reason is not None:
        writer.expect(lambda ahead: _ask_ahead(ahead, [reason]))
    memory = decision(writer, memory_id)
    change = attrs.evolve(change, at=_not_before("at", change.at, memory, is_dated=is_dated))
    history = tuple(sorted((*_history(memory), change), key=lambda one: one.at))
    changed = _with_history(memory, history, max(memory.updated_at, change.at))
    writer.put(changed)
    if reason is None:
        return changed
    save(writer, reason, linking)
    # The reason is displayed as part of the decision, so it limits its trust.
    trust = least_trusted([changed.trust, reason.memory.trust])
    if trust == changed.trust:
        return changed
    node = found(writer, memory_id)
    lower(writer, node, trust)
    return writer.get([node])[0]


def as_of(memory: Memory, moment: datetime) -> Memory:
    """
    Return a memory as it was at a time.

    Its text is the former one, and later outcomes and repeats are left out.
    """
    repeats = tuple(at for at in memory.repeats if at <= moment)
    if len(repeats) < len(memory.repeats):
        memory = attrs.evolve(memory, repeats=repeats)
    if isinstance(memory.metadata, RecordMetadata):
        return _record_as_of(memory, memory.metadata, moment)
    history = tuple(one for one in _history(memory) if one.at <= moment)
    former = tuple(one for one in memory.former if one.until <= moment)
    if len(history) == len(_history(memory)) and len(former) == len(memory.former):
        return memory
    updated_at = max([memory.created_at, *(one.at for one in history), *(one.until for one in former)])
    if len(former) < len(memory.former):
        said = memory.former[len(former)]
        memory = said_otherwise(memory, content=said.content, reasoning=said.reasoning)
    memory = attrs.evolve(memory, former=former, updated_at=updated_at)
    return _with_history(memory, history, updated_at) if history != _history(memory) else memory


def _record_as_of(memory: Memory, own: RecordMetadata, moment: datetime) -> Memory:
    """Return a record as it was at a time, if its history contains that time."""
    then = [one for one in own.history if one.at <= moment]
    if memory.updated_at <= moment or not then:
        return memory
    metadata = attrs.evolve(own, value=then[-1].value, version=then[-1].version, lengths=(), history=tuple(then[:-1]))
    content = memory.content if then[-1].text is None else then[-1].text
    former = tuple(one for one in memory.former if one.until <= moment)
    return attrs.evolve(memory, content=content, metadata=metadata, former=former, updated_at=then[-1].at)


def _history(memory: Memory) -> tuple[OutcomeChange, ...]:
    return memory.metadata.history if isinstance(memory.metadata, DecisionMetadata) else ()


def _with_history(memory: Memory, history: tuple[OutcomeChange, ...], updated_at: datetime) -> Memory:
    outcome, reason, at = attrs.astuple(history[-1]) if history else (None, None, None)
    fields = {"history": history, "outcome": outcome, "outcome_reason": reason, "outcome_at": at}
    metadata = attrs.evolve(memory.metadata, **fields)
    return attrs.evolve(memory, metadata=metadata, updated_at=updated_at)


def _not_before(name: str, at: datetime, decided: Memory, which: str = "", *, is_dated: bool) -> datetime:
    """
    Return *at*, but not earlier than the decision.

    Raise if the caller passed an earlier time.

    An earlier time that was not passed comes from a clock that stepped back.
    """
    first = decided.created_at
    if is_dated and at < first:
        was = f"when the decision was made{which}, got {at.isoformat()}"
        raise InvalidArgument(f"{name} must not be before {first.isoformat()}, {was}")
    return max(at, first)


def _by_judge(to_id: str) -> LinkRequest:
    return attrs.evolve(_certainly(to_id, SUPERSEDES), reason="the judge said so", tags=("judge",))


def _certainly(to_id: str, relationship: str) -> LinkRequest:
    return LinkRequest(to_id=to_id, relationship=relationship, confidence=1.0)


def _link(from_id: str, asked: LinkRequest, link_type: LinkType, created_by: CreatedBy, created_at: datetime) -> Link:
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
