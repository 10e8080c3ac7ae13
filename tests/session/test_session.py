from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import stat
import threading
import warnings
from typing import Any

import pytest

from mama_structs import ReferenceOptions, Session, Settings, Source, with_references
from mama_structs.errors import (
    EntityNotFound,
    InvalidArgument,
    NoSession,
    SessionClosed,
    StoreError,
    StoreReadOnly,
    UnknownTool,
    WrongLoop,
)
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.references.schemes import IdScheme
from mama_structs.settings import MemorySettings, ReferenceSettings
from mama_structs.testing.fakes import FakeSource

GUILD = {"0-1": {"id": "0-1", "name": "Orbital"}}


@with_references
async def tool() -> dict[str, Any]:
    return {"guildId": "0-1"}


async def guild_name():
    return (await tool(include_references=True))["references"]["0-1"].get("name")


def session_on(entities=None, **more):
    return Session.open(sources=[FakeSource(GUILD if entities is None else entities)], **more)


class TestOpening:
    async def test_session_can_be_entered(self):
        async with session_on() as session:
            assert session.is_open
        assert not session.is_open
        assert "closed" in repr(session)

    async def test_session_can_be_awaited(self):
        opening = session_on()
        session = await opening

        assert session is await opening
        assert session.is_open
        await session.close()
        await session.close()

    async def test_unopened_session_explains_how_to_open_it(self):
        """The repr and all errors explain a missing `await` or `async`."""
        opening = session_on()

        assert "Session that is not open" in repr(opening)
        with pytest.raises(AttributeError, match=r"not open, so it has no 'memories' \(session = await Session\.open"):
            _ = opening.memories
        with pytest.raises(InvalidArgument, match=r"async with .*from mama_structs\.sync import Session"), opening:
            pass

    async def test_awaited_session_can_be_entered(self):
        session = await session_on()
        async with session as entered:
            assert session is entered
        assert not session.is_open

    @pytest.mark.of_the_directory("it is about the directory itself")
    async def test_session_directory_is_accessible_for_owner_only(self, tmp_path):
        async with Session.open(tmp_path / "a" / "agent.mama") as session:
            assert 0o700 == stat.S_IMODE(session.location.stat().st_mode)
            assert "agent.mama" in repr(session)
        async with Session.open(str(tmp_path / "a" / "agent.mama")):
            pass

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"location": ""}, "location must be a directory"),
            ({"location": 7}, "location must be a directory"),
            ({"location": "postgresql://a\0b"}, "must begin with postgresql://"),
            ({"location": __file__}, "is a file"),
            ({"structs": 7}, "structs must be a URL"),
            ({"structs": "ftp://localhost"}, "http"),
            ({"sources": [7]}, "a source must have a scheme"),
            ({"sources": "http://localhost"}, "sources must be a list"),
            ({"sources": FakeSource()}, "sources must be a list"),
            ({"settings": {"references": 1}}, "settings must be Settings"),
        ],
    )
    def test_open_rejects_wrong_arguments_immediately(self, arguments, message):
        """The error is raised before anything is opened or awaited."""
        with pytest.raises(InvalidArgument, match=message):
            Session.open(**arguments)

    @pytest.mark.of_the_directory("it is about the directory itself")
    async def test_directory_that_cannot_be_created_is_a_typed_error(self, tmp_path, monkeypatch):
        for error, expected in ((PermissionError(13, "no"), StoreReadOnly), (OSError(28, "full"), StoreError)):

            def refuse(*args, error=error, **kwargs):
                raise error

            monkeypatch.setattr("pathlib.Path.mkdir", refuse)
            with pytest.raises(expected, match="cannot be made"):
                await Session.open(tmp_path / "x")

    async def test_unclosed_session_emits_resource_warning(self):
        session = await session_on()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del session
            gc.collect()

        shown = "<Session in namespace 'default', 17 tools, 0 handles>"
        assert [f"{shown} was never closed"] == [str(warning.message) for warning in caught]


