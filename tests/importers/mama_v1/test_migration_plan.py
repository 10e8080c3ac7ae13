"""Conversion of single v1.0 rows to memories and links, and reports of odd rows."""

from __future__ import annotations

import base64
import json
import unicodedata
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_v1_0 import START, OldStore

from mama_structs.importers import V1Database, read_v1
from mama_structs.importers.mama_v1.migration import compute_digest, round_trip
from mama_structs.importers.mama_v1.migration_plan import build_plan, count_tables, find_cycles, iter_skipped_rows
from mama_structs.importers.shared.value_readers import ForeignRow, UndecodableText, read_text, read_time
from mama_structs.memory.types.model import Link, LinkMetadata, LinkType, MemoryType, Outcome, to_milliseconds

MOMENT = datetime(2025, 11, 20, 1, 0, tzinfo=UTC)


@pytest.fixture
def planned(tmp_path):
    """Return a function that fills a v1.0 database with *write*, and returns the database and its migration plan."""

    def plan(write, *, most=1_000_000):
        path = tmp_path / "old.db"
        with OldStore.made(path) as store:
            write(store)
        old = read_v1(path)
        return old, build_plan(old, namespace="default", max_content=most)

    return plan


def one(planned, most=1_000_000, **columns):
    """Return the memory that a migration creates for one decision row, and the kinds of the reported problems."""
    _, plan = planned(lambda store: store.decision("cache", **columns), most=most)
    return plan.planned[0].memory, [odd.kind for odd in plan.odd]


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (to_milliseconds(MOMENT), None),
        (to_milliseconds(MOMENT) // 1000, "it is in seconds"),
        (to_milliseconds(MOMENT) * 1000, "it is in microseconds"),
        (to_milliseconds(MOMENT) * 1_000_000, "it is in nanoseconds"),
        (float(to_milliseconds(MOMENT)) + 0.5, "it is a fraction"),
        (str(to_milliseconds(MOMENT)), "it is a text"),
        (str(to_milliseconds(MOMENT) // 1000), "it is a text"),
        ("2025-11-20T01:00:00Z", "it is a text"),
        ("2025-11-20 01:00:00", "it is a text"),
        ("2025-11-20T10:00:00+09:00", "it is a text"),
        ("Thu, 20 Nov 2025 01:00:00 GMT", "it is a text"),
        (b"2025-11-20T01:00:00.000Z", "it is a text"),
    ],
)
def test_read_time_accepts_all_units_and_text_forms(value, note):
    """The magnitude and form of a value determine how it is converted to a time."""
    found = read_time(value)

    assert (MOMENT, note) == (found.at, found.note)


@pytest.mark.parametrize(
    "value", [None, 0, -5, float("inf"), 10**21, "soon", "", "9999-01-01", UndecodableText(b"\xff")]
)
def test_read_time_returns_none_and_a_note_for_invalid_values(value):
    """An invalid time is None, with a note that gives the reason."""
    found = read_time(value)

    assert found.at is None
    assert found.note


@given(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary()))
def test_read_time_returns_storable_time_or_none_for_any_value(value):
    """Any column value becomes a time that the store can represent, or None."""
    found = read_time(value)

    assert found.at is None or datetime(1970, 1, 1, tzinfo=UTC) <= found.at < datetime(9000, 1, 1, tzinfo=UTC)


@given(st.integers(315_532_800, 4_102_444_800))
def test_read_time_determines_the_unit_from_the_magnitude(seconds):
    """A time from 1980 to 2100 is read equally from seconds to nanoseconds and as a text."""
    at = datetime.fromtimestamp(seconds, UTC)

    assert {at} == {read_time(seconds * scale).at for scale in (1, 1000, 10**6, 10**9)} | {read_time(str(at)).at}


@given(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary()))
def test_read_text_returns_utf8_text_for_any_value(value):
    """Any column value becomes a text that UTF-8 can encode; only NULL is None."""
    found = read_text(UndecodableText(value) if isinstance(value, bytes) and b"\xff" in value else value)

    assert (found.text is None) == (value is None)
    assert (found.text or "").encode() or not found.text


