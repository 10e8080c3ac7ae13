"""Which strings are ids, of what type, and where they come from."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.introspection import awaited
from mama_structs.errors import InvalidArgument, shown

# Longer strings are no ids of anybody; it bounds what is matched and remembered.
MAX_ID_LENGTH: Final = 512
# What fields are called, or their last word is, that say most about an entity, where no host says which do.
TELLING: Final = frozenset(
    ("name", "title", "label", "subject", "summary", "email", "code", "status", "state", "type", "kind")
)
# What an id is like whose type its field tells, where the scheme says no more: anything but nothing.
_ANYTHING: Final = r"(?s:.+)"

Fetch = Callable[[str], Awaitable[Mapping[str, Any]]]
TypeOf = Callable[[str], str | None] | Mapping[str, str]
FetchMany = Callable[[list[str]], Awaitable[Mapping[str, Mapping[str, Any] | Exception]]]
# What a host writes: async or plain.
AnyFetch = Fetch | Callable[[str], Mapping[str, Any]]
AnyFetchMany = FetchMany | Callable[[list[str]], Mapping[str, Mapping[str, Any] | Exception]]


def _pattern(value: object) -> re.Pattern[str]:
    if isinstance(value, str):
        try:
            return re.compile(value)
        except re.error as error:
            raise InvalidArgument(f"pattern must be a regular expression, got {shown(value)}: {error}") from error
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return value
    raise InvalidArgument(f"pattern must be a regular expression for text, got {shown(value)}")


def _check_type_of(scheme: IdScheme, _: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        if scheme.pattern.groups < 1:
            raise InvalidArgument(
                "type_of is a mapping, so the pattern needs a group that holds its keys", hint="such as ([A-Z]+)-[0-9]+"
            )
    elif value is not None and not callable(value):
        raise InvalidArgument(f"type_of must be a function or a mapping, got {shown(value)}")


def _text(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise _check.refused(attribute.name, "must be a text", value)


def _texts(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(member, str) for pair in value.items() for member in pair):
        raise _check.refused(attribute.name, "must map field names to texts", value)


def _types(value: object) -> Mapping[str, str]:
    if isinstance(value, Mapping) and all(isinstance(name, str) for pair in value.items() for name in pair):
        return value
    raise _check.refused("fields", "must map field names to names of types", value)


def _names(value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidArgument(f"field names must be a collection such as {{'name'}}, got {shown(value)}")
    return frozenset(value)


def _hints(value: object) -> Mapping[str, frozenset[str]]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"hints must map field names to types, got {shown(value)}")
    return {name: frozenset([types]) if isinstance(types, str) else _names(types) for name, types in value.items()}


def _brief(value: object) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"brief must map type names to field names, got {shown(value)}")
    # In their order, which `_names` would lose.
    return {str(kind): tuple(dict.fromkeys(names)) for kind, names in value.items() if _names(names)}


def plural(name: str) -> str:
    """Return what a list of entities of the type *name* is called, in small letters."""
    name = name.lower()
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "z", "ch", "sh")) else f"{name}s"


@attrs.frozen(kw_only=True, eq=False)
class IdScheme:
    """
    Describes the ids of one system: how they look, what type they have, and which fields hold none.

    Args:
        name: The scheme's name, for messages and statistics.
        pattern: A regular expression (text or compiled) that the whole string must match;
            may be left out where *fields* tell the types.
        type_of: The type's name for a string that matched: a function of the string, which returns None when it is
            no id after all, or (faster) a mapping from the text of the pattern's first group.
        fields: The type by the name of the field that holds an id, where the id alone (``7``) does not tell it:
            ``{"customer_id": "customer", "*.assignee": "user"}``.
            Before a dot stands the name under which the field's own mapping stands, ``*`` is any text.
            A mapping's own id (*own*) has, where no name of these fits, the type that the mapping's ``type`` says,
            or after which it or its list is named (``customer``, ``customers``).
            Ids may be text, whole numbers, and arrays of both.
            The ids of such a scheme are known everywhere as ``type:id``, such as ``customer:7``.
        deny: Names of fields whose strings are never ids, whatever they look like.
        deny_subtrees: Names of fields below which nothing is looked at.
        hints: What a field's name promises: field name to type name, or to several.
            A name that begins with ``*`` stands for every name that ends so.
            An id of another type under such a field is skipped and counted as a look-alike.
        primary: Names of the fields that hold direct relations; None when every field does.
        contains: A text that every id contains; makes detection faster, nothing else.
        bare: Field names whose whole number (not 0) stands for an id, with the text to put before the number.
        embedded: Field names that hold JSON as text, which is parsed and searched.
        types: All type names, so that a misspelt one can be refused; None when they are open.
        unresolvable: Types whose ids name nothing: never taken from a payload, and not found when asked for by name.
        own: Names of the fields in which an entity holds its own id, which is no reference.
        brief: For each type the fields that a reader needs first, such as ``{"planet": ("name", "owner")}``.
            An entity that stands in a payload with its own id and these fields is there already, and is not fetched.

    Raises:
        InvalidArgument: The pattern is no regular expression, a collection of names is a single text,
            or neither or both of *type_of* and *fields* are given.

    """

    name: str
    pattern: re.Pattern[str] = attrs.field(default=_ANYTHING, converter=_pattern)
    type_of: TypeOf | None = attrs.field(default=None, validator=_check_type_of)
    fields: Mapping[str, str] = attrs.field(factory=dict, converter=_types)
    deny: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    deny_subtrees: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    hints: Mapping[str, frozenset[str]] = attrs.field(factory=dict, converter=_hints)
    primary: frozenset[str] | None = attrs.field(default=None, converter=attrs.converters.optional(_names))
    contains: str = attrs.field(default="", validator=_text)
    bare: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    embedded: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    types: frozenset[str] | None = attrs.field(converter=attrs.converters.optional(_names))
    unresolvable: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    own: frozenset[str] = attrs.field(default=frozenset({"id"}), converter=_names)
    brief: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=_brief)
    _endings: tuple[tuple[str, frozenset[str]], ...] = attrs.field(init=False, repr=False)
    # The types by what a mapping or a list of their entities is called.
    _called: Mapping[str, str] = attrs.field(init=False, repr=False)

    @types.default
    def _types_of_fields(self) -> frozenset[str] | None:
        return frozenset(self.fields.values()) or None

    @_endings.default
    def _endings_of_hints(self) -> tuple[tuple[str, frozenset[str]], ...]:
        return tuple((name[1:], types) for name, types in self.hints.items() if name.startswith("*"))

    @_called.default
    def _names_of_types(self) -> Mapping[str, str]:
        types = sorted(self.types or ())
        return {plural(kind): kind for kind in types} | {kind.lower(): kind for kind in types}

    def __attrs_post_init__(self) -> None:
        """Refuse a scheme that could name no type, or that names it in two ways."""
        if (self.type_of is None) == (not self.fields):
            raise InvalidArgument(
                f"the scheme {self.name!r} needs type_of or fields, and not both",
                hint="where some ids tell their type and others do not, make two schemes",
            )

    def match(self, text: str) -> str | None:
        """Return the type's name if the whole *text* is an id of this scheme, else None."""
        if self.fields:
            kind, _, bare = text.partition(":")
            return kind if kind in (self.types or ()) and self.is_bare(bare) else None
        matched = self.pattern.fullmatch(text) if len(text) <= MAX_ID_LENGTH else None
        type_of = self.type_of
        if matched is None or type_of is None:
            return None
        return type_of.get(matched[1]) if isinstance(type_of, Mapping) else type_of(text)

    def type_in(self, field: str, holder: str) -> str | None:
        """Return the type that *fields* give to the ids in *field* of a mapping with the name *holder*."""
        if field in self.deny:
            return None
        path = f"{holder}.{field}"
        for name, kind in self.fields.items():
            if fnmatch.fnmatchcase(path if "." in name else field, name):
                return kind
        return None

    def type_called(self, name: object) -> str | None:
        """Return the type whose entities stand in a mapping or list with this *name*."""
        return self._called.get(name.lower()) if isinstance(name, str) else None

    def bare_id(self, key: str) -> str:
        """Return the id as its own system writes it, so without a type that *fields* added."""
        return key.partition(":")[2] if self.fields else key

    def is_bare(self, text: str) -> bool:
        """Tell whether *text* can be an id without its type."""
        return 0 < len(text) <= MAX_ID_LENGTH and self.pattern.fullmatch(text) is not None

    def brief_of(self, kind: str) -> tuple[str, ...]:
        """Return the fields of a type that a reader needs first; empty if the scheme names none."""
        return self.brief.get(kind, ())

    def expected(self, field: str) -> frozenset[str] | None:
        """Return the types that the ids in a field have by its name, or None if any type is possible."""
        if field in self.hints:
            return self.hints[field]
        for ending, types in self._endings:
            if field.endswith(ending):
                return types
        return None


