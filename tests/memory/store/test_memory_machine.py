"""
Stateful test of memories against plain dicts.

It has several processes and namespaces, and injects failures.
"""

# Allow many positional parameters, because Hypothesis passes drawn values by name.
# ruff: noqa: PLR0917, RUF028

from __future__ import annotations

import asyncio
import collections
import math
import shutil
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from memory_helpers import END_CONNECTIONS, OpenedDirectory, is_on_server
from postgres_helpers import administer

from mama_structs import admin
from mama_structs.errors import InvalidArgument, LinkNotFound, MemoryNotFound, StoreError
from mama_structs.memory.engines.local import engine as embedded_engine
from mama_structs.memory.engines.local import plans
from mama_structs.memory.engines.local.plans import JournalWriter
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.save.save_plan import is_automatic
from mama_structs.memory.types.model import (
    ORIGINS,
    DecisionMetadata,
    LinkType,
    MemoryType,
    Outcome,
    OutcomeChange,
    StoredEvidence,
    evidence_digests,
    from_milliseconds,
    is_outcome_reason,
    text_digest,
    to_milliseconds,
)
from mama_structs.memory.types.relationships import look_up_type, normalize_relationship
from mama_structs.memory.upkeep.maintenance import is_prunable
from mama_structs.settings import MemorySettings
from mama_structs.testing.fakes import FakeClock
from mama_structs.testing.plain_engine import PlainReader
from mama_structs.testing.session_faults import inject_transaction_faults

NAMESPACES = st.sampled_from(["default", "default", "default", "other"])
ACTORS = st.integers(0, 1)
PICKS = st.integers(0, 1000)
TOPICS = st.sampled_from(["auth", "raids", "마이그레이션"])
TEXTS = st.sampled_from(
    [
        "use JWT for the login",
        "keep sessions in Postgres",
        "shield planet 2-1 first",
        "로그인은 토큰으로",
        "x",
        "use JWT",
    ]
)
# These words are mapped to link types by an exact table, so the types do not depend on an embedder.
WORDS = st.sampled_from(["refines", "contradicts", "Refines", "implements", "supersedes"])
SHARES = st.sampled_from([0.0, 0.15, 0.5, 0.8, 1.0])
TIMES = st.sampled_from([0.001, 60.0, 3500.0, 86400.0, 31 * 86400.0, -3600.0, -10 * 86400.0])
CREATORS = st.sampled_from(["user", "llm"])
# The first two handles have the same text, the third has a long text, and the last one has an empty text.
HANDLES = {
    "ref:x": ("ref:x@1", "the text\r\nof x, 근거"),
    "ref:y": ("ref:y@2", "the text\r\nof x, 근거"),
    "fd:1": ("fd:1", "long " * 20_000),
    "ref:empty": ("ref:empty@1", ""),
}
CONTENTS = {text_digest(text): text for _, text in HANDLES.values()}
EVIDENCE = st.lists(st.sampled_from([*HANDLES, "https://example.org/ref:x"]), max_size=3)
MAX_RESULTS = 10_000


def kept(evidence):
    """Return evidence items in their stored form."""
    return tuple(
        str(StoredEvidence(HANDLES[item][0], text_digest(HANDLES[item][1]))) if item in HANDLES else item
        for item in evidence
    )


def contents_of(reader):
    """Return all evidence texts that the engine stores, by their hashes."""
    if is_on_server():
        rows = reader.fetch_rows("SELECT digest, text FROM texts WHERE namespace = $1")
        return {row["digest"]: row["text"].decode() for row in rows}
    prefix = reader._row_keys.contents
    return {key.removeprefix(prefix): value.decode() for key, value in reader._rows.items(prefix)}


class Refused(Exception):
    """Raised by a write plan, to make the engine roll it back."""


