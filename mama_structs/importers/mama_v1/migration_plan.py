"""Conversion of the rows of a v1.0 database to memories and links, in writing order."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.importers.mama_v1.migration_report import MigrationWarning, TableCount
from mama_structs.importers.mama_v1.old_database import (
    CHECKPOINTS,
    DECISIONS,
    EDGES,
    VECTORS,
    VERSIONS,
    SkippedTable,
    V1Database,
)
from mama_structs.importers.shared.json_values import read_json, repair_json
from mama_structs.importers.shared.value_readers import (
    ForeignRow,
    TimeResult,
    read_text,
    read_time,
    to_jsonable_value,
)
from mama_structs.memory.types.model import (
    OUTCOME_OF_WORD,
    SUPERSEDES_WORD,
    CheckpointMetadata,
    ContextMetadata,
    CreatedBy,
    DecisionMetadata,
    Link,
    LinkMetadata,
    LinkType,
    Memory,
    MemoryType,
    Outcome,
    OutcomeChange,
    find_id_problem,
    from_milliseconds,
    make_slug,
    to_milliseconds,
)
from mama_structs.memory.types.relationships import MAX_RELATIONSHIP_CHARS, normalize_relationship
from mama_structs.memory.types.requests import MAX_TOPIC_CHARS, check_id
from mama_structs.memory.types.text_analysis import normalize

OLD_COLUMNS_KEY: Final = "v1_0"
"""The key in a memory's metadata for old columns without an equivalent in this store."""
MIGRATION_MARK_KEY: Final = "migrated"
BACKFILLED_KEY: Final = "backfilled"

# Placeholders for topics and texts that are empty in v1.0, because this store requires non-empty values.
DEFAULT_TOPIC: Final = "untitled"
DEFAULT_TEXT: Final = "(empty)"
DEFAULT_CONFIDENCE: Final = 0.5
USER_INVOLVEMENTS: Final = frozenset({"approved", "requested"})
ID_TIME_PATTERN: Final = re.compile(r"_([0-9]{10,14})_[0-9a-z]{4,8}$")
DIGEST_SUFFIX_CHARS: Final = 9
MAX_TITLE_CHARS: Final = 200
MAX_REASON_CHARS: Final = 10_000
FUTURE_TOLERANCE: Final = timedelta(days=1)
CHECKPOINT_RANK: Final = 4
# Columns that a memory represents. Valid values of these columns are not also stored in the extra metadata.
DECISION_COLUMNS: Final = frozenset(
    {"id", "topic", "decision", "reasoning", "confidence", "outcome", "created_at", "updated_at"}
)
CHECKPOINT_COLUMNS: Final = frozenset({"timestamp", "summary", "open_files", "next_steps"})
JSON_COLUMNS: Final = frozenset({"trust_context", "refined_from"})
SKIPPED_TABLE_REASONS: Final[Mapping[str, str]] = {
    "sessions": "v1.0 never wrote or read sessions; they are no memories",
    "error_patterns": "no tool of v1.0 wrote or read error patterns; they are no memories",
    VERSIONS: "it says only which form the tables have",
    VECTORS: "vectors of another embedder; every memory is embedded anew",
}
UNKNOWN_TABLE_REASON: Final = "MAMA v1.0 has no such table"


@attrs.frozen(kw_only=True)
class PlannedMemory:
    """A memory converted from a row, with the row's table and key. It has no mentions and no migration mark yet."""

    memory: Memory
    table: str
    key: str
    # Sort order at equal times: decisions, then contexts with the reasons of their outcomes, then checkpoints.
    rank: int = 0
    # The topic in the row, and True if the row has a valid time.
    # `outcome_of` is the id of the decision whose outcome this memory explains.
    topic: str | None = None
    is_dated: bool = True
    outcome_of: str | None = None

    def odd(self, kind: str, what: str) -> MigrationWarning:
        """Return a report entry about the row of this memory."""
        return MigrationWarning(table=self.table, id=self.key, kind=kind, what=what, topic=self.memory.topic)


@attrs.frozen(kw_only=True)
class MigrationPlan:
    """The conversion of an old database: memories (oldest first), links, and report entries about malformed rows."""

    planned: tuple[PlannedMemory, ...]
    links: tuple[Link, ...]
    odd: tuple[MigrationWarning, ...]
    # Maps a link id to the names of the edge rows from which the link was created.
    edges: Mapping[str, Sequence[str]]


