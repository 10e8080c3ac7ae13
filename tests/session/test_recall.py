"""`Session.recall` returns the memories that are relevant to a message."""

import functools
from datetime import UTC, datetime

import attrs
import pytest
from hostile_helpers import ROWS, check_block, hostile_texts, save
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs import HashEmbedder, Hit, Outcome, Session, admin
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.engine import EngineFilter
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.refs.conversations.recall_log import RecallLog
from mama_structs.session.recall_builder import RelatedMemories, remove_recalled, render_recall

LOGIN = "How do we do the login sessions on the server?"


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as one:
        yield one


@pytest.fixture
async def login(session):
    return await session.memories.save_decision(
        "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
    )


# Content


async def test_recall_contains_relevant_decision(session, login):
    """The decision is part of the text and of the hits."""
    recalled = await session.recall(LOGIN)

    assert recalled
    assert [login.id] == [hit.memory.id for hit in recalled.hits]
    assert f'Stands:\n- decision, {login.created_at:%Y-%m-%d}, on "auth": "Use server sessions for login"; ' in str(
        recalled
    )
    assert f'since "tokens cannot be revoked" [{login.id}]' in recalled.text


@pytest.mark.parametrize("message", ["How tall is the Eiffel tower?", "", "  \n", None, [{"role": "assistant"}]])
async def test_recall_is_empty_and_false_when_nothing_is_relevant(session, login, message):
    recalled = await session.recall(message)

    assert not recalled
    assert "" == recalled.text


async def test_recall_uses_last_user_message(session, login):
    messages = [{"role": "user", "content": LOGIN}, {"role": "assistant", "content": "How tall is the Eiffel tower?"}]

    assert await session.recall(messages)


@pytest.mark.parametrize("message", ["continue from yesterday", "어제 하던 거 이어서 하자"])
async def test_recall_contains_checkpoint_when_work_continues(session, message):
    """Recall also contains the memories that carry out the checkpoint."""
    await session.memories.save_checkpoint("The parser reads headers", next_steps=["read bodies"])
    decision = await session.memories.save_decision("Write it by hand", topic="parser", reasoning="no generator fits")
    newest = await session.memories.save_checkpoint(
        "The parser reads bodies", next_steps=["write tests"], open_files=["parser.py"], implements=[decision.id]
    )

    recalled = await session.recall(message)

    assert newest == recalled.checkpoint
    assert '"The parser reads bodies"; next: "write tests"; files: "parser.py"' in recalled.text
    assert [(decision.id, (newest.id,))] == [(hit.memory.id, hit.path) for hit in recalled.hits]
    assert "reads headers" not in recalled.text


