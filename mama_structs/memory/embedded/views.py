"""The four views of a namespace, kept in step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mama_structs.memory.codec import Entry
from mama_structs.memory.embedded.adjacency import Adjacency
from mama_structs.memory.embedded.catalogue import Catalogue
from mama_structs.memory.embedded.vectors import VectorIndex
from mama_structs.memory.embedded.words import WordIndex
from mama_structs.memory.engine import Filter
from mama_structs.memory.ids import milliseconds
from mama_structs.memory.model import Link, Memory, MemoryType
from mama_structs.memory.text import indexed_text, weighted_terms

Vectors = NDArray[np.float32]

_TYPES: Final = tuple(MemoryType)
TYPE_INDEX: Final = {kind: position for position, kind in enumerate(MemoryType)}


class Views:
    """What is derived from the journal: each memory's place, words, vectors and links."""

    def __init__(self, dimensions: int, *, exact_up_to: int) -> None:
        self.catalogue: Catalogue = Catalogue()
        self.words: WordIndex = WordIndex()
        self.vectors: VectorIndex = VectorIndex(dimensions, exact_up_to=exact_up_to)
        self.links: Adjacency = Adjacency()
        self._counts: Counter[str] = Counter()
        # Nodes whose words are not indexed yet; they are taken up in slices.
        self.unindexed: dict[int, None] = {}

    def add(self, number: int, entry: Entry, vectors: Vectors | None, *, words: bool = True) -> int:
        """Add a memory without its links, and return its node."""
        memory = entry.memory
        node = self.catalogue.add(
            memory_id=memory.id,
            number=number,
            version=entry.version,
            created_ms=milliseconds(memory.created_at),
            type_index=TYPE_INDEX[memory.type],
            topic=memory.topic,
            mentions=memory.mentions,
        )
        self._counts[memory.type.value] += 1
        if vectors is not None:
            self.vectors.add(node, vectors)
        if words:
            self.words.add(node, indexed_terms(memory))
        else:
            self.unindexed[node] = None
        return node

    def change(self, node: int, entry: Entry, vectors: Vectors | None) -> None:
        """Take a new version of a memory, without its links."""
        memory = entry.memory
        self.catalogue.change(node, version=entry.version, topic=memory.topic, mentions=memory.mentions)
        if vectors is not None:
            self.vectors.remove(node)
            self.vectors.add(node, vectors)
        if node not in self.unindexed:
            self.words.remove(node)
            self.words.add(node, indexed_terms(memory))

    def remove(self, node: int) -> None:
        """Forget a memory and all its links."""
        facts = self.catalogue.facts(np.array([node]))
        self._counts[_TYPES[int(facts.types[0])].value] -= 1
        self.links.remove_node(node)
        self.vectors.remove(node)
        if self.unindexed.pop(node, 0) == 0:
            self.words.remove(node)
        self.catalogue.remove(node)

    def restore(self, node: int, number: int, entry: Entry, vectors: Vectors) -> None:
        """Take a memory's removal back, and bring back the links that begin at it."""
        memory = entry.memory
        self.catalogue.restore(
            node,
            memory_id=memory.id,
            number=number,
            version=entry.version,
            created_ms=milliseconds(memory.created_at),
            type_index=TYPE_INDEX[memory.type],
            topic=memory.topic,
            mentions=memory.mentions,
        )
        self._counts[memory.type.value] += 1
        self.vectors.add(node, vectors)
        self.words.add(node, indexed_terms(memory))
        self.link(node, entry.links)

    def link(self, source: int, links: Iterable[Link]) -> list[int]:
        """Add links that begin at a node, as far as their other ends exist, and return these."""
        ends = []
        for link in links:
            target = self.catalogue.find(link.to_id)
            if target is not None:
                self.links.add(source, target, link)
                ends.append(target)
        return ends

    def relink(self, source: int, links: Iterable[Link]) -> list[int]:
        """Put links in the place of all that begin at a node, and return the nodes at whose ends something changed."""
        before = [int(node) for node in self.links.links(np.array([source]), "out").targets]
        self.links.remove_outgoing(source)
        return before + self.link(source, links)

    def neighbours(self, node: int) -> list[int]:
        """Return the other ends of a node's links."""
        table = self.links.links(np.array([node]), "both")
        return [int(end) for end in (*table.sources, *table.targets) if end != node]

    def has_vectors(self, node: int, vectors: Vectors) -> bool:
        """Tell whether a node's vectors are these."""
        return np.array_equal(self.vectors.get(node), vectors)

    def unlink(self, links: Iterable[Link]) -> None:
        """Remove links."""
        for link in links:
            self.links.remove(link.id)

    def index(self, memories: Sequence[tuple[int, Memory]]) -> None:
        """Index the words of memories that were left out before."""
        for node, memory in memories:
            if self.unindexed.pop(node, 0) is None:
                self.words.add(node, indexed_terms(memory))

    def count(self) -> None:
        """Count the memories of each type, after the catalogue was loaded."""
        self._counts = Counter(
            {kind.value: self.catalogue.count(Filter(types=frozenset({kind}))) for kind in MemoryType}
        )

    def stats(self) -> dict[str, Any]:
        """Return what is worth knowing about the views; unlike everything else here, from any thread."""
        return {
            "memories": sum(self._counts.values()),
            "types": {kind.value: self._counts[kind.value] for kind in MemoryType},
            "links": len(self.links),
            "vectors": self.vectors.stats(),
            "words_to_index": len(self.unindexed),
        }


def indexed_terms(memory: Memory) -> dict[str, float]:
    """Return the terms under which a memory is found, with how often each counts."""
    return weighted_terms(indexed_text(memory))
