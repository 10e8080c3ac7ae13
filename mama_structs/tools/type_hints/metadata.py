"""
Metadata in `Annotated`: constraints, conditions and descriptions of several packages.

No package is imported: objects of pydantic and annotated-types are recognized by module and attributes.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import math
import operator
import re
import sys
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Final, NamedTuple, get_origin

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.tools.type_hints.conversion import (
    LIST_TYPES,
    MAPPING_TYPES,
    JSONSchema,
    is_custom,
    is_supported,
    unwrap_type,
)

MULTIPLE_TOLERANCE: Final = 1e-12
"""Largest relative distance of a quotient from an integer."""


def _is_multiple(value: Any, divisor: Any) -> bool:
    """Return True for a multiple, up to rounding: 19.99 is a multiple of 0.01, although its float is not."""
    if isinstance(value, decimal.Decimal):
        return not value % decimal.Decimal(str(divisor))
    if isinstance(value, int) and isinstance(divisor, int):
        return not value % divisor
    quotient = value / divisor
    # The quotient of very large values is infinite. Such values are integers.
    return math.isinf(quotient) or math.isclose(
        quotient, round(quotient), rel_tol=MULTIPLE_TOLERANCE, abs_tol=MULTIPLE_TOLERANCE
    )


COMPARISONS: Final[Mapping[str, tuple[str, str, Callable[[Any, Any], bool]]]] = {
    "ge": ("minimum", "at least", lambda value, bound: bool(value >= bound)),
    "gt": ("exclusiveMinimum", "above", lambda value, bound: bool(value > bound)),
    "le": ("maximum", "at most", lambda value, bound: bool(value <= bound)),
    "lt": ("exclusiveMaximum", "below", lambda value, bound: bool(value < bound)),
    "multiple_of": ("multipleOf", "a multiple of", _is_multiple),
}


LENGTHS: Final[Mapping[str, tuple[str, str, Callable[[Any, Any], bool]]]] = {
    "min_length": ("minItems", "of length at least", lambda value, bound: len(value) >= bound),
    "max_length": ("maxItems", "of length at most", lambda value, bound: len(value) <= bound),
}


# If a constraint is stated twice, this selects the stricter bound.
STRICTER: Final[Mapping[str, Callable[..., Any]]] = {
    "ge": max, "gt": max, "min_length": max, "le": min, "lt": min, "max_length": min,
}  # fmt: skip


# msgspec compares floats exactly, and the lengths of sets before it removes equal items.
NON_NATIVE_CONSTRAINTS: Final[Mapping[Any, AbstractSet[str]]] = {
    float: frozenset({"multiple_of"}),
    **dict.fromkeys((set, frozenset, collections.abc.Set, collections.abc.MutableSet), LENGTHS.keys()),
}
NO_BOUNDS: Final = {"ge": -math.inf, "le": math.inf}
# Converts a bound that is no integer for a parameter that is one.
INTEGER_BOUNDS: Final[Mapping[str, Callable[[float], int]]] = {
    "ge": math.ceil, "lt": math.ceil, "le": math.floor, "gt": math.floor,
}  # fmt: skip


ORDERED_TYPES: Final = (int, float, decimal.Decimal, dt.date, dt.time, dt.timedelta)


# Attributes of a pydantic `FieldInfo` that are translated; others are rejected.
TRANSLATED_FIELD_ATTRIBUTES: Final = frozenset(
    ("annotation", "default", "default_factory", "description", "title", "examples", "deprecated", "json_schema_extra")
) | {"metadata", "alias_priority", "repr"}


# Attributes of a `FieldInfo` for which pydantic reads the annotation.
PYDANTIC_FIELD_ATTRIBUTES: Final = frozenset({"discriminator", "field_title_generator"})
# Names of pydantic's own metadata, such as a pattern.
GENERAL_METADATA_NAMES: Final = frozenset({"pydantic.PydanticGeneralMetadata", "pydantic._PydanticGeneralMetadata"})
BOUNDS: Final = (*COMPARISONS, *LENGTHS)


class ValueCondition(NamedTuple):
    """A condition for converted values, and its description for error messages."""

    is_met: Callable[[Any], object]
    words: str


@attrs.define
class Metadata:
    """The content of the metadata in `Annotated`."""

    # Keyword arguments of `msgspec.Meta` that restrict values.
    constraints: list[tuple[str, Any]] = attrs.field(factory=list)
    checks: list[ValueCondition] = attrs.field(factory=list)
    # Keyword arguments of `msgspec.Meta` that describe values.
    notes: dict[str, Any] = attrs.field(factory=dict)
    extra_schema: JSONSchema = attrs.field(factory=dict)
    # The pydantic `FieldInfo` that has a default.
    default: Any = None
    # Metadata that only pydantic can interpret.
    needs_pydantic: bool = False
    # Metadata that is not understood.
    unknown: Any = None

    @classmethod
    def parse(cls, metadata: Iterable[Any]) -> Metadata:
        """Interpret metadata. The last description wins."""
        made = cls()
        for one in metadata:
            made._add(one)
        return made

    def _add(self, one: Any) -> None:
        import msgspec  # noqa: PLC0415 - loaded when the first tool is created

        names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(one).__mro__}
        if isinstance(one, str) or isinstance(getattr(one, "documentation", None), str):
            self.notes["description"] = str(getattr(one, "documentation", one))
        elif isinstance(one, msgspec.Meta):
            self._add_meta(one)
        elif is_field_info(one):
            self._add_field(one)
        elif any(name.startswith("annotated_types.") for name in names):
            self._add_annotated_type(one, names)
        elif names & GENERAL_METADATA_NAMES:
            self._add_general(vars(one))
        elif _is_of_pydantic(one):
            # Arguments are always finite, because JSON has no NaN.
            self.needs_pydantic |= "pydantic.AllowInfNan" not in names
        elif one is not None and self.unknown is None:
            self.unknown = one

    def _add_annotated_type(self, one: Any, names: set[str]) -> None:
        # The attribute of a bound has the name of the constraint.
        bounds = [(word, getattr(one, word)) for word in BOUNDS if getattr(one, word, None) is not None]
        if "annotated_types.Predicate" in names:
            self.checks.append(ValueCondition(one.func, f"satisfy {_get_function_name(one.func)}"))
        elif "annotated_types.Timezone" in names:
            self._add_timezone(one.tz)
        elif "annotated_types.Unit" in names:
            self.notes["description"] = f"{self.notes.get('description', '')} (unit: {one.unit})".strip()
        elif isinstance(one, Iterable):
            for inner in one:
                self._add(inner)
        elif bounds:
            self.constraints.extend(bounds)
        elif names & GENERAL_METADATA_NAMES:
            self._add_general(vars(one))
        elif _is_of_pydantic(one):
            self.needs_pydantic = True
        elif self.unknown is None:
            self.unknown = one

    def _add_meta(self, meta: Any) -> None:
        for keyword in ("ge", "gt", "le", "lt", "multiple_of", "pattern", "min_length", "max_length", "tz"):
            if (value := getattr(meta, keyword)) is not None:
                self.constraints.append((keyword, value))
        for keyword in ("title", "description", "examples"):
            if (value := getattr(meta, keyword)) is not None:
                self.notes[keyword] = value
        self.extra_schema.update(meta.extra_json_schema or {})

    def _add_general(self, values: Mapping[str, Any]) -> None:
        for keyword, value in values.items():
            if keyword == "pattern" and value is not None:
                self.constraints.append((keyword, getattr(value, "pattern", value)))
            elif value is not None and keyword != "allow_inf_nan":
                self.needs_pydantic = True

    def _add_timezone(self, zone: Any) -> None:
        if zone is None or zone is ...:
            self.constraints.append(("tz", zone is ...))
            return
        expected = zoneinfo.ZoneInfo(zone) if isinstance(zone, str) else zone
        self.constraints.append(("tz", True))
        self.checks.append(
            ValueCondition(
                lambda value: value.utcoffset() == value.astimezone(expected).utcoffset(), f"be in time zone {zone}"
            )
        )

    def _add_field(self, field: Any) -> None:
        names = [
            name for name in type(field).__slots__ if not name.startswith("_") and getattr(field, name) is not None
        ]
        others = [name for name in names if name not in TRANSLATED_FIELD_ATTRIBUTES | PYDANTIC_FIELD_ATTRIBUTES]
        if others:
            self.unknown = f"pydantic.Field({others[0]}={getattr(field, others[0])!r:.60})"
            return
        for one in field.metadata:
            self._add(one)
        self.notes.update(
            {name: getattr(field, name) for name in ("title", "description", "examples") if name in names}
        )
        if field.deprecated:
            self.extra_schema["deprecated"] = True
        extra = field.json_schema_extra
        self.extra_schema.update(extra if isinstance(extra, Mapping) else {})
        if not PYDANTIC_FIELD_ATTRIBUTES.isdisjoint(names) or callable(extra):
            self.needs_pydantic = True
        if not field.is_required():
            self.default = field


def is_field_info(value: object) -> bool:
    """Return True if a value is what ``pydantic.Field(...)`` returns."""
    return any(
        kind.__name__ == "FieldInfo" and kind.__module__ == "pydantic.fields" for kind in type(value).__mro__
    ) and hasattr(value, "metadata")


def _is_of_pydantic(one: Any) -> bool:
    """Return True for metadata that pydantic interprets."""
    is_known = any(kind.__module__.partition(".")[0] == "pydantic" for kind in type(one).__mro__)
    return "pydantic" in sys.modules and (
        is_known or hasattr(one, "__get_pydantic_core_schema__") or hasattr(one, "__get_pydantic_json_schema__")
    )


def _get_function_name(function: Any) -> str:
    if type(function).__name__ == "Not":
        return f"not {_get_function_name(function.func)}"
    return f"{getattr(function, '__qualname__', function)!s:.80}"


def restrict_natively(kind: Any, constraints: Mapping[str, Any]) -> Any:
    """Return a type with constraints of msgspec, or None if msgspec cannot apply them."""
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    if constraints.keys() & _find_excluded_constraints(kind):
        return None
    try:
        made = Annotated[kind, msgspec.Meta(**constraints)]
    except (TypeError, ValueError, OverflowError, re.error):
        return None
    return made if is_supported(made) else None


def merge_constraints(
    kind: Any, constraints: Iterable[tuple[str, Any]]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return one value for each constraint, and further values that cannot be merged."""
    merged: dict[str, Any] = {}
    others: list[tuple[str, Any]] = []
    for keyword, bound in constraints:
        value = bound
        if value == NO_BOUNDS.get(keyword):
            continue
        if isinstance(value, float) and math.isfinite(value) and keyword in INTEGER_BOUNDS:
            value = INTEGER_BOUNDS[keyword](value) if unwrap_type(kind) is int else value
        if keyword not in merged:
            merged[keyword] = value
        elif keyword in STRICTER:
            merged[keyword] = STRICTER[keyword](merged[keyword], value)
        elif merged[keyword] != value:
            others.append((keyword, value))
    for loose, strict, is_stricter in (("ge", "gt", operator.ge), ("le", "lt", operator.le)):
        if loose in merged and strict in merged:
            merged.pop(loose if is_stricter(merged[strict], merged[loose]) else strict)
    return merged, others


