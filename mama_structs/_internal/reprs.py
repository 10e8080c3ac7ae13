"""
How things show themselves: in one line for a terminal, and in HTML for a notebook.

Texts may be anybody's: they are cut, control and bidirectional characters become visible, and HTML holds them escaped.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import re
import reprlib
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

WIDTH: Final = 120
"""Columns of a line at the most."""
_TEXT: Final = 24  # Columns that a text has at the least, whatever stands beside it.
_WORD: Final = 24  # Columns of a fact that is anybody's word.
_END: Final = 22  # Columns of the time and the number at the end of a memory's id.
_LINES: Final = 20
_TEXT_OF_REPR: Final = 200
_MEMBERS: Final = 10
# Cut before anything is done with it.
_READ: Final = 8
_SIGN: Final = re.compile(r"\S")


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxlong = _TEXT_OF_REPR
        self.maxtuple = self.maxlist = self.maxdict = self.maxfrozenset = _MEMBERS

    def repr_str(self, text: str, level: int) -> str:  # noqa: ARG002 - of `reprlib.Repr`
        return repr(text) if len(text) <= _TEXT_OF_REPR else f"{text[:_TEXT_OF_REPR]!r}…({len(text)} characters)"


_BRIEF: Final = _Brief()


def briefly(_: type, fields: Iterable[Any]) -> list[Any]:
    """Bound what the `repr` of an attrs class has of each field (a `field_transformer`): texts may be of any length."""
    return [field.evolve(repr=_BRIEF.repr) if field.repr is True else field for field in fields]


class Seen(NamedTuple):
    """What is shown of something."""

    text: str
    facts: tuple[str | None, ...] = ()
    """A word or two each, None for nothing."""
    id: str = ""
    other: tuple[str, str] | None = None
    """The word between it and a second text, and that."""
    more: tuple[str | None, ...] = ()
    """What only HTML has room for."""
    details: tuple[tuple[str, str], ...] = ()
    """Names and texts that only HTML has, of a thing that is shown by itself."""
    terms: Mapping[str, float] = {}
    """What adds up to a score."""
    is_gone: bool = False
    """Whether something else stands in its place."""


class Showing:
    """Shows itself: in one line, its text first, and in HTML."""

    __slots__ = ()

    def _seen(self) -> Seen:
        raise NotImplementedError

    def _record(self) -> dict[str, Any]:
        """Return what a table has of it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return line(type(self).__name__, self._seen())

    def _repr_html_(self) -> str:
        return boxed(entry(self._seen(), is_alone=True))

    # Type checkers would take every name for an attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say where it is, if what this one holds has it."""
            place = "" if name.startswith("_") else _place_of(self, name)
            meant = f". Did you mean {place!r}?" if place else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{meant}")


_HOLDING: Final = ("memory", "metadata")


def _place_of(holder: object, name: str) -> str:
    """Return how to get from something to an attribute of what it holds, empty where there is none."""
    for step in _HOLDING:
        # What is not made wholly, such as a copy, has nothing yet.
        with contextlib.suppress(AttributeError):
            inner = object.__getattribute__(holder, step)
            if hasattr(type(inner), name):
                return f"{step}.{name}"
            if place := _place_of(inner, name):
                return f"{step}.{place}"
    return ""


