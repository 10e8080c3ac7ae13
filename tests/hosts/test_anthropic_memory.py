"""Anthropic's memory tool on a session: its answers, its versions, and a run of the SDK's own loop."""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs import HashEmbedder, Session, sync
from mama_structs.errors import InvalidArgument, SessionClosed

tools = pytest.importorskip("anthropic.tools")
anthropic_memory = pytest.importorskip("mama_structs.adapters.anthropic.memory_backend")

LABELS = ("anthropic", "memories")
NOTES = "/memories/notes.txt"


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as session:
        yield session


def command(name: str, path: str = NOTES, **arguments: Any) -> dict[str, Any]:
    return {"command": name, "path": path, **arguments}


async def answer(tool: Any, call: dict[str, Any]) -> str:
    """Return the answer of the tool, or the error text for the model."""
    try:
        told: str = await tool.call(call)
    except tools.ToolError as error:
        return f"error: {error}"
    return told


NAMES = st.sampled_from(["a", "b", "a.txt", ".hidden", "ä b", "CON"])
PATHS = st.lists(NAMES, max_size=3).map(lambda names: "/".join(["/memories", *names]))
ODD_PATHS = PATHS | st.sampled_from(
    ["/memories/", "/memories/a/../b", "/memories/./a//b", "/memories/../../etc", "/etc"]
)
TEXTS = st.lists(st.sampled_from(["x", "yx", "", "x x", "\r", "ß"]), max_size=6).map("\n".join)
COMMANDS = st.one_of(
    st.fixed_dictionaries({"command": st.just("create"), "path": ODD_PATHS, "file_text": TEXTS}),
    st.fixed_dictionaries(
        {"command": st.just("view"), "path": ODD_PATHS},
        optional={"view_range": st.lists(st.integers(-1, 8), max_size=3)},
    ),
    st.fixed_dictionaries(
        {
            "command": st.just("str_replace"),
            "path": ODD_PATHS,
            "old_str": st.sampled_from(["x", "yx", "x\n", "ß", "no"]),
            "new_str": TEXTS,
        }
    ),
    st.fixed_dictionaries(
        {"command": st.just("insert"), "path": ODD_PATHS, "insert_line": st.integers(-1, 4), "insert_text": TEXTS}
    ),
    st.fixed_dictionaries({"command": st.just("delete"), "path": ODD_PATHS}),
    st.fixed_dictionaries({"command": st.just("rename"), "old_path": ODD_PATHS, "new_path": ODD_PATHS}),
)


def without_sizes(said: str) -> list[str]:
    """Return the lines of a listing without directory sizes, which depend on the file system."""
    lines = said.replace("//", "/").splitlines()
    return [line.partition("\t")[2] if line.endswith("/") else line for line in lines]


def forget_empty_folders(root: Path) -> None:
    """Delete empty folders, because a record store has no empty folders."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not [*path.iterdir()]:
            path.rmdir()


@pytest.fixture(scope="module")
def shared():
    """One session for all examples. Each example uses its own labels."""
    with sync.Session.open(embedder=HashEmbedder()) as session:
        yield session


def outcome(tool: Any, call: dict[str, Any]) -> str | None:
    """Return the answer of the tool, or the error text for the model, or None if the operating system raises."""
    try:
        told: str = tool.call(call)
    except tools.ToolError as error:
        return f"error: {error}"
    except OSError:
        return None
    return told


@given(calls=st.lists(COMMANDS, max_size=12))
def test_memory_tool_matches_tool_of_the_sdk(shared, calls):
    """For any calls in any order, answers, errors and files equal those of the SDK's tool on a folder."""
    user = str(uuid.uuid4())
    ours = anthropic_memory.memory_tool(shared, labels=(user,))
    with tempfile.TemporaryDirectory() as folder:
        theirs = tools.BetaLocalFilesystemMemoryTool(base_path=folder)
        root = theirs.memory_root
        for call in calls:
            expected, said = outcome(theirs, call), outcome(ours, call)
            forget_empty_folders(root)

            if expected is None:
                assert said.startswith("error: ")
            elif expected.startswith("Here're"):
                assert without_sizes(expected)[2:] == without_sizes(said)[2:]
            else:
                assert expected == said
        files = {
            path.relative_to(root).as_posix(): path.read_bytes().decode() for path in root.rglob("*") if path.is_file()
        }

        assert files == {"/".join((*one.labels[2:], one.key)): one.value for one in shared.records.list((user,))}


