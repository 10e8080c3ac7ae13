"""Stateful comparison of each engine with an engine on plain dicts."""

from __future__ import annotations

import asyncio
import itertools

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from memory_helpers import alike, plain_link, plain_memory

from mama_structs.memory.engines.postgres.engine import PostgresEngines
from mama_structs.memory.types.engine import EmbedderRecord, EngineFilter, NewMemory, select_names, to_nfc
from mama_structs.memory.types.model import (
    METADATA_TYPES,
    LinkType,
    MemoryType,
    Outcome,
    StoredEvidence,
    short_path,
    text_digest,
    to_milliseconds,
)
from mama_structs.session.backend import make_local_engines
from mama_structs.settings import MemorySettings
from mama_structs.storage.sqlite_store import SqliteStorage
from mama_structs.testing.plain_engine import PlainEngine

RECORD = EmbedderRecord("drawn", "drawn", 3)
OTHER_RECORD = EmbedderRecord("other", "other", 2)
NAMES = itertools.count()
TEXTS = st.sampled_from(
    ["raid the yard", "shield yard, shield!", "백업을 했다", "x", "the raid of m_1-2 was 30 % dearer"]
)
TOPICS = st.none() | st.sampled_from(["auth", "raids_north", "d\u00e9fense", "de\u0301fense", "a\\b"])
VECTORS = st.sampled_from([(1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 2, 3), (-1, 0, 1), (3, 2, 1)])
TIMES = st.integers(0, 6)
PICKS = st.integers(0, 100)
KEPT = ["the text of x", "근거\r\n"]
# Values that a wrong comparison would confuse: compositions, long texts, escapes, and numbers with equal values.
LONG = "-" * 150 + "\\" * 60
TAGS = ["raid", "caf\u00e9", "cafe\u0301", "a\\0b", "a\0", LONG, f"{LONG}x"]
SOURCES = ["log.txt", "caf\u00e9", "cafe\u0301", LONG]
EXTRA = {"n": [0, 1, 1.0, True, -0.0, 0.5, 2**53, 2**53 + 1, "1", None], "of": [[1], [1.0, {"b": 1, "a": LONG}], {}]}
EXTRAS = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in EXTRA.items()})
LABELS, KEYS = ["a", "b", "a/b"], ["k", "a", "\u00e9", "k" * 300]
PLACES = st.none() | st.tuples(
    TIMES.map(lambda at: to_milliseconds(plain_memory("x", at=at).created_at)) | st.sampled_from([-(2**70), 2**70]),
    st.integers(-1, 12) | st.sampled_from([2**62, 2**70]),
)


def unit(numbers):
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


@attrs.define
class Refused(Exception):
    """Raised by a write plan, to make the engine roll it back."""


def filters():
    moments = st.none() | TIMES.map(lambda at: plain_memory("x", at=at).created_at)
    return (
        st.none()
        | st.builds(
            EngineFilter,
            types=st.none() | st.frozensets(st.sampled_from(MemoryType), min_size=1),
            topic=TOPICS,
            since=moments,
            until=moments,
            mentions=st.none() | st.frozensets(st.sampled_from(["2-1", "1-11", "a\\0b"]), min_size=1),
            valid_at=moments,
            origins=st.none() | st.frozensets(st.sampled_from(["user", "model", "tool"]), min_size=1),
            trust=st.none() | st.sampled_from(["user", "model", "outside"]),
            **CONDITION_STRATEGIES,
        )
        | st.sampled_from(sorted(CONDITION_STRATEGIES)).flatmap(
            lambda name: st.builds(EngineFilter, **{name: CONDITION_STRATEGIES[name]})
        )
    )


CONDITION_STRATEGIES = {
    "tags": st.none() | st.lists(st.sampled_from(TAGS), min_size=1, max_size=2).map(tuple),
    "source": st.none() | st.sampled_from(SOURCES),
    "outcome": st.none() | st.sampled_from(Outcome),
    "created_by": st.none() | st.sampled_from(["user", "llm"]),
    "extra": st.none() | EXTRAS,
}
"""Conditions that engines evaluate by filter names. One of them alone matches more often than a whole filter."""


@st.composite
def drawn_metadata(draw, kind):
    """Return random metadata of a type."""
    given = {"created_by": draw(st.sampled_from(["user", "llm"])), "extra": draw(EXTRAS)}
    if kind is MemoryType.RECORD:
        given["labels"] = tuple(draw(st.lists(st.sampled_from(LABELS), max_size=2)))
        given["key"] = draw(st.sampled_from(KEYS))
    else:
        given["tags"] = tuple(draw(st.lists(st.sampled_from(TAGS), max_size=2)))
        given["source"] = draw(st.none() | st.sampled_from(SOURCES))
    if kind is MemoryType.DECISION:
        given["outcome"] = draw(st.none() | st.sampled_from(Outcome))
    return METADATA_TYPES[kind](**given)


