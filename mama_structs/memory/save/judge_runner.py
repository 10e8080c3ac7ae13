"""Calls the judge before a save, with a timeout, and applies its verdicts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs

from mama_structs._internal.event_loop import SerialThread, call_maybe_sync
from mama_structs._internal.introspection import is_async_callable
from mama_structs.memory.save.automatic_links import LinkingContext
from mama_structs.memory.save.save_plan import PreparedSave, find_judge_candidates, save
from mama_structs.memory.types.engine import Reader, Writer
from mama_structs.memory.types.judge import VERDICTS, Judge, Verdict, check_judge
from mama_structs.memory.types.model import Memory, MemoryType, from_milliseconds

WriteFunction = Callable[[Callable[[Writer], Any]], Awaitable[Any]]
ReadFunction = Callable[[Callable[[Reader], list[Memory]]], Awaitable[list[Memory]]]

_CLOSE_TIMEOUT_SECONDS: Final = 5.0  # Seconds to wait for a running call when closing.
_MAX_JUDGE_CALLS: Final = 2
_log: Final = logging.getLogger("mama_structs")


@attrs.define
class JudgeStats:
    """Statistics of a judge: calls, failures, timeouts, and saves whose candidates changed during every call."""

    asked: int = 0
    failed: int = 0
    late: int = 0
    outrun: int = 0


class JudgeRunner:
    """
    Calls a judge for the saves of one event loop.

    If the judge fails or exceeds the timeout, the save continues without verdicts.
    """

    def __init__(self, judge: Judge, *, seconds: float, clock: Callable[[], float]) -> None:
        check_judge(judge)
        self.stats: Final = JudgeStats()
        self._judge = judge
        self._seconds = seconds
        self._clock = clock
        self._thread = SerialThread("mama-structs-judging")

    async def save(
        self, prepared: PreparedSave, linking: LinkingContext, *, read: ReadFunction, write: WriteFunction
    ) -> Memory:
        """
        Save a memory with the judge's verdicts.

        If the candidates change during the call, the judge is called once more.
        """
        if prepared.memory.type is not MemoryType.CHECKPOINT and prepared.request.supersedes is None:
            candidates = await read(lambda reader: find_judge_candidates(reader, prepared, linking))
            for _ in range(_MAX_JUDGE_CALLS):
                judged = self._with_current_time(await self._judged(prepared, candidates))
                done = await write(_save_if_unchanged(judged, candidates, linking))
                if isinstance(done, Memory):
                    return done
                candidates = done
            self.stats.outrun += 1
            note = "the judge was not heard, for what stands on the matter changed meanwhile"
            prepared = attrs.evolve(prepared, note=note)
        memory: Memory = await write(lambda writer: save(writer, prepared, linking))
        return memory

    async def close(self) -> None:
        """Stop calling the judge, and wait at most `_CLOSE_TIMEOUT_SECONDS` for a running call."""
        await self._thread.close(wait=_CLOSE_TIMEOUT_SECONDS)

    def _with_current_time(self, prepared: PreparedSave) -> PreparedSave:
        """
        Set the creation time of the save to the present, unless the caller passed a time.

        The memory then comes after the memories that were saved while the judge was running.
        """
        memory = prepared.memory
        now = max(from_milliseconds(int(self._clock() * 1000)), memory.created_at)
        if prepared.request.created_at is not None:
            return prepared
        return attrs.evolve(prepared, memory=attrs.evolve(memory, created_at=now, updated_at=now))

    async def _judged(self, prepared: PreparedSave, candidates: list[Memory]) -> PreparedSave:
        """
        Return the save with the judge's verdicts, or with a note that says why there are none.

        Without candidates, the judge is not called and no note is added.
        """
        if not candidates:
            return prepared
        ids = {memory.id for memory in candidates}
        self.stats.asked += 1
        try:
            verdicts = await asyncio.wait_for(
                call_maybe_sync(
                    lambda: self._judge(prepared.memory, list(candidates)),
                    lambda given: _check_verdicts(given, ids),
                    is_async=is_async_callable(self._judge),
                    run_in_thread=self._thread.run,
                ),
                self._seconds,
            )
        except TimeoutError:
            self.stats.late += 1
            why = f"took longer than {self._seconds:g} s"
        except Exception as error:  # noqa: BLE001 - the save must succeed regardless of errors in the host's function
            # Report only the type of the error, because its text may contain content of memories.
            self.stats.failed += 1
            why = f"raised {type(error).__name__}"
        else:
            return attrs.evolve(prepared, verdicts=verdicts)
        _log.warning("the judge %s: a save goes on without", why)
        return attrs.evolve(prepared, note=f"the judge was not heard: it {why}")


def _check_verdicts(given: object, ids: set[str]) -> dict[str, Verdict]:
    """Validate the verdicts that a judge returned."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not ids.issuperset(given) or not set(VERDICTS).issuperset(given.values()):
        raise TypeError("a judge must return a mapping from given memory ids to verdicts")
    return dict(given)


def _save_if_unchanged(
    prepared: PreparedSave, candidates: list[Memory], linking: LinkingContext
) -> Callable[[Writer], Memory | list[Memory]]:
    def plan(writer: Writer) -> Memory | list[Memory]:
        now = find_judge_candidates(writer, prepared, linking)
        return save(writer, prepared, linking) if now == candidates else now

    return plan
