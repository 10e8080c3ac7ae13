"""mem0's method names on a session's records."""

from __future__ import annotations

import contextlib
import inspect
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final, Self

from mama_structs import _check
from mama_structs._facade import bare
from mama_structs.adapters._mem0_payloads import (
    IDS,
    KeptText,
    Message,
    added,
    changed,
    day_of,
    item_of,
    metadata_of,
    record_condition_of,
    refuse,
    said_in,
    scope_of,
)
from mama_structs.errors import InvalidArgument, MemoryNotFound, VersionConflict
from mama_structs.importing.mem0 import HISTORY, LABELS, hash_of
from mama_structs.memory.model import least_trusted
from mama_structs.session import Session

_UNSET: Final[Any] = object()
_LEAST: Final = 0.1


class AsyncMemory:
    """
    A session as mem0's ``AsyncMemory``; `Memory` is its twin without ``await``, on a session of `mama_structs.sync`.

    Memories are records with a text (`Session.records`), so that `Session.recall`, `MemoryStore.search` and every other
    host of the directory or server find them, too. Answers have the shape that mem0 2.2 gives them.

    Without *extract*, `add` keeps each message as it is, whatever *infer* says. ``user_id``, ``agent_id`` and
    ``run_id`` are filters, as in mem0: what must not see each other belongs into namespaces (`Session.open`).
    A memory is gone when the day of its expiration date is over (UTC).

    Args:
        session: Where memories are kept; it must be open while they are used.
        extract: Called by `add` with the messages where *infer* is True, gives the facts in them; may be async.

    Raises:
        InvalidArgument: An argument breaks its rule, which is a ValueError as it is in mem0; nothing was changed.
        MemoryNotFound: Nothing has an id that was given; nothing was changed.
        StoreError, SessionClosed: As for `mama_structs.records.RecordStore`.

    """

    def __init__(
        self,
        session: Session,
        *,
        extract: Callable[[Sequence[Message]], Sequence[str] | Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        inner = bare(session)
        if not isinstance(inner, Session):
            raise InvalidArgument(f"session must be a Session, got {type(session).__name__}")
        self._session, self._records, self._extract = inner, inner.records, extract

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
        Keep messages, or the facts in them, all or none.

        Args:
            messages: A text, a message or several; those of the system, and those without text, are left out.
            user_id: Whose they are; of the three ids at least one is needed.
            agent_id: See *user_id*.
            run_id: See *user_id*.
            metadata: What else is kept with each, for filters.
            expiration_date: The last day (UTC) on which they hold; None for ever.
            infer: Whether *extract* is asked for the facts, where there is one.
            others: mem0's *timestamp*, *memory_type* and *prompt*, which are refused: what they ask for needs a model.

        """
        refuse(**others)
        own = {**metadata_of(metadata), **scope_of(dict(zip(IDS, (user_id, agent_id, run_id), strict=True)))}
        if (day := day_of(expiration_date)) is not None:
            own["expiration_date"] = day
        author_of = self._session._author_of  # noqa: SLF001 - for the adapters
        said = [one._replace(origin=author_of(one.text, one.origin)) for one in said_in(messages)]
        if _check.flag("infer", infer) and self._extract is not None and said:
            given = self._extract([one.message for one in said])
            facts = _check.texts("what extract gives", await given if inspect.isawaitable(given) else given)
            origin = least_trusted(one.origin for one in said)
            said = [KeptText(fact, origin) for fact in facts]
        new, now = [(str(uuid.uuid4()), one) for one in said], self._records.now
        await self._records.put_many([record for name, one in new for record in added(name, one, own, now)])
        return {"results": [{"id": name, "memory": one.text, "event": "ADD", **one.who} for name, one in new]}

    async def get(self, memory_id: str) -> dict[str, Any] | None:
        """Return a memory, None where there is none with this id."""
        found = await self._records.get(LABELS, _check.text("memory_id", memory_id))
        return None if found is None else item_of(found, score=None)

    async def get_all(
        self, *, filters: Mapping[str, Any] | None = None, top_k: int = 20, **others: Any
    ) -> dict[str, Any]:
        """
        Return memories, the newest first.

        Args:
            filters: At least one of ``user_id``, ``agent_id`` and ``run_id``, and any other filter of mem0's.
            top_k: Memories at the most.
            others: mem0's *show_expired*, and the ids, which are refused: the ids belong into *filters*.

        """
        refuse(**others)
        test, most = record_condition_of(filters), _check.whole("top_k", top_k, 0)
        found = await self._records.list(LABELS, where=test)
        newest = sorted(found, key=lambda record: (record.created_at, record.key), reverse=True)[:most]
        return {"results": [item_of(record) for record in newest]}

    async def search(
        self,
        query: str,
        *,
        top_k: int = 20,
        filters: Mapping[str, Any] | None = None,
        threshold: float | None = _LEAST,
        explain: bool = False,
        **others: Any,
    ) -> dict[str, Any]:
        """
        Find memories by meaning, words and time, best first; the score of each is `RecordHit.relevance`.

        Args:
            query: The question, in any words.
            top_k: Memories at the most.
            filters: As for `get_all`.
            threshold: The least score, 0 to 1; None for 0.1.
            explain: Whether each has ``score_details``: its relevance, and the rank that orders the list.
            others: As for `get_all`, and mem0's *rerank* and *reference_date*.

        """
        refuse(**others)
        test, most = record_condition_of(filters), _check.whole("top_k", top_k, 0)
        least = _LEAST if threshold is None else _check.share("threshold", threshold)
        asked, detailed = _check.text("query", query).strip(), _check.flag("explain", explain)
        hits = await self._records.search(asked, LABELS, where=test, min_relevance=least, limit=max(most, 1))
        results = [(item_of(hit.record, score=hit.relevance), hit) for hit in hits[:most]]
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
        Change what a memory says; `history` has what it said before.

        Args:
            memory_id: The memory's.
            text: What it says from now on; None for the same.
            metadata: What joins its metadata, in the place of what has the same name.
            expiration_date: The last day (UTC) on which it holds; None for ever.
            data: mem0's older name for *text*.

        """
        said = data if text is None else text
        new = metadata_of(metadata)
        if said is None and metadata is None and expiration_date is _UNSET:
            raise InvalidArgument("at least one of text, metadata and expiration_date must be given")
        if expiration_date is not _UNSET:
            new["expiration_date"] = day_of(expiration_date)
        if said is not None:
            new |= {"data": _check.text("text", said), "hash": hash_of(said)}
        if not await self._change(memory_id, "UPDATE", new):
            raise MemoryNotFound(memory_id)
        return {"message": "Memory updated successfully!"}

    async def delete(self, memory_id: str) -> dict[str, Any]:
        """Delete a memory; its history stays until `reset`, as it does in mem0."""
        if not await self._change(memory_id, "DELETE", {}):
            raise MemoryNotFound(memory_id)
        return {"message": "Memory deleted successfully!"}

    async def delete_all(
        self, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> dict[str, Any]:
        """Delete all memories that have these ids, at least one of them, one by one; their histories stay."""
        test = record_condition_of(scope_of(dict(zip(IDS, (user_id, agent_id, run_id), strict=True))))
        for record in await self._records.list(LABELS, where=test):
            await self._change(record.key, "DELETE", {})
        return {"message": "Memories deleted successfully!"}

    async def history(self, memory_id: str) -> list[dict[str, Any]]:
        """Return the changes of a memory, oldest first: ``ADD``, ``UPDATE`` and ``DELETE``, with the texts."""
        found = await self._records.get(HISTORY, _check.text("memory_id", memory_id))
        return [] if found is None else list(found.value)

    async def reset(self) -> None:
        """Delete all memories and histories, of all ids."""
        await self._records.delete_all(LABELS[:1])

    async def close(self) -> None:
        """Do nothing, as the session is the host's to close."""

    async def _change(self, memory_id: str, kind: str, new: Mapping[str, Any]) -> bool:
        """Change or delete a memory with its history in one transaction, and tell whether it was there."""
        places = [(LABELS, _check.text("memory_id", memory_id)), (HISTORY, memory_id)]
        while True:
            record, past = await self._records.get_many(places)
            if record is None:
                return False
            # Whoever was faster has done what was to be done: this ends.
            with contextlib.suppress(VersionConflict):
                put, gone = changed(record, past, kind, new, self._records.now)
                await self._records.put_many(put, delete=gone)
                return True