def test_plan_of_decision_keeps_id_texts_times_and_creator(planned):
    """A decision keeps its id, texts, times and creator."""
    memory, odd = one(planned, id="decision___1752475204307_zynn", created_at=START, updated_at=START + 5)

    assert ("decision___1752475204307_zynn", "cache", "Use cache") == (memory.id, memory.topic, memory.content)
    assert ("It is simpler.", 0.5, "user") == (
        memory.metadata.reasoning,
        memory.metadata.confidence,
        memory.metadata.created_by,
    )
    assert (START, START + 5) == (to_milliseconds(memory.created_at), to_milliseconds(memory.updated_at))
    assert [] == odd


@pytest.mark.parametrize(
    ("columns", "kind", "expected"),
    [
        ({"topic": ""}, "no_topic", {"topic": "untitled"}),
        ({"topic": " cache "}, "topic_form", {"topic": "cache"}),
        ({"topic": unicodedata.normalize("NFD", "인증 방식")}, "topic_form", {"topic": "인증 방식"}),
        ({"decision": " \n"}, "no_text", {"content": "(empty)"}),
        ({"decision": "a\x00b\x01"}, "control_characters", {"content": "a\x00b\x01"}),
        ({"decision": 42}, None, {"content": "42"}),
        ({"decision": b"as bytes"}, "blob_in_text", {"content": "as bytes"}),
        ({"decision": "x" * 50}, "long_text", {"content": "x" * 50}),
        ({"created_at": START // 1000}, "time_form", {}),
        ({"created_at": None, "id": f"decision_a_{START}_abcd"}, "no_time", {}),
        ({"created_at": 0, "id": "odd", "updated_at": START}, "no_time", {}),
        ({"id": "e\u0301"}, "new_id", {}),
        ({"id": "x" * 600}, "new_id", {}),
        ({"id": " "}, "new_id", {}),
        ({"id": "checkpoint_3"}, None, {"id": "checkpoint_3"}),
    ],
)
def test_plan_of_odd_decision_preserves_and_reports_values(planned, columns, kind, expected):
    """An odd value is preserved as well as possible, and reported."""
    memory, odd = one(planned, 40, **columns)

    assert ([] if kind is None else [kind]) == odd
    assert expected == {name: getattr(memory, name) for name in expected}
    if kind in {"time_form", "no_time"}:
        assert START // 1000 == to_milliseconds(memory.created_at) // 1000


def test_plan_of_decision_shortens_long_topics_and_keeps_them_distinct(planned):
    """
    Long topics with the same beginning are still different after they are shortened.

    The full topic is preserved.
    """
    _, plan = planned(
        lambda store: [
            store.decision("a", id=f"decision_a_{START}_000{number}", topic="t" * 300 + str(number))
            for number in range(2)
        ]
    )
    topics = [one.memory.topic for one in plan.planned]

    assert 2 == len(set(topics))
    assert {200} == {len(topic) for topic in topics}
    assert ["t" * 300 + "0"] == [plan.planned[0].memory.metadata.extra["v1_0"]["topic"]]


def test_plan_of_decision_preserves_bytes_that_are_not_utf8(planned):
    """Bytes that are not UTF-8 are replaced in the text, and preserved in the metadata."""

    def write(store):
        store.decision("cache")
        store.database.execute("UPDATE decisions SET reasoning = CAST(x'61ff62' AS TEXT)")

    _, plan = planned(write)
    memory = plan.planned[0].memory

    assert ["not_utf8"] == [odd.kind for odd in plan.odd]
    assert "a\ufffdb" == memory.metadata.reasoning
    assert b"a\xffb" == base64.b64decode(memory.metadata.extra["v1_0"]["reasoning"]["base64"])


@pytest.mark.parametrize(
    ("confidence", "expected", "odd"),
    [(None, 0.5, 1), (0, 0.0, 0), (1, 1.0, 0), (7, 1.0, 1), (-1.5, 0.0, 1), ("much", 0.5, 1), (b"x", 0.5, 1)],
)
def test_plan_of_decision_clamps_the_confidence(planned, confidence, expected, odd):
    """The confidence of a memory is a number from 0 to 1."""
    memory, kinds = one(planned, confidence=confidence)

    assert (expected, odd) == (memory.metadata.confidence, len(kinds))


@pytest.mark.parametrize(
    ("involvement", "creator"),
    [("approved", "user"), ("requested", "user"), ("rejected", "llm"), (None, "llm"), ("?", "llm")],
)
def test_plan_of_decision_derives_the_creator_from_user_involvement(planned, involvement, creator):
    """Decisions that the user requested or approved have the creator "user", all others "llm"."""
    memory, _ = one(planned, user_involvement=involvement)

    assert creator == memory.metadata.created_by


def test_plan_of_decision_keeps_outcome_and_reasons(planned):
    """
    An outcome has its time and reason.

    Each text that explains it becomes a context linked to the decision.
    """
    _, plan = planned(
        lambda store: store.decision(
            "jwt",
            outcome="FAILED",
            failure_reason="Tokens could not be revoked.",
            limitation="Only on one node.",
            updated_at=START + 1000,
        )
    )
    memory, *reasons = [one.memory for one in plan.planned]

    assert (Outcome.FAILED, "Tokens could not be revoked.") == (memory.metadata.outcome, memory.metadata.outcome_reason)
    assert START + 1000 == to_milliseconds(memory.metadata.outcome_at) == to_milliseconds(reasons[0].created_at)
    assert ["Tokens could not be revoked.", "Only on one node."] == [reason.content for reason in reasons]
    assert [(reason.id, memory.id, "outcome_of", LinkType.IMPLEMENTATION, 1.0, "user") for reason in reasons] == [
        (
            link.from_id,
            link.to_id,
            link.metadata.original_relationship,
            link.link_type,
            link.confidence,
            link.created_by,
        )
        for link in plan.links
    ]
    assert "Only on one node." == memory.metadata.extra["v1_0"]["limitation"]


def test_plan_of_decision_preserves_columns_without_equivalent(planned):
    """
    Columns without an equivalent, including unknown ones, are preserved.

    JSON is parsed, also if encoded twice.
    """

    def write(store):
        store.database.execute("ALTER TABLE decisions ADD COLUMN project_tag TEXT")
        store.decision("a", project_tag="payments", trust_context='"{\\"source\\": {\\"line\\": 1}}"', usage_count=3)
        store.decision("b", trust_context="{source: a}", refined_from='["decision_x"')

    _, plan = planned(write)
    kept = [one.memory.metadata.extra["v1_0"] for one in plan.planned]

    assert ("payments", {"source": {"line": 1}}, 3) == tuple(
        kept[0][name] for name in ("project_tag", "trust_context", "usage_count")
    )
    assert ("{source: a}", '["decision_x"') == (kept[1]["trust_context"], kept[1]["refined_from"])
    assert ["bad_json", "bad_json"] == [odd.kind for odd in plan.odd]


def test_plan_of_assigns_new_ids_when_ids_collide_or_are_missing(planned):
    """Rows whose ids collide or are missing are all kept, each with a new id."""

    def write(store):
        store.decision("a", id="same")
        store.decision("b", id=b"same")
        store.decision("c", id=None)
        store.decision("d", id=None)
        store.row("checkpoints", timestamp=START, summary="same")

    _, plan = planned(write)
    ids = [one.memory.id for one in plan.planned]

    assert "same" == ids[0]
    assert 5 == len(set(ids))
    assert 3 == [odd.kind for odd in plan.odd].count("new_id")


def test_plan_of_merges_supersession_columns_and_edges_to_one_link(planned):
    """Both columns and the edges may contain a supersession; each pair gets one link."""

    def write(store):
        for number, name in enumerate("abcde"):
            store.decision(name, id=name, created_at=START + number)
        store.database.execute("UPDATE decisions SET supersedes = 'a' WHERE id = 'b'")
        store.edge("b", "a", reason="why", created_at=START + 7)
        store.database.execute("UPDATE decisions SET superseded_by = 'c' WHERE id = 'b'")
        store.edge("d", "c", weight=0.4)

    _, plan = planned(write)
    by_ends = {(link.from_id, link.to_id): link for link in plan.links}

    assert {("b", "a"), ("c", "b"), ("d", "c")} == set(by_ends)
    assert {("supersedes", LinkType.EVOLUTION, 1.0, "system")} == {
        (link.metadata.original_relationship, link.link_type, link.confidence, link.created_by) for link in plan.links
    }
    assert ("why", START + 7) == (
        by_ends["b", "a"].metadata.reason,
        to_milliseconds(by_ends["b", "a"].created_at),
    )
    assert {"weight": 0.4} == by_ends["d", "c"].metadata.extra


def test_plan_of_other_edges_keeps_word_reason_and_weight(planned):
    """Other edges become associations that keep their word, reason and weight."""

    def write(store):
        store.decision("a", id="a")
        store.decision("b", id="b", refined_from='["a", "gone", "b", 7]')
        store.edge("b", "a", "contradicts", weight=0.3, reason=None)

    _, plan = planned(write)

    assert {
        ("b", "a", "contradicts", LinkType.ASSOCIATION, 0.3),
        ("b", "a", "refines", LinkType.ASSOCIATION, 1.0),
    } == {
        (link.from_id, link.to_id, link.metadata.original_relationship, link.link_type, link.confidence)
        for link in plan.links
    }
    assert ["dangling", "dangling"] == [odd.kind for odd in plan.odd]


def test_plan_of_reports_self_links_and_dangling_links(planned):
    """Links of a row to itself or to a missing row are reported; the row itself is migrated."""

    def write(store):
        store.decision("a", id="a", supersedes="a", superseded_by="gone")
        store.edge("a", "a")
        store.edge("ghost", "a", "refines")
        store.edge("a", "ghost", "", reason="x")

    old, plan = planned(write)

    assert () == plan.links
    assert {"self_loop": 2, "dangling": 3} == {
        kind: sum(odd.kind == kind for odd in plan.odd) for kind in ("self_loop", "dangling")
    }
    assert (3, 0, 3) == next(
        (one.rows, one.migrated, one.skipped) for one in count_tables(old, plan, {}) if one.table == "decision_edges"
    )


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_circles_returns_the_same_groups_as_brute_force(pairs):
    """A memory is in a circle if its links lead back to it."""
    edges = {(one, other) for one, other in pairs if one != other}
    links = [
        Link(
            id=f"{one}-{other}",
            from_id=str(one),
            to_id=str(other),
            link_type=LinkType.EVOLUTION,
            confidence=1.0,
            created_by="system",
            metadata=LinkMetadata(original_relationship="supersedes"),
            created_at=MOMENT,
        )
        for one, other in sorted(edges)
    ]
    reached = {node: {other for one, other in edges if one == node} for node in range(8)}
    for _ in range(8):
        reached = {node: ends | {further for end in ends for further in reached[end]} for node, ends in reached.items()}

    assert {str(node) for node, ends in reached.items() if node in ends} == {
        member for circle in find_cycles(links) for member in circle
    }


def test_circles_visits_each_link_a_constant_number_of_times_when_circles_are_many():
    """A file of 2,000 circles of two is searched in linear time."""
    count = 0

    class Counted(str):
        __slots__ = ()

        def __hash__(self):
            nonlocal count
            count += 1
            return super().__hash__()

    def link(from_id, to_id):
        return SimpleNamespace(link_type=LinkType.EVOLUTION, from_id=Counted(from_id), to_id=Counted(to_id))

    links = [link(f"{n}{one}", f"{n}{other}") for n in range(2_000) for one, other in ("ab", "ba")]
    found = find_cycles(links)

    assert 2_000 == len(found)
    assert count <= 20 * len(links)


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, json.dumps("[" * 5000)])
@pytest.mark.parametrize(
    ("table", "column"), [("decisions", "trust_context"), ("decisions", "refined_from"), ("checkpoints", "open_files")]
)
def test_plan_of_preserves_deeply_nested_json_as_text(planned, table, column, text):
    """JSON that exceeds the depth limit is reported, and preserved as text."""

    def write(store):
        store.decision("cache", **({column: text} if table == "decisions" else {}))
        if table == "checkpoints":
            store.row("checkpoints", timestamp=START, summary="Half", **{column: text})

    _, plan = planned(write)

    assert ["bad_json"] == [odd.kind for odd in plan.odd if odd.kind == "bad_json"]
    assert [text] == [one.memory.metadata.extra["v1_0"][column] for one in plan.planned if one.table == table]


