"""
The HNSW libraries behind one protocol: hnswlib where it is installed, and otherwise voyager.

Neither library protects the process from invalid vectors, damaged files or concurrent calls. The callers do.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import re
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np

from mama_structs._internal.lazy_import import load_module
from mama_structs.memory.engines.local.views.vector_store import Labels, Vectors

SEED: Final = 100

_log: Final = logging.getLogger(__name__)


class LibraryIndex(Protocol):
    """
    An index of one library. Vectors are compared by their inner product.

    Inner product: the cosine of normalised vectors, without the normalised copies that the libraries make for cosine.

    Indexes that store components as integers need *bound*: larger absolute components are stored as this value.
    """

    library: ClassVar[str]

    @classmethod
    def create(cls, dimensions: int, *, m: int, ef_construction: int, capacity: int, bound: float) -> Self:
        """Create an empty index."""
        ...

    @classmethod
    def load(cls, path: Path, dimensions: int, *, capacity: int, bound: float) -> Self:
        """Load an index from a verified file. Damaged bytes can crash the process in either library."""
        ...

    def describe(self) -> tuple[int, int, int]:
        """Return the number of vectors, M and ef_construction."""
        ...

    def add(self, vectors: Vectors, first_label: int, *, threads: int) -> None:
        """Add vectors with consecutive labels."""
        ...

    def set_deleted(self, label: int, *, deleted: bool) -> None:
        """Change the deletion mark of a vector, which must have the other state."""
        ...

    def query(self, vectors: Vectors, limit: int, *, ef: int) -> Labels:
        """Return the labels of exactly *limit* vectors per query. Raise an exception if fewer are found."""
        ...

    def resize(self, capacity: int) -> None:
        """Change the maximum number of vectors."""
        ...

    def save(self, path: Path) -> None:
        """Write the index to a file. Raise OSError if it was not written completely."""
        ...


class HnswlibIndex:
    """Index of hnswlib. It has no wheels, so it is optional."""

    library: ClassVar[str] = "hnswlib"

    def __init__(self, dimensions: int) -> None:
        self._index: Any = load_module("hnswlib").Index(space="ip", dim=dimensions)
        self._ef = 0

    @classmethod
    def create(cls, dimensions: int, *, m: int, ef_construction: int, capacity: int, bound: float) -> Self:  # noqa: ARG003 - of the protocol
        """Create an empty index."""
        created = cls(dimensions)
        created._index.init_index(max_elements=capacity, M=m, ef_construction=ef_construction, random_seed=SEED)
        return created

    @classmethod
    def load(cls, path: Path, dimensions: int, *, capacity: int, bound: float) -> Self:  # noqa: ARG003 - of the protocol
        """Load an index from a verified file."""
        loaded = cls(dimensions)
        loaded._index.load_index(str(path), max_elements=capacity)
        return loaded

    def describe(self) -> tuple[int, int, int]:
        """Return the number of vectors, M and ef_construction."""
        return self._index.get_current_count(), self._index.M, self._index.ef_construction

    def add(self, vectors: Vectors, first_label: int, *, threads: int) -> None:
        """Add vectors with consecutive labels."""
        self._index.add_items(vectors, np.arange(first_label, first_label + len(vectors)), num_threads=threads)

    def set_deleted(self, label: int, *, deleted: bool) -> None:
        """Change the deletion mark of a vector."""
        (self._index.mark_deleted if deleted else self._index.unmark_deleted)(label)

    def query(self, vectors: Vectors, limit: int, *, ef: int) -> Labels:
        """Return the labels of the nearest vectors."""
        if ef != self._ef:
            # hnswlib sets ef to 10 in a new or loaded index, which would find only half of the neighbours.
            self._index.set_ef(ef)
            self._ef = ef
        labels, _ = self._index.knn_query(vectors, k=limit, num_threads=1)
        found: Labels = labels.astype(np.int64)
        return found

    def resize(self, capacity: int) -> None:
        """Change the maximum number of vectors."""
        self._index.resize_index(capacity)

    def save(self, path: Path) -> None:
        """Write the index to a file, and compare the file's size, because hnswlib reports no error."""
        self._index.save_index(str(path))
        size, expected = path.stat().st_size, self._index.index_file_size()
        if size != expected:
            raise OSError(f"the graph's file has {size} bytes instead of {expected}")


