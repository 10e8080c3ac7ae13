"""
Ids in payloads: which strings are ids, under which field, in which row; and what a payload is about.

A detection costs about as much as ``json.dumps`` of the same payload (``benchmarks/detection.py``), which is why
the walk keeps no object per value and remembers what it decided about a string and about a field name.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from mama_structs._plain import SCALARS, as_mapping, plain_of, unstructure
from mama_structs.references.options import Kind
from mama_structs.references.schemes import MAX_ID_LENGTH, IdScheme

_log = logging.getLogger("mama_structs")

# From this depth on the walk remembers where it is, so that a cycle ends; real payloads never get here.
_CAREFUL_DEPTH: Final = 64
# Containers entered before the walk gives up; only containers shared by others, level by level, are so many.
_MAX_CONTAINERS: Final = 500_000
# The same for the careful walk: from each of n objects that all hold each other, it would walk n! paths.
_MAX_CAREFUL: Final = 250_000
# Members read of an array that is no list: a class of a host's own may have no end.
_MAX_MEMBERS: Final = 500_000
_MAX_EMBEDDED: Final = 2**20
# Space that JSON in a text may begin with.
_MARGIN: Final = 64
_REMEMBERED: Final = 2**16

PayloadKind = Literal["query", "list"]

SECTION: Final = "references"
META: Final = "references_meta"

# Envelopes within envelopes (`{"data": {"Player": {"id": ...}}}`) are followed so far.
_ENVELOPES: Final = 3
# An envelope has few members; what has more is data.
_ENVELOPE_MEMBERS: Final = 16

# Where a container stands: its parent's place and the key below it; None is the payload itself.
Pointed = tuple[Any, Any] | None


@attrs.frozen(eq=False)
class FieldRule:
    """What a field's name means for ids of one type; decided once for each name, and shared by what is found there."""

    type: str
    field: Any
    primary: bool
    accepted: bool
    denied: bool


class Found(tuple[str, FieldRule, int | None, Pointed, Any]):
    """One occurrence of an id in a payload; a tuple underneath, since a large payload has tens of thousands."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Found {self.type} {self.id} at {self.pointer}>"

    @property
    def id(self) -> str:
        """The id."""
        return self[0]

    @property
    def type(self) -> str:
        """The name of its type, such as ``planet``."""
        return self[1].type

    @property
    def field(self) -> str:
        """The name of the field that holds it; in an array the array's name."""
        return str(self[1].field)

    @property
    def primary(self) -> bool:
        """Whether the field holds a direct relation."""
        return self[1].primary

    @property
    def row(self) -> int | None:
        """The number of the list's row that holds it, from 0; None outside the rows."""
        return self[2]

    @property
    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of the string that holds it."""
        return pointer(self[3], self[4])


def pointer(place: Pointed, key: Any) -> str:
    """Return the JSON pointer of *key* in the container at *place*; inside embedded JSON, of the text that holds it."""
    keys = [key]
    while place is not None:
        place, key = place
        if key is _Embedded:
            keys.clear()
        else:
            keys.append(key)
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in reversed(keys))


@attrs.define
class Scan:
    """What a walk found, in payload order: ids, and look-alikes of a type that their field does not hold."""

    found: list[Found] = attrs.field(factory=list)
    lookalikes: list[Found] = attrs.field(factory=list)
    # False when the payload was too large to be walked whole.
    complete: bool = True


@attrs.frozen(eq=False)
class IdKind:
    """A type of one scheme, and the rules for its ids by the name of the field that holds them."""

    name: str
    scheme: IdScheme
    rules: dict[Any, FieldRule] = attrs.field(init=False, factory=dict)

    def rule(self, field: Any) -> FieldRule:
        """Decide on the rule for *field*, which must be hashable, and remember it."""
        scheme = self.scheme
        expected = scheme.expected(field) if isinstance(field, str) else None
        denied = field in scheme.deny or self.name in scheme.unresolvable
        if len(self.rules) >= _REMEMBERED:
            self.rules.clear()
        self.rules[field] = rule = FieldRule(
            type=self.name,
            field=field,
            primary=scheme.primary is None or field in scheme.primary,
            accepted=not denied and (expected is None or self.name in expected),
            denied=denied,
        )
        return rule


def _kinds_of(scheme: IdScheme) -> Callable[[re.Match[str]], IdKind | None]:
    """Return the scheme's `type_of` with kinds in place of names."""
    kind = functools.cache(lambda name: None if name is None else IdKind(str(name), scheme))
    type_of = scheme.type_of
    if not isinstance(type_of, Mapping):
        return lambda matched: kind(type_of(matched[0]))
    kind_of = {group: kind(name) for group, name in type_of.items()}.get
    return lambda matched: kind_of(matched[1])


