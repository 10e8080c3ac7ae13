"""The output schemas of tools also accept truncated results."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mama_structs import RefStore
from mama_structs._internal.budget import Budget
from mama_structs.tools.schema import iterate_subschemas, make_answer_schema

NAMES = ["a", "b", "text", "rows", "shortened", "shortened_", "ref_notes", "references"]
REMOVED_KEYWORDS = ("required", "minItems", "minProperties", "minLength", "maxLength", "oneOf", "not", "if", "contains")


def texts():
    """Return a strategy for pairs of a schema and a text. The schema restricts the length or the value."""
    return st.tuples(st.text(max_size=20), st.integers(1, 400)).flatmap(
        lambda made: st.sampled_from(
            [
                ({"type": "string", "minLength": len(made[0] * made[1])}, made[0] * made[1]),
                ({"type": "string", "maxLength": len(made[0] * made[1])}, made[0] * made[1]),
                ({"enum": ["a long word " * 9, "other"]}, "a long word " * 9),
                ({"type": "string", "pattern": "^(word )+$"}, "word " * made[1]),
                ({"const": {"a": 1, "b": ["deep"]}}, {"a": 1, "b": ["deep"]}),
                ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, made[1]),
            ]
        )
    )


def lists(inner):
    """Return a strategy for pairs of a schema and an array. The schema requires a minimum length."""
    return st.tuples(inner, st.integers(0, 50)).map(
        lambda made: (
            {
                "type": "array",
                "items": made[0][0],
                "minItems": made[1],
                **({"contains": made[0][0]} if made[1] else {}),
            },
            [made[0][1]] * made[1],
        )
    )


def mappings(inner):
    """Return a strategy for pairs of a schema and an object. The schema requires all fields. Most forbid others."""

    def made(members):
        value = {name: one for name, (_, one) in members.items()}
        schemas = {name: schema for name, (schema, _) in members.items()}
        own = {"type": "object", "required": list(value), "minProperties": len(value), "maxProperties": len(value)}
        named = {**own, "properties": schemas, "additionalProperties": False}
        absent = {**named, "properties": {**schemas, **{name: {"type": "null"} for name in NAMES if name not in value}}}
        patterns = {**own, "patternProperties": {f"^{re.escape(name)}$": one for name, one in schemas.items()}}
        closed = {**patterns, "additionalProperties": False, "propertyNames": {"enum": list(value)}}
        any_name = {**own, "additionalProperties": {"anyOf": list(schemas.values()) or [{}]}}
        chosen = {**own, "not": {"required": ["nothing"]}, "if": {"required": list(value)}, "then": own}
        return st.sampled_from([(one, value) for one in (named, absent, closed, any_name, chosen)])

    return st.dictionaries(st.sampled_from(NAMES), inner, max_size=6).flatmap(made)


results = mappings(st.recursive(texts(), lambda inner: lists(inner) | mappings(inner), max_leaves=12))


@given(result=results, limit=st.integers(100, 3_000))
def test_widened_schema_accepts_result_truncated_to_any_budget(result, limit):
    schema, value = result
    told = make_answer_schema(schema)
    shown = RefStore()._within(value, Budget(limit), schema=told)

    Draft202012Validator(schema).validate(value)
    Draft202012Validator.check_schema(told)
    Draft202012Validator(told).validate(value)
    Draft202012Validator(told).validate({**shown, "ref_notes": ["a note"]} if "ref_notes" not in shown else shown)


@given(result=results)
def test_widened_is_idempotent(result):
    told = make_answer_schema(result[0])

    assert told == make_answer_schema(told)


def test_widened_removes_only_constraints_that_truncation_violates():
    row = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "id": {"type": "string", "pattern": "^x", "minLength": 2},
            "rows": {"type": "array", "items": row, "minItems": 1, "maxItems": 9},
            "inner": {"oneOf": [row, {"type": "null"}]},
        },
        "required": ["kind"],
        "additionalProperties": False,
    }
    told = make_answer_schema(schema)

    assert {
        "kind": {"enum": ["a", "b"]},
        "id": {"type": "string", "pattern": "^x"},
        "rows": {"type": "array", "items": row, "maxItems": 9},
        "inner": {"anyOf": [{"type": "object", "properties": row["properties"]}, {"type": "null"}]},
    } == told["properties"]
    assert set(REMOVED_KEYWORDS).isdisjoint(told)
    assert told["additionalProperties"]["anyOf"] == [{"type": "object"}, {"type": "array"}]
    assert set(REMOVED_KEYWORDS) & {key for one in iterate_subschemas(told) for key in one} == {"required"}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "array"},
        {"type": ["object", "null"]},
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}},
        {"type": "object", "properties": {"a": {"$dynamicRef": "#a"}}},
    ],
)
def test_widened_returns_none_for_unsupported_schema(schema):
    assert make_answer_schema(schema) is None