class VoyagerIndex:
    """
    Index of voyager, which is a dependency of the package.

    It stores each component in one byte, which takes a quarter of the memory and finds as much.
    """

    library: ClassVar[str] = "voyager"

    def __init__(self, index: Any, bound: float) -> None:
        self._index, self._scale = index, np.float32(1 / bound)

    @classmethod
    def create(cls, dimensions: int, *, m: int, ef_construction: int, capacity: int, bound: float) -> Self:
        """Create an empty index."""
        voyager = load_module("voyager")
        options = {"M": m, "ef_construction": ef_construction, "max_elements": capacity, "random_seed": SEED}
        stored_type = voyager.StorageDataType.Float8
        return cls(
            voyager.Index(voyager.Space.InnerProduct, dimensions, storage_data_type=stored_type, **options), bound
        )

    @classmethod
    def load(cls, path: Path, dimensions: int, *, capacity: int, bound: float) -> Self:
        """Load an index from a verified file. Voyager raises if the file has other dimensions or another space."""
        voyager = load_module("voyager")
        stored_type = voyager.StorageDataType.Float8
        loaded = cls(voyager.Index.load(str(path), voyager.Space.InnerProduct, dimensions, stored_type), bound)
        loaded.resize(capacity)
        return loaded

    def describe(self) -> tuple[int, int, int]:
        """Return the number of vectors, M and ef_construction."""
        # len() of a loaded index counts deleted vectors, unlike len() of the saved one.
        return self._index.num_elements, self._index.M, self._index.ef_construction

    def add(self, vectors: Vectors, first_label: int, *, threads: int) -> None:
        """Add vectors with consecutive labels."""
        labels = list(range(first_label, first_label + len(vectors)))
        # The product is a new array: voyager rejects read-only arrays, such as rows of a snapshot file.
        self._index.add_items(np.clip(vectors * self._scale, -1, 1), labels, threads)

    def set_deleted(self, label: int, *, deleted: bool) -> None:
        """Change the deletion mark of a vector."""
        (self._index.mark_deleted if deleted else self._index.unmark_deleted)(label)

    def query(self, vectors: Vectors, limit: int, *, ef: int) -> Labels:
        """Return the labels of the nearest vectors."""
        # A projected query can be zero.
        scaled = vectors / np.maximum(np.abs(vectors).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        # Voyager holds the GIL during a query, so query row by row, to let other threads run between them.
        found = [self._index.query(vector, limit, 1, ef)[0] for vector in scaled]
        return np.stack(found).astype(np.int64)

    def resize(self, capacity: int) -> None:
        """Change the maximum number of vectors."""
        self._index.resize(capacity)

    def save(self, path: Path) -> None:
        """Write the index to a file. Given a path, voyager would report no error of a full disk."""
        with path.open("wb") as file:
            self._index.save(file)


LIBRARIES: Final[tuple[type[LibraryIndex], ...]] = (HnswlibIndex, VoyagerIndex)
"""In order of preference: hnswlib takes less time for additions and searches."""


@functools.cache
def find_library() -> type[LibraryIndex] | None:
    """Return the first library that can be imported, or None."""
    for library in LIBRARIES:
        try:
            load_module(library.library)
        except Exception as error:  # noqa: BLE001 - a native module built for another machine can raise anything
            if not isinstance(error, ModuleNotFoundError):
                _log.warning("%s is installed, but cannot be imported: %s", library.library, type(error).__name__)
        else:
            return library
    _log.warning("neither voyager nor hnswlib can be imported: large memories are searched exactly, which is slower")
    return None


@functools.cache
def read_version(library: str) -> str:
    """Return the version of an installed library."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def name_library(library: type[LibraryIndex]) -> str:
    """Return the library's name and version in a form that is valid in the name of a snapshot's part."""
    version = re.sub(r"[^a-z0-9]+", "_", read_version(library.library).lower())
    return f"{library.library}_{version}"[:25]
