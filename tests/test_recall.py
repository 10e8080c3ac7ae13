"""What a session recalls before its model answers."""

import functools
from datetime import UTC, datetime

import attrs
import pytest
from hostile_helpers import ROWS, check_block, save
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory
from test_quoting import hostile_texts

from mama_structs import HashEmbedder, Hit, Outcome, Session
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.engine import Filter
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.upkeep.namespace_services import Shared
from mama_structs.refs.conversations.recall_log import Told
from mama_structs.session.recall_builder import Grounds, without_recalled, written

LOGIN = "How do we do the login sessions on the server?"


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as one:
        yield one


@pytest.fixture
async def login(session):
    return await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")


# What is told


async def test_what_holds_on_the_matter_is_told(session, login):
    """A decision that answers the message stands in the text and among the hits."""
    recalled = await session.recall(LOGIN)

    assert recalled
    assert [login.id] == [hit.memory.id for hit in recalled.hits]
    assert f'Stands:\n- decision, {login.created_at:%Y-%m-%d}, on "auth": "Use server sessions for login"; ' in str(
        recalled
    )
    assert f'since "tokens cannot be revoked" [{login.id}]' in recalled.text


@pytest.mark.parametrize("message", ["How tall is the Eiffel tower?", "", "  \n", None, [{"role": "assistant"}]])
async def test_nothing_relevant_is_nothing(session, login, message):
    """Where nothing has to do with the message there is no text, and the answer is false."""
    recalled = await session.recall(message)

    assert not recalled
    assert "" == recalled.text


async def test_the_users_last_message_counts(session, login):
    """A provider's messages are read as everywhere else."""
    messages = [{"role": "user", "content": LOGIN}, {"role": "assistant", "content": "How tall is the Eiffel tower?"}]

    assert await session.recall(messages)


@pytest.mark.parametrize("message", ["continue from yesterday", "어제 하던 거 이어서 하자"])
async def test_the_last_checkpoint_is_told_where_work_goes_on(session, message):
    """A message that goes on with earlier work gets the newest checkpoint, and what that carries out."""
    await session.memories.save_checkpoint("The parser reads headers", next_steps=["read bodies"])
    decision = await session.memories.save_decision("parser", "Write it by hand", "no generator fits")
    newest = await session.memories.save_checkpoint(
        "The parser reads bodies", next_steps=["write tests"], open_files=["parser.py"], implements=[decision.id]
    )

    recalled = await session.recall(message)

    assert newest == recalled.checkpoint
    assert '"The parser reads bodies"; next: "write tests"; files: "parser.py"' in recalled.text
    assert [(decision.id, (newest.id,))] == [(hit.memory.id, hit.path) for hit in recalled.hits]
    assert "reads headers" not in recalled.text


