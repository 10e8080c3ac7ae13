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

from mama_structs._internal.jsonable import SCALAR_TYPES, as_mapping, to_plain_level, unstructure
from mama_structs.references.matches import ContainerPosition, FieldRule, NestedJson, ScanResult
from mama_structs.references.schemes import MAX_ID_LENGTH, IdScheme, to_plural

_log = logging.getLogger("mama_structs")

# Payloads nested deeper than this may contain a cycle. The walk then tracks its path to detect the cycle.
_MAX_FAST_DEPTH: Final = 64
# Maximum number of containers per walk. Only payloads that share nested containers exceed it.
_MAX_CONTAINERS: Final = 500_000
# Maximum number of containers if the walk detects cycles: n objects that all reference each other have n! paths.
_MAX_CAREFUL_CONTAINERS: Final = 250_000
# Maximum number of members read from an iterable other than a list, which may be infinite.
_MAX_MEMBERS: Final = 500_000
_MAX_NESTED_JSON_CHARS: Final = 2**20
# Whole numbers from this value on are not ids, because they have more digits than an id may have characters.
_MIN_TOO_LONG_NUMBER: Final = 10**MAX_ID_LENGTH
# Maximum number of whitespace characters before JSON in a text.
_MAX_LEADING_SPACE_CHARS: Final = 64
_MAX_CACHED_TEXTS: Final = 2**16
_MAX_CACHED_HOLDERS: Final = 2**12

SECTION_KEY: Final = "references"
META_KEY: Final = "references_meta"

# Fields that say nothing about an entity.
_UNINFORMATIVE_FIELDS: Final = frozenset({"id", "type", "links", "self", "attributes", "relationships"})
# Minimum number of informative fields in a complete entity, if its scheme has no brief fields.
_MIN_COMPLETE_FIELDS: Final = 3
# Mappings with these names only wrap fields, so an entity in such a mapping has the name of the next outer container.
_WRAPPER_NAMES: Final = frozenset({"data", "attributes"})

# State of the walk in one container: container, members, position, name, and index of the list row.
# The name is set only for arrays. It is None for mappings, whose keys are the names of their members.
Members = Iterable[tuple[Any, Any]]
WalkFrame = tuple[Any, Members, ContainerPosition, Any, int | None]


class _CachedFunction(dict[Any, Any]):
    """
    Cache of a function's results by key, including None.

    Payloads repeat the same ids and names.
    """

    def __init__(self, compute: Callable[[Any], Any], max_entries: int = _MAX_CACHED_TEXTS) -> None:
        super().__init__()
        self._decide, self._most = compute, max_entries

    def __missing__(self, key: Any) -> Any:
        decided = self._decide(key)
        if len(self) >= self._most:
            self.clear()
        if type(key) is not str or len(key) <= MAX_ID_LENGTH:  # Long keys are not cached, to limit the memory use.
            self[key] = decided
        return decided


class IdType(_CachedFunction):
    """A type of one scheme, and a cache of its rules by field name."""

    def __init__(self, name: str, scheme: IdScheme) -> None:
        super().__init__(self._make_rule)
        self.name: str = name
        self.scheme: IdScheme = scheme
        self._brief = frozenset(scheme.brief_fields(name))
        self._plain_brief = frozenset(map(_normalize_name, self._brief))

    def _make_rule(self, field: Any) -> FieldRule:
        scheme = self.scheme
        expected = scheme.expected_types(field) if isinstance(field, str) else None
        denied = field in scheme.deny or self.name in scheme.unresolvable
        return FieldRule(
            type=self.name,
            field=field,
            primary=scheme.primary is None or field in scheme.primary,
            is_accepted=not denied and (expected is None or self.name in expected),
            is_denied=denied,
            is_own_id_field=field in scheme.own,
        )

    def is_complete(self, entity: Mapping[Any, Any]) -> bool:
        """Return True if *entity*, a mapping with its own id, contains the main fields of the entity."""
        if self._brief and entity.keys() >= self._brief:
            return True
        # Accept fields one level down (JSON:API), and `guild_id` or `guild` instead of `guildId` (other APIs).
        parts = [entity, *(as_mapping(entity.get(name)) or {} for name in ("attributes", "relationships"))]
        names = {name for part in parts for name in part if isinstance(name, str)}
        if self._brief:
            return self._plain_brief <= set(map(_normalize_name, names))
        return len(names - _UNINFORMATIVE_FIELDS - self.scheme.own) >= _MIN_COMPLETE_FIELDS


