"""
Detection of ids in a payload, by the pattern of a text or by the name of its field.

Detection costs about as much as ``json.dumps`` of the same payload (``benchmarks/detection.py``). To be that fast, the
walk creates no object per match, and caches the classification of texts and field names.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from mama_structs._internal.jsonable import SCALARS, as_mapping, plain_of, unstructure
from mama_structs.references.matches import Embedded, FieldRule, Pointed, Scan
from mama_structs.references.schemes import MAX_ID_LENGTH, IdScheme, plural

_log = logging.getLogger("mama_structs")

# From this depth on the walk tracks its path, so that a cycle ends. Real payloads are not that deep.
_CAREFUL_DEPTH: Final = 64
# Maximum number of containers per walk. Only nested sharing of containers exceeds it.
_MAX_CONTAINERS: Final = 500_000
# The same limit for the careful walk, which would follow n! paths through n objects that all reference each other.
_MAX_CAREFUL: Final = 250_000
# Maximum number of members read from an iterable that is not a list, since it may be infinite.
_MAX_MEMBERS: Final = 500_000
_MAX_EMBEDDED: Final = 2**20
# Smallest whole number with more digits than an id may have characters.
_TOO_LONG: Final = 10**MAX_ID_LENGTH
# Maximum number of whitespace characters before JSON in a text.
_MARGIN: Final = 64
_REMEMBERED: Final = 2**16
_FIELDS: Final = 2**12

SECTION: Final = "references"
META: Final = "references_meta"

# Fields without information about an entity, and the number of other fields that make an entity complete if its scheme
# has no brief fields.
_THIN: Final = frozenset({"id", "type", "links", "self", "attributes", "relationships"})
_WHOLE: Final = 3
# Names of wrapper mappings, which are skipped when the name of an entity's container is determined.
_WRAPPERS: Final = frozenset({"data", "attributes"})

# A container, its members, its position, its name if it is an array (None for a mapping, whose keys are names), and the
# index of its list row.
Members = Iterable[tuple[Any, Any]]
Frame = tuple[Any, Members, Pointed, Any, int | None]


class _Remembered(dict[Any, Any]):
    """
    Cache of a function's results by key, including None.

    Payloads repeat the same ids and names.
    """

    def __init__(self, decide: Callable[[Any], Any], most: int = _REMEMBERED) -> None:
        super().__init__()
        self._decide, self._most = decide, most

    def __missing__(self, key: Any) -> Any:
        decided = self._decide(key)
        if len(self) >= self._most:
            self.clear()
        if type(key) is not str or len(key) <= MAX_ID_LENGTH:  # Long keys are not cached, to limit the memory use.
            self[key] = decided
        return decided


class IdKind(_Remembered):
    """A type of one scheme, and a cache of its rules by field name."""

    def __init__(self, name: str, scheme: IdScheme) -> None:
        super().__init__(self._rule)
        self.name: str = name
        self.scheme: IdScheme = scheme
        self._brief = frozenset(scheme.brief_of(name))
        self._plain_brief = frozenset(map(_plain_name, self._brief))

    def _rule(self, field: Any) -> FieldRule:
        scheme = self.scheme
        expected = scheme.expected(field) if isinstance(field, str) else None
        denied = field in scheme.deny or self.name in scheme.unresolvable
        return FieldRule(
            type=self.name,
            field=field,
            primary=scheme.primary is None or field in scheme.primary,
            accepted=not denied and (expected is None or self.name in expected),
            denied=denied,
            own=field in scheme.own,
        )

    def is_whole(self, entity: Mapping[Any, Any]) -> bool:
        """Return True if a mapping with its own id contains the main fields of its entity."""
        if self._brief and entity.keys() >= self._brief:
            return True
        # JSON:API nests the fields one level down; other APIs write `guild_id` or `guild` for `guildId`.
        parts = [entity, *(as_mapping(entity.get(name)) or {} for name in ("attributes", "relationships"))]
        names = {name for part in parts for name in part if isinstance(name, str)}
        if self._brief:
            return self._plain_brief <= set(map(_plain_name, names))
        return len(names - _THIN - self.scheme.own) >= _WHOLE


@functools.lru_cache(maxsize=4096)
def _plain_name(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("id")


class _Id(tuple[str, IdKind]):
    """An id recognised by its field. It replaces the value of the payload during the walk."""

    __slots__ = ()


class Detector:
    """
    Finds the ids of several schemes.

    The first scheme with a matching pattern determines the type.
    """

    def __init__(self, schemes: Sequence[IdScheme]) -> None:
        self.own_fields: tuple[str, ...] = tuple(dict.fromkeys(n for s in schemes for n in sorted(s.own)))
        self.skipped: frozenset[str] = frozenset().union(*(scheme.deny_subtrees for scheme in schemes))
        # Lowercase names of lists of entities: type names and their plurals.
        self.list_names: frozenset[str] = frozenset(
            name for scheme in schemes for kind in scheme.types or () for name in (kind.lower(), plural(kind))
        )
        self.noted: frozenset[str] = self.skipped.union(*(scheme.deny for scheme in schemes))
        self._kind = functools.cache(IdKind)
        self.known: Mapping[str, IdKind | None] = _Remembered(self._kind_of)
        self._matchers = [(scheme.pattern.fullmatch, self._kinds_of(scheme)) for scheme in schemes if not scheme.fields]
        contains = {scheme.contains for scheme in schemes if not scheme.fields}
        self.contains: str = contains.pop() if len(contains) == 1 else ""
        self._keyed = [scheme for scheme in schemes if scheme.fields]
        # True if no field name determines a type, so that most mappings need no rewriting.
        self.is_plain: bool = not self._keyed
        self._promises: Mapping[str, Mapping[Any, IdKind | None]] = _Remembered(
            lambda holder: _Remembered(functools.partial(self._promise, holder)), _FIELDS
        )
        # Fields whose values need conversion: whole numbers, and JSON as text.
        self._bare = {field: prefix for scheme in schemes for field, prefix in scheme.bare.items()}
        self._embedded = frozenset().union(*(scheme.embedded for scheme in schemes))
        self.special: frozenset[str] = frozenset(self._bare) | self._embedded

    def kind(self, key: object) -> IdKind | None:
        """
        Return the type of *key*, or None if it is not an id.

        Ids are accepted in the form used for queries, such as ``type:id``.
        """
        if type(key) is not str:
            return None
        for scheme in self._keyed:
            if (name := scheme.match(key)) is not None:
                return self._kind(name, scheme)
        return self.known[key]

    def _kind_of(self, text: str) -> IdKind | None:
        for fullmatch, kind_of in self._matchers if len(text) <= MAX_ID_LENGTH else ():
            matched = fullmatch(text)
            if matched is not None and (kind := kind_of(matched)) is not None:
                return kind
        return None

    def _kinds_of(self, scheme: IdScheme) -> Callable[[re.Match[str]], IdKind | None]:
        """Return the scheme's `type_of` with type objects as results instead of names."""
        type_of = scheme.type_of
        if type_of is None:
            return lambda _: None
        if isinstance(type_of, Mapping):
            kind_of = {group: self._kind(name, scheme) for group, name in type_of.items()}.get
            return lambda matched: kind_of(matched[1])
        return lambda matched: None if (name := type_of(matched[0])) is None else self._kind(str(name), scheme)

    def _promise(self, holder: str, field: Any) -> IdKind | None:
        """Return the type of the ids in a field according to its name and that of its *holder*."""
        for scheme in self._keyed if isinstance(field, str) else ():
            name = scheme.type_in(field, holder) or (scheme.type_called(holder) if field in scheme.own else None)
            if name is not None:
                return self._kind(name, scheme)
        return None

    def _promised(self, entity: Mapping[Any, Any], field: Any, holder: str) -> IdKind | None:
        """
        Return the type of the ids in a field of *entity*.

        The entity may contain its type, as in JSON:API.
        """
        for scheme in self._keyed if field in self.own_fields else ():
            if field in scheme.own and (name := scheme.type_called(entity.get("type"))) is not None:
                return self._kind(name, scheme)
        return self._promises[holder][field]

    def key(self, field: str, text: str) -> str:
        """Return the id for *text* in a field of this name."""
        kind = self._promises[""][field] if self.kind(text) is None else None
        return text if kind is None or not kind.scheme.is_bare(text) else f"{kind.name}:{text}"

    def own_id(self, entity: Mapping[Any, Any], holder: str = "") -> str | None:
        """Return the own id of *entity*, a mapping named *holder*, or None."""
        for field in self.own_fields:
            value = entity.get(field)
            if value is None:
                continue
            # Ids may be instances of str subclasses or of other classes.
            plain = value if type(value) is str else unstructure(value)
            text = str.__str__(plain) if isinstance(plain, str) else None
            if text is not None and (kind := self.known[text]) is not None and field in kind.scheme.own:
                return text
            keyed = self._promised(entity, field, holder) if self._keyed else None
            if keyed is not None and type(own := _as_key(keyed, plain)) is _Id:
                return own[0]
        return None

    def scan(
        self,
        payload: Mapping[str, Any],
        *,
        rows: object = None,
        exclude: Collection[str] = frozenset(),
        skip: Collection[str] = (),
        place: Pointed = None,
        about: str = "",
    ) -> Scan:
        """
        Return all id matches except *exclude* and those below *skip*.

        *about* is the type of the payload's own entity.
        """
        members = [(key, value) for key, value in payload.items() if key not in skip] if skip else payload.items()
        for careful in (False, True):
            walk = _Scanning(self, rows, exclude, about)
            below = self.read(walk.scan, payload, members, about or holder_of(place))
            if walk.through((payload, below, place, None, None), careful=careful):
                break
        scan = walk.scan
        if scan.present:
            scan.found = scan.found.where(lambda text, _: text not in scan.present)
        if scan.lookalikes:
            # Ids and field names are content, so they are not logged.
            message = "skipped %d probable false positives, ids of a type that their field does not hold"
            _log.info(message, len(scan.lookalikes))
        return scan

    def read(self, scan: Scan, container: Mapping[Any, Any], members: Members, holder: str) -> Members:
        """
        Replace values that represent ids by these ids.

        JSON texts in known fields are replaced by their content.
        """
        if self.is_plain and container.keys().isdisjoint(self.special):
            return members
        promises = self._promises[holder]
        return [
            (key, value)
            if promises[key] is None and key not in self.special and key not in self.own_fields
            else (key, self._meaning(scan, container, key, value, holder))
            for key, value in members
        ]

    def _meaning(self, scan: Scan, container: Mapping[Any, Any], key: Any, value: Any, holder: str) -> Any:
        try:
            if self._keyed and (kind := self._promised(container, key, holder)) is not None:
                return _as_key(kind, value)
            text = str.__str__(value) if isinstance(value, str) else _written(value)
            if key in self._bare:
                is_index = text.isascii() and text.isdecimal() and not text.startswith("0")
                return self._bare[key] + text if is_index else value
            if key in self._embedded and text[:_MARGIN].lstrip()[:1] in ("[", "{"):
                if len(text) > _MAX_EMBEDDED:
                    scan.complete = False
                    return value
                return Embedded(json.loads(text))
        except Exception:  # noqa: BLE001 - not JSON, nested too deeply, or an object of the host that raises
            return value
        return value

    def undenied(self, name: Any, members: Members) -> Members:
        """Yield the members of a mapping whose name is denied, except the ids denied by it."""
        for key, value in members:
            kind = self.known[value] if type(value) is str else value[1] if type(value) is _Id else None
            if kind is None or name not in kind.scheme.deny:
                yield key, value


