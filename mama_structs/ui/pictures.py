"""Pictures of chains of memories as SVG, for pages and for files without a server."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

import attrs
from markupsafe import Markup

from mama_structs._internal.reprs import format_count, truncate_line
from mama_structs.memory.types.model import Link, Memory, MemoryType, is_outcome_reason
from mama_structs.ui.rendering import OUTCOME_WORDS

MAX_DRAWN: Final = 40
"""Maximum number of memories in one picture."""
# The picture is as wide as a narrow telephone, so that its text needs no scaling there.
_WIDTH: Final = 360
_ROW_HEIGHT: Final = 66
_LANE_WIDTH: Final = 22
_RADIUS: Final = 8
_MAX_LANES: Final = 6
# Average width of a character at 13 px, with a margin for wide letters.
_CHAR_WIDTH: Final = 7.4
_MAX_TITLE_CHARS: Final = 400
_MARKS: Final = {"SUCCESS": "M-4 0l3 3l5-6", "FAILED": "M-3.5-3.5l7 7M3.5-3.5l-7 7", "PARTIAL": "M-4 0h8"}


@attrs.frozen
class _Edge:
    """Line between two memories, each given by its row and lane. It runs along the lane *via*."""

    newer: tuple[int, int]
    older: tuple[int, int]
    via: int


@attrs.define
class _Layout:
    """
    Rows and lanes of memories, newest first, as in the graph of a version control system.

    Each memory has a row. Lines run along lanes at the left of the texts, so they cross no text.
    """

    lanes: list[int] = attrs.field(factory=list)
    edges: list[_Edge] = attrs.field(factory=list)
    width: int = 1


def draw_chain(
    memories: Sequence[Memory], links: Iterable[Link], *, title: str, link_to: Callable[[Memory], str | None]
) -> Markup:
    """
    Return an SVG of memories, newest first, with arrows from each replaced memory to its replacement.

    Place the same memories next to it as a list, because the keyboard skips the links of the picture.

    Args:
        memories: The memories, newest first. Only the first `MAX_DRAWN` are drawn.
        links: Their evolution links. A line to a memory that is not drawn leads to the lower edge.
        title: Name of the picture.
        link_to: Returns the address of a memory, or None for no address.

    """
    # The reason of an outcome is part of its decision.
    memories = [memory for memory in memories if not is_outcome_reason(memory)]
    name, drawn = truncate_line(title, _MAX_TITLE_CHARS), memories[:MAX_DRAWN]
    pairs = {(link.from_id, link.to_id) for link in links}
    replaced = {older for _, older in pairs}
    layout = _lay_out([memory.id for memory in drawn], pairs)
    omitted = len(memories) - len(drawn)
    height = _ROW_HEIGHT * len(drawn) + (24 if omitted else 4)
    text_x = _lane_x(layout.width - 1) + _RADIUS + 10
    parts = [
        Markup('<svg class="chain" role="group" width="{}" height="{}" viewBox="0 0 {} {}" aria-label="{}">').format(
            _WIDTH, height, _WIDTH, height, name
        ),
        Markup("<title>{}</title><desc>{}</desc>").format(name, _describe(drawn, pairs, omitted)),
        *map(_draw_edge, layout.edges),
    ]
    for row, (memory, lane) in enumerate(zip(drawn, layout.lanes, strict=True)):
        node = _draw_memory(memory, row, lane, text_x, is_replaced=memory.id in replaced)
        target = link_to(memory)
        # The list next to the picture has the same links, so the keyboard need not pass them twice.
        # The role "img" would forbid links inside.
        parts.append(node if target is None else Markup('<a href="{}" tabindex="-1">{}</a>').format(target, node))
    if omitted:
        note = f"{format_count(omitted, 'earlier memory', 'earlier memories')} not drawn"
        parts.append(Markup('<text class="dim" x="{}" y="{}">{}</text>').format(text_x, height - 8, note))
    return Markup("").join([*parts, Markup("</svg>")])


def _lay_out(ids: Sequence[str], pairs: Iterable[tuple[str, str]]) -> _Layout:
    rows = {one: row for row, one in enumerate(ids)}
    older: dict[str, list[str]] = {one: [] for one in ids}
    for newer, old in sorted(pairs, key=lambda pair: rows.get(pair[1], len(ids))):
        # A line may lead to a memory that is not drawn. A line upwards, in a cycle, has no place in this layout.
        if newer in rows and rows.get(old, len(ids)) > rows[newer]:
            older[newer].append(old)
    layout = _Layout()
    # The lane to each older memory, and the rows and lanes of the memories at which its lines begin.
    waiting: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    for row, one in enumerate(ids):
        lane, starts = waiting.pop(one) if one in waiting else (_free_lane(waiting, 0), [])
        layout.lanes.append(lane)
        layout.edges += [_Edge(start, (row, lane), lane) for start in starts]
        for old in older[one]:
            if old not in waiting:
                waiting[old] = _free_lane(waiting, lane), []
            waiting[old][1].append((row, lane))
    layout.edges += [_Edge(start, (len(ids), lane), lane) for lane, starts in waiting.values() for start in starts]
    layout.width = 1 + max([*layout.lanes, *(edge.via for edge in layout.edges)], default=0)
    return layout


def _free_lane(waiting: Mapping[str, tuple[int, object]], preferred: int) -> int:
    """Return a lane without a line. If all lanes have lines, several share the last one."""
    used = {lane for lane, _ in waiting.values()}
    free = (lane for lane in (preferred, *range(_MAX_LANES)) if lane not in used)
    return next(free, _MAX_LANES - 1)


def _draw_edge(edge: _Edge) -> Markup:
    (newer_row, newer_lane), (older_row, older_lane) = edge.newer, edge.older
    x1, x2, x3 = _lane_x(newer_lane), _lane_x(edge.via), _lane_x(older_lane)
    y1, y3 = _row_y(newer_row) + _RADIUS + 2, _row_y(older_row) - _RADIUS
    half = _ROW_HEIGHT // 2 - _RADIUS
    # Vertical at both ends, with bends next to them where the line changes its lane.
    path = f"M{x1} {y1}C{x1} {y1 + half} {x2} {y1} {x2} {y1 + half}V{y3 - half}C{x2} {y3} {x3} {y3 - half} {x3} {y3}"
    head = f"M{x1 - 5} {y1 + 7}L{x1} {y1}L{x1 + 5} {y1 + 7}"
    return Markup('<path class="line" d="{}"/><path class="line" d="{}"/>').format(path, head)


def _draw_memory(memory: Memory, row: int, lane: int, text_x: int, *, is_replaced: bool) -> Markup:
    x, y = _lane_x(lane), _row_y(row)
    outcome = memory.outcome.value if memory.outcome else None
    classes = f"memory outcome-{outcome.lower()}" if outcome else "memory"
    columns = int((_WIDTH - text_x) / _CHAR_WIDTH)
    shape = Markup('<circle cx="{}" cy="{}" r="{}"/>').format(x, y, _RADIUS)
    if memory.type is not MemoryType.DECISION:
        side = 2 * _RADIUS - 2
        shape = Markup('<rect x="{}" y="{}" width="{}" height="{}" rx="3"/>').format(
            x - side // 2, y - side // 2, side, side
        )
    if outcome in _MARKS:
        shape += Markup('<path class="mark" transform="translate({} {})" d="{}"/>').format(x, y, _MARKS[outcome])
    lines = _wrap(memory.content, columns)
    texts = [
        Markup('<text class="name" x="{}" y="{}">{}</text>').format(text_x, y - 6 + 17 * at, line)
        for at, line in enumerate(lines)
    ]
    facts = " · ".join(_list_facts(memory, is_replaced=is_replaced))
    texts.append(Markup('<text class="facts" x="{}" y="{}">{}</text>').format(text_x, y - 6 + 17 * len(lines), facts))
    tip = truncate_line(memory.content, _MAX_TITLE_CHARS)
    if memory.outcome_reason:
        tip = f"{tip} ({truncate_line(memory.outcome_reason, _MAX_TITLE_CHARS)})"
    return Markup('<g class="{}{}"><title>{}</title>{}{}</g>').format(
        classes, " replaced" if is_replaced else "", tip, shape, Markup("").join(texts)
    )


def _list_facts(memory: Memory, *, is_replaced: bool) -> Iterator[str]:
    yield f"{memory.created_at:%Y-%m-%d}"
    if memory.type is not MemoryType.DECISION:
        yield memory.type.value
    if memory.outcome:
        yield OUTCOME_WORDS[memory.outcome.value]
    if is_replaced:
        yield "replaced"


def _describe(memories: Sequence[Memory], pairs: set[tuple[str, str]], omitted: int) -> str:
    drawn = {memory.id for memory in memories}
    count = sum(newer in drawn and older in drawn for newer, older in pairs)
    arrows = f"{format_count(count, 'arrow')} from a memory to its replacement" if count else "nothing replaced"
    rest = f", {omitted:,} earlier ones left out" if omitted else ""
    return f"{format_count(len(memories), 'memory', 'memories')}, newest first, {arrows}{rest}."


def _wrap(text: str, columns: int) -> list[str]:
    """Return the beginning of a text in at most two lines."""
    line = truncate_line(text, 2 * columns)
    ends = list(accumulate(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line))
    if not ends or ends[-1] <= columns:
        return [line]
    most = bisect_right(ends, columns)
    space = line.rfind(" ", most // 2, most + 1)
    cut = most if space < 0 else space
    return [line[:cut], truncate_line(line[cut:], columns)]


def _lane_x(lane: int) -> int:
    return _RADIUS + 4 + _LANE_WIDTH * lane


def _row_y(row: int) -> int:
    return _ROW_HEIGHT * row + 22
