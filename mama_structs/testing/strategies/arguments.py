"""Hypothesis strategies for the arguments of a tool, derived from the tool's schema."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from datetime import timedelta, timezone
from typing import Any, Final

import msgspec
from hypothesis import strategies as st


def tool_arguments(
    schema: Mapping[str, Any], *, texts: Mapping[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """
    Return a strategy for a tool's arguments.

    Args:
        schema: The tool's ``input_schema``.
        texts: Additional strategies for text parameters by name, such as existing ids:
            ``{"planet_id": st.sampled_from(ids), "*_id": ...}``. The first matching pattern applies.

    """
    return _values(schema, "", dict(texts or {}), schema)


def _values(
    schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[Any]:
    """
    Return a strategy for values that a JSON schema accepts.

    It supports the schemas that are derived from function signatures.
    """
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return st.deferred(lambda: _values(target, name, texts, root))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return st.one_of(*(_values(one, name, texts, root) for one in schema[several]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    kinds = schema.get("type", "any")
    if not isinstance(kinds, str):
        return st.one_of(*(_values({**schema, "type": kind}, name, texts, root) for kind in kinds))
    makers: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "object": lambda: _objects(schema, texts, root),
        "array": lambda: _arrays(schema, name, texts, root),
        "string": lambda: _texts(schema, name, texts),
        "integer": lambda: _integers(schema),
        "number": lambda: _numbers(schema),
        "boolean": st.booleans,
        "null": st.none,
    }
    return makers.get(kinds, lambda: st.none() | st.booleans() | st.integers(-3, 60) | st.text(max_size=5))()


def _integers(schema: Mapping[str, Any]) -> st.SearchStrategy[int]:
    step = schema.get("multipleOf", 1)
    # Compute the smallest and the largest multiple of the step within the bounds.
    lows = [-(-schema["minimum"] // step)] if "minimum" in schema else []
    lows += [schema["exclusiveMinimum"] // step + 1] if "exclusiveMinimum" in schema else []
    highs = [schema["maximum"] // step] if "maximum" in schema else []
    highs += [-(-schema["exclusiveMaximum"] // step) - 1] if "exclusiveMaximum" in schema else []
    low = max(lows) if lows else min([-3, *(high - 60 for high in highs)])
    high = min(highs) if highs else max(60, low + 60)
    return st.integers(int(low), int(high)).map(lambda number: number * step)


def _numbers(schema: Mapping[str, Any]) -> st.SearchStrategy[float]:
    if "multipleOf" in schema:
        return _integers(schema)
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    least = max((one for one in (low, above) if one is not None), default=None)
    most = min((one for one in (high, below) if one is not None), default=None)
    return st.floats(
        min(-1e9, 2 * (most or 0)) if least is None else least,
        max(1e9, 2 * (least or 0)) if most is None else most,
        exclude_min=least is not None and least == above,
        exclude_max=most is not None and most == below,
    )


def _arrays(
    schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[list[Any]]:
    if "prefixItems" in schema:
        return st.tuples(*(_values(one, name, texts, root) for one in schema["prefixItems"])).map(list)
    least = schema.get("minItems", 0)
    most = min(schema.get("maxItems", math.inf), max(4, least))
    same = repr if schema.get("uniqueItems") else None
    items = _values(schema.get("items", {}), name, texts, root)
    return st.lists(items, min_size=least, max_size=int(most), unique_by=same)


def _objects(
    schema: Mapping[str, Any], texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    members = {name: _values(one, name, texts, root) for name, one in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    # Without ``additionalProperties``, an object with declared properties accepts no others.
    other = schema.get("additionalProperties", not members)
    if not members and other is not False:
        least = schema.get("minProperties", 0)
        most = min(schema.get("maxProperties", math.inf), max(3, least))
        names = st.text(max_size=5) | st.integers(0, 60).map(str)
        kind = _values(other if isinstance(other, Mapping) else {}, "", texts, root)
        return st.dictionaries(names, kind, min_size=least, max_size=int(most))
    return st.fixed_dictionaries(
        {name: one for name, one in members.items() if name in required},
        optional={name: one for name, one in members.items() if name not in required},
    )


# RFC 3339 allows offsets of whole minutes only.
_TIMEZONES: Final = st.integers(-840, 840).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_TEXT_FORMATS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "date-time": st.datetimes(timezones=_TIMEZONES),
    "date": st.dates(),
    "time": st.times(timezones=_TIMEZONES),
    "duration": st.timedeltas(timedelta(days=-1_000), timedelta(days=1_000)),
    "uuid": st.uuids(),
    "decimal": st.decimals(-1_000_000_000, 1_000_000_000, allow_nan=False, places=3),
}


def _texts(schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[str]:
    least = schema.get("minLength", 0)
    most = min(schema.get("maxLength", math.inf), max(least, 60))
    if schema.get("format") in _TEXT_FORMATS:
        return _TEXT_FORMATS[schema["format"]].map(msgspec.to_builtins)
    if schema.get("contentEncoding") == "base64":
        # Base64 encodes three bytes as four characters.
        return st.binary(min_size=-(-least // 4) * 3, max_size=int(most // 4 * 3)).map(msgspec.to_builtins)
    if "pattern" in schema:
        return st.from_regex(schema["pattern"]).filter(lambda text: least <= len(text) <= schema.get("maxLength", 200))
    written = st.text(min_size=least, max_size=int(most))
    known = next((one for pattern, one in texts.items() if fnmatch.fnmatchcase(name, pattern)), None)
    return written if known is None else known | written
