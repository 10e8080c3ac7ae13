"""Plots of memories: their contents, and their robustness against arbitrary texts."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta

import matplotlib as mpl
import matplotlib.figure
import matplotlib.font_manager
import matplotlib.path
import matplotlib.text
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from memory_helpers import SMALL, OpenedDirectory

from mama_structs import sync
from mama_structs.errors import InvalidArgument, MemoryNotFound
from mama_structs.memory.graph import plot

START = datetime(2026, 1, 1, tzinfo=UTC)
# Invalid mathematical markup, a leading underscore (legends omit such labels), escape sequences and HTML.
HOSTILE = "$\\frac{a$ _x \u202e\x1b[31m\n<b>{}%s"


@pytest.fixture
async def memories(tmp_path):
    mpl.use("agg")
    opened = OpenedDirectory.open(tmp_path, clock=(START + timedelta(days=40)).timestamp)
    yield await opened.memories()
    await opened.close()
    import matplotlib.pyplot as plt  # noqa: PLC0415 - the import selects a drawing backend

    plt.close("all")


def texts_of(axes):
    """Render a plot, and return all its texts."""
    axes.figure.savefig(io.BytesIO())
    return "\n".join(text.get_text() for text in axes.figure.findobj(mpl.text.Text))


async def drawn(memories, memory_id, topic):
    """Draw all kinds of plots, and return them by name."""
    plot = memories.plot
    return {
        "history": await plot.history(topic),
        "neighbourhood": await plot.neighbourhood(memory_id),
        "timeline": await plot.timeline(),
        "embedding_map": await plot.embedding_map(),
        "decay": await plot.decay(),
    }


async def test_plots_show_memories(memories):
    """Decisions with outcomes, neighbourhoods, topics, types of memories and types of links."""
    old = await memories.save_decision("Use JWT for logins", topic="auth", reasoning="no store", created_at=START)
    await memories.set_outcome(old.id, "FAILED", reason="Nothing ends a token", at=START + timedelta(days=9))
    new = await memories.supersede(
        old.id, "Sessions in Redis", reasoning="they end", created_at=START + timedelta(days=10)
    )
    await memories.save_checkpoint("Done", implements=[new.id], created_at=START + timedelta(days=11))
    texts = {name: texts_of(axes) for name, axes in (await drawn(memories, old.id, "auth")).items()}

    assert "How auth evolved" in texts["history"]
    assert "Sessions in Redis" in texts["history"]
    assert "2026-01-01 · FAILED · Nothing ends a token" in texts["history"]
    for name in ("Use JWT for logins", "Sessions in Redis", "Done", "evolution", "implementation", "checkpoint"):
        assert name in texts["neighbourhood"]
    assert {"auth", "other", "4 memories"} <= set(texts["timeline"].split("\n"))
    assert "4 memories by their meaning" in texts["embedding_map"]
    assert "% of the variance" in texts["embedding_map"]
    assert {"auth", "other"} <= set(texts["embedding_map"].split("\n"))
    assert {"evolution", "implementation", "association", "temporal"} <= set(texts["decay"].split("\n"))


async def test_history_points_from_old_to_new(memories):
    """Also an arrow around other decisions, which bends away from the texts."""
    old = await memories.save_decision("Use JWT", topic="auth", reasoning="x", created_at=START)
    middle = await memories.supersede(old.id, "Use Redis", reasoning="x", created_at=START + timedelta(days=1))
    new = await memories.supersede(middle.id, "Passkeys", reasoning="x", created_at=START + timedelta(days=2))
    await memories.link(new.id, old.id, "supersedes")
    axes = await memories.plot.history("auth")
    arrows = [one for one in axes.texts if one.arrow_patch is not None]
    axes.figure.savefig(io.BytesIO())

    assert {(1, 2), (2, 3), (1, 3)} == {(one.xyann[1], one.xy[1]) for one in arrows}
    tails = axes.transData.inverted().transform
    paths = [tails(one.arrow_patch.get_path().vertices)[:, 0] for one in arrows]
    assert all(path.max() <= 0.2 for path in paths)
    assert -1.2 < min(path.min() for path in paths) < -0.5


async def test_labels_of_neighbourhood_cross_no_line(memories):
    """A label is placed at a free side of its memory, inside the figure. Without such a side, it has a background."""
    hub = await memories.save_decision("Keep logins as sessions in Redis", topic="auth", reasoning="x")
    for number in range(6):
        await memories.save_checkpoint(
            f"Step {number} for the sessions with a longer text",
            implements=[hub.id],
            created_at=START + timedelta(days=5 * number),
        )
    axes = await memories.plot.neighbourhood(hub.id)
    axes.figure.savefig(io.BytesIO())
    drawn = [one for one in axes.texts if one.get_text()]
    labels = [one.get_window_extent() for one in drawn]
    lines = [axes.transData.transform([one.xyann, one.xy]) for one in axes.texts if one.arrow_patch is not None]

    assert 7 == len(labels)
    assert 6 <= len(lines)
    for text, label in zip(drawn, labels, strict=True):
        crossed = [line for line in lines if mpl.path.Path(line).intersects_bbox(label, filled=False)]
        assert not crossed or text.get_bbox_patch() is not None
        assert not crossed or text is drawn[0]
        assert axes.figure.bbox.x0 <= label.x0 < label.x1 <= axes.figure.bbox.x1
        assert not [one for one in labels if one is not label and one.overlaps(label)]


async def test_plots_draw_texts_literally(memories):
    """Markup in a text or topic is not interpreted, and no plot fails because of it."""
    old = await memories.save_decision(HOSTILE, topic=HOSTILE, reasoning=HOSTILE)
    await memories.set_outcome(old.id, "FAILED", reason=HOSTILE)
    new = await memories.supersede(old.id, f"_{HOSTILE}", reasoning=HOSTILE)
    for axes in (await drawn(memories, new.id, HOSTILE)).values():
        assert all(line.isprintable() for line in texts_of(axes).split("\n"))
    assert "$\\frac{a$ _x \\u202e" in texts_of(await memories.plot.timeline())


def font_with(letters, path):
    """Write a font that contains only these letters, each as a square."""
    builder, names = FontBuilder(1000), [".notdef", *(f"u{ord(one):04X}" for one in letters)]
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 900), (900, 900), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Just Hangul", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


async def test_letters_missing_in_all_fonts_are_logged_once_and_marked(memories, tmp_path, monkeypatch):
    """
    Missing letters are not drawn as boxes silently.

    An added font is used, whatever its name.
    """
    manager = mpl.font_manager.fontManager
    plain = [one for one in manager.ttflist if "DejaVu" in one.name or "Last Resort" in one.name]
    monkeypatch.setattr(manager, "ttflist", plain)
    monkeypatch.setattr(plot, "_warned_font_counts", set())
    one = await memories.save_decision("결정 Use \U0001f44d", topic="결정", reasoning="x")
    with pytest.warns(UserWarning, match="Install one that has them") as told:
        missing = {name: texts_of(axes) for name, axes in (await drawn(memories, one.id, "결정")).items()}

    assert 1 == len(told)
    assert "no installed font has 결, 정" in str(told[0].message)
    assert "\ufffd\ufffd Use \ufffd\n" in missing["history"]
    assert not [text for text in missing.values() if "결" in text]
    font_with("결정\U0001f44d", tmp_path / "font.ttf")
    manager.addfont(tmp_path / "font.ttf")
    for name, axes in (await drawn(memories, one.id, "결정")).items():
        assert name == "decay" or "결정" in texts_of(axes)


async def test_plots_work_without_data(memories):
    """
    An empty store, an unknown topic and an isolated memory have plots.

    An unknown memory raises an error.
    """
    plot = memories.plot
    for axes in (await plot.history("x"), await plot.timeline(), await plot.embedding_map(), await plot.decay()):
        texts_of(axes)
    one = await memories.save_context("alone")

    assert "No decision on x" in texts_of(await plot.history("x"))
    assert "alone" in texts_of(await plot.neighbourhood(one.id))
    assert "alone" in texts_of(await plot.embedding_map())
    with pytest.raises(MemoryNotFound):
        await plot.neighbourhood("context_x_1795436746081_3188da2e")
    with pytest.raises(InvalidArgument):
        await plot.neighbourhood(one.id, depth=0)


async def test_plots_of_many_memories_are_bounded(memories):
    """A neighbourhood shows sixty memories, and overlapping labels are omitted."""
    hub = await memories.save_context("hub")
    await memories.save_many(
        {"type": "insight", "content": f"spoke {number}", "links": [{"to_id": hub.id, "relationship": "of"}]}
        for number in range(70)
    )

    assert 60 == texts_of(await memories.plot.neighbourhood(hub.id)).count("spoke")
    assert 70 > texts_of(await memories.plot.embedding_map()).count("spoke")


async def test_plots_draw_on_given_axes(memories):
    """`ax` is drawn on and returned."""
    await memories.save_context("x", topic="boats")
    axes = mpl.figure.Figure().subplots()

    assert axes is await memories.plot.timeline(ax=axes)
    assert "boats" in texts_of(axes)


def test_sync_facade_has_plots():
    """`mama_structs.sync` draws outside of the main thread, without a window."""
    with sync.Session.open(embedder=SMALL) as session:
        session.memories.save_context("x", topic="boats")

        axes = session.memories.plot.timeline()

        assert "boats" in texts_of(axes)
        # The notebook displays the returned axes itself, since pyplot displays only plots of the main thread.
        assert axes._repr_png_().startswith(b"\x89PNG")


async def test_plot_without_matplotlib_raises_error_with_install_hint(memories, monkeypatch):
    """Only plots need matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)

    with pytest.raises(ImportError, match=r"needs matplotlib: pip install 'mama-structs\[notebook\]'"):
        await memories.plot.decay()
