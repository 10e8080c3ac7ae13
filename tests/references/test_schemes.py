"""Several id schemes in one session: custom schemes together with the chain's id scheme."""

import re
import subprocess
import sys

import pytest

from mama_structs.errors import EntityNotFound, InvalidArgument
from mama_structs.references.detection import IdDetector
from mama_structs.references.schemes import MAX_ID_LENGTH, EntitySource, IdScheme, Source
from mama_structs.structs.scheme import STRUCTS_SCHEME
from mama_structs.testing.fakes import FakeSource


def issue_scheme(**changes):
    """Return a scheme for the issue keys of a tracker, such as ABC-123."""
    options = {
        "name": "issues",
        "pattern": r"([A-Z]{2,5})-[1-9][0-9]*",
        "type_of": lambda key: "bug" if key.startswith("BUG") else None if key.startswith("ISO") else "issue",
        "deny": {"title", "owner"},
        "hints": {"fixes": "bug", "*_bug": ["bug"]},
        "primary": {"parent"},
        "contains": "-",
    }
    return IdScheme(**{**options, **changes})


def ids(scan):
    return [(found.id, found.type) for found in scan.matches]


def test_detector_finds_ids_of_each_scheme():
    scan = IdDetector([STRUCTS_SCHEME, issue_scheme()]).scan({"a": "1-11", "b": "ABC-7", "c": "BUG-1", "d": "abc-7"})

    assert [("1-11", "player"), ("ABC-7", "issue"), ("BUG-1", "bug")] == ids(scan)


def test_field_rules_apply_per_scheme():
    payload = {"owner": "ABC-1", "title": "1-11", "guildId": "ABC-2", "fixes": "1-12", "parent": "1-13"}
    scan = IdDetector([STRUCTS_SCHEME, issue_scheme()]).scan(payload)

    assert [("1-11", "player"), ("ABC-2", "issue"), ("1-12", "player"), ("1-13", "player")] == ids(scan)
    assert [False] * 4 == [found.is_primary for found in scan.matches]


def test_hints_make_ids_of_other_types_look_alikes():
    """Ids in denied fields are not counted at all."""
    payload = {"fixes": "ABC-1", "old_bug": "ABC-2", "other_bug": "BUG-1", "title": "ABC-9", "owner": "BUG-9"}
    scan = IdDetector([issue_scheme()]).scan(payload)

    assert [("BUG-1", "bug")] == ids(scan)
    assert ["ABC-1", "ABC-2"] == [found.id for found in scan.lookalikes]


def test_first_matching_scheme_determines_type():
    """A scheme whose type_of returns None does not match."""
    wide = IdScheme(name="wide", pattern=r"[A-Z]+-[0-9]+", type_of=lambda _: "anything")
    issues = issue_scheme()
    text = {"a": "ABC-1", "b": "ISO-8601"}

    assert [("ABC-1", "issue"), ("ISO-8601", "anything")] == ids(IdDetector([issues, wide]).scan(text))
    assert [("ABC-1", "anything"), ("ISO-8601", "anything")] == ids(IdDetector([wide, issues]).scan(text))
    assert [("ABC-1", "issue")] == ids(IdDetector([issues]).scan(text))


def test_kind_returns_scheme_of_id():
    first, second = issue_scheme(), IdScheme(name="x", pattern="x[0-9]", type_of=lambda _: "issue")
    detector = IdDetector([first, second])

    assert first is detector.find_type("ABC-1").scheme
    assert second is detector.find_type("x1").scheme
    assert "issue" == detector.find_type("ABC-1").name == detector.find_type("x1").name


def test_contains_does_not_change_found_ids():
    other = IdScheme(name="x", pattern="x:[0-9]+", type_of=lambda _: "x", contains=":")
    payload = {"a": "ABC-1", "b": "x:5", "c": "1-1"}
    together = IdDetector([issue_scheme(), other, STRUCTS_SCHEME]).scan(payload)

    assert [("ABC-1", "issue"), ("x:5", "x"), ("1-1", "player")] == ids(together)


def test_every_field_is_primary_without_primary_list():
    scan = IdDetector([issue_scheme(primary=None)]).scan({"anywhere": "ABC-1"})

    assert [True] == [found.is_primary for found in scan.matches]


