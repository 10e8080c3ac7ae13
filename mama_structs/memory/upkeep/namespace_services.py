"""Services shared by all stores that are open on one namespace."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Final, TypeVar

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.event_loop import LoopGuard, is_model_call
from mama_structs.errors import MemoryNotFound, SessionClosed
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.protocol import shared_dimensions
from mama_structs.memory.save.automatic_links import LinkingContext
from mama_structs.memory.save.judge_runner import JudgeRunner
from mama_structs.memory.search.reranker_runner import RerankerRunner
from mama_structs.memory.types.engine import EmbedderRecord, Engine, Reader, Writer, embedder_mismatch
from mama_structs.memory.types.model import from_milliseconds, is_id
from mama_structs.memory.upkeep import erasure
from mama_structs.memory.upkeep.erasure import EraseTexts
from mama_structs.memory.upkeep.maintenance import embedder_record
from mama_structs.settings import MemorySettings

T = TypeVar("T")
ReaderT = TypeVar("ReaderT", bound=Reader)

TEXT_AS_ID_HINT: Final = "search(query) finds memories by a text, and history(topic=...) by their topic"


@contextlib.contextmanager
def add_hint_to_missing_id(hint: str, *, accepts_names: bool = False) -> Iterator[None]:
    """
    Add a hint to errors for a text that is no memory id, such as the text or topic of a memory.

    Models get no hint, because it names methods. They get other hints from their tools.

    Args:
        hint: The hint. It replaces only `TEXT_AS_ID_HINT`.
        accepts_names: True to add it also for single words, such as a topic.

    """
    try:
        yield
    except MemoryNotFound as error:
        text = error.memory_id
        is_text = isinstance(text, str) and not is_id(text) and (accepts_names or any(one.isspace() for one in text))
        if error.hint in (None, TEXT_AS_ID_HINT) and is_text and not is_model_call.get():
            error.hint = hint
        raise


@attrs.define(eq=False)
class NamespaceServices:
    """Engine, models, caches and settings of a namespace, shared by its stores."""

    engine: Engine
    embedding: EmbeddingService
    settings: MemorySettings = attrs.field(kw_only=True)
    loop: LoopGuard = attrs.field(kw_only=True)
    reranker_runner: RerankerRunner | None = attrs.field(default=None, kw_only=True)
    judge_runner: JudgeRunner | None = attrs.field(default=None, kw_only=True)
    find_mentions: Callable[[str], Sequence[str]] = attrs.field(default=lambda _text: (), kw_only=True)
    erase_texts: EraseTexts = attrs.field(default=erasure.erase_no_texts, kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    record: EmbedderRecord = attrs.field(init=False)
    # The embedder to which `reembed` is switching, None at other times.
    next_embedder_record: EmbedderRecord | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    chain_lock: asyncio.Lock = attrs.field(factory=asyncio.Lock, init=False)
    """Held while the newest version is read and replaced, to prevent a race; see `mama_structs.importers.mama_v1`."""

    def __attrs_post_init__(self) -> None:
        self._use(self.embedding)

    def _use(self, embedding: EmbeddingService) -> None:
        self.embedding, self.record = embedding, embedder_record(embedding.embedder)

    @property
    def linking(self) -> LinkingContext:
        """The parameters of automatic linking."""
        return LinkingContext(
            policy=self.settings.linking,
            calibration=self.embedding.embedder.calibration,
            shared_dimensions=shared_dimensions(self.embedding.embedder),
        )

    @property
    def now(self) -> datetime:
        """The current time."""
        return from_milliseconds(int(self.clock() * 1000))

    def resolve_time(self, name: str, value: object) -> datetime:
        """Return *value* as a validated time, or the current time if *value* is None."""
        return self.now if value is None else _check.check_time(name, value, now=self.now)

    def check(self) -> None:
        """Raise an error if the store is closed, or if the caller runs in another event loop."""
        if self.closed:
            raise SessionClosed(
                "the memories were closed with their session", hint="work inside its with block, or open another one"
            )
        self.loop.check()

    async def read(self, plan: Callable[[Reader], T], *, made_by: EmbedderRecord | None = None) -> T:
        """
        Run a plan that only reads.

        Raise `EmbedderMismatch` if the engine's embedder is not *made_by* (None: the current or the next embedder).
        """
        self.check()
        with add_hint_to_missing_id(TEXT_AS_ID_HINT):
            return await self.engine.read(self._guarded(plan, made_by))

    async def write(self, plan: Callable[[Writer], T], *, made_by: EmbedderRecord | None = None) -> T:
        """Run a plan that writes. See `read` for arguments and errors."""
        self.check()
        with add_hint_to_missing_id(TEXT_AS_ID_HINT):
            return await self.engine.write(self._guarded(plan, made_by))

    def _guarded(self, plan: Callable[[ReaderT], T], made_by: EmbedderRecord | None) -> Callable[[ReaderT], T]:
        def guarded(reader: ReaderT) -> T:
            known = (self.record, self.next_embedder_record) if made_by is None else (made_by,)
            if self.engine.embedder not in known:
                raise embedder_mismatch(self.engine.namespace, self.engine.embedder, known[0])
            return plan(reader)

        return guarded

    async def replace_embedder(self, embedding: EmbeddingService) -> None:
        """Switch to another embedder, and close the previous one."""
        before = self.embedding
        self._use(embedding)
        await before.close()

    async def close(self) -> None:
        """Stop accepting work, and shut down the judge, the reranker and the embedder. Idempotent."""
        if not self.closed:
            self.closed = True
            async with AsyncExitStack() as closing:
                for service in (self.judge_runner, self.reranker_runner, self.embedding):
                    if service is not None:
                        closing.push_async_callback(service.close)
