"""`Session.recall` returns the memories that are relevant to a message."""

import functools
import json
from datetime import UTC, datetime

import attrs
import pytest
from hostile_helpers import ROWS, check_block, hostile_texts, save
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs import HashEmbedder, Hit, Outcome, Session, admin, types
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs.errors import InvalidArgument
from mama_structs.memory.types.engine import EngineFilter
from mama_structs.memory.types.model import MemoryType
from mama_structs.memory.upkeep.namespace_services import NamespaceServices
from mama_structs.refs.conversations.recall_log import RecalledFact, RecallLog
from mama_structs.session.recall_builder import RECALL_BOUNDS
from mama_structs.session.recall_text import RecallPlan
from mama_structs.session.related_memories import RelatedMemories

LOGIN = "How do we do the login sessions on the server?"


def render_recall(related, hits, recall_log, max_chars):
    return RecallPlan.make(related, hits, recall_log).render(recall_log, max_chars)


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
    assert f'Current:\n- decision, {login.created_at:%Y-%m-%d}, on "auth": "Use server sessions for login"; ' in str(
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
    assert recalled.text.index("Failed or partly successful:") < recalled.text.index(failed)


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
    assert "Contradictory, so ask which one is true:" in recalled.text
    assert "No state is kept anywhere" in recalled.text

    await session.memories.supersede(other.id, "State is kept on the server", reasoning="we do not scale")

    assert () == (await session.recall(LOGIN, repeat=True)).conflicts


async def test_recall_reports_stored_conflict_without_topic_until_it_is_dismissed(session):
    """The conflict is reported if the message finds only one of the memories. Both are true after the dismissal."""
    older = await session.memories.save_insight("The service supports retries.", created_at="2026-01-01")
    newer = await session.memories.save_insight("The service does not support retries.")
    (conflict,) = (await session.recall("Does the service support retries?", repeat=True)).conflicts

    assert (newer.id, older.id) == tuple(memory.id for memory in conflict.memories)
    await session.memories.dismiss_conflict(newer, older)
    recalled = await session.recall("Does the service support retries?", repeat=True)
    assert () == recalled.conflicts
    assert {newer.id, older.id} == {hit.memory.id for hit in recalled.hits}
    assert "Outdated:" not in recalled.text


async def test_recall_marks_memory_as_outdated_by_stored_replacement(session):
    """A newer memory that states a change replaces the older one. An untrusted one only contradicts it."""
    older = await session.memories.save_insight("Ana stores the invoices in the blue cabinet", created_at="2026-01-01")
    newer = await session.memories.save_insight("Ana no longer stores the invoices in the blue cabinet")
    assert newer.warnings.possible_replacements
    recalled = await session.recall("Where does Ana store the invoices?", repeat=True)

    assert () == recalled.conflicts
    assert f'"{older.content}"' in recalled.text.partition("Outdated:")[2]
    await session.memories.delete(newer)
    await session.memories.save_insight("Ana no longer stores the invoices in the blue cabinet", origin="outside")
    recalled = await session.recall("Where does Ana store the invoices?", repeat=True)
    assert recalled.conflicts
    assert "Outdated:" not in recalled.text


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


async def test_recall_log_contains_no_text_except_ids(tmp_path):
    """Texts in these rows could not be erased."""
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        decision = await session.memories.save_decision(
            "Use server sessions for login", topic="auth", reasoning="tokens cannot be revoked"
        )
        await session.recall(LOGIN)
        await session.flush()
        storage = session._shared.home.storage
        keys = await storage.keys("told/", namespace="default")
        rows = await storage.read(keys, namespace="default")

    assert 1 == len(keys)
    stored = b"".join([*map(str.encode, keys), *rows.values()])
    assert 1 == stored.count(b"auth") == stored.count(decision.id.encode())
    for word in (b"login", b"tokens"):
        assert word not in stored


FILLER = "Nothing of interest was said about the weather or about the lunch. "
NOTE = (
    FILLER * 30
    + "The boiler in the cellar needs a pressure of 1.4 bar, as the plumber said. "
    + FILLER * 40
    + "The key of the attic hangs behind the blue door, and only Ada may take it. "
    + FILLER * 30
)


async def test_further_passage_of_recalled_memory_is_recalled(session):
    """A passage is recalled once; the whole memory is recalled again after a change."""
    note = await session.memories.save_context(NOTE, topic="house")
    boiler, key = "What pressure does the boiler need?", "Where hangs the key of the attic?"

    texts = [(await session.recall(one, max_chars=800)).text for one in (boiler, key, boiler, key)]

    assert ["1.4 bar" in text for text in texts] == [True, False, False, False]
    assert ["blue door" in text for text in texts] == [False, True, False, False]
    await session.memories.update(note, content=f"{NOTE} Done.")
    assert "1.4 bar" in (await session.recall(boiler, max_chars=800)).text


async def test_named_conversations_have_own_logs(tmp_path):
    """They survive reopening, and repeat=True clears only the named one."""
    async with Session.open(tmp_path, conversation="shared", embedder=HashEmbedder()) as session:
        await session.memories.save_decision("Use server sessions for login", topic="auth", reasoning="revocable")
        assert await session.recall(LOGIN, conversation="ada")
        assert await session.recall(LOGIN, conversation="bob")
        assert not await session.recall(LOGIN, conversation="ada")
        assert session.was_recalled("Use server sessions for login")
    async with Session.open(tmp_path, conversation="shared") as session:
        assert not await session.recall(LOGIN, conversation="bob")
        assert await session.recall(LOGIN)
        assert not await session.recall(LOGIN, conversation="shared")
        assert await session.recall(LOGIN, conversation="ada", repeat=True)
        assert not await session.recall(LOGIN, conversation="bob")


@pytest.mark.parametrize("conversation", ["", 1, "x" * 10_000])
async def test_recall_rejects_invalid_conversation(session, conversation):
    with pytest.raises(InvalidArgument, match="conversation"):
        await session.recall(LOGIN, conversation=conversation)


def test_log_rows_of_earlier_versions_apply_to_whole_memories():
    told = RecallLog()
    told.record([RecalledFact(subject="a", state="x", texts=("One.",), shown=(0, 10))])
    name, row = next(iter(told._rows.items()))
    stored = {"state": row.events[0].state_hash, "texts": row.texts}

    old = RecallLog.from_rows({name: json.dumps(stored).encode()}, lambda _rows: None)
    stored |= {"at_ms": 7_000, "relevance": 0.5, "shown": [[0, 10], [20, 30]], "conversation": "83d3"}
    later = RecallLog.from_rows({name: json.dumps(stored).encode()}, lambda _rows: None)

    assert told.contains("a", "x", (2, 10))
    assert not told.contains("a", "x", (2, 11))
    assert old.contains("a", "x", (500, 600))
    assert old.contains_text("One.")
    assert not old.contains("a", "y")
    assert [True, True, False] == [later.contains("a", "x", one) for one in [(2, 10), (20, 30), (5, 15)]]
    # Only the time of the last one was stored.
    assert [(7_000, 0.5, (20, 30)), (0, 0.0, (0, 10))] == [
        (one.at_ms, one.relevance, one.shown) for one in later.facts()[0].events
    ]
    assert ("", ()) == (later.facts()[0].dialogue, later.facts()[0].ids)


@pytest.mark.parametrize("at_ms", [-(10**14), 10**15, 10**30])
@pytest.mark.parametrize("row", ['{{"state": "x", "at_ms": {}}}', '{{"events": [[{}, 0.5, "x"]], "ids": ["a"]}}'])
def test_log_row_with_impossible_time_is_unreadable(row, at_ms):
    log = RecallLog.from_rows({"a": row.format(at_ms).encode()}, lambda _rows: None)
    assert (["a"], []) == (log.damaged, log.facts())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(50, 99)), min_size=1, max_size=5))
