"""Stateful test: a store behaves like a dict under any sequence of operations."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from mama_structs.storage.postgres.pool import PostgresPool
from mama_structs.storage.postgres.store import PostgresStorage
from mama_structs.storage.sealed_rows import NewValue
from mama_structs.storage.sqlite_store import SqliteStorage

KEYS = st.sampled_from(["a", "a:1", "a:2", "b", "b\x7f", "c"])
VALUES = st.binary(max_size=20) | st.builds(bytes, st.just(100_000))
ROWS = st.lists(st.tuples(KEYS, st.none() | VALUES | st.builds(NewValue, VALUES)), max_size=6)


class Refused(Exception):
    """Raised by a transaction function, to make the store roll back."""


class StoreMachine(RuleBasedStateMachine):
    """Stateful test that applies the same operations to a store and to a dict."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = {}
        self.prepare()
        self.storage = self.open()

    def prepare(self):
        memory = Path("/dev/shm")
        self.home = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)

    def open(self):
        return SqliteStorage.open(Path(self.home.name) / "journal")

    def clean(self):
        self.home.cleanup()

    def teardown(self):
        findings = self.run(self.storage.check())
        assert [] == [finding for finding in findings if finding.kind != "sqlite"]
        self.run(self.storage.close())
        self.loop.close()
        self.clean()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def change(self, rows):
        for key, change in rows:
            if change is None:
                self.model.pop(key, None)
            elif isinstance(change, NewValue):
                self.model.setdefault(key, change.value)
            else:
                self.model[key] = change

    @rule(rows=ROWS)
    def enqueue(self, rows):
        self.storage.enqueue(iter(rows))
        self.change(rows)

    @rule(calls=st.lists(ROWS, max_size=4))
    def save_at_once(self, calls):
        """Enqueue and flush in several concurrent tasks."""

        async def save(rows):
            self.storage.enqueue(rows)
            await self.storage.flush()

        async def save_all():
            await asyncio.gather(*map(save, calls))

        self.run(save_all())
        for rows in calls:
            self.change(rows)

    @rule(rows=ROWS, fails=st.booleans())
    def transact(self, rows, fails):
        def work(inside):
            seen = []
            for key, change in rows:
                if change is None:
                    seen.append(inside.delete(key))
                elif isinstance(change, NewValue):
                    seen.append(inside.put_new(key, change.value))
                else:
                    seen.append(inside.put(key, change))
            if fails:
                raise Refused
            return seen, inside.keys(), {key: inside.get(key) for key in "abc"}

        try:
            seen, keys, values = self.run(self.storage.transact(work))
        except Refused:
            assert fails
            return
        expected = []
        for key, change in rows:
            there = key in self.model
            expected.append(there if change is None else not there if isinstance(change, NewValue) else None)
            self.change([(key, change)])
        assert expected == seen
        assert sorted(self.model) == keys
        assert {key: self.model.get(key) for key in "abc"} == values

    @rule()
    def flush(self):
        self.run(self.storage.flush())
        assert 0 == self.storage.pending

    @rule()
    def reopen(self):
        self.run(self.storage.close())
        self.storage = self.open()

    @rule(prefix=st.sampled_from(["", "a", "a:", "b", "b\x7f", "\x7f", "zz"]))
    def list_keys(self, prefix):
        assert sorted(key for key in self.model if key.startswith(prefix)) == self.run(self.storage.keys(prefix))

    @invariant()
    def reads_are_the_model(self):
        if hasattr(self, "model"):
            assert self.model == self.run(self.storage.read(["a", "a:1", "a:2", "b", "b\x7f", "c", "missing"]))


# Each example opens several stores, at about 20 ms each, so run fewer examples than the profile's default.
StoreMachine.TestCase.settings = settings(
    max_examples=max(40, settings.default.max_examples // 20),
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
TestStore = StoreMachine.TestCase


def test_server_store_behaves_like_dict(database):
    """The same stateful test on a PostgreSQL server."""
    # Keep the connections open, because connecting takes longer than everything else.
    kept = PostgresPool.open(database)

    class ServerMachine(StoreMachine):
        def prepare(self):
            """Do nothing, because a server store needs no directory."""

        def open(self):
            return PostgresStorage(PostgresPool.open(database), namespace="default")

        def clean(self):
            kept.run(lambda one: one.execute("DELETE FROM rows"), write=True).result()

    few = settings(StoreMachine.TestCase.settings, max_examples=max(8, settings.default.max_examples // 50))
    run_state_machine_as_test(ServerMachine, settings=few)
    kept.close()
