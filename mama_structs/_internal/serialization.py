"""Mixin that converts values of the public API to JSON."""

from __future__ import annotations

from itertools import chain
from typing import Any, ClassVar

import attrs

from mama_structs._internal.jsonable import to_json_text, to_public_json


class JsonMixin:
    """Adds `to_dict` and `to_json` to an attrs class."""

    __slots__ = ()
    _json_properties: ClassVar[tuple[str, ...]] = ()
    """Properties that `to_dict` adds to the fields."""

    def to_dict(self) -> dict[str, Any]:
        """
        Return the public fields as JSON data: dicts with str keys, lists, str, numbers, bool and None.

        The keys are the names of the attributes. Times are ISO 8601 text in UTC, enums their values.
        ``json.dumps`` accepts the result, but not the object itself.
        """
        kind: Any = type(self)
        names = chain((field.name for field in attrs.fields(kind)), self._json_properties)
        return {name: to_public_json(getattr(self, name)) for name in names if not name.startswith("_")}

    def to_json(self) -> str:
        """Return the data of `to_dict` as JSON text."""
        return to_json_text(self.to_dict())