class TestTools:
    async def test_session_with_chain_has_chain_tools(self):
        class Chain:
            async def fetch(self, entity_id):
                return {"Guild": GUILD[entity_id]}

        async with Session.open(structs=Chain()) as session:
            assert 11 + 10 + 6 == len(session.tools)
            assert {"Guild": GUILD["0-1"]} == await session.call("structs_query_guild", {"guild_id": "0-1"})

    async def test_host_tool_is_called_with_validated_arguments(self):
        async with session_on() as session:

            @session.with_references
            async def count(number: int) -> dict[str, Any]:
                """Count."""
                return {"number": number, "guildId": "0-1"}

            session.tools.add(count)

            assert {"number": 3, "guildId": "0-1"} == await session.call("count", {"number": 3})
            result = await session.call("count", {"number": 3, "include_references": True})
            assert "Orbital" == result["references"]["0-1"]["name"]
            with pytest.raises(InvalidArgument, match="number"):
                await session.call("count", {"number": "three"})
            with pytest.raises(InvalidArgument, match="reference_depth"):
                await session.call("count", {"number": 3, "reference_depth": 5})
            with pytest.raises(UnknownTool, match="count"):
                await session.call("cuont")

    async def test_settings_are_passed_to_resolver(self):
        settings = Settings(references=ReferenceSettings(enabled=False))
        async with session_on(settings=settings) as session:
            assert {"guildId": "0-1"} == await session.with_references(tool.__wrapped__)(include_references=True)
            assert not session.resolver.settings.enabled

    async def test_session_resolves_ids_of_two_schemes(self):
        scheme = IdScheme(name="issues", pattern=r"([A-Z]+)-\d+", type_of={"ABC": "issue"})

        async def fetch_many(ids):
            return {key: {"title": key} if key != "ABC-2" else EntityNotFound(key) for key in ids}

        sources = [FakeSource(GUILD), Source(scheme, fetch_many=fetch_many)]
        async with Session.open(sources=sources) as session:
            enriched = await session.resolver.enrich({"guildId": "0-1", "fixes": ["ABC-1", "ABC-2", "XYZ-1"]})

        assert ["0-1", "ABC-1", "ABC-2"] == list(enriched["references"])
        assert ["guild", "issue", "issue"] == [e["reference_type"] for e in enriched["references"].values()]


class TestWhichSession:
    async def test_unbound_tool_uses_session_that_was_entered_last(self):
        async with session_on() as outer, session_on({"0-1": {"id": "0-1", "name": "Inner"}}) as inner:
            assert "Inner" == await guild_name()
            await inner.close()
            assert "Orbital" == await guild_name()
            assert outer.is_open

    async def test_unbound_tool_in_task_uses_session_of_context(self):
        async with session_on(), session_on({}):
            failed = (await asyncio.create_task(tool(include_references=True)))["references"]["0-1"]
            assert "Entity not found" == failed["error"]

    async def test_unbound_tool_uses_only_open_session(self):
        """In a notebook, each cell runs in its own context, so the context of a call contains no session."""
        opened = []

        async def first_cell():
            opened.append(await session_on())

        await asyncio.create_task(first_cell(), context=contextvars.Context())
        assert "Orbital" == await asyncio.create_task(guild_name(), context=contextvars.Context())
        await asyncio.create_task(opened[0].close(), context=contextvars.Context())

        assert {} == (await tool(include_references=True))["references"]

    async def test_session_entered_and_left_in_different_cells_is_closed(self):
        session = await session_on()
        await asyncio.create_task(session.__aenter__(), context=contextvars.Context())
        assert "Orbital" == await guild_name()
        await asyncio.create_task(session.__aexit__(None, None, None), context=contextvars.Context())

        assert {} == (await tool(include_references=True))["references"]

    async def test_unbound_tool_rejects_several_open_sessions(self):
        first, second = await session_on(), await session_on()

        with pytest.raises(NoSession, match="2 sessions are open and none was entered here"):
            await tool(include_references=True)
        await first.close()
        assert "Orbital" == await guild_name()
        await second.close()

    def test_session_of_closed_loop_is_ignored(self):
        async def forget():
            return await session_on()

        forgotten = asyncio.run(forget())

        async def now():
            async with session_on({"0-1": {"name": "Now"}}) as session:
                pass
            session = await session_on({"0-1": {"name": "Now"}})
            name = await guild_name()
            await session.close()
            return name

        assert "Now" == asyncio.run(now())
        assert not forgotten.is_open
        forgotten._closed = True

    async def test_leaving_session_in_another_context_keeps_entered_session(self):
        first = await session_on()
        await asyncio.create_task(first.__aenter__(), context=contextvars.Context())
        async with session_on({"0-1": {"name": "Mine"}}):
            await first.__aexit__(None, None, None)
            third = await session_on({})
            assert "Mine" == await guild_name()
            await third.close()

    async def test_closing_inner_session_early_restores_outer_session(self):
        third = await session_on({})
        async with session_on(), session_on({}) as inner:
            await inner.close()
            assert "Orbital" == await guild_name()
        await third.close()


