"""
A user's own words, made ready for cues: what is quoted, pasted or code says nothing about what the user wants.

The bounds keep a pasted megabyte as cheap as a long paragraph: requests stand at a message's beginning or end.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Final

import attrs

# Stands for what was taken out, so that "mark `auth` as failed" still has an object.
GAP: Final = "◻"

# Characters that are read of a long message, before and after taking out what is not the user's own.
_HEAD, _TAIL = 3_000, 5_000
_KEPT_HEAD, _KEPT_TAIL = 300, 600
# Longer sentences are cut: a request and its object stand closer together.
_SENTENCE = 240
# What pieces are taken from.
_SENTENCES: Final = 40
_LETTERS_IN_A_ROW: Final = (2, 3, 4)

_FENCE: Final = "```"
_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]{1,300}`")
_QUOTED = re.compile(
    r"\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|„[^“”\n]{1,400}[“”]|«[^»\n]{1,400}»|「[^」\n]{1,400}」|『[^』\n]{1,400}』"
    r"|(?<!\w)['\u2018][^'\u2019\n]{2,400}['\u2019](?!\w)"
)
# Lines of logs, stack traces, diffs, shells and quoted mail.
_PASTED = re.compile(
    r"^[ \t]*(?:>|\$ |\+\+\+|@@|(?:[-+] ?){3}|\d{4}-\d\d-\d\d[ T]\d|\[?\d\d:\d\d:\d\d"
    r"|Traceback |File \"|at [\w.$<>]+\("
    r"|\[?(?:ERROR|INFO|WARN(?:ING)?|DEBUG|FATAL|TRACE|FAILED|PASSED)\b|E {2,}|\w+(?:Error|Exception)\b).*$",
    re.MULTILINE,
)
_MEMORY_ID = re.compile(r"\b(?:decision|checkpoint|insight)_\w+", re.ASCII)
# Addresses, paths, calls, file names and identifiers; ASCII, as a Korean particle that follows is not part of one.
_NAMES = re.compile(
    r"https?://[^\s가-힣]+|(?<!\S)[~.]?/[\w./-]{2,}|\b\w+(?:\.\w+)*\(\)|\b[A-Za-z0-9]*_[A-Za-z0-9_]+"
    r"|\b[\w-]+\.(?:py|js|ts|tsx|md|json|ya?ml|toml|rs|go|txt|log|csv|sql|sh|html|css|java|kt|db)\b"
    r"|\b[A-Z][a-z]+[A-Z]\w*",
    re.ASCII,
)
_SENTENCE_END = re.compile(r"(?<=[.!?;。?!…])\s+|\n+")
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0\u3000]+")
# "where'd we get to", "what'd you say", "u remember".
_SHORTENED = re.compile(r"\b(where|what|how|why|who|when)'?d(?= (?:we|i|you|u|they|he|she|the|that|it)\b)")
_YOU = re.compile(r"(?<![\w'-])u(?![\w'-])")
_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})


@attrs.frozen
class Wording:
    """
    What a user said, as cues read it.

    Args:
        words: Composed (NFC), in lower case, one sentence a line.
        whole: Whether nothing was left out for its length.

    """

    words: str
    whole: bool


def own_words(text: str) -> Wording:
    """
    Find the user's own words in *text*.

    Args:
        text: A message; of a long one the beginning and the end are read.

    """
    whole = len(text) <= _HEAD + _TAIL
    plain = _without_quotes(unicodedata.normalize("NFC", _bounded(text)))
    if not plain.strip(f"{GAP} \n\t.,:;!?"):
        # Nothing else was said, so that the quotation marks are only wrapping; a fence is not.
        plain = text[:_KEPT_HEAD].strip("\"'“”\u2018\u2019「」『』«» \n\t") if _is_wrapped(text) else ""
        plain = unicodedata.normalize("NFC", plain)
    plain = _NAMES.sub(GAP, _MEMORY_ID.sub("that decision", plain))
    lines = (_BLANKS.sub(" ", line).strip() for line in _SENTENCE_END.split(plain))
    words = "\n".join(_short(line) for line in lines if line).lower().translate(_APOSTROPHES)
    words = _YOU.sub("you", _SHORTENED.sub(r"\1 did", words))
    if len(words) > _KEPT_HEAD + _KEPT_TAIL:
        return Wording(f"{words[:_KEPT_HEAD]}\n{words[-_KEPT_TAIL:]}", whole=False)
    return Wording(words, whole)


def _short(line: str) -> str:
    if len(line) <= _SENTENCE:
        return line
    return "\n".join(line[start : start + _SENTENCE] for start in range(0, len(line), _SENTENCE))


def _bounded(text: str) -> str:
    if len(text) <= _HEAD + _TAIL:
        return text
    # A fence may begin in the head or in what is left out, and end in the tail.
    opens = text.count(_FENCE, 0, len(text) - _TAIL) % 2 == 1
    head = text[:_HEAD]
    closed = f"\n{_FENCE}" if head.count(_FENCE) % 2 else ""
    return f"{head}{closed}\n{_FENCE if opens else ''}{text[-_TAIL:]}"


def _without_quotes(text: str) -> str:
    plain = _FENCED.sub(f"\n{GAP}\n", text) if _FENCE in text or "~~~" in text else text
    return _QUOTED.sub(GAP, _INLINE.sub(GAP, _PASTED.sub("", plain)))


def _is_wrapped(text: str) -> bool:
    stripped = text.strip()
    return _QUOTED.fullmatch(stripped) is not None


def pieces(words: str) -> set[str]:
    """
    Return what a text is made of: two to four letters in a row, its words, pairs of words, and how sentences begin.

    Args:
        words: The user's own words, one sentence a line.

    """
    found: set[str] = set()
    for sentence in words.split("\n")[:_SENTENCES]:
        line = f" {sentence} "
        for length in _LETTERS_IN_A_ROW:
            found.update(line[start : start + length] for start in range(len(line) - length + 1))
        each = line.split()
        found.update(f" {word} " for word in each)
        found.update(f" {word} {following} " for word, following in itertools.pairwise(each))
        if each:
            found.update((f"^{each[0]} ", f"^{' '.join(each[:2])} ", f" {each[-1]}$"))
    return found
