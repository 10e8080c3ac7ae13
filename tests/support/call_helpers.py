"""Strategies for a model's arguments, valid or invalid for a JSON Schema."""

import contextlib
import json
import math
import re

from hypothesis import strategies as st

from mama_structs.testing.strategies import tool_arguments

HANDLES = ["ref:plan", "ref:plan@1", "ref:plam", "fd:1", "fd:99", "plan"]
ENTITY_ID = re.compile(r"\A[0-9]{1,2}-[0-9]{1,3}\Z")
CONTROL = "".join(map(chr, range(32))) + "\x7f\x85\u2028\ufeff\u202e"
BAD_TEXTS = [
    "",
    " \n",
    "\0",
    CONTROL,
    "\ud800",
    "a\udfffb",
    "null",
    "[]",
    "{}",
    '{"$ref": "ref:plan"}',
    "x" * 200_000,
    "9" * 5000,
]


def from_schema(schema, ids):
    """Return a strategy for valid arguments of a tool, which refer to existing ids and handles."""
    known = {
        **dict.fromkeys(["id", "to_id", "decision_id", "supersedes", "implements"], st.sampled_from(ids)),
        **dict.fromkeys(["fd", "ref_id", "evidence"], st.sampled_from(HANDLES)),
        "since": st.datetimes().map(lambda moment: moment.isoformat()) | st.dates().map(str),
        "relationship": st.sampled_from(["refines", "depends on", "모순"]),
        "query": st.sampled_from(["why did we leave JWT?", "지난주에 뭘 정했지?", "last week", "Step"]),
        "*_id": st.from_regex(ENTITY_ID),
    }
    return tool_arguments(schema, texts=known)


def nested(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


junk = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 10**400, -1, 0, 1.5, 0.7, "0.7", "3", "true", "high"])
    | st.sampled_from(BAD_TEXTS)
    | st.text(alphabet=st.characters(), max_size=10)
    | st.lists(st.none() | st.text(max_size=5) | st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)
    | st.sampled_from([5, 150, 5000]).map(lambda depth: nested(depth, "deep"))
    | st.sampled_from([{"$ref": "ref:plan"}, {"$ref": "ref:none"}, [{"$ref": "fd:1"}], {"to_id": None}, "[" * 10_000])
)
wrong_names = st.sampled_from(
    ["decisionId", "Topic", "memories", "refs", "store", "ctx", "self", "", "\ud800", "__class__", "extra"]
)


@st.composite
def broken(draw, right):
    """Draw invalid arguments: replace, rename, add or remove some arguments of a valid call."""
    given = dict(draw(right))
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.sampled_from(["replace", "replace", "inside", "text", "leave out", "add", "rename"]))
        name = draw(st.sampled_from(sorted(given))) if given else None
        if name is None or what == "add":
            given[draw(wrong_names)] = draw(junk)
        elif what == "replace":
            given[name] = draw(junk)
        elif what == "inside":
            given[name] = changed_inside(given[name], draw(junk))
        elif what == "text":
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                given[name] = json.dumps(given[name])
        elif what == "leave out":
            del given[name]
        else:
            given[name.title().replace("_", "")] = given.pop(name)
    return given


def changed_inside(value, other):
    if isinstance(value, list):
        return [*value, other]
    if isinstance(value, dict) and value:
        return {**value, next(iter(value)): other}
    return [other]
