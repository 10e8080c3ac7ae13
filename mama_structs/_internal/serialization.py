"""Mixin that converts values of the public API to JSON."""

from __future__ import annotations

from typing import Any

from mama_structs._internal.jsonable import to_json_text, to_jsonable


class JsonMixin:
    """Adds `to_dict` and `to_json` to an attrs class."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Return the public fields as JSON data: dicts with str keys, lists, str, numbers, bool and None.

        The keys are the names of the attributes. Times are ISO 8601 text in UTC, enums their values.
        """
        data: dict[str, Any] = to_jsonable(self)
        return data

    def to_json(self) -> str:
        """Return the data of `to_dict` as JSON text."""
        return to_json_text(self.to_dict())
