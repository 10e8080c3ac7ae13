"""Classification of a payload as one entity or a list of entities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from mama_structs._internal.jsonable import SCALAR_TYPES, as_mapping
from mama_structs.references.detection import META_KEY, SECTION_KEY, IdDetector
from mama_structs.references.matches import ScanResult
from mama_structs.references.options import Kind
from mama_structs.references.section import MEMORIES_KEY, is_section

PayloadKind = Literal["query", "list"]
Rows = list[Any] | tuple[Any, ...]

# Maximum nesting of envelopes, such as `{"data": {"Player": {"id": ...}}}`.
_MAX_ENVELOPE_DEPTH: Final = 3
# Maximum number of members of an envelope. Also the number of rows that are searched for entities.
_MAX_ENVELOPE_MEMBERS: Final = 16
# Names of entity lists that are nested one level deep, in addition to the plurals of type names.
_NESTED_LIST_NAMES: Final = frozenset({"data", "items", "results", "records", "rows"})
# Names of JSON:API arrays that never contain the main entities.
_NON_LIST_NAMES: Final = frozenset({"included", "errors"})


@attrs.frozen
class PayloadShape:
    """
    Kind of a payload, and the ids of the entities that it contains.

    *own_ids* are all these ids. *main_id* is the id of the single entity of a query.
    """

    kind: PayloadKind
    # The array of entities; None if the payload is a query.
    rows: Rows | None
    own_ids: frozenset[str]
    main_id: str | None
    _row_ids: tuple[str | None, ...] = ()

    def find_holder_id(self, row: int | None) -> str | None:
        """Return the id of the entity in row *row* of the list, or the payload's main id if *row* is None."""
        if row is None or self.rows is None:
            return self.main_id
        return self._row_ids[row]


def classify_payload(
    payload: Mapping[str, Any], detector: IdDetector, *, kind: Kind = "auto", subject: str | None = None
) -> PayloadShape:
    """
    Classify *payload* as one entity (``"query"``) or as a list of entities.

    With ``kind="auto"`` it is a list if it has exactly one array of entities.
    """
    name, rows = ("", None) if kind == "query" else _find_only_list(payload, detector)
    if rows is None and kind == "list":
        name, rows = _find_first_array(payload, detector, _MAX_ENVELOPE_DEPTH)
    if rows is None:
        own = _find_own_id(payload, detector, _MAX_ENVELOPE_DEPTH)
        shown: PayloadKind = "list" if kind == "list" else "query"
        return PayloadShape(shown, None, _drop_none(own, subject), own if subject is None else subject)
    ids = _find_row_ids(rows, name, detector)
    return PayloadShape("list", rows, _drop_none(*ids, subject), subject, tuple(ids))


def _drop_none(*ids: str | None) -> frozenset[str]:
    return frozenset(ids) - {None}  # type: ignore[return-value]


def _find_only_list(payload: Mapping[str, Any], detector: IdDetector) -> tuple[str, Rows | None]:
    """
    Return the name and rows of the only array of entities at the top or one level down.

    Return ``("", None)`` if there is no such array, several of them, or an entity next to it.
    """
    arrays: list[tuple[str, Rows]] = []
    levels: list[tuple[str, Mapping[str, Any]]] = [("", payload)]
    for depth, (holder, mapping) in enumerate(levels):
        members = list(itertools.islice(_iter_containers(mapping, detector), _MAX_ENVELOPE_MEMBERS))
        below = [(key, as_mapping(value) or {}) for key, value in members if not isinstance(value, list | tuple)]
        any_name = depth == 0 or _is_list_name(holder, detector)
        here = [
            (key, value)
            for key, value in members
            if isinstance(value, list | tuple)
            and key not in _NON_LIST_NAMES
            and (any_name or _is_list_name(key, detector))
        ]
        here = [(key, rows) for key, rows in here if any(_find_row_ids(rows[:_MAX_ENVELOPE_MEMBERS], key, detector))]
        if detector.find_own_id(mapping, holder) is not None:
            return "", None
        if depth == 0:
            levels += below
        elif here and any(detector.find_own_id(one, key) is not None for key, one in below):
            return "", None
        arrays += here
    return arrays[0] if len(arrays) == 1 else ("", None)


