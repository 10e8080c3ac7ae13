"""Plots of memories with matplotlib (extra ``notebook``)."""

from __future__ import annotations

import contextlib
import functools
import io
import threading
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mama_structs._internal.reprs import COLOURS, require_extra, truncate_line
from mama_structs.memory.graph import traversal as graph
from mama_structs.memory.graph.diagrams import links_between, outcome_value, to_networkx
from mama_structs.memory.graph.labels import ABOVE, BELOW, LabelPlace, LabelPlacer, sort_sides
from mama_structs.memory.graph.results import Chain, MemoryLike
from mama_structs.memory.types.engine import SYSTEM_CREATOR_INDEX, LinkTable, Reader
from mama_structs.memory.types.model import DECAY_RATES_PER_DAY, Link, LinkType, Memory, MemoryType, to_milliseconds
from mama_structs.memory.types.requests import check_limit, check_memory

_TYPE_COLOURS: Final = {
    MemoryType.DECISION: "#3b7dd8",
    MemoryType.CHECKPOINT: "#8a63d2",
    MemoryType.INSIGHT: "#1f9e89",
    MemoryType.CONTEXT: "#8a8a8a",
}
_LINK_COLOURS: Final = {
    LinkType.EVOLUTION: "#d1495b",
    LinkType.IMPLEMENTATION: "#3b7dd8",
    LinkType.ASSOCIATION: "#c98a1b",
    LinkType.TEMPORAL: "#9a9a9a",
}
_PALETTE: Final = ("#3b7dd8", "#d1495b", "#1f9e89", "#c98a1b", "#8a63d2", "#4fa3c7", "#c2679f", "#6b8f3c")
_BEND_ROWS: Final = 0.9  # Twice the distance of a curved arrow from a straight one.
_GREY: Final = "#8a8a8a"
_OTHER_COLOUR: Final = "#bbbbbb"
_MAX_TOPICS: Final = 12
_MAX_VERSIONS: Final = 20
_DECAY_DAYS: Final = 90
_MAX_MEMORIES: Final = 5_000
_MAX_NEIGHBOURS: Final = 60
_MAX_LABELS: Final = 200
_MAX_LONG_LABELS: Final = 20
_DAY_MS: Final = 86_400_000


