"""Reading of open conversations and of their recall logs."""

import asyncio
from datetime import UTC, datetime

import pytest

from mama_structs import HashEmbedder, Session
from mama_structs.errors import InvalidArgument
from mama_structs.memory.store.memory_store import MemoryStore
from mama_structs.refs.conversations.conversation_log import ConversationKey
from mama_structs.refs.conversations.conversations import delete_conversation, erase_recalled_ids
from mama_structs.refs.conversations.recall_log import MAX_EVENTS, RecalledFact
from mama_structs.refs.store.entries import DamagedEntry
from mama_structs.session import backend
from mama_structs.session.recall_history import read_recall_history

LOGIN = "How do logins work on the server?"


async def _read(session, name="monday", **options):
    stored = await session._shared.home.read_conversation(name, namespace=session.namespace)
    return stored, await read_recall_history(session.memories, stored.recall_log, **options)


@pytest.mark.parametrize("is_temporary", [False, True])
async def test_open_conversation_is_read_with_what_was_recalled(tmp_path, is_temporary):
    store = None if is_temporary else tmp_path / "a.mama"
    async with Session.open(store, embedder=HashEmbedder(), conversation="monday") as session:
        memories = session.memories
        jwt = await memories.save_decision("Use JWT for logins on the server", topic="auth", reasoning="no state")
        await memories.set_outcome(jwt, "FAILED", reason="A stolen JWT could not be revoked")
        redis = await memories.supersede(jwt, "Keep logins of the server in Redis", reasoning="can be revoked")
        gone = await memories.save_insight("Logins on the server fail at night", topic="auth")
        await session.recall(LOGIN)
        await session.recall(LOGIN, conversation="dialogue of Ada")
        await session.observe('<ref id="plan">first</ref>')
        await memories.update(redis, content="Keep logins of the server in Valkey")
        await memories.delete(gone)

        stored, history = await _read(session)

        assert stored.info.is_open or is_temporary
        assert ["plan"] == [one.id for one in stored.entries.iter_entries()]
        own = [one for one in history.items if one.fact.dialogue is None]
        by_id = {one.fact.ids[0]: one for one in own}
        assert ("unchanged", redis.id) == (by_id[jwt.id].state, by_id[jwt.id].successor_id)
        assert "changed" == by_id[redis.id].state
        assert ("unknown", ()) == (by_id[gone.id].state, by_id[gone.id].memories)
        (event,) = by_id[jwt.id].fact.events
        assert event.at is not None
        assert (0, len(jwt.content)) == event.shown
        assert (len(own), 2 * len(own)) == (len(history.items) / 2, history.total)
        assert {None, "dialogue of Ada"} == {one.fact.dialogue for one in history.items}
        assert 1 == len((await _read(session, limit=1))[1].items)
        assert history.total == stored.info.recalled_count


async def test_passage_is_logged_with_its_own_time(tmp_path):
    """Also those from before a change of the memory. Only the newest are stored."""
    now = [datetime(2026, 11, 28, 9, tzinfo=UTC).timestamp()]
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday") as session:
        session.memories._shared.clock = lambda: now[0]
        filler = "Nothing of interest was said about the weather. " * 40
        content = f"The boiler needs 1.4 bar. {filler} The key of the attic hangs behind the door. {filler}"
        note = await session.memories.save(content)
        for message in ("What pressure does the boiler need?", "Where hangs the key of the attic?"):
            now[0] += 3600
            assert await session.recall(message, max_chars=800)
        now[0] += 3600
        await session.memories.update(note, content=content.replace("1.4", "1.6"))
        now[0] += 3600
        (left,) = (await session.recall("boiler", max_chars=800, explain=True)).lines

        _, history = await _read(session)
        log = session._conversation.recall_log
        for number in range(2 * MAX_EVENTS):
            log.record([RecalledFact(subject=note.id, state=str(number), ids=(note.id,))], at_ms=number)
        (fact,) = log.facts()

    (item,) = history.items
    assert [13, 11, 10] == [event.at.hour for event in item.fact.events]
    assert left.shown == item.fact.events[0].shown
    assert ["attic" in content[slice(*event.shown)] for event in item.fact.events] == [False, True, False]
    assert "unchanged" == item.state
    assert [*range(2 * MAX_EVENTS - 1, MAX_EVENTS - 1, -1)] == [event.at_ms for event in fact.events]


