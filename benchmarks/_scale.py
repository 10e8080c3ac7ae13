"""
Process that runs one store for `scale.py`. Each request and each answer is a line of JSON.

Only the standard library and NumPy are imported before the store, so that Chroma can run in its own environment.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

DIMENSIONS, NEAREST = 384, 10
START = datetime(2025, 1, 1, tzinfo=UTC)
BATCH_SIZES = {"raw": 256, "chroma": 5_000, "ours": 10_000}  # the number of memories per call
Vectors = np.ndarray[Any, np.dtype[np.float32]]


class Rows:
    """Texts, topics and vectors by number: first the memories, then the questions. Vectors are read lazily."""

    def __init__(self, folder: Path) -> None:
        self.texts, self.topics, self.about = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        self.count = len(self.topics)  # the number of memories, and the number of the first question
        self._file = os.open(folder / "vectors.f32", os.O_RDONLY)
        self.dimensions = os.fstat(self._file).st_size // (4 * len(self.texts))

    def vectors(self, start: int, stop: int) -> Vectors:
        size = 4 * self.dimensions
        return np.frombuffer(os.pread(self._file, (stop - start) * size, start * size), np.float32).reshape(
            -1, self.dimensions
        )

    def get_embedded_text(self, at: int) -> str:
        """Return the embedded text of a memory: its topic followed by its text."""
        return f"{self.topics[at].replace('_', ' ')}: {self.texts[at]}" if self.topics[at] else self.texts[at]

    def question(self, number: int) -> str:
        return self.texts[self.count + number]


def figure(name: str, path: str) -> int:
    """Return a memory statistic of this process in bytes, or 0 if the system does not provide it."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def memory_now() -> dict[str, int]:
    return {
        "resident": figure("VmRSS", "/proc/self/status"),
        "peak": figure("VmHWM", "/proc/self/status"),
        "anonymous": figure("Anonymous", "/proc/self/smaps_rollup"),
    }