@st.composite
def new_memories(draw, memory_id):
    kind = draw(st.sampled_from(MemoryType))
    texts = draw(st.lists(st.sampled_from(KEPT), max_size=2))
    memory = plain_memory(
        memory_id,
        draw(TEXTS),
        type=kind,
        topic=draw(TOPICS),
        mentions=draw(st.lists(st.sampled_from(["2-1", "1-11", "a\\0b"]), unique=True)),
        evidence=[str(StoredEvidence("ref:x@1", text_digest(text))) for text in texts],
        at=draw(TIMES),
    )
    ends = draw(st.none() | TIMES)
    memory = attrs.evolve(
        memory,
        origin=draw(st.sampled_from(["user", "model", "tool"])),
        trust=draw(st.sampled_from(["user", "outside"])),
        metadata=draw(drawn_metadata(kind)),
        valid_until=None if ends is None else plain_memory("x", at=ends).created_at,
    )
    vectors = np.stack([unit(one) for one in draw(st.lists(VECTORS, min_size=1, max_size=3))])
    return NewMemory(memory=memory, vectors=vectors, contents={text_digest(text): text for text in texts})


class Engines(RuleBasedStateMachine):
    """Stateful test that runs the same operations on an engine and on an engine with plain dicts."""

    opened = None

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.plain = PlainEngine(f"n{next(NAMES)}", embedder=RECORD)
        self.engine = self.runner.run(self.opened(self.plain.namespace))
        self.number = 0

    def ids(self):
        return [one.memory.id for one in self.plain.memories.scan()]

    def links(self):
        return sorted({link.id for one in self.plain.memories.scan() for link in one.links})

    def write(self, plan):
        """Run the same write on both engines and compare the results."""
        got = []
        for engine in (self.plain, self.engine):
            try:
                got.append(self.runner.run(engine.write(plan)))
            except (Refused, KeyError, ValueError) as error:
                got.append(type(error))
        plain, other = got
        assert plain == other

    def new(self, data):
        self.number += 1
        memory = data.draw(new_memories(f"m_{self.number}"))
        return attrs.evolve(memory, memory=attrs.evolve(memory.memory, namespace=self.plain.namespace))

    def link(self, data, source, targets, link_id=None):
        self.number += 1
        target = data.draw(st.sampled_from(targets))
        return plain_link(
            source,
            target,
            data.draw(st.sampled_from(["refines", "a\\word"])),
            link_id=link_id or f"l{self.number}",
            type=data.draw(st.sampled_from(LinkType)),
            confidence=data.draw(st.sampled_from([0.3, 0.7, 1.0])),
            created_by=data.draw(st.sampled_from(["system", "user"])),
            at=data.draw(TIMES),
        )

    @rule(data=st.data(), count=st.integers(1, 3), raises=st.integers(0, 9), looks=st.booleans())
    def put_new(self, data, count, raises, looks):
        """
        Save new memories with links to older ones.

        Add further links when the nodes of all new memories are known.
        """
        before = self.ids()
        new = [self.new(data) for _ in range(count)]
        if before:
            new = [
                attrs.evolve(one, links=[self.link(data, one.memory.id, before) for _ in range(count - 1)])
                for one in new
            ]
        more = [[self.link(data, one.memory.id, before)] if before else [] for one in new]
        seen = []

        def links_of(writer, nodes):
            if looks:
                seen.append(early_answers(writer, writer.ids(nodes)))
            if raises == 0:
                raise Refused
            return more

        self.write(lambda writer: writer.ids(writer.put_new(new, lambda nodes: links_of(writer, nodes))))
        if looks:
            same(*seen)

    @precondition(lambda self: self.ids())
    @rule(data=st.data(), pick=PICKS, with_vectors=st.booleans(), then=st.booleans())
    def put_again(self, data, pick, with_vectors, then):
        """Save another version of a memory, and optionally read it in the same plan."""
        ids = self.ids()
        old = self.plain.memories.get([self.plain.memories.find(ids[pick % len(ids)])])[0]
        new = self.new(data)
        metadata = data.draw(st.just(old.metadata) | drawn_metadata(old.type))
        memory = attrs.evolve(new.memory, id=old.id, type=old.type, metadata=metadata, created_at=old.created_at)
        vectors = new.vectors if with_vectors else None
        others = [one for one in ids if one != old.id]
        links = [self.link(data, old.id, others)] if others and then else []
        seen = []

        def plan(writer):
            node = writer.put(memory, vectors=vectors, links=links, contents=new.contents)
            if then:
                named = [writer.ids(writer.window(EngineFilter(**one))) for one in conditions_of(memory)]
                seen.append(answers(writer, [memory.id]) | {"named": named})
            return writer.ids([node])

        self.write(plan)
        if then:
            same(*seen)

    @precondition(lambda self: self.ids())
    @rule(data=st.data(), picks=st.lists(PICKS, min_size=1, max_size=2), raises=st.integers(0, 3))
    def change_metadata(self, data, picks, raises):
        """Change only the metadata of memories, whose filter names the same plan has already read."""
        ids = self.ids()
        nodes = [self.plain.memories.find(ids[pick % len(ids)]) for pick in picks]
        changed = [
            attrs.evolve(one, metadata=data.draw(drawn_metadata(one.type))) for one in self.plain.memories.get(nodes)
        ]
        seen = []

        def plan(writer):
            found = [named(writer)]
            for memory in changed:
                writer.put(memory)
                found.append((named(writer), writer.ids(writer.window(limit=3))))
            seen.append(found)
            if raises == 0:
                raise Refused

        self.write(plan)
        same(*seen)

    @precondition(lambda self: len(self.ids()) > 1)
    @rule(data=st.data(), pick=PICKS, replaced=st.none() | PICKS)
    def put_link(self, data, pick, replaced):
        """Add a link, or replace an existing one."""
        ids, links = self.ids(), self.links()
        source = ids[pick % len(ids)]
        link_id = None if replaced is None or not links else links[replaced % len(links)]
        if link_id is not None:
            # The local engine stores a link with its source memory, so a replacement must keep the source.
            source = self.plain.memories.find_links([link_id])[0].from_id
        link = self.link(data, source, [one for one in ids if one != source], link_id)
        self.write(lambda writer: writer.put_link(link))

    @precondition(lambda self: self.ids())
    @rule(pick=PICKS, then=st.booleans())
    def delete(self, pick, then):
        """Delete a memory and its links."""
        ids = self.ids()
        gone = ids[pick % len(ids)]

        def plan(writer):
            links = writer.delete(gone)
            left = writer.window() if then else np.zeros(0, np.int64)
            return links, writer.find(gone), writer.count(), writer.ids(left)

        self.write(plan)

    @precondition(lambda self: self.links())
    @rule(picks=st.lists(PICKS, max_size=3))
    def delete_links(self, picks):
        """Delete some links."""
        links = self.links()
        self.write(lambda writer: writer.delete_links([*(links[pick % len(links)] for pick in picks), "none"]))

    @rule(name=st.sampled_from(["a", "a/b", "b\\0"]), text=st.none() | st.sampled_from(["1", "\0"]))
    def note(self, name, text):
        """Set or delete a note."""
        self.write(lambda writer: writer.set_note(name, text))

    @precondition(lambda self: self.ids())
    @rule(picks=st.lists(PICKS, min_size=1, max_size=2))
    def put_vectors(self, picks):
        """Store vectors of another embedder, which searches must ignore."""
        ids = self.ids()
        vectors = {ids[pick % len(ids)]: np.array([[1, 0]], np.float32) for pick in picks}
        self.write(lambda writer: writer.put_vectors(OTHER_RECORD, {**vectors, "none": np.array([[1, 0]], np.float32)}))

    @rule(where=filters(), text=TEXTS, vector=VECTORS, limit=st.none() | st.integers(0, 5), after=PLACES)
    def search(self, where, text, vector, limit, after):
        """Assert that both engines find the same memories with the same scores."""

        def plan(reader):
            most = 100 if limit is None else limit
            return (
                reader.ids(reader.window(where, limit=limit)),
                reader.ids(reader.window(where, newest_first=False, limit=limit)),
                reader.ids(reader.window(where, after=after, limit=limit)),
                reader.ids(reader.window(where, newest_first=False, after=after, limit=limit)),
                reader.count(where),
                found(reader, reader.nearest(unit(vector), most, where), most),
                found(reader, reader.nearest_many(unit(vector)[np.newaxis], most, where)[0], most),
                found(reader, reader.words(text, most, where), most),
            )

        same(*(self.runner.run(engine.read(plan)) for engine in (self.plain, self.engine)))

    @precondition(lambda self: self.ids())
    @rule(where=filters(), newest_first=st.booleans(), limit=st.integers(1, 3), is_prefetched=st.booleans())
    def page(self, where, newest_first, limit, is_prefetched):
        """Assert that pages contain each matching memory once, in order, including uncommitted memories."""
        new = plain_memory(f"m_{self.number}_unsent", "raid", at=3, tags=["raid"])
        new = NewMemory(memory=attrs.evolve(new, namespace=self.plain.namespace), vectors=unit((1, 0, 0))[np.newaxis])
        every = []

        def plan(writer):
            writer.put_new([new], lambda _nodes: [()])
            pages, after = [], None
            while not pages or len(pages[-1]) == limit:
                asked = {"newest_first": newest_first, "after": after, "limit": limit}
                if is_prefetched:
                    writer.expect(lambda ahead: ahead.window(where, **asked))  # noqa: B023 - called here
                pages.append(writer.window(where, **asked).tolist())
                if pages[-1]:
                    last = pages[-1][-1]
                    after = int(writer.facts(np.array([last])).created[0]), last
            every.append([writer.ids(one) for one in pages])
            assert [*itertools.chain(*pages)] == writer.window(where, newest_first=newest_first).tolist()
            raise Refused

        self.write(plan)
        same(*every)

    @invariant()
    def they_agree(self):
        """Assert that both engines give the same answers to all queries."""
        ids = self.ids()
        same(
            *(self.runner.run(engine.read(lambda reader: answers(reader, ids))) for engine in (self.plain, self.engine))
        )
        plain, other = (engine.figures() for engine in (self.plain, self.engine))
        if self.plain.memories.change:
            assert {name: plain[name] for name in ("memories", "types", "links")} == {
                name: other[name] for name in ("memories", "types", "links")
            }

    def teardown(self):
        same(*(self.runner.run(engine.read(named)) for engine in (self.plain, self.engine)))
        assert [] == [one for one in self.runner.run(self.engine.check()) if one.severity == "error"]
        self.runner.close()


