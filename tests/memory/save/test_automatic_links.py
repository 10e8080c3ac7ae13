"""Automatic links connect memories on the same subject, and the number of links is limited."""

from datetime import UTC, datetime, timedelta

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import cosine_table, shared_norms
from mama_structs.memory.save.automatic_links import (
    LinkingContext,
    choose_automatic_links,
)
from mama_structs.memory.save.link_candidates import (
    BIAS,
    FEATURES,
    WEIGHTS,
    LinkFeatures,
    PendingLinks,
    SimilarityBaseline,
    collect_link_candidates,
    same_subject_probabilities,
)
from mama_structs.memory.types.model import LinkType, MemoryType
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.settings import LinkingPolicy
from mama_structs.testing.plain_engine import PlainReader

EMBEDDER = HashEmbedder(dimensions=64)
MINUTE = 60.0
WORDS = ("shield", "raid", "ore", "Kestrel", "cookie", "token", "대체", "결정을", "fuel", "4-19")


def vectors_of(memory):
    """Return the vector of a memory, as one row."""
    found = np.asarray(EMBEDDER.embed([embedded_text(memory)]), np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)


def links_of(reader, memory, *, policy=None, explicit=(), vectors=None):
    """Return the automatic links that saving a memory would create."""
    vectors = vectors_of(memory) if vectors is None else vectors
    asked = PendingLinks(memory=memory, vectors=vectors, explicit=explicit, node=reader.find(memory.id))
    linking = LinkingContext(
        policy=policy or LinkingPolicy.default(),
        calibration=EMBEDDER.calibration,
        shared_dimensions=EMBEDDER.dimensions,
    )
    (made,) = choose_automatic_links(
        reader, [asked], linking, SimilarityBaseline.from_reader(reader, EMBEDDER.calibration, EMBEDDER.dimensions)
    )
    return [attrs.evolve(link, id=f"{memory.id}/{number}") for number, link in enumerate(made)]


def saved(*memories, policy=None):
    """Return a reader in which the memories were saved in order, with their automatic links."""
    reader = PlainReader()
    for memory in memories:
        links = links_of(reader, memory, policy=policy)
        reader.put(memory, vectors=vectors_of(memory), links=links)
    return reader


def semantic(links):
    return [link for link in links if link.link_type is LinkType.ASSOCIATION]


def temporal(links):
    return [link for link in links if link.link_type is LinkType.TEMPORAL]


@st.composite
def stores(draw):
    """Draw memories with random times. The words, topics and mentions are few, so that all kinds of links occur."""
    number = draw(st.integers(0, 8))
    memories = [
        plain_memory(
            f"m{at}",
            " ".join(draw(st.lists(st.sampled_from(WORDS), max_size=6))),
            type=draw(st.sampled_from(MemoryType)),
            topic=draw(st.sampled_from((None, "raid_kestrel", "auth_token", "방어"))),
            mentions=draw(st.sampled_from(((), ("4-19",), ("4-19", "1-52")))),
            at=draw(st.sampled_from((0, 30, 900, 3600, 3601, 86400))) + draw(st.integers(0, 2)),
        )
        for at in range(number + 1)
    ]
    linked = [plain_link(f"m{at}", f"m{at - 1}", "supersedes", type=LinkType.EVOLUTION) for at in range(1, number, 3)]
    return memories, [attrs.evolve(link, created_by="user") for link in linked]


policies = st.builds(
    LinkingPolicy,
    threshold=st.sampled_from((0.0, 0.3, 0.75)),
    max_semantic=st.integers(0, 6),
    max_temporal=st.integers(0, 4),
    temporal_window=st.sampled_from((0.0, 900.0, 3600.0, 1e9)),
    temporal_same_topic=st.booleans(),
    topic_window=st.sampled_from((0.0, 3600.0, 3e9)),
    max_incoming=st.integers(0, 3),
    min_confidence=st.sampled_from((0.0, 0.3, 0.45, 0.9)),
)


