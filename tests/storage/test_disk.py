"""What a row is on disk."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument
from mama_structs.storage.sealed_rows import (
    LONGEST_KEY,
    Damaged,
    New,
    PendingCall,
    check_key,
    checked_changes,
    combined,
    seal,
    size_of,
    unseal,
)
from mama_structs.storage.sqlite_store import Storage

KEYS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=40)
CHANGES = st.none() | st.binary(max_size=5) | st.builds(New, st.binary(max_size=5))


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@given(key=KEYS, value=st.binary())
def test_what_was_sealed_is_unsealed(key, value):
    """A value comes back byte for byte under its own key."""
    assert value == unseal(key, seal(key, value))


@given(key=KEYS, other=KEYS, value=st.binary())
def test_swapped_rows_are_noticed(key, other, value):
    """A value found under another key than its own is damaged, never returned."""
    assert (key == other) == isinstance(unseal(other, seal(key, value)), bytes)


@given(key=KEYS, value=st.binary(max_size=200), data=st.data())
def test_a_changed_bit_is_noticed(key, value, data):
    """Whichever bit of a row changes, the row is damaged."""
    sealed = bytearray(seal(key, value))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8

    assert isinstance(unseal(key, bytes(sealed)), Damaged)


@given(key=KEYS, value=st.binary(max_size=200), data=st.data())
def test_a_cut_row_is_noticed(key, value, data):
    """A row that lost its end, or has one too many, is damaged."""
    sealed = seal(key, value)
    cut = data.draw(st.integers(0, len(sealed) - 1))

    assert isinstance(unseal(key, sealed[:cut]), Damaged)
    assert isinstance(unseal(key, sealed + b"\0"), Damaged)


@given(key=KEYS, tail=st.binary(min_size=1, max_size=3))
def test_key_and_value_do_not_run_into_each_other(key, tail):
    """The beginning of a value cannot be taken for the end of its key."""
    longer = key + tail.hex()

    assert seal(longer, b"")[4:20] != seal(key, tail.hex().encode())[4:20]


@pytest.mark.parametrize("stored", [None, "text", 1, 1.5, bytearray(30), memoryview(bytes(30))])
def test_what_is_not_bytes_is_damaged(stored):
    """A column that holds anything else is damaged."""
    assert isinstance(unseal("k", stored), Damaged)


@pytest.mark.parametrize("key", ["", "ä", "a\0b", "\ud800", b"k", 1, 1.0, None, ("a",), "k" * (LONGEST_KEY + 1)])
def test_keys_that_could_be_mistaken_are_refused(key):
    """Only ASCII str without NUL are keys: others can be equal to one another, or be stored in several ways."""
    with pytest.raises(InvalidArgument):
        check_key(key)


async def test_planted_pickles_are_never_run(tmp_path):
    """Pickles planted as key and as value run no code in any call, no file goes that a row names, and the others load."""
    fired, precious = tmp_path / "fired", tmp_path / "precious"
    precious.touch()
    trap = pickle.dumps(Trap(fired))
    storage = Storage.open(tmp_path / "journal")
    storage.enqueue([("good", b"1"), ("bad", b"2")])
    await storage.flush()
    with closing(sqlite3.connect(tmp_path / "journal" / "cache.db")) as connection, connection:
        connection.execute("UPDATE Cache SET mode = 4, value = ? WHERE key = 'bad'", (trap,))
        connection.execute("INSERT INTO Cache (key, raw, mode, value) VALUES (?, 0, 4, ?)", (trap, trap))
        connection.execute("INSERT INTO Cache (key, raw, mode, value) VALUES (?, 1, 0, 1)", (trap,))
        connection.execute("INSERT INTO Cache (key, raw, mode, filename) VALUES ('filed', 1, 2, ?)", (str(precious),))

    found = await storage.read(["good", "bad", "filed"])

    assert b"1" == found["good"]
    assert "pickled" in found["bad"].reason
    assert "file" in found["filed"].reason
    assert ["bad", "filed", "good"] == await storage.keys()
    assert ["foreign"] * 4 == [finding.kind for finding in await storage.check() if finding.kind != "sqlite"]
    assert isinstance(await storage.transact(lambda rows: rows.get("bad")), Damaged)
    storage.enqueue([("bad", New(b"3")), ("filed", None)])
    assert {"bad": b"3"} == await storage.read(["bad", "filed"])
    await storage.flush()
    assert {"bad": b"3"} == await storage.read(["bad", "filed"])
    await storage.close()
    assert not fired.exists()
    assert precious.exists()


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), CHANGES), max_size=4), max_size=6), st.data())
def test_calls_come_to_what_their_rows_come_to_one_by_one(calls, data):
    """Folding changes of several calls into one gives what making them in order gives."""
    before = data.draw(st.dictionaries(st.sampled_from("abc"), st.binary(max_size=3)))
    expected = dict(before)
    for key, change in (row for call in calls for row in call):
        if change is None:
            expected.pop(key, None)
        elif isinstance(change, New):
            expected.setdefault(key, change.value)
        else:
            expected[key] = change

    folded = combined(PendingCall(number, checked_changes(call), 0) for number, call in enumerate(calls))
    actual = dict(before)
    for key, change in folded.items():
        if change is None:
            actual.pop(key, None)
        elif isinstance(change, New):
            actual.setdefault(key, change.value)
        else:
            actual[key] = change

    assert expected == actual


def test_the_size_of_changes_is_what_is_written():
    """Keys and values count, deletes by their key."""
    assert 3 + 2 + 4 == size_of({"a": b"12", "bc": None, "d": New(b"123")})
