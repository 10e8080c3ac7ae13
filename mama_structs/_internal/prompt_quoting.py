"""
Quoting of untrusted text, so that it cannot end its quotation or imitate instructions.

Quoted text is only for reading: characters that could end the quotation or start markup are replaced by similar ones.
The original text is available from the memory itself.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Invisible characters: control and format characters, fillers, variation selectors and tags.
UNSEEN: Final = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffd\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Part of a character class for regular expressions."""

_COLOURS: Final = re.compile("(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]")
_HIDDEN: Final = re.compile(f"[{UNSEEN}\ud800-\udfff\ufffe\uffff]")
_ENTITIES: Final = re.compile(r"&(?:lt|#0{0,8}60|#x0{0,8}3c);?", re.IGNORECASE)
# Brackets of all scripts, since a model reads them alike.
_OPEN: Final = "<\uff1c\ufe64\u2039\u2329\u3008\u27e8\u276e\u2770\u02c2\u1438"
_CLOSE: Final = ">\uff1e\ufe65\u203a\u232a\u3009\u27e9\u276f\u2771\u02c3\u1433"
# "a < b", "x <= 3" and "<-" do not start a tag.
_BEGINS: Final = r"(?=[^\s\d=-]|\s{0,20}[/\\\u2044\u2215\uff0f])"
_TAG: Final = re.compile(f"[{_OPEN}]{_BEGINS}([^{_OPEN}{_CLOSE}]{{0,200}})[{_CLOSE}]")
_HALF_A_TAG: Final = re.compile(f"[{_OPEN}]{_BEGINS}")
# Turn markers of some model formats: [INST], [/INST], [TOOL_CALLS].
_TURN: Final = re.compile(r"[\[\uff3b]([/\uff0f]?[A-Z][A-Z_ ]{2,40})[\]\uff3d]")
_FENCE: Final = re.compile(r"`{3,}|~{3,}")
_QUOTES: Final = str.maketrans(dict.fromkeys('"\u201c\u201d\u201e\u201f\uff02\u301d\u301e\u301f\u2033\u02ba', "'"))
# The escaped form of DESIGN section 5, which no tool resolves as a handle.
_HANDLE: Final = re.compile(r"(?<![\w\\])(?=(?:ref|fd)\s?[:\uff1a]\S)", re.IGNORECASE)
_END: Final = "</recalled>"
_RECALLED: Final = re.compile(f"<recalled>(?:[^<]|<(?!/?recalled>))*+{_END}")
# Invisible characters and repeated blanks shrink the text, so up to this multiple of the limit is read.
_LOOKED_AT: Final = 8


# Text without any of these characters needs no change.
_SUSPECT: Final = re.compile(f"[{_OPEN}&`~:\uff1a\\[\uff3b{''.join(map(chr, _QUOTES))}]")


def plainly(text: str) -> str:
    """Return a text on one line without hidden characters, tags, fences or handles."""
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFC", _HIDDEN.sub("", _COLOURS.sub("", text)))
    text = " ".join(text.split())
    if _SUSPECT.search(text) is None:
        return text
    text = _HANDLE.sub(r"\\", _ENTITIES.sub("<", text))
    text = _HALF_A_TAG.sub("(", _TAG.sub(r"(\1)", text))
    return _FENCE.sub("'''", _TURN.sub(r"(\1)", text)).translate(_QUOTES)


def cut(text: str, most: int) -> str:
    """Return `plainly(text)`, truncated to *most* characters including an ellipsis."""
    # Read only a bounded part: the cost must not depend on the length of the text.
    plain = plainly(text[: _LOOKED_AT * most])
    if len(plain) > most or (len(text) > _LOOKED_AT * most and len(plain) == most):
        return f"{plain[: most - 1].rstrip()}…"
    return plain


def quoted(text: str, *, most: int | None = None) -> str:
    """
    Return an untrusted text on one line, in quotation marks that it cannot close.

    Args:
        text: Any text.
        most: Maximum number of characters without the quotation marks; a longer text ends with an ellipsis.

    """
    return f'"{plainly(text) if most is None else cut(text, most)}"'


def without_recalled(text: str) -> str:
    """Return a text without the sections that `Session.recall` inserted."""
    return _RECALLED.sub("", text) if _END in text else text