@attrs.define(eq=False)
class Model:
    """The expected content of a namespace."""

    plain: PlainReader = attrs.field(factory=PlainReader)
    maintained: datetime = attrs.field(factory=lambda: datetime.fromtimestamp(0, UTC))

    def ids(self):
        return [one.memory.id for one in self.plain.scan()]

    def get(self, memory_id):
        return self.plain.get([self.plain.find(memory_id)])[0]

    def links_of(self, memory_id):
        return self.plain.read_links(self.plain.find(memory_id))

    def delete(self, memory_id):
        """Delete a memory and the contexts with the reasons of its outcomes."""
        ends = [
            link.from_id for link in self.links_of(memory_id) if link.metadata.original_relationship == "outcome_of"
        ]
        for reason in [end for end in ends if end != memory_id and is_outcome_reason(self.get(end))]:
            self.plain.delete(reason)
        self.plain.delete(memory_id)

    def pick(self, number, types=None):
        ids = [memory_id for memory_id in self.ids() if types is None or self.get(memory_id).type in types]
        return ids[number % len(ids)] if ids else None

    def link_ids(self):
        return sorted({link.id for memory_id in self.ids() for link in self.links_of(memory_id)})

    def trust_no_more(self, link):
        """Limit the trust of the memories that are based on the target of a link, recursively."""
        resting = {LinkType.EVOLUTION, LinkType.IMPLEMENTATION}
        front = [link] if link.link_type in resting else []
        while front:
            one = front.pop()
            memory, trust = self.get(one.from_id), self.get(one.to_id).trust
            if ORIGINS.index(memory.trust) < ORIGINS.index(trust):
                self.plain.put(attrs.evolve(memory, trust=trust))
                front += [
                    link for link in self.links_of(memory.id) if link.to_id == memory.id and link.link_type in resting
                ]

    def prune(self, now, chosen):
        gone = [
            link.id for memory_id in self.ids() for link in self.links_of(memory_id) if is_prunable(link, now, chosen)
        ]
        return self.plain.delete_links(gone)