@given(store=stores(), policy=policies, covered=st.sets(st.integers(0, 8), max_size=3))
def test_automatic_links_respect_limits(store, policy, covered):
    """No save creates too many, weak or duplicate links, or links to itself, to the future or to covered memories."""
    memories, explicit = store
    covered_ids = {f"m{number}" for number in covered}
    reader, made = PlainReader(), []
    for memory in memories:
        links = links_of(reader, memory, policy=policy, explicit=covered_ids)
        again = links_of(reader, memory, policy=policy, explicit=covered_ids)
        reader.put(memory, vectors=vectors_of(memory), links=links)
        for link in explicit:
            if link.from_id == memory.id:
                reader.put_link(link)
        made += links

        assert again == links
        assert policy.max_semantic >= len(semantic(links))
        assert policy.max_temporal >= len(temporal(links))
        assert len(links) == len(semantic(links)) + len(temporal(links))
        assert MemoryType.CHECKPOINT is not memory.type or [] == semantic(links)
        targets = [link.to_id for link in links]
        assert len(set(targets)) == len(targets)
        for link in links:
            older = reader.get([reader.find(link.to_id)])[0]
            assert memory.id == link.from_id != link.to_id
            assert link.to_id not in covered_ids
            assert memory.created_at >= older.created_at
            assert policy.min_confidence <= link.confidence <= 1
            assert "system" == link.created_by
            assert memory.created_at == link.created_at
            assert (link.link_type is LinkType.ASSOCIATION) == (link.metadata.similarity is not None)
    incoming = [link.to_id for link in made]
    assert all(policy.max_incoming >= incoming.count(target) for target in incoming)


@given(store=stores())
def test_policy_off_creates_no_links(store):
    """The preset ``off`` queries nothing."""
    reader = saved(*store[0], policy=LinkingPolicy.off())

    assert [] == links_of(reader, plain_memory("new", "raid Kestrel"), policy=LinkingPolicy.off())
    assert {} == reader.relationships()


def test_first_memory_has_no_links():
    """An empty store has no candidates."""
    assert [] == links_of(PlainReader(), plain_memory("first", "raid Kestrel"))


def test_second_memory_is_associated_only_on_same_subject():
    """In a store of two memories, being the only candidate is no evidence."""
    reader = saved(plain_memory("old", "The raid on Kestrel failed: fuel ran out at substation 4-19."))
    same = plain_memory("same", "Kestrel raid: fuel ran out, refuel at substation 4-19 before departure.", at=86400)
    other = plain_memory("other", "Access tokens live fifteen minutes and rotate on use.", at=86400)

    assert ["old"] == [link.to_id for link in semantic(links_of(reader, same))]
    assert [] == links_of(reader, other)


def test_closeness_in_time_alone_creates_no_association():
    """A small store must not link them either."""
    reader = saved(plain_memory("old", "Celery with RabbitMQ for background work."))
    links = links_of(reader, plain_memory("new", "Raid Kestrel with fourteen ships at dawn.", at=MINUTE))

    assert [] == semantic(links)
    assert ["old"] == [link.to_id for link in temporal(links)]


def test_unrelated_bulk_saves_have_few_associations():
    """Being saved at the same time is no evidence for the same subject."""
    random = np.random.default_rng(7)
    memories = [
        plain_memory(f"m{at}", " ".join(f"w{word}" for word in random.integers(2_000, size=12))) for at in range(120)
    ]
    reader = saved(*memories)
    links = [link for node in range(120) for link in reader.read_links(node, "out")]

    assert 12 > len(semantic(links))


def test_shared_mention_raises_probability():
    """A rare id in both memories counts like a rare word."""
    others = [plain_memory(f"m{at}", f"note number {at}", at=at * 86400) for at in range(20)]
    old = plain_memory("old", "A battery stands on the night side.", mentions=("2-114",), at=30 * 86400)
    reader = saved(*others, old)
    new = plain_memory("new", "The picket is gone since June.", at=40 * 86400)
    with_it = attrs.evolve(new, mentions=("2-114",))

    assert 0.04 < words_shared(reader, with_it, "old") - words_shared(reader, new, "old")