def test_type_mapping_uses_first_group_of_pattern():
    """A missing key means that the text is not an id."""
    scheme = IdScheme(name="m", pattern="([a-z])([0-9])", type_of={"a": "apple"})

    assert "apple" == scheme.match("a1")
    assert None is scheme.match("b1")
    assert None is scheme.match("a1\n")
    assert [("a1", "apple")] == ids(IdDetector([scheme]).scan({"x": "a1", "y": "b1"}))


def test_match_and_detector_have_the_same_length_limit():
    scheme = IdScheme(name="x", pattern="x+", type_of=lambda _: "x")
    longest, longer = "x" * MAX_ID_LENGTH, "x" * (MAX_ID_LENGTH + 1)

    assert ("x", None) == (scheme.match(longest), scheme.match(longer))
    assert [longest] == [found.id for found in IdDetector([scheme]).scan({"a": longest, "b": longer}).matches]


def test_pattern_may_be_text_or_compiled():
    assert re.compile("x") == issue_scheme(pattern="x", type_of=str).pattern
    assert re.compile("x") == issue_scheme(pattern=re.compile("x"), type_of=str).pattern


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"pattern": "("}, "pattern"),
        ({"pattern": re.compile(b"x")}, "pattern"),
        ({"pattern": 5}, "pattern"),
        ({"pattern": "x", "type_of": {"a": "b"}}, "group"),
        ({"type_of": "issue"}, "type_of"),
        ({"type_of": None}, "type_of"),
        ({"deny": "title"}, "field names"),
        ({"deny": 5}, "field names"),
        ({"primary": "parent"}, "field names"),
        ({"embedded": "map"}, "field names"),
        ({"unresolvable": "x"}, "field names"),
        ({"types": "x"}, "field names"),
        ({"deny_subtrees": "x"}, "field names"),
        ({"hints": "fixes"}, "hints"),
        ({"hints": {"fixes": 5}}, "field names"),
        ({"brief": "title"}, "brief"),
        ({"brief": {"issue": "title"}}, "field names"),
    ],
)
def test_id_scheme_rejects_invalid_arguments(changes, word):
    with pytest.raises(InvalidArgument, match=word):
        issue_scheme(**changes)


def test_brief_of_returns_deduplicated_fields_in_order():
    scheme = issue_scheme(brief={"issue": ["title", "state", "title"], "bug": ()})

    assert ("title", "state") == scheme.brief_fields("issue")
    assert () == scheme.brief_fields("bug") == scheme.brief_fields("epic")


def test_source_requires_a_fetch_function():
    """Methods, partials and callable objects are accepted."""

    class Callable:
        async def __call__(self, key):
            return {}

        async def method(self, key):
            return {}

    scheme = issue_scheme()

    assert Source(scheme, fetch=Callable()).fetch is not None
    assert isinstance(Source(scheme, fetch_many=Callable().method), EntitySource)
    assert isinstance(FakeSource(), EntitySource)
    for options in ({}, {"fetch": dict}, {"fetch_many": 5}):
        with pytest.raises(InvalidArgument):
            Source(scheme, **options)
    with pytest.raises(InvalidArgument):
        Source("no scheme", fetch=Callable())


async def test_flatten_returns_answer_of_host_unchanged():
    """Closing the source does not affect the host's function."""

    async def fetch(key):
        raise EntityNotFound(key)

    source = Source(issue_scheme(), fetch=fetch)
    answer = {"title": "x"}
    await source.close()

    assert answer is source.flatten("ABC-1", answer)
    assert source.fetch is fetch


def test_detection_does_not_depend_on_hash_order():
    code = (
        "from mama_structs.references.detection import IdDetector\n"
        "from mama_structs.structs.scheme import STRUCTS_SCHEME\n"
        "sets = {frozenset({'1-5', '1-6', '1-7'}), frozenset({'1-1', '1-2'}), ('1-9', frozenset({'2-1', '2-2'}))}\n"
        "scan = IdDetector([STRUCTS_SCHEME]).scan({'a': {'1-3', '1-2', '9-1'}, 'b': sets, 'owner': '2-1'})\n"
        "print([(f.id, f.pointer, f.type) for f in scan.matches], len(scan.lookalikes))\n"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("0", "1", "2", "3")
    }

    assert 1 == len(shown)
    assert "'/b/" in next(iter(shown))