async def test_failed_use_in_another_loop_does_not_bind_the_session():
    async with session_on() as session:
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(asyncio.run, session.resolver.fetch("0-1"))
        assert "Orbital" == await guild_name()


async def test_session_that_fails_to_open_emits_no_warning(recwarn):
    class Offers(FakeSource):
        def tools(self, resolver):
            return [print]

    with pytest.raises(InvalidArgument):
        await Session.open(sources=[Offers()])
    gc.collect()

    assert [] == [warning for warning in recwarn if "never closed" in str(warning.message)]


@pytest.mark.parametrize("references", [None, ReferenceOptions(max_references=3)])
async def test_source_tools_need_not_accept_options(references):
    async def hello() -> str:
        return "hello"

    class Offers(FakeSource):
        def tools(self, resolver):
            return [hello]

    async with Session.open(sources=[Offers()], reference_options=references) as session:
        assert "hello" == await session.call("hello")


@pytest.mark.parametrize("error", [KeyError("c-9"), ZeroDivisionError("division by zero"), InvalidArgument("declined")])
async def test_call_passes_exception_of_own_tool_on_unchanged(error):
    """The host's code handles its own exceptions; the adapters convert them to answers."""

    async def charge():
        raise error

    async with Session.open() as session:
        session.tools.add(charge)
        with pytest.raises(type(error)) as caught:
            await session.call("charge")

    assert error is caught.value


async def test_call_on_closed_session_raises_session_closed():
    session = await session_on()
    await session.close()

    with pytest.raises(SessionClosed):
        await session.call("anything")
    with pytest.raises(SessionClosed):
        async with session:
            pass


def test_call_in_another_loop_raises_wrong_loop():
    async def opened():
        return await session_on()

    async def use():
        with pytest.raises(WrongLoop):
            await session.call("anything")
        with pytest.raises(WrongLoop):
            await session.close()

    session = asyncio.run(opened())
    asyncio.run(use())
    session._closed = True


def test_call_in_forked_child_raises_wrong_loop():
    async def run():
        async with session_on() as session:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    session._check()
                except WrongLoop:
                    code = 0 if not session.is_open else 2
                finally:
                    os._exit(code)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222 - the child exits immediately

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert 0 == asyncio.run(run())


@pytest.mark.parametrize("at_open", [True, False])
async def test_session_loads_the_model_when_it_opens(at_open):
    """A save waits for the model. The setting delays loading until a vector is needed."""

    class Loadable(HashEmbedder):
        def load_model(self) -> None:
            loaded.set()

    loaded = threading.Event()
    settings = Settings(memory=MemorySettings(load_embedder_at_open=at_open))
    async with Session.open(embedder=Loadable(dimensions=32), settings=settings) as session:
        if at_open:
            await asyncio.to_thread(loaded.wait, 600)
        await session.memories.save_context("Shields first")
        assert at_open == loaded.is_set()
        assert ["Shields first"] == [hit.content for hit in await session.memories.search("shields")]


async def test_warm_up_loads_embedder_before_first_search(caplog):
    """After the warm-up, a search embeds only its query."""
    # Import the module of `_load_model`, because this function caches the model.
    from mama_structs.memory.embedding import sentence_encoder as universal  # noqa: PLC0415

    universal._load_model.cache_clear()
    caplog.set_level(logging.INFO, "mama_structs")
    settings = Settings(memory=MemorySettings(load_embedder_at_open=False))
    async with Session.open(settings=settings) as session:
        assert [] == [one for one in caplog.messages if "encoder" in one]
        await session.preload()
        told = [one for one in caplog.messages if "loading the sentence encoder" in one]
        calls = session.memories._shared.embedding.stats.calls
        await session.memories.search("why?")

        assert len(told) == universal.is_installed()
        assert calls + 1 == session.memories._shared.embedding.stats.calls