class MemoryMachine(RuleBasedStateMachine):
    """Stateful test of two processes that share only a directory, with a model of each namespace in it."""

    def __init__(self):
        super().__init__()
        memory = Path("/dev/shm")
        self.home = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.runner = asyncio.Runner()
        self.clock = FakeClock(start=1_800_000_000.0)
        self.generation = 0
        self.steps = 0
        self.actors = []
        self.models = collections.defaultdict(Model)
        self.outer = sys.exception()
        # Lower the limits, so that the deletion of a memory with few links is split like a deletion with many links.
        self.small = patch.multiple(plans, MAX_IMMEDIATE_CLEANUPS=1, CLEANUP_PART_SOURCES=2)
        self.small.start()

    @initialize(exact_up_to=st.sampled_from([20_000, 0]))
    def begin(self, exact_up_to):
        self.settings = MemorySettings(exact_up_to=exact_up_to, snapshot_every=7)
        self.actors = [self.opened(), self.opened()]

    @property
    def place(self):
        return self.home / str(self.generation)

    @property
    def now(self):
        return from_milliseconds(int(self.clock.now() * 1000))

    def time_of(self, supersedes, model):
        """
        Return the time of a new memory.

        The time is never earlier than that of the superseded memory, even if the clock steps back.
        """
        return self.now if supersedes is None else max(self.now, model.get(supersedes).created_at)

    def run(self, work):
        return self.runner.run(work)

    def opened(self):
        return OpenedDirectory.open(
            self.place, clock=self.clock.now, settings=self.settings, wait=5, find_content=HANDLES.get
        )

    def store(self, actor, namespace):
        return self.run(self.actors[actor].memories(namespace))

    def do(self, actor, namespace, call):
        return self.run(call(self.store(actor, namespace)))

    def learn(self, actor, namespace, memory, explicit=()):
        """Read a saved memory and its links in the other process, compare them, and add them to the model."""
        model = self.models[namespace]
        seen = self.store(1 - actor, namespace)
        assert memory == self.run(seen.get(memory.id))
        links = self.run(seen.links(memory.id))
        own = [link for link in links if link.from_id == memory.id]
        assert links == own
        expected = {}
        for to_id, word, confidence in explicit:
            key = (to_id, normalize_relationship(word))
            expected[key] = max(confidence, expected.get(key, 0.0))
        made = [link for link in own if link.created_by != "system"]
        assert expected == {
            (link.to_id, normalize_relationship(link.metadata.original_relationship)): link.confidence for link in made
        }
        assert all(link.link_type is look_up_type(link.metadata.original_relationship) for link in made)
        automatic = [link for link in own if link.created_by == "system"]
        assert len(automatic) <= 8
        assert all(link.confidence >= 0.3 for link in automatic)
        covered = {to_id for to_id, _, _ in explicit}
        assert len({link.to_id for link in automatic} - covered) == len({link.to_id for link in automatic})
        assert memory.namespace == namespace
        model.plain.put(memory, links=links, contents=CONTENTS)
        rests = self.run(seen.evidence(memory.id))
        assert list(map(CONTENTS.get, evidence_digests(memory.evidence))) == list(
            dict.fromkeys(one.text for one in rests if one.digest)
        )

    # Saving

    @rule(
        actor=ACTORS, namespace=NAMESPACES, topic=TOPICS, text=TEXTS, why=TEXTS, picks=st.lists(PICKS, max_size=3),
        replaced=st.none() | PICKS, word=WORDS, confidence=SHARES, creator=CREATORS, evidence=EVIDENCE,
        like=st.none() | PICKS,
    )  # fmt: skip
    def save_decision(
        self, actor, namespace, topic, text, why, picks, replaced, word, confidence, creator, evidence, like
    ):
        model = self.models[namespace]
        example = None if like is None else model.pick(like)
        if example is not None:
            # Evidence in its stored form must be accepted again.
            evidence += model.get(example).evidence
        targets = [one for one in map(model.pick, picks) if one is not None]
        supersedes = None if replaced is None else model.pick(replaced, {MemoryType.DECISION})
        links = [{"to_id": one, "relationship": word, "confidence": confidence} for one in targets[1:]]
        memory = self.do(
            actor,
            namespace,
            lambda store: store.save_decision(
                text,
                topic=topic,
                reasoning=why,
                confidence=confidence,
                supersedes=supersedes,
                implements=targets[:1],
                links=links,
                evidence=evidence,
                created_by=creator,
            ),  # fmt: skip
        )
        assert kept(evidence) == memory.evidence
        at = self.time_of(supersedes, model)
        assert (topic, text, at, at) == (memory.topic, memory.content, memory.created_at, memory.updated_at)
        assert DecisionMetadata(reasoning=why, confidence=confidence, created_by=creator) == memory.metadata
        explicit = [(supersedes, "supersedes", 1.0)] if supersedes else []
        explicit += [(one, "implements", 1.0) for one in targets[:1]]
        explicit += [(one, word, confidence) for one in targets[1:]]
        self.learn(actor, namespace, memory, explicit)

    @rule(actor=ACTORS, namespace=NAMESPACES, text=TEXTS, picks=st.lists(PICKS, max_size=2))
    def save_checkpoint(self, actor, namespace, text, picks):
        targets = [one for one in map(self.models[namespace].pick, picks) if one is not None]
        memory = self.do(
            actor, namespace, lambda store: store.save_checkpoint(text, open_files=["a.py"], implements=targets)
        )
        assert ("a.py",) == memory.metadata.open_files
        self.learn(actor, namespace, memory, [(one, "implements", 1.0) for one in targets])

    @rule(actor=ACTORS, namespace=NAMESPACES, text=TEXTS, ago=st.sampled_from([0.0, 10.0, 4000.0]))
    def save_insight(self, actor, namespace, text, ago):
        at = self.now - timedelta(seconds=ago)
        memory = self.do(actor, namespace, lambda store: store.save_insight(text, tags=["t"], created_at=at))
        assert at == memory.created_at
        self.learn(actor, namespace, memory)

    @rule(actor=ACTORS, namespace=NAMESPACES, texts=st.lists(TEXTS, min_size=1, max_size=4), topic=TOPICS)
    def save_many(self, actor, namespace, texts, topic):
        records = [{"type": "context", "content": text, "topic": topic} for text in texts]
        saved = self.do(actor, namespace, lambda store: store.save_many(records))
        assert texts == [memory.content for memory in saved]
        self.learn_all(actor, namespace, saved)

    @rule(actor=ACTORS, namespace=NAMESPACES, texts=st.lists(TEXTS, min_size=1, max_size=5), topic=TOPICS)
    def save_at_once(self, actor, namespace, texts, topic):
        """Run concurrent saves that share a transaction. A failing save must not affect the remaining saves."""

        async def work(store):
            good = [store.save_context(text, topic=topic) for text in texts]
            bad = store.save_decision(texts[0], topic=topic, reasoning="", implements=["decision_x_1_00000000"])
            return await self.together(actor, store, [*good[:2], bad, *good[2:]])

        results = self.do(actor, namespace, work)
        bad = results.pop(min(2, len(texts)))
        assert isinstance(bad, MemoryNotFound)
        assert texts == [memory.content for memory in results]
        self.learn_all(actor, namespace, results)

    def learn_all(self, actor, namespace, memories):
        """Add memories that were saved at the same time to the model, in the order of their saves."""
        wanted = {memory.id for memory in memories}
        found = self.do(1 - actor, namespace, lambda store: store.list(limit=MAX_RESULTS))
        found = [memory for memory in found if memory.id in wanted]
        assert sorted(wanted) == sorted(memory.id for memory in found)
        for memory in reversed(found):
            links = self.do(1 - actor, namespace, lambda store: store.links(memory.id))  # noqa: B023 - `do` waits
            # Later memories of the batch may already link to this memory, so compare only its outgoing links.
            own = [link for link in links if link.from_id == memory.id]
            assert {"system"} >= {link.created_by for link in own}
            self.models[namespace].plain.put(memory, links=own, contents=CONTENTS)

    @rule(actor=ACTORS, namespace=NAMESPACES, pick=PICKS, text=TEXTS)
    def supersede(self, actor, namespace, pick, text):
        model = self.models[namespace]
        replaced = model.pick(pick, {MemoryType.DECISION})
        if replaced is None:
            return
        memory = self.do(actor, namespace, lambda store: store.supersede(replaced, text, reasoning="better"))
        assert (model.get(replaced).topic, self.time_of(replaced, model)) == (memory.topic, memory.created_at)
        self.learn(actor, namespace, memory, [(replaced, "supersedes", 1.0)])

    @rule(actor=ACTORS, namespace=NAMESPACES, pick=PICKS, evidence=EVIDENCE)
    def rests_on_other_things(self, actor, namespace, pick, evidence):
        """Replace the evidence of a memory through the engine, because the store has no method for this."""
        model = self.models[namespace]
        chosen = model.pick(pick)
        if chosen is None:
            return
        memory = attrs.evolve(model.get(chosen), evidence=kept(evidence))
        self.do(actor, namespace, lambda store: store._engine.write(lambda one: one.put(memory, contents=CONTENTS)))
        model.plain.put(memory, contents=CONTENTS)

    @rule(actor=ACTORS, namespace=NAMESPACES, pick=PICKS)
    def what_cannot_be_saved_changes_nothing(self, actor, namespace, pick):
        model = self.models[namespace]
        for call, error in [
            (lambda store: store.save_decision("x", topic="t", reasoning="", supersedes="nothing"), MemoryNotFound),
            (lambda store: store.save_insight("x", links=[{"to_id": "nothing", "relationship": "y"}]), MemoryNotFound),
            (lambda store: store.set_outcome("nothing", "SUCCESS"), MemoryNotFound),
            (lambda store: store.delete("nothing"), MemoryNotFound),
            (
                lambda store: store.save_decision(
                    "x", topic="t", reasoning="", evidence=["ref:x", f"ref:z@1#sha256:{'0' * 64}"]
                ),
                InvalidArgument,
            ),
            (lambda store: store.unlink("nothing"), LinkNotFound),
        ]:
            with pytest.raises(error):
                self.do(actor, namespace, call)
        other = model.pick(pick, {MemoryType.CHECKPOINT, MemoryType.INSIGHT, MemoryType.CONTEXT})
        if other is not None:
            with pytest.raises(InvalidArgument):
                self.do(actor, namespace, lambda store: store.supersede(other, "x", reasoning=""))
            with pytest.raises(InvalidArgument):
                self.do(actor, namespace, lambda store: store.link(other, other, "refines"))

    # Changing

    @rule(
        actor=ACTORS, namespace=NAMESPACES, one=PICKS, other=PICKS, word=WORDS, confidence=SHARES,
        creator=CREATORS | st.just("system"),
    )  # fmt: skip
    def link(self, actor, namespace, one, other, word, confidence, creator):
        model = self.models[namespace]
        source, target = model.pick(one), model.pick(other)
        if source is None or source == target:
            return
        present = [link for link in model.links_of(source) if (link.from_id, link.to_id) == (source, target)]
        same = [
            link
            for link in present
            if (link.created_by == "system") == (creator == "system")
            and normalize_relationship(link.metadata.original_relationship) == normalize_relationship(word)
        ]
        link = self.do(
            actor,
            namespace,
            lambda store: store.link(source, target, word, confidence=confidence, created_by=creator, reason="so"),
        )
        if same:
            assert max(confidence, same[0].confidence) == link.confidence
            assert (same[0].id, same[0].created_by, same[0].created_at) == (link.id, link.created_by, link.created_at)
        else:
            assert (confidence, creator, self.now, word) == (
                link.confidence, link.created_by, link.created_at, link.metadata.original_relationship
            )  # fmt: skip
            if creator != "system":
                # An explicit link replaces automatic links in either direction.
                between = [old for old in model.links_of(source) if {old.from_id, old.to_id} == {source, target}]
                model.plain.delete_links([old.id for old in between if is_automatic(old)])
        model.plain.put_link(link)
        model.trust_no_more(link)

    @rule(actor=ACTORS, namespace=NAMESPACES, pick=PICKS)
    def unlink(self, actor, namespace, pick):
        model = self.models[namespace]
        links = model.link_ids()
        if links:
            chosen = links[pick % len(links)]
            self.do(actor, namespace, lambda store: store.unlink(chosen))
            assert 1 == model.plain.delete_links([chosen])

    @rule(
        actor=ACTORS, namespace=NAMESPACES, pick=PICKS, outcome=st.sampled_from(Outcome), reason=TEXTS,
        later=st.sampled_from([0, 0, -50, 50]),
    )  # fmt: skip
    def set_outcome(self, actor, namespace, pick, outcome, reason, later):
        model = self.models[namespace]
        chosen = model.pick(pick, {MemoryType.DECISION})
        if chosen is None:
            return
        at = self.now + timedelta(seconds=later)
        before = model.get(chosen)
        if at < before.created_at:
            with pytest.raises(InvalidArgument):
                self.do(actor, namespace, lambda store: store.set_outcome(chosen, outcome.value, reason=reason, at=at))
            return
        after = self.do(actor, namespace, lambda store: store.set_outcome(chosen, outcome.value, reason=reason, at=at))
        history = [*before.metadata.history, OutcomeChange(outcome=outcome, reason=reason, at=at)]
        history.sort(key=lambda change: change.at)
        last = history[-1]
        metadata = attrs.evolve(
            before.metadata,
            outcome=last.outcome,
            outcome_reason=last.reason,
            outcome_at=last.at,
            history=tuple(history),
        )
        assert attrs.evolve(before, metadata=metadata, updated_at=max(before.updated_at, at)) == after
        model.plain.put(after)
        known = set(model.ids())
        links = self.do(1 - actor, namespace, lambda store: store.links(chosen))
        (new,) = {link.from_id for link in links} - known
        memory = self.do(1 - actor, namespace, lambda store: store.get(new))
        assert (reason, before.topic, "outcome_of", at) == (
            memory.content, memory.topic, memory.metadata.source, memory.created_at
        )  # fmt: skip
        self.learn(actor, namespace, memory, [(chosen, "outcome_of", 1.0)])

    @rule(actor=ACTORS, namespace=NAMESPACES, pick=PICKS, is_killed=st.booleans())
    def delete(self, actor, namespace, pick, is_killed):
        """Delete a memory and all its links, also if the process is killed before the cleanup of the rows."""
        clean_up = JournalWriter.clean_up
        with patch.object(JournalWriter, "clean_up", (lambda _writer: False) if is_killed else clean_up):
            self.deleted(actor, namespace, pick)

    def deleted(self, actor, namespace, pick):
        model = self.models[namespace]
        chosen = model.pick(pick)
        if chosen is not None:
            assert 1 == self.do(actor, namespace, lambda store: store.delete(chosen))
            model.delete(chosen)
            with pytest.raises(MemoryNotFound):
                self.do(1 - actor, namespace, lambda store: store.get(chosen))

    @rule(actor=ACTORS, namespace=NAMESPACES)
    def prune(self, actor, namespace):
        expected = self.models[namespace].prune(self.now, self.settings)
        assert expected == self.do(actor, namespace, admin.prune)

    @rule(actor=ACTORS, namespace=NAMESPACES)
    def maintain(self, actor, namespace):
        done = self.do(actor, namespace, admin.maintain)
        model = self.models[namespace]
        before = model.maintained
        if model.plain.change and not 0 <= (self.now - before).total_seconds() < self.settings.prune_every:
            model.maintained = self.now
        # Maintenance computes ages for the time of the previous run, so the first run prunes nothing.
        expected = model.prune(min(before, self.now), self.settings) if done.due else 0
        assert expected == done.pruned
        assert not self.do(1 - actor, namespace, admin.maintain).due

    @rule(seconds=TIMES)
    def time_passes(self, seconds):
        self.clock.step(seconds)

    # Failures

    @rule(actor=ACTORS, namespace=NAMESPACES, picks=st.lists(PICKS, min_size=3, max_size=3), text=TEXTS)
    def a_plan_that_raises_is_undone(self, actor, namespace, picks, text):
        model = self.models[namespace]
        ids = [model.pick(pick) for pick in picks]
        links = model.link_ids()

        def plan(writer):
            if ids[0] is not None:
                memory = writer.get([writer.find(ids[0])])[0]
                writer.put(
                    attrs.evolve(memory, content=text, topic="new", evidence=kept(["fd:1"])),
                    vectors=np.eye(1, 64, 3, dtype=np.float32),
                    contents=CONTENTS,
                )
                # The change above may delete the texts of the former evidence, so pass these texts again.
                fresh = attrs.evolve(memory, id="fresh")
                writer.put(fresh, vectors=np.eye(1, 64, 5, dtype=np.float32), contents=CONTENTS)
                writer.delete(ids[1])
                if ids[2] != ids[1]:
                    writer.delete(ids[2])
                writer.delete("fresh")
                writer.delete_links(links[:3])
            raise Refused

        with pytest.raises(Refused):
            self.do(actor, namespace, lambda store: store._engine.write(plan))

    @rule(
        actor=ACTORS, namespace=NAMESPACES, texts=st.lists(TEXTS, min_size=1, max_size=3), pick=PICKS,
        divided=st.booleans(),
    )  # fmt: skip
    def a_transaction_that_fails_is_undone(self, actor, namespace, texts, pick, divided):
        chosen = self.models[namespace].pick(pick)

        async def work(store):
            calls = [store.save_context(text) for text in texts]
            calls.append(store.save_decision(texts[0], topic="auth", reasoning="", evidence=["ref:x"]))
            if chosen is not None:
                calls.append(store.delete(chosen))
            return await self.together(actor, store, calls, seconds=-1 if divided else math.inf)

        # Load the views first, so that the failing transaction contains only the calls under test.
        self.run(self.store(actor, namespace).count())
        self.fail_once(actor, "failing")
        results = self.do(actor, namespace, work)
        failed = [isinstance(result, StoreError) for result in results]
        if not divided and not is_on_server():
            assert all(failed)
            return
        # Each call has its own transaction, so only one call fails.
        assert 1 == sum(failed)
        saves = len(texts) + 1
        if chosen is not None and not failed[saves]:
            self.models[namespace].delete(chosen)
        saved = [memory for memory, lost in zip(results[:saves], failed, strict=False) if not lost]
        assert [text for text, lost in zip([*texts, texts[0]], failed, strict=False) if not lost] == [
            memory.content for memory in saved
        ]
        self.learn_all(actor, namespace, saved)

    @precondition(lambda _self: not is_on_server())
    @rule(actor=ACTORS, namespace=NAMESPACES, texts=st.lists(TEXTS, min_size=2, max_size=3))
    def what_is_too_much_at_once_is_saved_one_by_one(self, actor, namespace, texts):
        store = self.store(actor, namespace)
        # Load the views first, so that the transaction contains only the calls under test.
        self.run(store.count())
        self.fail_once(actor, "full")
        results = self.run(self.together(actor, store, [store.save_context(text) for text in texts]))
        assert texts == [memory.content for memory in results]
        self.learn_all(actor, namespace, results)

    async def together(self, actor, store, calls, *, seconds=math.inf):
        """Block the store's thread until all calls are queued, so that they share a transaction."""
        if is_on_server():
            # On a server, each call has its own transaction.
            return await asyncio.gather(*calls, return_exceptions=True)
        gate = threading.Event()
        with patch.object(embedded_engine, "MAX_TRANSACTION_SECONDS", seconds):
            self.actors[actor].storage.submit_job(lambda: gate.wait(600))
            tasks = [asyncio.ensure_future(call) for call in calls]
            try:
                while len(store._engine._queue) < sum(not task.done() for task in tasks):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.0002)
            finally:
                gate.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    def fail_once(self, actor, kind):
        """Make the next transaction fail after its work is done and before it is committed."""
        kinds = iter([kind])
        if (server := self.actors[actor].server) is not None:
            run = server.run

            def failing(work, *, write, **how):
                def undone(connection):
                    work(connection)
                    raise StoreError("planned")

                return run(undone if write and next(kinds, None) else work, write=write, **how)

            server.run = failing
            return
        inject_transaction_faults(self.actors[actor].storage, lambda: next(kinds, None))

    # Opening and closing

    @rule(actor=ACTORS)
    def reopen(self, actor):
        self.run(self.actors[actor].close())
        self.actors[actor] = self.opened()

    @rule()
    def crash(self):
        """Simulate a crash by a copy of the open directory, or on a server by dropping all connections."""
        before, old = self.actors, self.place
        if is_on_server():
            administer(before[0].server.url, END_CONNECTIONS)
            self.they_agree()
            return
        self.generation += 1
        shutil.copytree(old, self.place)
        self.actors = [self.opened(), self.opened()]
        for actor in before:
            self.run(actor.close())
        shutil.rmtree(old)

    @rule(actor=ACTORS)
    def views_are_deleted(self, actor):
        shutil.rmtree(self.place / "views", ignore_errors=True)
        self.reopen(actor)

    @precondition(lambda _self: not is_on_server())
    @rule(actor=ACTORS, namespace=NAMESPACES)
    def snapshot(self, actor, namespace):
        self.do(actor, namespace, lambda store: store._engine.snapshot())

    @rule(actor=ACTORS, namespace=NAMESPACES)
    def rebuild(self, actor, namespace):
        assert [] == self.do(actor, namespace, admin.rebuild)

    @rule(actor=ACTORS, namespace=NAMESPACES, into=NAMESPACES)
    def export_and_import(self, actor, namespace, into):
        model, other = self.models[namespace], self.models[into]
        file = self.home / "export.jsonl"
        assert len(model.ids()) == self.do(actor, namespace, lambda store: admin.export_jsonl(store, file))
        scanned = model.plain.scan()
        own = {one.memory.id: attrs.evolve(one.memory, namespace=into) for one in scanned}
        links = {link.id: link for one in scanned for link in one.links}
        known = {memory_id: other.get(memory_id) for memory_id in own if other.plain.find(memory_id) is not None}
        met = {link_id: other.plain.find_links([link_id])[0] for link_id in links}
        differ = any(own[memory_id] != memory for memory_id, memory in known.items())
        differ |= any(link is not None and link != links[link_id] for link_id, link in met.items())
        if differ:
            with pytest.raises(InvalidArgument):
                self.do(1 - actor, into, lambda store: admin.import_jsonl(store, file))
            return
        imported = self.do(1 - actor, into, lambda store: admin.import_jsonl(store, file))
        assert (len(own) - len(known), len(known), 0) == (imported.added, imported.existing, imported.dropped_links)
        for memory_id, memory in own.items():
            if memory_id not in known:
                other.plain.put(memory, contents=CONTENTS)
        for link in links.values():
            other.plain.put_link(link)

    # Reading

    @precondition(lambda self: self.actors)
    @invariant()
    def they_agree(self):
        self.steps += 1
        for namespace, model in self.models.items():
            self.run(self.compare(self.store(self.steps % 2, namespace), model))

    async def compare(self, store, model):
        window = model.plain.get(model.plain.window())
        assert len(window) == await store.count()
        assert window == await store.list(limit=MAX_RESULTS)
        for memory in window:
            assert model.links_of(memory.id) == await store.links(memory.id)
        assert model.plain._contents == await store._engine.read(contents_of)

    @rule(actor=ACTORS, namespace=NAMESPACES, pick=PICKS, direction=st.sampled_from(["out", "in", "both"]),
          depth=st.integers(1, 6), kinds=st.none() | st.sets(st.sampled_from(LinkType), min_size=1),
          least=st.sampled_from([0.0, 0.3]))  # fmt: skip
    def traverse(self, actor, namespace, pick, direction, depth, kinds, least):
        model = self.models[namespace]
        chosen = model.pick(pick)
        if chosen is None:
            return
        steps = graph.traverse(
            model.plain, model.plain.find(chosen), now_ms=to_milliseconds(self.now), types=kinds, max_depth=depth,
            direction=direction, min_strength=least,
        )  # fmt: skip
        for _ in range(2):
            reached = self.do(
                actor,
                namespace,
                lambda store: store.traverse(
                    chosen, link_types=kinds, max_depth=depth, direction=direction, min_strength=least
                ),
            )
            assert model.plain.ids([step.node for step in steps]) == [one.memory.id for one in reached]
            assert model.plain.get([step.node for step in steps]) == [one.memory for one in reached]
            assert [step.depth for step in steps] == [one.depth for one in reached]
            assert np.allclose([step.strength for step in steps], [one.strength for one in reached], atol=1e-5)
            assert all((chosen, one.memory.id) == (one.path[0], one.path[-1]) for one in reached)

    @rule(actor=ACTORS, namespace=NAMESPACES, topic=TOPICS, pick=PICKS)
    def chains(self, actor, namespace, topic, pick):
        model = self.models[namespace]
        plain = model.plain
        found = graph.topic_evolution(plain, topic, now_ms=to_milliseconds(self.now))
        chain = self.do(actor, namespace, lambda store: store.history(topic=topic))
        assert plain.get(found.chain.nodes) == list(chain.memories)
        assert plain.get(found.chain.forks) == list(chain.forks)
        assert plain.get([step.node for step in found.around]) == [one.memory for one in chain.nearby]
        chosen = model.pick(pick)
        if chosen is not None:
            nodes = graph.find_evolution(plain, plain.find(chosen))
            chain = self.do(actor, namespace, lambda store: store.history(chosen))
            assert plain.get(nodes.nodes) == list(chain.memories)
            assert plain.get(nodes.forks) == list(chain.forks)
            members = {memory.id for memory in chain.memories}
            expected = {
                link.id for member in members for link in model.links_of(member) if link.link_type is LinkType.EVOLUTION
            }
            assert expected == {link.id for link in chain.links}

    @rule(actor=ACTORS, namespace=NAMESPACES, text=TEXTS, kinds=st.none() | st.sets(st.sampled_from(MemoryType), min_size=1),
          topic=st.none() | TOPICS)  # fmt: skip
    def search(self, actor, namespace, text, kinds, topic):
        expected = {
            memory.id
            for memory in self.models[namespace].plain.get(self.models[namespace].plain.window())
            if (kinds is None or memory.type in kinds) and topic in {None, memory.topic}
        }
        hits = self.do(actor, namespace, lambda store: store.search(text, type=kinds, topic=topic, limit=5))
        found = [memory_id for hit in hits for memory_id in (hit.memory.id, *hit.duplicates)]
        assert len(found) == len(set(found))
        # Near duplicates are folded into other hits, so `found` also contains the copies.
        assert expected == set(found) if len(hits) < 5 else expected >= set(found)

    def teardown(self):
        try:
            self.look_around()
        finally:
            self.small.stop()

    def look_around(self):
        try:
            for actor in self.actors:
                for namespace in self.models:
                    self.run(actor.memories(namespace))
                assert [] == self.run(actor.findings())
        finally:
            for actor in self.actors:
                self.run(actor.close())
        try:
            # After a failed step the model is outdated, so a comparison would hide the original error.
            if sys.exception() is self.outer:
                self.look_again()
        finally:
            self.runner.close()
            shutil.rmtree(self.home)

    def look_again(self):
        last = self.opened()
        try:
            for namespace, model in self.models.items():
                self.run(self.compare(self.run(last.memories(namespace)), model))
            assert [] == self.run(last.findings())
        finally:
            self.run(last.close())