def words_shared(reader, memory, target):
    """Return the word feature of a link candidate, or 0 if the memory is no candidate."""
    found = collect_link_candidates(
        reader, memory, vectors_of(memory), calibration=EMBEDDER.calibration, shared_dimensions=EMBEDDER.dimensions
    )
    ids = reader.ids(found.nodes)
    return float(found.features.words[ids.index(target)]) if target in ids else 0.0


def test_explicit_links_replace_automatic_ones_and_extend_to_chain():
    """A decision that supersedes another is associated with the latter's predecessor, after new memories."""
    first = plain_memory("first", "Cookie sessions in Postgres.", at=0)
    second = plain_memory("second", "Stateless tokens of a day.", at=10 * 86400)
    twin = plain_memory("twin", "Short tokens with a refresh token that is rotated on use.", at=15 * 86400)
    reader = saved(first, second, twin)
    reader.put_link(plain_link("second", "first", "supersedes", type=LinkType.EVOLUTION, created_by="user"))
    new = plain_memory("third", "Short tokens, refresh token rotated on use.", at=20 * 86400)

    links = links_of(reader, new, explicit=["second"])

    assert ["twin", "first"] == [link.to_id for link in links]


def test_temporal_confidence_decreases_from_0_5_to_0_3():
    """It is 0.3 plus up to 0.2, by the remaining ratio of the hour."""
    reader = saved(
        plain_memory("hour", "a", at=0),
        plain_memory("half", "b", at=30 * MINUTE),
        plain_memory("now", "c", at=60 * MINUTE),
    )
    links = temporal(links_of(reader, plain_memory("new", "d", at=60 * MINUTE)))

    assert ["now", "half", "hour"] == [link.to_id for link in links]
    assert pytest.approx([0.5, 0.4, 0.3]) == [link.confidence for link in links]


def test_strict_policy_limits_temporal_links():
    """It ignores other topics, memories older than a quarter of an hour, and memories without a topic."""
    strict = LinkingPolicy.strict()
    context = MemoryType.CONTEXT
    reader = saved(
        plain_memory("older", "a", topic="raid", type=context, at=0),
        plain_memory("same", "b", topic="raid", type=context, at=20 * MINUTE),
        plain_memory("other", "c", topic="auth", type=context, at=21 * MINUTE),
        policy=LinkingPolicy.off(),
    )

    def linked(topic):
        checkpoint = plain_memory("new", "d", topic=topic, type=MemoryType.CHECKPOINT, at=22 * MINUTE)
        return [link.to_id for link in links_of(reader, checkpoint, policy=strict)]

    assert ["same"] == linked("raid")
    assert [] == linked(None)


def test_strict_policy_associates_recent_decisions_of_topic():
    """Below the threshold, confidence is 0.4 to 0.7 by age, only for decisions on the same subject within a week."""
    policy = attrs.evolve(LinkingPolicy.strict(), threshold=1.0)
    text, week = "Raid Kestrel at dawn, fuel for fourteen ships.", 7 * 86400
    reader = saved(
        *(plain_memory(f"m{at}", f"w{at} x{at} y{at}", topic=f"t{at}", at=at) for at in range(40)),
        plain_memory("old", text, topic="raid", at=week),
        plain_memory("near", text, topic="raid", at=week + 5 * 86400),
        plain_memory("note", text, topic="raid", type=MemoryType.INSIGHT, at=week + 6 * 86400),
        plain_memory("else", "The logo becomes blue.", topic="raid", at=week + 6 * 86400),
        policy=LinkingPolicy.off(),
    )
    links = links_of(reader, plain_memory("new", text, topic="raid", at=week + 8.5 * 86400), policy=policy)

    assert [("near", "same_topic")] == [(link.to_id, link.metadata.original_relationship) for link in links]
    assert pytest.approx([0.4 + 0.3 * 0.5]) == [link.confidence for link in links]


