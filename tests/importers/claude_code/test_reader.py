"""Reader of Claude Code transcripts: which texts become memories, and the counts of everything else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importing_helpers import claude_code_projects, message, transcript
from memory_helpers import SMALL

from mama_structs import MemoryType, Session
from mama_structs.errors import InvalidArgument, MigrationError
from mama_structs.importers import import_from
from mama_structs.importers.claude_code import reader
from mama_structs.importers.claude_code.entries import parse_entry

PROMPTS = [
    "User: The staging server uses port 8443.",
    "User: Please list the notes.",
    "User: Raise the retries of the deploy job.",
    "User: Use an agent to count.",
]
SUMMARY = (
    "1. Primary Request and Intent:\n   The staging server listens on port 8443, and retries were raised to five.\n\n"
    "2. Optional Next Step:\n   Write the deploy notes."
)
CALL = [{"type": "tool_use", "name": "Bash", "input": {}}]
RESULT = [{"type": "tool_result", "content": "out"}]


def contents(found):
    """Return the contents of the memories to import."""
    return [one.record["content"] for one in found.memories]


def kinds(found):
    """Return the item type, the location and the problem kind of each irregular item."""
    return [(one.item, one.id, one.kind) for one in found.odd]


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    return claude_code_projects(tmp_path_factory.mktemp("projects"))


@pytest.mark.parametrize(
    ("version", "rows"),
    [
        ("1.0.72", {"turns": 7, "compact summaries": 0, "titles": 2, "subagent entries": 2}),
        ("2.0.47", {"turns": 4, "compact summaries": 1}),
        ("2.1.332", {"turns": 5, "compact summaries": 1, "repeated entries": 8}),
    ],
)
def test_read_returns_turns_and_summaries_of_each_version(projects, version, rows):
    """
    Each prompt is imported once with its final answer, and the summary of a compaction without its instructions.

    Version 1 copies resumed sessions with new ids, version 2.1 forked sessions with the same ids.
    """
    found = reader.read(projects / version / "-home-ada-shop")
    asked = [text.partition("\n")[0] for text in contents(found) if text.startswith("User: ")]
    summaries = [text for text in contents(found) if not text.startswith("User: ")]

    assert rows == {row: found.found[row] for row in rows}
    assert set(PROMPTS) <= set(asked)
    assert len(asked) == len(set(asked))
    assert all(text.startswith(SUMMARY) and len(text) <= len(SUMMARY) + 1 for text in summaries)
    assert {"shop"} == {one.record["topic"] for one in found.memories}
    assert not any(
        word in text for text in contents(found) for word in ("I should read", "Let me read", "<", "one file")
    )


EVENTS = {
    "prompt": lambda n: message("user", f"token{n}.", n),
    "answer": lambda n: message("assistant", [{"type": "text", "text": f"token{n}."}], n),
    "tool calls": lambda n: message("assistant", CALL, n),
    "tool results": lambda n: message("user", RESULT, n),
    "thinking": lambda n: message("assistant", [{"type": "thinking", "thinking": f"token{n}"}], n),
    "slash command": lambda n: message("user", f"<command-name>/token{n}.</command-name>", n),
    "output": lambda n: message("user", "<local-command-stdout>done</local-command-stdout>", n),
    "notices": lambda n: message("user", f"token{n}", n, isMeta=True),
    "notification": lambda n: message("user", f"token{n}", n, origin={"kind": "task-notification"}),
    "error": lambda n: message("assistant", [{"type": "text", "text": f"token{n}"}], n, isApiErrorMessage=True),
    "subagent entries": lambda n: message("assistant", [{"type": "text", "text": f"token{n}"}], n, isSidechain=True),
    "titles": lambda n: {"type": "summary", "summary": f"token{n}", "leafUuid": "u0"},
    "other entries": lambda n: {"type": "file-history-snapshot", "messageId": f"u{n}", "snapshot": {}},
    "image": lambda n: message("user", [{"type": "image", "source": {}}], n),
    "summary": lambda n: message("user", f"Summary:\ntoken{n}.", n, isCompactSummary=True),
    "repeated": lambda n: message("user", f"token{n}", 0),
    "no object": lambda n: "[]",
    "no JSON": lambda n: f'{{"type": "user", "uuid": "u{n}',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("session")


@given(names=st.lists(st.sampled_from(sorted(EVENTS)), max_size=30))
def test_read_imports_or_counts_every_entry(folder, names):
    """Each entry of any transcript is part of one memory, or counted in one row of the report."""
    sent = [message("user", "token0.", 0), message("assistant", [{"type": "text", "text": "token1."}], 1)]
    entries = [sent[0], *(EVENTS[name](n) for n, name in enumerate(names, start=2)), message("user", "end.", 40)]
    entries.append(message("assistant", [{"type": "text", "text": "end."}], 41))
    found = reader.read(transcript(folder / "s1.jsonl", *entries))
    imported = sum(text.count("token") + text.count("end.") for text in contents(found))
    counted = sum(count for row, count in found.found.items() if row not in {"turns", "compact summaries"})

    assert len(entries) == imported + counted
    assert len(found.memories) == found.found["turns"] + found.found["compact summaries"]
    assert len(found.memories) == len({one.key for one in found.memories})


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # Only the texts after the last tool call are the answer.
        (
            [
                ("user", "Why?"),
                ("assistant", "Let me look."),
                ("assistant", CALL),
                ("user", RESULT),
                ("assistant", "So."),
            ],
            ["User: Why?\n\nAssistant: So."],
        ),
        # A prompt without an answer belongs to the next turn.
        (
            [
                ("user", "Add a retry."),
                ("assistant", CALL),
                ("user", "[Request interrupted by user for tool use]"),
                ("user", "Make it five."),
                ("assistant", "Five."),
            ],
            ["User: Add a retry.\n\nMake it five.\n\nAssistant: Five."],
        ),
        # A slash command is a prompt if the assistant answers it.
        (
            [
                ("user", "<command-name>/review</command-name><command-args>PR 12</command-args>"),
                ("assistant", "Good."),
            ],
            ["User: /review PR 12\n\nAssistant: Good."],
        ),
        (
            [
                ("user", "<command-name>/model</command-name><command-args>opus</command-args>"),
                ("user", "<local-command-stdout>Set</local-command-stdout>"),
                ("user", "Hi"),
                ("assistant", "Hello."),
            ],
            ["User: Hi\n\nAssistant: Hello."],
        ),
        # Notices are removed from a prompt. An unclosed tag is a text of the user.
        (
            [("user", "<system-reminder>Be brief.</system-reminder>Is <tick> a tag?"), ("assistant", "Yes.")],
            ["User: Is <tick> a tag?\n\nAssistant: Yes."],
        ),
        ([("user", "<ide_selection>code</ide_selection>"), ("assistant", "To nobody.")], []),
        ([("user", "Cut \ud83d"), ("assistant", "Half.")], ["User: Cut \ufffd\n\nAssistant: Half."]),
    ],
)
def test_read_combines_prompts_and_answers(tmp_path, entries, expected):
    """A turn has the texts of the user, and the final answer."""
    lines = [
        message(role, [{"type": "text", "text": one}] if role == "assistant" and isinstance(one, str) else one, number)
        for number, (role, one) in enumerate(entries)
    ]

    assert expected == contents(reader.read(transcript(tmp_path / "s1.jsonl", *lines)))


def test_read_includes_prompts_that_were_sent_during_the_work(projects):
    """A message that the CLI delivered between two tool calls belongs to the turn. An API error is not an answer."""
    found = reader.read(projects / "2.1.332" / "-home-ada-wiki")

    assert [["Please list the notes.", "Also tell me the mirror."], ["/review PR 12"]] == [
        text.removeprefix("User: ").split("\n\n")[:-1] for text in contents(found)
    ]
    assert ("turns", "all", "no_answer") in kinds(found)


def test_read_skips_queued_messages_that_no_person_sent(tmp_path):
    queued = [
        {"type": "queued_command", "prompt": "From a plugin.", "origin": {"kind": "plugin"}},
        {"type": "queued_command", "prompt": "From a task.", "commandMode": "task-notification"},
        {"type": "queued_command", "prompt": CALL},
    ]
    file = transcript(
        tmp_path / "s1.jsonl",
        message("user", "Rename it.", 0),
        *({"type": "attachment", "uuid": f"q{number}", "attachment": one} for number, one in enumerate(queued)),
        message("assistant", [{"type": "text", "text": "Renamed."}], 2),
    )
    found = reader.read(file)

    assert ["User: Rename it.\n\nAssistant: Renamed."] == contents(found)
    assert (2, 1) == (found.found["notices"], found.found["other entries"])


def test_read_reports_unusable_lines_and_files(tmp_path, monkeypatch):
    """A file in use ends with an incomplete line. Other lines and files are skipped, too."""
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(reader, "MAX_TEXT_CHARS", 10)
    turn = [message("user", "Which port?", 0), message("assistant", [{"type": "text", "text": "8443"}], 1)]
    file = transcript(tmp_path / "project" / "s1.jsonl", *turn, "null", "{}", message("user", "x" * 1_000, 2), "\0\0")
    file.write_bytes(file.read_bytes() + b'{"type": "user", "uu')
    (tmp_path / "project" / "s1").mkdir()
    (tmp_path / "project" / "s1" / "output.txt").write_text("text")
    (tmp_path / "project" / "s2.jsonl").symlink_to(file)
    found = reader.read(tmp_path)

    assert ["User: Which port\n\nAssistant: 8443"] == contents(found)
    assert {
        ("files", "project/s2.jsonl", "not_read"),
        ("turns", found.memories[0].key, "cut"),
        ("files", "all", "no_transcript"),
        ("lines", "project/s1.jsonl line 3 and 1 more", "no_entry"),
        ("lines", "project/s1.jsonl line 5", "too_long"),
        ("lines", "project/s1.jsonl line 7", "truncated"),
    } == set(kinds(found))
    assert {"turns": 1, "compact summaries": 0, "files": 2, "lines": 4} == found.found


def test_read_raises_when_there_is_no_transcript(tmp_path):
    """The errors name the place of the transcripts."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument) as missing:
        reader.read(tmp_path / "empty")
    with pytest.raises(MigrationError) as foreign:
        reader.read(transcript(tmp_path / "memory.jsonl", {"type": "entity", "name": "Ada"}))

    assert all(".claude/projects" in str(error.value) for error in (missing, foreign))