class MemoryPlots:
    """
    Plots of memories, available as `MemoryStore.plot`.

    Each method draws on *ax*, a `matplotlib.axes.Axes`, or on a new figure, and returns the axes.
    Texts of memories are drawn literally, without math or escape syntax.

    Raises:
        ImportError: matplotlib is not installed (extra ``notebook``). Raised by every method.

    """

    def __init__(self, memories: Any) -> None:
        self._memories = memories

    async def history(self, topic: str, *, ax: Any = None) -> Any:
        """
        Draw the evolution of a topic's decisions with their outcomes, newest on top.

        Arrows point from an old decision to the decision that replaced it.

        Args:
            topic: Exact topic as it was saved.
            ax: Axes to draw on.

        Returns:
            The matplotlib axes.

        """
        chain: Chain = await self._memories.history(topic=topic)
        decided = [memory for memory in chain.memories if memory.type is MemoryType.DECISION][:_MAX_VERSIONS]
        ax = _make_axes(ax, height=0.9 + 0.75 * max(len(decided), 1))
        rows = {memory.id: len(decided) - place for place, memory in enumerate(decided)}
        gone = {link.to_id for link in chain.links}
        for link in links_between(chain.links, decided):
            start, end = rows[link.from_id], rows[link.to_id]
            # Curve the arrow to the left around the rows in between, because the texts are on the right.
            bend = 0.0 if start - end == 1 else -_BEND_ROWS / (start - end)
            _draw_arrow(ax, (0, end), (0, start), color=_GREY, connectionstyle=f"arc3,rad={bend}")
        for memory in decided:
            outcome = outcome_value(memory)
            colour = COLOURS[outcome] if outcome else _TYPE_COLOURS[memory.type]
            is_gone = memory.id in gone
            ax.plot(
                0, rows[memory.id], "o", markersize=11, color=colour, fillstyle="none" if is_gone else "full", mew=2
            )
            _draw_text(
                ax,
                0.35,
                rows[memory.id] + 0.16,
                truncate_line(memory.content, 74),
                size=10,
                alpha=0.65 if is_gone else 1,
            )
            why = getattr(memory.metadata, "outcome_reason", None)
            facts = [f"{memory.created_at:%Y-%m-%d}", outcome, truncate_line(why, 60) if why else None]
            _draw_text(ax, 0.35, rows[memory.id] - 0.2, " · ".join(filter(None, facts)), size=8, color=colour)
        ax.set(xlim=(-0.5, 10), ylim=(0.5, len(decided) + 0.4))
        ax.axis("off")
        _set_title(
            ax, f"How {truncate_line(topic, 40)} evolved" if decided else f"No decision on {truncate_line(topic, 40)}"
        )
        return ax

    async def neighbourhood(self, memory: MemoryLike, *, depth: int = 2, ax: Any = None) -> Any:
        """
        Draw a memory, its neighbours and the links between them.

        At most 60 memories are drawn, nearest first.

        Args:
            memory: The memory, or its id.
            depth: Maximum number of links from it, at most 5.
            ax: Axes to draw on.

        Returns:
            The matplotlib axes.

        """
        memory_id, most = check_memory("memory", memory), check_limit(depth, name="depth")
        now_ms = to_milliseconds(self._memories._shared.now)

        def plan(reader: Reader, node: int) -> tuple[list[Memory], list[Link]]:
            steps = graph.traverse(reader, node, now_ms=now_ms, max_depth=most, limit=_MAX_NEIGHBOURS)
            nodes = [node, *(step.node for step in steps)]
            links = [link for own in reader.links_of_many(nodes, "out") for link in own]
            return reader.get(nodes), links

        memories, links = await self._memories._read(memory_id, plan)
        ax = _make_axes(ax, height=6.0)
        tied = links_between(links, memories)
        nx = require_extra("networkx")
        places = nx.spring_layout(nx.Graph(to_networkx(memories, tied)), seed=1, k=1.6 / np.sqrt(len(memories)))
        for link in sorted(tied, key=lambda one: [*LinkType].index(one.link_type), reverse=True):
            strength = 0.35 + 0.65 * link.confidence
            _draw_arrow(
                ax, places[link.from_id], places[link.to_id], color=_LINK_COLOURS[link.link_type], alpha=strength
            )
        for one in memories:
            outcome, is_start = outcome_value(one), one is memories[0]
            edge = COLOURS[outcome] if outcome else ax.get_facecolor()
            size = 13 if is_start else 9
            ax.plot(*places[one.id], "o", markersize=size, color=_TYPE_COLOURS[one.type], mec=edge, mew=2)
        ax.margins(0.18, 0.12)
        ax.axis("off")
        types, kinds = {one.type for one in memories}, {link.link_type for link in tied}
        signs = [(kind.value, colour, "o") for kind, colour in _TYPE_COLOURS.items() if kind in types]
        _add_legend(
            ax, [*signs, *((kind.value, colour, "") for kind, colour in _LINK_COLOURS.items() if kind in kinds)]
        )
        _set_title(ax, f"Around “{truncate_line(memories[0].content, 50)}”")
        points = np.array([places[one.id] for one in memories])
        ends = [(places[link.from_id], places[link.to_id]) for link in tied]
        lengths = (34, 22) if len(memories) <= _MAX_LONG_LABELS else (22, 14)
        placer = _make_placer(ax, points, np.array(ends).reshape(-1, 2, 2), gap=9)
        for at, one in enumerate(memories):
            texts = [truncate_line(one.content, most) for most in lengths]
            place = placer.place(at, texts, size=8, sides=sort_sides(points[at], points.mean(axis=0)))
            if place is not None:
                _draw_label(ax, points[at], place, size=8, weight="bold" if at == 0 else "normal")
        return ax

    async def timeline(self, *, ax: Any = None) -> Any:
        """
        Draw the creation times of the newest 5,000 memories, with one row per topic.

        Only the twelve topics with the most memories have rows of their own.

        Args:
            ax: The matplotlib axes; None for new axes.

        Returns:
            The matplotlib axes.

        """
        memories: Sequence[Memory] = await self._memories.list(limit=_MAX_MEMORIES)
        counts = Counter(memory.topic for memory in memories)
        topics = [topic for topic, _ in counts.most_common() if topic is not None][:_MAX_TOPICS]
        rows = {topic: len(topics) - place for place, topic in enumerate(topics)}
        ax = _make_axes(ax, height=1.6 + 0.34 * (len(rows) + 1))
        for kind, colour in _TYPE_COLOURS.items():
            own = [memory for memory in memories if memory.type is kind]
            if own:
                ax.scatter(
                    [memory.created_at for memory in own],
                    [rows.get(memory.topic or "", 0) for memory in own],
                    s=46,
                    c=colour,
                    edgecolors=[COLOURS.get(outcome_value(memory) or "", ax.get_facecolor()) for memory in own],
                    linewidths=1.6,
                    alpha=0.9,
                    zorder=2,
                )
        names = [("other" if topics else "all"), *(truncate_line(topic or "", 24) for topic in reversed(topics))]
        lettered = _text_arguments("\n".join(names))
        ax.set_yticks(range(len(names)), lettered.pop("text").split("\n"), **lettered)
        ax.set_ylim(-0.6, len(rows) + 0.6)
        ax.grid(visible=True, axis="y", alpha=0.25)
        _hide_frame(ax)
        _format_dates(ax)
        _add_legend(ax, [(kind.value, colour, "o") for kind, colour in _TYPE_COLOURS.items()])
        _set_title(ax, f"{len(memories):,} memories")
        return ax

    async def embedding_map(self, *, ax: Any = None) -> Any:
        """
        Draw the vectors of the newest 5,000 memories on two principal components.

        The axis labels show the ratio of variance that each component explains. Eight topics have colours.

        Args:
            ax: The matplotlib axes; None for new axes.

        """

        def plan(reader: Reader) -> tuple[list[Memory], NDArray[np.float32]]:
            nodes = reader.window(limit=_MAX_MEMORIES)
            pieces, counts = reader.pieces(nodes)
            has = counts > 0
            first = (np.cumsum(counts) - counts)[has]
            return reader.get(nodes[has]), pieces[first]

        memories, vectors = await self._memories._shared.read(plan)
        ax = _make_axes(ax, height=5.0)
        points, shares = _principal_components(vectors)
        topics = [topic for topic, _ in Counter(memory.topic for memory in memories).most_common() if topic][:8]
        palette = dict(zip(topics, _PALETTE, strict=False))
        colours = [palette.get(memory.topic or "", _OTHER_COLOUR) for memory in memories]
        if memories:
            ax.scatter(
                points[:, 0], points[:, 1], s=max(8, 60 - len(memories) / 40), c=colours, alpha=0.85, lw=0, zorder=4
            )
        ax.margins(0.2, 0.12)
        for axis, share in zip((ax.set_xlabel, ax.set_ylabel), shares, strict=True):
            axis(f"{share:.0%} of the variance", color=_GREY, size=8)
        ax.set(xticks=[], yticks=[])
        _hide_frame(ax)
        others = [("other", _OTHER_COLOUR)] if _OTHER_COLOUR in colours else []
        _add_legend(ax, [(truncate_line(topic, 24), colour, "o") for topic, colour in [*palette.items(), *others]])
        _set_title(ax, f"{len(memories):,} memories by their meaning")
        placer = _make_placer(ax, points, gap=5)
        for at, memory in enumerate(memories[:_MAX_LABELS]):
            texts = [truncate_line(memory.content, 30)]
            if place := placer.place(at, texts, size=7, sides=(ABOVE, BELOW), max_cost=0):
                _draw_label(ax, points[at], place, size=7)
        return ax

    async def decay(self, *, ax: Any = None) -> Any:
        """
        Draw the decay of automatic links by age.

        Each link type is a curve, and each existing link a dot.

        Args:
            ax: The matplotlib axes; None for new axes.

        Returns:
            The matplotlib axes.

        """

        def plan(reader: Reader) -> LinkTable:
            return reader.links(reader.window(limit=_MAX_MEMORIES), "out")

        memories = self._memories
        table, now_ms = await memories._shared.read(plan), to_milliseconds(memories._shared.now)
        ax = _make_axes(ax, height=3.8)
        days = np.linspace(0, _DECAY_DAYS, 181)
        strengths = table.decayed_confidences(now_ms)
        ages = np.maximum(now_ms - table.created, 0) / _DAY_MS
        automatic = table.creators == SYSTEM_CREATOR_INDEX
        for number, (kind, colour) in enumerate(_LINK_COLOURS.items()):
            ax.plot(days, np.exp(-DECAY_RATES_PER_DAY[kind] * days), color=colour, label=kind.value, lw=2)
            own = automatic & (table.types == number) & (ages <= _DECAY_DAYS)
            ax.scatter(ages[own], strengths[own], s=16, c=colour, alpha=0.5, lw=0, clip_on=False)
        ax.set(xlim=(0, _DECAY_DAYS), ylim=(0, 1.03))
        ax.set_xlabel("days since the link was made", color=_GREY, size=9)
        ax.set_ylabel("strength", color=_GREY, size=9)
        ax.grid(visible=True, alpha=0.25)
        _hide_frame(ax)
        ax.legend(frameon=False, fontsize=8)
        _set_title(ax, "How automatic links fade; those of users and models do not")
        return ax


