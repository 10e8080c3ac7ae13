"""Id schemes (syntax and types of ids) and sources (functions that fetch entities)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol, Self, runtime_checkable

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.introspection import make_async
from mama_structs.errors import InvalidArgument, repr_short

# Longer strings are never ids, so they are neither matched nor cached.
MAX_ID_LENGTH: Final = 512
# Names (or last words of names) of informative fields. They are shown if no brief fields are configured.
INFORMATIVE_FIELD_NAMES: Final = frozenset(
    ("name", "title", "label", "subject", "summary", "email", "code", "status", "state", "type", "kind")
)
# Default pattern for the ids of schemes with *fields*: any non-empty string.
_NONEMPTY_PATTERN: Final = r"(?s:.+)"

_SOURCE_HINT: Final = "Source.from_function('customer', fetch, fields=['customer_id']) makes one from a function"

Fetch = Callable[[str], Awaitable[Mapping[str, Any] | None]]
TypeOf = Callable[[str], str | None] | Mapping[str, str]
FetchMany = Callable[[list[str]], Awaitable[Mapping[Any, Mapping[str, Any] | Exception | None]]]
# The host may pass async or synchronous functions.
AnyFetch = Fetch | Callable[[str], Mapping[str, Any] | None]
AnyFetchMany = FetchMany | Callable[[list[str]], Mapping[Any, Mapping[str, Any] | Exception | None]]


def _parse_pattern(value: object) -> re.Pattern[str]:
    if isinstance(value, str):
        try:
            return re.compile(value)
        except re.error as error:
            raise InvalidArgument(f"pattern must be a regular expression, got {repr_short(value)}: {error}") from error
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return value
    raise InvalidArgument(f"pattern must be a regular expression for text, got {repr_short(value)}")


def _check_type_of(scheme: IdScheme, _: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        if scheme.pattern.groups < 1:
            raise InvalidArgument(
                "type_of is a mapping, so the pattern needs a group that holds its keys", hint="such as ([A-Z]+)-[0-9]+"
            )
    elif value is not None and not callable(value):
        raise InvalidArgument(f"type_of must be a function or a mapping, got {repr_short(value)}")


def _check_text(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise _check.invalid_argument(attribute.name, "must be a text", value)


def _check_texts(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(member, str) for pair in value.items() for member in pair):
        raise _check.invalid_argument(attribute.name, "must map field names to texts", value)


def _parse_fields(value: object) -> Mapping[str, str]:
    if isinstance(value, Mapping) and all(isinstance(name, str) for pair in value.items() for name in pair):
        return value
    raise _check.invalid_argument("fields", "must map field names to names of types", value)


def _parse_names(value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidArgument(f"field names must be a collection such as {{'name'}}, got {repr_short(value)}")
    return frozenset(value)


def _parse_hints(value: object) -> Mapping[str, frozenset[str]]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"hints must map field names to types, got {repr_short(value)}")
    return {
        name: frozenset([types]) if isinstance(types, str) else _parse_names(types) for name, types in value.items()
    }


def _parse_brief(value: object) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"brief must map type names to field names, got {repr_short(value)}")
    # Preserve the order of the names, which `_parse_names` would lose.
    return {str(kind): tuple(dict.fromkeys(names)) for kind, names in value.items() if _parse_names(names)}


def to_plural(name: str) -> str:
    """Return the lowercase plural of a type name, as used for lists of its entities."""
    name = name.lower()
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "z", "ch", "sh")) else f"{name}s"


@attrs.frozen(kw_only=True, eq=False)
class IdScheme:
    """
    The ids of one system: their syntax, their types, and the fields that contain no ids.

    Args:
        name: The scheme's name, for messages and statistics.
        pattern: A regular expression (text or compiled) that must match the whole string;
            optional if *fields* determines the types.
        type_of: The type name of a matching string: a function of the string that returns None if it is not an id,
            or (faster) a mapping from the text of the pattern's first group.
        fields: The type by the name of the field that contains an id, for ids that do not determine it (``7``):
            ``{"customer_id": "customer", "*.assignee": "user"}``.
            The part before a dot is the name of the mapping that contains the field; ``*`` matches any text.
            If no name matches, the type of a mapping's own id (*own*) comes from the mapping's ``type`` or from the
            name of the mapping or its list (``customer``, ``customers``).
            Ids may be text, whole numbers, and arrays of both.
            The ids of such a scheme are written ``type:id`` everywhere, such as ``customer:7``.
        deny: Names of fields whose strings are never ids.
        deny_subtrees: Names of fields that are skipped with everything below them.
        hints: Expected types by field name: one type name or several.
            A name that begins with ``*`` matches every name with that ending.
            An id of another type in such a field is skipped and counted as a look-alike.
        primary: Names of the fields that contain direct relations; None for all fields.
        contains: A text that every id contains; it only makes detection faster.
        bare: Names of fields with whole numbers (not 0) that represent ids, and the prefix to add to the number.
        embedded: Names of fields with JSON as text, which is parsed and searched.
        types: All type names, so that unknown ones can be rejected; None if the types are open.
        unresolvable: Types whose ids have no entity: ignored in payloads unless *reference_types* names the type, and
            then failed references. They are never fetched.
        own: Names of the fields that contain the entity's own id, which is not a reference.
        brief: The main fields of each type, such as ``{"planet": ("name", "owner")}``.
            An entity in the payload with its own id and these fields counts as present, and is not fetched.

    Raises:
        InvalidArgument: The pattern is not a regular expression, a collection of names is a single text,
            or neither or both of *type_of* and *fields* are given.

    """

    name: str
    pattern: re.Pattern[str] = attrs.field(default=_NONEMPTY_PATTERN, converter=_parse_pattern)
    type_of: TypeOf | None = attrs.field(default=None, validator=_check_type_of)
    fields: Mapping[str, str] = attrs.field(factory=dict, converter=_parse_fields)
    deny: frozenset[str] = attrs.field(default=frozenset(), converter=_parse_names)
    deny_subtrees: frozenset[str] = attrs.field(default=frozenset(), converter=_parse_names)
    hints: Mapping[str, frozenset[str]] = attrs.field(factory=dict, converter=_parse_hints)
    primary: frozenset[str] | None = attrs.field(default=None, converter=attrs.converters.optional(_parse_names))
    contains: str = attrs.field(default="", validator=_check_text)
    bare: Mapping[str, str] = attrs.field(factory=dict, validator=_check_texts)
    embedded: frozenset[str] = attrs.field(default=frozenset(), converter=_parse_names)
    types: frozenset[str] | None = attrs.field(converter=attrs.converters.optional(_parse_names))
    unresolvable: frozenset[str] = attrs.field(default=frozenset(), converter=_parse_names)
    own: frozenset[str] = attrs.field(default=frozenset({"id"}), converter=_parse_names)
    brief: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=_parse_brief)
    _hint_suffixes: tuple[tuple[str, frozenset[str]], ...] = attrs.field(init=False, repr=False)
    # Entity types by the lowercase names of mappings and lists that contain such entities.
    _types_by_name: Mapping[str, str] = attrs.field(init=False, repr=False)

    @types.default
    def _default_types(self) -> frozenset[str] | None:
        return frozenset(self.fields.values()) or None

    @_hint_suffixes.default
    def _default_hint_suffixes(self) -> tuple[tuple[str, frozenset[str]], ...]:
        return tuple((name[1:], types) for name, types in self.hints.items() if name.startswith("*"))

    @_types_by_name.default
    def _default_types_by_name(self) -> Mapping[str, str]:
        types = sorted(self.types or ())
        return {to_plural(kind): kind for kind in types} | {kind.lower(): kind for kind in types}

    def __attrs_post_init__(self) -> None:
        """Raise `InvalidArgument` unless either *type_of* or *fields* is given, but not both."""
        if (self.type_of is None) == (not self.fields):
            raise InvalidArgument(
                f"the scheme {self.name!r} needs type_of or fields, and not both",
                hint="where some ids tell their type and others do not, make two schemes",
            )

    def match(self, text: str) -> str | None:
        """Return the type name if the whole *text* is an id of this scheme, else None."""
        if self.fields:
            kind, _, bare = text.partition(":")
            return kind if kind in (self.types or ()) and self._is_bare(bare) else None
        matched = self.pattern.fullmatch(text) if len(text) <= MAX_ID_LENGTH else None
        type_of = self.type_of
        if matched is None or type_of is None:
            return None
        return type_of.get(matched[1]) if isinstance(type_of, Mapping) else type_of(text)

    def _type_in(self, field: str, holder: str) -> str | None:
        """Return the type of the ids in *field* of a mapping named *holder*, or None if no rule applies."""
        if field in self.deny:
            return None
        path = f"{holder}.{field}"
        for name, kind in self.fields.items():
            if fnmatch.fnmatchcase(path if "." in name else field, name):
                return kind
        return None

    def _type_called(self, name: object) -> str | None:
        """Return the type of the entities in a mapping or list with this *name*, or None if no type matches."""
        return self._types_by_name.get(name.lower()) if isinstance(name, str) else None

    def _bare_id(self, key: str) -> str:
        """
        Return the id as its own system writes it.

        Removes the type prefix that was added because of *fields*.
        """
        return key.partition(":")[2] if self.fields else key

    def _is_bare(self, text: str) -> bool:
        """Return True if *text* may be an id without a type prefix."""
        return 0 < len(text) <= MAX_ID_LENGTH and self.pattern.fullmatch(text) is not None

    def brief_fields(self, kind: str) -> tuple[str, ...]:
        """Return the names of a type's main fields, or an empty tuple if the scheme does not list them."""
        return self.brief.get(kind, ())

    def expected_types(self, field: str) -> frozenset[str] | None:
        """Return the types that the ids in a field should have, or None if the scheme has no hint for this field."""
        if field in self.hints:
            return self.hints[field]
        for ending, types in self._hint_suffixes:
            if field.endswith(ending):
                return types
        return None