def build_plan(old: V1Database, *, namespace: str, max_content: int) -> MigrationPlan:
    """Convert an old database to memories and links of a namespace. The result is deterministic."""
    rows = RowConverter(namespace, max_content)
    # Reserve all existing ids first, so that no generated id collides with one.
    names = [rows.reserve_id(row.text("id")) for row in old.decisions]
    times = _bound_times(old.decisions, "created_at")
    decisions = [rows.decision(*one) for one in zip(old.decisions, names, times, strict=True)]
    times = _bound_times(old.checkpoints, "timestamp")
    checkpoints = [rows.checkpoint(*one) for one in zip(old.checkpoints, times, strict=True)]
    # Reverse the checkpoints, because at equal times v1.0 loads the first checkpoint and this store loads the last.
    planned = [*chain.from_iterable(decisions), *reversed(checkpoints)]
    planned.sort(key=lambda one: (one.memory.created_at, one.rank))
    active = [one for row, one in zip(old.checkpoints, checkpoints, strict=True) if row.get("status") == "active"]
    latest = max(active, key=lambda one: one.memory.created_at, default=None)
    newest = next((one for one in reversed(planned) if one.memory.type is MemoryType.CHECKPOINT), None)
    if newest is not None and newest is not latest:
        loads = "loads none" if latest is None else f"loads {latest.key}"
        what = f"it is the newest, so that it is what load/checkpoint gives; v1.0 {loads}, since this one is not active"
        rows.odd.append(newest.odd("newest_not_active", what))
    ids: dict[str, str] = {}
    for row, (one, *_) in zip(old.decisions, decisions, strict=True):
        ids.setdefault(row.text("id") or "", one.memory.id)
    links = LinkCollector(namespace, ids, {one.memory.id: one.memory for one in planned}, rows.odd)
    for row, (one, *_) in zip(old.decisions, decisions, strict=True):
        links.add_decision_links(row, one.memory)
    for row in old.edges:
        links.add_edge(row)
    for one in planned:
        if one.outcome_of is not None:
            creator = one.memory.metadata.created_by
            links.add(one.memory.id, one.outcome_of, OUTCOME_OF_WORD, LinkType.IMPLEMENTATION, created_by=creator)
    links.report_cycles()
    return MigrationPlan(
        planned=tuple(planned), links=tuple(links.links.values()), odd=tuple(rows.odd), edges=links.edges
    )


def find_future_rows(plan: MigrationPlan, now: datetime) -> Iterator[MigrationWarning]:
    """Yield a report entry for each row with a time in the future."""
    for one in plan.planned:
        if one.outcome_of is None and one.is_dated and one.memory.created_at > now + FUTURE_TOLERANCE:
            yield one.odd("future_time", f"its time lies ahead, {one.memory.created_at.isoformat()}, and is kept")


def count_tables(old: V1Database, plan: MigrationPlan, missing: Mapping[str, int]) -> tuple[TableCount, ...]:
    """Return the result of each table. *missing* is the number of rows per table that were not migrated."""
    # Also count edges that could not be converted to links.
    left = Counter(missing) + Counter({EDGES: len(old.edges) - sum(map(len, plan.edges.values()))})
    read = ((DECISIONS, old.decisions), (CHECKPOINTS, old.checkpoints), (EDGES, old.edges))
    tables: list[tuple[str, int, int, str | None]] = [(name, len(rows), left[name], None) for name, rows in read]
    tables += [(one.name, one.rows, one.rows, _skip_reason(one.name)) for one in old.others]
    return tuple(
        TableCount(table=name, rows=rows, migrated=rows - out, skipped=out, reason=reason)
        for name, rows, out, reason in tables
    )


def iter_skipped_rows(others: Iterable[SkippedTable]) -> Iterator[MigrationWarning]:
    """Yield a report entry for each row of the tables that are not migrated."""
    for one in others:
        more = [f"and {one.rows - len(one.keys):,} more"] if one.keys and one.rows > len(one.keys) else []
        for key in (*one.keys, *more):
            yield MigrationWarning(table=one.name, id=key, kind="no_memory", what=f"left out: {_skip_reason(one.name)}")