_MARGIN_INCHES: Final = 0.12
_DEFAULT_FONT: Final = "DejaVu Sans"  # Ships with matplotlib, but has no East Asian glyphs.
_FALLBACK_FONTS: Final = ("Noto Sans CJK KR", "Noto Sans CJK JP", "Malgun Gothic", "Apple SD Gothic Neo", "NanumGothic")
# Parts of the names of fonts that draw a box for each character, or that matplotlib cannot render.
_UNUSABLE_FONT_WORDS: Final = ("Last", "Emoji")
_REPLACEMENT_CHAR: Final = "\ufffd"
# Numbers of installed fonts at which the warning was issued. It is repeated only after fonts were installed.
_warned_font_counts: Final[set[int]] = set()
_MAX_LISTED_CHARS: Final = 10


def _make_axes(ax: Any, *, height: float) -> Any:
    if ax is not None:
        return ax
    size: dict[str, Any] = {"figsize": (8.0, height), "layout": "constrained"}
    # Notebooks display pyplot figures. Other threads, which `mama_structs.sync` uses, cannot open pyplot windows.
    if threading.current_thread() is threading.main_thread():
        figure, how = require_extra("matplotlib.pyplot").figure(**size), {}
    else:
        figure, how = require_extra("matplotlib.figure").Figure(**size), {"axes_class": _png_axes_class()}
    figure.get_layout_engine().set(w_pad=_MARGIN_INCHES, h_pad=_MARGIN_INCHES)
    return figure.subplots(subplot_kw=how)


