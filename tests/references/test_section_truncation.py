"""A references section that exceeds its budget first omits fields of references, and then whole references."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mama_structs import References
from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import to_json_text
from mama_structs.references.section import is_section, parse_line
from mama_structs.references.section_truncation import MAX_LISTED_IDS, ReferenceBudget
from mama_structs.refs.store.ref_store import RefStore

BRIEF = {"planet": ("name", "owner"), "fleet": ("owner", "status")}
VALUES = st.none() | st.integers(0, 9) | st.booleans() | st.text(max_size=40) | st.sampled_from(["", "0"])
FIELDS = st.dictionaries(
    st.sampled_from(["name", "owner", "status", "ore", "map"]), VALUES | st.dictionaries(st.just("load"), VALUES)
)
ENTRIES = st.lists(st.tuples(st.sampled_from(["planet", "fleet", "guild"]), FIELDS, st.booleans()), max_size=40)
OMITTED = st.integers(0, 60)


def brief_of(kind):
    return BRIEF.get(kind, ())


def answer_of(entries, omitted, rows=0):
    """Return an answer with references, including failed ones."""
    section = {}
    for number, (kind, fields, failed) in enumerate(entries, 1):
        own = {"status": "failed", "error": f"no answer {number}"} if failed else fields
        section[f"2-{number}"] = {"reference_type": kind, "id": f"2-{number}", **own}
    ids = [f"9-{number}" for number in range(omitted)]
    meta = {"references_meta": {"found": len(section) + omitted, "omitted": omitted, "omitted_ids": ids}}
    return {"rows": [{"id": "x" * 50}] * rows, "references": section, **(meta if omitted else {})}


def shown_within(answer, room):
    made = ReferenceBudget.from_answer(answer, brief_of).truncate(room, 8)
    return made, made.to_answer(dict.fromkeys(made.texts, "fd:12345"))


@given(ENTRIES, OMITTED, st.integers(0, 6_000))
def test_truncated_references_fit_and_are_counted(entries, omitted, room):
    """They are in order, and the metadata contains the total and the kind of truncation."""
    answer = answer_of(entries, omitted)
    _, shown = shown_within(answer, room)

    assert len(to_json_text(shown)) <= max(room, len("{}"))
    section, meta = shown.get("references", {}), shown.get("references_meta", {})
    assert list(section) == list(answer["references"])[: len(section)]
    assert len(meta.get("omitted_ids", ())) <= MAX_LISTED_IDS
    if shown and to_json_text(section) != to_json_text(answer["references"]):
        assert (len(section), len(answer["references"])) == (meta["shortened"]["shown"], meta["shortened"]["of"])
        assert meta["shortened"]["left_out"]


@given(ENTRIES, st.integers(150, 6_000))
def test_fields_are_dropped_before_references(entries, room):
    """References are omitted, from the end, only if all others are single lines."""
    answer = answer_of(entries, 0)
    _, shown = shown_within(answer, room)
    section = shown.get("references", {})

    if shown and len(section) < len(answer["references"]):
        assert all(isinstance(entry, str) for entry in section.values())
    for key, entry in section.items():
        kind = answer["references"][key]["reference_type"]
        assert entry.startswith(kind) if isinstance(entry, str) else entry["reference_type"] == kind


@given(ENTRIES.filter(bool), OMITTED, st.integers(300, 2_000))
def test_handles_contain_all_references_and_omitted_ids(entries, omitted, room):
    """Each line of a text is a complete reference or an omitted id."""
    answer = answer_of(entries, omitted)
    made, shown = shown_within(answer, room)
    texts = {name: [json.loads(line) for line in write().split("\n")] for name, write in made.texts.items()}

    if "shortened" in shown.get("references_meta", {}):
        assert list(answer["references"].values()) == texts["references"]
    if omitted > MAX_LISTED_IDS and shown.get("references_meta"):
        assert answer["references_meta"]["omitted_ids"] == texts["references_meta"]


def test_forms_are_tried_from_longest_to_shortest():
    """The forms are: no empty fields, brief fields, one line each, type and name, none."""
    planet = {"reference_type": "planet", "id": "2-1", "name": "azure-orchard", "owner": "1-11", "map": "m" * 99}
    empty = {f"slot {number}": value for number, value in enumerate(["0", None, "", 0, [], {}, {"a": "", "b": 0}] * 4)}
    answer = {"references": {"2-1": planet | empty | {"hidden": False}}}
    full = len(to_json_text(answer))
    forms = []
    for room in range(full - 1, 1, -1):
        _, shown = shown_within(answer, room)
        form = shown.get("references")
        if form not in forms:
            forms.append(form)

    line = "planet azure-orchard, owner 1-11"
    assert [planet | {"hidden": False}, {k: v for k, v in planet.items() if k != "map"}, line] == [
        form["2-1"] for form in forms[:3]
    ]
    assert [{"2-1": "planet azure-orchard"}, {}, None] == forms[3:]


@given(ENTRIES.filter(bool), st.integers(0, 200))
def test_answer_and_references_share_unused_budget(entries, rows):
    """References have half of the budget. Each part may use what the other leaves."""
    store = RefStore()
    store._own_share = lambda answer: ReferenceBudget.from_answer(answer, brief_of)
    answer, budget = answer_of(entries, 0, rows=rows), Budget(4_000)
    shown = store._within(answer, budget)

    assert budget.fits(to_json_text(shown))
    assert len(References.from_result(shown)) == len(entries)
    if len(shown["rows"]) < rows:
        # No further row would fit: a row takes 61 characters, and each of the two handles takes at most 8.
        assert len(to_json_text(shown)) > 4_000 - 61 - 2 * len("fd:10000")
        assert len(to_json_text(shown["rows"])) > 1_600


def test_line_is_parsed_as_entry():
    section = {"2-1": "planet azure, owner 1-1", "9-9": "fleet failed: Entity not found"}
    references = References.from_result({"references": section, "references_meta": {"shortened": {"of": 2}}})

    assert {"reference_type": "planet", "id": "2-1", "line": "planet azure, owner 1-1"} == references["2-1"]
    assert ["2-1"] == list(references.by_type("planet"))
    assert {"9-9": "Entity not found"} == references.failed
    assert "guild" == parse_line("0-1", "guild")["reference_type"]


def test_own_references_field_with_texts_is_not_a_section():
    """Lines are entries only if the metadata says that the section was shortened."""
    assert not is_section({"paper": "Knuth 1974"})
    assert not is_section({"paper": "Knuth 1974"}, {"found": 1})
    assert is_section({"2-1": "planet azure"}, {"shortened": {}})
