"""What the parser of ``<ref>`` tags reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

DiagnosticKind = Literal[
    "unclosed",
    "nested",
    "missing_id",
    "invalid_id",
    "malformed",
    "too_long",
    "too_deep",
    "stray_close",
    "in_code",
    "new_version",
    "invalid_text",
    "quota_exceeded",
]

_NOTES: Final = frozenset({"nested", "new_version"})


@attrs.frozen
class Text:
    """
    Text outside every ref, as it came.

    Args:
        text: Never empty.

    """

    text: str


@attrs.frozen
class RefStart:
    """
    A ref begins.

    Args:
        id: As it was written.
        attributes: All attributes but the id, names in lower case, values as they were written.
        position: The first character of the tag, counted from 1 in the text that was scanned; no part of equality.

    """

    id: str
    attributes: Mapping[str, str]
    position: int = attrs.field(default=0, kw_only=True, eq=False)


@attrs.frozen
class RefText:
    """
    Text inside the refs that are open, as it came, their first and last line breaks included.

    Args:
        text: Never empty.

    """

    text: str


@attrs.frozen
class RefEnd:
    """
    The innermost open ref ends.

    Args:
        id: Of the ref.
        complete: False when the text ended before the ref was closed.
        position: The first character behind it, counted from 1 in the text that was scanned; no part of equality.

    """

    id: str
    complete: bool
    position: int = attrs.field(default=0, kw_only=True, eq=False)


@attrs.frozen
class Diagnostic:
    """
    Something about a tag that its author may not have meant.

    Args:
        kind: A word for programs.
        id: Of the ref that it is about, None where no id can be read.
        position: The first character of the tag, counted from 1 in the text that was scanned.
        message: What happened and what to write instead, for a model.

    """

    kind: DiagnosticKind
    id: str | None
    position: int
    message: str

    @property
    def is_note(self) -> bool:
        """Whether it only says what was done: a nested ref, a new version."""
        return self.kind in _NOTES


Event = Text | RefStart | RefText | RefEnd | Diagnostic
