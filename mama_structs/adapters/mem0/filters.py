"""Filters of mem0's searches on memory payloads, with the semantics of its Qdrant store."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from mama_structs._internal.jsonable import is_same_json
from mama_structs.errors import InvalidArgument, repr_short

Condition = Callable[[Mapping[str, Any]], bool]

WILDCARD: Final = "*"
_LOGICAL_OPERATORS: Final[Mapping[str, str]] = {
    "AND": "AND",
    "OR": "OR",
    "NOT": "NOT",
    "$and": "AND",
    "$or": "OR",
    "$not": "NOT",
}
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": lambda value, bound: bool(value > bound),
    "gte": lambda value, bound: bool(value >= bound),
    "lt": lambda value, bound: bool(value < bound),
    "lte": lambda value, bound: bool(value <= bound),
}
_OPERATORS: Final = ("eq", "ne", "in", "nin", "contains", "icontains", *_COMPARISONS)
_DATE_PATTERN: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")


def compile_filters(filters: Mapping[str, Any]) -> Condition:
    """Compile filters to a predicate for payloads. Raise if they are invalid."""
    return _compile_conjunction(filters) or (lambda _payload: True)


def _compile_conjunction(filters: Mapping[str, Any]) -> Condition | None:
    """Compile filters to one predicate. Return None for empty filters, which mem0 ignores."""
    if unnamed := [one for one in filters if not isinstance(one, str)]:
        raise InvalidArgument(f"a name in filters must be text, got {repr_short(unnamed[0])}")
    several = (
        _compile_logical(_LOGICAL_OPERATORS[name], one) if name in _LOGICAL_OPERATORS else _compile_field(name, one)
        for name, one in filters.items()
    )
    tests = [test for test in several if test is not None]
    return (lambda payload: all(test(payload) for test in tests)) if tests else None


def _compile_logical(word: str, given: object) -> Condition | None:
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(one, Mapping) for one in given):
        raise InvalidArgument(f"{word} in filters must be a list of conditions, got {repr_short(given)}")
    if not given:
        raise InvalidArgument(f"{word} in filters must have at least one condition")
    tests = [test for test in map(_compile_conjunction, given) if test is not None]
    if not tests:
        return None
    if word == "NOT":
        return lambda payload: not any(test(payload) for test in tests)
    several = any if word == "OR" else all
    return lambda payload: several(test(payload) for test in tests)


def _compile_field(name: str, given: object) -> Condition | None:
    if given == WILDCARD:
        return None
    conditions = given if isinstance(given, Mapping) else {"in" if isinstance(given, list | tuple) else "eq": given}
    unknown = [str(one) for one in conditions if one not in _OPERATORS]
    if unknown or not conditions:
        what = f"has an unknown operator {repr_short(unknown[0])}" if unknown else "has no operator"
        raise InvalidArgument(f"the filter of {name!r:.100} {what}", hint=f"use one of {', '.join(_OPERATORS)}")
    for operator in ("in", "nin"):
        if operator in conditions and not isinstance(conditions[operator], list | tuple | set | frozenset):
            raise InvalidArgument(f"the filter of {name!r:.100} needs a list for {operator!r}")
    return lambda payload: any(
        all(_matches(value, operator, bound) for operator, bound in conditions.items())
        for value in _get_values(payload, name)
    )


def _get_values(payload: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return the values at a key or dotted path: a list's items, or a single value."""
    found: Any = payload
    for part in (name,) if name in payload else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _matches(value: Any, operator: str, bound: Any) -> bool:
    if operator in _COMPARISONS:
        return _compare(value, operator, bound)
    if operator in ("contains", "icontains"):
        texts = (str(value), str(bound))
        whole, part = map(str.casefold, texts) if operator == "icontains" else texts
        return isinstance(value, str) and part in whole
    several = bound if operator in ("in", "nin") else (bound,)
    return any(is_same_json(value, one) for one in several) is (operator in ("eq", "in"))


def _compare(value: Any, operator: str, bound: Any) -> bool:
    """Compare two numbers, or two dates or times; return False for other types."""
    if isinstance(value, bool) or isinstance(bound, bool):
        return False
    if isinstance(value, int | float) and isinstance(bound, int | float):
        return _COMPARISONS[operator](value, bound)
    one, other = _parse_time(value), _parse_time(bound)
    return one is not None and other is not None and _COMPARISONS[operator](one, other)


def _parse_time(value: Any) -> datetime | None:
    if not isinstance(value, str) or not _DATE_PATTERN.fullmatch(value):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
