"""Refs and descriptors of a session: persistence, tools and forks."""

import asyncio
import functools
import gc
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from typing import Annotated

import attrs
import msgspec
import pytest
from answer_helpers import answer_in, message_in

from mama_structs import DescriptorSettings, RefStore, Session, Settings, Tool, admin, with_descriptors, with_references
from mama_structs._internal.jsonable import to_json_text
from mama_structs.errors import (
    HandleDamaged,
    HandleNotFound,
    InvalidArgument,
    NoSession,
    SessionClosed,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    UnknownTool,
    WrongLoop,
)
from mama_structs.refs.markup.parser import PlainText
from mama_structs.testing import FakeSource
from mama_structs.tools.tool import ErrorText


@pytest.fixture
def place(tmp_path):
    return tmp_path / "agent.mama"


def text_of(xml):
    return answer_in(xml).text


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def typed(**descriptors):
    return Settings(descriptors=DescriptorSettings(**descriptors))


async def long_list(count: int) -> list[int]:
    """Count."""
    return list(range(count))


async def echo(text: str) -> str:
    """Return the text."""
    return text


# Persistence


async def test_refs_persist_with_their_conversation(place):
    """Versions, descriptors, tombstones and numbers are restored."""
    async with Session.open(place, conversation="raid") as session:
        await session.observe('<ref id="plan" type="text" title="the plan">\nshields\r\nfirst\n</ref>')
        await session.observe('<ref id="plan">v2</ref><ref id="open">no end')
        await session.wrap("line\n" * 3_000)
        session.refs.add("short-lived")
        session.refs.delete("fd:2")
        before = [session.refs.get(handle) for handle in session.refs]
    async with Session.open(place, conversation="raid") as session:
        after = [session.refs.get(handle) for handle in session.refs]
        with pytest.raises(HandleNotFound, match="deleted"):
            session.refs.get("fd:2")

        assert before == after
        assert "shields\r\nfirst" == session.refs.get("plan@1").text
        assert "fd:3" == session.refs.add("x").handle
        assert 3 == session.refs.observe('<ref id="plan">v3</ref>').refs[0].version
        assert (await admin.check(session)).ok


async def test_fresh_conversation_is_empty(place):
    """A new conversation can be reopened by its name."""
    async with Session.open(place) as first:
        await first.observe('<ref id="a">1</ref>')
        name = first.conversation
    async with Session.open(place) as second:
        assert [] == list(second.refs)
        assert name != second.conversation
    async with Session.open(place, conversation=name) as again:
        assert ["ref:a@1"] == list(again.refs)


@pytest.mark.parametrize("name", ["../../x", "ein Gespräch / 지난주", "a" * 200, "%2F", "."])
async def test_conversation_name_may_be_any_text(place, name):
    """Names are not used as file names."""
    async with Session.open(place, conversation=name) as session:
        await session.observe('<ref id="a">1</ref>')
    async with Session.open(place, conversation=name) as session:
        assert ["ref:a@1"] == list(session.refs)
    assert {"journal", "locks"} == {path.name for path in place.iterdir()}


@pytest.mark.parametrize("name", ["", "a" * 201, 7, "\ud83d", b"x"])
def test_open_rejects_invalid_conversation_name_immediately(place, name):
    with pytest.raises(InvalidArgument, match="conversation"):
        Session.open(place, conversation=name)
    assert not place.exists()


async def test_session_without_location_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Session.open() as session:
        await session.observe('<ref id="a">1</ref>')
        child = session.fork()
        await child.observe('<ref id="a">2</ref>')
        await session.flush()

        assert ("1", "2") == (session.refs.get("a").text, child.refs.get("a").text)
        assert (await admin.check(session)).ok
        await child.close()
    assert [] == list(tmp_path.iterdir())


async def test_acknowledged_refs_survive_kill(place):
    """Covers refs of `observe`, `wrap`, `call` and a closed stream."""
    code = """
        import asyncio, sys
        from mama_structs import Session
        async def main():
            session = await Session.open(sys.argv[1], conversation="c")
            @session.tools.add
            async def long() -> str:
                return "z" * 9_000
            for number in range(10_000):
                await session.observe(f'<ref id="n{number}">{number}</ref>')
                await session.wrap("x" * 8_001 + str(number))
                stream = session.stream()
                stream.feed(f'<ref id="s{number}">')
                stream.feed(f'{number}</ref>')
                await stream.close()
                await session.call("long")
                print(number, flush=True)
        asyncio.run(main())
    """
    for delay in (0.3, 0.05, 0.11):
        command = [sys.executable, "-c", textwrap.dedent(code), place]
        child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        await child.stdout.readline()
        await asyncio.sleep(delay)
        child.kill()
        acknowledged = [0, *map(int, (await child.stdout.read()).split())][-1]
        await child.wait()
        async with Session.open(place, conversation="c") as session:
            for number in range(acknowledged + 1):
                assert str(number) == session.refs.get(f"n{number}").text == session.refs.get(f"s{number}").text
            sizes = [entry.text[8_001:] for entry in session.refs.list_descriptors() if entry.text.startswith("x")]
            assert set(map(str, range(acknowledged + 1))) <= set(sizes)
            assert (await admin.check(session)).ok


