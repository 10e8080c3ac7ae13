"""Automatic links within a batch obey the same limits as in single saves, and never point to later memories."""

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.save.automatic_links import LinkingContext, choose_automatic_links
from mama_structs.memory.save.link_candidates import PendingLinks, SimilarityBaseline, collect_many_link_candidates
from mama_structs.memory.types.engine import NewMemory
from mama_structs.memory.types.model import LinkType, MemoryType
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.settings import LinkingPolicy
from mama_structs.testing.plain_engine import PlainReader

EMBEDDER = HashEmbedder(dimensions=64)
WORDS = ("shield", "raid", "ore", "Kestrel", "cookie", "token", "대체", "결정을", "fuel", "4-19")


def vectors_of(memory):
    """Return the vector of a memory, as one row."""
    found = np.asarray(EMBEDDER.embed([embedded_text(memory)]), np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)


def saved_together(reader, memories, policy, explicit=()):
    """Save memories as one batch, and return the automatic links of each."""
    usual, linking = (
        SimilarityBaseline.from_reader(reader, EMBEDDER.calibration, EMBEDDER.dimensions),
        LinkingContext(policy=policy, calibration=EMBEDDER.calibration, shared_dimensions=EMBEDDER.dimensions),
    )
    made = []

    def links_of(nodes):
        asked = [
            PendingLinks(memory=memory, vectors=vectors_of(memory), explicit=explicit, node=node, fresh=True)
            for memory, node in zip(memories, nodes.tolist(), strict=True)
        ]
        made.extend(choose_automatic_links(reader, asked, linking, usual))
        return made

    reader.put_new([NewMemory(memory=memory, vectors=vectors_of(memory)) for memory in memories], links_of)
    return made


def written(number, at, words, topic=None, kind=MemoryType.CONTEXT):
    return plain_memory(f"m{number:03}", " ".join(words), topic=topic, at=at, type=kind)


memories = st.lists(
    st.builds(
        written,
        st.just(0),
        st.sampled_from((0, 30, 900, 3600, 86400)),
        st.lists(st.sampled_from(WORDS), max_size=6),
        st.sampled_from((None, "raid_kestrel", "auth_token")),
        st.sampled_from(MemoryType),
    ),
    max_size=14,
).map(lambda some: [attrs.evolve(memory, id=f"m{number:03}") for number, memory in enumerate(some)])


@given(
    memories=memories,
    sizes=st.lists(st.integers(1, 6), min_size=14, max_size=14),
    threshold=st.sampled_from((0.0, 0.3)),
    most=st.integers(0, 2),
)
def test_batch_links_respect_limits(memories, sizes, threshold, most):
    """No memory is linked to a later or newer one, to itself or twice, or exceeds its number of links."""
    policy = LinkingPolicy(threshold=threshold, min_confidence=0.0, max_semantic=2, max_temporal=1, max_incoming=most)
    reader, left, made = PlainReader(), list(memories), []
    while left:
        size = sizes.pop()
        made += saved_together(reader, left[:size], policy)
        left = left[size:]

    assert len(memories) == len(made)
    for memory, links in zip(memories, made, strict=True):
        targets = [link.to_id for link in links]
        assert len(set(targets)) == len(targets)
        assert 2 >= sum(link.link_type is LinkType.ASSOCIATION for link in links)
        assert 1 >= sum(link.link_type is LinkType.TEMPORAL for link in links)
        for target in targets:
            (older,) = reader.get([reader.find(target)])
            assert memory.id > older.id
            assert memory.created_at >= older.created_at
    incoming = [link.to_id for links in made for link in links]
    assert all(most >= incoming.count(target) for target in incoming)


@pytest.mark.once
@pytest.mark.parametrize("together", [2, 7, 32])
def test_batch_links_equal_links_of_single_saves(together):
    """The links hardly depend on the batch size, even within a batch."""
    random = np.random.default_rng(4)
    texts = [
        " ".join(
            [
                *(f"t{matter}w{word}" for word in random.permutation(9)[:7]),
                *(f"x{word}" for word in random.integers(99, size=3)),
            ]
        )
        for matter in random.integers(24, size=96)
    ]
    some = [written(at, at * 7200, [text]) for at, text in enumerate(texts)]

    def linked(size):
        reader, pairs = PlainReader(), set()
        for start in range(0, len(some), size):
            for links in saved_together(reader, some[start : start + size], LinkingPolicy.default()):
                pairs |= {(link.from_id, link.to_id) for link in links}
        return pairs

    one_by_one, at_once = linked(1), linked(together)

    assert 60 < len(one_by_one)
    assert 0.9 < len(one_by_one & at_once) / len(one_by_one | at_once)


def test_explicit_links_within_batch_extend_chain():
    """A memory is connected to an earlier one of the batch by the memory that both supersede."""
    reader = PlainReader()
    first = written(0, 0, ["Cookie sessions in Postgres."])
    reader.put(first, vectors=vectors_of(first))
    two = [written(1, 60, ["Stateless tokens."]), written(2, 86400, ["Short tokens, rotated on use."])]
    new = [
        NewMemory(
            memory=memory,
            vectors=vectors_of(memory),
            links=[
                attrs.evolve(plain_link(memory.id, first.id, "supersedes", type=LinkType.EVOLUTION), created_by="user")
            ],
        )
        for memory in two
    ]
    linking = LinkingContext(
        policy=LinkingPolicy.default(), calibration=EMBEDDER.calibration, shared_dimensions=EMBEDDER.dimensions
    )
    usual, made = SimilarityBaseline.from_reader(reader, EMBEDDER.calibration, EMBEDDER.dimensions), []

    def links_of(nodes):
        asked = [
            PendingLinks(memory=one.memory, vectors=one.vectors, explicit=[first.id], node=node, fresh=True)
            for one, node in zip(new, nodes.tolist(), strict=True)
        ]
        made.extend(choose_automatic_links(reader, asked, linking, usual))
        return made

    reader.put_new(new, links_of)

    assert [[], [two[0].id]] == [
        [link.to_id for link in links if link.link_type is LinkType.ASSOCIATION] for links in made
    ]


@pytest.mark.parametrize("together", [1, 12])
def test_candidates_of_a_batch_are_read_together(together):
    """Words, vectors and attributes are read once for any number of memories."""
    reader, calls = PlainReader(), Counter()
    for number in range(30):
        memory = written(number, number, [WORDS[number % 7], WORDS[number % 3]], topic="raid_kestrel")
        reader.put(memory, vectors=vectors_of(memory))
    new = [written(100 + number, 99, WORDS[number % 5 :], topic="raid_kestrel") for number in range(together)]
    asked = [PendingLinks(memory=memory, vectors=vectors_of(memory)) for memory in new]
    usual = SimilarityBaseline.from_reader(reader, EMBEDDER.calibration, EMBEDDER.dimensions)
    names = ("words_many", "word_scores_many", "nearest_many", "rarity", "facts", "pieces", "words", "word_scores")

    class Counted:
        def __getattr__(self, name):
            calls[name] += name in names
            return getattr(reader, name)

    collect_many_link_candidates(Counted(), asked, usual)

    assert {"words_many": 1, "word_scores_many": 1, "nearest_many": 1, "facts": 1, "pieces": 1, "rarity": 3} == {
        name: count for name, count in calls.items() if count
    }