def _skip_reason(table: str) -> str:
    return SKIPPED_TABLE_REASONS.get(table, UNKNOWN_TABLE_REASON)


def _bound_times(rows: Sequence[ForeignRow], column: str) -> list[datetime | None]:
    """
    Return an estimate of each row's time, which is used if the row has no valid time.

    It is the earlier of the times of the nearest dated rows before and after the row.
    """
    times = [read_time(row.get(column)).at for row in rows]
    before, after = (list(accumulate([None, *some], _latest_known))[:-1] for some in (times, times[::-1]))
    return [min(filter(None, pair), default=None) for pair in zip(before, after[::-1], strict=True)]


def _latest_known(known: datetime | None, at: datetime | None) -> datetime | None:
    return at or known


# Memories


@attrs.define(eq=False)
class RowReader:
    """Reads the columns of one row, and collects its problems and the values to preserve."""

    table: str
    key: str
    row: ForeignRow
    odd: list[MigrationWarning]
    topic: str | None = None
    preserved: dict[str, Any] = attrs.field(factory=dict)

    def report_problem(self, kind: str, what: str, keep: str | None = None) -> None:
        """Report a problem of the row. If *keep* names a column, preserve its value in the extra metadata."""
        self.odd.append(MigrationWarning(table=self.table, id=self.key, kind=kind, what=what, topic=self.topic))
        if keep is not None:
            self.keep(keep)

    def keep(self, column: str) -> None:
        """Preserve a column's original value in the extra metadata, because the memory cannot represent it exactly."""
        self.preserved[column] = to_jsonable_value(self.row.get(column))

    def preserve_others(self, placed: Collection[str]) -> None:
        """Preserve the values of all columns except *placed*, which are part of the memory, in the extra metadata."""
        for column, value in self.row.values.items():
            if value is None or column in placed or column in self.preserved:
                continue
            if column not in JSON_COLUMNS:
                self.keep(column)
            elif (found := self.json(column)) is not None:
                self.preserved[column] = found

    @property
    def extra(self) -> dict[str, Any]:
        """The preserved values, as the extra metadata of the memory."""
        return {OLD_COLUMNS_KEY: self.preserved} if self.preserved else {}

    def text(self, column: str) -> str | None:
        """Return a column's text, or None. Report problems, and preserve a value that is not fully readable."""
        found = read_text(self.row.get(column))
        if found.kind is not None:
            self.report_problem(found.kind, f"{column}: {found.note}")
        if not found.is_complete:
            self.keep(column)
        return found.text

    def required_text(self, column: str, called: str, stand_in: str) -> str | None:
        """Return a required text. If it is missing, report that *stand_in* replaces it, and return None."""
        text = self.text(column)
        if text is not None and text.strip():
            return text
        nothing = "NULL" if text is None else "empty"
        self.report_problem(
            f"no_{'topic' if column == 'topic' else 'text'}", f"{called} is {nothing}: {stand_in}", column
        )
        return None

    def content(self, column: str, most: int) -> str:
        """Return a required text, or `DEFAULT_TEXT` if it is missing. Report a text of more than *most* characters."""
        text = self.required_text(column, column, f"{DEFAULT_TEXT!r} stands for it")
        if text is not None:
            self.check_length(column, text, most)
        return text or DEFAULT_TEXT

    def check_length(self, column: str, text: str, most: int) -> None:
        """Report the column's text if it has more than *most* characters."""
        if len(text) > most:
            what = f"{len(text):,} characters, more than the {most:,} of a new memory, and is kept whole"
            self.report_problem("long_text", f"{column} has {what}")

    def json(self, column: str) -> Any:
        """Return the parsed JSON of a column, or None. Invalid JSON is preserved as text."""
        text = self.text(column)
        if text is None or not text.strip():
            return None
        try:
            value, problem = repair_json(read_json(text))
        except ValueError as error:
            value, problem = None, str(error)
        if problem is not None:
            self.report_problem("bad_json", f"{column} is no JSON: the text is kept in metadata.extra", column)
        return value

    def time(self, column: str) -> TimeResult:
        """Return a column's time. If its format is unusual or invalid, preserve the original value in `extra`."""
        found = read_time(self.row.get(column))
        if found.note is not None:
            self.keep(column)
        return found

    def read_topic(self) -> None:
        """Read the topic of the row. Problems that are reported later name this topic."""
        text = self.required_text("topic", "its topic", f"it is {DEFAULT_TOPIC!r} now")
        if text is None:
            return
        topic = normalize("NFC", text).strip()
        if len(topic) > MAX_TOPIC_CHARS:
            what = f"its topic has {len(topic):,} characters: it is shortened, and kept whole besides"
            self.report_problem("long_topic", what, "topic")
            digest = hashlib.sha256(topic.encode()).hexdigest()[: DIGEST_SUFFIX_CHARS - 1]
            topic = f"{topic[: MAX_TOPIC_CHARS - DIGEST_SUFFIX_CHARS].rstrip()} {digest}"
        elif topic != text:
            form = "blanks around it" if topic == text.strip() else "another Unicode form than NFC"
            self.report_problem(
                "topic_form", f"its topic has {form}: it is the same topic as the one without now", "topic"
            )
        self.topic = topic

    def created(self, column: str, name: str, beside: datetime | None) -> tuple[datetime, bool]:
        """
        Return the creation time of the row, and True if it is the valid time in the row itself.

        If its own time is invalid, use the time in its id, its update time, or the estimate *beside*, in this order.
        """
        found = self.time(column)
        if found.at is not None:
            if found.note is not None:
                self.report_problem("time_form", f"{column}: {found.note}, and was read as {found.at.isoformat()}")
            return found.at, True
        in_id = ID_TIME_PATTERN.search(name)
        guesses = (
            ("the one in its id", read_time(int(in_id[1])).at if in_id else None),
            ("updated_at", read_time(self.row.get("updated_at")).at),
            ("that of a row beside it", beside),
        )
        known = ((where, guess) for where, guess in guesses if guess is not None)
        where, moment = next(known, ("the beginning of 1970", from_milliseconds(0)))
        self.report_problem("no_time", f"{column}: {found.note}; its time is {where}, {moment.isoformat()}")
        return moment, False

    def updated(self, created: datetime) -> datetime:
        """Return the time of the last update, but not before *created*."""
        found = self.time("updated_at")
        if found.at is None and self.row.get("updated_at") not in (None, 0):
            self.report_problem("no_time", f"updated_at: {found.note}; created_at stands for it")
        return created if found.at is None else max(created, found.at)

    def confidence(self) -> float:
        """Return the confidence, clamped to the range 0 to 1. Invalid values are reported."""
        value = self.row.get("confidence")
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        if isinstance(value, str):
            self.report_problem(
                "bad_confidence", f"its confidence is no number: it is {DEFAULT_CONFIDENCE} now", "confidence"
            )
            return DEFAULT_CONFIDENCE
        if not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - true for NaN only
            what = "NULL" if value is None else "no number"
            self.report_problem("no_confidence", f"its confidence is {what}: it is {DEFAULT_CONFIDENCE} now")
            return DEFAULT_CONFIDENCE
        if not 0 <= value <= 1:
            self.report_problem(
                "bad_confidence", "its confidence is not from 0 to 1: the nearer end is taken", "confidence"
            )
        return min(max(float(value), 0.0), 1.0)

    def outcome(self) -> tuple[Outcome | None, list[tuple[str, str]]]:
        """
        Return the outcome, and (column, text) pairs for all texts that explain it.

        The text that matches the outcome comes first.
        """
        said = (self.text("outcome") or "").strip()
        outcome = None
        if said:
            try:
                outcome = Outcome(said.upper())
            except ValueError:
                self.report_problem("bad_outcome", "its outcome is none that there is: it has none now", "outcome")
        columns = ("failure_reason", "limitation")
        ordered = columns if outcome is Outcome.FAILED else columns[::-1]
        reasons = [(column, text) for column in ordered if (text := self.text(column)) and text.strip()]
        if reasons and outcome is None:
            self.report_problem(
                "reason_only", f"it has a {reasons[0][0]} and no outcome: the text is kept as a context"
            )
        return outcome, reasons

    def open_files(self) -> tuple[str, ...]:
        """Return the paths of the open files. Report entries that are not strings, and preserve the original value."""
        found = self.json("open_files")
        if isinstance(found, str) and found.strip():
            self.report_problem("bad_open_files", "open_files is one text and no list: it is taken for one file")
            return (found,)
        files = tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()
        if found is not None and (not isinstance(found, list) or len(files) < len(found)):
            what = "open_files is no list of texts: what is none is kept in metadata.extra"
            self.report_problem("bad_open_files", what, "open_files")
        return files