@attrs.frozen(eq=False)
class RankedIds:
    """
    Ids with their scores, best first.

    A comparison ignores the order of scores that differ only by rounding, also at the limit.
    """

    ids: list[str]
    scores: list[float]
    is_cut: bool
    __hash__ = None

    def __eq__(self, other):
        if self.ids == other.ids or not alike(self.scores, other.scores):
            return alike(self.scores, other.scores)
        ends = [at for at in range(1, len(self.ids)) if self.scores[at - 1] - self.scores[at] > 1e-5]
        for begin, end in itertools.pairwise([0, *ends, len(self.ids)]):
            differ = any(len(set(scores[begin:end])) > 1 for scores in (self.scores, other.scores))
            is_last = self.is_cut and end == len(self.ids)
            ids = [one[begin:end] for one in (self.ids, other.ids)]
            if ids[0] != ids[1] and not (differ and (is_last or sorted(ids[0]) == sorted(ids[1]))):
                return False
        return True


def named(reader):
    """Return the memories that each condition on a single value finds, in one transaction and from shared caches."""
    asked = [EngineFilter(**{name: value}) for name, values in CONDITIONS.items() for value in values]
    reader.expect(lambda ahead: [(ahead.window(one), ahead.count(one)) for one in asked])
    return [(reader.ids(reader.window(one)), reader.count(one)) for one in asked]