def _is_list_name(name: object, detector: IdDetector) -> bool:
    return isinstance(name, str) and (name.lower() in _NESTED_LIST_NAMES or name.lower() in detector.list_names)


def _find_first_array(payload: Mapping[str, Any], detector: IdDetector, max_envelopes: int) -> tuple[str, Rows | None]:
    """Return the first array at the top level, or else in the first nested mapping, recursively."""
    members = list(itertools.islice(_iter_containers(payload, detector), _MAX_ENVELOPE_MEMBERS))
    for key, value in members:
        if isinstance(value, list | tuple):
            return key, value
    inner = as_mapping(members[0][1]) if members and max_envelopes else None
    return _find_first_array(inner, detector, max_envelopes - 1) if inner else ("", None)


def _find_row_ids(rows: Rows, name: str, detector: IdDetector) -> list[str | None]:
    """Return the id of the entity in each row, or None for a row without an id."""
    field, known = detector.own_fields[0] if detector.own_fields else None, detector.types_by_text
    # Fast path for a dict whose own id determines its type: a function call per row would double the time.
    return [
        text
        if type(row) is dict
        and type(text := row.get(field)) is str
        and (kind := known[text]) is not None
        and field in kind.scheme.own
        else _find_own_id(row, detector, _MAX_ENVELOPE_DEPTH, name, is_row=True)
        for row in rows
    ]


def _find_own_id(
    value: object, detector: IdDetector, max_envelopes: int, holder_name: str = "", *, is_row: bool = False
) -> str | None:
    """Return the id of the entity in *value*, with or without an envelope, or None."""
    mapping = value if type(value) is dict else as_mapping(value)
    if mapping is None:
        return None
    if (own := detector.find_own_id(mapping, holder_name)) is not None:
        return own
    # A mapping with an id of unknown form, or a row with references, is no envelope. It contains related entities only.
    if not max_envelopes or any(mapping.get(field) is not None for field in detector.own_fields):
        return None
    if is_row and any(detector.find_type(member) is not None for member in mapping.values()):
        return None
    for key, member in itertools.islice(_iter_containers(mapping, detector), _MAX_ENVELOPE_MEMBERS):
        if (found := _find_own_id(member, detector, max_envelopes - 1, key, is_row=is_row)) is not None:
            return found
    return None


def _iter_containers(mapping: Mapping[str, Any], detector: IdDetector) -> Iterator[tuple[str, Any]]:
    """Yield the non-empty containers in an envelope that may contain the payload's entities."""
    for key, value in mapping.items():
        if type(value) in SCALAR_TYPES or key in (SECTION_KEY, META_KEY) or key in detector.skipped_fields:
            continue
        if isinstance(value, dict | list | tuple):
            if value:
                yield key, value
        elif as_mapping(value) is not None:
            yield key, value


def classify_and_scan(
    mapping: Mapping[str, Any], detector: IdDetector, *, kind: Kind, subject: object
) -> tuple[PayloadShape, ScanResult]:
    """Classify a payload and find its ids, but not those in a section that an earlier call added."""
    shape = classify_payload(mapping, detector, kind=kind, subject=None if subject is None else str(subject))
    skip = (SECTION_KEY, META_KEY, MEMORIES_KEY) if is_section(mapping.get(SECTION_KEY), mapping.get(META_KEY)) else ()
    main = None if shape.main_id is None else detector.find_type(shape.main_id)
    about = "" if main is None else main.name
    return shape, detector.scan(mapping, rows=shape.rows, exclude=shape.own_ids, skip_fields=skip, main_type=about)
