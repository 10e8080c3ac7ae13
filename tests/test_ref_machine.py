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
from mama_structs.errors import HandleNotFound, InvalidArgument

NAMESPACES = st.sampled_from(["default", "bob"])
NAMES = st.sampled_from(["x", "y"])
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

    @property
    def is_begun(self):
        """Whether anything was ever stored, and so is on disk."""
        return bool(self.last_fd or self.versions)


@attrs.define(eq=False)
class Pair:
    session: Session
    model: Model
    namespace: str

    @property
    def key(self):
        return self.namespace, self.session.conversation


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

    async def opened(self, namespace, conversation=None):
        return await Session.open(self.place / "agent.mama", namespace=namespace, conversation=conversation)

    @rule(target=pairs, namespace=NAMESPACES, name=NAMES | st.none())
    def begin(self, namespace, name):
        if any((namespace, name) == pair.key for pair in self.open):
            return multiple()
        pair = Pair(self.run(self.opened(namespace, name)), Model(), namespace)
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

        child = Pair(self.run(fork()), pair.model.copy(), pair.namespace)
        self.open.append(child)
        return child

    @rule(target=pairs, pair=consumes(pairs))
    def reopen(self, pair):
        self.open.remove(pair)
        name = pair.session.conversation
        self.run(pair.session.close())
        again = Pair(self.run(self.opened(pair.namespace, name)), pair.model, pair.namespace)
        self.open.append(again)
        return again

    @rule(pair=pairs, namespace=NAMESPACES)
    def assign(self, pair, namespace):
        """Move it to another namespace, but where there is nothing to move, or one of its name is there."""
        key = namespace, pair.session.conversation
        others = [other for other in self.open if other.key == key]
        for one in (pair, *others):
            self.run(one.session.close())
        taken = any(other.model.is_begun for other in others)
        try:
            self.run(self.assigned(pair, namespace))
        except InvalidArgument:
            assert others == [pair] or taken or not pair.model.is_begun
        else:
            assert not taken
            assert pair.model.is_begun
            for other in others:
                other.namespace = pair.namespace
            pair.namespace = namespace
        for one in {pair, *others}:
            one.session = self.run(self.opened(one.namespace, key[1]))

    async def assigned(self, pair, namespace):
        async with Session.open(self.place / "agent.mama") as session:
            await session._common.home.assign(pair.session.conversation, origin=pair.namespace, namespace=namespace)

    @rule(target=pairs)
    def reopen_everything(self):
        for pair in self.open:
            self.run(pair.session.close())
        for pair in self.open:
            pair.session = self.run(self.opened(*pair.key))
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