@runtime_checkable
class EntitySource(Protocol):
    """What a `Resolver` needs of a source; `Source` is the ready-made one."""

    @property
    def scheme(self) -> IdScheme:
        """The ids that the source answers for."""

    @property
    def fetch(self) -> Fetch | None:
        """Answer one id with the entity's fields, or raise `mama_structs.errors.EntityNotFound`."""

    @property
    def fetch_many(self) -> FetchMany | None:
        """Answer many ids at once: a mapping from id to the fields, or to the exception for that id."""

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer's fields as they stand in a reference."""

    async def close(self) -> None:
        """Release what the source itself opened."""


def _fetch(function: AnyFetch | None) -> Fetch | None:
    return None if function is None else awaited(function, what="fetch")


def _fetch_many(function: AnyFetchMany | None) -> FetchMany | None:
    return None if function is None else awaited(function, what="fetch_many")


def _of_bare_id(scheme: IdScheme, function: Fetch | None) -> Fetch | None:
    """Return a function of the key that asks one of the bare id."""
    if function is None:
        return None

    async def fetch(key: str) -> Mapping[str, Any]:
        return await function(scheme.bare_id(key))

    return fetch


def _of_bare_ids(scheme: IdScheme, function: FetchMany | None) -> FetchMany | None:
    if function is None:
        return None

    async def fetch_many(keys: list[str]) -> Mapping[str, Mapping[str, Any] | Exception]:
        bare = {key: scheme.bare_id(key) for key in keys}
        answers = await function(list(bare.values()))
        if not isinstance(answers, Mapping):
            return answers
        # A database answers with the numbers that it was asked for as text.
        named = {str(one): answer for one, answer in answers.items()}
        return {key: named[one] for key, one in bare.items() if one in named}

    return fetch_many


