"""What a row of v1.0 becomes: pure decisions, each odd one listed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import attrs

from mama_structs.memory.ids import from_milliseconds
from mama_structs.memory.migration.marks import OLD
from mama_structs.memory.migration.naming import Ids
from mama_structs.memory.migration.report import OddRow
from mama_structs.memory.migration.source import CHECKPOINTS, DECISIONS, OldRow
from mama_structs.memory.migration.times import ReadTime, read_time
from mama_structs.memory.migration.values import Value, kept, read_json, read_text
from mama_structs.memory.model import (
    CheckpointMetadata,
    ContextMetadata,
    CreatedBy,
    DecisionMetadata,
    Memory,
    MemoryType,
    Outcome,
    OutcomeChange,
)
from mama_structs.memory.requests import MAX_TOPIC
from mama_structs.memory.saving import OUTCOME_OF

NO_TOPIC: Final = "untitled"
NO_TEXT: Final = "(empty)"
"""What stands where v1.0 let a topic or a text be empty, which this store does not."""

_USER: Final = frozenset({"approved", "requested"})
_NO_CONFIDENCE: Final = 0.5
_TIME_IN_ID: Final = re.compile(r"_([0-9]{10,14})_[0-9a-z]{4,8}$")
_TAIL: Final = 9
# These have a place of their own in a memory, and need none besides where they are as they should be.
_PLACED: Final = frozenset(
    {"id", "topic", "decision", "reasoning", "confidence", "outcome", "created_at", "updated_at"}
)
_PLACED_CHECKPOINT: Final = frozenset({"timestamp", "summary", "open_files", "next_steps"})


@attrs.frozen(kw_only=True)
class Planned:
    """
    A memory that a row becomes.

    Args:
        memory: The memory, without mentions and mark.
        table: The row's table.
        key: The row's key there.
        is_dated: Whether its time is known, and not taken from elsewhere.
        is_named: Whether it has a topic of its own.
        outcome_of: The id of the decision whose outcome it explains, for a memory that a row yields besides.

    """

    memory: Memory
    table: str
    key: str
    is_dated: bool = True
    is_named: bool = True
    outcome_of: str | None = None


@attrs.define(eq=False)
class _Reading:
    """What is found out about one row."""

    table: str
    key: str
    row: OldRow
    odd: list[OddRow]
    topic: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict)

    def tell(self, kind: str, what: str) -> None:
        self.odd.append(OddRow(table=self.table, id=self.key, kind=kind, what=what, topic=self.topic))

    def keep(self, column: str) -> None:
        """Keep what a column says, since the memory says it otherwise or not at all."""
        self.extra[column] = kept(self.row.get(column))

    def text(self, column: str) -> str | None:
        """Return a column's text."""
        found = read_text(self.row.get(column))
        if found.kind is not None:
            self.tell(found.kind, f"{column}: {found.note}")
        if not found.is_whole:
            self.keep(column)
        return found.text

    def filled(self, column: str, most: int) -> str:
        """Return the text that a memory cannot be without."""
        text = self.text(column)
        if text is None or not text.strip():
            self.tell("no_text", f"{column} is {'NULL' if text is None else 'empty'}: {NO_TEXT!r} stands for it")
            self.keep(column)
            return NO_TEXT
        self.long(column, text, most)
        return text

    def long(self, column: str, text: str, most: int) -> None:
        if len(text) > most:
            self.tell(
                "long_text",
                f"{column} has {len(text):,} characters, more than the {most:,} of a new memory, and is kept whole",
            )

    def json(self, column: str) -> Any:
        """Return what a column says as JSON, None where it says none; a text that is no JSON is kept as it is."""
        text = self.text(column)
        if text is None or not text.strip():
            return None
        try:
            return read_json(text)
        except ValueError:
            self.tell("bad_json", f"{column} is no JSON: the text is kept in metadata.extra")
            self.keep(column)
            return None

    def time(self, column: str) -> ReadTime:
        found = read_time(self.row.get(column))
        if found.note is not None:
            self.keep(column)
        return found


