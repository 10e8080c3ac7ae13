"""What a payload is about: one entity, or a list of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from mama_structs._plain import SCALARS, as_mapping, unstructure
from mama_structs.references.detection import Detector

PayloadKind = Literal["query", "list"]

SECTION: Final = "references"
META: Final = "references_meta"

# Envelopes within envelopes (`{"data": {"Player": {"id": ...}}}`) are followed so far.
_ENVELOPES: Final = 3
# An envelope has few members; what has more is data.
_ENVELOPE_MEMBERS: Final = 16


@attrs.frozen
class Shape:
    """
    What a payload is about.

    Args:
        kind: Whether it answers a query or is a list.
        rows: The list itself, None for a query.
        own: The ids of the entities that the payload itself is: no references anywhere in it.
        main: The id of the entity that a query is about, None when there is none.

    """

    kind: PayloadKind
    rows: list[Any] | tuple[Any, ...] | None
    own: frozenset[str]
    main: str | None
    _row_ids: tuple[str | None, ...] = ()

    def holder(self, row: int | None) -> str | None:
        """Return the id of the entity that holds what stands in *row*, or outside the rows."""
        if row is None or self.rows is None:
            return self.main
        return self._row_ids[row]


def describe(
    payload: Mapping[str, Any],
    detector: Detector,
    *,
    kind: Literal["auto", "query", "list"] = "auto",
    subject: str | None = None,
) -> Shape:
    """
    Say what *payload* is about.

    Args:
        payload: A tool's answer.
        detector: Knows what an id looks like.
        kind: ``"auto"`` takes a payload whose main value is an array of entities for a list, any other for a query.
        subject: The id that was asked for, where the caller knows it.

    """
    rows = None if kind == "query" else _main_array(payload, detector, strict=kind == "auto")
    if rows is None:
        own = _own_id(payload, detector, _ENVELOPES)
        shown: PayloadKind = "list" if kind == "list" else "query"
        return Shape(shown, None, _without_none(own, subject), own if subject is None else subject)
    ids = tuple([_row_id(row, detector) for row in rows])
    return Shape("list", rows, _without_none(*ids, subject), subject, ids)


def _without_none(*ids: str | None) -> frozenset[str]:
    return frozenset(entity_id for entity_id in ids if entity_id is not None)


def _own_id(value: object, detector: Detector, envelopes: int, *, is_row: bool = False) -> str | None:
    """
    Return the id of the entity that *value* is, or that stands in its envelope.

    What says its own id in another form is no envelope; nor is a row that itself names ids:
    what stands below is then related to it.
    """
    mapping = value if type(value) is dict else as_mapping(value)
    if mapping is None:
        return None
    if (own := _held_id(mapping, detector)) is not None:
        return own
    if not envelopes or any(mapping.get(field) is not None for field in detector.own_fields):
        return None
    if is_row and any(detector.kind(member) is not None for member in mapping.values()):
        return None
    for _, member in itertools.islice(_members(mapping, detector), _ENVELOPE_MEMBERS):
        if (found := _own_id(member, detector, envelopes - 1, is_row=is_row)) is not None:
            return found
    return None


def _row_id(row: object, detector: Detector) -> str | None:
    own = _held_id(row, detector) if type(row) is dict else None
    return own if own is not None else _own_id(row, detector, _ENVELOPES, is_row=True)


def _held_id(mapping: Mapping[str, Any], detector: Detector) -> str | None:
    """Return the id that *mapping* itself holds as its own."""
    for field in detector.own_fields:
        value = mapping.get(field)
        if value is None:
            continue
        text = value if type(value) is str else _text(value)
        kind = detector.kind(text)
        if kind is not None and field in kind.scheme.own:
            return text
    return None


def _text(value: object) -> str | None:
    """Return an id's text, whatever object the payload holds it in."""
    if type(value) is str or value is None:
        return value
    plain = unstructure(value)
    return str.__str__(plain) if isinstance(plain, str) else None


def _members(mapping: Mapping[str, Any], detector: Detector) -> Iterator[tuple[str, Any]]:
    """Yield the containers of an envelope that can hold its entities."""
    for key, value in mapping.items():
        if type(value) in SCALARS or key in (SECTION, META) or detector.is_skipped(key):
            continue
        if isinstance(value, dict | list | tuple):
            if value:
                yield key, value
        elif as_mapping(value) is not None:
            yield key, value


def _main_array(
    payload: Mapping[str, Any], detector: Detector, *, strict: bool, envelopes: int = _ENVELOPES
) -> list[Any] | tuple[Any, ...] | None:
    """Return the array that is the payload's main value: the only container beside its paging."""
    if strict and _held_id(payload, detector) is not None:
        return None
    members = [value for _, value in itertools.islice(_members(payload, detector), _ENVELOPE_MEMBERS)]
    if not strict:
        members = [value for value in members if isinstance(value, list | tuple)] or members
    if not members or (strict and len(members) > 1):
        return None
    main = members[0]
    if isinstance(main, list | tuple):
        first = main[:_ENVELOPE_MEMBERS]
        is_list = not strict or any(_own_id(row, detector, _ENVELOPES, is_row=True) is not None for row in first)
        return main if is_list else None
    inner = as_mapping(main)
    return _main_array(inner, detector, strict=strict, envelopes=envelopes - 1) if inner and envelopes else None
