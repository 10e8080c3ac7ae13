"""Writes to the memories of one namespace: saves in batches, updates, links and deletions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

import attrs

from mama_structs.memory.graph.results import Results
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.save.memory_update import MemoryUpdate
from mama_structs.memory.save.save_plan import PreparedSave
from mama_structs.memory.types.engine import (
    EmbedderRecord,
    EngineFilter,
    ProgressCallback,
    Writer,
    write_in_transactions,
)
from mama_structs.memory.types.model import CreatedBy, Link, Memory
from mama_structs.memory.types.requests import LinkRequest
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.memory.upkeep.erasure import find_outcome_reasons, select_nodes
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.provenance import ORIGINS, Origin, get_inserted_provenance, least_trusted

SAVE_BATCH_SIZE: Final = 256


async def prepare(shared: NamespaceServices, drafts: Sequence[PreparedSave]) -> list[PreparedSave]:
    """Embed drafted memories, and determine their mentions and the types of their links."""
    return await saving.prepare_saves(shared.embedding, drafts, shared.find_mentions)


async def save(shared: NamespaceServices, prepared: PreparedSave, made_by: EmbedderRecord) -> Memory:
    """Save a memory, with the verdicts of the session's judge if there is a judge."""
    read, write = partial(shared.read, made_by=made_by), partial(shared.write, made_by=made_by)
    if shared.judge_runner is not None:
        return await shared.judge_runner.save(prepared, shared.linking, read=read, write=write)
    return await write(lambda writer: saving.save(writer, prepared, shared.linking))


async def save_all(
    shared: NamespaceServices, drafts: Sequence[PreparedSave], progress: ProgressCallback | None, *, judged: bool
) -> Results[Memory]:
    """Save drafted memories; call the judge only if *judged* is true. See `MemoryStore.save_many`."""
    # Pass all texts to every draft, because a draft may cite the hash of a text that only another draft contains.
    texts = {digest: text for draft in drafts for digest, text in draft.contents.items()}
    trusts: dict[str, Origin] = {}
    for draft in drafts:
        for digest, trust in draft.trusts.items():
            trusts[digest] = least_trusted([trust, trusts.get(digest, trust)])
    drafts = [attrs.evolve(draft, contents=texts, trusts=trusts) for draft in drafts]
    await shared.read(lambda reader: saving.check_all_link_targets(reader, drafts))
    saved: Results[Memory] = Results(item_type=Memory)
    pace = saving.BatchSizer()
    try:
        for start in range(0, len(drafts), SAVE_BATCH_SIZE):
            record = shared.record
            write = partial(shared.write, made_by=record)
            prepared = await prepare(shared, drafts[start : start + SAVE_BATCH_SIZE])
            while prepared:
                some = (
                    [await save(shared, prepared[0], record)]
                    if judged
                    else await write(partial(pace.save, prepared=prepared, linking=shared.linking))
                )
                saved += some
                prepared = prepared[len(some) :]
            if progress is not None:
                progress(len(saved), len(drafts))
    except BaseException as error:
        error.add_note(f"{len(saved)} of {len(drafts)} memories were saved")
        raise
    return saved


async def update(shared: NamespaceServices, asked: MemoryUpdate, made_by: EmbedderRecord) -> Memory:
    """Write a change with the vectors of the new text, and return the memory."""
    memory, is_written = await shared.read(asked.apply), False
    while not is_written:
        text = embedded_text(memory)
        (vectors,) = await shared.embedding.embed_documents([text])
        prepared = attrs.evolve(memory, mentions=tuple(shared.find_mentions(text)))
        # If another writer changed the memory in the meantime, the loop embeds the new version again.
        memory, is_written = await shared.write(
            partial(asked.write, prepared=prepared, vectors=vectors), made_by=made_by
        )
    return memory


async def link(
    shared: NamespaceServices, from_id: str, asked: LinkRequest, *, created_by: CreatedBy, now: datetime
) -> Link:
    """Link two memories, and return the link; see `MemoryStore.link`."""
    kinds = await saving.resolve_link_types(shared.embedding, [asked.relationship])
    inserted = None if asked.reason is None else get_inserted_provenance()
    trust = ORIGINS[0] if inserted is None else inserted.trust
    kind = kinds[asked.relationship]
    return await shared.write(
        lambda writer: saving.add_link(writer, from_id, asked, kind, created_by=created_by, now=now, reason_trust=trust)
    )


async def delete(shared: NamespaceServices, ids: Sequence[str] | None, where: EngineFilter, *, dry_run: bool) -> int:
    """Delete memories and the reasons of their outcomes, and return the number of memories without these reasons."""
    if ids is not None and where == EngineFilter() and len(ids) <= SAVE_BATCH_SIZE and not dry_run:
        # One transaction, so that the call deletes all of these memories or none.
        return await shared.write(partial(_delete_all, ids=ids))
    selected = await shared.read(lambda reader: reader.ids(select_nodes(reader, ids, where)))
    if dry_run:
        return len(selected)
    # Newest first, so that a selected outcome reason is counted before its decision deletes it.
    steps = write_in_transactions(shared.write, selected[::-1], _delete_one, max_items=SAVE_BATCH_SIZE)
    return sum([sum(some) async for some in steps])


def _delete_all(writer: Writer, ids: Sequence[str]) -> int:
    """Delete the memories, and return their number. Raise `MemoryNotFound` for an unknown id."""
    writer.expect(lambda ahead: ahead.find_many(list(ids)))
    selected = writer.ids(select_nodes(writer, ids, EngineFilter()))
    return sum(_delete_one(writer, memory_id) for memory_id in selected[::-1])


def _delete_one(writer: Writer, memory_id: str) -> int:
    """Delete a memory and the reasons of its outcomes. Return 1, or 0 if the memory does not exist."""
    node = writer.find(memory_id)
    if node is None:
        return 0
    for reason in find_outcome_reasons(writer, [node]):
        writer.delete(reason)
    writer.delete(memory_id)
    return 1