@functools.lru_cache(maxsize=4096)
def _normalize_name(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("id")


class _FieldId(tuple[str, IdType]):
    """An id recognised by its field name. During the walk it replaces the value in the payload."""

    __slots__ = ()


class IdDetector:
    """
    Finds the ids of several schemes.

    The first scheme with a matching pattern determines the type.
    """

    def __init__(self, schemes: Sequence[IdScheme]) -> None:
        self.own_fields: tuple[str, ...] = tuple(dict.fromkeys(n for s in schemes for n in sorted(s.own)))
        self.skipped_fields: frozenset[str] = frozenset().union(*(scheme.deny_subtrees for scheme in schemes))
        # Lowercase names of lists of entities: type names and their plurals.
        self.list_names: frozenset[str] = frozenset(
            name for scheme in schemes for kind in scheme.types or () for name in (kind.lower(), to_plural(kind))
        )
        self.denied_fields: frozenset[str] = self.skipped_fields.union(*(scheme.deny for scheme in schemes))
        self._get_type = functools.cache(IdType)
        self.types_by_text: Mapping[str, IdType | None] = _CachedFunction(self._find_type_by_pattern)
        self._matchers = [
            (scheme.pattern.fullmatch, self._make_type_lookup(scheme)) for scheme in schemes if not scheme.fields
        ]
        contains = {scheme.contains for scheme in schemes if not scheme.fields}
        self.contains: str = contains.pop() if len(contains) == 1 else ""
        self._field_schemes = [scheme for scheme in schemes if scheme.fields]
        # True if no scheme derives types from field names, so that the members of most mappings need no conversion.
        self.has_no_field_schemes: bool = not self._field_schemes
        self._types_by_field: Mapping[str, Mapping[Any, IdType | None]] = _CachedFunction(
            lambda holder: _CachedFunction(functools.partial(self._find_field_type, holder)), _MAX_CACHED_HOLDERS
        )
        # Fields whose values are converted before detection: bare ids, and JSON as text.
        self._bare = {field: prefix for scheme in schemes for field, prefix in scheme.bare.items()}
        self._embedded = frozenset().union(*(scheme.embedded for scheme in schemes))
        self.converted_fields: frozenset[str] = frozenset(self._bare) | self._embedded

    def find_type(self, key: object) -> IdType | None:
        """
        Return the type of *key*, or None if *key* is not an id.

        Ids are accepted in the form used for queries, such as ``type:id``.
        """
        if type(key) is not str:
            return None
        for scheme in self._field_schemes:
            if (name := scheme.match(key)) is not None:
                return self._get_type(name, scheme)
        return self.types_by_text[key]

    def _find_type_by_pattern(self, text: str) -> IdType | None:
        for fullmatch, kind_of in self._matchers if len(text) <= MAX_ID_LENGTH else ():
            matched = fullmatch(text)
            if matched is not None and (kind := kind_of(matched)) is not None:
                return kind
        return None

    def _make_type_lookup(self, scheme: IdScheme) -> Callable[[re.Match[str]], IdType | None]:
        """Return the scheme's `type_of` with type objects as results instead of names."""
        type_of = scheme.type_of
        if type_of is None:
            return lambda _: None
        if isinstance(type_of, Mapping):
            kind_of = {group: self._get_type(name, scheme) for group, name in type_of.items()}.get
            return lambda matched: kind_of(matched[1])
        return lambda matched: None if (name := type_of(matched[0])) is None else self._get_type(str(name), scheme)

    def _find_field_type(self, holder: str, field: Any) -> IdType | None:
        """Return the type of the ids in *field* of a mapping named *holder*, or None if no scheme defines it."""
        for scheme in self._field_schemes if isinstance(field, str) else ():
            name = scheme._type_in(field, holder) or (scheme._type_called(holder) if field in scheme.own else None)
            if name is not None:
                return self._get_type(name, scheme)
        return None

    def _find_entity_field_type(self, entity: Mapping[Any, Any], field: Any, holder: str) -> IdType | None:
        """
        Return the type of the ids in a field of *entity*, or None.

        The type may be stored in the entity itself, as in JSON:API.
        """
        for scheme in self._field_schemes if field in self.own_fields else ():
            if field in scheme.own and (name := scheme._type_called(entity.get("type"))) is not None:
                return self._get_type(name, scheme)
        return self._types_by_field[holder][field]

    def to_key(self, field: str, text: str) -> str:
        """Return *text* as an id. If only the field name determines its type, add the type as a prefix."""
        kind = self._types_by_field[""][field] if self.find_type(text) is None else None
        return text if kind is None or not kind.scheme._is_bare(text) else f"{kind.name}:{text}"

    def find_own_id(self, entity: Mapping[Any, Any], holder: str = "") -> str | None:
        """Return the id of *entity* itself, or None. *holder* is the name of the mapping that contains its fields."""
        for field in self.own_fields:
            value = entity.get(field)
            if value is None:
                continue
            # Convert the value, because an id may be an instance of a str subclass or of another class.
            plain = value if type(value) is str else unstructure(value)
            text = str.__str__(plain) if isinstance(plain, str) else None
            if text is not None and (kind := self.types_by_text[text]) is not None and field in kind.scheme.own:
                return text
            keyed = self._find_entity_field_type(entity, field, holder) if self._field_schemes else None
            if keyed is not None and type(own := _to_field_ids(keyed, plain)) is _FieldId:
                return own[0]
        return None

    def scan(
        self,
        payload: Mapping[str, Any],
        *,
        rows: object = None,
        exclude: Collection[str] = frozenset(),
        skip_fields: Collection[str] = (),
        position: ContainerPosition = None,
        main_type: str = "",
    ) -> ScanResult:
        """
        Return all id matches in *payload*, except the ids *exclude* and all ids in the fields *skip_fields*.

        *main_type* is the type of the payload's own entity.
        """
        members = (
            [(key, value) for key, value in payload.items() if key not in skip_fields]
            if skip_fields
            else payload.items()
        )
        for careful in (False, True):
            walk = _Scanner(self, rows, exclude, main_type)
            below = self.convert_members(walk.scan, payload, members, main_type or find_holder_name(position))
            if walk.walk((payload, below, position, None, None), careful=careful):
                break
        scan = walk.scan
        if scan.present_ids:
            scan.matches = scan.matches.filter(lambda text, _: text not in scan.present_ids)
        if scan.lookalikes:
            # Do not log ids and field names, because they are content.
            message = "skipped %d probable false positives, ids of a type that their field does not hold"
            _log.info(message, len(scan.lookalikes))
        return scan

    def convert_members(self, scan: ScanResult, container: Mapping[Any, Any], members: Members, holder: str) -> Members:
        """
        Return the members, with an id in place of each value that is an id only by its field name.

        JSON texts in known fields are replaced by their parsed content.
        """
        if self.has_no_field_schemes and container.keys().isdisjoint(self.converted_fields):
            return members
        promises = self._types_by_field[holder]
        return [
            (key, value)
            if promises[key] is None and key not in self.converted_fields and key not in self.own_fields
            else (key, self._convert_value(scan, container, key, value, holder))
            for key, value in members
        ]

    def _convert_value(self, scan: ScanResult, container: Mapping[Any, Any], key: Any, value: Any, holder: str) -> Any:
        try:
            if self._field_schemes and (kind := self._find_entity_field_type(container, key, holder)) is not None:
                return _to_field_ids(kind, value)
            text = str.__str__(value) if isinstance(value, str) else _format_whole_number(value)
            if key in self._bare:
                is_index = text.isascii() and text.isdecimal() and not text.startswith("0")
                return self._bare[key] + text if is_index else value
            if key in self._embedded and text[:_MAX_LEADING_SPACE_CHARS].lstrip()[:1] in ("[", "{"):
                if len(text) > _MAX_NESTED_JSON_CHARS:
                    scan.is_complete = False
                    return value
                return NestedJson(json.loads(text))
        except Exception:  # noqa: BLE001 - not JSON, nested too deeply, or an object of the host that raises
            return value
        return value

    def iter_allowed_members(self, name: Any, members: Members) -> Members:
        """Yield the members of the mapping *name*, without the ids of schemes that deny this name."""
        for key, value in members:
            kind = self.types_by_text[value] if type(value) is str else value[1] if type(value) is _FieldId else None
            if kind is None or name not in kind.scheme.deny:
                yield key, value


def find_holder_name(position: ContainerPosition) -> str:
    """Return the name of the container at *position* or of its nearest named parent, or "" if none has a name."""
    while position is not None:
        position, key = position
        if type(key) is str and key not in _WRAPPER_NAMES:
            return key
    return ""


class _MaxDepthExceeded(Exception):
    """Raised if the payload is nested so deep that it may contain a cycle."""


class _MaxContainersExceeded(Exception):
    """
    Raised if the walk entered too many containers.

    Only containers that share other containers, level by level, cause so many.
    """


class _Scanner:
    """A single walk through a payload."""

    def __init__(self, detector: IdDetector, rows: object, exclude: Collection[str], about: str) -> None:
        self._detector, self._rows, self._exclude, self._about = detector, rows, exclude, about
        self.scan = ScanResult()

    def walk(self, frame: WalkFrame, *, careful: bool) -> bool:
        """
        Walk through a payload.

        Return False if it needs a careful walk, which tracks its path to end cycles.
        """
        try:
            if careful:
                self._walk_tracking_path(frame)
            else:
                self._walk_fast(frame)
        except _MaxContainersExceeded:
            self.scan.is_complete = False
        except _MaxDepthExceeded:
            return False
        return True

    def _walk_fast(self, frame: WalkFrame) -> None:  # noqa: C901 - because of the nested function
        detector, rows, exclude, take, enter = (
            self._detector,
            self._rows,
            self._exclude,
            self._record_candidate,
            self._make_frame,
        )
        noted, special, is_plain = detector.denied_fields, detector.converted_fields, detector.has_no_field_schemes
        add, known, contains = self.scan.matches.flat_items.extend, detector.types_by_text, detector.contains
        entered = 0

        # Keep the walk in a single function, because a function call per value doubles the time.
        def walk(  # noqa: C901, PLR0912, PLR0917
            container: Any, members: Members, place: ContainerPosition, name: Any, row: int | None, depth: int
        ) -> None:
            nonlocal entered
            entered += 1
            if depth > _MAX_FAST_DEPTH:
                raise _MaxDepthExceeded
            if entered > _MAX_CONTAINERS:
                raise _MaxContainersExceeded
            in_rows = container is rows
            for key, value in members:
                kind_of_value = type(value)
                if kind_of_value is str:
                    if contains in value and (kind := known[value]) is not None and value not in exclude:
                        rule = kind[key if name is None else name]
                        if rule.is_always_reference:
                            add((value, rule, key if in_rows else row, place, key))
                        else:
                            take((container, members, place, name, key if in_rows else row), key, value)
                elif kind_of_value not in SCALAR_TYPES:
                    where, is_noted = key if in_rows else row, name is None and key in noted
                    if kind_of_value is list and not is_noted:
                        if value:
                            walk(value, enumerate(value), (place, key), key if name is None else name, where, depth + 1)
                    elif kind_of_value is dict and not is_noted:
                        if value:
                            below, inside = (place, key), value.items()
                            if not (is_plain and value.keys().isdisjoint(special)):
                                inside = detector.convert_members(
                                    self.scan, value, inside, find_holder_name(below) or self._about
                                )
                            walk(value, inside, below, None, where, depth + 1)
                    elif kind_of_value is _FieldId:
                        take((container, members, place, name, where), key, value)
                    elif (below_frame := enter(key, value, place, name, where)) is not None:
                        walk(*below_frame, depth + 1)

        walk(*frame, 0)

    def _walk_tracking_path(self, frame: WalkFrame) -> None:
        path = {id(frame[0])}
        stack = [(*frame[:1], iter(frame[1]), *frame[2:])]
        entered = 0
        while stack:
            container, members, place, name, row = frame = stack[-1]
            for key, value in members:
                where = key if container is self._rows else row
                if type(value) is str or type(value) is _FieldId:
                    self._record_candidate((*frame[:4], where), key, value)
                    continue
                inside = None if type(value) in SCALAR_TYPES else self._make_frame(key, value, place, name, where)
                if inside is not None and id(inside[0]) not in path:
                    entered += 1
                    if entered > _MAX_CAREFUL_CONTAINERS:
                        raise _MaxContainersExceeded
                    path.add(id(inside[0]))
                    stack.append((*inside[:1], iter(inside[1]), *inside[2:]))
                    break
            else:
                path.discard(id(container))
                stack.pop()

    def _record_candidate(self, frame: WalkFrame, key: Any, value: Any) -> None:
        """Classify an id candidate as a reference, as the entity's own id, as a look-alike, or as denied."""
        container, _, place, name, row = frame
        text, kind = value if type(value) is _FieldId else (value, self._detector.types_by_text[value])
        if kind is None or text in self._exclude:
            return
        rule = kind[key if name is None else name]
        if (
            rule.is_own_id_field
            and name is None
            and not rule.is_denied
            and (entity := as_mapping(container)) is not None
        ):
            if kind.is_complete(entity):
                self.scan.present_ids.add(text)
                return
            # An incomplete entity counts as a reference, and the name of its mapping as the field name.
            rule = kind[find_holder_name(place) or key]
        if not rule.is_denied:
            (self.scan.matches if rule.is_accepted else self.scan.lookalikes).flat_items.extend(
                (text, rule, row, place, key)
            )

    def _make_frame(
        self, key: Any, value: Any, place: ContainerPosition, name: Any, row: int | None
    ) -> WalkFrame | None:
        """Return the frame for the members of a container of any class, or None if it has no members."""
        if name is None and key in self._detector.skipped_fields:
            return None
        below: ContainerPosition = (place, key)
        if type(value) is NestedJson:
            value, below = value.content, (below, NestedJson)
        array_name = key if name is None else name
        if type(value) is list:
            return value, enumerate(value), below, array_name, row
        try:
            plain = to_plain_level(value)
            if isinstance(plain, str):
                return value, ((0, plain),), (below, NestedJson), array_name, row
            if isinstance(plain, Mapping):
                members = list(
                    self._detector.convert_members(
                        self.scan, plain, plain.items(), find_holder_name(below) or self._about
                    )
                )
                if name is None and key in self._detector.denied_fields:
                    members = [*self._detector.iter_allowed_members(key, members)]
                return value, members, below, None, row
            array = [] if plain is None else list(itertools.islice(enumerate(plain), _MAX_MEMBERS + 1))
        except Exception:  # noqa: BLE001 - a host's class may raise anything; scan its siblings anyway
            _log.info("an object of type %s cannot be read and was not searched for ids", type(value).__name__)
            self.scan.unreadable_objects += 1
            return None
        self.scan.is_complete = self.scan.is_complete and len(array) <= _MAX_MEMBERS
        return value, array[:_MAX_MEMBERS], below, array_name, row


def _format_whole_number(value: object) -> str:
    """
    Return the text of a whole number, or an empty text for other values.

    Numbers too long for an id also give an empty text, because Python cannot convert more than 4,300 digits.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MIN_TOO_LONG_NUMBER:
        return str(int(value))
    return ""


def _to_field_ids(kind: IdType, value: Any) -> Any:
    """Return *value* as an id, or an array with its ids converted. Return *value* unchanged if it is not an id."""
    if isinstance(value, list | tuple):
        keys = [_to_field_ids(kind, member) for member in value]
        # Return the same array if it contains no ids, because rows are compared by identity.
        return keys if any(new is not old for new, old in zip(keys, value, strict=True)) else value
    text = str.__str__(value) if isinstance(value, str) else _format_whole_number(value)
    return _FieldId((f"{kind.name}:{text}", kind)) if kind.scheme._is_bare(text) else value