TestMemories = MemoryMachine.TestCase
# A step takes some milliseconds, so limit the steps per example.
TestMemories.settings = settings(
    max_examples=max(10, settings.default.max_examples // 6),
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.fixture
def machine():
    """Return a machine whose steps the test calls. Its final state is compared at the end of the test."""
    state = MemoryMachine()
    state.begin(exact_up_to=0)
    yield state
    state.teardown()


DECISION = {
    "actor": 0, "namespace": "default", "topic": "auth", "text": "use JWT", "why": "x", "picks": [], "replaced": None,
    "word": "refines", "confidence": 0.5, "creator": "user", "evidence": [], "like": None,
}  # fmt: skip


@pytest.mark.parametrize("replace", ["save_decision", "supersede"])
def test_supersede_uses_time_of_predecessor_when_clock_steps_back(machine, replace):
    """A superseding decision is never older than its predecessor, whatever the clock returns."""
    machine.save_decision(**DECISION)
    before = machine.now
    machine.time_passes(seconds=-3600.0)
    if replace == "supersede":
        machine.supersede(actor=1, namespace="default", pick=0, text="x")
    else:
        machine.save_decision(**{**DECISION, "replaced": 0})
    plain = machine.models["default"].plain
    assert [before, before] == [memory.created_at for memory in plain.get(plain.window())]
    machine.they_agree()


@pytest.mark.parametrize("divided", [False, True])
def test_failed_transaction_is_undone_when_machine_is_slow(machine, monkeypatch, divided):
    """
    Waiting calls that share a transaction all fail.

    In separate transactions only the first one fails.
    """
    monkeypatch.setattr(embedded_engine, "MAX_TRANSACTION_SECONDS", -1)
    machine.save_decision(**DECISION)
    machine.a_transaction_that_fails_is_undone(
        actor=1, namespace="default", texts=["x", "use JWT"], pick=0, divided=divided
    )
    machine.they_agree()
    machine.they_agree()


@pytest.mark.of_the_directory("on a server no two calls share a transaction")
def test_full_disk_saves_calls_one_by_one_when_machine_is_slow(machine, monkeypatch):
    """If there is no room for a shared transaction, its calls are repeated one by one."""
    monkeypatch.setattr(embedded_engine, "MAX_TRANSACTION_SECONDS", -1)
    machine.what_is_too_much_at_once_is_saved_one_by_one(actor=1, namespace="default", texts=["x", "use JWT"])
    machine.they_agree()
    machine.they_agree()
