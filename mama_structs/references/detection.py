"""
Ids in payloads: which strings are ids, under which field, in which row.

Pure: a function of the payload and the schemes.
A detection costs about as much as ``json.dumps`` of the same payload (``benchmarks/detection.py``), which is why
the walk keeps no object per value and remembers what it decided about a string and about a field name.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from mama_structs._plain import SCALARS, plain_of
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

# Where a container stands: its parent's place and the key below it; None is the payload itself.
Place = tuple[Any, Any] | None


@attrs.frozen(eq=False)
class Rule:
    """What a field's name means for ids of one type; decided once for each name, and shared by what is found there."""

    type: str
    field: Any
    primary: bool
    accepted: bool
    denied: bool


class Found(tuple[str, Rule, int | None, Place, Any]):
    """
    One occurrence of an id in a payload.

    A tuple underneath, since a large payload has tens of thousands.
    """

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


def pointer(place: Place, key: Any) -> str:
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
    """
    What a walk found, in payload order.

    Args:
        found: Every occurrence of an id.
        lookalikes: Strings that look like an id of a type that their field does not hold.
        complete: False when the payload was too large to be walked whole.

    """

    found: list[Found] = attrs.field(factory=list)
    lookalikes: list[Found] = attrs.field(factory=list)
    complete: bool = True


@attrs.frozen(eq=False)
class Kind:
    """A type of one scheme, and the rules for its ids by the name of the field that holds them."""

    name: str
    scheme: IdScheme
    rules: dict[Any, Rule] = attrs.field(init=False, factory=dict)

    def rule(self, field: Any) -> Rule:
        """Return the rule for *field*, which must be hashable."""
        rule = self.rules.get(field)
        if rule is None:
            if len(self.rules) >= _REMEMBERED:
                self.rules.clear()
            rule = self.rules[field] = self._decide(field)
        return rule

    def _decide(self, field: Any) -> Rule:
        scheme = self.scheme
        expected = scheme.expected(field) if isinstance(field, str) else None
        denied = field in scheme.deny or self.name in scheme.unresolvable
        return Rule(
            type=self.name,
            field=field,
            primary=scheme.primary is None or field in scheme.primary,
            accepted=not denied and (expected is None or self.name in expected),
            denied=denied,
        )


def _kinds_of(scheme: IdScheme) -> dict[str, Kind] | Callable[[str], Kind | None]:
    """Return the scheme's `type_of` with kinds in place of names."""
    known: dict[str, Kind] = {}

    def kind(name: str) -> Kind:
        if name not in known:
            known[name] = Kind(name, scheme)
        return known[name]

    type_of = scheme.type_of
    if isinstance(type_of, Mapping):
        return {group: kind(name) for group, name in type_of.items()}
    name_of = type_of

    def kind_of(text: str) -> Kind | None:
        name = name_of(text)
        return None if name is None else kind(name)

    return kind_of


class _Kinds:
    """Which type a string is an id of; remembers what it was asked, since payloads repeat ids all the time."""

    def __init__(self, schemes: Sequence[IdScheme]) -> None:
        self.known: dict[str, Kind | Literal[False]] = {}
        self._matchers = [(scheme.pattern.fullmatch, _kinds_of(scheme)) for scheme in schemes]

        self.decide: Callable[[str], Kind | Literal[False]] = self._decide
        """Return the kind of a text, False when it is no id."""
        fullmatch, kinds = self._matchers[0] if len(self._matchers) == 1 else (None, None)
        if fullmatch is not None and isinstance(kinds, dict):
            self.decide = _decide_by_group(fullmatch, kinds, self.known)

    def _decide(self, text: str) -> Kind | Literal[False]:
        if len(text) > MAX_ID_LENGTH:
            return False
        for fullmatch, kinds in self._matchers:
            matched = fullmatch(text)
            if matched is not None:
                kind = kinds.get(matched[1]) if isinstance(kinds, dict) else kinds(text)
                if kind is not None:
                    self.known[text] = kind
                    return kind
        self.known[text] = False
        return False

    def forget(self) -> None:
        """Stay small: the next payload is more likely to repeat itself than this one."""
        if len(self.known) > _REMEMBERED:
            self.known.clear()


