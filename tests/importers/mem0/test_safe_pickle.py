"""Pickles are read without unpickling: no class is instantiated and no function is called."""

from __future__ import annotations

import contextlib
import pickle
import pickletools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.importers.mem0.safe_pickle import PickledObject, read_pickle, to_jsonable_data

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


class Point:
    """An object with attributes, as libraries pickle it."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Called:
    """An object whose unpickling calls a function."""

    def __reduce__(self):
        return print, ("it was called",)


@given(value=VALUES, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_read_pickle_returns_plain_data_of_every_protocol(value, protocol):
    """Plain data pickled with any protocol is read unchanged."""
    assert value == to_jsonable_data(read_pickle(pickle.dumps(value, protocol)))


@given(
    protocol=st.integers(2, pickle.HIGHEST_PROTOCOL), payload=st.dictionaries(st.text(max_size=5), VALUES, max_size=4)
)
def test_read_pickle_returns_the_fields_of_an_object(protocol, payload):
    """An object becomes its name with its attributes, and is not created."""
    found = read_pickle(pickle.dumps(Point(id="1", payload=payload), protocol))

    assert isinstance(found, PickledObject)
    assert found.name.endswith("test_safe_pickle.Point")
    assert ("1", payload, None) == (found.field("id"), to_jsonable_data(found.field("payload")), found.field("vector"))


def test_read_pickle_calls_nothing(capsys):
    """A callable in a pickle is named and not called."""
    found = read_pickle(pickle.dumps({"payload": Called()}))

    assert "" == capsys.readouterr().out
    assert "builtins.print" == found["payload"].name
    with pytest.raises(ValueError, match="no JSON"):
        to_jsonable_data(found)


@given(data=st.binary(max_size=200))
def test_read_pickle_returns_or_raises_value_error_for_any_bytes(data):
    """Bytes that are not a pickle raise only ValueError."""
    with contextlib.suppress(ValueError):
        read_pickle(data)


@given(value=VALUES, cut=st.integers(0, 50), at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_read_pickle_returns_or_raises_value_error_when_data_is_damaged(value, cut, at, byte):
    """A truncated or changed pickle raises ValueError or yields other data."""
    data = bytearray(pickle.dumps(value))
    data[at % len(data)] = byte
    for some in (bytes(data), bytes(data[:-cut])):
        with contextlib.suppress(ValueError):
            to_jsonable_data(read_pickle(some))


@pytest.mark.parametrize("instruction", ["PERSID", "BINPERSID", "INST", "OBJ", "EXT1", "NEWOBJ_EX"])
def test_read_pickle_rejects_other_instructions(instruction):
    """An instruction that plain data does not need raises ValueError."""
    (code,) = (one.code for one in pickletools.opcodes if one.name == instruction)
    data = {"PERSID": b"a\n", "INST": b"os\nsystem\n", "EXT1": b"\x01"}.get(instruction, b"")

    with pytest.raises(ValueError, match=instruction):
        read_pickle(b"(N" + code.encode("latin-1") + data + b".")


@pytest.mark.once
def test_plain_rejects_small_pickles_that_expand():
    """A pickle that reuses a part exponentially often is not expanded."""
    value = ["x" * 10]
    for _ in range(40):
        value = [value, value]

    with pytest.raises(ValueError, match="parts"):
        to_jsonable_data(read_pickle(pickle.dumps(value)))


def test_read_pickle_rejects_a_list_that_contains_itself():
    """A recursive list is rejected, because its depth is infinite."""
    value = []
    value.append(value)

    with pytest.raises(ValueError, match="nested more than 50 deep"):
        to_jsonable_data(read_pickle(pickle.dumps(value)))


def test_plain_rejects_values_that_json_cannot_represent():
    """Bytes, keys that are not texts, times and objects raise ValueError."""
    for value in (b"x", {1: 2}, datetime(2026, 1, 1, tzinfo=UTC), Point()):
        with pytest.raises(ValueError, match="no JSON"):
            to_jsonable_data(read_pickle(pickle.dumps([value])))


def test_plain_converts_sets_and_tuples_to_lists():
    """Tuples, sets and frozensets become lists, because JSON has no equivalent."""
    assert [[1, 2, 3, 4], [5], []] == to_jsonable_data(read_pickle(pickle.dumps([(1, 2, 3, 4), {5}, frozenset()])))


# Pickle instructions that extend a container after it was added to another container.
GROWN = {
    "list": (b"]q\x00h\x00q\x01", b"h\x01]q\x02a0h\x02q\x010"),
    "dictionary": (b"}q\x00h\x00q\x01", b"h\x01U\x01a}q\x02s0h\x02q\x010"),
    "object": (b"cx\ny\n)Rq\x00h\x00q\x01", b"h\x01cx\ny\n)Rq\x02b0h\x02q\x010"),
}


@pytest.mark.parametrize("kind", GROWN)
def test_read_pickle_rejects_growth_of_a_nested_part(kind):
    """Adding to a nested part is rejected, because its container's depth is not updated."""
    begin, again = GROWN[kind]

    with pytest.raises(ValueError, match="itself part of another"):
        read_pickle(b"\x80\x04" + begin + again * 200 + b".")


def test_read_pickle_rejects_a_key_without_a_value():
    """The error for a key without a value names the pickle, not the function that failed."""
    with pytest.raises(ValueError, match="it is no whole pickle"):
        read_pickle(b"}(U\x01aK\x01U\x01bu.")
