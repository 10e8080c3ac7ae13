"""
Validation of arguments.

Each function returns the value or raises `InvalidArgument` with argument, rule and value.

`setting` and `field` turn them into attrs validators: ``attrs.field(validator=setting(whole, least=1))``.
"""

from __future__ import annotations

import numbers
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, SupportsIndex, TypeGuard, TypeVar

from mama_structs.errors import InvalidArgument, InvalidSetting, shown

T = TypeVar("T")

# Seconds. Longer time spans would leave the range of `datetime`.
CENTURY: Final = 100 * 366 * 86400.0
FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Stored times are at least `FIRST` and less than `LAST`."""
_ADDRESS: Final = re.compile(r"\s*\w[\w+.-]+://")
_MILLISECOND: Final = timedelta(milliseconds=1)


def is_address(location: object) -> TypeGuard[str]:
    """
    Return True if a session's location is a URL rather than a directory.

    `check_url` checks the URL.
    """
    return isinstance(location, str) and _ADDRESS.match(location) is not None


def whole(name: str, value: object, least: int = 0, most: int | None = None, *, mark: str = "") -> int:
    """
    Return an integer within bounds.

    *mark*, such as a comma, precedes the bounds in the message.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"{mark or ' of'} {least} or more" if most is None else f"{mark} from {least} to {most}"
        raise refused(name, f"must be a whole number{bounds}", value)
    return value


def index(value: object) -> object:
    """Return an integer-like value, such as a NumPy integer, as int; others unchanged."""
    try:
        return operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else value
    except TypeError:
        return value


def number(name: str, value: object) -> float:
    """Return a finite number as float."""
    # NaN compares as False, and an int may be too large for a float.
    if not _is_number(value) or not abs(value) <= sys.float_info.max:
        raise refused(name, "must be a finite number", value)
    return float(value)


def share(name: str, value: object) -> float:
    """Return a number from 0 to 1 as float. NumPy numbers are accepted."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= value <= 1:  # type: ignore[operator]  # typeshed knows no bounds of Real
        raise refused(name, "must be a number from 0 to 1", value)
    return float(value)


def seconds(name: str, value: object, *, zero: bool = False, most: float = sys.float_info.max) -> float:
    """Return a number of seconds. 0 is allowed only if *zero* is True."""
    if not _is_number(value) or not 0 <= value <= most or (value == 0 and not zero):
        above = "" if most == sys.float_info.max else f", at most {most:.0f}"
        raise refused(name, f"must be {'0 or more' if zero else 'more than 0'} seconds{above}", value)
    return float(value)


def flag(name: str, value: object) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        raise refused(name, "must be True or False", value)
    return value


def choice(name: str, value: object, known: Iterable[T]) -> T:
    """Return the member of *known* (texts or members of a `StrEnum`) that equals *value*."""
    words = tuple(known)
    for one in words:
        if isinstance(value, str) and one == value:
            return one
    raise refused(name, f"must be one of {', '.join(map(str, words))}", value)


def text(name: str, value: object, *, most: int | None = None, empty: bool = False) -> str:
    """
    Return a text without lone surrogates, of at most *most* characters.

    *empty* allows blank text.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a text, got {type(value).__name__}")
    if not empty and not value.strip():
        raise InvalidArgument(f"{name} must not be empty")
    if most is not None and len(value) > most:
        raise InvalidArgument(f"{name} must have at most {most} characters, got {len(value)}")
    encodable(name, value)
    return str(value)


def encodable(name: str, value: str, *, whose: str = "") -> bytes:
    """Return a text encoded as UTF-8. A lone surrogate cannot be encoded and raises."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: character {error.start + 1}{whose} is a lone surrogate, which no file can hold",
            hint="decode the text with errors='replace', or remove it",
        ) from None


def items(
    name: str, value: object, *, of: str = "texts", most: int | None = None, what: str = "items"
) -> tuple[Any, ...]:
    """
    Return the items of an iterable.

    Reject a single text, bytes or mapping, which is likely a mistake.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{name} must be a list of {of}, got {type(value).__name__}")
    found = tuple(value)
    if most is not None and len(found) > most:
        raise InvalidArgument(f"{name} must have at most {most} {what}, got {len(found)}")
    return found


def texts(name: str, value: object, *, most: int | None = None, longest: int | None = None) -> tuple[str, ...]:
    """Return several texts. *most* limits their number, *longest* the characters of each."""
    found = items(name, value, most=most)
    return tuple(text(f"{name}[{position}]", one, most=longest) for position, one in enumerate(found))


def moment(name: str, value: object) -> datetime:
    """Return a time in UTC, truncated to milliseconds. A text is parsed as ISO 8601."""
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidArgument(f"{name} must be an ISO 8601 time, got {shown(value)}") from None
    elif isinstance(value, datetime):
        time = value
    else:
        raise InvalidArgument(f"{name} must be a datetime, got {type(value).__name__}")
    if time.tzinfo is None or time.utcoffset() is None:
        raise InvalidArgument(
            f"{name} must have a time zone, got {shown(value)}", hint="add one, such as tzinfo=datetime.UTC"
        )
    if not FIRST <= time < LAST:
        raise InvalidArgument(f"{name} must lie between 1970 and 9000, got {shown(value)}")
    return FIRST + (time - FIRST) // _MILLISECOND * _MILLISECOND


def refused(name: str, rule: str, value: object, *, hint: str | None = None) -> InvalidArgument:
    """Return the error for a *value* that breaks a rule."""
    return InvalidArgument(f"{name} {rule}, got {shown(value)}", hint=hint)


def printable(text: str) -> str:
    """Return a text with control characters escaped, since a terminal would interpret them."""
    return text if text.isprintable() else ascii(text)


def field(check: Callable[..., object], *args: Any, **rules: Any) -> Callable[..., None]:
    """Return an attrs validator whose errors name the field."""

    def validate(_: object, attribute: Any, value: object) -> None:
        check(attribute.name, value, *args, **rules)

    return validate


def setting(check: Callable[..., object], *args: Any, **rules: Any) -> Callable[..., None]:
    """Return an attrs validator that raises `InvalidSetting` with class and field name."""

    def validate(instance: object, attribute: Any, value: object) -> None:
        name = f"{type(instance).__name__}.{attribute.name}"
        try:
            check(name, value, *args, **rules)
        except InvalidArgument as error:
            raise InvalidSetting(error.args[0], name=name, hint=error.hint) from None

    return validate


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