async def test_damaged_entry_is_reported_and_others_load(place):
    """The flipped bit is in a text, in a change or in a first row."""
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">text one</ref><ref id="b">text two</ref><ref id="c">text three</ref>')
        digest = session.refs.get("a").content.hash
    with sqlite3.connect(place / "journal" / "cache.db") as database:
        for key in (f"texts/{digest}", "refs/c/0000000002/ref:b@1"):
            (value,) = database.execute("SELECT value FROM Cache WHERE key = ?", (key,)).fetchone()
            flipped = value[:-1] + bytes([value[-1] ^ 1])
            database.execute("UPDATE Cache SET value = ? WHERE key = ?", (flipped, key))
    database.close()
    async with Session.open(place, conversation="c") as session:
        for ref_id in "ab":
            with pytest.raises(HandleDamaged):
                session.refs.get(ref_id)
            assert 'type="damaged"' in await session.call("get_ref", {"ref_id": ref_id})
        assert "text three" == session.refs.get("c").text
        report = await admin.check(session)
        assert not report.ok
        assert {f"texts/{digest}", "refs/c/0000000002/ref:b@1"} <= {finding.key for finding in report.issues}
        assert "text" not in str(report).replace("texts/", "")
        # The new version replaces the damaged one, and does not reuse its number.
        assert 2 == (await session.observe('<ref id="b">again</ref>')).refs[0].version
        assert "again" == session.refs.get("b").text


async def test_check_reports_missing_text(place):
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">text one</ref>')
    with sqlite3.connect(place / "journal" / "cache.db") as database:
        database.execute("DELETE FROM Cache WHERE key LIKE 'texts/%'")
    database.close()
    async with Session.open(place, conversation="c") as session:
        report = await admin.check(session)

        assert ["missing"] == [finding.kind for finding in report.issues if finding.severity == "error"]
        with pytest.raises(HandleDamaged, match="missing"):
            session.refs.get("a")


async def test_foreign_file_is_reported_as_damage(place):
    """The foreign file stays unchanged."""
    (place / "journal").mkdir(parents=True)
    database = place / "journal" / "cache.db"
    database.write_bytes(b"nothing of the kind" * 1_000)
    with pytest.raises((StoreDamaged, StoreError)) as caught:
        await Session.open(place)

    assert caught.value.hint or str(caught.value)
    assert b"nothing of the kind" * 1_000 == database.read_bytes()


async def test_deleted_text_is_removed_unless_a_fork_uses_it(place):
    """Texts are removed when the session closes. Forks of forks also protect a text."""
    only, shared, grand = "only here " * 100, "shared " * 100, "grandchild " * 100
    async with Session.open(place, conversation="c") as session:
        for text in (only, shared, grand):
            session.refs.add(text)
        session.refs.delete("fd:1")
        async with session.fork("child") as child, child.fork("grandchild"):
            child.refs.delete("fd:3")
        session.refs.delete("fd:2")
        session.refs.delete("fd:3")
    async with (
        Session.open(place, conversation="child") as child,
        Session.open(place, conversation="grandchild") as last,
    ):
        assert ["fd:2"] == list(child.refs)
        assert [shared, grand] == [entry.text for entry in last.refs.list_descriptors()]
        assert (await admin.check(child)).ok
        assert 2 == len(await child._shared.home.storage.keys("texts/"))


# Several sessions


async def test_conversation_is_shared_by_two_sessions(place):
    """If one session is closed, the other one stays open."""
    first, second = await asyncio.gather(
        Session.open(place, conversation="c")._open(), Session.open(place / ".." / place.name, conversation="c")._open()
    )
    await first.observe('<ref id="a">1</ref>')

    assert "1" == second.refs.get("a").text
    await first.close()
    await second.observe('<ref id="a">2</ref>')
    await second.close()
    async with Session.open(place, conversation="c") as session:
        assert ("ref:a@1", "ref:a@2") == session.refs.versions("a")


async def test_conversation_is_opened_with_equal_settings_only(place):
    async with Session.open(place, conversation="c"):
        with pytest.raises(InvalidArgument, match="other settings"):
            await Session.open(place, conversation="c", settings=typed(page_size=7))


