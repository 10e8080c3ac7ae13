"""
What a ``<ref …>`` or ``</ref>`` tag looks like.

A tag begins with ``<ref`` or ``</ref``, in any case, before white space, ``/`` or ``>``; everything else (``<refs>``,
``<reference>``, ``<ref`` before a no-break space or at the end of the text) is no tag and not worth a word. White space
is what HTML calls so: space, tab, line feed, form feed, carriage return.

* An opening tag has attributes in any order. A name has no white space, quotes, ``<``, ``>``, ``/`` or ``=``. A value
  stands in double or single quotes, in which everything else is allowed; it is kept as written, without decoding
  ``&amp;``. A name without a value has the value ``""``. White space around ``=`` and between attributes is free. ``/``
  stands just before ``>`` or not at all. The first of a repeated attribute counts.
* A closing tag has nothing but white space before its ``>``.
* A tag has at most 512 characters.

What begins like a tag and breaks these rules is text, and said to be: malformed, too long, without id, with an invalid
id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from mama_structs.descriptors.events import DiagnosticKind
from mama_structs.descriptors.handles import ID_RULE, is_ref_id

MAX_TAG: Final = 512

# Possessive throughout, and no alternatives that begin alike: nothing is ever tried twice.
_SPACE: Final = r"[ \t\n\r\f]"
_NAME: Final = r"[^ \t\n\r\f\"'<>/=]++"
_REF: Final = r"[rR][eE][fF]"
_AFTER_NAME: Final = r"[ \t\n\r\f/>]"

# What stands behind the "<" of a tag, and of what may become a tag when the text goes on (\Z).
TAG_BEGINS: Final = rf"/?+{_REF}{_AFTER_NAME}"
TAG_MAY_BEGIN: Final = rf"/?+(?:\Z|[rR](?:\Z|[eE](?:\Z|[fF](?:\Z|{_AFTER_NAME}))))"

# Where the text ends before the tag does, the group "end" is unset: every part may be cut at \Z.
_OPENING: Final = re.compile(
    rf"""<{_REF}(?={_AFTER_NAME}|\Z)"""
    rf"""(?:{_SPACE}*+{_NAME}(?:{_SPACE}*+={_SPACE}*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|\Z))?+)*+"""
    rf"""{_SPACE}*+(?P<slash>/?+)(?:(?P<end>>)|\Z)"""
)
_CLOSING: Final = re.compile(rf"</{_REF}{_SPACE}*+(?:(?P<end>>)|\Z)")
_BEGINNING: Final = re.compile(r"<(?:/?+(?:[rR](?:[eE][fF]?+)?+)?+)\Z")
_ATTRIBUTE: Final = re.compile(
    rf"""(?P<name>{_NAME})(?:{_SPACE}*+={_SPACE}*+(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'))?+"""
)


@attrs.frozen
class OpeningTag:
    """
    A tag that begins a ref.

    Args:
        id: A valid one.
        attributes: All others.
        empty: Whether the tag ends the ref too: ``<ref id="a"/>``.
        end: The index behind the tag.

    """

    id: str
    attributes: Mapping[str, str]
    empty: bool
    end: int


@attrs.frozen
class ClosingTag:
    """
    A tag that ends a ref.

    Args:
        end: The index behind the tag.

    """

    end: int


@attrs.frozen
class Refused:
    """
    What begins like a tag and is text.

    Args:
        kind: Of the diagnostic.
        id: As it was written, None where none was read.
        message: For the diagnostic.

    """

    kind: DiagnosticKind
    id: str | None
    message: str


_MALFORMED: Final = Refused(
    "malformed",
    None,
    'this opening tag is not well formed and was left as text: write <ref id="name">, with every value in quotes',
)
_MALFORMED_CLOSING: Final = Refused(
    "malformed", None, "this closing tag is not well formed and was left as text: write </ref>, nothing else"
)
_UNFINISHED: Final = Refused("malformed", None, "the text ended inside this tag, which was left as text")
_TOO_LONG: Final = Refused(
    "too_long", None, f"this tag was left as text: a tag has at most {MAX_TAG} characters, its quotes must be closed"
)
_MISSING_ID: Final = Refused("missing_id", None, 'this tag has no id and was left as text: write <ref id="name">')


def read_tag(text: str, start: int, end: int, *, final: bool) -> OpeningTag | ClosingTag | Refused | None:
    """
    Read the tag that begins at an index.

    Args:
        text: The text.
        start: The index of a ``<`` before `TAG_BEGINS` or `TAG_MAY_BEGIN`.
        end: The index at which the text that may hold the tag ends.
        final: Whether the text will not go on at *end*; then it is `TAG_BEGINS`.

    Returns:
        The tag, or why it is none; None when that depends on how the text goes on.

    """
    limit = min(end, start + MAX_TAG)
    closing = text.startswith("</", start)
    match = (_CLOSING if closing else _OPENING).match(text, start, limit)
    if match is None:
        if not final and _BEGINNING.match(text, start, end):
            return None
        return _MALFORMED_CLOSING if closing else _MALFORMED
    if match["end"] is None:
        if limit == start + MAX_TAG:
            return _TOO_LONG
        return _UNFINISHED if final else None
    return ClosingTag(match.end()) if closing else _opening(text, match)


def _opening(text: str, match: re.Match[str]) -> OpeningTag | Refused:
    attributes: dict[str, str] = {}
    for attribute in _ATTRIBUTE.finditer(text, match.start() + len("<ref"), match.end()):
        name, double, single = attribute.groups()
        attributes.setdefault(name.lower(), double or single or "")
    ref_id = attributes.pop("id", None)
    if ref_id is None:
        return _MISSING_ID
    if not is_ref_id(ref_id):
        shown = ref_id if len(ref_id) <= 80 else f"{ref_id[:80]}…"  # noqa: PLR2004 - enough to know it again
        message = f"{shown!r} is no id, so this tag was left as text: an id is {ID_RULE}"
        return Refused("invalid_id", ref_id, message)
    return OpeningTag(ref_id, attributes, bool(match["slash"]), match.end())
