"""Hypothesis strategies for the arguments of tools, by a tool's schema."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st


def tool_arguments(
    schema: Mapping[str, Any], *, texts: Mapping[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """
    Give what a tool takes.

    Args:
        schema: The tool's ``input_schema``.
        texts: What to give, beside any text, for parameters by name, such as ids that there are:
            ``{"planet_id": st.sampled_from(ids), "*_id": ...}``. The first pattern that fits counts.

    """
    return _accepted(schema, "", dict(texts or {}), schema)


def _accepted(
    schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[Any]:
    """Give what a JSON schema, of the kind that signatures become, accepts."""
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return st.deferred(lambda: _accepted(target, name, texts, root))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return st.one_of(*(_accepted(one, name, texts, root) for one in schema[several]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    kinds = schema.get("type", "any")
    if not isinstance(kinds, str):
        return st.one_of(*(_accepted({**schema, "type": kind}, name, texts, root) for kind in kinds))
    least, most = schema.get("minimum"), schema.get("maximum")
    makers: dict[str, Any] = {
        "object": lambda: _objects(schema, texts, root),
        "array": lambda: st.lists(
            _accepted(schema.get("items", {}), name, texts, root),
            min_size=schema.get("minItems", 0), max_size=max(4, schema.get("minItems", 0)),
        ),
        "string": lambda: _texts(schema, name, texts),
        "integer": lambda: st.integers(-3 if least is None else least, 60 if most is None else most),
        "number": lambda: st.floats(-1e9 if least is None else least, 1e9 if most is None else most),
        "boolean": st.booleans,
        "null": st.none,
    }  # fmt: skip
    maker: Any = makers.get(kinds, lambda: st.none() | st.booleans() | st.integers(-3, 60) | st.text(max_size=5))
    given: st.SearchStrategy[Any] = maker()
    return given


def _objects(
    schema: Mapping[str, Any], texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    members = {name: _accepted(one, name, texts, root) for name, one in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: one for name, one in members.items() if name in required},
        optional={name: one for name, one in members.items() if name not in required},
    )


def _texts(schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[str]:
    least = schema.get("minLength", 0)
    most = min(schema.get("maxLength", 60), max(least, 60))
    if schema.get("format") in ("date-time", "date"):
        moments = st.datetimes(timezones=st.timezones()) if schema["format"] == "date-time" else st.dates()
        return moments.map(lambda moment: moment.isoformat())
    if "pattern" in schema:
        return st.from_regex(schema["pattern"]).filter(lambda text: least <= len(text) <= schema.get("maxLength", 200))
    written = st.text(min_size=least, max_size=most)
    known = next((one for pattern, one in texts.items() if fnmatch.fnmatchcase(name, pattern)), None)
    return written if known is None else known | written