async def test_edit_creates_version_with_history(session):
    """The text before each edit, insertion and renaming is in the history, newest first, with the origin model."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", file_text="Ada likes coffee"))
    await tool.call(command("str_replace", old_str="coffee", new_str="tea"))
    await tool.call(command("insert", insert_line=1, insert_text="She is on holiday"))
    await tool.call({"command": "rename", "old_path": NOTES, "new_path": "/memories/people/ada.txt"})
    versions = await session.records.history((*LABELS, "people"), "ada.txt")

    assert ["Ada likes tea\nShe is on holiday\n", "Ada likes tea", "Ada likes coffee"] == [
        one.value for one in versions
    ]
    assert [3, 2, 1] == [one.version for one in versions]
    assert {"model"} == {one.origin for one in versions}


async def test_deleted_file_has_no_versions(session):
    """Deleting a directory deletes the history of its files: a new file with the same name starts again."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", "/memories/ada/notes.txt", file_text="Ada likes coffee"))
    await tool.call(command("str_replace", "/memories/ada/notes.txt", old_str="coffee", new_str="tea"))
    await tool.call(command("delete", "/memories/ada"))
    await tool.call(command("create", "/memories/ada/notes.txt", file_text="Ada is here"))

    assert ["Ada is here"] == [one.value for one in await session.records.history((*LABELS, "ada"), "notes.txt")]


async def test_concurrent_edits_are_all_applied(session):
    """Each of several agents' edits of one file is applied to the result of the others."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", file_text="first\n"))
    told = await asyncio.gather(
        *(answer(tool, command("insert", insert_line=1, insert_text=f"by agent {number}")) for number in range(6))
    )
    kept = await session.records.get(LABELS, "notes.txt")

    assert ["The file /memories/notes.txt has been edited."] * 6 == told
    assert ["first", *sorted(f"by agent {number}" for number in range(6))] == sorted(
        kept.value.splitlines(), key=lambda line: (line != "first", line)
    )


async def test_edit_with_repeated_conflicts_raises(session, monkeypatch):
    """After several conflicts the error says what to do, and nothing is overwritten."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", file_text="0"))
    write = type(session.records).put

    async def forestalled(records: Any, labels: Any, key: str, value: str, **options: Any) -> Any:
        await write(records, labels, key, "1")
        return await write(records, labels, key, value, **options)

    monkeypatch.setattr(type(session.records), "put", forestalled)
    told = await answer(tool, command("insert", insert_line=0, insert_text="2"))

    assert "error: The file /memories/notes.txt was changed by others 8 times meanwhile. View it and try again." == told
    assert "1" == (await session.records.get(LABELS, "notes.txt")).value


async def test_rename_of_concurrently_deleted_file_reports_missing_file(session, monkeypatch):
    """The model does not get a success message if nothing was moved."""
    tool, move = anthropic_memory.memory_tool(session), session.records.move
    await answer(tool, command("create", file_text="a"))

    async def overtaken(moves):
        await answer(tool, command("delete"))
        return await move(moves)

    monkeypatch.setattr(session.records, "move", overtaken)
    told = await answer(tool, {"command": "rename", "old_path": NOTES, "new_path": "/memories/new.txt"})

    assert f"error: The path {NOTES} does not exist. Please provide a valid path." == told