async def test_conversation_cannot_be_opened_by_another_process(place):
    """The opening raises immediately, and succeeds after the close. Other conversations can be opened."""
    code = """
        import asyncio, sys
        from mama_structs import Session
        from mama_structs.errors import StoreBusy
        async def main():
            async with Session.open(sys.argv[1], conversation="other"):
                try:
                    async with Session.open(sys.argv[1], conversation="c") as session:
                        print(*session.refs)
                except StoreBusy as error:
                    print(error.type)
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), place]

    async def answer():
        child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        return (await child.communicate())[0].decode().strip()

    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">1</ref>')
        assert "busy" == await answer()
    assert "ref:a@1" == await answer()


async def test_processes_write_to_one_directory_concurrently(place):
    """Each process has its own conversation."""
    code = """
        import asyncio, sys
        from mama_structs import Session
        async def main():
            async with Session.open(sys.argv[1], conversation=sys.argv[2]) as session:
                for number in range(40):
                    await session.observe(f'<ref id="n{number}">{sys.argv[2]} {number}</ref>')
        asyncio.run(main())
    """
    children = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(code), place, f"p{number}")
        for number in range(4)
    ]
    assert [0, 0, 0, 0] == [await child.wait() for child in children]
    for number in range(4):
        async with Session.open(place, conversation=f"p{number}") as session:
            assert [f"p{number} {n}" for n in range(40)] == [ref.text for ref in session.refs.list()]
            assert (await admin.check(session)).ok


# Tools


async def test_session_has_ref_tools(tmp_path):
    async with Session.open(files_root=tmp_path) as session:
        assert (
            "read_fd",
            "fd_to_file",
            "list_refs",
            "get_ref",
            "search_fd",
            "edit_ref",
            "put_ref",
        ) == session.tools.names[-7:]
        assert {"fd"} == set(session.tools["read_fd"].input_schema["required"])
        assert session.tools["search_fd"].annotations.read_only
        assert session.tools["fd_to_file"].annotations.destructive


async def test_large_result_is_truncated_and_read_page_by_page(place):
    """Results of the fd tools are not truncated again."""
    async with Session.open(place) as session:
        session.tools.add(long_list)
        shown = await session.call("long_list", {"count": 9_000})
        parts = {}
        for call in ({"fd": "fd:1"}, {"fd": "fd:1", "read_all": True}):
            following, pages = call, []
            while following is not None:
                page = answer_in(await session.call("read_fd", following))
                pages.append(page.text)
                following = page.next
            parts[len(call)] = "".join(pages)

        *rows, last = shown
        assert {"shortened": {"": {"shown": len(rows), "of": 9_000, "fd": "fd:1"}}} == last
        assert list(range(9_000)) == list(map(json.loads, parts[1].split())) == list(map(json.loads, parts[2].split()))
        assert ["fd:1"] == list(session.refs)


async def test_read_fd_accepts_page_alone(place):
    async with Session.open(settings=typed(page_size=3)) as session:
        session.refs.add("abcdefgh")
        assert "def" == text_of(await session.call("read_fd", {"fd": "fd:1", "page": 2}))
        wrong = await session.call("read_fd", {"fd": "fd:1", "page": 2, "mode": "line"})
        assert 'type="invalid_parameter"' in wrong
        made = await session.call("read_fd", {"fd": "fd:1", "page": 3, "extract_to_new_fd": True})
        assert "fd:2" == re.search('new_fd="(.*?)"', made)[1]
        assert "gh" == session.refs.get("fd:2").text


@pytest.mark.parametrize(
    ("tool", "arguments", "word"),
    [
        ("read_fd", {"fd": "fd:9"}, "not_found"),
        ("read_fd", {"fd": "1"}, "not_found"),
        ("read_fd", {"fd": "fd:1", "start": 4}, "invalid_page"),
        ("read_fd", {"fd": "fd:1", "mode": "line", "start": 4}, "invalid_range"),
        ("read_fd", {"fd": "fd:1", "count": 0}, "invalid_parameter"),
        ("read_fd", {"fd": "fd:1", "mode": "word"}, "invalid_parameter"),
        ("read_fd", {}, "invalid_parameter"),
        ("get_ref", {"ref_id": "a b"}, "invalid_id"),
        ("get_ref", {"ref_id": "nothing"}, "not_found"),
        ("list_refs", {"category": "poem"}, "invalid_parameter"),
        ("search_fd", {"fd": "fd:1", "query": ""}, "invalid_parameter"),
        ("search_fd", {"fd": "fd:1", "query": "(", "regex": True}, "invalid_parameter"),
        ("fd_to_file", {"fd": "fd:1", "file_path": "../x"}, "path_denied"),
        ("fd_to_file", {"fd": "fd:1", "file_path": "no/x"}, "file_not_found"),
        ("fd_to_file", {"fd": "fd:1", "file_path": "there", "exist_ok": False}, "file_exists"),
        ("fd_to_file", {"fd": "fd:1", "file_path": "x", "mode": "insert"}, "invalid_parameter"),
    ],
)
async def test_ref_tools_return_typed_errors(tmp_path, tool, arguments, word):
    (tmp_path / "there").write_text("old")
    async with Session.open(settings=typed(files_root=str(tmp_path))) as session:
        session.refs.add("one\ntwo\nthree")
        answer = await session.call(tool, arguments)

    assert ("fd_error", word) == (answer_in(answer).name, answer_in(answer).get("type"))
    assert message_in(answer)
    assert "old" == (tmp_path / "there").read_text()


async def test_extract_over_quota_returns_error(tmp_path):
    """The failed call stores nothing."""
    async with Session.open(settings=typed(max_handles=1)) as session:
        session.refs.add("text")
        answer = await session.call("read_fd", {"fd": "fd:1", "extract_to_new_fd": True})

        assert 'type="quota_exceeded"' in answer
        assert ["fd:1"] == list(session.refs)


async def test_call_flushes_handle_that_replaces_another_one(monkeypatch):
    """Answers of memory tools replace older handles, so the number of handles is the same."""
    async with Session.open(settings=typed(max_handles=3)) as session:
        kept = [await session.memories.save_context(f"{number} {'walls ' * 2_000}") for number in range(4)]
        flushed = []
        flush = session.flush

        async def record():
            await flush()
            flushed.append(list(session.refs))

        monkeypatch.setattr(session, "flush", record)
        answers = [await session.call("load/context", {"id": one.id}) for one in kept]

        assert len(kept) == len(flushed)
        assert all(answer["more"][0]["fd"] in held for answer, held in zip(answers, flushed, strict=True))


async def test_file_is_written_below_working_directory_at_open(tmp_path, monkeypatch):
    """A later change of the working directory has no effect."""
    monkeypatch.chdir(tmp_path)
    async with Session.open() as session, Session.open(files_root="out") as writing:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for one in (session, writing):
            await one.observe('<ref id="a">\nx = 1\n</ref>')
        await session.refs.to_file("ref:a", "a.py")
        answer = await writing.call("fd_to_file", {"fd": "ref:a", "file_path": "a.py"})

    assert "x = 1\n" == (tmp_path / "a.py").read_text() == (tmp_path / "out" / "a.py").read_text()
    assert "a.py" == answer_in(answer).get("file_path")


async def test_fork_has_tools_of_its_origin():
    """A fork inherits removed and replaced ready-made tools, too."""

    async def search_fd(query: str) -> str:
        return f"looked for {query}"

    async with Session.open() as session:
        session.tools.remove("edit_ref")
        session.tools.add(search_fd, replace=True)
        async with session.fork() as child, child.fork() as grandchild:
            for one in (session, child, grandchild):
                assert set(session.tools) == set(one.tools)
                assert "looked for ore" == await one.call("search_fd", {"query": "ore"})
                with pytest.raises(UnknownTool):
                    await one.call("edit_ref", {})


async def test_fork_keeps_order_of_tools_when_host_replaced_a_tool_of_a_source():
    """The order matters for the prompt caches of providers."""

    class SourceWithTools(FakeSource):
        def tools(self, resolver):
            async def first_list(page: str = "") -> dict[str, str]:
                return {"page": page}

            async def second_list(page: str = "") -> dict[str, str]:
                return {"page": page}

            return [first_list, second_list]

    async def first_list(page: str = "") -> dict[str, str]:
        return {"own": page}

    async with Session.open(sources=[SourceWithTools()]) as session:
        session.tools.remove("first_list")
        session.tools.add(first_list)
        async with session.fork() as child:
            assert ["second_list", "first_list"] == list(session.tools)[-2:]
            assert list(session.tools) == list(child.tools)
            assert {"own": "3"} == await child.call("first_list", {"page": "3"})


async def test_session_without_files_directory_has_no_export_tool(tmp_path, monkeypatch):
    """Code of the host can still write files."""
    monkeypatch.chdir(tmp_path)
    async with Session.open() as session, session.fork() as fork:
        for one in (session, fork):
            assert "fd_to_file" not in one.tools
            assert "fd_to_file" not in one.system_prompt(handles=True)
            assert one.refs.files_root is None
            with pytest.raises(UnknownTool, match=r"Session\.open\(files_root="):
                await one.call("fd_to_file", {"fd": "fd:1", "file_path": "a"})
        await session.observe('<ref id="a">1</ref>')
        assert [] == listed(tmp_path)
        assert "a.txt" == (await session.refs.to_file("ref:a", "a.txt")).path


@pytest.mark.parametrize("way", ["argument", "setting", "variable"])
async def test_files_directory_is_set_by_argument_setting_or_variable(tmp_path, way):
    """The directory is created with the first file, and forks use it, too."""
    out = tmp_path / "new" / "out"
    environ = {"MAMA_STRUCTS_DESCRIPTORS_FILES_ROOT": str(out)}
    settings = {"argument": None, "setting": typed(files_root=out), "variable": Settings.from_env(environ)}[way]
    async with Session.open(files_root=out if way == "argument" else None, settings=settings) as session:
        assert "fd_to_file" in session.system_prompt()
        assert not out.exists()
        session.refs.add("text")
        async with session.fork() as fork:
            await fork.call("fd_to_file", {"fd": "fd:1", "file_path": "a.txt"})
    assert "text" == (out / "a.txt").read_text()


async def test_files_argument_overrides_setting(tmp_path):
    async with Session.open(files_root=tmp_path / "a", settings=typed(files_root=tmp_path / "b")) as session:
        assert tmp_path / "a" == session.refs.files_root


@pytest.mark.parametrize("files", ["", 7, b"out", "a\0b", "file", ["out"]])
def test_invalid_files_directory_is_rejected_immediately(tmp_path, monkeypatch, files):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for make in (Session.open, RefStore):
        with pytest.raises(InvalidArgument, match="files_root"):
            make(files_root=files)


async def test_conversation_is_opened_with_equal_files_directory_only(place, tmp_path):
    async with Session.open(place, conversation="c", files_root=tmp_path / "a"):
        await (await Session.open(place, conversation="c", files_root=tmp_path / "a")).close()
        for files in (None, tmp_path / "b"):
            with pytest.raises(InvalidArgument, match="same files"):
                await Session.open(place, conversation="c", files_root=files)


@pytest.mark.parametrize("name", [".env", "run.sh", "a\nb"])
async def test_models_cannot_write_hidden_or_executable_files(tmp_path, name):
    """`to_file` of the host can; *allow_hidden* permits hidden names."""
    (tmp_path / "run.sh").touch(mode=0o755)
    for allowed in (False, True):
        async with Session.open(files_root=tmp_path, settings=typed(allow_hidden=allowed)) as session:
            session.refs.add("text")
            answer = answer_in(await session.call("fd_to_file", {"fd": "fd:1", "file_path": name}))
            assert ("path_denied" if not allowed or name != ".env" else None) == answer.get("type")
            await session.refs.to_file("fd:1", name)


async def test_refs_are_written_as_lines_and_descriptors_unchanged(tmp_path):
    """Two appended functions are a valid program; *exact* writes only the text."""
    async with Session.open(files_root=tmp_path) as session:
        await session.observe('<ref id="a">def a(): ...</ref><ref id="b">def b(): ...</ref>')
        for ref_id in "ab":
            await session.call("fd_to_file", {"fd": f"ref:{ref_id}", "file_path": "both.py", "mode": "append"})
        session.refs.add("half a li")
        for mode in ("write", "append"):
            await session.call("fd_to_file", {"fd": "fd:1", "file_path": "line", "mode": mode})
            await session.refs.to_file("ref:a", "exact", mode=mode, exact=True)

    assert "def a(): ...\ndef b(): ...\n" == (tmp_path / "both.py").read_text()
    assert "half a lihalf a li" == (tmp_path / "line").read_text()
    assert "def a(): ...def a(): ..." == (tmp_path / "exact").read_text()


async def test_disabled_descriptors_have_no_tools_and_prompt(tmp_path):
    """Nothing is truncated, and a host can still store texts."""
    async with Session.open(files_root=tmp_path, settings=typed(enabled=False)) as session:
        assert not {"read_fd", "fd_to_file", "list_refs", "get_ref", "search_fd"} & set(session.tools)
        assert "" == session.refs.system_prompt(handles=True)
        assert "fd:1" not in session.system_prompt(handles=True)
        session.tools.add(long_list)
        assert list(range(9_000)) == await session.call("long_list", {"count": 9_000})
        await session.observe('<ref id="a">1</ref>')
        assert "1" == session.refs.get("a").text


async def test_slow_pattern_times_out_without_blocking(place):
    async with Session.open(settings=typed(search_timeout=0.3)) as session:
        session.refs.add("a" * 30_000 + "b")
        ticks = []

        async def tick():
            while True:
                if "mama-structs" in [thread.name for thread in threading.enumerate()]:
                    ticks.append(None)
                # Do not delay the first ticks, because on a stalled machine the search may time out before them.
                await asyncio.sleep(0 if len(ticks) < 3 else 0.01)

        ticking = asyncio.create_task(tick())
        answer = await session.call("search_fd", {"fd": "fd:1", "query": "(a+)+$", "regex": True})
        ticking.cancel()

    assert 'type="search_timeout"' in answer
    assert len(ticks) > 2


async def test_handles_in_arguments_are_replaced_by_texts(place):
    """Handles are replaced at any depth, and other values are unchanged."""
    seen = []

    async def take(text: str, more: dict, several: list) -> str:
        """Take."""
        seen.append((text, more, several))
        return "ok"

    async with Session.open() as session:
        session.tools.add(take)
        await session.observe('<ref id="a">one</ref><ref id="a">two</ref>')
        schema = {"$ref": "#/$defs/x", "deep": {"$ref": "#/y"}}
        arguments = {
            "text": {"$ref": "ref:a"},
            "more": {"x": {"y": [{"$ref": "ref:a@1"}]}, "schema": schema, "both": {"$ref": "ref:a", "z": 1}},
            "several": [{"$ref": "ref:a"}, "ref:a", 3],
        }
        before = json.dumps(arguments)
        await session.call("take", arguments)
        with pytest.raises(HandleNotFound):
            await session.call("take", {**arguments, "text": {"$ref": "fd:7"}})

    assert [
        ("two", {"x": {"y": ["one"]}, "schema": schema, "both": {"$ref": "ref:a", "z": 1}}, ["two", "ref:a", 3])
    ] == seen
    assert before == json.dumps(arguments)


async def test_ref_tools_accept_reference_to_handle():
    async with Session.open() as session:
        await session.observe('<ref id="a">one</ref>')
        assert "one" == text_of(await session.call("read_fd", {"fd": {"$ref": "ref:a"}}))
        assert "one" == text_of(await session.call("get_ref", {"ref_id": {"$ref": "ref:a"}}))
        found = await session.call("search_fd", {"fd": "ref:a", "query": {"$ref": "ref:a"}})
        assert 'count="1"' in found


async def test_get_ref_rejects_descriptor():
    """The error recommends the tool read_fd."""
    async with Session.open() as session:
        session.refs.add("x")
        answer = await session.call("get_ref", {"ref_id": "fd:1"})

    assert 'type="invalid_id"' in answer
    assert "read_fd" in answer


async def test_result_over_quota_is_truncated_with_notice(caplog):
    """The log names the result without its text."""
    async with Session.open(settings=typed(max_bytes=10)) as session:
        session.tools.add(echo)
        for shown in (await session.call("echo", {"text": "x" * 9_000}), await session.wrap("x" * 9_000)):
            assert 7_000 < len(shown) <= 8_000
            assert "of 9000 left out …]\nxxx" in shown
            assert shown.endswith("xxx\n[the rest was not kept]")
        assert "0 of 1 parts are kept" in caplog.text
        assert "xxx" not in caplog.text
        whole = await session.call("echo", {"text": "x" * 9_000}, max_chars=None)
        assert "x" * 9_000 == whole


@pytest.mark.parametrize(("max_chars", "most"), [("settings", 8_000), (500, 500), (20_000, 20_000), (None, 10**6)])
async def test_call_max_chars_overrides_settings(max_chars, most):
    """The value None returns the complete result."""
    async with Session.open() as session:
        session.tools.add(long_list)
        shown = await session.call("long_list", {"count": 9_000}, max_chars=max_chars)

    assert min(most, 9_000 * 4) * 0.9 < len(to_json_text(shown)) <= most
    assert (shown == list(range(9_000))) == (max_chars is None)


@pytest.mark.parametrize("max_chars", [99, -1, True, 3.5, "8000"])
async def test_call_rejects_too_small_max_chars(max_chars):
    """The error is raised before the tool runs."""
    async with Session.open() as session:
        session.tools.add(long_list)
        with pytest.raises(InvalidArgument, match="max_chars"):
            await session.call("long_list", {"count": 9_000}, max_chars=max_chars)


async def test_unwrapped_tool_and_error_stay_within_budget():
    async def loud(*, fails: bool) -> str:
        """Answer with much."""
        return ErrorText("e" * 20_000, "loud") if fails else "x" * 20_000

    async with Session.open() as session:
        session.tools.add(attrs.evolve(Tool.from_function(loud), wrapped=False))
        shown, error = await session.call("loud", {"fails": False}), await session.call("loud", {"fails": True})

        assert len(shown) <= 8_000
        assert ("loud", True) == (error.type, len(error) <= 8_000)
        assert [] == list(session.refs)


async def test_truncation_can_be_disabled():
    async with Session.open(settings=typed(enabled=False)) as session:
        session.tools.add(long_list)

        @with_descriptors
        async def decorated():
            return "x" * 9_000

        assert list(range(9_000)) == await session.call("long_list", {"count": 9_000})
        assert "x" * 9_000 == await decorated()


# Decorator


async def test_decorated_tool_returns_descriptor_for_long_result():
    """Unbound tools, tools with a store, methods and callable objects keep their names and signatures."""

    class Tools:
        @with_descriptors
        async def look(self, count: int) -> str:
            """Look."""
            return "x" * count

        async def __call__(self, count: int) -> str:
            return "y" * count

    async with Session.open() as session, Session.open() as other:
        assert "x" * 10 == await Tools().look(10)
        assert (await Tools().look(9_000)).startswith('<fd_result fd="fd:1"')
        assert ["fd:1"] == list(other.refs)
        assert (await with_descriptors(store=session.refs)(Tools())(9_000)).startswith("<fd_result")
        assert ["fd:1"] == list(session.refs)
        assert ("look", "Look.") == (Tools.look.__name__, Tools.look.__doc__)
        assert [] == [tool for tool in (Tools().look,) if not asyncio.iscoroutinefunction(tool)]


async def test_decorated_tool_without_session_explains_binding():
    """The error is raised before the tool runs."""
    ran = []

    @with_descriptors
    async def tool():
        ran.append(1)

    with pytest.raises(NoSession, match="with_descriptors"):
        await tool()
    assert [] == ran


@pytest.mark.parametrize("store", [len, "refs"])
def test_with_descriptors_rejects_other_stores(store):
    with pytest.raises(InvalidArgument, match="store"):
        with_descriptors(store=store)


async def test_with_descriptors_works_above_with_references(mama_structs_node):
    """References have a separate share of the budget."""
    async with Session.open(structs=mama_structs_node.url) as session:

        @with_descriptors
        @with_references
        async def planets():
            return {"owner": "1-11", "log": "x" * 9_000}

        assert ["owner", "log", "shortened"] == list(await planets())
        shown = await planets(include_references=True)
        assert ["1-11"] == list(shown["references"])
        assert "1-11" in json.loads(session.refs.get(shown["shortened"][""]["fd"]).text)["references"]


async def test_unbound_decorated_tool_uses_calling_session():
    """Parent and fork store their own results."""

    @with_descriptors
    async def tool():
        return "x" * 9_000

    async with Session.open() as parent:
        parent.tools.add(tool)
        child = parent.fork()
        await child.call("tool")
        assert ([], ["fd:1"]) == (list(parent.refs), list(child.refs))
        await child.close()


# Forks


async def test_fork_reads_earlier_handles_with_its_own_tools(place):
    """New handles belong to one fork only, even in forks four levels deep."""
    async with Session.open(place) as session:
        session.tools.add(echo)
        sessions = [session]
        for level in range(4):
            await sessions[-1].observe(f'<ref id="level">{level}</ref><ref id="of{level}">{level}</ref>')
            await sessions[-1].call("echo", {"text": f"{level}" * 9_000})
            sessions.append(sessions[-1].fork())
        for depth, one in enumerate(sessions):
            newest = min(depth, 3)
            assert str(newest) == text_of(await one.call("get_ref", {"ref_id": "level"}))
            for level in range(4):
                read = await one.call("read_fd", {"fd": f"fd:{level + 1}", "mode": "char", "count": 3})
                got = await one.call("get_ref", {"ref_id": f"of{level}"})
                if level <= newest:
                    assert f"{level}" * 3 == text_of(read)
                    assert str(level) == text_of(got)
                else:
                    assert 'type="not_found"' in read
                    assert 'type="not_found"' in got
        # Each session now stores different content under the same descriptor number.
        for depth, one in enumerate(sessions):
            one.refs.add(f"late {depth}")
        for depth, one in enumerate(sessions):
            number = max(entry.number for entry in one.refs.list_descriptors())
            assert f"late {depth}" == text_of(await one.call("read_fd", {"fd": f"fd:{number}"}))
            assert "0" == await one.call("echo", {"text": {"$ref": "ref:of0"}})
        names = [one.conversation for one in sessions]
        contents = [[(handle, one.refs.get(handle).text) for handle in one.refs] for one in sessions]
        for one in reversed(sessions[1:]):
            await one.close()
    for name, content in zip(names, contents, strict=True):
        async with Session.open(place, conversation=name) as again:
            assert content == [(handle, again.refs.get(handle).text) for handle in again.refs]


async def test_separate_sessions_do_not_share_handles(place):
    """Handles are separate with a common directory and without one."""
    for location in (place, None):
        async with Session.open(location) as first, Session.open(location) as second:
            for session, word in ((first, "one"), (second, "two")):
                await session.observe(f'<ref id="a">{word}</ref>')
                await session.wrap(word * 9_000)
            assert ("one", "two") == tuple(
                [text_of(await session.call("get_ref", {"ref_id": "a"})) for session in (first, second)]
            )
            for session, begins in ((first, "oneon"), (second, "twotw")):
                read = await session.call("read_fd", {"fd": "fd:1", "mode": "char", "count": 5})
                assert begins == text_of(read)


async def test_fork_shares_tools_and_references_and_closes_separately(mama_structs_node):
    """The resolver stays open until the last session that uses it is closed."""
    async with Session.open(structs=mama_structs_node.url, settings=typed(enabled=False)) as session:
        session.tools.add(echo)
        child = session.fork()
        assert session.tools.names != ()
        assert set(session.tools.names) == set(child.tools.names)
        assert session.resolver is child.resolver
    assert not session.is_open
    assert child.is_open
    answer = await child.call("structs_query_player", {"player_id": "1-11"})
    assert "1-11" in json.dumps(answer)
    await child.close()
    with pytest.raises(SessionClosed):
        await child.call("echo", {"text": "x"})
    with pytest.raises(SessionClosed):
        child.fork()


async def test_fork_rejects_existing_name(place):
    """A conversation with this name may be open, or stored on disk."""
    async with Session.open(place, conversation="old") as session:
        await session.observe('<ref id="a">1</ref>')
    async with Session.open(place, conversation="c") as session:
        await session.observe('<ref id="a">1</ref>')
        for name in ("old", "c"):
            with pytest.raises(InvalidArgument, match="already"):
                session.fork(name)
        with pytest.raises(InvalidArgument, match="conversation"):
            session.fork("")
        async with session.fork("new") as child:
            assert "new" == child.conversation
            with pytest.raises(InvalidArgument, match="already"):
                session.fork("new")
    async with Session.open(place, conversation="old") as again:
        assert ["ref:a@1"] == list(again.refs)


@pytest.mark.parametrize("kept", [True, False])
async def test_thousand_forks_of_large_store_use_little_memory(place, kept):
    """Forks are copy-on-write: 1,000 forks of 10 MB in 1,000 handles use less than 50 MB."""
    async with Session.open(place if kept else None) as session:
        for number in range(1_000):
            session.refs.add(f"{number:010}" * 1_000)
        await session.flush()
        assert 10_000_000 == session.refs.usage.bytes
        gc.collect()
        tracemalloc.start()
        forks = [session.fork() for _ in range(1_000)]
        for number, fork in enumerate(forks):
            fork.refs.add(f"own {number}")
        await session.flush()
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert used < 50_000_000
        assert "own 999" == forks[-1].refs.get("fd:1001").text
        for fork in forks:
            await fork.close()


# Messages and streams


async def test_stream_returns_events_and_stores_refs_on_close(place):
    async with Session.open(place, conversation="c") as session:
        stream = session.stream()
        assert [PlainText("Look: ")] == stream.feed("Look: ")
        stream.feed('<ref id="a">')
        stream.feed("one")
        ingested = await stream.close()
        assert [("a", "one", False)] == [(ref.id, ref.text, ref.is_complete) for ref in ingested.refs]
        assert ingested is await stream.close()
    async with Session.open(place, conversation="c") as session:
        assert "one" == session.refs.get("a").text


def test_methods_without_io_need_no_running_loop(place):
    """These methods create prompts, streams and forks."""

    async def opened():
        return await Session.open(place, conversation="c")

    with asyncio.Runner() as runner:
        session = runner.run(opened())
        assert "read_fd" in session.system_prompt()
        assert session.stream().feed("x")
        child = session.fork()
        runner.run(child.close())
        runner.run(session.close())


async def test_prompt_names_existing_tools_only():
    async with Session.open() as session:
        prompt = session.system_prompt()
        called = {
            line.split("(")[0] for line in prompt.splitlines() if "(" in line and line.split("(")[0].isidentifier()
        }

        assert {"read_fd"} == called
        assert {"get_ref", "edit_ref", "put_ref"} == set(re.findall(r"\w+_ref\b", prompt))
        assert {*called, "get_ref", "edit_ref", "put_ref"} <= set(session.tools.names)
        assert "<reference_id_instructions>" in prompt


# Closing


async def test_close_waits_for_disk_and_is_idempotent(place):
    """All methods raise after the close."""
    session = await Session.open(place, conversation="c")
    session.refs.observe('<ref id="a">1</ref>')
    await asyncio.gather(session.close(), session.close())
    await session.close()

    for use in (session.observe, session.wrap, session.call):
        with pytest.raises(SessionClosed):
            await use("x")
    for use in (session.stream, session.fork, session.system_prompt):
        with pytest.raises(SessionClosed):
            use()
    async with Session.open(place, conversation="c") as again:
        assert ["ref:a@1"] == list(again.refs)


async def test_cancelled_close_completes(place):
    """The close releases the lock, the store and the conversation."""
    for turns in range(12):
        session = await Session.open(place, conversation="c")
        session.refs.observe(f'<ref id="a">{turns}</ref>')
        closing = asyncio.create_task(session.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await session.close()
    async with Session.open(place, conversation="c") as again:
        assert ("ref:a@12",) == again.refs.versions("a")[-1:]


async def test_cancelled_open_leaves_nothing_open(place):
    for turns in range(30):
        opening = asyncio.create_task(Session.open(place, conversation="c")._open())
        for _ in range(turns):
            await asyncio.sleep(0 if turns < 20 else 0.002)
        opening.cancel()
        (result,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, Session):
            await result.close()
        async with Session.open(place, conversation="c") as session:
            await session.observe('<ref id="a">1</ref>')


async def test_cancelled_observe_stores_the_ref(place):
    async with Session.open(place, conversation="c") as session:
        for turns in range(8):
            observing = asyncio.create_task(session.observe(f'<ref id="a">{turns}</ref>'))
            for _ in range(turns):
                await asyncio.sleep(0)
            observing.cancel()
            await asyncio.gather(observing, return_exceptions=True)
        await session.flush()
        held = list(session.refs)
    async with Session.open(place, conversation="c") as session:
        assert held == list(session.refs)
        assert len(held) >= 7


def test_session_of_another_loop_raises_wrong_loop(place):
    """The error does not close the session."""

    async def open_one():
        return await Session.open(place)

    with asyncio.Runner() as runner:
        session = runner.run(open_one())
        for use in (session.observe, session.wrap):
            with pytest.raises(WrongLoop):
                asyncio.run(use("x" * 9_000))
        with pytest.raises(WrongLoop):
            asyncio.run(session.close())
        runner.run(session.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_process_raises_and_parent_continues(place):
    code = """
        import asyncio, os, sys
        from mama_structs import Session, admin
        from mama_structs.errors import WrongLoop
        async def main():
            async with Session.open(sys.argv[1], conversation="c") as session:
                await session.observe('<ref id="a">1</ref>')
                child = os.fork()
                if child == 0:
                    told = []
                    for use in (lambda: session.refs.add("x"), lambda: session.refs.observe("x"), session.fork):
                        try:
                            use()
                        except WrongLoop:
                            told.append(1)
                    os._exit(len(told))
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                await session.observe('<ref id="a">2</ref>')
                print((await admin.check(session)).ok, *session.refs)
        asyncio.run(main())
    """
    out = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code), place],
        capture_output=True, text=True, check=True, timeout=600,
    ).stdout  # fmt: skip

    assert ["3", "True", "ref:a@1", "ref:a@2"] == out.split()


async def test_threads_open_and_close_sessions_of_one_directory(place):
    """Each thread has its own loop, and all share one store."""

    async def use(number):
        for turn in range(4):
            async with Session.open(place, conversation=f"t{number}") as session:
                await session.observe(f'<ref id="a">{turn}</ref>')

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, use(number)) for number in range(5)))

    for number in range(5):
        async with Session.open(place, conversation=f"t{number}") as session:
            assert ["0", "1", "2", "3"] == [session.refs.get(handle).text for handle in session.refs]
            assert (await admin.check(session)).ok


async def test_conversation_open_in_another_thread_is_rejected(place):
    async with Session.open(place, conversation="c"):

        async def other():
            async with Session.open(place, conversation="d") as session:
                await session.observe('<ref id="a">1</ref>')
            async with Session.open(place, conversation="c"):
                pass

        with pytest.raises(StoreBusy):
            await asyncio.to_thread(asyncio.run, other())
    async with Session.open(place, conversation="d") as session:
        assert ["ref:a@1"] == list(session.refs)


# Errors


async def test_full_disk_does_not_lose_result_of_tool(place, monkeypatch, caplog):
    """The call returns the result, and the next flush raises."""
    async with Session.open(place, conversation="c") as session:
        session.tools.add(echo)

        async def full():
            raise StoreFull("no room")

        with monkeypatch.context() as patched:
            patched.setattr(session._shared.home, "flush", full)
            shown = await session.call("echo", {"text": "x" * 9_000})
            with pytest.raises(StoreFull):
                await session.flush()
        assert shown.startswith("<fd_result")
        assert "x" * 9_000 == session.refs.get("fd:1").text
        assert "not on disk yet" in caplog.text


async def test_result_that_cannot_be_measured_is_returned(caplog):
    """The result's own code may raise any exception."""

    class Odd(dict):
        def items(self):
            raise RuntimeError("no")

    odd = Odd(a=1)
    async with Session.open() as session:

        @with_descriptors(store=session.refs)
        async def tool():
            return odd

        assert odd is await tool()
    assert "tool" in caplog.text


