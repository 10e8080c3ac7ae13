"""
Validation of arguments.

Each function returns the value, or raises `InvalidArgument` with the argument's name, the rule and the value.

`setting_validator` and `field_validator` turn the functions into attrs validators:
``attrs.field(validator=setting_validator(check_integer, minimum=1))``.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import math
import numbers
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal, SupportsIndex, TypeAlias, TypeGuard, TypeVar
from urllib.parse import urlsplit

from mama_structs.errors import InvalidArgument, InvalidSetting, repr_short

T = TypeVar("T")
TimeInput: TypeAlias = datetime | date | str | timedelta
"""
A point in time: an aware datetime, a naive one in local time, a date (its local midnight), or ISO 8601 text.

A timedelta is relative to the time of the call, see `check_time`.
"""

# The maximum time span in seconds. A longer one would leave the range of `datetime`.
MAX_SPAN_SECONDS: Final = 100 * 366 * 86400.0
MAX_JSON_DEPTH: Final = 99
MIN_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIME: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Stored times are at least `MIN_TIME` and less than `MAX_TIME`."""
URL_PATTERN: Final = re.compile(r"\s*\w[\w+.-]+://")
_MILLISECOND: Final = timedelta(milliseconds=1)
_HOST_PATTERN = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", re.ASCII)
_NUMERIC_HOST_PATTERN = re.compile(r"[0-9.]+", re.ASCII)
_PORT_PATTERN = re.compile(r"(?::[0-9]{1,5})?", re.ASCII)
_HOST_AND_PORT_PATTERN = re.compile(r"[A-Za-z0-9.-]{1,253}:[0-9]{1,5}/?", re.ASCII)
_PATH_PREFIX_PATTERN = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*", re.ASCII)
_MAX_HOST_CHARS, _MAX_LABEL_CHARS = 253, 63


def is_url(location: object) -> TypeGuard[str]:
    """
    Return True if the location of a session is a URL and not a directory.

    The URL itself is validated by `check_url`.
    """
    return isinstance(location, str) and URL_PATTERN.match(location) is not None


def check_integer(
    name: str, value: object, minimum: int = 0, maximum: int | None = None, *, separator: str = ""
) -> int:
    """
    Return *value* if it is an integer within the bounds. Otherwise raise `InvalidArgument`.

    *separator*, such as a comma, precedes the bounds in the error message.
    """
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < minimum
        or (maximum is not None and value > maximum)
    ):
        bounds = (
            f"{separator or ' of'} {minimum} or more" if maximum is None else f"{separator} from {minimum} to {maximum}"
        )
        raise invalid_argument(name, f"must be a whole number{bounds}", value)
    return value


def to_int(value: object) -> object:
    """Convert an integer-like value, such as a NumPy integer, to int. Return other values unchanged."""
    try:
        return operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else value
    except TypeError:
        return value


def check_number(name: str, value: object) -> float:
    """Return *value* as a float. Raise `InvalidArgument` if it is not a finite number."""
    # This comparison is false for NaN and for an int that is too large for a float, so both are rejected.
    if not _is_number(value) or not abs(value) <= sys.float_info.max:
        raise invalid_argument(name, "must be a finite number", value)
    return float(value)


def check_ratio(name: str, value: object) -> float:
    """Return a number from 0 to 1 as a float, or raise `InvalidArgument`. NumPy numbers are accepted."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= value <= 1:  # type: ignore[operator]  # typeshed knows no bounds of Real
        raise invalid_argument(name, "must be a number from 0 to 1", value)
    return float(value)


def check_seconds(name: str, value: object, *, allow_zero: bool = False, maximum: float = sys.float_info.max) -> float:
    """Return a number of seconds as a float, or raise `InvalidArgument`. 0 is accepted only with *allow_zero*."""
    if not _is_number(value) or not 0 <= value <= maximum or (value == 0 and not allow_zero):
        above = "" if maximum == sys.float_info.max else f", at most {maximum:.0f}"
        raise invalid_argument(name, f"must be {'0 or more' if allow_zero else 'more than 0'} seconds{above}", value)
    return float(value)


def check_bool(name: str, value: object) -> bool:
    """Return *value* if it is a bool. Otherwise raise `InvalidArgument`."""
    if not isinstance(value, bool):
        raise invalid_argument(name, "must be True or False", value)
    return value


def check_choice(name: str, value: object, known: Iterable[T]) -> T:
    """Return the string or `StrEnum` member in *known* that equals *value*, or raise `InvalidArgument`."""
    words = tuple(known)
    for one in words:
        if isinstance(value, str) and one == value:
            return one
    raise invalid_argument(name, f"must be one of {', '.join(map(str, words))}", value)


def check_text(name: str, value: object, *, max_chars: int | None = None, allow_empty: bool = False) -> str:
    """
    Return *value* as a str. Raise `InvalidArgument` for lone surrogates or more than *max_chars* characters.

    A blank text is accepted only with *allow_empty*.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a text, got {type(value).__name__}")
    if not allow_empty and not value.strip():
        raise InvalidArgument(f"{name} must not be empty")
    if max_chars is not None and len(value) > max_chars:
        raise InvalidArgument(f"{name} must have at most {max_chars} characters, got {len(value)}")
    check_encodable(name, value)
    return str(value)