@functools.cache
def _png_axes_class() -> Any:
    """Return an axes class that notebooks display as an image without pyplot."""
    plain: Any = require_extra("matplotlib.axes").Axes

    class ShownAxes(plain):  # type: ignore[misc]  # matplotlib is imported when it is used
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.figure.savefig(file, format="png")
            return file.getvalue()

    return ShownAxes


def _text_arguments(text: str) -> dict[str, Any]:
    """Return drawing arguments for a text: fonts with its glyphs, and no math syntax."""
    fonts = len(require_extra("matplotlib.font_manager").fontManager.ttflist)
    found = {letter: _find_font(letter, fonts) for letter in dict.fromkeys(text) if not letter.isspace()}
    # Characters that only join or modify others are not visible, so they need no glyph.
    unseen = {letter for letter, name in found.items() if name is None and unicodedata.category(letter) in ("Cf", "Mn")}
    missing = [letter for letter, name in found.items() if name is None and letter not in unseen]
    if missing and fonts not in _warned_font_counts:
        _warned_font_counts.add(fonts)
        warnings.warn(
            f"no installed font has {', '.join(missing[:_MAX_LISTED_CHARS])}: these are drawn as {_REPLACEMENT_CHAR}. "
            "Install one that has them, such as Noto Sans CJK, or give its file to fontManager.addfont of "
            "matplotlib.font_manager",
            stacklevel=2,
        )
    drawn = "".join(_REPLACEMENT_CHAR if one in missing else one for one in text if one not in unseen)
    return {
        "text": drawn,
        "family": [*dict.fromkeys([_DEFAULT_FONT, *filter(None, found.values())])],
        "parse_math": False,
    }


@functools.lru_cache(maxsize=4_096)
def _find_font(letter: str, fonts: int) -> str | None:  # noqa: ARG001 - part of the cache key: fonts may be added
    """
    Return the first font with a glyph for a letter.

    The order is matplotlib's own font, matching fonts, and any installed font.
    """
    manager = require_extra("matplotlib.font_manager")
    files: dict[str, str] = {one.name: one.fname for one in manager.fontManager.ttflist}
    for name in dict.fromkeys([_DEFAULT_FONT, *_FALLBACK_FONTS, *sorted(files)]):
        if name in files and not any(word in name for word in _UNUSABLE_FONT_WORDS):
            with contextlib.suppress(OSError, RuntimeError):
                if manager.get_font(files[name]).get_char_index(ord(letter)):
                    return name
    return None


