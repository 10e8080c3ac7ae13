"""Check of a checkpointer's serializer."""

from __future__ import annotations

from typing import Final

from mama_structs.errors import InvalidArgument

# Maximum number of nested serializers to check. This limit ends the loop if the serializers form a cycle.
_MAX_SERIALIZER_DEPTH: Final = 16


def check_serde(serde: object) -> None:
    """Raise if a serializer, or any serializer nested in it, may unpickle data."""
    for _ in range(_MAX_SERIALIZER_DEPTH):
        if serde is None:
            return
        if getattr(serde, "pickle_fallback", False):
            raise InvalidArgument("serde must not unpickle", hint="JsonPlusSerializer(pickle_fallback=False)")
        serde = getattr(serde, "serde", None)
    raise InvalidArgument(f"serde nests more than {_MAX_SERIALIZER_DEPTH} serializers")