def check_encodable(name: str, value: str, *, owner: str = "") -> bytes:
    """Return a text encoded as UTF-8. Raise `InvalidArgument` for a lone surrogate, which cannot be encoded."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: character {error.start + 1}{owner} is a lone surrogate, which no file can hold",
            hint="decode the text with errors='replace', or remove it",
        ) from None


def check_items(
    name: str, value: object, *, item_kind: str = "texts", max_items: int | None = None, item_noun: str = "items"
) -> tuple[Any, ...]:
    """
    Return the items of an iterable as a tuple. Raise `InvalidArgument` for other values or too many items.

    A single text, bytes or mapping is rejected, because it is probably a mistake.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        hint = "pass [one async for one in ...]" if hasattr(value, "__aiter__") else None
        raise InvalidArgument(f"{name} must be a list of {item_kind}, got {type(value).__name__}", hint=hint)
    found = tuple(value)
    if max_items is not None and len(found) > max_items:
        raise InvalidArgument(f"{name} must have at most {max_items} {item_noun}, got {len(found)}")
    return found


def check_texts(
    name: str, value: object, *, max_items: int | None = None, max_chars: int | None = None
) -> tuple[str, ...]:
    """Validate each text with `check_text`, and return all of them. *max_items* limits their number."""
    found = check_items(name, value, max_items=max_items)
    return tuple(check_text(f"{name}[{position}]", one, max_chars=max_chars) for position, one in enumerate(found))


def check_time(name: str, value: object, *, now: datetime | None = None, in_future: bool = False) -> datetime:
    """
    Return a `TimeInput` as a time in UTC, truncated to milliseconds.

    A timedelta is subtracted from *now*, or added if *in_future* is true. None for *now* means the system's clock.
    """
    time = _to_datetime(name, value)
    if isinstance(time, timedelta):
        if time < timedelta(0):
            raise invalid_argument(name, "must not be a negative timedelta", value)
        base = datetime.now(UTC) if now is None else now
        try:
            time = base + time if in_future else base - time
        except OverflowError:
            raise invalid_argument(name, "must lie between 1970 and 9000", value) from None
    if time.tzinfo is None or time.utcoffset() is None:
        # `astimezone` reads a naive time as local time. It fails for years that the system's clock does not support.
        try:
            time = time.replace(tzinfo=None).astimezone()
        except (OverflowError, OSError, ValueError):
            raise invalid_argument(name, "must lie between 1970 and 9000", value) from None
    if not MIN_TIME <= time < MAX_TIME:
        raise InvalidArgument(f"{name} must lie between 1970 and 9000, got {repr_short(value)}")
    return MIN_TIME + (time - MIN_TIME) // _MILLISECOND * _MILLISECOND


def check_time_input(name: str, value: object) -> datetime | timedelta:
    """
    Return a `TimeInput` as a time in UTC. Return a timedelta unchanged, so that it stays relative.

    An ISO 8601 duration is converted to a timedelta, because the JSON form of a timedelta is such a text.
    """
    if isinstance(value, str) and value.startswith(("P", "-P")):
        import msgspec  # noqa: PLC0415 - loaded only for durations

        with contextlib.suppress(msgspec.ValidationError):
            value = msgspec.convert(value, timedelta)
    if isinstance(value, timedelta):
        check_time(name, value)
        return value
    return check_time(name, value)


def _to_datetime(name: str, value: object) -> datetime | timedelta:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            hint = f"{name}='2026-03-01', a datetime, or a timedelta: {name}=timedelta(days=1)"
            raise InvalidArgument(f"{name} must be an ISO 8601 time, got {repr_short(value)}", hint=hint) from None
    if isinstance(value, datetime | timedelta):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - local midnight
    raise InvalidArgument(f"{name} must be a datetime, date, timedelta or ISO 8601 text, got {type(value).__name__}")


def _check_json_integer(name: str, value: int) -> int:
    """Return an integer, or raise `InvalidArgument` if Python cannot write it as text."""
    try:
        str(value)
    except ValueError:
        limit = sys.get_int_max_str_digits()
        raise InvalidArgument(f"{name} must have integers of at most {limit} digits") from None
    return int(value)


