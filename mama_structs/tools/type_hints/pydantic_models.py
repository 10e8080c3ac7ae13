"""Schemas, fields and errors of pydantic classes. Only a host that has imported pydantic has such classes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from mama_structs._internal.lazy_import import load_module
from mama_structs.tools.type_hints.class_fields import has_fields
from mama_structs.tools.type_hints.conversion import MAX_ERROR_CHARS, JSONSchema, ObjectField

MAX_SHOWN_ERRORS: Final = 4


def is_pydantic_class(kind: Any) -> bool:
    """Return True for models, dataclasses and other types of pydantic. Classes with other fields are none."""
    if not isinstance(kind, type) or "pydantic" not in sys.modules:
        return False
    return "__pydantic_validator__" in vars(kind) or (
        hasattr(kind, "__get_pydantic_core_schema__") and not has_fields(kind)
    )


def add_defaults(values: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the defaults of pydantic `FieldInfo` objects for the names that are missing."""
    made = dict(values)
    for name, field in fields.items():
        if name not in made:
            made[name] = field.get_default(call_default_factory=True, validated_data=dict(made))
    return made


def describe_pydantic_errors(fault: Any) -> str:
    """Return the messages of a pydantic error with the paths of the fields, without values."""
    found = [
        ("".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in one["loc"]), one["msg"])
        for one in fault.errors(include_url=False, include_context=False, include_input=False)
    ]
    (path, message), *others = found
    shown = [f"{place.removeprefix('.') or 'the value'}: {text}" for place, text in others[: MAX_SHOWN_ERRORS - 1]]
    if len(others) >= MAX_SHOWN_ERRORS:
        shown.append(f"and {len(others) - len(shown)} more")
    added = f" (also {'; '.join(shown)})" if shown else ""
    return f"{message:.{MAX_ERROR_CHARS}}{added}{f' - at `${path}`' if path else ''}"


def find_pydantic_fields(kind: Any, translate: Callable[[Any], Any]) -> dict[str, ObjectField] | None:
    """Return the fields of a pydantic class by the name in JSON, or None if it has none."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if not fields or getattr(kind, "__pydantic_root_model__", False):
        return None
    found = {}
    for name, field in fields.items():
        alias = field.validation_alias or field.alias or name
        if isinstance(alias, str):
            found[alias] = ObjectField(translate(get_field_hint(field)), field.is_required())
    return found or None


def get_field_hint(field: Any) -> Any:
    """Return the type of a field with its metadata."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def make_pydantic_schema(adapter: Any, *, is_result: bool) -> JSONSchema:
    """Return the schema of arguments or of results."""
    base: Any = load_module("pydantic.json_schema").GenerateJsonSchema

    class Generator(base):  # type: ignore[misc]
        by_alias: bool

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
            # The writer replaces such a value by a text.
            return super().handle_invalid_for_json_schema(schema, error_info) if not is_result else {}

        def decimal_schema(self, schema: Any) -> Any:
            # pydantic's pattern excludes exponents, which the writer uses.
            return super().decimal_schema(schema) if not is_result else {"type": "string", "format": "decimal"}

        def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
            # Titles that repeat the name cost tokens.
            return False

        def model_schema(self, schema: Any) -> Any:
            return self._make_with_aliases(schema, super().model_schema)

        def dataclass_schema(self, schema: Any) -> Any:
            return self._make_with_aliases(schema, super().dataclass_schema)

        def _make_with_aliases(self, schema: Any, make: Callable[[Any], Any]) -> Any:
            """Return the schema of a class that decides by itself whether it is written with aliases."""
            outer, self.by_alias = self.by_alias, not is_result or _is_written_by_alias(schema["cls"])
            try:
                return make(schema)
            finally:
                self.by_alias = outer

        def ser_schema(self, schema: Any) -> Any:
            # A function without a return type may write anything.
            is_untyped = schema["type"].startswith("function-") and "return_schema" not in schema
            return {} if is_untyped else super().ser_schema(schema)

    mode = "serialization" if is_result else "validation"
    schema: JSONSchema = adapter.json_schema(mode=mode, schema_generator=Generator)
    return schema


def _is_written_by_alias(kind: Any) -> bool:
    config = getattr(kind, "model_config", getattr(kind, "__pydantic_config__", None))
    return isinstance(config, dict) and bool(config.get("serialize_by_alias"))