def make_check(kind: Any, keyword: str, value: Any) -> ValueCondition:
    """Return a constraint as a check of converted values. Raise InvalidArgument if the type has no such values."""
    inner = unwrap_type(kind)
    while is_custom(inner) and inner.__name__ == "Checked":
        inner = unwrap_type(inner.json_type)
    if keyword in COMPARISONS and isinstance(inner, type) and issubclass(inner, ORDERED_TYPES) and inner is not bool:
        _, words, compare = COMPARISONS[keyword]
        is_divisor = isinstance(value, int | float | decimal.Decimal) and value > 0
        if isinstance(value, ORDERED_TYPES) and (keyword != "multiple_of" or is_divisor):
            return ValueCondition(lambda found: compare(found, value), f"be {words} {value}")
    listed = get_origin(unwrap_type(inner.json_type)) if is_custom(inner) else get_origin(inner) or inner
    if keyword in LENGTHS and (listed in LIST_TYPES or listed in MAPPING_TYPES):
        _, words, is_met = LENGTHS[keyword]
        return ValueCondition(lambda found: is_met(found, value), f"be {words} {value}")
    if keyword == "pattern" and inner is str:
        return ValueCondition(_compile(value).search, f"match {value}")
    name = getattr(inner, "__name__", inner)
    raise InvalidArgument(f"{keyword}={value!r:.60} cannot apply to {name!s:.80}", hint="remove it, or change the type")


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as cause:
        raise InvalidArgument(
            f"pattern={pattern!r:.80} is no regular expression of Python: {cause}", hint="change the pattern"
        ) from cause


def is_native_metadata(metadata: Iterable[Any]) -> bool:
    """Return True if msgspec understands all metadata, or it is a description that msgspec also has."""
    import msgspec  # noqa: PLC0415 - loaded when the first tool is created

    metas = [one for one in metadata if isinstance(one, msgspec.Meta)]
    described = {one.description for one in metas}
    return all(isinstance(one, msgspec.Meta) or (isinstance(one, str) and one in described) for one in metadata)


def restricts_natively(kind: Any, metadata: Iterable[Any]) -> bool:
    """Return True if msgspec applies the constraints of `is_native_metadata` as this module does."""
    excluded = _find_excluded_constraints(kind)
    return not any(getattr(one, keyword, None) is not None for keyword in excluded for one in metadata)


def _find_excluded_constraints(kind: Any) -> AbstractSet[str]:
    inner = unwrap_type(kind)
    return NON_NATIVE_CONSTRAINTS.get(get_origin(inner) or inner, frozenset())