@attrs.frozen(kw_only=True, eq=False)
class Source:
    """
    A host's own source of entities.

    The functions get ids as payloads hold them.
    Where the scheme's *fields* tell the types, that is the bare id (``"7"``, as text) if the scheme has one type,
    else ``type:id``, and the answers of *fetch_many* are named likewise.

    Args:
        scheme: The ids that it answers for; may be given by position.
        fetch: ``fetch(id) -> Mapping``, async or plain (then it runs in a thread): the entity's fields;
            raises `mama_structs.errors.EntityNotFound` when there is none.
        fetch_many: ``fetch_many(ids) -> Mapping``, likewise: for each id the fields, or an exception.
            It is called once for the unknown ids of all calls that come together: in one turn of the event loop, or
            while none of the resolver's slots is free. Ids that its answer leaves out count as not found.
            At least one of the two is needed; with both, one id alone goes to *fetch*.
        max_batch: The most ids for *fetch_many* at once; None for any number.
        is_cached: Whether answers may be reused for a while; False for what is at hand anyway and changes.

    Raises:
        InvalidArgument: Neither function was given, or one of them is a generator or no function.

    """

    scheme: IdScheme = attrs.field(kw_only=False, validator=attrs.validators.instance_of(IdScheme))
    fetch: Fetch | None = attrs.field(default=None, converter=_fetch)
    fetch_many: FetchMany | None = attrs.field(default=None, converter=_fetch_many)
    max_batch: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_check.field(_check.whole, 1, 10**9))
    )
    is_cached: bool = True

    def __attrs_post_init__(self) -> None:
        """Refuse a source that could not answer."""
        if self.fetch is None and self.fetch_many is None:
            raise InvalidArgument(
                f"the source {self.scheme.name!r} cannot fetch anything", hint="give fetch=, fetch_many= or both"
            )
        if self.scheme.fields and len(self.scheme.types or ()) == 1:
            object.__setattr__(self, "fetch", _of_bare_id(self.scheme, self.fetch))
            object.__setattr__(self, "fetch_many", _of_bare_ids(self.scheme, self.fetch_many))

    @classmethod
    def from_sqlite(
        cls, path: str | os.PathLike[str], *, tables: Collection[str] | None = None, name: str | None = None
    ) -> Source:
        """
        Return a source for the rows of a SQLite database: every foreign key of one column becomes a reference.

        A row is known as ``table:key``, such as ``customers:7``, after a table whose primary key is one column.
        A column that names rows of different tables in different tables counts where its mapping stands under the
        table's name.
        The database is opened for each question, for reading only, in a thread.

        Args:
            path: The database's file.
            tables: Only these tables; None for all.
            name: The scheme's name; None for that of the file.

        Raises:
            InvalidArgument: There is no such file, it is no SQLite database, or it has no such foreign key or table.

        """
        from mama_structs.sources.sqlite import sqlite_source  # noqa: PLC0415 - it needs this class

        return sqlite_source(path, tables=tables, name=name)

    @classmethod
    def from_openapi(
        cls,
        spec: Mapping[str, Any] | str | os.PathLike[str],
        *,
        fields: Mapping[str, str] | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        session: Any = None,
        name: str | None = None,
    ) -> EntitySource:
        """
        Return a source for an HTTP API that OpenAPI 3 describes.

        Each ``GET`` path with one parameter at its end (``/users/{userId}``) makes a type, called after the schema of
        its answer, or else after the path (``user``); an entity is known as ``type:id``.
        Fields that name entities are those called after the parameter or the type (``user_id``, ``userId``,
        ``*_user_id``, and plurals), and those that the ``links`` of an operation lead to a type.

        Args:
            spec: The document: a mapping, JSON text, or the path of a JSON file.
            fields: Further fields with the type of each, as in `IdScheme`.
            base_url: Where the paths begin; None for the document's first server.
            headers: Sent with every request, such as ``Authorization``.
            session: The host's `aiohttp.ClientSession`; None for connections that close with the source.
            name: The scheme's name; None for the API's title.

        Raises:
            InvalidArgument: It is no such document, it has no such path, or a server's URL is missing.

        """
        from mama_structs.sources.openapi import OpenApiSource, read_document  # noqa: PLC0415 - rarely needed

        document = read_document(spec)
        own = document.title if name is None else name
        return OpenApiSource(document, fields=fields, base_url=base_url, headers=headers, session=session, name=own)

    def flatten(self, entity_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002 - the protocol's
        """Return the answer: a host's mapping already is the entity's fields."""
        return answer

    async def close(self) -> None:
        """Do nothing: what the functions use is the host's."""


def check_sources(sources: object) -> tuple[EntitySource, ...]:
    """Return *sources* as a tuple, or raise `InvalidArgument` where two of them answer for one scheme."""
    if isinstance(sources, str | EntitySource) or not isinstance(sources, Iterable):
        raise InvalidArgument(f"sources must be a list of sources, got {shown(sources)}")
    checked: list[EntitySource] = []
    for source in sources:
        if not isinstance(source, EntitySource):
            raise InvalidArgument(
                f"a source must have a scheme and fetch or fetch_many, got {shown(source)}",
                hint="Source(scheme, fetch=...) makes one from a function",
            )
        if source.scheme.name in [other.scheme.name for other in checked]:
            raise InvalidArgument(
                f"two sources answer for the ids of {source.scheme.name!r}, and the second would never be asked",
                hint="give one of them, or a scheme of another name",
            )
        checked.append(source)
    return tuple(checked)
