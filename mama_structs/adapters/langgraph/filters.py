"""Filters of LangGraph's stores, independent of records and of the framework."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from mama_structs._internal.jsonable import is_same_json
from mama_structs.errors import InvalidArgument, repr_short

MAX_CONDITION_LEVELS: Final = 2
MAX_CONDITION_NAMES: Final = 3
"""Maximum number of names on each level of a condition. Few values are enough to find few records by index."""
MAX_CONDITION_NUMBER: Final = 2**63

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": lambda value, bound: value > bound,
    "$gte": lambda value, bound: value >= bound,
    "$lt": lambda value, bound: value < bound,
    "$lte": lambda value, bound: value <= bound,
}


def check_filter(condition: Any) -> None:
    """Raise if a filter contains an unknown operator or a key that is not a string."""
    if isinstance(condition, Mapping):
        for name, bound in condition.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"a filter's names must be texts, got {repr_short(name)}")
            if name.startswith("$") and name not in {"$eq", "$ne", *_COMPARISONS}:
                raise InvalidArgument(
                    f"the filter's operator {name} is unknown", hint="use $eq, $ne, $gt, $gte, $lt, $lte"
                )
            check_filter(bound)


def find_record_condition(condition: Any, levels: int = MAX_CONDITION_LEVELS) -> dict[str, Any]:
    """
    Return a condition on records that all records satisfy that match a filter.

    It contains some equal values of the filter. Names with dots and None are left out: a filter looks such names up in
    two ways, and None also matches a missing value.
    """
    found: dict[str, Any] = {}
    for name, bound in condition.items() if isinstance(condition, Mapping) else ():
        wanted = bound.get("$eq") if isinstance(bound, Mapping) and "$eq" in bound else bound
        if isinstance(wanted, Mapping):
            is_path = levels and not any(key.startswith("$") for key in wanted)
            wanted = find_record_condition(wanted, levels - 1) or None if is_path else None
        if "." not in name and (isinstance(wanted, str | bool | dict) or _is_short_number(wanted)):
            found[name] = wanted
    return dict(itertools.islice(found.items(), MAX_CONDITION_NAMES))


def _is_short_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < MAX_CONDITION_NUMBER


def matches_filter(value: Any, condition: Any) -> bool:
    """Return True if a value matches a filter."""
    if isinstance(condition, Mapping):
        if any(name.startswith("$") for name in condition):
            return all(_compare(value, operator, bound) for operator, bound in condition.items())
        names = condition.items()
        return isinstance(value, dict) and all(matches_filter(_get_value(value, name), bound) for name, bound in names)
    if isinstance(condition, list | tuple):
        same = isinstance(value, list) and len(value) == len(condition)
        return same and all(matches_filter(one, wanted) for one, wanted in zip(value, condition, strict=True))
    return is_same_json(value, condition)


def _get_value(value: dict[str, Any], name: str) -> Any:
    found: Any = value
    for part in (name,) if name in value else name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _compare(value: Any, operator: str, bound: Any) -> bool:
    if operator in ("$eq", "$ne"):
        return is_same_json(value, bound) is (operator == "$eq")
    compared = _COMPARISONS[operator]
    try:
        return compared(float(value), float(bound))
    except (TypeError, ValueError, OverflowError):
        # Compare two strings, such as dates, alphabetically. All other values that are not numbers do not match.
        return isinstance(value, str) and isinstance(bound, str) and compared(value, bound)