async def test_error_does_not_repeat_text_of_handle(place):
    """The text may have the wrong type, or violate a limit."""

    async def number(n: int) -> int:
        """Take a number."""
        return n

    async def short(text: Annotated[str, msgspec.Meta(max_length=20)]) -> str:
        """Take a word."""
        return text

    async with Session.open() as session:
        session.tools.add(number)
        session.tools.add(short)
        await session.observe(f'<ref id="k">{"SECRET " * 9}</ref>')
        with pytest.raises(InvalidArgument, match="got 'ref:k'") as typed:
            await session.call("number", {"n": {"$ref": "ref:k"}})
        with pytest.raises(InvalidArgument, match="not what the tool takes") as bound:
            await session.call("short", {"text": {"$ref": "ref:k"}})
        with pytest.raises(HandleNotFound):
            await session.call("number", {"n": {"$ref": "ref:nothing"}})
        answer = await session.call("search_fd", {"fd": "ref:k", "query": {"$ref": "ref:nothing"}})
        wrong = await session.call("read_fd", {"fd": "ref:k", "start": {"$ref": "ref:k"}})

    assert 'type="not_found"' in answer
    assert 'type="invalid_parameter"' in wrong
    for said in (typed.value, bound.value, answer, wrong):
        assert "SECRET" not in str(said)


