"""Any text is stored on a server as in a directory, and is never interpreted as SQL."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL, alike

from mama_structs import Filter, Session, admin
from mama_structs.errors import InvalidArgument, MamaStructsError, StoreError
from mama_structs.memory.types import model
from mama_structs.testing.fakes import FakeClock

NUMBERS = itertools.count()
ODD = (
    "'", "'; DROP SCHEMA mama_structs CASCADE; --", '"', "\\", "\\0", "\\'", "\0", "$1", "$$", "%s", "%", "_", "{}",
    "a\0b", "\\x00", "E'\\n'", "/*", ";", "a:*", "'a' & !b", "NULL", "{NULL}", "{a,b}", "\r\n", "\x1f", "\x7f",
    "\ud800", "\udfff\ud800", "\u202e\u05d0\u0634\u202c", "\u200f", "e\u0301", "\ufeff", "\uffff", "\U0010ffff",
)  # fmt: skip
NAMES = ("'; DROP SCHEMA mama_structs; --", "a\\0b", "$1%_", "\u202eabc", "\ud55c" * 67, "\ud800")
TEXTS = st.lists(st.sampled_from(ODD) | st.text(st.characters(), max_size=4), min_size=1, max_size=4).map("".join) | (
    st.builds(lambda one, most: (one * most)[:most], st.sampled_from(ODD), st.sampled_from([199, 513, 5_000]))
)


def linked(to, word, *more):
    """Return the argument *links* of a save with one link."""
    return [{"to_id": to, "relationship": word, **dict(zip(("reason", "tags"), more, strict=False))}]


# Each call takes the memories, the ids of a decision and an insight, and two texts.
OF_MEMORIES = (
    lambda m, i, t, o: m.save_decision(o, topic=t, reasoning=t),
    lambda m, i, t, o: m.save_decision(t, topic="auth", reasoning=o, evidence=[t, o]),
    lambda m, i, t, o: m.save_decision(o, topic="auth", reasoning=t, links=linked(i[0], "refines", t, [t, o])),
    lambda m, i, t, o: m.save_decision(o, topic="auth", reasoning=t, links=linked(i[0], t)),
    lambda m, i, t, o: m.save_decision(o, topic="auth", reasoning="", links=linked(t, "refines")),
    lambda m, i, t, o: m.save_decision(o, topic="auth", reasoning="", supersedes=t),
    lambda m, i, t, o: m.save_decision(o, topic="auth", reasoning="", implements=[t]),
    lambda m, i, t, o: m.save_checkpoint(t, open_files=[t, o], next_steps=[o]),
    lambda m, i, t, o: m.save_insight(t, category=t, tags=[t, o], source=o),
    lambda m, i, t, o: m.save_insight(t, on_duplicate="merge"),
    lambda m, i, t, o: m.save_context(t, topic=o, source=t),
    lambda m, i, t, o: m.save_many([{"type": "context", "content": t}, {"type": "insight", "content": o, "tags": [t]}]),
    lambda m, i, t, o: m.set_outcome(i[0], "FAILED", reason=t),
    lambda m, i, t, o: m.set_outcome(t, "SUCCESS"),
    lambda m, i, t, o: m.supersede(i[0], t, reasoning=o, topic=t, evidence=[t]),
    lambda m, i, t, o: m.supersede(t, o, reasoning=""),
    lambda m, i, t, o: m.update(i[1], t, change_reason=o),
    lambda m, i, t, o: m.update(t, o),
    lambda m, i, t, o: m.link(i[0], i[1], t, reason=o, tags=[t]),
    lambda m, i, t, o: m.link(i[0], t, "refines"),
    lambda m, i, t, o: m.link(t, i[0], "refines"),
    lambda m, i, t, o: m.unlink(t),
    lambda m, i, t, o: m.delete(t),
    lambda m, i, t, o: m.get(t),
    lambda m, i, t, o: m.evidence(t),
    lambda m, i, t, o: m.history(t),
    lambda m, i, t, o: m.links(t),
    lambda m, i, t, o: m.traverse(t),
    lambda m, i, t, o: m.details(t),
    lambda m, i, t, o: m.similar(content=t),
    lambda m, i, t, o: m.list(where=Filter(mentions=t)),
    lambda m, i, t, o: m.history(topic=t),
    lambda m, i, t, o: m.search(t, topic=o, where=Filter(mentions=[t, o])),
    lambda m, i, t, o: m.search(t),
    lambda m, i, t, o: m.explain(t, i[0]),
    lambda m, i, t, o: m.explain("tokens", t),
    lambda m, i, t, o: m.list(type=[t]),
    lambda m, i, t, o: m.relationships(),
    lambda m, i, t, o: m.erase([t]),
    lambda m, i, t, o: m.erase(where=Filter(topic=t, source=o)),
    lambda m, i, t, o: m.erase(where=Filter(source=t)),
)
# Each call takes the session and two texts.
OF_SESSIONS = (
    lambda s, t, o: s.recall(t),
    lambda s, t, o: s.remember(
        [{"role": "user", "content": t}], extract=lambda *_: [{"type": "insight", "content": o}]
    ),
    lambda s, t, o: s.observe(t),
    lambda s, t, o: s.observe(f'<ref id="a">{t}</ref>'),
    lambda s, t, o: s.wrap({"said": t, t: o}),
    lambda s, t, o: s.call("search/by_context", {"query": t}),
    lambda s, t, o: s.call("save/insight", {"content": t}),
    lambda s, t, o: s.refs.put("b", t, note=o),
    lambda s, t, o: s.refs.put(t, o),
    lambda s, t, o: s.refs.add(t, source=o),
    lambda s, t, o: (s.refs.put("c", f"{t}{o}"), s.refs.edit("c", t[:1], o)),
    lambda s, t, o: s.refs.get(t),
    lambda s, t, o: s.refs.search(t, o),
    lambda s, t, o: s.refs.delete(t),
)
CALLS = [*((True, call) for call in OF_MEMORIES), *((False, call) for call in OF_SESSIONS)]


def told(value):
    """Convert the result of a call to nested lists, so that results can be compared."""
    if isinstance(value, dict):
        return [[told(one) for one in pair] for pair in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [told(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if attrs.has(type(value)):
        return [told(getattr(value, field.name)) for field in attrs.fields(type(value))]
    return value if isinstance(value, float) else str(value)


async def came(call):
    """
    Return the result or the error of a call in comparable form.

    A StoreError is raised, because no text may cause one.
    """
    try:
        found = call()
        return told(await found if inspect.isawaitable(found) else found)
    except StoreError:
        raise
    except MamaStructsError as error:
        return [type(error).__name__, str(error), error.hint]


async def lived(place, namespace, text, other, calls):
    """
    Run calls on a store, and return their results and the final content of the store.

    Ids and times depend only on the calls, so that two stores can be compared.
    """
    found, clock, numbers = [], FakeClock(start=1_800_000_000.0), itertools.count()
    drawn = SimpleNamespace(token_hex=lambda size: f"{next(numbers):0{2 * size}x}")
    with patch.object(model, "secrets", drawn), tempfile.TemporaryDirectory() as home:
        async with Session.open(place, namespace=namespace, conversation="talk", embedder=SMALL) as session:
            clock.drive(session)
            memories = session.memories
            decision = await memories.save_decision("use tokens", topic="auth", reasoning="stateless")
            ids = decision.id, (await memories.save_insight("tea is served at four")).id
            for is_of_memories, call in calls:
                clock.advance(61)
                found.append(
                    await came(
                        (lambda call=call: call(memories, ids, text, other))
                        if is_of_memories
                        else (lambda call=call: call(session, text, other))
                    )
                )
            await session.flush()
            await admin.export_jsonl(memories, Path(home) / "export")
            assert [] == [one for one in (await admin.check(session)).issues if one.severity == "error"]
        found.append((Path(home) / "export").read_text())
        async with Session.open(place, namespace=namespace, conversation="talk", embedder=SMALL) as session:
            found.append([(one.versioned_handle, one.text, told(one.attributes)) for one in session.refs.list()])
    return found


def test_text_is_stored_as_in_directory(memory_server):
    """With any two texts as arguments of any call, results, errors, exports and refs are equal and undamaged."""

    @given(text=TEXTS, other=TEXTS, calls=st.lists(st.sampled_from(CALLS), min_size=8, max_size=12))
    @settings(max_examples=max(3, settings.default.max_examples // 20), suppress_health_check=list(HealthCheck))
    def compared(text, other, calls):
        async def both():
            name = f"texts{next(NUMBERS)}"
            with tempfile.TemporaryDirectory() as home:
                here = await lived(Path(home) / "a", name, text, other, calls)
            there = await lived(memory_server.url, name, text, other, calls)
            for one, two in zip(here, there, strict=True):
                assert alike(one, two), (one, two)

        asyncio.run(both())

    compared()


async def named(place):
    """Open sessions with unusual names of namespaces, conversations and read namespaces, and return the results."""
    found = []
    for name in NAMES:
        for options in (
            {"namespace": name, "conversation": "talk"},
            {"conversation": name},
            {"read_namespaces": [name]},
        ):
            try:
                async with Session.open(place, embedder=SMALL, **options) as session:
                    await session.memories.save_insight("hello there")
                    await session.observe('<ref id="a">hello</ref>')
                    found.append([one.namespace for one in await session.memories.list(limit=1)])
            except InvalidArgument:
                found.append("refused")
    async with Session.open(place, embedder=SMALL) as session:
        assert (await admin.check(session)).ok
    found.append(await admin.list_namespaces(place))
    found.append(sorted(one.name for one in await admin.list_conversations(place) if one.name in NAMES))
    return found


async def test_names_are_accepted_as_in_directory(tmp_path, database):
    """Namespaces and conversations have the same names, and the same names are rejected."""
    assert await named(tmp_path / "a") == await named(database)


async def test_namespace_with_nul_is_rejected(database):
    """A server cannot store such a name; nothing is created."""
    with pytest.raises(InvalidArgument, match="NUL"):
        await Session.open(database, embedder=SMALL, namespace="a\0b")
    assert () == await admin.list_namespaces(database)