class Detector:
    """Finds the ids of some schemes: a string belongs to the first whose pattern it matches."""

    def __init__(self, schemes: Sequence[IdScheme]) -> None:
        self.own_fields: tuple[str, ...] = tuple(dict.fromkeys(n for s in schemes for n in sorted(s.own)))
        self.skipped: frozenset[str] = frozenset().union(*(scheme.deny_subtrees for scheme in schemes))
        # Payloads repeat ids all the time: what was decided about a string is remembered, False where it is no id.
        self._known: dict[str, IdKind | Literal[False]] = {}
        self._matchers = [(scheme.pattern.fullmatch, _kinds_of(scheme)) for scheme in schemes]
        contains = {scheme.contains for scheme in schemes}
        self._contains = contains.pop() if len(contains) == 1 else ""
        self._bare = {field: prefix for scheme in schemes for field, prefix in scheme.bare.items()}
        self._embedded = frozenset().union(*(scheme.embedded for scheme in schemes))
        self._special = frozenset(self._bare) | self._embedded

    def kind(self, text: object) -> IdKind | None:
        """Return the kind of the id *text*, None when it is no id."""
        if type(text) is not str:
            return None
        kind = self._known.get(text)
        return (self._decide(text) if kind is None else kind) or None

    def _decide(self, text: str) -> IdKind | Literal[False]:
        if len(text) > MAX_ID_LENGTH:  # What is remembered must be small.
            return False
        for fullmatch, kind_of in self._matchers:
            matched = fullmatch(text)
            if matched is not None and (kind := kind_of(matched)) is not None:
                self._known[text] = kind
                return kind
        self._known[text] = False
        return False

    def scan(
        self,
        payload: Mapping[str, Any],
        *,
        rows: object = None,
        exclude: Collection[str] = frozenset(),
        skip: Collection[str] = (),
        place: Pointed = None,
    ) -> Scan:
        """Return every occurrence of an id, but for those in *exclude* and below *skip*, in the payload's own order."""
        members = [(key, value) for key, value in payload.items() if key not in skip] if skip else payload.items()
        for careful in (False, True):
            scan = Scan()
            if self._walk(scan, payload, members, rows=rows, exclude=exclude, place=place, careful=careful):
                break
        if len(self._known) > _REMEMBERED:
            # The next payload is more likely to repeat itself than this one.
            self._known.clear()
        if scan.lookalikes:
            message = (
                "skipped %d probable false positives, ids of a type that their field does not hold; first: %s in %r"
            )
            _log.info(message, len(scan.lookalikes), scan.lookalikes[0].id, scan.lookalikes[0].field)
        return scan

    def _walk(  # noqa: C901, PLR0912, PLR0915 - one loop, since a call for each value would double the time
        self,
        scan: Scan,
        container: Any,
        members: Iterable[tuple[Any, Any]],
        *,
        rows: object,
        exclude: Collection[str],
        place: Pointed,
        careful: bool,
    ) -> bool:
        """Walk once; False when the payload needs the careful walk, which remembers its path to end cycles."""
        add, known, decide = scan.found.append, self._known.get, self._decide
        contains, skipped, special = self._contains, self.skipped, self._special
        walking: Iterator[tuple[Any, Any]] = iter(self._expand(scan, container, members))
        name: Any = None  # The name of the array that is walked; None in a mapping, where keys are names.
        row: int | None = None
        in_rows = False
        path = {id(container)}
        stack: list[tuple[Iterator[tuple[Any, Any]], Pointed, Any, Any]] = []
        entered, most = 0, _MAX_CAREFUL if careful else _MAX_CONTAINERS
        while True:
            for key, value in walking:
                kind_of_value = type(value)
                if kind_of_value is str:
                    if contains in value:
                        if (kind := known(value)) is None:
                            kind = decide(value)
                        if kind and value not in exclude:
                            field = key if name is None else name
                            rule = kind.rules.get(field) or kind.rule(field)
                            if rule.accepted:
                                add(Found((value, rule, key if in_rows else row, place, key)))
                            elif not rule.denied:
                                scan.lookalikes.append(Found((value, rule, key if in_rows else row, place, key)))
                    continue
                if kind_of_value is dict:
                    if not value or key in skipped:
                        continue
                    below = value.items()
                    if not value.keys().isdisjoint(special):
                        below = self._expand(scan, value, below)
                    below_name, below_place = None, (place, key)
                elif kind_of_value is list:
                    if not value or key in skipped:
                        continue
                    below = enumerate(value)
                    below_name, below_place = key if name is None else name, (place, key)
                elif kind_of_value in SCALARS or key in skipped:
                    continue
                else:
                    below_place = (place, key)
                    if kind_of_value is _Embedded:
                        value, below_place = value.content, (below_place, _Embedded)  # noqa: PLW2901
                    opened = self._open(scan, value)
                    if opened is None:
                        continue
                    below, what = opened
                    if what is str:
                        below_place = (below_place, _Embedded)
                    below_name = None if what is dict else key if name is None else name
                if len(stack) >= _CAREFUL_DEPTH and not careful:
                    return False
                if careful:
                    if id(value) in path:
                        continue
                    path.add(id(value))
                entered += 1
                if entered > most:
                    scan.complete = False
                    return True
                if in_rows:
                    row = key
                stack.append((walking, place, name, container))
                walking, place, name, container = iter(below), below_place, below_name, value
                in_rows = value is rows
                break
            else:
                if not stack:
                    return True
                if careful:
                    path.discard(id(container))
                if in_rows:
                    row = None
                walking, place, name, container = stack.pop()
                in_rows = container is rows

    def _open(self, scan: Scan, value: Any) -> tuple[Iterable[tuple[Any, Any]], type] | None:
        """Return the members of what is no plain dict or list, and whether it is a text, an array or a dict."""
        try:
            plain = plain_of(value)
            if plain is None:
                return None
            if isinstance(plain, str):
                return ((0, plain),), str
            if isinstance(plain, Mapping):
                return list(self._expand(scan, plain, plain.items())), dict
            members = list(itertools.islice(enumerate(plain), _MAX_MEMBERS + 1))
        except Exception:  # noqa: BLE001 - a host's class may fail at anything; what is beside it counts all the same
            _log.info("an object of type %s cannot be read and was not searched for ids", type(value).__name__)
            return None
        scan.complete = scan.complete and len(members) <= _MAX_MEMBERS
        return members[:_MAX_MEMBERS], list

    def _expand(
        self, scan: Scan, container: Mapping[Any, Any], members: Iterable[tuple[Any, Any]]
    ) -> Iterable[tuple[Any, Any]]:
        """Replace bare numbers by the ids they stand for, and JSON in known fields by what it says."""
        if container.keys().isdisjoint(self._special):
            return members
        return [(key, self._special_value(scan, key, value)) for key, value in members]

    def _special_value(self, scan: Scan, key: Any, value: Any) -> Any:
        try:
            text = str.__str__(value) if isinstance(value, str) else ""
            if key in self._bare:
                # A longer number is no id, and Python refuses to write one of more than 4,300 digits.
                if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**MAX_ID_LENGTH:
                    text = str(int(value))
                is_index = text.isascii() and text.isdecimal() and not text.startswith("0")
                return self._bare[key] + text if is_index else value
            if key in self._embedded and text[:_MARGIN].lstrip()[:1] in ("[", "{"):
                if len(text) > _MAX_EMBEDDED:
                    scan.complete = False
                    return value
                return _Embedded(json.loads(text))
        except Exception:  # noqa: BLE001 - no JSON after all, or nested too deep; or an object that fails at anything
            return value
        return value


