"""Stateful test of refs: sessions are edited, forked, moved and reopened, and compared with models."""

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, invariant, multiple, rule
from memory_helpers import END_CONNECTIONS, is_on_server, url_of
from postgres_helpers import administer

from mama_structs import Session, admin
from mama_structs.errors import HandleNotFound, InvalidArgument, InvalidParameter
from mama_structs.testing.machines import SessionMachine

NAMESPACES = st.sampled_from(["default", "bob"])
NAMES = st.sampled_from(["x", "y"])
IDS = st.sampled_from(["a", "b", "plan.md", "한글-1"])
# Without tags and fences, because next to these it is ambiguous which line breaks belong to the text.
TEXTS = st.text(st.sampled_from("xyz é\r\n&"), max_size=12)


@attrs.define
class Model:
    """The expected content of a conversation: texts by handle in order, and the used numbers."""

    held: dict = attrs.field(factory=dict)
    deleted: set = attrs.field(factory=set)
    last_fd: int = 0
    versions: dict = attrs.field(factory=dict)
    cut: set = attrs.field(factory=set)

    def newest(self, ref_id):
        """Return the newest version that was not deleted, or None."""
        numbers = [int(one.partition("@")[2]) for one in self.held if one.startswith(f"ref:{ref_id}@")]
        return f"ref:{ref_id}@{max(numbers)}" if numbers else None

    def mark(self, ref_id, text, *, cut=False):
        """Store a version, unless it equals the newest one, and return its handle."""
        newest = self.newest(ref_id)
        if newest and text == self.held[newest] and cut == (newest in self.cut):
            return newest
        self.versions[ref_id] = self.versions.get(ref_id, 0) + 1
        handle = f"ref:{ref_id}@{self.versions[ref_id]}"
        self.held[handle] = text
        self.cut |= {handle} if cut else set()
        return handle

    def append(self, ref_id, text, *, cut=False):
        newest = self.newest(ref_id)
        before = self.held[newest] if newest else ""
        joins = newest in self.cut or not before or not text or before.endswith("\n")
        between = "" if joins else "\r\n" if "\r\n" in before else "\n"
        return self.mark(ref_id, f"{before}{between}{text}", cut=cut)

    def add(self, text):
        self.last_fd += 1
        self.held[f"fd:{self.last_fd}"] = text

    def delete(self, handle):
        del self.held[handle]
        self.deleted.add(handle)

    def copy(self):
        return Model(dict(self.held), set(self.deleted), self.last_fd, dict(self.versions), set(self.cut))

    @property
    def is_begun(self):
        """True if anything was ever stored, so that the conversation exists on disk."""
        return bool(self.last_fd or self.versions)


@attrs.define(eq=False)
class Pair:
    session: Session
    model: Model
    namespace: str

    @property
    def key(self):
        return self.namespace, self.session.conversation


class RefsAgainstAModel(SessionMachine):
    """Stateful test: several sessions must equal their models after every step."""

    pairs = Bundle("pairs")
    # Disable the inherited steps that the models do not support.
    call_a_tool = the_model_answers = the_disk_fails = the_embedder_fails = None

    def __init__(self):
        self.open = []
        super().__init__()

    async def set_up(self, session):
        """Close and reopen all further sessions when the session of the base class is reopened."""
        for pair in self.open:
            await pair.session.close()
        for pair in self.open:
            pair.session = await self.opened(*pair.key)

    async def opened(self, namespace, conversation):
        return await self.open_session(namespace=namespace, conversation=conversation)

    @rule(target=pairs, namespace=NAMESPACES, name=NAMES | st.none())
    def begin(self, namespace, name):
        if any((namespace, name) == pair.key for pair in self.open):
            return multiple()
        pair = Pair(self.run(self.opened(namespace, name)), Model(), namespace)
        self.open.append(pair)
        return pair

    @rule(pair=pairs, ref_id=IDS, text=TEXTS, flags=st.tuples(st.booleans(), st.booleans(), st.booleans()))
    def observe(self, pair, ref_id, text, flags):
        """Observe a ref: appended or new, complete or truncated, in a message or in a stream."""
        append, cut, streamed = flags
        answer = f'so <ref id="{ref_id}"{" append" * append}>\n{text}{"" if cut else chr(10) + "</ref>"}'
        if streamed:
            self.run(self.stream(pair.session, answer))
        ingested = self.run(pair.session.observe(answer))
        handle = (pair.model.append if append else pair.model.mark)(ref_id, text, cut=cut)
        assert [handle] == [ref.versioned_handle for ref in ingested.refs]

    async def stream(self, session, answer):
        stream = session.stream()
        for start in range(0, len(answer), 3):
            stream.feed(answer[start : start + 3])
        await stream.close()

    @rule(pair=pairs, ref_id=IDS, text=TEXTS, append=st.booleans())
    def put(self, pair, ref_id, text, append):
        ref = pair.session.refs.put(ref_id, text, append=append)
        assert (pair.model.append if append else pair.model.mark)(ref_id, text) == ref.versioned_handle

    @rule(pair=pairs, new=TEXTS, data=st.data())
    def edit(self, pair, new, data):
        """Replace a part of a version's text. The part must occur exactly once in the text."""
        handle = data.draw(st.sampled_from(sorted(one for one in pair.model.held if one[0] == "r") or [""]))
        text = pair.model.held.get(handle, "")
        start = data.draw(st.integers(0, len(text)))
        old = text[start : data.draw(st.integers(start, len(text)))]
        if old and sum(text.startswith(old, at) for at in range(len(text))) == 1:
            ref = pair.session.refs.edit(handle, old, new)
            changed = text[:start] + new + text[start + len(old) :]
            assert (
                pair.model.mark(handle[4:].partition("@")[0], changed, cut=handle in pair.model.cut)
                == ref.versioned_handle
            )
        elif handle:
            with pytest.raises(InvalidParameter):
                pair.session.refs.edit(handle, old, new)

    @rule(pair=pairs, other=pairs, ref_id=IDS)
    def adopt(self, pair, other, ref_id):
        handle = other.model.newest(ref_id)
        if handle is None:
            with pytest.raises(HandleNotFound):
                pair.session.refs.copy_from(other.session, ref_id)
        else:
            ref = pair.session.refs.copy_from(other.session, ref_id)
            cut = handle in other.model.cut
            assert pair.model.mark(ref_id, other.model.held[handle], cut=cut) == ref.versioned_handle

    @rule(pair=pairs, ref_id=IDS, text=TEXTS)
    def ingest_without_waiting(self, pair, ref_id, text):
        async def ingest():
            pair.session.refs.observe(f'<ref id="{ref_id}">\n{text}\n</ref>')

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
        """Move the conversation to another namespace, unless it is empty or the name is taken."""
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
        await self.session._shared.home.assign(pair.session.conversation, origin=pair.namespace, namespace=namespace)

    @rule()
    def crash(self):
        """Simulate a crash after a flush, or on a server the loss of all connections. Flushed refs must survive."""
        for pair in self.open:
            self.run(pair.session.flush())
        if is_on_server():
            administer(url_of(self.place), END_CONNECTIONS)
        else:
            super().crash()

    @rule(pair=pairs)
    def check(self, pair):
        assert self.run(admin.check(pair.session)).ok

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
        super().teardown()


# Each step waits for the disk, so limit the number of steps.
TestRefs = RefsAgainstAModel.TestCase
TestRefs.settings = settings(max_examples=max(10, settings.default.max_examples // 5), stateful_step_count=25)