@pytest.mark.parametrize("policy", [LinkingPolicy.default(), LinkingPolicy.strict()], ids=["default", "strict"])
def test_topic_of_all_memories_creates_no_associations(policy):
    """Decisions that share only a topic are not linked, even by the strict preset."""
    random = np.random.default_rng(3)
    memories = [
        plain_memory(
            f"m{at}", " ".join(f"w{word}" for word in random.integers(900, size=12)), topic="general", at=at * 5 * 3600
        )
        for at in range(20)
    ]
    reader = saved(*memories, policy=policy)

    assert [] == semantic([link for node in range(20) for link in reader.read_links(node, "out")])


def test_topic_evidence_is_high_for_rare_topic_with_similar_memories():
    """A frequent topic is almost no evidence, and neither is a rare one with dissimilar memories."""
    rare = ["raid"] * 3 + [f"t{at}" for at in range(37)]
    text = "Raid Kestrel at dawn, fuel for fourteen ships."

    def told(topics, content):
        texts = [content if at < 3 else f"w{at} x{at} y{at}" for at in range(40)]
        reader = saved(
            *(plain_memory(f"m{at}", texts[at], topic=topics[at], at=at * 86400) for at in range(40)),
            policy=LinkingPolicy.off(),
        )
        new = plain_memory("new", text, topic="raid", at=41 * 86400)
        found = collect_link_candidates(
            reader, new, vectors_of(new), calibration=EMBEDDER.calibration, shared_dimensions=EMBEDDER.dimensions
        )
        return found.features.topic[reader.ids(found.nodes).index("m0")]

    likely = told(rare, text)

    assert 0.3 < likely
    assert 0.05 > told(["raid"] * 40, text)
    assert likely / 2 > told(rare, "The logo becomes blue.")


def test_topic_words_do_not_count_as_text_words():
    """A common topic is a feature of its own, and must not count twice."""
    others = [plain_memory(f"m{at}", f"note number {at}", at=at) for at in range(20)]
    reader = saved(*others, plain_memory("old", "The picket is gone.", topic="raid_kestrel", at=50))

    assert 0 == words_shared(reader, plain_memory("new", "Fuel ran out.", topic="raid_kestrel", at=90), "old")


@pytest.mark.once
def test_links_of_identical_memories_respect_limits():
    """Each links to the newest memories with capacity, and none exceeds its maximum of incoming links."""
    reader = PlainReader()
    memory = plain_memory("m0", "The same words again and again.")
    vectors = vectors_of(memory)
    for at in range(2_000):
        reader.put(attrs.evolve(memory, id=f"m{at}"), vectors=vectors)
    for link in range(LinkingPolicy.default().max_incoming):
        reader.put_link(plain_link(f"m{link}", "m1999", "related_to", link_id=f"l{link}"))
    policy = LinkingPolicy(threshold=0.0, min_confidence=0.0)
    links = links_of(reader, attrs.evolve(memory, id="new"), vectors=vectors, policy=policy)

    assert 5 == len(semantic(links))
    assert 3 == len(temporal(links))
    assert "m1999" not in {link.to_id for link in links}


def test_explicit_links_do_not_count_against_max_incoming():
    """Only automatic links count."""
    reader = saved(
        *(plain_memory(f"m{at}", "Raid Kestrel at dawn.", at=at) for at in range(3)), policy=LinkingPolicy.off()
    )
    reader.put_link(plain_link("m1", "m0", "depends_on", created_by="user"))
    policy = LinkingPolicy(max_incoming=1)
    new = plain_memory("new", "Raid Kestrel at dawn.", at=5)

    assert {"m0", "m1", "m2"} == {link.to_id for link in links_of(reader, new, policy=policy)}