@attrs.frozen
class _Embedded:
    """JSON that stood in a text; its members' pointers end at the text."""

    content: Any


@attrs.frozen
class PayloadShape:
    """What a payload is about: *own* are the ids that it itself is, *main* the id that a query is about."""

    kind: PayloadKind
    # The list itself, None for a query.
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
    payload: Mapping[str, Any], detector: Detector, *, kind: Kind = "auto", subject: str | None = None
) -> PayloadShape:
    """Say what *payload* is about; ``"auto"`` is a list where the main value is an array of entities."""
    rows = None if kind == "query" else _main_array(payload, detector, strict=kind == "auto")
    if rows is None:
        own = _own_id(payload, detector, _ENVELOPES)
        shown: PayloadKind = "list" if kind == "list" else "query"
        return PayloadShape(shown, None, _without_none(own, subject), own if subject is None else subject)
    ids = tuple([_own_id(row, detector, _ENVELOPES, is_row=True) for row in rows])
    return PayloadShape("list", rows, _without_none(*ids, subject), subject, ids)


def _without_none(*ids: str | None) -> frozenset[str]:
    return frozenset(entity_id for entity_id in ids if entity_id is not None)


def _own_id(value: object, detector: Detector, envelopes: int, *, is_row: bool = False) -> str | None:
    """Return the id of the entity that *value* is, or that stands in its envelope."""
    mapping = value if type(value) is dict else as_mapping(value)
    if mapping is None:
        return None
    if (own := _held_id(mapping, detector)) is not None:
        return own
    # What says its own id in another form is no envelope; nor is a row that itself names ids: what is below is related.
    if not envelopes or any(mapping.get(field) is not None for field in detector.own_fields):
        return None
    if is_row and any(detector.kind(member) is not None for member in mapping.values()):
        return None
    for _, member in itertools.islice(_members(mapping, detector), _ENVELOPE_MEMBERS):
        if (found := _own_id(member, detector, envelopes - 1, is_row=is_row)) is not None:
            return found
    return None


def _held_id(mapping: Mapping[str, Any], detector: Detector) -> str | None:
    """Return the id that *mapping* itself holds as its own."""
    for field in detector.own_fields:
        value = mapping.get(field)
        if value is None:
            continue
        # Whatever object the payload holds an id in.
        plain = value if type(value) is str else unstructure(value)
        text = str.__str__(plain) if isinstance(plain, str) else None
        kind = detector.kind(text)
        if kind is not None and field in kind.scheme.own:
            return text
    return None


def _members(mapping: Mapping[str, Any], detector: Detector) -> Iterator[tuple[str, Any]]:
    """Yield the containers of an envelope that can hold its entities."""
    for key, value in mapping.items():
        if type(value) in SCALARS or key in (SECTION, META) or key in detector.skipped:
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
