"""
Draw ``docs/pictures/decisions.svg``: a failed decision and its successor.

``python scripts/picture.py`` writes the file. A test compares the file with the current output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape

from mama_structs import Chain, HashEmbedder, Hit, LinkType
from mama_structs.sync import Session

TARGET = Path(__file__).parents[1] / "docs" / "pictures" / "decisions.svg"
QUESTION = "Why did we leave JWT?"
# Fill and edge colours. Dark text must be readable on the fill, and the edge visible on light and dark pages.
_BAD, _GOOD, _PLAIN, _ASKED = (
    ("#fee2e2", "#dc2626"),
    ("#dcfce7", "#16a34a"),
    ("#f1f5f9", "#64748b"),
    ("#dbeafe", "#2563eb"),
)
_QUIET = "#7c8aa0"
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 724 274" width="724" height="274" role="img" \
font-family="system-ui, sans-serif" font-size="15">
  <title>A decision failed, another replaced it, and a search finds both</title>
  <defs>
    <marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
      <path d="M0 0 10 5 0 10z" fill="#64748b"/>
    </marker>
  </defs>
"""


def remembered() -> tuple[Chain, str, list[Hit]]:
    """Return the evolution of a decision, the reason for its failure, and the hits for a question."""
    with tempfile.TemporaryDirectory() as place, Session.open(place, embedder=HashEmbedder()) as session:
        memories = session.memories
        monday, thursday = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC)
        jwt = memories.save_decision(
            "Use JWT for logins", topic="auth", reasoning="The server keeps no state", created_at=monday
        )
        memories.set_outcome(jwt.id, "FAILED", reason="A stolen JWT could not be revoked")
        memories.supersede(jwt.id, "Keep logins in Redis", reasoning="They can be ended at once", created_at=thursday)
        why = memories.get(jwt.id).metadata.outcome_reason
        return memories.history(jwt.id), why, memories.search(QUESTION, type=["decision"])


def picture() -> str:
    """Return the picture as SVG."""
    chain, why, hits = remembered()
    new, old = chain.memories
    (link,) = (one for one in chain.links if one.link_type is LinkType.EVOLUTION)
    failed = next(hit.memory for hit in hits if hit.superseded_by == new.id)
    assert (link.from_id, link.to_id, failed.id) == (new.id, old.id, old.id)
    back = 'd="M 590 100 C 550 142, 180 142, 110 104" fill="none" stroke="#64748b" stroke-width="2"'
    parts = [
        *_draw_text(112, 22, f"{old.created_at:%A}"),
        *_box(10, 34, 204, 66, _BAD, old.content, old.metadata.reasoning),
        *_arrow(214, 67, 240, 67),
        *_box(242, 34, 262, 66, _BAD, str(failed.metadata.outcome), why),
        *_draw_text(613, 22, f"{new.created_at:%A}"),
        *_box(512, 34, 202, 66, _GOOD, new.content, new.metadata.reasoning),
        f'<path {back} marker-end="url(#a)"/>',
        *_draw_text(360, 152, "takes its place"),
        *_box(10, 198, 212, 56, _ASKED, QUESTION),
        *_arrow(222, 226, 252, 226),
        *_box(
            254, 186, 460, 80, _PLAIN, f"{failed.content}: {failed.metadata.outcome}", why, f"Since then: {new.content}"
        ),
    ]
    return _HEAD + "".join(f"  {part}\n" for part in parts) + "</svg>\n"


def _box(x: int, y: int, width: int, height: int, colours: tuple[str, str], *lines: str) -> Iterator[str]:
    """Yield a box with centred lines. The first line is bold, the others are smaller."""
    fill, edge = colours
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{edge}" '
        'stroke-width="1.5"/>'
    )
    for number, line in enumerate(lines):
        style = 'font-size="13"' if number else 'font-weight="600"'
        at = y + height / 2 + 5 + 21 * (number - (len(lines) - 1) / 2)
        middle = f'x="{x + width / 2:g}" y="{at:g}" text-anchor="middle"'
        yield f'<text {middle} fill="#1e293b" {style}>{escape(line)}</text>'


def _draw_text(x: int, y: int, text: str) -> Iterator[str]:
    yield f'<text x="{x}" y="{y}" text-anchor="middle" fill="{_QUIET}" font-size="13">{escape(text)}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> Iterator[str]:
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#64748b" stroke-width="2" marker-end="url(#a)"/>'
    yield line


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
