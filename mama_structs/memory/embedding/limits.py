"""The rules of the arguments that embedders share."""

from __future__ import annotations

import math

from mama_structs.errors import InvalidArgument


def whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """
    Refuse what is no whole number in a range.

    Raises:
        InvalidArgument: It is none, or out of the range.

    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"{least} or more" if most is None else f"from {least} to {most}"
        raise InvalidArgument(f"{name} must be a whole number, {bounds}, got {value!r:.40}")


def finite(name: str, value: object) -> float:
    """
    Return a number, or refuse what is none.

    Raises:
        InvalidArgument: It is no number, or not finite.

    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidArgument(f"{name} must be a finite number, got {value!r:.40}")
    return float(value)


def text(name: str, value: object) -> None:
    """
    Refuse what is no text, or empty.

    Raises:
        InvalidArgument: It is so.

    """
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{name} must be text that is not empty, got {value!r:.80}")


def or_zero(value: int | None) -> int:
    """Return a number, 0 for None: what is not said yet."""
    return value or 0