@attrs.define(eq=False)
class RowConverter:
    """Converts rows to memories with unique ids, and collects report entries about malformed rows."""

    namespace: str
    max_content: int
    odd: list[MigrationWarning] = attrs.field(factory=list)
    taken: set[str] = attrs.field(factory=set)

    def reserve_id(self, old: str | None) -> str | None:
        """Reserve and return the id of a decision row, or return None if it is taken or not a valid decision id."""
        with contextlib.suppress(InvalidArgument):
            if (
                old is not None
                and old not in self.taken
                and check_id("id", old) == old
                and find_id_problem(old, MemoryType.DECISION) is None
            ):
                self.taken.add(old)
                return old
        return None

    def new_id(self, kind: MemoryType, title: str, created_at: datetime, *said: object) -> str:
        """Return a new unique id that is derived only from the arguments, so that a repeated migration finds it."""
        text = repr(said)
        while True:
            name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            found = f"{kind.value}_{make_slug(title[:MAX_TITLE_CHARS])}_{to_milliseconds(created_at)}_{name}"
            if found not in self.taken:
                self.taken.add(found)
                return found
            text += "'"

    def decision(self, row: ForeignRow, memory_id: str | None, beside: datetime | None) -> list[PlannedMemory]:
        """Convert a decision row to a decision, and each text about its outcome to a context."""
        key = row.text("id") or f"row {row.number}"
        read = RowReader(DECISIONS, key, row, self.odd)
        read.read_topic()
        topic = read.topic or DEFAULT_TOPIC
        content = read.content("decision", self.max_content)
        reasoning = read.text("reasoning") or ""
        read.check_length("reasoning", reasoning, self.max_content)
        created, is_dated = read.created("created_at", key, beside)
        updated = read.updated(created)
        creator: CreatedBy = "user" if read.text("user_involvement") in USER_INVOLVEMENTS else "llm"
        confidence = read.confidence()
        outcome, reasons = read.outcome()
        read.preserve_others(DECISION_COLUMNS)
        if memory_id is None:
            memory_id = self.new_id(
                MemoryType.DECISION, topic, created, DECISIONS, row.number, to_jsonable_value(row.get("id"))
            )
            read.keep("id")
            read.report_problem("new_id", f"its id cannot be one here: it is {memory_id} now")
        reason = reasons[0][1] if reasons and outcome else None
        memory = Memory(
            id=memory_id,
            type=MemoryType.DECISION,
            content=content,
            topic=topic,
            metadata=DecisionMetadata(
                reasoning=reasoning,
                confidence=confidence,
                outcome=outcome,
                outcome_reason=reason,
                outcome_at=updated if outcome else None,
                history=(OutcomeChange(outcome=outcome, reason=reason, at=updated),) if outcome else (),
                created_by=creator,
                extra=read.extra,
            ),
            created_at=created,
            updated_at=updated,
            namespace=self.namespace,
        )
        planned = PlannedMemory(memory=memory, table=DECISIONS, key=key, topic=read.topic, is_dated=is_dated)
        contexts = [
            attrs.evolve(
                memory,
                # Do not derive the id from the update time, because v1.0 also changes it when a row is superseded.
                id=self.new_id(MemoryType.CONTEXT, text, created, memory_id, column),
                type=MemoryType.CONTEXT,
                content=text,
                metadata=ContextMetadata(
                    source=OUTCOME_OF_WORD, created_by=creator, extra={OLD_COLUMNS_KEY: {"column": column}}
                ),
                created_at=updated,
            )
            for column, text in reasons
        ]
        return [
            planned,
            *(attrs.evolve(planned, memory=one, outcome_of=memory_id, rank=at) for at, one in enumerate(contexts, 1)),
        ]

    def checkpoint(self, row: ForeignRow, beside: datetime | None) -> PlannedMemory:
        """Convert a checkpoint row to a memory."""
        key = row.text("id") or f"row {row.number}"
        read = RowReader(CHECKPOINTS, key, row, self.odd)
        created, is_dated = read.created("timestamp", "", beside)
        summary = read.content("summary", self.max_content)
        files = read.open_files()
        steps = read.text("next_steps") or ""
        lines = tuple(line for line in steps.split("\n") if line.strip())
        if read.text("status") != "active":
            read.report_problem(
                "not_active", f"its status is {repr_short(to_jsonable_value(row.get('status')))}: v1.0 does not load it"
            )
        read.preserve_others(CHECKPOINT_COLUMNS)
        digest = hashlib.sha256(summary.encode()).hexdigest()
        memory = Memory(
            id=self.new_id(MemoryType.CHECKPOINT, summary, created, CHECKPOINTS, key, digest),
            type=MemoryType.CHECKPOINT,
            content=summary,
            metadata=CheckpointMetadata(
                open_files=files,
                # Store each step as one item only if joining the items restores the original text.
                next_steps=lines if not lines or "\n".join(lines) == steps else (steps,),
                # In v1.0 models save checkpoints, and the user who requested a checkpoint is not stored.
                created_by="llm",
                extra=read.extra,
            ),
            created_at=created,
            updated_at=created,
            namespace=self.namespace,
        )
        return PlannedMemory(memory=memory, table=CHECKPOINTS, key=key, rank=CHECKPOINT_RANK, is_dated=is_dated)