def test_log_contains_each_recorded_range_until_the_state_changes(ranges):
    told = RecallLog()
    for shown in ranges:
        told.record([RecalledFact(subject="a", state="x", shown=shown)], at_ms=7)

    copied = told.copy(lambda _rows: None)

    for start, end in ranges:
        assert copied.contains("a", "x", (start, end))
    assert not copied.contains("a", "x", (0, 100))
    copied.record([RecalledFact(subject="a", state="y", shown=(0, 1))])
    assert not copied.contains("a", "y", ranges[0])
    copied.record([RecalledFact(subject="a", state="x", shown=(0, 1))])
    assert not copied.contains("a", "x", ranges[0])
    assert told.for_conversation("other").contains_subject("a") is False


# Explanation


async def test_recall_explains_what_it_left_out(session, login):
    """Each memory that was found is a hit of the recall or has a reason."""
    await session.memories.save_insight("The weather is fine")
    kept = await session.memories.save_decision("Store login sessions in the cloud", topic="cloud", reasoning="cheap")
    instead = await session.memories.supersede(kept, "Store login sessions on the own server", reasoning="privacy")

    first = await session.recall(LOGIN, explain=True)
    second = await session.recall(LOGIN, explain=True)
    nothing = await session.recall("How tall is the Eiffel tower?", explain=True)
    state = await session.memories.save_checkpoint("The weather page is done", next_steps=["add the wind"])
    continued = await session.recall("Let's continue from yesterday.", explain=True)

    reasons = {one.memory.id: one.reason for one in first.left_out}
    assert "superseded" == reasons.get(kept.id, "superseded")
    assert "below the threshold" in reasons.values()
    assert instead.id in {hit.memory.id for hit in first.hits}
    assert not reasons.keys() & {hit.memory.id for hit in first.hits}
    assert {hit.memory.id: "already recalled" for hit in first.hits}.items() <= {
        one.memory.id: one.reason for one in second.left_out
    }.items()
    assert {"below the threshold"} == {one.reason for one in nothing.left_out}
    assert state.id == continued.checkpoint.id
    assert state.id not in {one.memory.id for one in continued.left_out}
    assert () == (await session.recall(LOGIN, repeat=True)).left_out
    assert "below the threshold" in first.to_json()