def forget_peak() -> None:
    """Reset the recorded peak memory of this process, if the system allows it."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5", encoding="ascii")


def clock(work: Any, *given: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work(*given)
    return time.perf_counter() - started, result


class RawHnswlib:
    """Index of hnswlib."""

    def __init__(self, path: Path) -> None:
        import hnswlib  # noqa: PLC0415 - optional

        self.path, self.index = path, hnswlib.Index("ip", DIMENSIONS)
        if path.exists():
            self.index.load_index(str(path))
        else:
            self.index.init_index(1024, M=16, ef_construction=150, random_seed=100)

    def resize(self, count: int) -> None:
        self.index.resize_index(count)

    def add(self, vectors: Vectors, first: int, threads: int) -> None:
        self.index.add_items(vectors, np.arange(first, first + len(vectors)), num_threads=threads)

    def query(self, vector: Vectors, ef: int) -> list[int]:
        self.index.set_ef(ef)
        found: list[int] = self.index.knn_query(vector, k=NEAREST, num_threads=1)[0][0].tolist()
        return found

    def save(self) -> None:
        self.index.save_index(str(self.path))


class RawVoyager:
    """Index of voyager."""

    def __init__(self, path: Path) -> None:
        import voyager  # noqa: PLC0415 - not in Chroma's environment

        self.path, space = path, voyager.Space.InnerProduct
        if path.exists():
            self.index = voyager.Index.load(str(path), space, DIMENSIONS)
        else:
            self.index = voyager.Index(space, DIMENSIONS, M=16, ef_construction=150, random_seed=100)

    def resize(self, count: int) -> None:
        self.index.resize(count)

    def add(self, vectors: Vectors, first: int, threads: int) -> None:
        self.index.add_items(vectors.copy(), list(range(first, first + len(vectors))), threads)

    def query(self, vector: Vectors, ef: int) -> list[int]:
        found: list[int] = self.index.query(vector[0].copy(), NEAREST, 1, ef)[0].tolist()
        return found

    def save(self) -> None:
        self.index.save(str(self.path))


class Raw:
    """
    diskcache and the HNSW library that this package would use, used directly without this package.

    Writes are not synchronous, and the index is written at the end.
    """

    threads = 1

    def __init__(self, rows: Rows, _settings: dict[str, Any]) -> None:
        import diskcache  # noqa: F401, PLC0415 - not in Chroma's environment

        self.rows, self.ef = rows, 128

    def open(self, store: Path) -> None:
        import diskcache  # noqa: PLC0415 - as above

        self.cache = diskcache.Cache(str(store), eviction_policy="none", cull_limit=0, disk_min_file_size=2**30)
        has_hnswlib = importlib.util.find_spec("hnswlib") is not None
        self.index = (RawHnswlib if has_hnswlib else RawVoyager)(store / "graph")

    def bulk(self, start: int, stop: int) -> None:
        self.index.resize(stop + 10_000)
        for at in range(start, stop, BATCH_SIZES["raw"]):
            end = min(at + BATCH_SIZES["raw"], stop)
            vectors = self.rows.vectors(at, end)
            with self.cache.transact():
                for number, vector in enumerate(vectors, at):
                    self.cache.set(number, (self.rows.texts[number], self.rows.topics[number], vector.tobytes()))
            self.index.add(vectors, at, self.threads)

    def save(self, start: int, stop: int) -> tuple[list[float], list[Any]]:
        return [clock(self._save, number)[0] for number in range(start, stop)], []

    def _save(self, number: int) -> None:
        vector = self.rows.vectors(number, number + 1)
        self.cache.set(number, (self.rows.texts[number], self.rows.topics[number], vector.tobytes()))
        self.index.add(vector, number, 1)

    def tune(self, ef: int) -> None:
        self.ef = ef

    def search(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        taken, found = [], []
        for number in range(start, stop):
            vector = self.rows.vectors(self.rows.count + number, self.rows.count + number + 1)
            seconds, answer = clock(self.index.query, vector, self.ef)
            taken.append(seconds)
            found.append(answer)
        return taken, found

    nearest = search

    def close(self) -> None:
        self.index.save()
        self.cache.close()


class Chroma:
    """Chroma's embedded client with default settings and inner products."""

    def __init__(self, rows: Rows, _settings: dict[str, Any]) -> None:
        import chromadb  # noqa: PLC0415 - in its own environment

        self.rows, self.chroma = rows, chromadb
        with tempfile.TemporaryDirectory() as folder:
            some = self._collection(Path(folder))
            some.add(ids=["0"], embeddings=rows.vectors(0, 1), documents=[rows.texts[0]])
            some.query(query_embeddings=rows.vectors(0, 1), n_results=1)

    def _collection(self, store: Path) -> Any:
        client = self.chroma.PersistentClient(
            str(store), settings=self.chroma.config.Settings(anonymized_telemetry=False)
        )
        return client.get_or_create_collection(
            "memories", embedding_function=None, configuration={"hnsw": {"space": "ip"}}
        )

    def open(self, store: Path) -> None:
        self.some = self._collection(store)
        self.some.count()

    def bulk(self, start: int, stop: int) -> None:
        for at in range(start, stop, BATCH_SIZES["chroma"]):
            self._add(at, min(at + BATCH_SIZES["chroma"], stop))

    def _add(self, at: int, end: int) -> None:
        self.some.add(
            ids=[str(number) for number in range(at, end)],
            embeddings=self.rows.vectors(at, end),
            documents=self.rows.texts[at:end],
            metadatas=[{"topic": topic or ""} for topic in self.rows.topics[at:end]],
        )

    def save(self, start: int, stop: int) -> tuple[list[float], list[Any]]:
        return [clock(self._add, number, number + 1)[0] for number in range(start, stop)], []

    def search(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        taken, found = [], []
        for number in range(start, stop):
            vector = self.rows.vectors(self.rows.count + number, self.rows.count + number + 1)
            seconds, answer = clock(lambda given=vector: self.some.query(query_embeddings=given, n_results=NEAREST))
            taken.append(seconds)
            found.append([int(some) for some in answer["ids"][0]])
        return taken, found

    nearest = search

    def close(self) -> None:
        pass


class LookupEmbedder:
    """An embedder that looks up precomputed vectors, and measures the time of the lookups."""

    name, dimensions, max_tokens, batch_size = "known", DIMENSIONS, 100_000, 256

    def __init__(self, rows: Rows) -> None:
        from mama_structs.memory.embedding.protocol import Calibration  # noqa: PLC0415 - not in Chroma's environment

        self.calibration = Calibration(0.5, 12.0)
        self.rows, self.taken = rows, 0.0
        self.question = 0  # the number of the question whose vector a rewritten query gets
        hashes = np.array(
            [hash(rows.get_embedded_text(at) if at < rows.count else rows.texts[at]) for at in range(len(rows.texts))]
        )
        self.order = hashes.argsort().astype(np.int32)
        self.hashes = hashes[self.order]

    def embed(self, texts: Sequence[str], *, kind: str = "document") -> Vectors:
        started = time.perf_counter()
        wanted = np.array([hash(text) for text in texts])
        places = self.order[np.minimum(self.hashes.searchsorted(wanted), len(self.hashes) - 1)].tolist()
        for at, (text, place) in enumerate(zip(texts, places, strict=True)):
            if text not in {self.rows.texts[place], place < self.rows.count and self.rows.get_embedded_text(place)}:
                if kind == "document":
                    raise LookupError("a text that is not the corpus's own")
                # A search removes words such as "last week" from its question.
                places[at] = self.rows.count + self.question
        vectors = np.concatenate([self.rows.vectors(place, place + 1) for place in places])
        self.taken += time.perf_counter() - started
        return vectors


class Ours:
    """
    A session whose memory settings are *settings*. All other settings have their defaults.

    With the setting *bulk_linking*, `bulk` uses a session with this value of *linking*.
    """

    def __init__(self, rows: Rows, settings: dict[str, Any]) -> None:
        from mama_structs import Session  # noqa: PLC0415 - not in Chroma's environment
        from mama_structs.settings import MemorySettings, Settings  # noqa: PLC0415 - as above

        self.rows, self.embedder = rows, LookupEmbedder(rows)
        # On a server, each store has its own namespace.
        self.url = settings.pop("url", None)
        bulk_linking = settings.pop("bulk_linking", None)
        self.bulk_settings = {} if bulk_linking is None else {"linking": bulk_linking}
        self.made = lambda store, **others: Session.open(
            self.url or store,
            namespace=store.name if self.url else "default",
            embedder=self.embedder,
            settings=Settings(memory=MemorySettings(**settings | others)),
        )
        self.runner = asyncio.Runner()
        with tempfile.TemporaryDirectory() as folder:
            # Use a store once before timing, so that lazily loaded modules are already imported.
            self.open(Path(folder) / "warm")
            self.bulk(0, 1)
            self.search(0, 1)
            self.close()

    def open(self, store: Path, **others: Any) -> None:
        self.store = store
        self.session = self.runner.run(self.made(store, **others).__aenter__())
        self.runner.run(self.session.memories.count())

    def record(self, at: int) -> dict[str, Any]:
        rows = self.rows
        moment = START + timedelta(minutes=3 * at)
        return {"type": "context", "content": rows.texts[at], "topic": rows.topics[at], "created_at": moment}

    def bulk(self, start: int, stop: int) -> None:
        if self.bulk_settings:
            self.close()
            self.open(self.store, **self.bulk_settings)
        for at in range(start, stop, BATCH_SIZES["ours"]):
            end = min(at + BATCH_SIZES["ours"], stop)
            self.runner.run(self.session.memories.save_many([self.record(number) for number in range(at, end)]))
        if self.bulk_settings:
            self.close()
            self.open(self.store)

    def wait_until_idle(self) -> None:
        """Wait until the vector graph and the word index are up to date."""
        engine = self.session.memories._engine  # noqa: SLF001 - measured
        if hasattr(engine, "wait_until_idle"):
            self.runner.run(engine.wait_until_idle())
            if self.url is None:
                engine._views.vectors.wait_until_idle(3_600.0)  # noqa: SLF001 - measured
            elif hasattr(engine, "index"):
                self.runner.run(engine.index.wait_until_idle())
            return
        # An older revision (--against) has different names for these methods.
        self.runner.run(engine.settled())
        if self.url is None:
            engine._views.vectors.settled(3_600.0)  # noqa: SLF001 - measured

    def save(self, start: int, stop: int) -> tuple[list[float], list[Any]]:
        taken = []
        for number in range(start, stop):
            given = {name: value for name, value in self.record(number).items() if name != "type"}
            taken.append(self._apart(self.session.memories.save_context(**given))[0])
        return taken, []

    def _apart(self, call: Any) -> tuple[float, Any]:
        """Return the duration of a call without its embedding time, and the result of the call."""

        async def timed() -> tuple[float, Any]:
            self.embedder.taken, started = 0.0, time.perf_counter()
            result = await call
            return time.perf_counter() - started - self.embedder.taken, result

        return self.runner.run(timed())

    def search(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        taken, found = [], []
        for number in range(start, stop):
            self.embedder.question = number
            seconds, hits = self._apart(self.session.memories.search(self.rows.question(number), limit=NEAREST))
            taken.append(seconds)
            about = self.rows.about[number]
            found.append([about if hit.memory.content == self.rows.texts[about] else -1 for hit in hits])
        return taken, found

    def nearest(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        """Search by vectors only. Nodes are numbered in the order of saving."""
        engine = self.session.memories._engine  # noqa: SLF001 - measured
        taken, found = [], []
        for number in range(start, stop):
            vector = self.rows.vectors(self.rows.count + number, self.rows.count + number + 1)[0]
            read = engine.read(lambda reader, given=vector: clock(reader.nearest, given, NEAREST))
            whole, (seconds, answer) = clock(self.runner.run, read)
            # On a server, count the round trips that begin and commit the transaction as well.
            taken.append(whole if self.url else seconds)
            found.append(answer.nodes.tolist())
        return taken, found

    def stats(self) -> dict[str, Any]:
        return dict(self.session.stats()["memories"])

    def close(self) -> None:
        self.runner.run(self.session.__aexit__(None, None, None))


class Walks(Ours):
    """
    Traversal benchmark. Each memory has up to 5 links, about half of them to the 50 previous memories.

    A search of this class is a traversal.
    """

    def bulk(self, start: int, stop: int) -> None:
        from mama_structs.memory.types.model import METADATA_TYPES, Memory, MemoryType  # noqa: PLC0415 - as above

        chance = np.random.default_rng(5)

        def put(writer: Any, first: int, last: int) -> None:
            linked = {number: linked_from(number, chance) for number in range(first, last)}
            # Look up all memories of the transaction in one call, which is faster than one call per memory.
            writer.find_many(
                [walked(number) for number in {*linked, *(end for ends in linked.values() for end in ends)}]
            )
            for number, ends in linked.items():
                created = START + timedelta(minutes=3 * number)
                memory = Memory(
                    id=walked(number),
                    type=MemoryType.CONTEXT,
                    content=make_link_text(number),
                    namespace=engine.namespace,
                    metadata=METADATA_TYPES[MemoryType.CONTEXT](),
                    created_at=created,
                    updated_at=created,
                )
                links = [some_link(memory.id, walked(end), at) for at, end in enumerate(ends)]
                writer.put(memory, vectors=vectors, links=links)

        vectors = self.rows.vectors(0, 1)
        engine = self.session.memories._engine  # noqa: SLF001 - measured
        for at in range(start, stop, 1_000):
            self.runner.run(engine.write(lambda writer, at=at: put(writer, at, min(at + 1_000, stop))))

    def search(self, start: int, stop: int) -> tuple[list[float], list[list[int]]]:
        chance = np.random.default_rng(6)
        starts = [walked(number) for number in chance.integers(0, self.session.stats()["memories"]["memories"], stop)]
        walks = [self._apart(self.session.memories.traverse(some)) for some in starts[start:stop]]
        return [taken for taken, _ in walks], [[len(reached)] for _, reached in walks]


def make_link_text(number: int) -> str:
    return f"Of {number} it is known what it is worth, and since when it is so."


def linked_from(number: int, chance: np.random.Generator) -> set[int]:
    """Return up to five earlier memories to link to. About half of them are among the previous 50 memories."""
    near = number - chance.integers(1, 51, 2 + number % 2)
    far = chance.integers(0, max(number, 1), 3 - number % 2)
    return {int(end) for end in (*near, *far) if 0 <= end < number}


def walked(number: int) -> str:
    return f"context_some_words_of_its_own_{number:013}_{number:08x}"


def some_link(source: str, target: str, number: int) -> Any:
    from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, new_link_id  # noqa: PLC0415 - as above

    return Link(
        id=new_link_id(),
        from_id=source,
        to_id=target,
        link_type=(LinkType.ASSOCIATION, LinkType.TEMPORAL)[number % 2],
        confidence=0.8,
        created_by="system",
        metadata=LinkMetadata(original_relationship="related_to", similarity=0.7),
        created_at=START,
    )


KINDS = {"raw": Raw, "chroma": Chroma, "ours": Ours, "walks": Walks}


def main() -> None:
    """Run one store: ``_scale.py KIND CORPUS STORE SETTINGS``."""
    kind, corpus, store, settings = sys.argv[1:]
    given = json.loads(settings)
    Raw.threads = given.pop("threads", 1)
    kinds = KINDS if kind in KINDS else importlib.import_module("_peers.langgraph_postgres").KINDS
    serve(lambda: kinds[kind](Rows(Path(corpus)), given), Path(store))


def serve(make: Callable[[], Any], store: Path) -> None:
    """
    Execute the requests from stdin on a store.

    Memory use is reported relative to the state after the creation of the store object.
    """
    out, sys.stdout = sys.stdout, sys.stderr
    rival = make()
    gc.collect()
    forget_peak()
    before = memory_now()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "memory":
            now = memory_now()
            found: Any = {which: now[which] - before["resident" if which == "peak" else which] for which in now}
            seconds = 0.0
        else:
            work = rival.open if name == "open" else getattr(rival, name, lambda *_: None)
            seconds, found = clock(work, *([store] if name == "open" else arguments))
        out.write(json.dumps([seconds, found]) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