async def test_arguments_must_be_an_object():
    """An empty list is invalid; a call without arguments is valid."""
    async with Session.open() as session:
        assert "fd_error" in await session.call("list_refs", [])
        assert "ref_list" in await session.call("list_refs")


async def test_fork_has_tools_in_order_of_its_parent():
    """The order matters for providers' prompt caches."""
    async with Session.open() as session:
        session.tools.add(echo)
        async with session.fork() as child:
            assert session.tools.names == child.tools.names
            assert session.tools["echo"] is child.tools["echo"]
            assert session.tools["read_fd"] is not child.tools["read_fd"]


class Lookup:
    """Look something up."""

    async def __call__(self, word: str) -> dict[str, int]:
        return {word: 1}


async def test_decorated_tool_keeps_name_and_has_no_output_schema():
    """The result has no schema, because it may be a text."""

    async def look(first: int, second: int) -> dict[str, int]:
        """Look."""
        return {}

    for tool, name, description in (
        (look, "look", "Look."),
        (Lookup(), "lookup", "Look something up."),
    ):
        made = Tool.from_function(with_descriptors(tool))

        assert (name, description, None) == (made.name, made.description, made.output_schema)
        assert Tool.from_function(tool).input_schema == made.input_schema
        assert Tool.from_function(with_references(tool)).name == name
    assert "look" == Tool.from_function(with_descriptors(functools.partial(look, second=1))).name


