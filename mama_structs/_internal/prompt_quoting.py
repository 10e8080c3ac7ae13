"""
Quoting of untrusted text, so that the text cannot end its quotation or imitate instructions.

Quoted text is for reading only: characters that could end the quotation or start markup are replaced by similar ones.
The memory itself contains the original text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Invisible characters: control and format characters, fillers, variation selectors and tags.
INVISIBLE_CHARS: Final = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffd\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Part of a character class for regular expressions."""

ANSI_ESCAPE_PATTERN: Final = re.compile("(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]")
INVISIBLE_PATTERN: Final = re.compile(f"[{INVISIBLE_CHARS}\ud800-\udfff\ufffe\uffff]")
HTML_LESS_THAN_PATTERN: Final = re.compile(r"&(?:lt|#0{0,8}60|#x0{0,8}3c);?", re.IGNORECASE)
# Brackets of all scripts, because models treat them all as brackets.
OPENING_BRACKETS: Final = "<\uff1c\ufe64\u2039\u2329\u3008\u27e8\u276e\u2770\u02c2\u1438"
CLOSING_BRACKETS: Final = ">\uff1e\ufe65\u203a\u232a\u3009\u27e9\u276f\u2771\u02c3\u1433"
# A bracket starts no tag before a space, a digit, "=" or "-", as in "a < b", "x <= 3" and "<-".
TAG_START: Final = r"(?=[^\s\d=-]|\s{0,20}[/\\\u2044\u2215\uff0f])"
TAG_PATTERN: Final = re.compile(
    f"[{OPENING_BRACKETS}]{TAG_START}([^{OPENING_BRACKETS}{CLOSING_BRACKETS}]{{0,200}})[{CLOSING_BRACKETS}]"
)
UNCLOSED_TAG_PATTERN: Final = re.compile(f"[{OPENING_BRACKETS}]{TAG_START}")
# Turn markers that some model formats use: [INST], [/INST], [TOOL_CALLS].
TURN_MARKER_PATTERN: Final = re.compile(r"[\[\uff3b]([/\uff0f]?[A-Z][A-Z_ ]{2,40})[\]\uff3d]")
# Patterns that begin with a set of characters are searched several times as fast as alternatives and `str.translate`.
FENCE_PATTERN: Final = re.compile(r"[`~](?:(?<=`)`{2,}|(?<=~)~{2,})")
DOUBLE_QUOTES: Final = '"\u201c\u201d\u201e\u201f\uff02\u301d\u301e\u301f\u2033\u02ba'
DOUBLE_QUOTE_PATTERN: Final = re.compile(f"[{DOUBLE_QUOTES}]")
# Matches the beginning of a handle, before which `neutralize` inserts a backslash, so that no tool resolves it.
HANDLE_PATTERN: Final = re.compile(r"[rRfF](?<![\w\\].)(?:(?<=[rR])[eE][fF]|(?<=[fF])[dD])\s?[:\uff1a](?=\S)")
RECALLED_END: Final = "</recalled>"
RECALLED_PATTERN: Final = re.compile(f"<recalled>(?:[^<]|<(?!/?recalled>))*+{RECALLED_END}")
# Read this multiple of the limit, because removing invisible characters and repeated blanks shortens the text.
READ_FACTOR: Final = 8


# A text without any of these characters needs no change.
SUSPICIOUS_PATTERN: Final = re.compile(f"[{OPENING_BRACKETS}&`~:\uff1a\\[\uff3b{DOUBLE_QUOTES}]")


def neutralize(text: str) -> str:
    """Convert a text to one line. Remove hidden characters, and defuse tags, fences and handles."""
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFC", INVISIBLE_PATTERN.sub("", ANSI_ESCAPE_PATTERN.sub("", text)))
    text = " ".join(text.split())
    if SUSPICIOUS_PATTERN.search(text) is None:
        return text
    text = HANDLE_PATTERN.sub(r"\\\g<0>", HTML_LESS_THAN_PATTERN.sub("<", text))
    text = UNCLOSED_TAG_PATTERN.sub("(", TAG_PATTERN.sub(r"(\1)", text))
    return DOUBLE_QUOTE_PATTERN.sub("'", FENCE_PATTERN.sub("'''", TURN_MARKER_PATTERN.sub(r"(\1)", text)))


def neutralize_and_truncate(text: str, max_chars: int) -> str:
    """Return ``neutralize(text)``, truncated to *max_chars* characters including an ellipsis."""
    # Read a bounded part only, so that the cost does not depend on the length of the text.
    plain = neutralize(text[: READ_FACTOR * max_chars])
    if len(plain) > max_chars or (len(text) > READ_FACTOR * max_chars and len(plain) == max_chars):
        return f"{plain[: max_chars - 1].rstrip()}…"
    return plain


def quote(text: str, *, max_chars: int | None = None) -> str:
    """
    Return an untrusted text on one line, in quotation marks that it cannot close.

    Args:
        text: Any text.
        max_chars: Maximum number of characters without the quotation marks; a longer text ends with an ellipsis.

    """
    return f'"{neutralize(text) if max_chars is None else neutralize_and_truncate(text, max_chars)}"'


def remove_recalled(text: str) -> str:
    """Return a text without the sections that `Session.recall` has inserted."""
    return RECALLED_PATTERN.sub("", text) if RECALLED_END in text else text