# Links


def link_id(namespace: str, from_id: str, to_id: str, word: str) -> str:
    """Return the deterministic id of a link."""
    said = f"{namespace}\x00{from_id}\x00{to_id}\x00{word}".encode("utf-8", "surrogatepass")
    return f"link_{hashlib.sha256(said).hexdigest()[:24]}"


@attrs.define(eq=False)
class LinkCollector:
    """Collects the deduplicated links of the old file from columns, edges and ``refined_from``."""

    namespace: str
    # Maps the ids of decision rows to the ids of their memories.
    ids: Mapping[str, str]
    memories: Mapping[str, Memory]
    odd: list[MigrationWarning]
    links: dict[tuple[str, str, str], Link] = attrs.field(factory=dict)
    edges: defaultdict[str, list[str]] = attrs.field(factory=partial(defaultdict, list))

    def add_decision_links(self, row: ForeignRow, memory: Memory) -> None:
        """Add the links that a decision row contains."""
        for column in ("supersedes", "superseded_by"):
            old = row.text(column)
            other = self.ids.get(old) if old else None
            if other == memory.id:
                self._report_problem(memory.id, "self_loop", f"{column} names the row itself: no link is made of that")
            elif other is not None:
                newer, older = (memory.id, other) if column == "supersedes" else (other, memory.id)
                self.add(newer, older, SUPERSEDES_WORD, LinkType.EVOLUTION)
            elif old:
                self._report_problem(memory.id, "dangling", f"{column} names {old!r:.200}, which does not exist")
        refined = memory.metadata.extra.get(OLD_COLUMNS_KEY, {}).get("refined_from")
        for old in refined if isinstance(refined, Sequence) and not isinstance(refined, str) else ():
            end = self.ids.get(old) if isinstance(old, str) else None
            if end is None:
                self._report_problem(memory.id, "dangling", f"refined_from names {old!r:.200}, which does not exist")
            elif end != memory.id:
                self.add(memory.id, end, "refines", LinkType.ASSOCIATION)

    def add_edge(self, row: ForeignRow) -> None:
        """Convert an edge row to a link. An invalid edge is left out and reported."""
        ends = [row.text(column) or "" for column in ("from_id", "to_id")]
        word = (row.text("relationship") or "").strip()
        key = f"{ends[0]} -> {ends[1]} ({word})"[:600]
        missing = list(dict.fromkeys(f"{old!r:.200}" for old in ends if old not in self.ids))
        start, end = (self.ids.get(old, "") for old in ends)
        why = None
        if missing:
            why = "dangling", f"it names {' and '.join(missing)}, which does not exist"
        elif start == end:
            why = "self_loop", "a memory cannot be linked to itself"
        elif not word or len(word) > MAX_RELATIONSHIP_CHARS:
            why = "no_relationship", f"its relationship must have 1 to {MAX_RELATIONSHIP_CHARS} characters"
        if why is not None:
            self.odd.append(MigrationWarning(table=EDGES, id=key, kind=why[0], what=f"left out: {why[1]}"))
            return
        self.edges[link_id(self.namespace, start, end, normalize_relationship(word))].append(key)
        reason = row.text("reason")
        weight = row.get("weight")
        share = min(max(float(weight), 0.0), 1.0) if isinstance(weight, int | float) else 1.0
        is_evolution = normalize_relationship(word) == SUPERSEDES_WORD
        self.add(
            start,
            end,
            word,
            LinkType.EVOLUTION if is_evolution else LinkType.ASSOCIATION,
            confidence=1.0 if is_evolution else share,
            reason=None if reason is None or not reason.strip() else reason[:MAX_REASON_CHARS],
            at=read_time(row.get("created_at")).at,
            extra={"weight": share} if is_evolution and share != 1 else {},
        )

    def add(
        self,
        from_id: str,
        to_id: str,
        word: str,
        link_type: LinkType,
        *,
        confidence: float = 1.0,
        reason: str | None = None,
        at: datetime | None = None,
        created_by: Any = "system",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a link, or replace an equal link without a reason if this one has a reason or a time."""
        key = (from_id, to_id, normalize_relationship(word))
        before = self.links.get(key)
        if before is None or (before.metadata.reason is None and (reason is not None or at is not None)):
            self.links[key] = Link(
                id=link_id(self.namespace, *key),
                from_id=from_id,
                to_id=to_id,
                link_type=link_type,
                confidence=confidence,
                created_by=created_by,
                metadata=LinkMetadata(original_relationship=word, reason=reason, extra=extra or {}),
                created_at=at or self.memories[from_id].created_at,
            )

    def report_cycles(self) -> None:
        """Report decisions that supersede each other in a cycle, and decisions that supersede a newer decision."""
        inside: set[str] = set()
        for members in find_cycles(self.links.values()):
            inside |= set(members)
            for one in members:
                what = f"they supersede each other in a circle of {len(members)}: all links are kept"
                self._report_problem(one, "circular", what)
        for link in self.links.values():
            ends = (link.from_id, link.to_id)
            newer, older = (self.memories[end].created_at for end in ends)
            if link.metadata.original_relationship == SUPERSEDES_WORD and newer < older and not inside.issuperset(ends):
                self._report_problem(
                    link.from_id, "backwards", f"it supersedes {link.to_id}, which is newer: the link is kept"
                )

    def _report_problem(self, memory_id: str, kind: str, what: str) -> None:
        topic = self.memories[memory_id].topic
        self.odd.append(MigrationWarning(table=DECISIONS, id=memory_id, kind=kind, what=what, topic=topic))


def find_cycles(links: Iterable[Link]) -> list[tuple[str, ...]]:
    """
    Return the groups of memories that supersede each other in a cycle.

    They are the strongly connected components of the evolution links.
    """
    older: defaultdict[str, list[str]] = defaultdict(list)
    newer: defaultdict[str, list[str]] = defaultdict(list)
    for link in links:
        if link.link_type is LinkType.EVOLUTION:
            older[link.from_id].append(link.to_id)
            newer[link.to_id].append(link.from_id)
    # Use Kosaraju's algorithm, which takes linear time, because a file may have thousands of cycles.
    finished: list[str] = []
    seen: set[str] = set()
    for start in [*older]:
        finished += _depth_first(start, older, seen)
    groups = []
    seen = set()
    for start in reversed(finished):
        members = _depth_first(start, newer, seen)
        if len(members) > 1 or start in older.get(start, ()):
            groups.append(tuple(sorted(members)))
    return sorted(groups)


def _depth_first(start: str, edges: Mapping[str, Sequence[str]], seen: set[str]) -> list[str]:
    """Depth-first search: add the reached nodes to *seen*, and return them in post-order."""
    if start in seen:
        return []
    seen.add(start)
    left: list[str] = []
    path = [(start, iter(edges.get(start, ())))]
    while path:
        node, ahead = path[-1]
        further = next((one for one in ahead if one not in seen), None)
        if further is None:
            path.pop()
            left.append(node)
        else:
            seen.add(further)
            path.append((further, iter(edges.get(further, ()))))
    return left
