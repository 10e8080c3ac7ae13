"""Check of a checkpointer's serializer."""

from __future__ import annotations

from typing import Final

from mama_structs.errors import InvalidArgument

# Maximum nesting of serializers, such as an encrypting one around another. It ends the loop for cycles.
_MAX_SERIALIZER_DEPTH: Final = 16


def check_serde(serde: object) -> None:
    """Raise if a serializer, or a serializer that it wraps, may unpickle."""
    for _ in range(_MAX_SERIALIZER_DEPTH):
        if serde is None:
            return
        if getattr(serde, "pickle_fallback", False):
            raise InvalidArgument("serde must not unpickle", hint="JsonPlusSerializer(pickle_fallback=False)")
        serde = getattr(serde, "serde", None)
    raise InvalidArgument(f"serde nests more than {_MAX_SERIALIZER_DEPTH} serializers")
