"""The one space of handles: ``fd:<n>``, ``ref:<id>`` and ``ref:<id>@<version>``."""

from __future__ import annotations

import re
from typing import Final

import attrs

from mama_structs.errors import InvalidHandle

# A model chooses these ids; they never become file names.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")
ID_RULE: Final = "1 to 64 of the letters A-Z and a-z, digits, _ . and -, beginning with a letter or digit"
_HINT: Final = "write fd:1, ref:name, or ref:name@1 for a version"


def is_ref_id(text: str) -> bool:
    """Tell whether a ref may have this id."""
    return _ID.fullmatch(text) is not None


@attrs.frozen
class FdHandle:
    """
    A large input or result: ``fd:<number>``.

    Args:
        number: From 1.

    """

    number: int

    def __str__(self) -> str:
        return f"fd:{self.number}"


@attrs.frozen
class RefHandle:
    """
    A marked part of a model's answer: ``ref:<id>``, or ``ref:<id>@<version>``.

    Args:
        id: As the model wrote it.
        version: From 1; None for the newest.

    """

    id: str
    version: int | None = None

    def __str__(self) -> str:
        return f"ref:{self.id}" if self.version is None else f"ref:{self.id}@{self.version}"


Handle = FdHandle | RefHandle


def parse_handle(text: object) -> Handle:
    """
    Read a handle.

    Raises:
        InvalidHandle: It is none.

    """
    if isinstance(text, FdHandle | RefHandle):
        return text
    if not isinstance(text, str):
        raise InvalidHandle(f"a handle must be text, got {type(text).__name__}", hint=_HINT)
    kind, _, name = text.partition(":")
    if kind == "fd" and _NUMBER.fullmatch(name):
        return FdHandle(int(name))
    if kind == "ref":
        ref_id, at, version = name.partition("@")
        if is_ref_id(ref_id) and (not at or _NUMBER.fullmatch(version)):
            return RefHandle(ref_id, int(version) if at else None)
    shown = text if len(text) <= 80 else f"{text[:80]}…"  # noqa: PLR2004
    raise InvalidHandle(f"{shown!r} is no handle", handle=shown, hint=_hint_for(text))


def _hint_for(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return f"did you mean fd:{text}?"
    if is_ref_id(text):
        return f"did you mean ref:{text}?"
    return _HINT
