"""
Reader of Claude Code transcripts, the JSON Lines files of its sessions.

A turn, the user's prompts with the assistant's final answer, becomes a context whose topic is the project. The summary
of a compaction becomes a checkpoint. Everything else is counted and left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.importers.claude_code import entries
from mama_structs.importers.claude_code.entries import Part, parse_entry
from mama_structs.importers.shared.import_model import ImportedData, ImportedMemory, compute_digest, to_topic
from mama_structs.importers.shared.item_keys import item_key
from mama_structs.importers.shared.safe_files import MAX_FOLDER_BYTES, import_error, iter_lines, list_files
from mama_structs.importers.shared.value_readers import read_time
from mama_structs.memory.embedding.chunks import replace_surrogates

KIND: Final = "claude-code"
SOURCE: Final = "claude-code"
"""The source of the imported memories; `MemoryStore.erase` can select them by it."""
TURNS: Final = "turns"
SUMMARIES: Final = "compact summaries"
REPEATED_ENTRIES: Final = "repeated entries"
OTHER_TEXTS: Final = "other texts"
LINES: Final = "lines"
FILES: Final = "files"
SUFFIX: Final = ".jsonl"
MAX_LINE_BYTES: Final = 2**24
"""The maximum size of an entry. Longer ones are skipped and reported."""
MAX_TRANSCRIPT_BYTES: Final = 2**32
"""The maximum size of a transcript."""
MAX_TEXT_CHARS: Final = 20_000
"""The maximum length of a turn's prompts, of its answer, and of a summary. Longer ones are truncated and reported."""
MAX_FIELD_CHARS: Final = 1_000
EXTRA_FIELDS: Final[Mapping[str, str]] = {
    "session": "sessionId",
    "cwd": "cwd",
    "branch": "gitBranch",
    "version": "version",
    "uuid": "uuid",
}
"""The extra metadata of a memory, and the fields of the entry that contain it."""
SKIP_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    entries.TOOL_CALLS: ("no_memory", "the answer says what was done"),
    entries.TOOL_RESULTS: ("no_memory", "outputs of tools are long, and may have been written by anybody"),
    entries.THINKING: ("no_memory", "the answer has the result"),
    OTHER_TEXTS: ("no_memory", "texts before a tool call, or without a prompt, are not answers"),
    entries.COMMANDS: ("no_memory", "local commands and their outputs are no conversation"),
    entries.NOTICES: ("no_memory", "Claude Code wrote them, and neither the user nor a model"),
    entries.SUBAGENTS: ("no_memory", "the main agent's answer has their result"),
    entries.TITLES: ("no_memory", "a title alone says too little"),
    entries.OTHER_ENTRIES: ("no_memory", "they are not messages"),
    REPEATED_ENTRIES: ("said_twice", "a resumed, forked or compacted session repeats them"),
    FILES: ("no_transcript", f"their names do not end in {SUFFIX}"),
}
LINE_PROBLEMS: Final[Mapping[str, str]] = {
    "no_entry": "not an entry of a transcript",
    "too_long": f"longer than {MAX_LINE_BYTES:,} bytes",
    "truncated": "the last line is incomplete: import again when the session has ended",
}
LOCATION_HINT: Final = "Claude Code keeps its transcripts in ~/.claude/projects/PROJECT/SESSION.jsonl"
LAST_TIME: Final = datetime.max.replace(tzinfo=UTC)
PATH_SEPARATORS: Final = re.compile(r"[/\\]")


def read(path: Path) -> ImportedData:
    """
    Read a transcript, or all transcripts below a folder. Blocks.

    Raises:
        InvalidArgument: There is no such file or folder, or the folder has no transcript.
        MigrationError: A file or the folder exceeds a limit, or no line is an entry of a transcript.

    """
    found = _TranscriptCollector(KIND, path, (TURNS, SUMMARIES))
    count = 0
    if path.is_dir():
        for file, problem in list_files(path):
            name = file.relative_to(path).as_posix()
            if problem is not None:
                found.skip(FILES, name, "not_read", problem)
            elif file.suffix != SUFFIX:
                found.skipped[FILES] += 1
            else:
                count += 1
                found.add_file(file, name, follow=False)
        if not count:
            raise InvalidArgument(f"{str(path)!r:.200} has no transcript of Claude Code", hint=LOCATION_HINT)
    else:
        found.add_file(path, path.name, follow=True)
    if not found.has_session and (found.problems or found.skipped[entries.OTHER_ENTRIES]):
        raise import_error(path, "has no transcript of Claude Code: no line has a session", LOCATION_HINT)
    found.finish()
    return found