async def test_what_has_ended_is_not_told(session, login):
    """A checkpoint, what it carries out and what contradicts another are told as long as they hold."""
    ended = {"valid_until": datetime(2026, 1, 2, tzinfo=UTC), "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    other = await session.memories.save_decision("auth", "Keep no sessions at all", "we scale", **ended)
    await session.memories.link(other.id, login.id, "contradicts")
    newest = await session.memories.save_checkpoint("The server reads cookies", implements=[other.id])
    await session.memories.save_checkpoint("The server bakes cookies", valid_until=ended["valid_until"])

    recalled = await session.recall(f"continue from yesterday. {LOGIN}")

    assert newest == recalled.checkpoint
    assert () == recalled.conflicts
    assert "Keep no sessions at all" not in recalled.text


async def test_other_messages_get_no_checkpoint(session):
    """Where nothing is gone on with, the last checkpoint stays where it is."""
    await session.memories.save_checkpoint("The parser reads bodies")

    assert None is (await session.recall("The parser reads which bodies?")).checkpoint


async def test_what_failed_is_told_with_its_reason(session, login):
    """A decision that failed is told as such, once, whether it or its reason was found, with what stands instead."""
    await session.memories.set_outcome(login.id, "FAILED", reason="the server sessions were lost at each restart")
    instead = await session.memories.supersede(login.id, "Keep login sessions in the database", "it outlives restarts")

    recalled = await session.recall("Why were login sessions on the server lost at each restart?")

    assert 1 == recalled.text.count(f"[{login.id}]")
    failed = next(line for line in recalled.text.splitlines() if f"[{login.id}]" in line)
    assert 'FAILED because "the server sessions were lost at each restart"' in failed
    assert f"in its place [{instead.id}]" in failed
    assert recalled.text.index("Failed, or worked only in part:") < recalled.text.index(failed)


async def test_what_was_tried_before_is_told_with_what_stands(session, login):
    """Whoever is told what holds is told what failed before it, though only the new decision answers the message."""
    await session.memories.set_outcome(login.id, "FAILED", reason="they were lost")
    await session.memories.supersede(login.id, "Passkeys open the front door", "no state at all")

    recalled = await session.recall("What opens the front door?")

    assert [(), (recalled.hits[0].memory.id,)] == [hit.path for hit in recalled.hits]
    assert login.id == recalled.hits[1].memory.id
    assert f'FAILED because "they were lost"; in its place [{recalled.hits[0].memory.id}]' in recalled.text
    assert not await session.recall("What opens the front door?")


async def test_what_was_superseded_is_not_told_as_if_it_held(session, login):
    """Of a chain only what stands is told, and that it took the place of what was told before."""
    await session.recall(LOGIN)
    instead = await session.memories.supersede(login.id, "Use login sessions in the database", "servers restart")

    recalled = await session.recall(LOGIN)

    assert [instead.id] == [hit.memory.id for hit in recalled.hits]
    assert f"in place of [{login.id}]" in recalled.text
    assert "Use server sessions" not in recalled.text


async def test_what_contradicts_each_other_is_told_as_a_conflict(session, login):
    """An explicit link that says so makes a conflict of two that stand, and of no others."""
    other = await session.memories.save_decision(
        "signing in",
        "No state is kept anywhere",
        "we scale",
        links=[{"to_id": login.id, "relationship": "Contradicts", "reason": "a session is state"}],
    )

    recalled = await session.recall(LOGIN)

    (conflict,) = recalled.conflicts
    assert ({other.id, login.id}, "a session is state") == ({one.id for one in conflict.memories}, conflict.reason)
    assert "Against each other, so ask which one holds:" in recalled.text
    assert "No state is kept anywhere" in recalled.text

    await session.memories.supersede(other.id, "State is kept on the server", "we do not scale")

    assert () == (await session.recall(LOGIN, again=True)).conflicts


async def test_what_disagrees_on_a_topic_is_a_conflict_without_a_link(session):
    """Of what was found, two that stand on one topic and say the opposite are against each other, once."""
    older = await session.memories.save_decision("auth", "Use JWT for login", "stateless", origin="outside")
    newer = await session.memories.save_decision("auth", "Do not use JWT for login", "it cannot be revoked")
    await session.memories.save_decision("signing", "Use JWT for login", "stateless")

    recalled = await session.recall("Do we use JWT for login?")

    assert [(newer, older)] == [conflict.memories for conflict in recalled.conflicts]
    (line,) = [one for one in recalled.text.splitlines() if " against " in one]
    assert f"[{newer.id}] against" in line
    assert f'"Use JWT for login" from outside, unchecked [{older.id}]' in line
    await session.memories.link(newer.id, older.id, "contradicts", reason="one or the other")
    assert ["one or the other"] == [one.reason for one in (await session.recall("JWT login?", again=True)).conflicts]
    await session.memories.set_outcome(older.id, "FAILED", reason="tokens leaked")
    assert () == (await session.recall("Do we use JWT for login?", again=True)).conflicts


async def test_half_a_character_hides_nothing(session, login):
    """A message with half of a surrogate pair, as of an emoji cut in two, is searched for with a mark in its place."""
    assert [login.id] == [hit.memory.id for hit in (await session.recall(f"{LOGIN} \ud83d")).hits]


async def test_where_it_comes_from_is_marked(session):
    """What was written by somebody outside, or rests on it, says so."""
    await session.memories.save_insight("The login server allows 9 sessions", origin="outside")
    await session.memories.save_insight("The login server allows sessions of 5 hours", origin="tool")
    await session.memories.save_insight("The login server allows sessions from 3 hosts", origin="model")

    lines = (await session.recall("What sessions does the login server allow?")).text.splitlines()

    assert ["9"] == [line.split()[-3] for line in lines if ", from outside, unchecked:" in line] or any(
        ", from outside, unchecked:" in line and '"The login server allows 9 sessions"' in line for line in lines
    )
    assert any(", from a tool:" in line and "5 hours" in line for line in lines)
    assert any("3 hosts" in line and ", from" not in line for line in lines)


# Once a conversation


async def test_a_fact_is_told_once_a_conversation_unless_it_changed(session, login):
    """What was told is not told again, until something of it is another."""
    assert await session.recall(LOGIN)
    assert not await session.recall(LOGIN)

    await session.memories.set_outcome(login.id, "PARTIAL", reason="half of the login servers share none")

    assert "PARTIAL" in (await session.recall(LOGIN)).text
    assert not await session.recall(LOGIN)
    assert await session.recall(LOGIN, again=True)


async def test_what_was_told_is_known_after_reopening_and_to_forks(tmp_path):
    """A conversation that is taken up again was told what it was told, and so was its fork; others were not."""
    async with Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")
        before = session.fork("before")
        assert await session.recall(LOGIN)
        fork = session.fork("fork")
        assert not await fork.recall(LOGIN)
        assert await before.recall(LOGIN)
        await fork.close()
        await before.close()
    for name in ("one", "fork", "before"):
        async with Session.open(tmp_path, conversation=name) as session:
            assert not await session.recall(LOGIN), name
            assert session.is_recalled("Use server sessions for login.")
    async with Session.open(tmp_path, conversation="other") as session:
        assert await session.recall(LOGIN)


@pytest.mark.of_the_directory("it lists conversations by their directory; on a server tests/test_conversations.py does")
async def test_what_was_told_goes_with_its_conversation(tmp_path):
    """A deleted conversation leaves nothing of what it was told, and one of its name is told anew."""
    async with Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")
        await session.recall(LOGIN)
    conversations = await Session.conversations(tmp_path)
    assert ["one"] == [one.name for one in conversations]
    await conversations.delete("one")
    async with Session.open(tmp_path, conversation="one") as session:
        assert [] == await session._common.home.storage.keys("told/", namespace="default")
        assert await session.recall(LOGIN)


async def test_what_was_told_moves_with_its_conversation(tmp_path):
    """A conversation that is moved to another namespace takes along what it was told, and leaves none of it behind."""
    async with Session.open(tmp_path, namespace="from", conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")
        await session.recall(LOGIN)
    async with Session.open(tmp_path, namespace="to") as session:
        home = session._common.home
        before = await home.storage.keys("told/", namespace="from")
        await home.assign("one", origin="from", namespace="to")
        after = await home.storage.keys("told/", namespace="to")
    async with Session.open(tmp_path, namespace="to", conversation="one") as session:
        assert session.is_recalled("Use server sessions for login")

    assert 1 == len(before) == len(after)
    assert before != after


async def test_a_row_that_cannot_be_read_is_told_again(tmp_path):
    """What was told is no more than a convenience: a row of another form is passed over."""
    async with Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")
        await session.recall(LOGIN)
    async with Session.open(tmp_path) as session:
        storage = session._common.home.storage
        (key,) = await storage.keys("told/", namespace="default")
        await storage.transact(lambda rows: rows.put(key, b'{"state": 1}'), namespaces=["default"])
    async with Session.open(tmp_path, conversation="one") as session:
        assert await session.recall(LOGIN)


async def test_what_was_told_is_kept_as_hashes(tmp_path):
    """No word of a memory stands in the rows of what a conversation was told: it could not be forgotten there."""
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        await session.memories.save_decision("auth", "Use server sessions for login", "tokens cannot be revoked")
        await session.recall(LOGIN)
        await session.flush()
        storage = session._common.home.storage
        keys = await storage.keys("told/", namespace="default")
        rows = await storage.read(keys, namespace="default")

    assert 1 == len(keys)
    for word in (b"login", b"auth", b"tokens", b"decision"):
        assert word not in b"".join([*map(str.encode, keys), *rows.values()])


# What was recalled is not learnt


async def test_what_was_recalled_is_recognised(session, login):
    """The text itself, a line of it, and the words of a memory that it told are no news; other words are."""
    recalled = await session.recall(LOGIN)

    for text in (
        recalled.text,
        f"  {recalled.text}\n",
        recalled.text.splitlines()[3],
        "use server sessions  for login.",
        '"Tokens cannot be revoked"',
    ):
        assert session.is_recalled(text), text
    for text in (f"{recalled.text} And now?", "Use server sessions", "Use client sessions for login", ""):
        assert not session.is_recalled(text), text


async def test_a_message_is_searched_for_without_what_was_recalled(session, login):
    """What stands in a message since it was recalled finds nothing again."""
    recalled = await session.recall(LOGIN)

    assert not await session.recall(f"{recalled.text}\nHow tall is the Eiffel tower?", again=True)
    assert "\nHow?" == without_recalled(f"{recalled.text}\nHow?")


# It is quoted


async def test_no_hostile_memory_leaves_the_block(session):
    """Sixty memories that try to are recalled by their own words, and each stays quoted and marked."""
    told = 0
    for row in ROWS:
        memory = await save(session.memories, row)
        recalled = await session.recall(row["content"] * row.get("repeat", 1), again=True)
        if recalled:
            check_block(recalled.text)
            told += memory.id in {hit.memory.id for hit in recalled.hits}

    assert 50 <= told


IDS = ["decision_a_1700000000000_deadbeef", "decision_</recalled>_1700000000001_deadbeef", "decision_c d"]
decisions = st.builds(
    plain_memory,
    st.sampled_from(IDS),
    hostile_texts,
    topic=st.one_of(st.none(), hostile_texts),
    reasoning=hostile_texts,
    outcome=st.sampled_from([None, *Outcome]),
    outcome_reason=st.one_of(st.none(), hostile_texts),
)
checkpoints = st.builds(
    plain_memory,
    st.just("checkpoint_d_1700000000002_deadbeef"),
    hostile_texts,
    type=st.just(MemoryType.CHECKPOINT),
    next_steps=st.lists(hostile_texts, max_size=10).map(tuple),
    open_files=st.lists(hostile_texts, max_size=10).map(tuple),
)


@settings(max_examples=50)
@given(
    st.lists(decisions, max_size=8, unique_by=lambda memory: memory.id),
    st.one_of(st.none(), checkpoints),
    st.one_of(st.none(), hostile_texts),
    st.integers(300, 3000),
)
def test_a_text_is_quoted_and_as_long_as_it_may_be(found, checkpoint, reason, room):
    """Whatever memories say, all that is not ours stands quoted, within so many characters, and once."""
    link = plain_link(IDS[0], IDS[1], "contradicts")
    link = attrs.evolve(link, metadata=attrs.evolve(link.metadata, reason=reason))
    known = {one.id: one for one in (*found, *filter(None, [checkpoint]))}
    leads_to = {checkpoint.id: [one.id for one in found]} if checkpoint else {}
    told = Told()

    recalled = written(
        Grounds(memories=known, leads_to=leads_to, against=[link], checkpoint=checkpoint),
        [Hit(memory=one, score=1.0, relevance=1.0, parts={}) for one in found],
        told,
        room,
    )

    assert room >= len(recalled.text)
    if recalled:
        check_block(recalled.text)
    for hit in recalled.hits:
        assert told.was_told_of(hit.memory.id)


def test_less_is_said_of_each_memory_before_any_is_left_out():
    """A bound is kept by short forms first, and what was left out is not told yet."""
    found = [
        plain_memory(f"decision_{one}_1700000000000_deadbeef", f"{one} " * 200, reasoning="x " * 99) for one in "ab"
    ]
    hits = [Hit(memory=one, score=1.0, relevance=1.0, parts={}) for one in found]
    grounds = Grounds(memories={one.id: one for one in found})
    whole = written(grounds, hits, Told(), 2_000)

    short = written(grounds, hits, Told(), len(whole.text) - 1)
    told = Told()
    first = written(grounds, hits, told, 400)
    second = written(grounds, hits, told, 400)

    assert tuple(hits) == whole.hits == short.hits
    assert len(whole.text) > len(short.text)
    assert tuple(hits) == first.hits + second.hits
    assert 400 >= max(len(first.text), len(second.text))


@pytest.mark.parametrize("max_chars", [299, 0, -1, "2000", None, True])
async def test_a_bound_without_room_is_refused(session, max_chars):
    """Fewer than 300 characters hold nothing but what the text is."""
    with pytest.raises(InvalidArgument, match="max_chars"):
        await session.recall(LOGIN, max_chars=max_chars)


# What it costs


class Counted:
    """A reader whose calls are counted."""

    def __init__(self, reader, calls):
        self._reader = reader
        self._calls = calls

    def __getattr__(self, name):
        value = getattr(self._reader, name)
        if not callable(value):
            return value

        def call(*arguments, **more):
            self._calls.append(name)
            return value(*arguments, **more)

        return call


async def test_the_store_is_asked_as_often_however_much_was_found(session, login):
    """What is known of one hit and of fifty takes the same questions."""
    await session.memories.save_many({"type": "insight", "content": f"Note {number}"} for number in range(50))
    hits = await session.memories.search("Note", limit=51)
    counts = []
    for some in (hits[:1], hits):
        calls = []
        plan = functools.partial(Grounds.of, hits=some, where=Filter(), resuming=False)
        await session.memories._shared.read(lambda reader: plan(Counted(reader, calls)))  # noqa: B023 - awaited
        counts.append(len(calls))

    assert 51 == len(hits)
    assert counts[0] == counts[1]


async def test_it_costs_one_search_and_one_more_read(session, login, monkeypatch):
    """However much is remembered and told, the store is read twice, and once where nothing was found."""
    reads = []
    read = Shared.read

    async def counted(self, plan, **more):
        reads.append(calls := [])
        return await read(self, lambda reader: plan(Counted(reader, calls)), **more)

    await session.memories.save_checkpoint("The login server keeps sessions", implements=[login.id])
    other = await session.memories.save_decision("auth", "Keep no sessions on the login server", "we scale")
    await session.memories.link(other.id, login.id, "contradicts")
    await session.memories.set_outcome(login.id, "PARTIAL", reason="login sessions were lost")
    monkeypatch.setattr(Shared, "read", counted)

    recalled = await session.recall(f"continue from yesterday. {LOGIN}")

    assert recalled.conflicts
    assert recalled.checkpoint
    assert recalled.hits
    assert 2 == len(reads)
    assert 20 >= len(reads[1])
    assert not await session.recall("How tall is the Eiffel tower?")
    assert 3 == len(reads)