def decision(
    row: OldRow, *, memory_id: str | None, key: str, beside: datetime | None, most: int, namespace: str, ids: Ids
) -> tuple[list[Planned], list[OddRow]]:
    """
    Return the memory that a decision's row becomes, those of why it came out as it did, and what is odd.

    Args:
        row: The row.
        memory_id: The id that it keeps, None for a new one.
        key: What the report calls it.
        beside: When the rows beside it were made, the earlier of the two.
        most: Characters that the text of a new memory may have.
        namespace: Where the memory will be.
        ids: Gives new ids.

    """
    reading = _Reading(DECISIONS, key, row, [])
    topic, is_named = _topic(reading)
    content = reading.filled("decision", most)
    reasoning = reading.text("reasoning") or ""
    reading.long("reasoning", reasoning, most)
    created, is_dated = _created(reading, "created_at", key, beside)
    updated = _updated(reading, created)
    creator: CreatedBy = "user" if reading.text("user_involvement") in _USER else "llm"
    confidence = _confidence(reading)
    outcome, reason, reasons = _outcome(reading)
    _besides(reading)
    if memory_id is None:
        memory_id = ids.new(MemoryType.DECISION, topic, created, (DECISIONS, row.number, kept(row.get("id"))))
        reading.keep("id")
        reading.tell("new_id", f"its id cannot be one here: it is {memory_id} now")
    change = () if outcome is None else (OutcomeChange(outcome=outcome, reason=reason, at=updated),)
    memory = Memory(
        id=memory_id,
        type=MemoryType.DECISION,
        content=content,
        topic=topic,
        metadata=DecisionMetadata(
            reasoning=reasoning,
            confidence=confidence,
            outcome=outcome,
            outcome_reason=reason if change else None,
            outcome_at=updated if change else None,
            history=change,
            created_by=creator,
            extra=_extra(reading),
        ),
        created_at=created,
        updated_at=updated,
        namespace=namespace,
    )
    planned = [Planned(memory=memory, table=DECISIONS, key=key, is_dated=is_dated, is_named=is_named)]
    for column, text in reasons:
        about = Memory(
            # Not when it was updated: v1.0 does that to a row that is superseded, too.
            id=ids.new(MemoryType.CONTEXT, text, created, (memory_id, column)),
            type=MemoryType.CONTEXT,
            content=text,
            topic=topic,
            metadata=ContextMetadata(source=OUTCOME_OF, created_by=creator, extra={OLD: {"column": column}}),
            created_at=updated,
            updated_at=updated,
            namespace=namespace,
        )
        planned.append(
            Planned(memory=about, table=DECISIONS, key=key, is_dated=is_dated, is_named=is_named, outcome_of=memory_id)
        )
    return planned, reading.odd


def checkpoint(
    row: OldRow, *, key: str, beside: datetime | None, most: int, namespace: str, ids: Ids
) -> tuple[Planned, list[OddRow]]:
    """
    Return the memory that a checkpoint's row becomes, and what is odd.

    Args:
        row: The row.
        key: What the report calls it.
        beside: When the rows beside it were made, the earlier of the two.
        most: Characters that the text of a new memory may have.
        namespace: Where the memory will be.
        ids: Gives new ids.

    """
    reading = _Reading(CHECKPOINTS, key, row, [])
    created, is_dated = _created(reading, "timestamp", "", beside)
    summary = reading.filled("summary", most)
    files = _files(reading)
    steps = reading.text("next_steps") or ""
    if reading.text("status") != "active":
        reading.tell("not_active", f"its status is {kept(row.get('status'))!r:.60}: v1.0 does not load it")
    for column in row.values:
        if column not in _PLACED_CHECKPOINT and row.get(column) is not None:
            reading.keep(column)
    memory = Memory(
        id=ids.new(MemoryType.CHECKPOINT, summary, created, (CHECKPOINTS, key, sha256(summary.encode()).hexdigest())),
        type=MemoryType.CHECKPOINT,
        content=summary,
        # Models save checkpoints; who asked for one is not kept.
        metadata=CheckpointMetadata(
            open_files=files, next_steps=_steps(steps), created_by="llm", extra=_extra(reading)
        ),
        created_at=created,
        updated_at=created,
        namespace=namespace,
    )
    return Planned(memory=memory, table=CHECKPOINTS, key=key, is_dated=is_dated), reading.odd


def _topic(reading: _Reading) -> tuple[str, bool]:
    text = reading.text("topic")
    if text is None or not text.strip():
        reading.tell("no_topic", f"its topic is {'NULL' if text is None else 'empty'}: it is {NO_TOPIC!r} now")
        reading.keep("topic")
        return NO_TOPIC, False
    topic = unicodedata.normalize("NFC", text).strip()
    if len(topic) > MAX_TOPIC:
        reading.tell("long_topic", f"its topic has {len(topic):,} characters: it is shortened, and kept whole besides")
        reading.keep("topic")
        topic = f"{topic[: MAX_TOPIC - _TAIL].rstrip()} {sha256(topic.encode()).hexdigest()[: _TAIL - 1]}"
    elif topic != text:
        form = "blanks around it" if topic == text.strip() else "another Unicode form than NFC"
        reading.tell("topic_form", f"its topic has {form}: it is the same topic as the one without now")
        reading.keep("topic")
    reading.topic = topic
    return topic, True


