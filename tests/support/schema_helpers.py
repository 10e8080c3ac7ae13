"""OpenAI's rules for strict schemas, which other providers share."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from mama_structs.tools.schema import iterate_subschemas

KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "anyOf", "description", "enum", "items", "properties", "required"),
    "type",
}


def check_openai_strict(schema: dict[str, Any]) -> None:
    """Assert that a schema follows JSON Schema and OpenAI's rules for strict schemas."""
    Draft202012Validator.check_schema(schema)
    assert "object" == schema["type"]
    for node in iterate_subschemas(schema):
        assert KEYWORDS >= node.keys()
        assert {"type", "anyOf", "$ref"} & node.keys()
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert list(node["properties"]) == node["required"]
        if node.get("type") == "array":
            assert node["items"]
        assert "$ref" not in node or {"$ref"} == node.keys()


def accepts_null(schema: dict[str, Any]) -> bool:
    """Return True if a strict schema accepts null."""
    kinds = schema.get("type", [])
    return "null" in ([kinds] if isinstance(kinds, str) else kinds) or any(map(accepts_null, schema.get("anyOf", ())))


def check_optional_arguments_are_nullable(schema: dict[str, Any], input_schema: dict[str, Any]) -> None:
    """Assert that a model can pass null for each optional argument of a tool, and only for these."""
    optional = {*input_schema["properties"]} - {*input_schema.get("required", ())}
    assert optional == {name for name, one in schema["properties"].items() if accepts_null(one)}
