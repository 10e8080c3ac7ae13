"""What a checkpointer may read its bytes by."""

from __future__ import annotations

from typing import Final

from mama_structs.errors import InvalidArgument

# An encryption holds one serializer; nobody has use for so many.
_DEEPEST: Final = 16


def check_serde(serde: object) -> None:
    """Refuse a serializer that may unpickle, itself or in one that it holds."""
    for _ in range(_DEEPEST):
        if serde is None:
            return
        if getattr(serde, "pickle_fallback", False):
            raise InvalidArgument("serde must not unpickle", hint="JsonPlusSerializer(pickle_fallback=False)")
        serde = getattr(serde, "serde", None)
    raise InvalidArgument(f"serde holds more than {_DEEPEST} serializers in each other")
