"""Validation of the base URL of an HTTP API."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from mama_structs.errors import InvalidArgument

_HOST_PATTERN = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", re.ASCII)
_NUMERIC_HOST_PATTERN = re.compile(r"[0-9.]+", re.ASCII)
_PORT_PATTERN = re.compile(r"(?::[0-9]{1,5})?", re.ASCII)
_PATH_PREFIX_PATTERN = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*", re.ASCII)
_MAX_HOST_CHARS, _MAX_LABEL_CHARS = 253, 63


def parse_base_url(text: str) -> str:
    """Return a base URL without its trailing slash. Raise `InvalidArgument` if it is not valid."""
    hint = "such as http://localhost:1317"
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
