"""Changes that were made on the pages: each runs at most once, and leaves a receipt."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Final

import attrs

_MAX_RECEIPTS: Final = 200


@attrs.frozen(kw_only=True)
class Receipt:
    """
    Result of a change. Contains no text of a memory.

    Args:
        title: The change.
        at: When it was made (UTC).
        namespace: Namespace of the changed memory.
        ids: Ids of the memories that were changed.
        link_id: Id of a memory to go on with, or None.
        facts: Names and values of further facts.
        counts: Names and numbers of what was deleted.
        pending: Places that still contain erased data.
        out_of_scope: Places that an erasure did not search.

    """

    title: str
    at: datetime
    namespace: str
    ids: tuple[str, ...] = ()
    link_id: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    counts: tuple[tuple[str, str], ...] = ()
    pending: tuple[str, ...] = ()
    out_of_scope: tuple[str, ...] = ()


def make_form_id() -> str:
    """Return a random id for a form, whose change runs at most once."""
    return secrets.token_urlsafe(16)


@attrs.define(eq=False)
class FormReceipts:
    """
    Changes by the ids of their forms, in memory of this process.

    A form that is sent twice, even concurrently, makes one change. Changes run one after the other, so that the check
    of a form against the stored memory and the change belong together in this process.
    """

    _tasks: dict[str, asyncio.Task[Receipt]] = attrs.field(factory=dict, init=False)
    _lock: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False)

    async def run(self, form_id: str, change: Callable[[], Awaitable[Receipt]]) -> Receipt:
        """Run a change, or return the receipt of the form's earlier one. A change that failed can run again."""
        task = self._tasks.get(form_id)
        if task is None:
            task = self._tasks[form_id] = asyncio.get_running_loop().create_task(self._run(change))
            task.add_done_callback(lambda done: self._drop_failure(form_id, done))
            for old in [key for key, one in self._tasks.items() if one.done()][:-_MAX_RECEIPTS]:
                del self._tasks[old]
        # A change goes on when the browser closes its connection.
        return await asyncio.shield(task)

    def _drop_failure(self, form_id: str, task: asyncio.Task[Receipt]) -> None:
        """Forget a change that failed: it can run again, and the traceback of its error contains texts."""
        if task.cancelled() or task.exception() is not None:
            self._tasks.pop(form_id, None)

    async def _run(self, change: Callable[[], Awaitable[Receipt]]) -> Receipt:
        async with self._lock:
            return await change()

    def find(self, form_id: str) -> Receipt | None:
        """Return the receipt of a form, or None if the form is unknown or its change has not ended."""
        task = self._tasks.get(form_id)
        return task.result() if task is not None and task.done() else None

    def forget(self, memory_ids: Iterable[str]) -> None:
        """Delete the receipts that name some memories, because their ids are derived from their texts."""
        erased = set(memory_ids)
        for form_id in list(self._tasks):
            receipt = self.find(form_id)
            if receipt is not None and not erased.isdisjoint({*receipt.ids, receipt.link_id}):
                del self._tasks[form_id]

    async def close(self) -> None:
        """Wait for the running changes."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