async def test_fork_names_memories_that_were_recalled_before(tmp_path):
    """
    Its rows contain no ids until its parent is deleted, so that an erasure by another process finds all ids.

    A move to another namespace removes the ids.
    """
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday") as session:
        jwt = await session.memories.save_decision("Use JWT for logins", topic="auth", reasoning="no state")
        await session.recall(LOGIN)
        async with session.fork("fork") as fork, fork.fork("second fork"):
            pass
        home = session._shared.home
        names = [(await _read(session, one))[1].items[0].fact.ids for one in ("monday", "fork", "second fork")]
        keys = await home.storage.keys("told/")
        rows = await home.storage.read(keys)
        await home.assign("fork", origin="default", namespace="other")
        moved = (await home.read_conversation("fork", namespace="other")).recall_log.facts()
        names.append((await _read(session, "second fork"))[1].items[0].fact.ids)

    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        await session._shared.home.delete("monday", namespace="default")
        names.append((await _read(session, "second fork"))[1].items[0].fact.ids)

    assert [(jwt.id,)] * 5 == names
    assert {"monday": True, "fork": False, "second%20fork": False} == {
        key.split("/")[1]: jwt.id.encode() in row for key, row in rows.items()
    }
    assert [()] == [one.ids for one in moved]


async def test_concurrent_erasure_leaves_no_ids(tmp_path, monkeypatch):
    """Neither of a recall that began before, nor of a parent that is deleted after its rows were read."""
    searched, erased = asyncio.Event(), asyncio.Event()
    search = MemoryStore._search_for_prompt

    async def search_and_wait(self, *args, **options):
        found = await search(self, *args, **options)
        searched.set()
        await erased.wait()
        return found

    def delete_parent_and_erase(rows, names, gone):
        delete_conversation(rows, ConversationKey("default", "parent"), "")
        erase_recalled_ids(rows, names, gone)

    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="parent") as session:
        secret = await session.memories.save("Logins on the server use JWT")
        await session.recall(LOGIN)
        await session.fork("fork").close()
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday") as session:
        kept = await session.memories.save("Logins on the server are short")
        monkeypatch.setattr(MemoryStore, "_search_for_prompt", search_and_wait)
        monkeypatch.setattr(backend, "erase_recalled_ids", delete_parent_and_erase)
        recall = asyncio.create_task(session.recall(LOGIN))
        await searched.wait()
        await session.memories.erase([secret.id])
        erased.set()
        assert [kept.id] == [hit.memory.id for hit in (await recall).hits]
        named = {
            name: {one.ids for one in (await _read(session, name))[0].recall_log.facts()} for name in ("monday", "fork")
        }

    assert {"monday": {(kept.id,)}, "fork": {()}} == named


async def test_memories_of_other_namespaces_are_not_named(tmp_path):
    """An erasure in the other namespace does not reach this conversation."""
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), namespace="team") as session:
        await session.memories.save("Logins on the server use JWT")
    async with Session.open(
        tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday", read_namespaces=["team"]
    ) as session:
        assert await session.recall(LOGIN)
        _, history = await _read(session)
        assert [((), "unknown")] == [(one.fact.ids, one.state) for one in history.items]


async def test_recalled_conflicts_are_found_by_their_pairs(tmp_path):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday") as session:
        one = await session.memories.save("Ada works as a nurse in Oslo", topic="ada")
        other = await session.memories.save("Ada works as a teacher in Oslo", topic="ada")
        await session.memories.link(one, other, "contradicts")
        recalled = await session.recall("Where does Ada work?")

        _, history = await _read(session)

        assert recalled.conflicts
        pairs = [{memory.id for memory in item.memories} for item in history.items if len(item.memories) > 1]
        assert [{one.id, other.id}] == pairs
        assert {"unchanged"} == {item.state for item in history.items}
        await session.memories.delete(one)
        items = [item for item in (await _read(session))[1].items if len(item.fact.ids) > 1]
        assert [({one.id, other.id}, [other.id], "unknown")] == [
            ({*item.fact.ids}, [memory.id for memory in item.memories], item.state) for item in items
        ]


async def test_read_conversation_lists_damaged_entries(tmp_path):
    async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder(), conversation="monday") as session:
        await session.observe('<ref id="plan">first</ref>')
        (key,) = await session._shared.home.storage.keys("refs/")
        await session._shared.home.storage.transact(lambda rows: rows.put(key, b"{"))

        stored, _ = await _read(session)

        assert ["ref:plan@1"] == [
            handle for handle, slot in stored.entries.iter_slots() if isinstance(slot, DamagedEntry)
        ]
        with pytest.raises(InvalidArgument, match="no conversation"):
            await _read(session, "tuesday")
