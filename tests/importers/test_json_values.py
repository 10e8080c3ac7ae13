"""Parsing of JSON that other programs write."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.importers.shared.json_values import (
    INVALID_JSON,
    MAX_FAILED_PARSES,
    iter_json_values,
    read_json,
    repair_json,
)

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None)))
VALUES = st.recursive(SCALARS, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=8)


@given(value=VALUES)
def test_repair_json_returns_strict_json(value):
    """A repaired value can be written as strict JSON; a valid value is returned unchanged."""
    repaired, note = repair_json(read_json(json.dumps([value])))
    written = json.dumps(repaired, allow_nan=False, ensure_ascii=False).encode()

    assert repaired == json.loads(written)
    assert repair_json(repaired) == (repaired, None)
    assert note is None or repaired != [value]


def test_repair_json_replaces_surrogates_and_non_finite_numbers():
    value = {"a\ud800": ["b\udfff", "\U0001f600", math.inf, -math.inf, 1.5]}

    assert {"a\ufffd": ["b\ufffd", "\U0001f600", "Infinity", "-Infinity", 1.5]} == repair_json(value)[0]


@given(values=st.lists(st.dictionaries(st.text(), st.integers() | st.text())), indent=st.none() | st.integers(0, 2))
def test_iter_json_values_yields_every_value_with_its_line(values, indent):
    """All objects are found, in the order and on the lines in which they were written."""
    found = list(iter_json_values("\n".join(json.dumps(one, indent=indent) for one in values)))

    assert values == [value for _, value in found]
    assert all(first < second for (first, _), (second, _) in pairwise(found))


@given(text=st.text(alphabet='{}[]",:1a\n\0 ', max_size=60))
def test_iter_json_values_accepts_any_text(text):
    """Any text is read to its end; a line without values is reported once."""
    invalid = [line for line, value in iter_json_values(text) if value is INVALID_JSON]

    assert sorted(set(invalid)) == invalid


@pytest.mark.parametrize("start", ["[1,", '{"a":[', "1 {", '["'])
def test_iter_json_values_does_linear_work_for_unclosed_brackets(start, monkeypatch):
    """If many values are unfinished, each part of the text is parsed a few times only."""
    parsed = 0
    real = json.JSONDecoder.raw_decode

    def counted(self, text, at=0):
        nonlocal parsed
        try:
            _, end = real(self, text, at)
        except json.JSONDecodeError as error:
            end = error.pos
            raise
        except RecursionError:
            end = len(text)
            raise
        finally:
            parsed += end - at
        return _, end

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    text = f"{start}\n" * 500 + "1,\n" * 5_000

    assert 500 <= len(list(iter_json_values(text)))
    assert (MAX_FAILED_PARSES + 3) * len(text) > parsed
