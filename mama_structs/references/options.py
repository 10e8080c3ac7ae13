"""Options of one call for adding references to a result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Final, Literal, Self

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import InvalidArgument, repr_short

MAX_DEPTH = 2

Scope = Literal["primary", "all"]
Kind = Literal["auto", "query", "list"]


def _check_include_references(_: Any, __: Any, value: object) -> None:
    if value not in (None, "primary", "all") and not isinstance(value, bool):
        raise InvalidArgument(f'include_references must be True, False, "primary" or "all", got {repr_short(value)}')


def _check_depth(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_DEPTH:
        raise InvalidArgument(
            f"{attribute.name} must be 0, 1 or 2, got {repr_short(value)}",
            hint="for what lies deeper, call the tool again with the id",
        )


def _parse_type_names(value: Collection[str] | None, *, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    # Reject a single string, because it would be iterated character by character.
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidArgument(
            f"{name} must be a list of type names, got {repr_short(value)}", hint='for one type, give ["planet"]'
        )
    for one in value:
        if not isinstance(one, str):
            raise InvalidArgument(f"{name} must hold names such as planet, got {repr_short(one)}")
    names = sorted(value) if isinstance(value, AbstractSet) else value
    return tuple(dict.fromkeys(str(one) for one in names))


def _make_types_field(name: str) -> Any:
    return attrs.field(default=None, converter=functools.partial(_parse_type_names, name=name))


def _parse_fields(value: object) -> Any:
    if isinstance(value, str) and value in ("brief", "all"):
        return value
    if not isinstance(value, Mapping):
        raise InvalidArgument(
            f'fields must be "brief", "all" or field names by type, got {repr_short(value)}',
            hint='such as {"planet": ("name", "status")}',
        )
    return {str(kind): tuple((check_primary(names, name="fields") and names) or ()) for kind, names in value.items()}


def _parse_paths(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidArgument(
            f"expand must be a list of paths, got {repr_short(value)}", hint='such as ["guild.owner"]'
        )
    for path in value:
        steps = path.split(".") if isinstance(path, str) else []
        if not 1 <= len(steps) <= MAX_DEPTH or not all(steps):
            raise InvalidArgument(
                f"expand must hold paths of one or two names, got {repr_short(path)}",
                hint="for what lies deeper, call the tool again with the id",
            )
    return tuple(dict.fromkeys(sorted(value) if isinstance(value, AbstractSet) else value))


def _check_on_error(_: Any, __: Any, value: object) -> None:
    if value not in ("indicate", "omit"):
        raise InvalidArgument(f'on_error must be "indicate" or "omit", got {repr_short(value)}')


_count_validator = _check.field_validator(_check.check_integer)
_flag_validator = _check.field_validator(_check.check_bool)


@attrs.frozen(kw_only=True)
class ReferenceOptions(JsonMixin):
    """
    Options of one call for adding references to a result.

    Args:
        include_references: False for none, ``"primary"`` for owners and direct relations, ``"all"`` for every id,
            True for ``"all"`` on a query and ``"primary"`` on a list. None, the default, means True in a direct request
            for references, and False as the default of a tool, so that its caller has to request them.
        reference_depth: 0 for none, 1 for ids in the payload, 2 for one level further.
        reference_types: Only entities of these types; None for all.
        max_references: Maximum number of references.
        max_references_per_entity: Maximum number of references for each row of a list.
        metadata: Add ``referenced_from`` (JSON pointers), ``referenced_in`` (entity, or ``root``) and ``as_of`` (the
            chain's ``height`` if known, ``age`` in seconds) to each reference, and always add ``references_meta``.
        on_error: ``"indicate"`` returns an entry with the reason for each failure, ``"omit"`` leaves failures out.
        max_bytes: Maximum size of the section in bytes (compact JSON, UTF-8); None for no limit.
        deadline: Seconds for all references of the call together; missing ones are then marked as failed.
        include_memories: Whether each reference, and the payload's own entity, includes the newest decisions about
            it; in a session only.
        fields: Fields returned for each entity: ``"all"``, ``"brief"`` for the main fields of its type
            (`IdScheme.brief_fields`), or names by type, such as ``{"planet": ("name", "status")}``, where other types
            keep all fields. It does not affect which ids are referenced.
        expand: Paths to the referenced entities, instead of *reference_types*, *reference_depth* and primary fields:
            one or two names each, such as ``("guild.owner", "fleet")``. A name is that of a field (``guildId``), of
            its relation (``guild``), or of a type.
        max_depth: As a default of a tool: the maximum depth that a model can request.
        allowed_types: As a default of a tool: the only types that a model can request; None for all.

    Raises:
        InvalidArgument: A value is invalid.

    """

    include_references: bool | Scope | None = attrs.field(default=None, validator=_check_include_references)
    reference_depth: int = attrs.field(default=1, validator=_check_depth)
    reference_types: tuple[str, ...] | None = _make_types_field("reference_types")
    max_references: int = attrs.field(default=50, validator=_count_validator)
    max_references_per_entity: int = attrs.field(default=5, validator=_count_validator)
    metadata: bool = attrs.field(default=False, validator=_flag_validator)
    on_error: Literal["indicate", "omit"] = attrs.field(default="indicate", validator=_check_on_error)
    max_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_count_validator))
    deadline: float = attrs.field(default=5.0, validator=_check.field_validator(_check.check_seconds))
    include_memories: bool = attrs.field(default=False, validator=_flag_validator)
    fields: Mapping[str, tuple[str, ...]] | Literal["brief", "all"] = attrs.field(
        default="all", converter=_parse_fields
    )
    expand: tuple[str, ...] = attrs.field(default=(), converter=_parse_paths)
    max_depth: int = attrs.field(default=MAX_DEPTH, validator=_check_depth)
    allowed_types: tuple[str, ...] | None = _make_types_field("allowed_types")

    def __attrs_post_init__(self) -> None:
        """Raise `InvalidArgument` if *expand* is combined with types or depth."""
        if self.expand and (self.reference_types is not None or self.reference_depth != 1):
            raise InvalidArgument(
                "expand says which references there are, and so do reference_types and reference_depth",
                hint="leave expand out, or the others",
            )

    @property
    def _has_references(self) -> bool:
        """True if these options request any references."""
        return self.include_references is not False and self.reference_depth > 0

    @property
    def _levels(self) -> int:
        """Number of requested levels of references."""
        return max((path.count(".") + 1 for path in self.expand), default=self.reference_depth)

    @property
    def _named_types(self) -> frozenset[str]:
        """Types that the caller names, including all steps of *expand*."""
        return frozenset(self.reference_types or ()).union(*(path.split(".") for path in self.expand))

    def _scope(self, *, is_list: bool) -> Scope:
        """Return which fields to follow. By default: all fields for a query, direct relations for a list."""
        if self.expand:
            return "all"
        if isinstance(self.include_references, str):
            return self.include_references
        return "primary" if is_list else "all"

    def _changed(self, asked: Mapping[str, Any]) -> ReferenceOptions:
        """Return a copy with the options in *asked*. Setting *expand* resets types and depth, and vice versa."""
        if self.expand and not asked.keys().isdisjoint(("reference_types", "reference_depth")):
            asked = {"expand": (), **asked}
        elif asked.get("expand"):
            asked = {"reference_types": None, "reference_depth": 1, **asked}
        return attrs.evolve(self, **asked)

    def _held(self, asked: Mapping[str, Any]) -> tuple[ReferenceOptions, dict[str, Any]]:
        """
        Return the options for a model's request, clamped to the ceilings of the tool.

        The second return value contains the ceilings that the request exceeded.
        """
        # Models with strict schemas send an empty list for nothing.
        is_blank = asked.get("reference_types") in ([], ())
        wanted = self._changed({name: asked[name] for name in asked if name != "reference_types" or not is_blank})
        ceilings = {"max_references": self.max_references, "max_references_per_entity": self.max_references_per_entity}
        ceilings["reference_depth"] = self.max_depth
        exceeded: dict[str, Any] = {name: least for name, least in ceilings.items() if getattr(wanted, name) > least}
        if self.allowed_types is not None and not wanted.expand:
            types = [name for name in wanted.reference_types or () if name in self.allowed_types]
            if wanted.reference_types is None:
                wanted = attrs.evolve(wanted, reference_types=self.allowed_types)
            elif len(types) < len(wanted.reference_types):
                exceeded["reference_types"] = types
        return (attrs.evolve(wanted, **exceeded) if exceeded else wanted), exceeded


def check_kind(kind: object) -> None:
    """Raise `InvalidArgument` unless *kind* is ``"auto"``, ``"query"`` or ``"list"``."""
    if kind not in ("auto", "query", "list"):
        raise InvalidArgument(f'kind must be "auto", "query" or "list", got {repr_short(kind)}')


def check_primary(primary: object, *, name: str = "primary") -> frozenset[str] | None:
    """Validate and return field names as a set; raise `InvalidArgument` for other values."""
    if primary is None:
        return None
    if isinstance(primary, str) or not isinstance(primary, Collection):
        raise InvalidArgument(f"{name} must be field names such as {{'owner'}}, got {repr_short(primary)}")
    return frozenset(primary)


# All reference parameters of a tool, in the order of its signature.
ALL_PARAMETERS: Final = (
    "include_references",
    "reference_types",
    "reference_depth",
    "max_references",
    "max_references_per_entity",
)
# Parameters that models see by default. The remaining ones cost tokens, and models rarely use them well.
DEFAULT_PARAMETERS: Final = ALL_PARAMETERS[:3]


class ParameterDescription(str):
    """
    Description and bounds of a parameter.

    Frameworks such as Pydantic read it from `Annotated`.
    """

    __slots__ = ("bounds",)
    bounds: dict[str, int]

    def __new__(cls, text: str, **bounds: int) -> Self:
        """Return the text with the minimum (*ge*) and maximum (*le*) of a number."""
        made = super().__new__(cls, text)
        made.bounds = bounds
        return made

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the bounds to the Pydantic core schema."""
        return {**handler(source), **self.bounds}

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the description to the JSON schema."""
        return {**handler(core), "description": str(self)}


def make_reference_parameters(options: ReferenceOptions, types: Collection[str] | None) -> dict[str, inspect.Parameter]:
    """
    Return the typed, bounded and described parameters by name.

    *types* is None if type names are open.
    """
    kind: Any = Literal[tuple(types)] if types else str
    hints = {
        "include_references": _annotate(bool | Literal["primary", "all"], "Add what ids name"),
        "reference_types": _annotate(Sequence[kind] | None, "Only these"),
        "reference_depth": _annotate(Literal[0, 1, 2], "2: theirs too"),
        "max_references": _annotate(int, "References at most", ge=0),
        "max_references_per_entity": _annotate(int, "References of each entity at most", ge=0),
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {
        name: inspect.Parameter(name, keyword, default=getattr(options, name), annotation=hint)
        for name, hint in hints.items()
    }


def _annotate(kind: Any, text: str, **bounds: Any) -> Any:
    # Import msgspec lazily, because only decorated tools need it.
    import msgspec  # noqa: PLC0415

    return Annotated[kind, msgspec.Meta(description=text, **bounds), ParameterDescription(text, **bounds)]