def test_stored_memory_is_not_linked_to_itself():
    """Linking a stored memory again excludes it from its candidates."""
    old, new = plain_memory("old", "raid Kestrel"), plain_memory("new", "raid Kestrel", at=60)
    reader = saved(old, new)

    assert ["old"] == [link.to_id for link in links_of(reader, new)]


def test_memory_with_any_number_of_vectors_is_linked():
    """The best vector counts, and a memory may have none."""
    old = plain_memory("old", "raid Kestrel at dawn with fourteen ships")
    reader = saved(old)
    new = plain_memory("new", "raid Kestrel at dawn with ten ships", at=86400 * 3)
    noise = np.zeros((6, 64), np.float32)
    noise[:, 0] = 1
    many = np.concatenate([noise[:2], vectors_of(old), noise])

    (link,) = links_of(reader, new, vectors=many)
    none = links_of(reader, new, vectors=np.zeros((0, 64), np.float32))

    assert pytest.approx(1.0, abs=1e-5) == link.metadata.similarity
    assert {"old"} >= {link.to_id for link in none}


numbers = st.floats(-8, 8)


@given(values=st.lists(numbers, min_size=len(FEATURES), max_size=len(FEATURES)), more=st.floats(0, 8))
def test_probability_is_monotonic_in_features(values, more):
    """Every feature raises the probability, except different topics."""
    table = np.tile(np.array(values), (len(FEATURES) + 1, 1))
    table[1:] += more * np.eye(len(FEATURES))
    evidence = LinkFeatures(**{name: table[:, at] for at, name in enumerate(FEATURES)})
    before, *after = same_subject_probabilities(evidence)

    for name, probable in zip(FEATURES, after, strict=True):
        assert 0 <= probable <= 1
        signed = -1 if name == "topics_differ" else 1
        assert -1e-9 <= signed * (probable - before)


def test_weights_match_features():
    """There is one weight per feature, and without evidence the probability is low."""
    nothing = LinkFeatures(**dict.fromkeys(FEATURES, np.zeros(1)))

    assert len(FEATURES) == len(WEIGHTS)
    assert 0.1 > same_subject_probabilities(nothing)[0]
    assert 0 > BIAS


def test_nearness_decreases_within_the_hour():
    """The last save counts fully for a quarter of an hour, the one before it half, less in a small store."""
    start = datetime(2026, 5, 1, tzinfo=UTC)

    def near(minutes, *, older):
        reader = saved(
            *(plain_memory(f"m{at}", "a", at=start - timedelta(days=9)) for at in range(older)),
            plain_memory("one", "a", at=start),
            plain_memory("two", "b", at=start + timedelta(minutes=5)),
            policy=LinkingPolicy.off(),
        )
        new = plain_memory("new", "c", at=start + timedelta(minutes=minutes))
        return collect_link_candidates(
            reader, new, vectors_of(new), calibration=EMBEDDER.calibration, shared_dimensions=EMBEDDER.dimensions
        ).features.nearness[-2:]

    assert pytest.approx([0.1, 0.2]) == near(10, older=0)
    assert pytest.approx([0.4, 0.8]) == near(10, older=30)
    assert pytest.approx([0.4 * np.exp(-2), 0.8 * np.exp(-1 - 2 / 3)]) == near(45, older=30)


STRANGERS = (
    "Celery works through background jobs.",
    "로고는 파란색이다.",
    "Raid Kestrel with fourteen ships.",
    "The logo is blue.",
)


