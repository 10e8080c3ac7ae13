"""Reading of open conversations and of their recall logs."""

import pytest

from mama_structs import Session
from mama_structs.errors import InvalidArgument
from mama_structs.refs.store.entries import DamagedEntry
from mama_structs.session.recall_history import read_recall_history

LOGIN = "How do logins work on the server?"


async def _read(session, name="monday", **options):
    stored = await session._shared.home.read_conversation(name, namespace=session.namespace)
    return stored, await read_recall_history(session.memories, stored.recall_log, **options)


@pytest.mark.parametrize("is_temporary", [False, True])
async def test_open_conversation_is_read_with_what_was_recalled(tmp_path, is_temporary):
    async with Session.open(None if is_temporary else tmp_path / "a.mama", conversation="monday") as session:
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
        own = [one for one in history.items if not one.fact.dialogue]
        by_id = {one.memories[0].id: one for one in own if one.memories}
        assert ("unchanged", redis.id) == (by_id[jwt.id].state, by_id[jwt.id].successor_id)
        assert "changed" == by_id[redis.id].state
        assert [("unknown", ())] == [(one.state, one.memories) for one in own if not one.memories]
        assert by_id[jwt.id].fact.at is not None
        assert ((0, len(jwt.content)),) == by_id[jwt.id].fact.shown
        assert (len(own), 2 * len(own), 2) == (len(history.items) / 2, history.total, history.unknown)
        assert 1 == len((await _read(session, limit=1))[1].items)


async def test_recalled_conflicts_are_found_by_their_pairs(tmp_path):
    async with Session.open(tmp_path / "a.mama", conversation="monday") as session:
        one = await session.memories.save("Ada works as a nurse in Oslo", topic="ada")
        other = await session.memories.save("Ada works as a teacher in Oslo", topic="ada")
        await session.memories.link(one, other, "contradicts")
        recalled = await session.recall("Where does Ada work?")

        _, history = await _read(session)

        assert recalled.conflicts
        pairs = [{memory.id for memory in item.memories} for item in history.items if len(item.memories) > 1]
        assert [{one.id, other.id}] == pairs
        assert {"unchanged"} == {item.state for item in history.items}


async def test_read_conversation_lists_damaged_entries(tmp_path):
    async with Session.open(tmp_path / "a.mama", conversation="monday") as session:
        await session.observe('<ref id="plan">first</ref>')
        (key,) = await session._shared.home.storage.keys("refs/")
        await session._shared.home.storage.transact(lambda rows: rows.put(key, b"{"))

        stored, _ = await _read(session)

        assert ["ref:plan@1"] == [
            handle for handle, slot in stored.entries.iter_slots() if isinstance(slot, DamagedEntry)
        ]
        with pytest.raises(InvalidArgument, match="no conversation"):
            await _read(session, "tuesday")