CONDITIONS = {
    "tags": [(tag,) for tag in TAGS],
    "source": SOURCES,
    "outcome": Outcome,
    "created_by": ["user", "llm"],
    "extra": [{key: value} for key, values in EXTRA.items() for value in values],
}


def conditions_of(memory):
    """Return the arguments of a filter for each value that a memory can be filtered by."""
    own = memory.metadata
    yield from ({"tags": (tag,)} for tag in memory.tags)
    yield from ({"extra": {key: value}} for key, value in own.extra.items())
    yield {"created_by": own.created_by}
    yield {"source": memory.source or "none"}
    yield from ({"outcome": one} for one in Outcome)


def found(reader, matches, most):
    """Convert matches to a form that can be compared between engines."""
    return RankedIds(reader.ids(matches.nodes), matches.scores.tolist(), len(matches.nodes) == most)


def answers(reader, ids):
    """Return the answers of a reader to all queries, about some memories and about the whole namespace."""
    nodes = reader.find_many(ids)
    return early_answers(reader, ids) | {
        "memories": reader.get(nodes),
        "all links": reader.links_of_many(nodes),
        "in": reader.links_of_many(nodes, "in"),
        "kept": reader.known_contents([text_digest(text) for text in KEPT]),
        "lacking": reader.without_vectors(OTHER_RECORD),
        "notes": (reader.notes(), reader.notes("a")),
        "names": [reader.note_names(prefix, **page) for prefix in ("", "a") for page in name_pages("a", "aa")],
        "paths": [record_paths(reader, prefix) for prefix in ("", "=", "a/", "a/=")],
        "scan": [
            (one.memory, np.round(one.vectors, 6).tolist(), sorted(link.id for link in one.links))
            for one in reader.scan(limit=3)
        ],
    }