async def test_recall_explains_each_line(session):
    """A line has its text, its section, its reason, and the memory because of which it is there."""
    jwt = await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="no server state")
    await session.memories.set_outcome(jwt, "FAILED", reason="A stolen JWT could not be revoked")
    redis = await session.memories.supersede(jwt, "Keep logins in Redis", reasoning="can be revoked")
    long = await session.memories.save_insight(
        "The JWT logins fail at night. " + "Nobody knows the reason for it. " * 100
    )
    kept = await session.memories.save_checkpoint("Login service is half done", next_steps=["test logins"])

    message = "Let's continue where we left off: the JWT logins that fail at night"
    found = await session.recall(message, explain=True, max_chars=1_000)
    again = await session.recall(message, explain=True)

    lines = {line.memories[0].id: line for line in found.lines}
    assert [line.text for line in found.lines] == [line for line in found.text.splitlines() if line.startswith("- ")]
    assert ("checkpoint", "checkpoint", None) == _reason_of(lines[kept.id])
    assert ("failed", "match", None) == _reason_of(lines[jwt.id])
    assert "current" == lines[redis.id].section
    start, end = lines[long.id].shown
    assert 0 == start < end < len(long.content)
    assert "JWT logins fail at night." in long.content[start:end]
    assert () == again.lines
    known = {one.memory.id: one.recalled_at for one in again.left_out if one.reason == "already recalled"}
    assert kept.id in known
    assert None not in known.values()
    (below,) = {one.threshold for one in (await session.recall("Eiffel tower?", explain=True)).left_out}
    assert RECALL_BOUNDS.relevance == below


def _reason_of(line):
    return line.section, line.reason, line.source_id


def test_recall_explains_lines_without_room():
    found = [plain_memory(f"decision_{one}_1700000000000_deadbeef", f"{one} " * 200) for one in "abcdef"]
    hits = [Hit(memory=one, score=1.0, relevance=0.9, signals={}) for one in found]
    plan = RecallPlan.make(RelatedMemories(memories={one.id: one for one in found}), hits, RecallLog())

    recalled = plan.render(RecallLog(), 600)
    left = [*plan.explain(recalled, hits, (), bounds=RECALL_BOUNDS)]

    assert recalled.hits
    assert {one.needed_chars for one in left} == {len("Current:\n") + len(recalled.lines[-1].text) + 1}
    assert [(hit.memory, "no room") for hit in hits[len(recalled.hits) :]] == [(one.memory, one.reason) for one in left]


# Current and outdated statements


def _make_outdated(*contents):
    """Return memories that the last one makes outdated, and their hits."""
    found = [plain_memory(f"insight_{one}", text, type=MemoryType.INSIGHT) for one, text in enumerate(contents)]
    hits = [Hit(memory=one, score=1.0, relevance=0.9, signals={}) for one in found]
    newer = {one.id: found[-1].id for one in found[:-1]}
    return RelatedMemories(memories={one.id: one for one in found}, newer=newer, outdated=frozenset(newer)), hits


