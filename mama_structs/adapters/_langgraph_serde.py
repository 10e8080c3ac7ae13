"""What a checkpointer may read its bytes by."""

from __future__ import annotations

from mama_structs.errors import InvalidArgument


def check_serde(serde: object) -> None:
    """Refuse a serializer that may unpickle, itself or in one that it holds, however deep."""
    seen: set[int] = set()
    while serde is not None and id(serde) not in seen:
        seen.add(id(serde))
        if getattr(serde, "pickle_fallback", False):
            raise InvalidArgument("serde must not unpickle", hint="JsonPlusSerializer(pickle_fallback=False)")
        serde = getattr(serde, "serde", None)