def test_with_references_rejects_decorated_function_with_descriptors():
    """References would be missing in a truncated answer."""

    async def look() -> dict[str, int]:
        return {}

    with pytest.raises(InvalidArgument, match="with_descriptors above"):
        with_references(with_descriptors(look))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_suggestions_for_code_blocks_are_notes_if_enabled(is_streamed):
    """The notes are sent with the next tool result."""
    block = "```python\ndef parse(text):\n    tokens = text.split()\n    return tokens\n```\n"
    for enabled in (False, True):
        settings = Settings(descriptors=DescriptorSettings(suggest_refs=enabled))
        async with Session.open(settings=settings) as session:
            if is_streamed:
                stream = session.stream()
                stream.feed(f"Here:\n{block}" * 5)
                await stream.close()
            else:
                await session.observe(f"Here:\n{block}" * 5)
            notes = session._observed_messages.notes(session.refs._budget)

        assert (3 if enabled else 0) == len(notes)
        if enabled:
            expected = 'the code block at line 3 is not stored: put it between <ref id="parse"> and </ref>'
            assert notes[0].startswith(expected)


async def test_suggestions_are_made_once_and_not_for_thoughts_or_reported_tags():
    block = "```python\ndef parse(text):\n    tokens = text.split()\n    return tokens\n```\n"
    settings = Settings(descriptors=DescriptorSettings(suggest_refs=True))
    async with Session.open(settings=settings) as session:

        def take_notes():
            notes = session._observed_messages.notes(session.refs._budget)
            session._observed_messages.clear_notes()
            return notes

        await session.observe(f"<think>\n{block}</think>\nok")
        assert [] == take_notes()

        await session.observe(block.replace("def", '<ref id="x">\ndef').replace("tokens\n`", "tokens\n</ref>\n`"))
        (note,) = take_notes()
        assert note.startswith("ref 'x' is in code")

        stream = session.stream()
        stream.feed(block)
        await stream.close()
        assert 1 == len(take_notes())
        for message in (block, {"role": "assistant", "content": block}):
            await session.observe(message)
            assert [] == take_notes()