@attrs.frozen
class EntryContext:
    """The metadata of an entry: its id, its time, its project, and the extra metadata of its memory."""

    entry_id: str
    at: datetime | None
    project: str
    extra: Mapping[str, str]

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], project: str) -> EntryContext:
        """Read the metadata of an entry."""
        time = entry.get("timestamp")
        at = read_time(time if isinstance(time, str | int | float) else None).at
        extra = {name: text for name, field in EXTRA_FIELDS.items() if (text := _read_field(entry, field))}
        return cls(_read_id(entry), at, project, extra)


@attrs.define(eq=False)
class Turn:
    """The user's prompts up to an answer, and the texts of the assistant after its last tool call."""

    context: EntryContext
    prompts: list[str] = attrs.field(factory=list)
    answer: list[str] = attrs.field(factory=list)
    # The id of the first API message. Version 1 copies a resumed session with new entry ids and times, but with the
    # same message ids.
    message_id: str | None = None

    @property
    def key(self) -> str:
        """The key of the memory. It is the same for all copies of a turn."""
        return f"turn {compute_digest(self.message_id or self.context.entry_id, *self.prompts)}"


@attrs.define
class _TranscriptCollector(ImportedData):
    """Collects the turns and summaries of transcripts."""

    turns: list[Turn] = attrs.field(init=False, factory=list)
    # The numbers of items that are left out, and of unusable lines by kind and file, with the number of the first one.
    skipped: Counter[str] = attrs.field(init=False, factory=Counter)
    problems: dict[tuple[str, str], list[int]] = attrs.field(init=False, factory=dict)
    has_session: bool = attrs.field(init=False, default=False)
    seen: set[bytes] = attrs.field(init=False, factory=set)
    turn_by_prompt: dict[bytes, Turn] = attrs.field(init=False, factory=dict)
    chars: int = attrs.field(init=False, default=0)
    # The state of the current file.
    project: str = attrs.field(init=False, default="")
    current: Turn | None = attrs.field(init=False, default=None)
    # A slash command. It is a prompt if the assistant answers, and a local command if its output follows.
    command: tuple[Mapping[str, Any], str] | None = attrs.field(init=False, default=None)

    def add_file(self, file: Path, name: str, *, follow: bool) -> None:
        """Add the entries of a transcript. Lines that are not entries are counted."""
        self.project, self.current = "", None
        lines = iter_lines(file, "a transcript", limit=MAX_TRANSCRIPT_BYTES, max_line=MAX_LINE_BYTES, follow=follow)
        for number, line in enumerate(lines, start=1):
            if line is None:
                self._count_problem("too_long", name, number)
            # NULs remain at the end of a file after a crash.
            elif data := line.strip(b"\0 \t\r\n"):
                try:
                    # Claude Code truncates outputs of tools between surrogates, which stricter parsers reject.
                    entry = json.loads(data)
                except (ValueError, RecursionError):
                    entry = None
                if isinstance(entry, Mapping) and isinstance(entry.get("type"), str):
                    self._take(entry)
                else:
                    self._count_problem("no_entry" if line.endswith(b"\n") else "truncated", name, number)
        self._drop_command()

    def finish(self) -> None:
        """Add the memories of all turns, and report the skipped items."""
        keys: set[str] = set()
        repeated = unanswered = 0
        for turn in sorted(self.turns, key=lambda turn: turn.context.at or LAST_TIME):
            if not turn.answer:
                unanswered += 1
            elif turn.key in keys:
                repeated += 1
            else:
                keys.add(turn.key)
                self._add_turn(turn)
        if unanswered:
            why = "the session ends before the answer: import again when it has been continued"
            self.skip(TURNS, "all", "no_answer", why, count=unanswered)
        if repeated:
            self.skip(TURNS, "all", *SKIP_REASONS[REPEATED_ENTRIES], count=repeated)
        for what, reason in SKIP_REASONS.items():
            if self.skipped[what]:
                self.skip(what, "all", *reason, count=self.skipped[what])
        for (kind, name), (first, count) in self.problems.items():
            more = f" and {count - 1:,} more" if count > 1 else ""
            self.skip(LINES, f"{name} line {first}{more}", kind, LINE_PROBLEMS[kind], count=count)

    def _count_problem(self, kind: str, name: str, number: int) -> None:
        self.problems.setdefault((kind, name), [number, 0])[1] += 1

    def _take(self, entry: Mapping[str, Any]) -> None:
        self.has_session = self.has_session or isinstance(entry.get("sessionId"), str)
        self.project = self.project or PATH_SEPARATORS.split(_read_field(entry, "cwd").rstrip("/\\"))[-1]
        key = item_key(entry_id) if (entry_id := _read_id(entry)) else None
        if key in self.seen:
            self.skipped[REPEATED_ENTRIES] += 1
            # The file may continue the turn of a repeated prompt.
            self.current = self.turn_by_prompt.get(key, self.current)
            return
        if key is not None:
            self.seen.add(key)
        for part in parse_entry(entry):
            self._take_part(entry, part)

    def _take_part(self, entry: Mapping[str, Any], part: Part) -> None:
        if part.kind in {entries.ANSWER, entries.TOOL_CALLS, entries.THINKING}:
            self._take_assistant_part(entry, part)
        elif part.kind == entries.PROMPT:
            self._drop_command()
            self._add_prompt(entry, part.text)
        elif part.kind == entries.COMMAND:
            self._drop_command()
            self.command = entry, part.text
        elif part.kind == entries.SUMMARY:
            self._add_summary(entry, part.text)
        else:
            if part.kind == entries.COMMANDS:
                self._drop_command()
            self.skipped[part.kind] += 1

    def _take_assistant_part(self, entry: Mapping[str, Any], part: Part) -> None:
        if self.command is not None:
            self._add_prompt(*self.command)
            self.command = None
        turn = self.current
        if turn is not None and turn.message_id is None:
            turn.message_id = _read_field(entry["message"], "id") or None
        if part.kind != entries.ANSWER:
            self.skipped[part.kind] += 1
            if turn is not None and part.kind == entries.TOOL_CALLS:
                self.skipped[OTHER_TEXTS] += len(turn.answer)
                turn.answer.clear()
        elif turn is None:
            self.skipped[OTHER_TEXTS] += 1
        else:
            turn.answer.append(self._count_chars(part.text))

    def _add_prompt(self, entry: Mapping[str, Any], text: str) -> None:
        """Add a prompt to the current turn if that has no answer yet, else begin a turn."""
        if self.current is None or self.current.answer:
            self.current = Turn(EntryContext.from_entry(entry, self.project))
            self.turns.append(self.current)
        self.current.prompts.append(self._count_chars(text))
        self.turn_by_prompt[item_key(_read_id(entry))] = self.current

    def _drop_command(self) -> None:
        self.skipped[entries.COMMANDS] += self.command is not None
        self.command = None

    def _add_turn(self, turn: Turn) -> None:
        self.found[TURNS] += 1
        prompt, answer = (self._truncate(TURNS, turn.key, "\n\n".join(texts)) for texts in (turn.prompts, turn.answer))
        record = {"type": "context", "content": f"User: {prompt}\n\nAssistant: {answer}"}
        self._add_memory(TURNS, turn.key, record, turn.context)

    def _add_summary(self, entry: Mapping[str, Any], text: str) -> None:
        key = f"summary {compute_digest(text)}"
        if not text:
            self.skip(SUMMARIES, key, "no_text", "it has no text")
            return
        self.found[SUMMARIES] += 1
        record = {"type": "checkpoint", "content": self._truncate(SUMMARIES, key, self._count_chars(text))}
        self._add_memory(SUMMARIES, key, record, EntryContext.from_entry(entry, self.project))

    def _add_memory(self, what: str, key: str, record: Mapping[str, Any], context: EntryContext) -> None:
        if context.at is None:
            self.add_odd(what, key, "no_time", "it has no time: it gets the time of the import")
        topic = to_topic(replace_surrogates(context.project)) or None
        filled = {**record, "topic": topic, "source": SOURCE, "created_at": context.at}
        self.memories.append(ImportedMemory(what=what, key=key, record=filled, extra={KIND: context.extra}))

    def _truncate(self, what: str, key: str, text: str) -> str:
        if len(text) > MAX_TEXT_CHARS:
            self.add_odd(what, key, "cut", f"it has {len(text):,} characters, and was cut at {MAX_TEXT_CHARS:,}")
        return replace_surrogates(text[:MAX_TEXT_CHARS])

    def _count_chars(self, text: str) -> str:
        self.chars += len(text)
        if self.chars > MAX_FOLDER_BYTES:
            what = f"must have at most {MAX_FOLDER_BYTES:,} characters of prompts and answers"
            raise import_error(Path(self.source), what, "import its project folders one by one")
        return text


def _read_field(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return replace_surrogates(value[:MAX_FIELD_CHARS]) if isinstance(value, str) else ""


def _read_id(entry: Mapping[str, Any]) -> str:
    """Return the id of an entry; of a copy in a forked session, the id of the original."""
    forked = entry.get("forkedFrom")
    return (_read_field(forked, "messageUuid") if isinstance(forked, Mapping) else "") or _read_field(entry, "uuid")
