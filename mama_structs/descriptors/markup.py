"""
Well-formed XML whose text a parser gives back exactly.

What XML 1.0 cannot hold (section 2.2 of the recommendation: most control characters, U+FFFE and U+FFFF) becomes U+FFFD,
and the caller is told how often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_REPLACEMENT: Final = "\ufffd"

Attribute = str | int | bool | None


def without_forbidden(text: str) -> tuple[str, int]:
    """Return a text with U+FFFD for each character that XML cannot hold, and their number."""
    return _FORBIDDEN.subn(_REPLACEMENT, text)


def escaped(text: str) -> str:
    """Return a text as the content of an element; a parser would read a bare carriage return as a line feed."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def start_tag(name: str, attributes: Mapping[str, Attribute], *, empty: bool = False) -> str:
    """
    Return a start tag.

    Args:
        name: The element's.
        attributes: Those whose value is None are left out.
        empty: Whether the element ends here.

    """
    written = "".join(f' {key}="{_attribute(value)}"' for key, value in attributes.items() if value is not None)
    return f"<{name}{written}{'/' if empty else ''}>"


def element(name: str, attributes: Mapping[str, Attribute], text: str) -> str:
    """
    Return an element around a text.

    Where characters were replaced, an attribute ``replaced`` says how many.
    """
    clean, replaced = without_forbidden(text)
    return f"{start_tag(name, {**attributes, 'replaced': replaced or None})}{escaped(clean)}</{name}>"


def _attribute(value: Attribute) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = escaped(without_forbidden(str(value))[0])
    # A parser would read each of these as a blank.
    return text.replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")
