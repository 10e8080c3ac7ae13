"""The references section of an answer: its entries, its metadata about omitted references, and its typed view."""

import copy
import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.references.options import ReferenceOptions
from mama_structs.references.results import Failure, SourceAnswer
from mama_structs.references.section import Reference, References, SectionDraft, is_failed, is_section, make_entry

NAMES = st.sampled_from(
    [
        "id",
        "reference_type",
        "status",
        "error",
        "referenced_from",
        "referenced_in",
        "id_",
        "reference_type_",
        "name",
        "error_",
    ]
)
ENTITIES = st.dictionaries(
    NAMES, st.sampled_from(["failed", "player", "1-1", "x", None, 5, ["a"], {"b": []}]), max_size=8
)
PLACES = st.none() | st.builds(lambda holder: [(holder, None, "/owner")], st.none() | st.just("2-1"))


def dumped(value):
    return json.dumps(value)


def success(entity_id, kind, fields, origin):
    return make_entry(entity_id, Reference(kind, SourceAnswer(fields, 0), fields), origin)


def failure(entity_id, kind, failed, origin):
    return make_entry(entity_id, Reference(kind, failed), origin)


def test_entry_has_type_id_and_fields_in_order():
    fields = {"id": "2-1", "owner": "1-1", "status": "active", "space": ["", "5-1"], "gridAttributes": {"ore": "0"}}
    entry = success("2-1", "planet", fields, None)

    assert (
        '{"reference_type": "planet", "id": "2-1", "owner": "1-1", "status": "active", "space": ["", "5-1"], '
        '"gridAttributes": {"ore": "0"}}'
    ) == dumped(entry)


def test_entry_metadata_precedes_fields():
    assert (
        '{"reference_type": "guild", "id": "0-1", "referenced_from": ["/a", "/b/0"], "referenced_in": "1-1", "name": "x"}'
    ) == dumped(success("0-1", "guild", {"name": "x"}, [("1-1", None, "/a"), ("2-1", None, "/b/0")]))
    assert "root" == success("0-1", "guild", {}, [(None, None, "/a")])["referenced_in"]
    assert (
        '{"reference_type": "guild", "id": "0-1", "status": "failed", "error": "why", "referenced_from": ["/a"], "referenced_in": "root"}'
        == dumped(failure("0-1", "guild", Failure("timeout", "why"), [(None, None, "/a")]))
    )


def test_failed_entry_has_status_and_error():
    assert '{"reference_type": "guild", "id": "0-1", "status": "failed", "error": "No answer within 2 s"}' == dumped(
        failure("0-1", "guild", Failure("timeout", "No answer within 2 s"), None)
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": "x"}, {"id_": "x"}),
        ({"id": "1-1"}, {}),
        ({"id": "x", "id_": "y"}, {"id__": "x", "id_": "y"}),
        ({"id_": "y", "id": "x"}, {"id_": "y", "id__": "x"}),
        ({"reference_type": "other", "reference_type_": 1, "reference_type__": 2}, {"reference_type___": "other", "reference_type_": 1, "reference_type__": 2}),
        ({"status": "failed"}, {"status": "failed"}),
        ({"referenced_in": "here"}, {"referenced_in": "here"}),
    ],
)  # fmt: skip
def test_clashing_field_is_renamed_with_underscores(fields, expected):
    assert {"reference_type": "player", "id": "1-1", **expected} == success("1-1", "player", fields, None)


def test_own_fields_named_like_metadata_are_renamed():
    entry = success("1-1", "player", {"referenced_in": "here", "referenced_from": "there"}, [(None, None, "/a")])

    assert (["/a"], "root", "here", "there") == (
        entry["referenced_from"], entry["referenced_in"], entry["referenced_in_"], entry["referenced_from_"],
    )  # fmt: skip