def _draw_text(
    ax: Any,
    x: float,
    y: float,
    text: str,
    *,
    offset: tuple[float, float] = (0, 0),
    is_outlined: bool = False,
    **how: Any,
) -> None:
    how = {"va": "center", "annotation_clip": False} | _text_arguments(text) | how
    if is_outlined:
        # Outline the text, so that lines behind it do not make it unreadable.
        effects = require_extra("matplotlib.patheffects")
        how["path_effects"] = [effects.withStroke(linewidth=2.5, foreground=ax.get_facecolor())]
    drawn = ax.annotate(xy=(x, y), xytext=offset, textcoords="offset points", **how)
    # Outlined labels were placed for the present position of the axes.
    drawn.set_in_layout(not is_outlined)


def _make_placer(
    ax: Any, points: NDArray[np.float64], lines: NDArray[np.float64] | None = None, *, gap: float
) -> LabelPlacer:
    """
    Return a placer for labels of *points* that avoids *lines*, of shape (lines, 2, 2).

    All other parts must be drawn before, because they determine the position of the axes in the figure.
    """
    ax.figure.draw_without_rendering()
    to_pixels, figure = ax.transData.transform, ax.figure.bbox
    starts, ends = (np.empty((2, 0, 2)) if lines is None else lines.transpose(1, 0, 2)).astype(np.float64)
    found = [to_pixels(some) if len(some) else some for some in (points, starts, ends)]
    return LabelPlacer(*found, frame=(figure.x0, ax.bbox.y0, figure.x1, ax.bbox.y1), dpi=ax.figure.dpi, gap=gap)


def _draw_label(ax: Any, point: Any, place: LabelPlace, **how: Any) -> None:
    if place.cost:
        # Lines that no place avoids are interrupted.
        how["bbox"] = {"facecolor": ax.get_facecolor(), "alpha": 0.85, "edgecolor": "none", "pad": 1}
    x, y = point
    _draw_text(ax, x, y, place.text, offset=place.offset, ha=place.ha, va=place.va, is_outlined=True, **how)


def _draw_arrow(ax: Any, start: Any, end: Any, **how: Any) -> None:
    ax.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "shrinkA": 8, "shrinkB": 8, **how})


def _set_title(ax: Any, text: str) -> None:
    lettered = _text_arguments(text)
    ax.set_title(lettered.pop("text"), loc="left", size=11, **lettered)


def _add_legend(ax: Any, entries: Sequence[tuple[str, str, str]]) -> None:
    lines = require_extra("matplotlib.lines")
    handles = [
        lines.Line2D([], [], color=colour, marker=marker, linestyle="none" if marker else "-")
        for _, colour, marker in entries
    ]
    where = {
        "loc": "upper center",
        "bbox_to_anchor": (0.5, 0),
        "borderaxespad": 3,
        "ncols": 4,
        "frameon": False,
        "fontsize": 8,
    }
    legend = ax.legend(handles, ["x"] * len(entries), **where)
    for written, (name, _, _) in zip(legend.get_texts(), entries, strict=True):
        # Set the text after creation, because the legend would parse math syntax in labels.
        written.set(**_text_arguments(name))


def _hide_frame(ax: Any) -> None:
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(_GREY)
    ax.tick_params(length=0, labelsize=8)


def _format_dates(ax: Any) -> None:
    dates = require_extra("matplotlib.dates")
    locator = dates.AutoDateLocator(minticks=3, maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    ax.xaxis.get_offset_text().set_size(8)


def _principal_components(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    Project vectors on their two principal components.

    Returns the points, and the variance ratio of each component.
    """
    points, shares = np.zeros((len(vectors), 2)), np.zeros(2)
    if len(vectors) > 1:
        centred = vectors.astype(np.float64) - vectors.mean(axis=0)
        values, axes = np.linalg.eigh(centred.T @ centred)
        best = axes[:, :-3:-1]
        # Fix the sign of each component, which is arbitrary, so that plots are reproducible.
        best = best * np.sign(best[np.abs(best).argmax(axis=0), np.arange(best.shape[1])])
        points[:, : best.shape[1]] = centred @ best
        shares[: best.shape[1]] = values[:-3:-1] / max(values.sum(), 1e-12)
    return points, shares