async def test_recall_omits_memories_that_are_no_longer_valid(session, login):
    """Covers checkpoints, memories that carry them out, and contradictory memories."""
    ended = {"valid_until": datetime(2026, 1, 2, tzinfo=UTC), "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    other = await session.memories.save_decision("Keep no sessions at all", topic="auth", reasoning="we scale", **ended)
    await session.memories.link(other.id, login.id, "contradicts")
    newest = await session.memories.save_checkpoint("The server reads cookies", implements=[other.id])
    await session.memories.save_checkpoint("The server bakes cookies", valid_until=ended["valid_until"])

    recalled = await session.recall(f"continue from yesterday. {LOGIN}")

    assert newest == recalled.checkpoint
    assert () == recalled.conflicts
    assert "Keep no sessions at all" not in recalled.text


async def test_recall_omits_checkpoint_for_other_messages(session):
    await session.memories.save_checkpoint("The parser reads bodies")

    assert None is (await session.recall("The parser reads which bodies?")).checkpoint


async def test_recall_contains_failed_decision_with_reason_once(session, login):
    """The search may have found the decision or its reason. The text also names the successor."""
    await session.memories.set_outcome(login.id, "FAILED", reason="the server sessions were lost at each restart")
    instead = await session.memories.supersede(
        login.id, "Keep login sessions in the database", reasoning="it outlives restarts"
    )

    recalled = await session.recall("Why were login sessions on the server lost at each restart?")

    assert 1 == recalled.text.count(f"[{login.id}]")
    failed = next(line for line in recalled.text.splitlines() if f"[{login.id}]" in line)
    assert 'FAILED because "the server sessions were lost at each restart"' in failed
    assert f"in its place [{instead.id}]" in failed
    assert recalled.text.index("Failed, or worked only in part:") < recalled.text.index(failed)


async def test_recall_contains_failed_predecessor_of_current_decision(session, login):
    """Only the successor is relevant to the message."""
    await session.memories.set_outcome(login.id, "FAILED", reason="they were lost")
    await session.memories.supersede(login.id, "Passkeys open the front door", reasoning="no state at all")

    recalled = await session.recall("What opens the front door?")

    assert [(), (recalled.hits[0].memory.id,)] == [hit.path for hit in recalled.hits]
    assert login.id == recalled.hits[1].memory.id
    assert f'FAILED because "they were lost"; in its place [{recalled.hits[0].memory.id}]' in recalled.text
    assert not await session.recall("What opens the front door?")


async def test_recall_omits_superseded_decision(session, login):
    """If the predecessor was recalled before, its successor names it."""
    await session.recall(LOGIN)
    instead = await session.memories.supersede(
        login.id, "Use login sessions in the database", reasoning="servers restart"
    )

    recalled = await session.recall(LOGIN)

    assert [instead.id] == [hit.memory.id for hit in recalled.hits]
    assert f"in place of [{login.id}]" in recalled.text
    assert "Use server sessions" not in recalled.text


async def test_recall_reports_conflict_of_linked_memories(session, login):
    """A conflict is reported only if both memories are current."""
    other = await session.memories.save_decision(
        "No state is kept anywhere",
        topic="signing in",
        reasoning="we scale",
        links=[{"to_id": login.id, "relationship": "Contradicts", "reason": "a session is state"}],
    )

    recalled = await session.recall(LOGIN)

    (conflict,) = recalled.conflicts
    assert ({other.id, login.id}, "a session is state") == ({one.id for one in conflict.memories}, conflict.reason)
    assert "Against each other, so ask which one holds:" in recalled.text
    assert "No state is kept anywhere" in recalled.text

    await session.memories.supersede(other.id, "State is kept on the server", reasoning="we do not scale")

    assert () == (await session.recall(LOGIN, repeat=True)).conflicts


async def test_recall_reports_conflict_of_contradictory_texts_on_one_topic(session):
    """Each pair is reported once."""
    older = await session.memories.save_decision(
        "Use JWT for login", topic="auth", reasoning="stateless", origin="outside"
    )
    newer = await session.memories.save_decision(
        "Do not use JWT for login", topic="auth", reasoning="it cannot be revoked"
    )
    await session.memories.save_decision("Use JWT for login", topic="signing", reasoning="stateless")

    recalled = await session.recall("Do we use JWT for login?")

    assert [(newer, older)] == [conflict.memories for conflict in recalled.conflicts]
    (line,) = [one for one in recalled.text.splitlines() if " against " in one]
    assert f"[{newer.id}] against" in line
    assert f'"Use JWT for login" from outside, unchecked [{older.id}]' in line
    await session.memories.link(newer.id, older.id, "contradicts", reason="one or the other")
    assert ["one or the other"] == [one.reason for one in (await session.recall("JWT login?", repeat=True)).conflicts]
    await session.memories.set_outcome(older.id, "FAILED", reason="tokens leaked")
    assert () == (await session.recall("Do we use JWT for login?", repeat=True)).conflicts


async def test_recall_replaces_lone_surrogate_in_message(session, login):
    assert [login.id] == [hit.memory.id for hit in (await session.recall(f"{LOGIN} \ud83d")).hits]


async def test_recall_marks_origin(session):
    """Texts by outside authors are marked, and so are memories that are based on such texts."""
    await session.memories.save_insight("The login server allows 9 sessions", origin="outside")
    await session.memories.save_insight("The login server allows sessions of 5 hours", origin="tool")
    await session.memories.save_insight("The login server allows sessions from 3 hosts", origin="model")

    lines = (await session.recall("What sessions does the login server allow?")).text.splitlines()

    assert ["9"] == [line.split()[-3] for line in lines if ", from outside, unchecked:" in line] or any(
        ", from outside, unchecked:" in line and '"The login server allows 9 sessions"' in line for line in lines
    )
    assert any(", from a tool:" in line and "5 hours" in line for line in lines)
    assert any("3 hosts" in line and ", from" not in line for line in lines)


# Recall log


async def test_fact_is_recalled_once_per_conversation_until_it_changes(session, login):
    assert await session.recall(LOGIN)
    assert not await session.recall(LOGIN)

    await session.memories.set_outcome(login.id, "PARTIAL", reason="half of the login servers share none")

    assert "PARTIAL" in (await session.recall(LOGIN)).text
    assert not await session.recall(LOGIN)
    assert await session.recall(LOGIN, repeat=True)


async def test_recall_log_is_known_after_reopening_and_to_forks(tmp_path):
    async with Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision(
            "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
        )
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
            assert session.was_recalled("Use server sessions for login.")
    async with Session.open(tmp_path, conversation="other") as session:
        assert await session.recall(LOGIN)


@pytest.mark.of_the_directory(
    "it lists conversations by their directory; on a server tests/session/test_conversations.py does"
)
async def test_recall_log_is_deleted_with_its_conversation(tmp_path):
    async with Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision(
            "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
        )
        await session.recall(LOGIN)
    conversations = await admin.list_conversations(tmp_path)
    assert ["one"] == [one.name for one in conversations]
    await admin.delete_conversation(tmp_path, "one")
    async with Session.open(tmp_path, conversation="one") as session:
        assert [] == await session._shared.home.storage.keys("told/", namespace="default")
        assert await session.recall(LOGIN)


async def test_recall_log_moves_with_its_conversation(tmp_path):
    async with Session.open(tmp_path, namespace="from", conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision(
            "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
        )
        await session.recall(LOGIN)
    async with Session.open(tmp_path, namespace="to") as session:
        home = session._shared.home
        before = await home.storage.keys("told/", namespace="from")
        await home.assign("one", origin="from", namespace="to")
        after = await home.storage.keys("told/", namespace="to")
    async with Session.open(tmp_path, namespace="to", conversation="one") as session:
        assert session.was_recalled("Use server sessions for login")

    assert 1 == len(before) == len(after)
    assert before != after


async def test_fact_with_unreadable_log_row_is_recalled_again(tmp_path):
    async with Session.open(tmp_path, conversation="one", embedder=HashEmbedder()) as session:
        await session.memories.save_decision(
            "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
        )
        await session.recall(LOGIN)
    async with Session.open(tmp_path) as session:
        storage = session._shared.home.storage
        (key,) = await storage.keys("told/", namespace="default")
        await storage.transact(lambda rows: rows.put(key, b'{"state": 1}'), namespaces=["default"])
    async with Session.open(tmp_path, conversation="one") as session:
        assert await session.recall(LOGIN)


async def test_recall_log_contains_only_hashes(tmp_path):
    """Texts in these rows could not be erased."""
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        await session.memories.save_decision(
            "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
        )
        await session.recall(LOGIN)
        await session.flush()
        storage = session._shared.home.storage
        keys = await storage.keys("told/", namespace="default")
        rows = await storage.read(keys, namespace="default")

    assert 1 == len(keys)
    for word in (b"login", b"auth", b"tokens", b"decision"):
        assert word not in b"".join([*map(str.encode, keys), *rows.values()])


# Recalled text


async def test_was_recalled_recognizes_recalled_texts(session, login):
    """It recognizes the whole block, a line of it, and the words of a recalled memory."""
    recalled = await session.recall(LOGIN)

    for text in (
        recalled.text,
        f"  {recalled.text}\n",
        recalled.text.splitlines()[3],
        "use server sessions  for login.",
        '"Tokens cannot be revoked"',
    ):
        assert session.was_recalled(text), text
    for text in (f"{recalled.text} And now?", "Use server sessions", "Use client sessions for login", ""):
        assert not session.was_recalled(text), text


async def test_recall_ignores_recalled_text_in_message(session, login):
    recalled = await session.recall(LOGIN)

    assert not await session.recall(f"{recalled.text}\nHow tall is the Eiffel tower?", repeat=True)
    assert "\nHow?" == remove_recalled(f"{recalled.text}\nHow?")


# Quotation


async def test_recalled_hostile_memory_stays_quoted(session):
    told = 0
    for row in ROWS:
        memory = await save(session.memories, row)
        recalled = await session.recall(row["content"] * row.get("repeat", 1), repeat=True)
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
def test_recall_quotes_all_memory_text_within_max_chars(found, checkpoint, reason, room):
    link = plain_link(IDS[0], IDS[1], "contradicts")
    link = attrs.evolve(link, metadata=attrs.evolve(link.metadata, reason=reason))
    known = {one.id: one for one in (*found, *filter(None, [checkpoint]))}
    leads_to = {checkpoint.id: [one.id for one in found]} if checkpoint else {}
    told = RecallLog()

    recalled = render_recall(
        RelatedMemories(memories=known, explained_by=leads_to, contradiction_links=[link], checkpoint=checkpoint),
        [Hit(memory=one, score=1.0, relevance=1.0, signals={}) for one in found],
        told,
        room,
    )

    assert room >= len(recalled.text)
    if recalled:
        check_block(recalled.text)
    for hit in recalled.hits:
        assert told.contains_subject(hit.memory.id)


def test_recall_shortens_memories_before_it_omits_any():
    """Omitted memories are not recorded as recalled."""
    found = [
        plain_memory(f"decision_{one}_1700000000000_deadbeef", f"{one} " * 200, reasoning="x " * 99) for one in "ab"
    ]
    hits = [Hit(memory=one, score=1.0, relevance=1.0, signals={}) for one in found]
    grounds = RelatedMemories(memories={one.id: one for one in found})
    whole = render_recall(grounds, hits, RecallLog(), 2_000)

    short = render_recall(grounds, hits, RecallLog(), len(whole.text) - 1)
    told = RecallLog()
    first = render_recall(grounds, hits, told, 400)
    second = render_recall(grounds, hits, told, 400)

    assert tuple(hits) == whole.hits == short.hits
    assert len(whole.text) > len(short.text)
    assert tuple(hits) == first.hits + second.hits
    assert 400 >= max(len(first.text), len(second.text))


@pytest.mark.parametrize("max_chars", [299, 0, -1, "2000", None, True])
async def test_recall_rejects_too_small_max_chars(session, max_chars):
    with pytest.raises(InvalidArgument, match="max_chars"):
        await session.recall(LOGIN, max_chars=max_chars)


# Cost


class Counted:
    """A reader that records its calls."""

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


async def test_number_of_reads_is_independent_of_number_of_hits(session, login):
    await session.memories.save_many({"type": "insight", "content": f"Note {number}"} for number in range(50))
    hits = await session.memories.search("Note", limit=51)
    counts = []
    for some in (hits[:1], hits):
        calls = []
        plan = functools.partial(RelatedMemories.read, hits=some, where=EngineFilter(), resuming=False)
        # The lambda runs within this iteration of the loop, so the loop variable has the right value.
        await session.memories._shared.read(lambda reader: plan(Counted(reader, calls)))  # noqa: B023
        counts.append(len(calls))

    assert 51 == len(hits)
    assert counts[0] == counts[1]


async def test_recall_takes_one_search_and_one_read(session, login, monkeypatch):
    """If the search finds nothing, the read is omitted."""
    reads = []
    read = NamespaceServices.read

    async def counted(self, plan, **more):
        reads.append(calls := [])
        return await read(self, lambda reader: plan(Counted(reader, calls)), **more)

    await session.memories.save_checkpoint("The login server keeps sessions", implements=[login.id])
    other = await session.memories.save_decision(
        "Keep no sessions on the login server", topic="auth", reasoning="we scale"
    )
    await session.memories.link(other.id, login.id, "contradicts")
    await session.memories.set_outcome(login.id, "PARTIAL", reason="login sessions were lost")
    monkeypatch.setattr(NamespaceServices, "read", counted)

    recalled = await session.recall(f"continue from yesterday. {LOGIN}")

    assert recalled.conflicts
    assert recalled.checkpoint
    assert recalled.hits
    assert 2 == len(reads)
    assert 20 >= len(reads[1])
    assert not await session.recall("How tall is the Eiffel tower?")
    assert 3 == len(reads)