async def test_file_text_is_recalled(session):
    """The contents of Claude's files are recalled for its user's message until the file is deleted."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", file_text="The staging database is called heron"))
    found = (await session.recall("What is the staging database called?")).text
    await tool.call(command("delete"))
    gone = (await session.recall("What is the staging database called?", repeat=True)).text

    assert "heron" in found
    assert "heron" not in gone


async def test_labels_isolate_users(session):
    """Each user's files have their own labels: users cannot see, list or clear the files of others."""
    ada, ben = (anthropic_memory.memory_tool(session, labels=("anthropic", name)) for name in ("ada", "ben"))
    everybody = anthropic_memory.memory_tool(session)
    await ada.call(command("create", file_text="Ada's"))
    await ben.call(command("create", file_text="Ben's"))
    listed = await everybody.call(command("view", "/memories"))
    await everybody.clear_all_memory()
    await ben.clear_all_memory()

    assert "notes.txt" not in listed
    assert "Ada's" in await ada.call(command("view"))
    assert "does not exist" in await answer(ben, command("view"))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (command("create"), "file_text is required and must be a text"),
        (command("view", path=7), "path is required and must be a text"),
        (command("str_replace", old_str=["x"], new_str="y"), "old_str is required and must be a text"),
        (command("insert", insert_line="top", insert_text="x"), "insert_line is required and must be a whole number"),
        (command("insert", insert_text="x"), "insert_line is required and must be a whole number"),
        (command("view", "/memoriesx"), "Path must start with /memories, got: /memoriesx"),
        (command("create", "/memories/notes.txt/x", file_text=""), "The path /memories/notes.txt is not a directory."),
        (
            {"command": "rename", "old_path": "/memories/dir", "new_path": "/memories/dir/in"},
            "Cannot rename /memories/dir to a path inside itself",
        ),
    ],
)
async def test_wrong_call_returns_explanation(session, call, told):
    """A missing argument, one of another type, or an invalid path is an error for the model."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", file_text="x"))
    await tool.call(command("create", "/memories/dir/a", file_text="x"))

    assert f"error: {told}" == await answer(tool, call)


@pytest.mark.parametrize("path", ["/memories/" + "x" * 1_100, "/memories/\ud800"])
async def test_unsupported_path_is_an_error_for_the_model(session, path):
    """A path that is too long, or not text, does not end the run: the model gets the rule."""
    told = await answer(anthropic_memory.memory_tool(session), command("create", path, file_text="x"))

    assert told.startswith("error: ")
    assert [] == await session.records.list(LABELS)


async def test_error_lists_limited_number_of_lines(session):
    """For text with many occurrences the error lists some of the lines and says that there are more."""
    tool = anthropic_memory.memory_tool(session)
    await tool.call(command("create", file_text="x\n" * 5_000))
    told = await answer(tool, command("str_replace", old_str="x", new_str="y"))

    assert "in lines: 1, 2, 3, " in told
    assert "99, 100 and more. Please" in told


async def test_call_on_closed_session_raises_to_the_host(session):
    """It is a bug of the host, so it is not reported to the model."""
    tool = anthropic_memory.memory_tool(session)
    await session.close()

    with pytest.raises(SessionClosed):
        await tool.call(command("view", "/memories"))


async def test_labels_must_not_contain_memories(session):
    """Otherwise the files of a user named memories would be a folder in the tree of the default labels."""
    with pytest.raises(InvalidArgument, match="must not contain 'memories'"):
        anthropic_memory.memory_tool(session, labels=("anthropic", "memories"))


@pytest.mark.parametrize("labels", ["memories", ()])
async def test_labels_must_be_a_sequence(session, labels):
    """A text would be split into letters."""
    with pytest.raises(InvalidArgument, match="labels must be"):
        anthropic_memory.memory_tool(session, labels=labels)


def test_memory_tool_works_with_sync_client(tmp_path):
    """A sync session returns the tool for the sync client, on the same files."""
    with sync.Session.open(tmp_path, embedder=HashEmbedder()) as session:
        tool = anthropic_memory.memory_tool(session, cache_control={"type": "ephemeral"})
        told = [
            tool.call(call)
            for call in (
                command("create", file_text="one\n"),
                command("insert", insert_line=1, insert_text="two"),
                command("view"),
                command("str_replace", old_str="one", new_str="1"),
                {"command": "rename", "old_path": NOTES, "new_path": "/memories/other.txt"},
                command("delete", "/memories/other.txt"),
            )
        ]
        with pytest.raises(tools.ToolError, match="does not exist"):
            tool.call(command("view"))

        assert "File created successfully at: /memories/notes.txt" == told[0]
        assert (
            "Here's the content of /memories/notes.txt with line numbers:\n     1\tone\n     2\ttwo\n     3\t"
            == told[2]
        )
        assert "Successfully deleted /memories/other.txt" == told[-1]
        assert "All memory cleared" == tool.clear_all_memory()
        assert {"type": "ephemeral"} == tool.to_dict()["cache_control"]


async def test_sdk_run_stores_files_of_the_model(tmp_path):
    """The SDK's own loop runs the calls. Another process's session has the file, and errors reach the model."""
    anthropic, httpx2 = pytest.importorskip("anthropic"), pytest.importorskip("httpx2")
    script = [
        command("view", "/memories"),
        command("create", file_text="Ada likes tea"),
        command("create", file_text="again"),
        "Noted.",
    ]
    asked: list[dict[str, Any]] = []

    def play(request: Any) -> Any:
        asked.append(json.loads(request.content))
        step = script[len(asked) - 1]
        block = {"type": "text", "text": step}
        if isinstance(step, dict):
            block = {"type": "tool_use", "id": f"toolu_{len(asked)}", "name": "memory", "input": step}
        message = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": [block]}
        message |= {"stop_reason": "tool_use" if isinstance(step, dict) else "end_turn", "stop_sequence": None}
        return httpx2.Response(200, json={**message, "usage": {"input_tokens": 0, "output_tokens": 0}})

    client = anthropic.AsyncAnthropic(
        api_key="none", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(play))
    )
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session, client:
        runner = client.beta.messages.tool_runner(
            model="m",
            max_tokens=99,
            messages=[{"role": "user", "content": "I like tea"}],
            tools=[anthropic_memory.memory_tool(session)],
        )
        last = await runner.until_done()
        results = [block for message in asked[-1]["messages"] for block in message["content"] if "is_error" in block]

        assert "Noted." == last.content[0].text
        assert [{"type": "memory_20250818", "name": "memory"}] == asked[0]["tools"]
        assert [(True, "File /memories/notes.txt already exists")] == [
            (block["is_error"], block["content"]) for block in results
        ]
    async with Session.open(tmp_path, embedder=HashEmbedder()) as session:
        assert "Ada likes tea" == (await session.records.get(LABELS, "notes.txt")).value