def test_plan_of_checkpoint_keeps_texts_files_and_steps(planned):
    """
    A checkpoint keeps its texts.

    Valid files are read, and the next steps are split into lines.
    """

    def write(store):
        rows = [
            ('["a.py", "b.py"]', "1. this\n2. that", "active"),
            ('["a.py", 3]', "", "archived"),
            ('"a.py"', "one\n\ntwo", None),
            ('["a.py"', None, "active"),
            (None, None, "active"),
        ]
        for number, (files, steps, status) in enumerate(rows):
            store.row(
                "checkpoints",
                timestamp=START + number,
                summary=f"sum {number}",
                open_files=files,
                next_steps=steps,
                status=status,
            )

    _, plan = planned(write)
    found = [one.memory for one in plan.planned]

    assert [("a.py", "b.py"), ("a.py",), ("a.py",), (), ()] == [memory.metadata.open_files for memory in found]
    assert [("1. this", "2. that"), (), ("one\n\ntwo",), (), ()] == [memory.metadata.next_steps for memory in found]
    assert ["active", "archived", None, "active", "active"] == [
        memory.metadata.extra["v1_0"].get("status") for memory in found
    ]
    assert ["1", "2"] == [str(memory.metadata.extra["v1_0"]["id"]) for memory in found[:2]]
    assert ["bad_open_files", "not_active", "bad_open_files", "not_active", "bad_json"] == [
        odd.kind for odd in plan.odd
    ]


