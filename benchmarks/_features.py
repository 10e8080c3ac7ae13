"""
Check cells of the table of features in docs/concepts/comparison.md against an installed package.

Run it with the interpreter of the package's environment, which `peers.py` creates: ``PYTHON benchmarks/_features.py
lancedb``. Each line states a feature and the result.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

COUNT: Final = 400
WORDS: Final = [f"zyx{number:03d}secret" for number in range(COUNT)]
# The lengths differ, so that a database cannot simply reuse the space of a deleted text for another one.
TEXTS: Final = [f"The code word is {word}." + " It opens the vault." * (at % 30) for at, word in enumerate(WORDS)]
DELETED: Final = range(0, COUNT, 2)


def report(feature: str, result: object) -> None:
    print(f"{sys.argv[1]}: {feature}: {result}")


def report_left(folder: Path, feature: str) -> None:
    """Report how many deleted texts the files of a store still contain."""
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    left = sum(WORDS[at].encode() in content for at in DELETED)
    report(f"deleted texts in the files, {feature}", left)


def vector() -> list[float]:
    return [random.random() for _ in range(8)]


def check_lancedb(folder: Path) -> None:
    lancedb = import_module("lancedb")
    # LanceDB compresses long columns, so search for the words of a few short texts.
    rows = [{"at": at, "text": f"word {WORDS[at]}", "vector": vector()} for at in range(20)]
    table = lancedb.connect(folder).create_table("memories", rows)
    table.delete("at % 2 = 0")
    report_left(folder, "after delete")
    table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
    report_left(folder, "after optimize without old versions")
    version = table.version
    table.update(where="at = 1", values={"text": "new"})
    table.checkout(version)
    report("an earlier version is searched", "new" not in [row["text"] for row in table.search(vector()).to_list()])


def check_qdrant(folder: Path) -> None:
    qdrant = import_module("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(path=str(folder))
    client.create_collection(
        "memories",
        vectors_config={"meaning": models.VectorParams(size=8, distance=models.Distance.COSINE)},
        sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    sparse = models.SparseVector(indices=[3], values=[1.0])
    points = [
        models.PointStruct(id=at, vector={"meaning": vector(), "words": sparse}, payload={"text": text})
        for at, text in enumerate(TEXTS)
    ]
    client.upsert("memories", points)
    both = [models.Prefetch(query=vector(), using="meaning"), models.Prefetch(query=sparse, using="words")]
    found = client.query_points("memories", prefetch=both, query=models.FusionQuery(fusion=models.Fusion.RRF))
    report("words and meaning, with sparse vectors of the caller", bool(found.points))
    try:
        client.query_points("memories", query=models.Document(text="vault", model="Qdrant/bm25"), using="words")
    except ImportError as error:
        report("words and meaning, from a text", error)
    client.delete("memories", points_selector=models.PointIdsList(points=list(DELETED)))
    client.close()
    report_left(folder, "after delete")


def check_langgraph(folder: Path) -> None:
    base = sqlite3.connect(folder / "store.db", check_same_thread=False, isolation_level=None)
    store = import_module("langgraph.store.sqlite").SqliteStore(base)
    store.setup()
    for at, text in enumerate(TEXTS):
        store.put(("notes",), str(at), {"text": text})
    for at in DELETED:
        store.delete(("notes",), str(at))
    base.close()
    report_left(folder, "after delete")


def check_chroma(folder: Path) -> None:
    chroma = import_module("chromadb")
    collection = chroma.PersistentClient(str(folder)).create_collection("memories", embedding_function=None)
    collection.add(ids=[str(at) for at in range(COUNT)], documents=TEXTS, embeddings=[vector() for _ in TEXTS])
    collection.delete(ids=[str(at) for at in DELETED])
    report_left(folder, "after delete")
    try:
        collection.search(chroma.Search())
    except NotImplementedError as error:
        report("words and meaning", error)


def check_sqlite(folder: Path) -> None:
    base: Any = import_module("_peers").loadable_sqlite().connect(str(folder / "store.db"))
    base.enable_load_extension(True)
    import_module("sqlite_vec").load(base)
    base.execute(f"PRAGMA secure_delete={'OFF' if '--off' in sys.argv else 'ON'}")
    base.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    base.execute("INSERT INTO words(words, rank) VALUES ('secure-delete', ?)", ("--off" not in sys.argv,))
    base.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", enumerate(TEXTS))
    base.executemany("DELETE FROM words WHERE rowid = ?", [(at,) for at in DELETED])
    base.commit()
    base.close()
    report_left(folder, "after delete")


CHECKS: Final[dict[str, Callable[[Path], None]]] = {
    "lancedb": check_lancedb,
    "qdrant": check_qdrant,
    "langgraph": check_langgraph,
    "chroma": check_chroma,
    "sqlite-vec": check_sqlite,
}


def main() -> None:
    """Check one package. With ``--off``, SQLite does not overwrite deleted data."""
    if "--off" in sys.argv:
        connect = sqlite3.connect

        def connect_without_overwriting(*arguments: Any, **options: Any) -> sqlite3.Connection:
            base = connect(*arguments, **options)
            base.execute("PRAGMA secure_delete=OFF")
            return base

        sqlite3.connect = connect_without_overwriting  # type: ignore[assignment]
    report("SQLite overwrites deleted data", sqlite3.connect(":memory:").execute("PRAGMA secure_delete").fetchone()[0])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        CHECKS[sys.argv[1]](Path(folder))


if __name__ == "__main__":
    main()