def check_json(name: str, value: object, depth: int = 0) -> Any:
    """
    Return a copy of a JSON value.

    Raise `InvalidArgument` for values that JSON cannot represent.
    """
    if depth > MAX_JSON_DEPTH:
        raise InvalidArgument(f"{name} must be nested at most {MAX_JSON_DEPTH} deep")
    if isinstance(value, str):
        check_encodable(name, value)
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _check_json_integer(name, value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"{name} must have finite numbers only, got {value}")
        return float(value)
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise InvalidArgument(f"{name} must be JSON data, so its keys must be text")
        return {check_json(f"{name}: a key", key): check_json(name, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [check_json(name, item, depth + 1) for item in value]
    hint = "give plain data; bytes as base64"
    raise InvalidArgument(f"{name} must be JSON data, got a {type(value).__name__} in it", hint=hint)


def one_or_many(check: Callable[..., str], **rules: Any) -> Callable[[str, object], tuple[str, ...]]:
    """Return a check that accepts one text or several, and returns a tuple."""

    def check_all(name: str, value: object) -> tuple[str, ...]:
        several = (value,) if isinstance(value, str) else check_items(name, value)
        if not several:
            raise InvalidArgument(f"{name} must not be empty", hint="leave it out to mean any")
        return tuple(check(name, one, **rules) for one in several)

    return check_all


def invalid_argument(name: str, rule: str, value: object, *, hint: str | None = None) -> InvalidArgument:
    """Return the error for a *value* that violates *rule*."""
    return InvalidArgument(f"{name} {rule}, got {repr_short(value)}", hint=hint)


def to_printable(text: str) -> str:
    """Escape control characters in a text, because a terminal would interpret them."""
    return text if text.isprintable() else ascii(text)


def field_validator(check: Callable[..., object], *args: Any, **rules: Any) -> Callable[..., None]:
    """Return an attrs validator that calls *check* with the name of the field."""

    def validate(_: object, attribute: Any, value: object) -> None:
        check(attribute.name, value, *args, **rules)

    return validate


def setting_validator(check: Callable[..., object], *args: Any, **rules: Any) -> Callable[..., None]:
    """Return an attrs validator that calls *check*, and raises `InvalidSetting` with class and field name."""

    def validate(instance: object, attribute: Any, value: object) -> None:
        name = f"{type(instance).__name__}.{attribute.name}"
        try:
            check(name, value, *args, **rules)
        except InvalidArgument as error:
            raise InvalidSetting(error.args[0], name=name, hint=error.hint) from None

    return validate


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Unset(enum.Enum):
    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = _Unset.UNSET
"""Stands for an argument that is not given."""
Unset: TypeAlias = Literal[_Unset.UNSET]
"""The type of `UNSET`."""


def parse_base_url(text: str) -> str:
    """Return a base URL without its trailing slash. Raise `InvalidArgument` if it is not valid."""
    # A host with a port contains no password, so the hint may repeat it.
    is_host_and_port = isinstance(text, str) and _HOST_AND_PORT_PATTERN.fullmatch(text)
    hint = f"write http://{text}" if is_host_and_port else "such as http://localhost:1317"
    try:
        parts = urlsplit(text) if isinstance(text, str) else None
        port = parts.port if parts else None
    except ValueError as error:
        raise InvalidArgument("base_url is no URL", hint=hint) from error
    # Error messages omit the URL, because a malformed one may contain a password.
    if parts is None or parts.scheme not in ("http", "https"):
        raise InvalidArgument("base_url must begin with http:// or https://", hint=hint)
    if "@" in parts.netloc:
        raise InvalidArgument("base_url must not hold a user or password", hint="give the session headers instead")
    if not _is_valid_host(parts.hostname or "", parts.netloc) or port == 0:
        raise InvalidArgument("base_url must name a host, and a port from 1 to 65535 if any", hint=hint)
    if "?" in text or "#" in text:
        raise InvalidArgument("base_url must not have a query or fragment", hint=hint)
    prefix = parts.path.rstrip("/")
    if not _PATH_PREFIX_PATTERN.fullmatch(prefix) or text != text.strip() or not text.isprintable():
        raise InvalidArgument("base_url's path must be of letters, digits and ._~- only", hint=hint)
    return f"{parts.scheme}://{parts.netloc.lower()}{prefix}"


def _is_valid_host(host: str, netloc: str) -> bool:
    """Return True if the host is an IP address or a valid DNS name."""
    # URL parsers disagree about text after "]", so only IPv6 addresses may be bracketed.
    bracketed_host = f"[{host}]" if ":" in host else host
    if not _HOST_PATTERN.fullmatch(host) or not _PORT_PATTERN.fullmatch(netloc.lower().removeprefix(bracketed_host)):
        return False
    if ":" in host or _NUMERIC_HOST_PATTERN.fullmatch(host):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True
    labels = host.removesuffix(".").split(".")
    return len(host) <= _MAX_HOST_CHARS and all(0 < len(label) <= _MAX_LABEL_CHARS for label in labels)
