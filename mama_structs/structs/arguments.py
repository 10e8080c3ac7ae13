"""What a caller gives the client, checked at the door."""

import base64
import binascii
import enum
import ipaddress
import math
import re
from typing import TypeVar
from urllib.parse import urlsplit

from mama_structs.errors import InvalidArgument
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType

N = TypeVar("N", bound=enum.StrEnum)

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", re.ASCII)
_NUMBERS = re.compile(r"[0-9.]+", re.ASCII)
_PORT = re.compile(r"(?::[0-9]{1,5})?", re.ASCII)
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*", re.ASCII)
_ADDRESS = re.compile(r"[a-z0-9]{3,90}", re.ASCII)
_ATTRIBUTE_ID = re.compile(r"(0|[1-9][0-9]?)-([0-9]+-[0-9]+)", re.ASCII)
_LONGEST_KEY = 4096
_LONGEST_HOST, _LONGEST_LABEL = 253, 63


def base_url_of(text: str) -> str:
    """Return a base URL without its last slash, or raise `InvalidArgument`."""
    hint = "such as http://localhost:1317"
    try:
        parts = urlsplit(text) if isinstance(text, str) else None
        port = parts.port if parts else None
    except ValueError as error:
        raise InvalidArgument("base_url is no URL", hint=hint) from error
    # The URL itself stays out of the messages: where it breaks a rule it may hold a password.
    if parts is None or parts.scheme not in ("http", "https"):
        raise InvalidArgument("base_url must begin with http:// or https://", hint=hint)
    if "@" in parts.netloc:
        raise InvalidArgument("base_url must not hold a user or password", hint="give the session headers instead")
    if not _is_host(parts.hostname or "", parts.netloc) or port == 0:
        raise InvalidArgument("base_url must name a host, and a port from 1 to 65535 if any", hint=hint)
    if "?" in text or "#" in text:
        raise InvalidArgument("base_url must not have a query or fragment", hint=hint)
    prefix = parts.path.rstrip("/")
    if not _PREFIX.fullmatch(prefix) or text != text.strip() or not text.isprintable():
        raise InvalidArgument("base_url's path must be of letters, digits and ._~- only", hint=hint)
    return f"{parts.scheme}://{parts.netloc}{prefix}"


def _is_host(host: str, netloc: str) -> bool:
    """Whether a host can be looked up: an address, or a name that the encoding of names takes."""
    # An IPv6 address stands in brackets, and nothing else does; parsers differ on what follows the brackets.
    written = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(netloc.lower().removeprefix(written)):
        return False
    if ":" in host or _NUMBERS.fullmatch(host):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True
    labels = host.removesuffix(".").split(".")
    return len(host) <= _LONGEST_HOST and all(0 < len(label) <= _LONGEST_LABEL for label in labels)


def seconds_of(name: str, value: float) -> float:
    """Return a positive, finite number of seconds, or raise `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidArgument(f"{name} must be a number of seconds above 0, got {value!r:.80}")
    return float(value)


def whole_of(name: str, value: int, *, least: int, most: int = MAX_INDEX) -> int:
    """Return a whole number within bounds, or raise `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(f"{name} must be a whole number from {least} to {most}, got {value!r:.80}")
    return value


def id_of(value: EntityId | str, *types: EntityType) -> EntityId:
    """Return an id of one of *types* (any, where none is given), or raise `InvalidArgument`."""
    entity_id = EntityId.parse(value)  # type: ignore[arg-type]  # it gives an EntityId back as it is
    if types and entity_id.type not in types:
        wanted = " or ".join(wanted.value for wanted in types)
        raise InvalidArgument(
            f"{entity_id} is the id of a {entity_id.type.value}, not of a {wanted}",
            hint=f"ids of this type begin with {' or '.join(f'{wanted.code}-' for wanted in types)}",
        )
    return entity_id


def address_of(text: str) -> str:
    """Return an account address, or raise `InvalidArgument`: it goes into a path as it is."""
    if not isinstance(text, str) or not _ADDRESS.fullmatch(text):
        raise InvalidArgument(
            f"an address must be of 3 to 90 lower-case letters and digits, got {text!r:.80}", hint="such as structs1…"
        )
    return text


def attribute_id_of(text: str, names: type[enum.StrEnum]) -> str:
    """Return an attribute id such as ``11-1-194``, or raise `InvalidArgument`."""
    matched = _ATTRIBUTE_ID.fullmatch(text) if isinstance(text, str) else None
    if matched is None or int(matched[1]) >= len(names):
        raise InvalidArgument(
            f"an attribute id must be an attribute's number and an entity id, got {text!r:.80}",
            hint=f"such as 11-1-194, the number being below {len(names)}",
        )
    return f"{int(matched[1])}-{EntityId.parse(matched[2])}"


def attribute_of(name: str, names: type[N]) -> N:
    """Return an attribute by its name, or raise `InvalidArgument`: the chain reads a wrong name as attribute 0."""
    try:
        return names(name)
    except ValueError:
        raise InvalidArgument(
            f"there is no attribute {name!r:.80}", hint=f"one of {', '.join(member.value for member in names)}"
        ) from None


def place_of(key: str) -> bytes | None:
    """Return the place in a list that a page key stands for, None where the text is no key: base64, not too long."""
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        return None
    try:
        return base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return None


def is_page_key(text: str) -> bool:
    """Whether a text can be where a page begins."""
    return place_of(text) is not None


def page_query(
    *,
    key: str | None = None,
    limit: int = 100,
    offset: int | None = None,
    reverse: bool = False,
    count_total: bool = False,
) -> tuple[tuple[str, str], ...]:
    """
    Return the query parameters of one page.

    A limit is always sent: without one the node counts its whole store.
    """
    if key is not None and offset is not None:
        raise InvalidArgument("key and offset exclude each other", hint="give key to go on, offset to begin somewhere")
    query = [("pagination.limit", str(whole_of("limit", limit, least=1)))]
    if key is not None:
        if not is_page_key(key):
            raise InvalidArgument(f"key must be base64 text, got {key!r:.80}", hint="give the next_key of a page")
        query.append(("pagination.key", key))
    if offset is not None:
        query.append(("pagination.offset", str(whole_of("offset", offset, least=0))))
    for name, flag in (("reverse", reverse), ("count_total", count_total)):
        if not isinstance(flag, bool):
            raise InvalidArgument(f"{name} must be True or False, got {flag!r:.80}")
        if flag:
            query.append((f"pagination.{name}", "true"))
    return tuple(query)