def holder_of(place: Pointed) -> str:
    """Return the name of the mapping or list that contains *place*, empty at the top level."""
    while place is not None:
        place, key = place
        if type(key) is str and key not in _WRAPPERS:
            return key
    return ""


class _TooDeep(Exception):
    """Raised if the payload is so deep that it may contain a cycle."""


class _TooMany(Exception):
    """
    Raised if the walk entered too many containers.

    Only containers that share other containers, level by level, cause so many.
    """


class _Scanning:
    """A single walk through a payload."""

    def __init__(self, detector: Detector, rows: object, exclude: Collection[str], about: str) -> None:
        self._detector, self._rows, self._exclude, self._about = detector, rows, exclude, about
        self.scan = Scan()

    def through(self, frame: Frame, *, careful: bool) -> bool:
        """
        Walk through a payload.

        Return False if it needs a careful walk, which tracks its path to end cycles.
        """
        try:
            if careful:
                self._carefully(frame)
            else:
                self._quickly(frame)
        except _TooMany:
            self.scan.complete = False
        except _TooDeep:
            return False
        return True

    def _quickly(self, frame: Frame) -> None:  # noqa: C901 - because of the nested function
        detector, rows, exclude, take, enter = self._detector, self._rows, self._exclude, self._take, self._enter
        noted, special, is_plain = detector.noted, detector.special, detector.is_plain
        add, known, contains = self.scan.found.parts.extend, detector.known, detector.contains
        entered = 0

        # A single function, since a call per value doubles the time.
        def walk(container: Any, members: Members, place: Pointed, name: Any, row: int | None, depth: int) -> None:  # noqa: C901, PLR0912, PLR0917
            nonlocal entered
            entered += 1
            if depth > _CAREFUL_DEPTH:
                raise _TooDeep
            if entered > _MAX_CONTAINERS:
                raise _TooMany
            in_rows = container is rows
            for key, value in members:
                kind_of_value = type(value)
                if kind_of_value is str:
                    if contains in value and (kind := known[value]) is not None and value not in exclude:
                        rule = kind[key if name is None else name]
                        if rule.plain:
                            add((value, rule, key if in_rows else row, place, key))
                        else:
                            take((container, members, place, name, key if in_rows else row), key, value)
                elif kind_of_value not in SCALARS:
                    where, is_noted = key if in_rows else row, name is None and key in noted
                    if kind_of_value is list and not is_noted:
                        if value:
                            walk(value, enumerate(value), (place, key), key if name is None else name, where, depth + 1)
                    elif kind_of_value is dict and not is_noted:
                        if value:
                            below, inside = (place, key), value.items()
                            if not (is_plain and value.keys().isdisjoint(special)):
                                inside = detector.read(self.scan, value, inside, holder_of(below) or self._about)
                            walk(value, inside, below, None, where, depth + 1)
                    elif kind_of_value is _Id:
                        take((container, members, place, name, where), key, value)
                    elif (below_frame := enter(key, value, place, name, where)) is not None:
                        walk(*below_frame, depth + 1)

        walk(*frame, 0)

    def _carefully(self, frame: Frame) -> None:
        path = {id(frame[0])}
        stack = [(*frame[:1], iter(frame[1]), *frame[2:])]
        entered = 0
        while stack:
            container, members, place, name, row = frame = stack[-1]
            for key, value in members:
                where = key if container is self._rows else row
                if type(value) is str or type(value) is _Id:
                    self._take((*frame[:4], where), key, value)
                    continue
                inside = None if type(value) in SCALARS else self._enter(key, value, place, name, where)
                if inside is not None and id(inside[0]) not in path:
                    entered += 1
                    if entered > _MAX_CAREFUL:
                        raise _TooMany
                    path.add(id(inside[0]))
                    stack.append((*inside[:1], iter(inside[1]), *inside[2:]))
                    break
            else:
                path.discard(id(container))
                stack.pop()

    def _take(self, frame: Frame, key: Any, value: Any) -> None:
        """Record an id candidate as a reference, as its entity's own id, or not at all."""
        container, _, place, name, row = frame
        text, kind = value if type(value) is _Id else (value, self._detector.known[value])
        if kind is None or text in self._exclude:
            return
        rule = kind[key if name is None else name]
        if rule.own and name is None and not rule.denied and (entity := as_mapping(container)) is not None:
            if kind.is_whole(entity):
                self.scan.present.add(text)
                return
            # A mapping that is not a complete entity is a reference, named after the mapping's own name.
            rule = kind[holder_of(place) or key]
        if not rule.denied:
            (self.scan.found if rule.accepted else self.scan.lookalikes).parts.extend((text, rule, row, place, key))

    def _enter(self, key: Any, value: Any, place: Pointed, name: Any, row: int | None) -> Frame | None:
        """Return the frame for the members of a container of any class, or None without members."""
        if name is None and key in self._detector.skipped:
            return None
        below: Pointed = (place, key)
        if type(value) is Embedded:
            value, below = value.content, (below, Embedded)
        array_name = key if name is None else name
        if type(value) is list:
            return value, enumerate(value), below, array_name, row
        try:
            plain = plain_of(value)
            if isinstance(plain, str):
                return value, ((0, plain),), (below, Embedded), array_name, row
            if isinstance(plain, Mapping):
                members = list(self._detector.read(self.scan, plain, plain.items(), holder_of(below) or self._about))
                if name is None and key in self._detector.noted:
                    members = [*self._detector.undenied(key, members)]
                return value, members, below, None, row
            array = [] if plain is None else list(itertools.islice(enumerate(plain), _MAX_MEMBERS + 1))
        except Exception:  # noqa: BLE001 - a host's class may raise anything; scan its siblings anyway
            _log.info("an object of type %s cannot be read and was not searched for ids", type(value).__name__)
            self.scan.unread += 1
            return None
        self.scan.complete = self.scan.complete and len(array) <= _MAX_MEMBERS
        return value, array[:_MAX_MEMBERS], below, array_name, row


def _written(value: object) -> str:
    """
    Return the text of a whole number, else an empty text.

    Python cannot convert over 4,300 digits.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _TOO_LONG:
        return str(int(value))
    return ""


def _as_key(kind: IdKind, value: Any) -> Any:
    """Return the id for *value*, an array of ids for an array, or *value* if it is not an id."""
    if isinstance(value, list | tuple):
        keys = [_as_key(kind, member) for member in value]
        # Keep an array without ids unchanged: rows are recognised by identity.
        return keys if any(new is not old for new, old in zip(keys, value, strict=True)) else value
    text = str.__str__(value) if isinstance(value, str) else _written(value)
    return _Id((f"{kind.name}:{text}", kind)) if kind.scheme.is_bare(text) else value
