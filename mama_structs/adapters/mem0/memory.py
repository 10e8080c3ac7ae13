"""mem0's method names on a session's records."""

from __future__ import annotations

import contextlib
import inspect
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final, Self

from mama_structs._internal import validation as _check
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.sync_proxy import SyncProxy
from mama_structs.adapters.mem0.payloads import (
    ID_NAMES,
    Message,
    TextToStore,
    check_metadata,
    collect_ids,
    compile_record_filters,
    create_change,
    create_item,
    create_records,
    extract_texts,
    format_date,
    reject_unsupported,
)
from mama_structs.errors import InvalidArgument, MemoryNotFound, VersionConflict, repr_short
from mama_structs.importers.mem0.reader import HISTORY_LABELS, MEMORY_LABELS, compute_hash
from mama_structs.memory.types.model import least_trusted
from mama_structs.session.session import Session
from mama_structs.session.wiring import find_author

_UNSET: Final[Any] = object()
_DEFAULT_THRESHOLD: Final = 0.1


@with_call_hints(peer_names.MEM0_MEMORY)
class AsyncMemory:
    """
    A session with the methods of mem0's ``AsyncMemory``.

    `Memory` is its sync twin, on a session of `mama_structs.sync`.

    Memories are records with a text (`Session.records`), so that `Session.recall`, `MemoryStore.search` and every other
    host of the directory or server find them, too. Answers have the shape of mem0 2.2.

    Without *extract*, `add` stores each message unchanged, regardless of *infer*. ``user_id``, ``agent_id`` and
    ``run_id`` are filters, as in mem0. Use namespaces (`Session.open`) to isolate data.
    A memory expires at the end of its expiration date (UTC).

    Args:
        session: The session that stores the memories; it must be open while they are used.
        extract: Called by `add` with the messages if *infer* is True, returns the facts in them; may be async.

    Raises:
        InvalidArgument: An argument is invalid, which is a ValueError as in mem0; nothing was changed.
        MemoryNotFound: There is no memory with a passed id; nothing was changed.
        StoreError, SessionClosed: As for `mama_structs.types.RecordStore`.

    """

    def __init__(
        self,
        session: Session,
        *,
        extract: Callable[[Sequence[Message]], Sequence[str] | Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        if isinstance(session, SyncProxy):
            raise InvalidArgument("AsyncMemory needs an async session", hint="use Memory with this session")
        if not isinstance(session, Session):
            raise InvalidArgument(f"session must be a Session, got {repr_short(session)}")
        self._session, self._records, self._extract = session, session.records, extract

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    async def add(
        self,
        messages: str | Message | Sequence[Message],
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expiration_date: date | str | None = None,
        infer: bool = True,
        **others: Any,
    ) -> dict[str, Any]:
        """
        Store messages or, with *infer*, the facts extracted from them: all or none.

        Args:
            messages: A text, a message or several. System messages and messages without text are skipped.
            user_id: The user that they belong to; at least one of the three ids is required.
            agent_id: See *user_id*.
            run_id: See *user_id*.
            metadata: Metadata stored with each, for filters.
            expiration_date: The last day (UTC) on which they are valid; None for no expiry.
            infer: Whether to call *extract* for the facts, if it was passed to the class.
            others: mem0's *timestamp*, *memory_type* and *prompt*, which are rejected because they need a model.

        """
        reject_unsupported(**others)
        own = {**check_metadata(metadata), **collect_ids(dict(zip(ID_NAMES, (user_id, agent_id, run_id), strict=True)))}
        if (day := format_date(expiration_date)) is not None:
            own["expiration_date"] = day
        refs = self._session.refs
        texts = [one._replace(origin=find_author(one.text, one.origin, refs)) for one in extract_texts(messages)]
        if _check.check_bool("infer", infer) and self._extract is not None and texts:
            extracted = self._extract([one.message for one in texts])
            facts = _check.check_texts(
                "what extract gives", await extracted if inspect.isawaitable(extracted) else extracted
            )
            origin = least_trusted(one.origin for one in texts)
            texts = [TextToStore(fact, origin) for fact in facts]
        new, now = [(str(uuid.uuid4()), one) for one in texts], self._records._now
        await self._records.put_many([record for name, one in new for record in create_records(name, one, own, now)])
        return {
            "results": [{"id": name, "memory": one.text, "event": "ADD", **one.speaker_answer} for name, one in new]
        }

    async def get(self, memory_id: str) -> dict[str, Any] | None:
        """Return a memory, or None for an unknown id."""
        found = await self._records.get(MEMORY_LABELS, _check.check_text("memory_id", memory_id))
        return None if found is None else create_item(found, score=None)

    async def get_all(
        self, *, filters: Mapping[str, Any] | None = None, top_k: int = 20, **others: Any
    ) -> dict[str, Any]:
        """
        Return memories, newest first.

        Args:
            filters: At least one of ``user_id``, ``agent_id`` and ``run_id``, and any other filter of mem0's.
            top_k: Maximum number of memories.
            others: mem0's *show_expired*, and the ids, which are rejected: pass the ids in *filters*.

        """
        reject_unsupported(**others)
        selection, most = compile_record_filters(filters), _check.check_integer("top_k", top_k, 0)
        found = await self._records.list(MEMORY_LABELS, **selection)
        newest = sorted(found, key=lambda record: (record.created_at, record.key), reverse=True)[:most]
        return {"results": [create_item(record) for record in newest]}

    async def search(
        self,
        query: str,
        *,
        top_k: int = 20,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = _DEFAULT_THRESHOLD,
        explain: bool = False,
        **others: Any,
    ) -> dict[str, Any]:
        """
        Find memories by vector similarity, keywords and time, best first; scores are `RecordHit.relevance`.

        Args:
            query: The question, in any words.
            top_k: Maximum number of memories.
            filters: As for `get_all`.
            threshold: The minimum score, 0 to 1; None for 0.1.
            explain: True to add ``score_details`` to each: its relevance, and the rank that orders the list.
            others: As for `get_all`, and mem0's *rerank* and *reference_date*.

        """
        reject_unsupported(**others)
        selection, most = compile_record_filters(filters), _check.check_integer("top_k", top_k, 0)
        least = _DEFAULT_THRESHOLD if threshold is None else _check.check_ratio("threshold", threshold)
        asked, detailed = _check.check_text("query", query).strip(), _check.check_bool("explain", explain)
        hits = await self._records.search(asked, MEMORY_LABELS, **selection, min_relevance=least, limit=max(most, 1))
        results = [(create_item(hit.record, score=hit.relevance), hit) for hit in hits[:most]]
        for result, hit in results if detailed else ():
            result["score_details"] = {"relevance": hit.relevance, "rank": hit.score}
        return {"results": [result for result, _ in results]}

    async def update(
        self,
        memory_id: str,
        text: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expiration_date: date | str | None = _UNSET,
        data: str | None = None,
    ) -> dict[str, Any]:
        """
        Change a memory. The earlier text remains in its `history`.

        Args:
            memory_id: The id of the memory.
            text: The new text; None to keep the old one.
            metadata: Metadata to merge into the existing metadata.
            expiration_date: The last day (UTC) on which it is valid; None for no expiry.
            data: mem0's older name for *text*.

        Raises:
            MemoryNotFound: No memory has this id.

        """
        new_text = data if text is None else text
        new = check_metadata(metadata)
        if new_text is None and metadata is None and expiration_date is _UNSET:
            raise InvalidArgument("at least one of text, metadata and expiration_date must be given")
        if expiration_date is not _UNSET:
            new["expiration_date"] = format_date(expiration_date)
        if new_text is not None:
            new |= {"data": _check.check_text("text", new_text), "hash": compute_hash(new_text)}
        if not await self._change(memory_id, "UPDATE", new):
            raise MemoryNotFound(memory_id)
        return {"message": "Memory updated successfully!"}

    async def delete(self, memory_id: str) -> dict[str, Any]:
        """
        Delete a memory. Its history is retained until `reset`, as in mem0.

        Args:
            memory_id: The id of the memory.

        Returns:
            A message, as in mem0.

        Raises:
            MemoryNotFound: No memory has this id.

        """
        if not await self._change(memory_id, "DELETE", {}):
            raise MemoryNotFound(memory_id)
        return {"message": "Memory deleted successfully!"}

    async def delete_all(
        self, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> dict[str, Any]:
        """
        Delete the memories that match all passed ids. At least one id is required. Not atomic.

        Their histories are retained.

        Args:
            user_id: The id of a user; None for any.
            agent_id: The id of an agent; None for any.
            run_id: The id of a run; None for any.

        Returns:
            A message, as in mem0.

        """
        selection = compile_record_filters(collect_ids(dict(zip(ID_NAMES, (user_id, agent_id, run_id), strict=True))))
        for record in await self._records.list(MEMORY_LABELS, **selection):
            await self._change(record.key, "DELETE", {})
        return {"message": "Memories deleted successfully!"}

    async def history(self, memory_id: str) -> list[dict[str, Any]]:
        """Return the changes of a memory, oldest first: ``ADD``, ``UPDATE`` and ``DELETE``, with the texts."""
        found = await self._records.get(HISTORY_LABELS, _check.check_text("memory_id", memory_id))
        return [] if found is None else list(found.value)

    async def reset(self) -> None:
        """Delete all memories and histories, of all ids."""
        await self._records.delete_all(MEMORY_LABELS[:1])

    async def close(self) -> None:
        """Do nothing: the host closes the session."""

    async def _change(self, memory_id: str, kind: str, new: Mapping[str, Any]) -> bool:
        """
        Change or delete a memory and extend its history, in one transaction.

        Return False if unknown.
        """
        places = [(MEMORY_LABELS, _check.check_text("memory_id", memory_id)), (HISTORY_LABELS, memory_id)]
        while True:
            record, past = await self._records.get_many(places)
            if record is None:
                return False
            # On a version conflict, the loop reads the memory again and retries.
            with contextlib.suppress(VersionConflict):
                put, gone = create_change(record, past, kind, new, self._records._now)
                await self._records.put_many(put, delete=gone)
                return True
