"""The stored form of rows: their checksums, and their robustness against damage."""

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
    MAX_KEY_CHARS,
    DamagedValue,
    NewValue,
    PendingCall,
    check_key,
    merge_calls,
    merge_changes,
    seal,
    total_bytes,
    unseal,
)
from mama_structs.storage.sqlite_store import SqliteStorage

KEYS = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=40)
CHANGES = st.none() | st.binary(max_size=5) | st.builds(NewValue, st.binary(max_size=5))


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@given(key=KEYS, value=st.binary())
def test_unseal_returns_sealed_value(key, value):
    """A value is returned unchanged under its own key."""
    assert value == unseal(key, seal(key, value))


@given(key=KEYS, other=KEYS, value=st.binary())
def test_unseal_detects_swapped_rows(key, other, value):
    """A value stored under another key is damaged, and never returned."""
    assert (key == other) == isinstance(unseal(other, seal(key, value)), bytes)


@given(key=KEYS, value=st.binary(max_size=200), data=st.data())
def test_unseal_detects_any_flipped_bit(key, value, data):
    """A single flipped bit makes a row damaged."""
    sealed = bytearray(seal(key, value))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8

    assert isinstance(unseal(key, bytes(sealed)), DamagedValue)


@given(key=KEYS, value=st.binary(max_size=200), data=st.data())
def test_unseal_detects_truncated_or_extended_row(key, value, data):
    """A row with missing or additional bytes at its end is damaged."""
    sealed = seal(key, value)
    cut = data.draw(st.integers(0, len(sealed) - 1))

    assert isinstance(unseal(key, sealed[:cut]), DamagedValue)
    assert isinstance(unseal(key, sealed + b"\0"), DamagedValue)


@given(key=KEYS, tail=st.binary(min_size=1, max_size=3))
def test_checksum_separates_key_and_value(key, tail):
    """Moving bytes from the value to the key changes the checksum."""
    longer = key + tail.hex()

    assert seal(longer, b"")[4:20] != seal(key, tail.hex().encode())[4:20]


@pytest.mark.parametrize("stored", [None, "text", 1, 1.5, bytearray(30), memoryview(bytes(30))])
def test_unseal_reports_other_types_as_damaged(stored):
    """A stored value that is not bytes is damaged."""
    assert isinstance(unseal("k", stored), DamagedValue)


@pytest.mark.parametrize("key", ["", "ä", "a\0b", "\ud800", b"k", 1, 1.0, None, ("a",), "k" * (MAX_KEY_CHARS + 1)])
def test_check_key_rejects_ambiguous_keys(key):
    """Keys must be ASCII without NUL, because other keys may compare equal or have several stored forms."""
    with pytest.raises(InvalidArgument):
        check_key(key)


async def test_pickled_rows_are_never_unpickled(tmp_path):
    """Planted pickles run no code, files named by rows are not deleted, and other rows are readable."""
    fired, precious = tmp_path / "fired", tmp_path / "precious"
    precious.touch()
    trap = pickle.dumps(Trap(fired))
    storage = SqliteStorage.open(tmp_path / "journal")
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
    assert isinstance(await storage.transact(lambda rows: rows.get("bad")), DamagedValue)
    storage.enqueue([("bad", NewValue(b"3")), ("filed", None)])
    assert {"bad": b"3"} == await storage.read(["bad", "filed"])
    await storage.flush()
    assert {"bad": b"3"} == await storage.read(["bad", "filed"])
    await storage.close()
    assert not fired.exists()
    assert precious.exists()


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), CHANGES), max_size=4), max_size=6), st.data())
def test_combined_calls_equal_consecutive_writes(calls, data):
    """Merging the changes of several calls gives the same result as applying them one by one."""
    before = data.draw(st.dictionaries(st.sampled_from("abc"), st.binary(max_size=3)))
    expected = dict(before)
    for key, change in (row for call in calls for row in call):
        if change is None:
            expected.pop(key, None)
        elif isinstance(change, NewValue):
            expected.setdefault(key, change.value)
        else:
            expected[key] = change

    folded = merge_calls(PendingCall(number, merge_changes(call), 0) for number, call in enumerate(calls))
    actual = dict(before)
    for key, change in folded.items():
        if change is None:
            actual.pop(key, None)
        elif isinstance(change, NewValue):
            actual.setdefault(key, change.value)
        else:
            actual[key] = change

    assert expected == actual


def test_size_of_counts_keys_and_values():
    """A deletion counts the bytes of its key."""
    assert 3 + 2 + 4 == total_bytes({"a": b"12", "bc": None, "d": NewValue(b"123")})