@pytest.mark.parametrize("value", [None, 7, "text", [], [None, "text", {"type": 7}, {"type": "text", "text": 7}], {}])
def test_parse_entry_accepts_fields_with_unexpected_types(value):
    """Unexpected values raise nothing."""
    for role in ("user", "assistant", "other", value):
        entry = {"type": role, "message": value, "attachment": value, "origin": {"kind": value}}

        assert parse_entry(entry)
        assert parse_entry({**entry, "message": {"content": value, "model": value}})
        assert parse_entry({"type": "attachment", "attachment": {"type": "queued_command", "prompt": value}})


async def test_import_from_continues_a_session(tmp_path):
    """A session in use is imported up to its last answer, and the rest by the next import. Nothing is added twice."""
    file = tmp_path / "s1.jsonl"
    lines = [message("user", "Which port does staging use?", 0), message("assistant", CALL, 1, gitBranch="main")]
    async with Session.open(tmp_path / "agent.mama", embedder=SMALL) as session:
        reports = []
        for _ in range(3):
            transcript(file, *lines)
            reports.append(await import_from(session.memories, "claude-code", file))
            lines.append(message("assistant", [{"type": "text", "text": "Port 8443."}], 2))
        (hit, *_) = await session.memories.search("port of staging")

    assert [(0, 0), (1, 0), (0, 1)] == [(one.added, one.existing) for one in reports]
    assert all(row.total == row.added + row.existing + row.skipped for one in reports for row in one.items)
    assert [("turns", "all", "no_answer"), ("tool calls", "all", "no_memory")] == [
        (one.item, one.id, one.kind) for one in reports[0].warnings
    ]
    assert "User: Which port does staging use?\n\nAssistant: Port 8443." == hit.content
    assert (MemoryType.CONTEXT, "shop", "outside", "claude-code") == (
        hit.memory.type,
        hit.memory.topic,
        hit.memory.origin,
        hit.memory.metadata.source,
    )
    assert datetime(2026, 3, 2, 9, tzinfo=UTC) == hit.memory.created_at
    assert {"session": "s1", "cwd": "/home/ada/shop", "uuid": "u0"} == hit.memory.metadata.extra["claude-code"]


async def test_import_from_adds_resumed_copies_once(tmp_path, projects):
    """All versions and all projects are imported together, and a second import adds nothing."""
    async with Session.open(tmp_path / "agent.mama", embedder=SMALL) as session:
        planned = await import_from(session.memories, "claude-code", projects, dry_run=True)
        first = await import_from(session.memories, "claude-code", projects)
        second = await import_from(session.memories, "claude-code", projects)
        checkpoint = await session.memories.latest_checkpoint()

    assert (17, 0, 17) == (first.added, second.added, second.existing)
    assert planned.items == first.items
    assert checkpoint.content.startswith(SUMMARY)


@pytest.mark.parametrize("time", [None, "soon", 10**400])
def test_read_reports_entries_without_a_usable_time(time, tmp_path):
    """JSON integers can be too large for a float."""
    found = reader.read(
        transcript(tmp_path / "a.jsonl", message("user", "hello", 1, timestamp=time), message("assistant", "hi", 2))
    )

    assert ["User: hello\n\nAssistant: hi"] == contents(found)
    assert [("turns", "no_time")] == [(item, kind) for item, _, kind in kinds(found)]