def _created(reading: _Reading, column: str, key: str, beside: datetime | None) -> tuple[datetime, bool]:
    """Return when a row was made, and whether it says so itself."""
    found = reading.time(column)
    if found.at is not None:
        if found.note is not None:
            reading.tell("time_form", f"{column}: {found.note}, and was read as {found.at.isoformat()}")
        return found.at, True
    in_id = _TIME_IN_ID.search(key)
    guesses = [
        ("the one in its id", read_time(int(in_id[1])).at if in_id else None),
        ("updated_at", read_time(reading.row.get("updated_at")).at),
        ("that of a row beside it", beside),
        ("the beginning of 1970", datetime(1970, 1, 1, tzinfo=UTC)),
    ]
    where, moment = next((where, guess) for where, guess in guesses if guess is not None)
    reading.tell("no_time", f"{column}: {found.note}; its time is {where}, {moment.isoformat()}")
    return from_milliseconds(0) if moment is None else moment, False


def _updated(reading: _Reading, created: datetime) -> datetime:
    found = reading.time("updated_at")
    if found.at is None and reading.row.get("updated_at") not in (None, 0):
        reading.tell("no_time", f"updated_at: {found.note}; created_at stands for it")
    return created if found.at is None else max(created, found.at)


def _confidence(reading: _Reading) -> float:
    value: Value = reading.row.get("confidence")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            reading.tell("bad_confidence", f"its confidence is no number: it is {_NO_CONFIDENCE} now")
            reading.keep("confidence")
            return _NO_CONFIDENCE
    if not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - not a number is unequal to itself
        what = "NULL" if value is None else "no number"
        reading.tell("no_confidence", f"its confidence is {what}: it is {_NO_CONFIDENCE} now")
        return _NO_CONFIDENCE
    if not 0 <= value <= 1:
        reading.tell("bad_confidence", "its confidence is not from 0 to 1: the nearer end is taken")
        reading.keep("confidence")
    return min(max(float(value), 0.0), 1.0)


def _outcome(reading: _Reading) -> tuple[Outcome | None, str | None, list[tuple[str, str]]]:
    """Return the outcome, its reason, and all texts that say why, with their columns."""
    said = (reading.text("outcome") or "").strip()
    outcome = None
    if said:
        try:
            outcome = Outcome(said.upper())
        except ValueError:
            reading.tell("bad_outcome", "its outcome is none that there is: it has none now")
            reading.keep("outcome")
    columns = ("failure_reason", "limitation")
    if outcome is not Outcome.FAILED:
        columns = ("limitation", "failure_reason")
    reasons = [(column, text) for column in columns if (text := reading.text(column)) and text.strip()]
    if reasons and outcome is None:
        reading.tell("reason_only", f"it has a {reasons[0][0]} and no outcome: the text is kept as a context")
    return outcome, reasons[0][1] if reasons else None, reasons


def _besides(reading: _Reading) -> None:
    """Keep every column that a memory has no place for."""
    for column, value in reading.row.values.items():
        if column in _PLACED or value is None or column in reading.extra:
            continue
        if column in {"trust_context", "refined_from"}:
            found = reading.json(column)
            if found is not None:
                reading.extra[column] = found
        else:
            reading.keep(column)


def _files(reading: _Reading) -> tuple[str, ...]:
    found = reading.json("open_files")
    if found is None:
        return ()
    if isinstance(found, str) and found.strip():
        reading.tell("bad_open_files", "open_files is one text and no list: it is taken for one file")
        return (found,)
    files = tuple(one for one in found if isinstance(one, str)) if isinstance(found, Sequence) else ()
    if not isinstance(found, list) or len(files) < len(found):
        reading.tell("bad_open_files", "open_files is no list of texts: what is none is kept in metadata.extra")
        reading.keep("open_files")
    return files


def _steps(text: str) -> tuple[str, ...]:
    """Return next steps one by one where they stand in lines, without losing a character otherwise."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return ()
    return tuple(lines) if "\n".join(lines) == text else (text,)


def _extra(reading: _Reading) -> dict[str, Any]:
    return {OLD: reading.extra} if reading.extra else {}
