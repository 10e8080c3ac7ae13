"""Filters of engines, and the names by which engines find memories."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_memory

from mama_structs.memory.types.engine import EngineFilter, filter_names
from mama_structs.memory.types.model import METADATA_TYPES, MemoryType, Outcome

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
LONG = "x" * 201
HASH_OF_LONG = next(name for name in EngineFilter(tags=(LONG,)).names).partition("#")[2]
# Texts that a wrong encoding of names would confuse.
NAME_LIKE = ["=", "a=b", "tag=a", "\0\0tag=a", "\0", "\\0", "SUCCESS", "user", "[", '["a",1]']
HASH_LIKE = [LONG, f"{LONG}x", f"sha256:{HASH_OF_LONG}", f"#{HASH_OF_LONG}", HASH_OF_LONG, "\U0001f600" * 200]
TEXTS = st.sampled_from(["a", "b", *NAME_LIKE, *HASH_LIKE, COMPOSED, DECOMPOSED])
VALUES = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 0.5, "1", "", [], {}, [1, True], {"b": 1, "a": 2}, LONG])
EXTRAS = st.dictionaries(TEXTS, VALUES, max_size=2)
CREATORS = st.sampled_from(["user", "llm", "system"])
CONDITIONS = {
    "tags": st.lists(TEXTS, max_size=2).map(tuple),
    "source": TEXTS,
    "outcome": st.sampled_from(Outcome),
    "created_by": CREATORS,
    "extra": EXTRAS,
    "mentions": st.frozensets(st.sampled_from(["2-1", "\0\0tag=a", "\0\0mention=2-1"]), max_size=1),
}


@st.composite
def drawn_memories(draw):
    kind = draw(st.sampled_from(MemoryType))
    given = {name: draw(values) for name, values in {**CONDITIONS, "source": st.none() | TEXTS}.items()}
    fields = attrs.fields_dict(METADATA_TYPES[kind])
    own = {name: value for name, value in given.items() if name in fields}
    return plain_memory("m", "x", type=kind, mentions=draw(st.lists(st.just("2-1"), max_size=1)), **own)


def finds(where, memory):
    """Return True if an engine finds the memory by its names, and assert that the definition agrees."""
    by_names = set(where.names) <= set(filter_names(memory))
    assert by_names == where.matches(memory)
    return by_names


@given(
    memory=drawn_memories(),
    where=st.sampled_from(sorted(CONDITIONS)).flatmap(lambda name: st.builds(EngineFilter, **{name: CONDITIONS[name]}))
    | st.builds(EngineFilter, **{name: st.none() | values for name, values in CONDITIONS.items()}),
)
def test_filter_names_agree_with_conditions(memory, where):
    """The names of a filter are among those of a memory exactly if the memory satisfies the conditions."""
    finds(where, memory)


@given(memory=drawn_memories())
def test_filter_matches_memory_by_each_of_its_values(memory):
    own = memory.metadata
    conditions = [{"tags": memory.tags}, {"created_by": own.created_by}, {"extra": own.extra}]
    conditions += [{"extra": {key: value}} for key, value in own.extra.items()]
    conditions += [{name: getattr(memory, name)} for name in ("source", "outcome")]

    assert all(finds(EngineFilter(**one), memory) for one in conditions)


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ({"tags": ("a",)}, {"source": "a"}),
        ({"source": "a"}, {"tags": ("a",)}),
        ({"tags": ("SUCCESS",)}, {"outcome": Outcome.SUCCESS}),
        ({"tags": (f"sha256:{HASH_OF_LONG}", f"#{HASH_OF_LONG}", HASH_OF_LONG)}, {"tags": (LONG,)}),
        ({"tags": (LONG,)}, {"tags": (HASH_OF_LONG,)}),
        ({"tags": ("a",)}, {"mentions": frozenset({"\0\0tag=a"})}),
        ({"tags": ("a", "b")}, {"tags": ("a,b",)}),
        ({"extra": {"a": "b"}}, {"extra": {"a=b": ""}}),
        ({"extra": {"a": 'b",1'}}, {"extra": {"a": "b"}}),
        ({"extra": {"a": 1}}, {"extra": {"a": True}}),
        ({"extra": {"a": 0}}, {"extra": {"a": False}}),
        ({"extra": {"a": 1}}, {"extra": {"a": "1"}}),
        ({"extra": {"a": None}}, {"extra": {"b": None}}),
        ({"extra": {}}, {"extra": {"a": None}}),
        ({"extra": {"a": COMPOSED}}, {"extra": {"a": DECOMPOSED}}),
        ({"extra": {COMPOSED: 1}}, {"extra": {DECOMPOSED: 1}}),
    ],
)
def test_different_values_do_not_collide(stored, asked):
    assert not finds(EngineFilter(**asked), plain_memory("m", **stored))


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ({"tags": (COMPOSED,)}, {"tags": (DECOMPOSED,)}),
        ({"tags": (f"{DECOMPOSED}{LONG}",)}, {"tags": (f"{COMPOSED}{LONG}",)}),
        ({"source": DECOMPOSED}, {"source": COMPOSED}),
        ({"extra": {"a": 1}}, {"extra": {"a": 1.0}}),
        ({"extra": {"a": 0}}, {"extra": {"a": -0.0}}),
        ({"extra": {"a": 10**20}}, {"extra": {"a": 1e20}}),
        ({"extra": {"a": {"b": 1, "c": (2, 3)}}}, {"extra": {"a": {"c": [2, 3.0], "b": 1}}}),
        ({"extra": {"a": {"b": LONG}}}, {"extra": {"a": {"b": LONG}}}),
        ({"outcome": Outcome.FAILED}, {"outcome": "FAILED"}),
        ({"extra": {"a": None, "b": 2}}, {"extra": {"a": None}}),
    ],
)
def test_equal_values_match(stored, asked):
    assert finds(EngineFilter(**asked), plain_memory("m", **stored))


def test_extra_data_without_comparable_value_match_no_filter():
    """A value that is nested too deeply, which only an import can store, is neither found nor an error."""
    nested = []
    for _ in range(300):
        nested = [nested]
    memory = plain_memory("m", extra={"a": nested, "b": 1})

    assert finds(EngineFilter(extra={"b": 1}), memory)
    assert not finds(EngineFilter(extra={"a": nested}), memory)


def test_records_have_only_creator_and_extra_data():
    record = plain_memory("m", type=MemoryType.RECORD, created_by="llm", extra={"a": 1}, labels=("a",))

    assert finds(EngineFilter(created_by="llm", extra={"a": 1}, labels=("a",)), record)
    assert not finds(EngineFilter(tags=("a",)), record)
    assert not finds(EngineFilter(source="a"), record)


def test_filters_are_equal_exactly_for_equal_conditions():
    """Engines cache results by filter, and Python's == would not distinguish 1 from True."""
    different = [EngineFilter(extra={"a": value}) for value in (1, True, "1", None, [1], [True])]
    different += [EngineFilter(), EngineFilter(extra={"b": 1}), EngineFilter(extra={"a": 1}, source="x")]

    assert len(different) == len(set(different))
    assert EngineFilter(extra={"a": 1, "b": 2}) == EngineFilter(extra={"b": 2.0, "a": 1})
    assert hash(EngineFilter(extra={"a": 1, "b": 2})) == hash(EngineFilter(extra={"b": 2.0, "a": 1}))
    assert EngineFilter(extra={}) == EngineFilter()


def test_names_fit_into_an_index_key():
    """PostgreSQL accepts keys of 2,704 bytes, with the namespace and the node."""
    text = "\U0001f600\\\0" * 5_000
    memory = plain_memory("m", tags=(text, text[:200]), source=text, extra={text: text, text[:150]: 1, "a": text})

    assert max(len(name.encode()) for name in filter_names(memory)) < 1_000