@pytest.mark.parametrize("statuses", [("active", "active"), ("active", "archived"), ("archived", "archived")])
def test_plan_of_reports_when_another_checkpoint_is_newest(planned, statuses):
    """
    The checkpoint that v1.0 loads is written last, the first of a tie.

    If another one is newer, this is reported.
    """

    def write(store):
        for number, status in enumerate(statuses):
            at = START + (number if status == "archived" else 0)
            store.row("checkpoints", timestamp=at, summary=f"{number}", status=status)

    _, plan = planned(write)
    is_newest = statuses == ("active", "active")

    assert ("0" if is_newest else "1") == plan.planned[-1].memory.content
    assert is_newest == ("newest_not_active" not in [odd.kind for odd in plan.odd])


def test_rows_left_out_lists_rows_of_other_tables(planned):
    """Rows of tables without memories are listed and counted."""

    def write(store):
        store.database.execute('CREATE TABLE "my; notes" (body TEXT)')
        store.row('"my; notes"', body="hello")
        store.database.execute("CREATE TABLE bare (body TEXT PRIMARY KEY) WITHOUT ROWID")
        store.row("bare", body="hello")
        store.row("sessions", id="session_1")

    old, plan = planned(write)
    counts = {one.table: (one.rows, one.migrated, one.skipped) for one in count_tables(old, plan, {})}

    assert (1, 0, 1) == counts["my; notes"] == counts["sessions"]
    assert (4, 0, 4) == counts["schema_version"]
    assert {("my; notes", "row 1"), ("bare", "row 1"), ("sessions", "session_1")} == {
        (o.table, o.id) for o in iter_skipped_rows(old.others)
    }