def name_pages(*ends):
    """Return arguments of small pages, from the start and after each of *ends*."""
    pages = itertools.product((None, *ends), (1, 2), (False, True))
    return [{"after": after, "limit": limit, "last_first": last_first} for after, limit, last_first in pages]


def record_paths(reader, prefix):
    """Return the paths of the records that exist. Assert that pages agree with the list of all paths."""
    every = reader.record_paths(prefix)
    for page in name_pages("b", *every[1:2]):
        assert select_names(every, **page) == reader.record_paths(prefix, **page)
    records = reader.get(reader.window(EngineFilter(types=frozenset({MemoryType.RECORD}))))
    own = {short_path(one.metadata.labels, one.metadata.key) for one in records}
    return [path for path in dict.fromkeys(every) if path in own]


def early_answers(reader, ids):
    """Return the answers of a reader to the queries that also cover uncommitted memories."""
    nodes = np.array(reader.find_many(ids), np.int64)
    table = reader.links(nodes)
    evolution = reader.links(nodes, "in", [LinkType.EVOLUTION])
    facts = reader.facts(nodes)
    topics = reader.topics(nodes)
    vectors, counts = reader.pieces(nodes)
    before, after = reader.find_temporal_neighbours(nodes, 1500)
    ends = reader.ids(table.sources), reader.ids(table.targets)
    some = EngineFilter(types=frozenset({MemoryType.DECISION, MemoryType.INSIGHT}))
    return {
        "find": (reader.ids(nodes), reader.find("none")),
        "count": reader.count(),
        "topics": [None if topic is None else to_nfc(topic) for topic in topics],
        "numbers": [facts.topics.tolist().index(number) for number in facts.topics.tolist() if number >= 0],
        "facts": [column.tolist() for column in (facts.created, facts.types, *attrs.astuple(facts, recurse=False)[3:])],
        "pieces": (vectors.tolist() if len(vectors) else [], counts.tolist()),
        "links": sorted(zip(*ends, *(column.tolist() for column in table.columns[2:]), strict=True)),
        "evolution": sorted(zip(*(reader.ids(ends) for ends in (evolution.sources, evolution.targets)), strict=True)),
        "relationships": reader.relationships(),
        "links by word": [len(reader.links(nodes, words={word})) for word in sorted(reader.relationships())],
        "beside": [[reader.ids([node]) if node >= 0 else None for node in side.tolist()] for side in (before, after)],
        "similar": reader.similarities(unit((1, 2, 0)), nodes).tolist(),
        "scores": reader.word_scores({"raid": 1.0, "shield": 0.5, "none": 2.0}, nodes).tolist(),
        "rarity": sorted(reader.rarity("raid yard none").items()),
        "lengths": reader.lengths(nodes).tolist(),
        "alike": [reader.ids(one) for one in reader.duplicates([*facts.wordings[:3].tolist(), 0])],
        "sample": reader.sample().tolist(),
        "newest": reader.ids(reader.window(limit=3)),
        "nearest": found(reader, reader.nearest(unit((1, 2, 0)), 4), 4),
        "words": found(reader, reader.words("raid shield", 4, some), 4),
    }


def same(plain, other):
    """Assert that the answers of two engines are equal. The error names the first query whose answers differ."""
    if isinstance(plain, dict):
        for name, value in plain.items():
            assert alike(value, other[name]), (name, value, other[name])
    else:
        assert alike(plain, other), (plain, other)


@pytest.fixture(params=["embedded", "postgres"])
def engines(request, tmp_path):
    """The local engines, or the engines on a server."""
    if request.param == "postgres":
        yield PostgresEngines(request.getfixturevalue("memory_server"))
        return
    storage = SqliteStorage.open(tmp_path / "journal")
    yield make_local_engines(storage, views=None)
    asyncio.run(storage.close())


def test_engine_matches_plain_dicts(engines):
    """After any writes, committed or rolled back, every query has the same answer as the engine on plain dicts."""

    class Machine(Engines):
        async def opened(self, namespace):
            # Every fourth namespace has no exact search, so it uses an index as soon as possible.
            exact_up_to = MemorySettings().exact_up_to * min(int(namespace[1:]) % 4, 1)
            return await engines.open(namespace, RECORD, MemorySettings(exact_up_to=exact_up_to))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(10, settings.default.max_examples // 5),
            stateful_step_count=12,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            deadline=None,
        ),
    )