def visible(text: str) -> str:
    """Return a line as a terminal may show it: it obeys what is not printable, and a memory may be anybody's."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def short(text: str, most: int) -> str:
    """Return the beginning of a text in one visible line of so many columns at the most."""
    signs = [visible(sign) for sign in " ".join(text[: _READ * most].split())]
    # No sign counts as none, or a line of marks would have no end.
    ends = list(accumulate(map(_columns, signs)))
    if not _SIGN.search(text, _READ * most) and (not ends or ends[-1] <= most):
        return "".join(signs)
    return f"{''.join(signs[: bisect_right(ends, most - 1)])}…"


def line(name: str, seen: Seen, *, opening: str = "<", closing: str = ">") -> str:
    """Return one line of at most `WIDTH` columns, in which the texts stand first and have what room the facts leave."""
    texts = [seen.text] if seen.other is None else [seen.text, seen.other[1]]
    between = "" if seen.other is None else f" {short(seen.other[0], _WORD)} "
    facts = [short(fact, _WORD) for fact in seen.facts if fact]
    taken = _columns(f"{opening}{name}{between}{', '.join([*facts, ''])}{closing}") + 2 + 2 * len(texts)
    if seen.id:
        room = WIDTH - taken - sum(min(_TEXT, _columns(short(text, _TEXT))) for text in texts)
        id_ = _id(visible(seen.id), room)
        facts.append(id_)
        taken += _columns(id_)
    shown = [_quoted(short(text, (WIDTH - taken) // len(texts))) for text in texts]
    return f"{opening}{name}{' ' if name else ''}{between.join(shown)}{' ' if facts else ''}{', '.join(facts)}{closing}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with the word for so many."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def lines(items: Iterable[str], count: int) -> str:
    """Return lines under each other, and how many more of so many there are."""
    return "\n".join([*islice(items, _LINES), *([f"… {count - _LINES:,} more"] if count > _LINES else [])])


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"


def _id(text: str, most: int) -> str:
    """Return an id, without its middle where it is too long: at its end ids differ."""
    if _columns(text) <= most:
        return text
    return short(text[:-_END], most - _columns(text[-_END:])) + text[-_END:]


def _columns(text: str) -> int:
    """Return the columns of a terminal that a text takes at the most."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def needed(package: str) -> Any:
    """Return a module that an extra installs, or say which."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ImportError(f"this needs {name}: pip install 'mama-structs[notebook]'", name=name) from error


# HTML: no script, no class and no style sheet, which would be the whole page's. Colours are of a middle lightness, and
# text has the page's own, so that both are read on a light page and on a dark one.

_LONGEST: Final = 600  # Characters of a text.
ENTRIES: Final = 50
"""Things and rows that are shown."""
_KEPT: Final = "\n\t\u200c\u200d"  # Without joiners some scripts cannot be read.
_LINE: Final = "#8885"
_DIM: Final = "opacity:.7;font-size:85%"
COLOURS: Final = {
    "meaning": "#3b7dd8",
    "words": "#1f9e89",
    "length": "#9a9a9a",
    "beside": "#8a63d2",
    "graph": "#c98a1b",
    "outcome": "#d1495b",
    "period": "#c2679f",
    "recency": "#4fa3c7",
    "superseded": "#a5643a",
    "SUCCESS": "#2e9e5b",
    "FAILED": "#d1495b",
    "PARTIAL": "#c98a1b",
}
_OTHER: Final = "#777"
_SMALLEST: Final = 0.005


def plain(text: str, most: int) -> str:
    """Return the beginning of a text in its lines, in which what hides is seen."""
    shown = "".join(one if one in _KEPT else visible(one) for one in text[:most])
    return f"{shown} … ({len(text):,} characters)" if len(text) > most else shown


def escaped(text: str, most: int = _LONGEST) -> str:
    """Return the beginning of a text for HTML."""
    return f"<bdi>{html.escape(plain(text, most))}</bdi>"


def listed(texts: Collection[str]) -> str:
    """Return as much of several texts as is shown, a line for each."""
    rest = len(texts) - ENTRIES
    return "\n".join([*(one[:_LONGEST] for one in islice(texts, ENTRIES)), *([f"… {rest:,} more"] if rest > 0 else [])])


def boxed(*parts: str) -> str:
    """Return HTML as a notebook shows it."""
    style = "max-width:60em;line-height:1.45;text-align:left;overflow-x:auto"
    return f'<div style="{style}">{"".join(parts)}</div>'


def heading(text: str) -> str:
    """Return a line above others."""
    return f'<div style="{_DIM};margin-top:.5em"><b>{escaped(text)}</b></div>'


def entry(seen: Seen, *, whole: float = 0.0, is_alone: bool = False) -> str:
    """Return a thing as a block; *whole* is what the longest bar stands for."""
    texts = [escaped(seen.text)]
    if seen.other is not None:
        texts += [f'<span style="opacity:.7">— {escaped(seen.other[0], _WORD)} →</span>', escaped(seen.other[1])]
    faded = ";opacity:.6" if seen.is_gone else ""
    said = f'<div style="white-space:pre-wrap;overflow-wrap:anywhere{faded}">{" ".join(texts)}</div>'
    facts = [_fact(fact) for fact in (*seen.facts, *seen.more) if fact]
    facts += [f'<code style="background:none;color:inherit">{escaped(seen.id)}</code>'] if seen.id else []
    parts = [said, f'<div style="{_DIM}">{" · ".join(facts)}</div>', _bars(seen.terms, whole)]
    if is_alone and seen.details:
        parts.append(table(seen.details))
    return f'<div style="padding:.4em 0 .4em .7em;border-left:3px solid {_LINE};margin:.3em 0">{"".join(parts)}</div>'


def entries(items: Iterable[Seen], count: int) -> str:
    """Return things below each other, and how many more of so many there are."""
    shown = list(islice(items, ENTRIES))
    whole = max((_above(seen.terms) for seen in shown), default=0.0)
    return "".join(entry(seen, whole=whole) for seen in shown) + more(count - ENTRIES)


def more(count: int) -> str:
    """Return how many things are not shown."""
    return f'<div style="{_DIM}">… {count:,} more</div>' if count > 0 else ""


def table(rows: Sequence[Sequence[object]], *, count: int | None = None, head: Sequence[str] = ()) -> str:
    """Return rows of texts, the first column of which names the others; *count* where there are more than these."""
    top = "".join(f'<th style="text-align:left;padding:.15em .8em .15em 0">{escaped(name)}</th>' for name in head)
    cells = ["".join(_cell(str(cell), at, len(row)) for at, cell in enumerate(row)) for row in rows[:ENTRIES]]
    body = "".join(f"<tr>{row}</tr>" for row in [top, *cells] if row)
    style = "border-collapse:collapse;margin:.3em 0;font-size:90%;background:none"
    return f'<table style="{style}">{body}</table>{more((len(rows) if count is None else count) - ENTRIES)}'


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a plain table: the first columns, which are *words*, to the left, and the numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


class Figures(dict[str, Any]):
    """Figures by name, in groups: a dict, whose ``repr`` is a table with a line for each that is not zero."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names, with those of their groups in front, and what there is to read of each."""
        yield from _rows(self, "")

    def __repr__(self) -> str:
        rows = [*self.rows()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        return boxed(table([*self.rows()]))


def _rows(figures: Mapping[str, Any], group: str) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{group}{name} ")
        elif value:
            shown = f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            yield f"{group}{name}".replace("_", " "), f"{shown}"


def _cell(text: str, at: int, count: int) -> str:
    wrapped = "white-space:pre-wrap;overflow-wrap:anywhere"
    whole = "white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:16em"
    looks = f"{wrapped if at == count - 1 else whole}{';opacity:.7' if at == 0 else ''}"
    return f'<td style="text-align:left;vertical-align:top;padding:.15em .8em .15em 0;{looks}">{escaped(text)}</td>'


def _fact(text: str) -> str:
    colour = COLOURS.get(text)
    return (_swatch(colour) if colour else "") + escaped(text, _WORD)


def _swatch(colour: str) -> str:
    size = "display:inline-block;width:.65em;height:.65em;margin-right:.3em;border-radius:2px"
    return f'<span style="{size};background:{colour}"></span>'


def _above(terms: Mapping[str, float]) -> float:
    return sum(term for term in terms.values() if term > 0)


def _bars(terms: Mapping[str, float], whole: float) -> str:
    """Return a bar for each term, one behind the other; what is taken away again lies hatched over their end."""
    told = {name: term for name, term in terms.items() if abs(term) >= _SMALLEST}
    if not told:
        return ""
    scale = 100 / max(whole, _above(told), _SMALLEST)
    score, at, bars, sums = max(sum(told.values()), 0.0), 0.0, [], []
    for name, term in sorted(told.items(), key=lambda one: one[1] < 0):
        start, end = sorted((at, at + term))
        at += term
        colour = COLOURS.get(name, _OTHER)
        # What other terms take away again is pale, with a frame in the colour of each of these.
        look = f"background:{colour}" if term > 0 else f"box-sizing:border-box;border:2px solid {colour}"
        for left, right, pale in ((start, min(end, score), ""), (max(start, score), end, ";opacity:.3")):
            if left < right:
                place = f"position:absolute;height:100%;left:{scale * left:.2f}%;width:{scale * (right - left):.2f}%"
                bars.append(f'<span style="{place};{look}{pale if term > 0 else ""}"></span>')
        sums.append(f"{'+' if term > 0 else '-'} {_swatch(colour)}{escaped(name)} {abs(term):.2f}")
    track = f"position:relative;height:.6em;margin:.25em 0;max-width:40em;overflow:hidden;background:{_LINE}"
    return (
        f'<div style="{track}">{"".join(bars)}</div>'
        f'<div style="{_DIM}">{" ".join(sums).removeprefix("+ ")} = {sum(terms.values()):.2f}</div>'
    )