# SQLite returns text that is not UTF-8 as another type, so these texts are all UTF-8.
_texts = st.text(st.characters(codec="utf-8"), max_size=30)
_values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    _texts,
    st.binary(max_size=30),
    st.binary(max_size=5).map(lambda data: UndecodableText(data + b"\xff")),
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.one_of(st.none(), st.sampled_from(["a", "b", "c"]), _texts),
                "topic": st.one_of(_texts, st.binary(max_size=5), st.integers(0, 9)),
                "decision": st.one_of(_texts, st.binary(max_size=5)),
            },
            optional={
                "reasoning": _values,
                "outcome": st.one_of(_values, st.sampled_from(["SUCCESS", "failed"])),
                "failure_reason": _values,
                "limitation": _values,
                "user_involvement": _values,
                "supersedes": st.one_of(_values, st.sampled_from(["a", "b", "c"])),
                "superseded_by": st.one_of(_values, st.sampled_from(["a", "b", "c"])),
                "refined_from": _values,
                "confidence": _values,
                "created_at": _values,
                "updated_at": _values,
                "trust_context": _values,
            },
        ),
        max_size=4,
    )
)
def test_plan_of_any_rows_contains_only_storable_memories(rows):
    """Any row becomes a memory that the store accepts, and both ends of every link exist."""
    old = V1Database(
        path="old.db",
        checksum="",
        content="",
        version=4,
        decisions=tuple(ForeignRow(number, row) for number, row in enumerate(rows)),
        edges=(),
        checkpoints=(),
        others=(),
    )
    plan = build_plan(old, namespace="default", max_content=1_000_000)
    memories = [one.memory for one in plan.planned]
    ids = [memory.id for memory in memories]

    assert len(rows) == sum(memory.type is MemoryType.DECISION for memory in memories)
    assert len(ids) == len(set(ids))
    assert ids == [one.memory.id for one in build_plan(old, namespace="default", max_content=1_000_000).planned]
    for memory in memories:
        assert compute_digest(round_trip(memory)) == compute_digest(round_trip(round_trip(memory)))
        assert memory.created_at <= memory.updated_at
        assert memory.content.strip()
    assert all({link.from_id, link.to_id} <= set(ids) and link.from_id != link.to_id for link in plan.links)
