"""Memories whose texts try to escape their quotation, and checks that no text succeeds."""

import json
import re
import unicodedata
from pathlib import Path

from hypothesis import strategies as st

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/hostile/memories.jsonl").read_text(encoding="utf-8").splitlines()
]
TEXTS = [row["content"] * row.get("repeat", 1) for row in ROWS]
# Random mixtures of words of the hostile texts, special characters and arbitrary texts.
pieces = st.sampled_from(sorted({piece for text in TEXTS for piece in text[:200].split(" ")}))
signs = st.sampled_from([*"<>/|[]{}:\"'`~&;#\\ \n", "\u200b", "\u202e", "\x1b", "\x1b[", "ref:", "fd:", "&lt", "INST"])
hostile_texts = st.lists(st.one_of(pieces, signs, st.text(max_size=5)), max_size=30).map("".join)

_KINDS = "decision|checkpoint|insight|context"
_ID = rf" \[(?:{_KINDS})_[^\s\[\]\"<>]+\]"
_LINE = (
    rf"- (?:\(outdated\) )?(?:{_KINDS}), \d{{4}}-\d\d-\d\d(?:, on Q)?(?:, from outside, unchecked|, from a tool)?: Q"
    r"(?:; since Q)?(?:; (?:SUCCESS|FAILED|PARTIAL)(?: because Q)?)?"
    r"(?:; next: Q(?:, Q)*(?:, …)?)?(?:; files: Q(?:, Q)*(?:, …)?)?"
    rf"(?:; in (?:its place|place of){_ID})*(?:{_ID})?"
)
_FRAME = re.compile(
    r"<recalled>\nFrom memory, for you to know\. [^\n]+\n"
    rf"(?:Last checkpoint:\n{_LINE}\n)?"
    rf"(?:Current:\n(?:{_LINE}\n)+)?"
    rf"(?:Outdated:\n(?:{_LINE}\n)+)?"
    rf"(?:Failed or partly successful:\n(?:{_LINE}\n)+)?"
    rf"(?:Contradictory, so ask which one is true:\n(?:- Q(?:{_ID})? against Q(?:{_ID})?(?: because Q)?\n)+)?"
    r"</recalled>"
)
_QUOTED = re.compile(r'"([^"\n]*)"')
# Visible Arabic and Kaithi signs, which Unicode classifies as format characters.
_SEEN = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
# Matches the start of a tag, also with similar brackets of other scripts.
_TAG = re.compile(r"[<\u2039\u3008\u27e8\u276e\u2770\u02c2\u1438](?:[^\s\d=….-]|\s*[/\\\u2044\u2215])")
# Matches the start of other markup: entities, fences, turn markers and handles.
_MARKUP_PATTERN = re.compile(
    r"&(?:lt|#0*60|#x0*3c)\b|```|~~~|[\[\uff3b][/\uff0f]?(?-i:[A-Z][A-Z_]{2,})[\]\uff3d]|(?<![\w\\])(?:ref|fd)[:\uff1a]\S",
    re.IGNORECASE,
)
_QUOTATION_MARK = re.compile('["\u201c\u201d\u201e\u201f\u301d\u301e\u2033\uff02]')


async def save(memories, row):
    """Save a hostile memory whose origin is "outside"."""
    kind, content = row["type"], row["content"] * row.get("repeat", 1)
    if kind == "checkpoint":
        more = {name: row[name] for name in ("next_steps", "open_files")}
        return await memories.save_checkpoint(content, origin="outside", **more)
    if kind == "insight":
        return await memories.save_insight(content, origin="outside")
    saved = await memories.save_decision(content, topic=row["topic"], reasoning=row["reasoning"], origin="outside")
    reason = row.get("outcome_reason")
    return saved if reason is None else await memories.set_outcome(saved.id, "FAILED", reason=reason)


def check_plain(text):
    """Assert that a quoted text contains no markup and cannot end its quotation."""
    check_prose(text)

    assert None is _QUOTATION_MARK.search(text), text


def check_prose(text):
    """Assert that a text contains no hidden characters and no markup."""
    hidden = [one for one in text if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and one not in _SEEN]

    assert [] == hidden
    assert None is _MARKUP_PATTERN.search(text), text
    assert None is _TAG.search(unicodedata.normalize("NFKC", text)), text


def check_block(text):
    """Assert that a recalled text consists of the template and quotations only."""
    assert _FRAME.fullmatch(_QUOTED.sub("Q", text)), text
    assert 1 == text.count("<recalled>") == text.count("</recalled>")
    for found in _QUOTED.findall(text):
        check_plain(found)
