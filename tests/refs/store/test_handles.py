"""Handles: their format and their ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mama_structs.errors import InvalidHandle
from mama_structs.refs.markup.parser import is_ref_id
from mama_structs.refs.store.entries import FdHandle, RefHandle, parse_handle

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)
NUMBERS = st.integers(1, 10**18 - 1)


@given(handle=st.builds(FdHandle, NUMBERS) | st.builds(RefHandle, IDS, st.none() | NUMBERS))
def test_parse_handle_inverts_str(handle):
    """Formatting and parsing a handle gives the same handle."""
    assert handle == parse_handle(str(handle))
    assert handle == parse_handle(handle)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1", "did you mean fd:1?"),
        ("parser", "did you mean ref:parser?"),
        ("fd:0", "write fd:1"),
        ("fd:01", "write fd:1"),
        ("fd:-1", "write fd:1"),
        ("fd:fd:1", "write fd:1"),
        ("fd:\u0661", "write fd:1"),
        ("fd:1@1", "write fd:1"),
        ("FD:1", "write fd:1"),
        ("ref:", "write fd:1"),
        ("ref:a b", "write fd:1"),
        ("ref:../../etc/passwd", "write fd:1"),
        ("ref:a@0", "write fd:1"),
        ("ref:a@", "write fd:1"),
        ("ref:a@x", "write fd:1"),
        ("ref:" + "a" * 65, "write fd:1"),
        (" ref:a", "write fd:1"),
        ("ref:a\n", "write fd:1"),
        ("", "write fd:1"),
        (7, "write fd:1"),
        (None, "write fd:1"),
    ],
)
def test_parse_handle_raises_with_suggestion(text, hint):
    """The error describes the format, or suggests the probable handle."""
    with pytest.raises(InvalidHandle) as caught:
        parse_handle(text)

    assert caught.value.hint.startswith(hint)
    assert "invalid_id" == caught.value.type


def test_parse_handle_error_truncates_long_text():
    """The invalid handle may be a complete document."""
    with pytest.raises(InvalidHandle) as caught:
        parse_handle("ref:" + "x" * 100_000)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("ref_id", ["a", "A.b-c_9", "9", "a" * 64, "\u00e4", "한글-1", "план", "計画", "हिन्दी", "٣"])
def test_is_ref_id_accepts_valid_ids(ref_id):
    """Ids consist of letters and digits of any script, and three special characters."""
    assert is_ref_id(ref_id)


@pytest.mark.parametrize(
    "ref_id",
    [
        "",
        "-a",
        ".a",
        "_a",
        "a" * 65,
        "a b",
        "a/b",
        "\u0301a",
        "\u3164",
        "a\ufe0f",
        "a\u200d",
        "\u00b2",
        "a\n",
        "a@1",
        "a:b",
    ],
)
def test_is_ref_id_rejects_other_texts(ref_id):
    """These texts are not ids."""
    assert not is_ref_id(ref_id)


def test_parse_handle_normalizes_id():
    """Composed and decomposed letters give the same handle."""
    assert parse_handle("ref:\u00e4@1") == parse_handle("ref:a\u0308@1") == RefHandle("\u00e4", 1)