@given(ENTITIES, PLACES)
def test_entry_keeps_every_value_as_a_copy(fields, origin):
    before = copy.deepcopy(fields)
    entry = success("1-1", "player", fields, origin)

    assert ("1-1", "player") == (entry["id"], entry["reference_type"])
    for name, value in fields.items():
        holders = [key for key in entry if key.rstrip("_") == name.rstrip("_") and entry[key] == value]
        assert holders
        assert not isinstance(value, list | dict) or all(entry[key] is not value for key in holders)
    assert before == fields
    assert (0 if origin is None else 2) + 2 + len(fields) >= len(entry)


@given(ENTITIES, PLACES)
def test_is_failed_distinguishes_entities_from_failures(fields, origin):
    """An entity may have the status "failed" and an error of its own."""
    assert not is_failed(success("1-1", "player", fields, origin))
    assert is_failed(failure("1-1", "player", Failure("x", "y"), origin))


def test_error_field_of_failed_entity_is_renamed():
    entry = success("job-1", "job", {"status": "failed", "error": "exit 1"}, None)

    assert {"reference_type": "job", "id": "job-1", "status": "failed", "error_": "exit 1"} == entry


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, True),
        ({"1-1": {"reference_type": "player", "id": "1-1"}}, True),
        ({"1-1": {"reference_type": "player", "id": "1-1"}, "x": {"id": "1-1"}}, False),
        ({"1-1": "see below"}, False),
        ({"count": 3}, False),
        ([{"reference_type": "player", "id": "1-1"}], False),
        (None, False),
        ("text", False),
    ],
)
def test_is_section_recognises_only_own_sections(value, expected):
    """Every entry must have a type and an id."""
    assert expected is is_section(value)


# Conversion of a draft to a section


def resolved(kind="player", **fields):
    return Reference(kind, SourceAnswer(fields, 0), fields)


def failed(kind="timeout"):
    return Reference("player", Failure(kind, "why"))


def test_meta_contains_counts_reasons_and_omitted_ids():
    """Reasons are sorted alphabetically, omitted ids are in payload order."""
    sought = SectionDraft(
        references={"1-1": resolved(), "1-4": failed(), "1-5": failed("not_found"), "1-6": failed()},
        omitted={"1-9": "max_references", "1-2": "earlier", "1-3": "max_references"},
        filtered={"2-1": "types", "2-2": "types", "2-3": "types", "2-4": "primary"},
        is_complete=False,
    )
    _, meta = sought.build_section(ReferenceOptions())

    assert (
        '{"found": 7, "resolved": 1, "failed": 3, "omitted": 3, "failed_by": {"not_found": 1, "timeout": 2}, '
        '"omitted_by": {"earlier": 1, "max_references": 2}, "filtered": {"primary": 1, "types": 3}, '
        '"searched": "in part: the payload is too large to be searched whole", "omitted_ids": ["1-9", "1-2", "1-3"]}'
    ) == dumped(meta)
    assert '{"found": 0, "resolved": 0, "failed": 0, "omitted": 0}' == dumped(
        SectionDraft(references={}).build_section(ReferenceOptions(metadata=True))[1]
    )


@pytest.mark.parametrize(
    ("sought", "shown", "hidden"),
    [
        (SectionDraft(references={}), False, False),
        (SectionDraft(references={"1-1": resolved()}), False, False),
        (SectionDraft(references={}, filtered={"2-1": "primary"}), True, True),
        (SectionDraft(references={}, ceilings={"max_references": 3}), True, True),
        (SectionDraft(references={}, notes=["no source"]), True, True),
        (SectionDraft(references={"1-1": failed("not_found")}), False, True),
        (SectionDraft(references={"1-1": failed("deadline")}), True, True),
        (SectionDraft(references={}, omitted={"1-1": "max_references"}), True, True),
        (SectionDraft(references={}, is_complete=False), True, True),
    ],
)
def test_section_has_meta_when_something_is_left_out(sought, shown, hidden):
    said = [bool(sought.build_section(ReferenceOptions(on_error=on_error))[1]) for on_error in ("indicate", "omit")]

    assert [shown, hidden] == said