@runtime_checkable
class EntitySource(Protocol):
    """
    The interface that a `Resolver` requires of a source.

    `Source` is the default implementation.
    """

    @property
    def scheme(self) -> IdScheme:
        """The scheme of the source's ids."""

    @property
    def fetch(self) -> Fetch | None:
        """
        Function that returns the fields of one entity.

        It raises `mama_structs.errors.EntityNotFound` if there is no such entity.
        """

    @property
    def fetch_many(self) -> FetchMany | None:
        """Function that fetches several ids. It returns the fields, or an exception, for each id."""

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of the answer, flattened as they appear in a reference."""

    async def close(self) -> None:
        """Close the resources that the source itself opened."""


def _to_async_fetch(function: AnyFetch | None) -> Fetch | None:
    return None if function is None else make_async(function, role="fetch")


def _to_async_fetch_many(function: AnyFetchMany | None) -> FetchMany | None:
    return None if function is None else make_async(function, role="fetch_many")


def _wrap_fetch_with_bare_id(scheme: IdScheme, function: Fetch | None) -> Fetch | None:
    """Return a function of the key that calls *function* with the bare id."""
    if function is None:
        return None

    async def fetch(key: str) -> Mapping[str, Any] | None:
        return await function(scheme._bare_id(key))

    return fetch


def _wrap_fetch_many_with_bare_ids(scheme: IdScheme, function: FetchMany | None) -> FetchMany | None:
    if function is None:
        return None

    async def fetch_many(keys: list[str]) -> Mapping[Any, Mapping[str, Any] | Exception | None]:
        return await function([scheme._bare_id(key) for key in keys])

    return fetch_many


def _check_scheme(_: Any, __: Any, value: Any) -> None:
    if not isinstance(value, IdScheme):
        raise _check.invalid_argument("scheme", "must be an IdScheme", value, hint=_SOURCE_HINT)


@with_call_hints(peer_names.SOURCE)
@attrs.frozen(kw_only=True, eq=False)
class Source:
    """
    A source of entities, backed by functions of the host.

    The functions receive ids as they occur in payloads.
    If the scheme's *fields* determines the types, that is the bare id (``"7"``, as text) for a scheme with one type,
    else ``type:id``. The keys of the mapping that *fetch_many* returns are these ids; a number or a bare id is accepted
    for ``type:id`` if it belongs to one requested id only.

    Args:
        scheme: The scheme of its ids; may be positional.
        fetch: ``fetch(id) -> Mapping``, async or synchronous (then it runs in a thread): the entity's fields;
            returns None or raises `mama_structs.errors.EntityNotFound` if there is no such entity.
        fetch_many: ``fetch_many(ids) -> Mapping``, likewise: for each id the fields, None or an exception.
            It is called once for the unknown ids of all concurrent calls: calls in one iteration of the event loop, or
            while all slots of the resolver are in use. Ids missing from its answer count as not found, unless the
            answer has ids that were not requested.
            At least one of the two is required; with both, *fetch* is called for a single id.
        max_batch: Maximum number of ids per call of *fetch_many*; None for no limit.
        cache: Whether answers may be cached; False for cheap lookups of data that changes.

    Raises:
        InvalidArgument: Neither function was given, or one of them is a generator or not a function.

    """

    scheme: IdScheme = attrs.field(kw_only=False, validator=_check_scheme)
    fetch: Fetch | None = attrs.field(default=None, converter=_to_async_fetch)
    fetch_many: FetchMany | None = attrs.field(default=None, converter=_to_async_fetch_many)
    max_batch: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_check.field_validator(_check.check_integer, 1, 10**9))
    )
    cache: bool = True

    def __attrs_post_init__(self) -> None:
        """Raise `InvalidArgument` if both functions are missing, and adapt functions to bare ids."""
        if self.fetch is None and self.fetch_many is None:
            raise InvalidArgument(
                f"the source {self.scheme.name!r} cannot fetch anything", hint="give fetch=, fetch_many= or both"
            )
        if self.scheme.fields and len(self.scheme.types or ()) == 1:
            object.__setattr__(self, "fetch", _wrap_fetch_with_bare_id(self.scheme, self.fetch))
            object.__setattr__(self, "fetch_many", _wrap_fetch_many_with_bare_ids(self.scheme, self.fetch_many))

    @classmethod
    def from_function(
        cls,
        type: str,  # noqa: A002 - the word of the API
        fetch: AnyFetch,
        *,
        fields: str | Collection[str],
    ) -> Self:
        """
        Return a source of one type of entities, whose ids occur in named fields.

        .. code-block:: python

            customers = Source.from_function("customer", load_customer, fields=["customer_id"])
            async with Session.open(sources=[customers]) as session: ...

        Args:
            type: The name of the type. References are written ``type:id``, such as ``customer:7``.
            fetch: ``fetch(id)``, async or synchronous (then it runs in a thread). It gets the id as text, as it occurs
                in the field, and returns the entity's fields; None if there is no such entity.
            fields: Names of the fields that contain its ids, as in `IdScheme`.

        Raises:
            InvalidArgument: *type* is not a word, *fields* is empty, or *fetch* is a generator or not a function.

        """
        if not isinstance(type, str) or not type.strip() or ":" in type:
            raise _check.invalid_argument("type", "must be a word such as customer, without a colon", type)
        names = [fields] if isinstance(fields, str) else list(fields) if isinstance(fields, Collection) else []
        if not names or not all(isinstance(name, str) and name for name in names):
            raise _check.invalid_argument("fields", "must be names of fields such as ['customer_id']", fields)
        return cls(IdScheme(name=type, fields=dict.fromkeys(names, type)), fetch=fetch)

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002 - required by the protocol
        """
        Return the answer unchanged, because a host's mapping already contains the entity's fields.

        Args:
            entity_id: The id of an entity.
            answer: The answer of the source.

        """
        return answer

    async def close(self) -> None:
        """Do nothing, because the host owns the resources of its functions."""


def check_sources(sources: object) -> tuple[EntitySource, ...]:
    """Return *sources* as a tuple, or raise `InvalidArgument` for duplicate scheme names."""
    if isinstance(sources, str | EntitySource | Mapping) or not isinstance(sources, Iterable):
        raise InvalidArgument(f"sources must be a list of sources, got {repr_short(sources)}", hint=_SOURCE_HINT)
    checked: list[EntitySource] = []
    for source in sources:
        if not isinstance(source, EntitySource):
            raise InvalidArgument(
                f"a source must have a scheme and fetch or fetch_many, got {repr_short(source)}",
                hint=_SOURCE_HINT,
            )
        if source.scheme.name in [other.scheme.name for other in checked]:
            raise InvalidArgument(
                f"two sources answer for the ids of {source.scheme.name!r}, and the second would never be asked",
                hint="give one of them, or a scheme of another name",
            )
        checked.append(source)
    return tuple(checked)