def test_outdated_statement_follows_current_one_in_own_section():
    related, hits = _make_outdated("The port is 5432", "The port is 5433")

    recalled = render_recall(related, hits[:1], RecallLog(), 2_000)

    lines = recalled.text.splitlines()[2:-1]
    assert ["Current:", "Outdated:"] == lines[::2]
    assert "5433" in lines[1]
    assert "5432" in lines[3]
    assert f"in its place [{hits[1].memory.id}]" in lines[3]
    assert [hits[1].memory, hits[0].memory] == [hit.memory for hit in recalled.hits]


@given(st.integers(300, 700))
def test_outdated_statement_is_never_recalled_alone(max_chars):
    related, hits = _make_outdated("The port is 5432", f"The port is 5433. {FILLER * 3}")

    recalled = render_recall(related, hits[:1], RecallLog(), max_chars)

    assert "5433" in recalled.text or not recalled


async def test_successor_is_recalled_if_only_predecessor_is_found(session):
    """The text of the successor has no word in common with the message."""
    jwt = await session.memories.save_decision("Use JWT tokens for logins", topic="auth", reasoning="it is stateless")
    await session.memories.supersede(jwt, "Cookies replace them", reasoning="they can be ended")

    recalled = await session.recall("Why do we use stateless JWT tokens for logins?")

    assert "Cookies replace them" in recalled.text


@given(st.lists(st.integers(1, 1_500), min_size=1, max_size=6), st.integers(400, 3_000))
def test_recalled_text_fills_the_budget(lengths, max_chars):
    """Texts are cut only if the rest of the budget is too small to show more words."""
    found = [
        plain_memory(f"insight_{at}", "word " * length, type=MemoryType.INSIGHT) for at, length in enumerate(lengths)
    ]
    hits = [Hit(memory=one, score=1.0, relevance=0.9, signals={}) for one in found]

    recalled = render_recall(RelatedMemories(memories={one.id: one for one in found}), hits, RecallLog(), max_chars)

    assert len(recalled.text) <= max_chars
    if "…" in recalled.text:
        assert len(recalled.text) > max_chars - 100


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
    related = RelatedMemories(memories={one.id: one for one in found})
    whole = render_recall(related, hits, RecallLog(), 2_000)

    short = render_recall(related, hits, RecallLog(), len(whole.text) - 1)
    told = RecallLog()
    first = render_recall(related, hits, told, 400)
    second = render_recall(related, hits, told, 400)

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
        plan = functools.partial(
            RelatedMemories.read,
            hits=some,
            query="Note",
            where=EngineFilter(),
            resuming=False,
            shared_dimensions=HashEmbedder().dimensions,
        )
        # The lambda runs within this iteration of the loop, so the loop variable has the right value.
        await session.memories._shared.read(lambda reader: plan(Counted(reader, calls)))  # noqa: B023
        counts.append(len(calls))

    assert 51 == len(hits)
    assert counts[0] >= counts[1]


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


@pytest.mark.parametrize("message", ["today", "오늘", "hoy?", "last week ..."])
async def test_message_that_only_names_a_period_recalls_nothing(session, login, message):
    """It asks for nothing."""
    assert not await session.recall(message)


async def test_unrelated_newer_memory_follows_the_answer(session):
    """A shared name alone does not make a memory outdated."""
    await session.memories.save_insight("Alice's favourite colour is green.", created_at="2026-01-01")
    await session.memories.save_insight("Alice went to the dentist on Market Street.", created_at="2026-02-01")
    for text in ("The build runs on GitHub.", "Bob likes tea.", "Lunch is at noon."):
        await session.memories.save_insight(text)
    recalled = await session.recall("What is Alice's favourite colour?")

    assert "Alice's favourite colour is green." == recalled.hits[0].content
    assert "Outdated:" not in recalled.text


async def test_memories_with_many_unresolved_conflicts_are_not_outdated(session):
    """Recall shows at most three conflicts, and marks no side of the others as outdated."""
    for port in range(5):
        await session.memories.save_insight(f"The API port is {8080 + port}.")
    recalled = await session.recall("What is the API port?")

    assert 3 == len(recalled.conflicts)
    assert "Outdated:" not in recalled.text


async def test_copies_of_a_memory_do_not_repeat_its_conflict(session):
    for text in ("The API port is 8080.", "The API port is 9090.", "The API port is 9090!"):
        await session.memories.save_insight(text)

    assert 1 == len((await session.recall("What is the API port?")).conflicts)


def test_relevance_just_below_the_threshold_is_no_contradiction():
    left = types.LeftOut(memory=plain_memory("a"), relevance=0.0799, reason="below the threshold", threshold=0.08)
    assert left.explanation == "not relevant enough: a little less than 0.08, at least 0.08 is needed"