def test_omitted_failures_do_not_count_towards_max_bytes():
    sought = SectionDraft(references={"1-1": failed(), "1-2": failed(), "1-3": resolved(name="x")})
    whole, _ = sought.build_section(ReferenceOptions(on_error="omit"))

    section, meta = sought.build_section(ReferenceOptions(on_error="omit", max_bytes=len(compact(whole))))

    assert ["1-3"] == list(section)
    assert (1, 2, 0) == (meta["resolved"], meta["failed"], meta["omitted"])


def compact(value):
    return json.dumps(value, separators=(",", ":"))


@given(
    sizes=st.lists(st.integers(0, 30), max_size=6),
    room=st.integers(0, 400),
    kept=st.booleans(),
    metadata=st.booleans(),
)
def test_section_never_exceeds_max_bytes_with_metadata_and_existing_entries(sizes, room, kept, metadata):
    """The first entry that does not fit ends the section."""
    records = {f"1-{n}": resolved(name="x" * size) for n, size in enumerate(sizes, 1)}
    places = {key: [("0-1", None, "/a"), ("1-1", "1-1", "/references/1-1/owner")] for key in records}
    sought = SectionDraft(
        references=records,
        positions=places if metadata else {},
        existing_entries={"0-9": {"reference_type": "guild", "id": "0-9"}} if kept else {},
    )
    section, meta = sought.build_section(ReferenceOptions(max_bytes=room, metadata=metadata))
    new = [key for key in section if key != "0-9"]

    assert len(compact(section)) <= max(room, len(compact(sought.existing_entries)))
    assert list(records) == [*new, *meta.get("omitted_ids", [])]
    for entry in section.values():
        pointers = entry.get("referenced_from", [])
        assert "1-1" in section or all(not pointer.startswith("/references/1-1") for pointer in pointers)


# The typed view of a section

SECTION = {
    "1-1": {"reference_type": "player", "id": "1-1", "name": "a"},
    "1-2": {"reference_type": "player", "id": "1-2", "status": "failed", "error": "Entity not found"},
    "9-1": {"reference_type": "fleet", "id": "9-1", "status": "failed", "owner": "1-1"},
}


def test_references_view_has_entries_types_failures_and_omissions():
    view = References.from_result(
        {"id": "2-1", "references": SECTION, "references_meta": {"omitted_ids": ["0-1", "0-2"]}}
    )

    assert SECTION == view
    assert (3, ["1-1", "1-2", "9-1"]) == (len(view), list(view))
    assert SECTION["1-1"] is view["1-1"]
    assert ({"1-1": SECTION["1-1"]}, {"9-1": SECTION["9-1"]}, {}) == (
        view.by_type("player"),
        view.by_type("fleet"),
        view.by_type("guild"),
    )
    assert {"1-2": "Entity not found"} == view.failed
    assert ("0-1", "0-2") == view.omitted
    assert "<References: 2 resolved, 1 failed, 2 omitted>" == repr(view)


def test_references_view_accepts_entity_id_keys():
    from mama_structs import EntityId  # noqa: PLC0415 - imported as in user code

    view = References.from_result({"references": SECTION})

    assert SECTION["1-1"] is view[EntityId.parse("1-1")]
    assert "1-1" in view
    assert "5-5" not in view
    with pytest.raises(KeyError):
        view["5-5"]


@pytest.mark.parametrize(
    "result", [None, 5, "text", [], {}, {"references": "my own"}, {"references": {"1-1": "x"}}, {"references": {}}]
)
def test_references_view_of_other_results_is_empty(result):
    view = References.from_result(result)

    assert ({}, {}, (), {}) == (view, view.meta, view.omitted, view.failed)
    assert "<References: 0 resolved>" == repr(view)


def test_references_view_reads_models_and_ignores_invalid_meta():
    @attrs.frozen
    class Result:
        references: dict
        references_meta: object = None

    assert SECTION == References.from_result(Result(SECTION))
    assert () == References.from_result(Result(SECTION, "text")).omitted


def test_references_views_compare_by_entries_and_are_unhashable():
    view = References.from_result({"references": SECTION})

    assert view == References(dict(SECTION), {"omitted_ids": []})
    assert view != References({})
    assert view != list(SECTION)
    with pytest.raises(TypeError):
        hash(view)