@given(
    texts=st.permutations(STRANGERS),
    minutes=st.floats(0, 60),
    topic=st.sampled_from((None, "general")),
    cosine=st.floats(-0.2, 0.25),
)
def test_small_store_links_no_unrelated_memories(texts, minutes, topic, cosine):
    """Among two or three memories, being the nearest, the last or the only one is no evidence."""
    reader = PlainReader()
    for at, text in enumerate(texts[:3]):
        memory = plain_memory(f"m{at}", text, topic=topic, at=at * minutes * MINUTE)
        vector = np.eye(4, dtype=np.float32)[at : at + 1] * np.sqrt(1 - abs(cosine))
        vector[:, 3] = np.sqrt(abs(cosine)) * (-1 if cosine < 0 and at else 1)
        found = collect_link_candidates(
            reader, memory, vector, calibration=EMBEDDER.calibration, shared_dimensions=EMBEDDER.dimensions
        )
        reader.put(memory, vectors=vector)

        assert 0.3 > max(same_subject_probabilities(found.features), default=0.0)


@given(copies=st.integers(1, 4), others=st.integers(0, 30))
def test_equal_text_is_associated_in_any_store(copies, others):
    """The number of other memories does not matter."""
    text = "Raid Kestrel at dawn with fourteen ships and fuel for two days."
    reader = saved(
        *(plain_memory(f"m{at}", f"w{at} x{at} y{at}", at=at * 7200) for at in range(others)),
        *(plain_memory(f"c{at}", text, at=(others + at) * 7200) for at in range(copies)),
        policy=LinkingPolicy.off(),
    )
    links = links_of(reader, plain_memory("new", text, at=(others + copies) * 7200))

    assert {f"c{at}" for at in range(copies)} == {link.to_id for link in semantic(links)}


def test_likeness_is_relative_to_cosines_of_store():
    """A cosine counts little if all memories of the store are similar, and much otherwise."""

    def likeness(usual):
        reader = PlainReader()
        for at in range(40):
            vector = np.zeros((1, 64), np.float32)
            vector[0, at], vector[0, 63] = np.sqrt(1 - usual), np.sqrt(usual)
            reader.put(plain_memory(f"m{at}", f"w{at}", at=at), vectors=vector)
        new = np.zeros((1, 64), np.float32)
        # The new vector is similar to the first vector, and shares component 63 with all vectors.
        new[0, 0], new[0, 50], new[0, 63] = np.sqrt(0.5), np.sqrt(0.5 - usual / 2), np.sqrt(usual / 2)
        found = collect_link_candidates(
            reader,
            plain_memory("new", "n", at=99),
            new,
            calibration=EMBEDDER.calibration,
            shared_dimensions=EMBEDDER.dimensions,
        )
        return found.cosines[0], found.features.cosine_spreads[0] - np.median(found.features.cosine_spreads)

    apart, alike = likeness(0.0), likeness(0.5)

    assert alike[0] > apart[0]
    assert alike[1] < apart[1]


@given(rests=st.lists(st.booleans(), min_size=2, max_size=6))
def test_cosines_of_vectors_with_and_without_rest_use_shared_dimensions(rests):
    """The candidates' cosines and the baseline of the store compare such vectors by the shared dimensions."""
    vectors = np.random.default_rng(len(rests)).normal(size=(len(rests), 6)).astype(np.float32)
    vectors[:, 4:] *= np.array(rests)[:, np.newaxis]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    reader = PlainReader()
    for number, vector in enumerate(vectors):
        reader.put(plain_memory(f"m{number}", f"word{number}", at=60 * number), vectors=vector[np.newaxis])
    table = cosine_table(vectors, vectors, 4)
    usual = SimilarityBaseline.from_reader(reader, EMBEDDER.calibration, 4)

    assert usual.sum_cosines(vectors, shared_norms(vectors, usual.shared_dimensions)) == pytest.approx(
        table.sum(axis=1), abs=1e-5
    )
    pairs = table[~np.eye(len(rests), dtype=bool)]
    assert usual.mean_cosine == pytest.approx(float(usual.mean(pairs.mean())), abs=1e-5)
    new = plain_memory("new", "word", at=60 * len(rests))
    found = collect_link_candidates(reader, new, vectors[:1], calibration=EMBEDDER.calibration, shared_dimensions=4)
    assert found.cosines == pytest.approx(table[0], abs=1e-5)
