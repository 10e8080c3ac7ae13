"""The refs of sessions against a plain model: whatever is stored, deleted, forked, closed and opened again."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mama_structs import Session
from mama_structs.errors import HandleNotFound

IDS = st.sampled_from(["a", "b", "plan.md"])
# No tags, and nothing that a line break at either end would make ambiguous.
TEXTS = st.text(st.sampled_from("xyz é\r\n&`"), max_size=12)


@attrs.define
class Model:
    """What a conversation should hold: handles and texts in order, and the numbers that are used up."""

    held: dict = attrs.field(factory=dict)
    deleted: set = attrs.field(factory=set)
    last_fd: int = 0
    versions: dict = attrs.field(factory=dict)

    def mark(self, ref_id, text):
        self.versions[ref_id] = self.versions.get(ref_id, 0) + 1
        self.held[f"ref:{ref_id}@{self.versions[ref_id]}"] = text

    def add(self, text):
        self.last_fd += 1
        self.held[f"fd:{self.last_fd}"] = text

    def delete(self, handle):
        del self.held[handle]
        self.deleted.add(handle)

    def copy(self):
        return Model(dict(self.held), set(self.deleted), self.last_fd, dict(self.versions))


@attrs.define(eq=False)
class Pair:
    session: Session
    model: Model


class RefsAgainstAModel(RuleBasedStateMachine):
    """Sessions on one directory and models of them say the same after every step."""

    pairs = Bundle("pairs")

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = Path(tempfile.mkdtemp())
        self.open = []

    def run(self, work):
        return self.runner.run(work)

    async def opened(self, conversation=None):
        return await Session.open(self.place / "agent.mama", conversation=conversation)

    @rule(target=pairs)
    def begin(self):
        pair = Pair(self.run(self.opened()), Model())
        self.open.append(pair)
        return pair

    @rule(pair=pairs, ref_id=IDS, text=TEXTS)
    def observe(self, pair, ref_id, text):
        ingested = self.run(pair.session.observe(f'so <ref id="{ref_id}">\n{text}\n</ref>'))
        pair.model.mark(ref_id, text)
        assert pair.model.versions[ref_id] == ingested.refs[0].version

    @rule(pair=pairs, ref_id=IDS, text=TEXTS)
    def ingest_without_waiting(self, pair, ref_id, text):
        async def ingest():
            pair.session.refs.ingest(f'<ref id="{ref_id}">\n{text}\n</ref>')

        self.run(ingest())
        pair.model.mark(ref_id, text)

    @rule(pair=pairs, text=TEXTS)
    def add(self, pair, text):
        pair.session.refs.add(text)
        pair.model.add(text)

    @rule(pair=pairs, data=st.data())
    def delete(self, pair, data):
        if pair.model.held:
            handle = data.draw(st.sampled_from(sorted(pair.model.held)))
            pair.session.refs.delete(handle)
            pair.model.delete(handle)

    @rule(pair=pairs, ref_id=IDS)
    def delete_all_versions(self, pair, ref_id):
        mine = [handle for handle in pair.model.held if handle.startswith(f"ref:{ref_id}@")]
        if mine:
            pair.session.refs.delete(f"ref:{ref_id}")
        else:
            with pytest.raises(HandleNotFound) as caught:
                pair.session.refs.delete(f"ref:{ref_id}")
            assert (ref_id in pair.model.versions) == (caught.value.deleted_at is not None)
        for handle in mine:
            pair.model.delete(handle)

    @rule(target=pairs, pair=pairs)
    def fork(self, pair):
        async def fork():
            return pair.session.fork()

        child = Pair(self.run(fork()), pair.model.copy())
        self.open.append(child)
        return child

    @rule(target=pairs, pair=consumes(pairs))
    def reopen(self, pair):
        self.open.remove(pair)
        name = pair.session.conversation
        self.run(pair.session.close())
        again = Pair(self.run(self.opened(name)), pair.model)
        self.open.append(again)
        return again

    @rule(target=pairs)
    def reopen_everything(self):
        names = [(pair.session.conversation, pair) for pair in self.open]
        for _, pair in names:
            self.run(pair.session.close())
        for name, pair in names:
            pair.session = self.run(self.opened(name))
        return multiple()

    @rule(pair=pairs)
    def check(self, pair):
        assert self.run(pair.session.check()).ok

    @invariant()
    def they_agree(self):
        for pair in self.open:
            refs = pair.session.refs
            assert pair.model.held == {handle: refs.get(handle).text for handle in refs}
            assert list(pair.model.held) == list(refs)
            texts = set(pair.model.held.values())
            assert sum(len(text.encode()) for text in texts) == refs.usage.bytes
            assert len(pair.model.held) == len(refs)
            for handle in pair.model.deleted:
                assert handle not in refs

    def teardown(self):
        for pair in self.open:
            self.run(pair.session.close())
        self.runner.close()
        shutil.rmtree(self.place)


# Each step waits for the disk.
TestRefs = RefsAgainstAModel.TestCase
TestRefs.settings = settings(max_examples=max(10, settings.default.max_examples // 5), stateful_step_count=25)