def _decide_by_group(
    fullmatch: Callable[[str], re.Match[str] | None], kinds: Mapping[str, Kind], known: dict[str, Kind | Literal[False]]
) -> Callable[[str], Kind | Literal[False]]:
    """Return `_Kinds.decide` for a single scheme with a mapping: a first walk asks it for every string."""
    kind_of = kinds.get

    def decide(text: str) -> Kind | Literal[False]:
        if (matched := fullmatch(text)) is not None and (kind := kind_of(matched[1])) is not None:
            known[text] = kind
            return kind
        if len(text) <= MAX_ID_LENGTH:  # What is remembered must be small.
            known[text] = False
        return False

    return decide


class Detector:
    """
    Finds the ids of some schemes.

    Args:
        schemes: The schemes; a string belongs to the first whose pattern it matches.

    """

    def __init__(self, schemes: Sequence[IdScheme]) -> None:
        self.schemes: tuple[IdScheme, ...] = tuple(schemes)
        self.own_fields: tuple[str, ...] = tuple(dict.fromkeys(n for s in self.schemes for n in sorted(s.own)))
        self._kinds = _Kinds(self.schemes)
        contains = {scheme.contains for scheme in self.schemes}
        self._contains = contains.pop() if len(contains) == 1 else ""
        self._skipped = frozenset().union(*(scheme.deny_subtrees for scheme in self.schemes))
        self._bare = {field: prefix for scheme in self.schemes for field, prefix in scheme.bare.items()}
        self._embedded = frozenset().union(*(scheme.embedded for scheme in self.schemes))
        self._special = frozenset(self._bare) | self._embedded

    def kind(self, text: object) -> Kind | None:
        """Return the kind of the id *text*, None when it is no id."""
        if type(text) is not str:
            return None
        kind = self._kinds.known.get(text)
        return (self._kinds.decide(text) if kind is None else kind) or None

    def is_skipped(self, field: object) -> bool:
        """Tell whether nothing below *field* is looked at."""
        return field in self._skipped

    def scan(
        self,
        payload: Mapping[str, Any],
        *,
        rows: object = None,
        exclude: Collection[str] = frozenset(),
        skip: Collection[str] = (),
        place: Place = None,
    ) -> Scan:
        """
        Walk *payload* in its own order and return every occurrence of an id.

        Args:
            payload: The payload; it is not changed.
            rows: The list (the object itself) whose members are the rows.
            exclude: Ids that do not count, such as the payload's own.
            skip: Keys of the payload itself that are not walked.
            place: Where the payload itself stands, for pointers.

        """
        walk = _Walk(payload=payload, rows=rows, exclude=exclude, place=place)
        members = [(key, value) for key, value in payload.items() if key not in skip] if skip else payload.items()
        scan = Scan()
        if not self._walk(scan, walk, members, careful=False):
            scan = Scan()
            self._walk(scan, walk, members, careful=True)
        self._kinds.forget()
        if scan.lookalikes:
            _log.info(
                "skipped %d probable false positives, ids of a type that their field does not hold; first: %s in %r",
                len(scan.lookalikes),
                scan.lookalikes[0].id,
                scan.lookalikes[0].field,
            )
        return scan

    def _walk(  # noqa: C901, PLR0912, PLR0915 - one loop, since a call for each value would double the time
        self, scan: Scan, walk: _Walk, members: Iterable[tuple[Any, Any]], *, careful: bool
    ) -> bool:
        """Walk once; False when the payload needs the careful walk, which remembers its path to end cycles."""
        add, known, decide = scan.found.append, self._kinds.known.get, self._kinds.decide
        contains, skipped, special = self._contains, self._skipped, self._special
        rows, exclude = walk.rows, walk.exclude
        place, container = walk.place, walk.payload
        walking: Iterator[tuple[Any, Any]] = iter(self._expand(scan, container, members))
        name: Any = None  # The name of the array that is walked; None in a mapping, where keys are names.
        row: int | None = None
        in_rows = False
        path = {id(container)}
        stack: list[tuple[Iterator[tuple[Any, Any]], Place, Any, Any]] = []
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
class _Walk:
    """What one walk goes over, and how; see `Detector.scan`."""

    payload: Mapping[Any, Any]
    rows: object
    exclude: Collection[str]
    place: Place


@attrs.frozen
class _Embedded:
    """JSON that stood in a text; its members' pointers end at the text."""

    content: Any
