"""
Display of values: as one line for a terminal, and as HTML for a notebook.

Texts are untrusted: they are truncated, control and bidirectional characters are escaped, and HTML is escaped.
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
"""Maximum number of columns of a line."""
_TEXT: Final = 24  # Minimum number of columns reserved for each text.
_WORD: Final = 24  # Maximum number of columns of a fact, which may be untrusted text.
_END: Final = 22  # Columns of the suffix of a memory id: its time and number.
_LINES: Final = 20
_TEXT_OF_REPR: Final = 200
_MEMBERS: Final = 10
# Texts are cut to this multiple of the limit before any processing, so that the cost does not depend on their length.
_READ: Final = 8
_SIGN: Final = re.compile(r"\S")


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxlong = _TEXT_OF_REPR
        self.maxtuple = self.maxlist = self.maxdict = self.maxfrozenset = _MEMBERS

    def repr_str(self, text: str, level: int) -> str:  # noqa: ARG002 - signature of `reprlib.Repr`
        return repr(text) if len(text) <= _TEXT_OF_REPR else f"{text[:_TEXT_OF_REPR]!r}…({len(text)} characters)"


_BRIEF: Final = _Brief()


def briefly(_: type, fields: Iterable[Any]) -> list[Any]:
    """Bound the length of each field in the `repr` of an attrs class (a `field_transformer`)."""
    return [field.evolve(repr=_BRIEF.repr) if field.repr is True else field for field in fields]


class Seen(NamedTuple):
    """The content that is displayed for a value."""

    text: str
    facts: tuple[str | None, ...] = ()
    """Short facts; None is skipped."""
    id: str = ""
    other: tuple[str, str] | None = None
    """A relation and a second text, if there is one."""
    more: tuple[str | None, ...] = ()
    """Further facts, shown in HTML only."""
    details: tuple[tuple[str, str], ...] = ()
    """Labels and texts, shown in HTML only, and only if the value is displayed alone."""
    terms: Mapping[str, float] = {}
    """Terms of a score, by name."""
    is_gone: bool = False
    """True if another value has replaced this one."""


class Showing:
    """Mixin for a one-line `repr` that starts with the text, and for HTML."""

    __slots__ = ()

    def _seen(self) -> Seen:
        raise NotImplementedError

    def _record(self) -> dict[str, Any]:
        """Return the row of this object in a table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return line(type(self).__name__, self._seen())

    def _repr_html_(self) -> str:
        return boxed(entry(self._seen(), is_alone=True))

    # Hidden from type checkers, which would otherwise accept every attribute name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError` with a suggestion if a nested object has the attribute."""
            place = "" if name.startswith("_") else _place_of(self, name)
            meant = f". Did you mean {place!r}?" if place else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{meant}")


_HOLDING: Final = ("memory", "metadata")


def _place_of(holder: object, name: str) -> str:
    """Return the path to an attribute of a nested object, or an empty text."""
    for step in _HOLDING:
        # A partly initialized object, such as a copy in progress, has no fields yet.
        with contextlib.suppress(AttributeError):
            inner = object.__getattribute__(holder, step)
            if hasattr(type(inner), name):
                return f"{step}.{name}"
            if place := _place_of(inner, name):
                return f"{step}.{place}"
    return ""


def visible(text: str) -> str:
    """Escape unprintable characters of untrusted text, which a terminal would interpret."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def short(text: str, most: int) -> str:
    """Return the beginning of a text in one line of at most *most* columns."""
    signs = [visible(sign) for sign in " ".join(text[: _READ * most].split())]
    # A zero-width character counts as one column; otherwise a text of combining marks would have no limit.
    ends = list(accumulate(map(_columns, signs)))
    if not _SIGN.search(text, _READ * most) and (not ends or ends[-1] <= most):
        return "".join(signs)
    return f"{''.join(signs[: bisect_right(ends, most - 1)])}…"


def line(name: str, seen: Seen, *, opening: str = "<", closing: str = ">") -> str:
    """
    Return one line of at most `WIDTH` columns.

    The texts get the columns that the facts leave.
    """
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
    """Return a number with its noun in singular or plural form."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def lines(items: Iterable[str], count: int) -> str:
    """Join the first 20 lines, and add the number of omitted ones."""
    return "\n".join([*islice(items, _LINES), *([f"… {count - _LINES:,} more"] if count > _LINES else [])])


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"


def _id(text: str, most: int) -> str:
    """Return an id, shortened in the middle if it is too long: ids differ in their suffix."""
    if _columns(text) <= most:
        return text
    return short(text[:-_END], most - _columns(text[-_END:])) + text[-_END:]


def _columns(text: str) -> int:
    """Return the maximum number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def needed(package: str) -> Any:
    """Import a package of the notebook extra, or raise `ImportError` with the install command."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ImportError(f"this needs {name}: pip install 'mama-structs[notebook]'", name=name) from error


# The HTML has no scripts, classes or style sheets, since these would affect the whole page. Colours have a medium
# lightness and text has the page's colour, so that both are readable on light and dark pages.

_LONGEST: Final = 600  # Maximum number of characters of a text.
ENTRIES: Final = 50
"""Maximum number of values and table rows that are displayed."""
_KEPT: Final = "\n\t\u200c\u200d"  # Some scripts are unreadable without joiners.
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
    """Return the beginning of a multi-line text with unprintable characters escaped."""
    shown = "".join(one if one in _KEPT else visible(one) for one in text[:most])
    return f"{shown} … ({len(text):,} characters)" if len(text) > most else shown


def escaped(text: str, most: int = _LONGEST) -> str:
    """Return the beginning of a text, escaped for HTML."""
    return f"<bdi>{html.escape(plain(text, most))}</bdi>"


def listed(texts: Collection[str]) -> str:
    """Join several texts, one per line, truncated in length and number."""
    rest = len(texts) - ENTRIES
    return "\n".join([*(one[:_LONGEST] for one in islice(texts, ENTRIES)), *([f"… {rest:,} more"] if rest > 0 else [])])


def boxed(*parts: str) -> str:
    """Return HTML parts in the outer block of a notebook output."""
    style = "max-width:60em;line-height:1.45;text-align:left;overflow-x:auto"
    return f'<div style="{style}">{"".join(parts)}</div>'


def heading(text: str) -> str:
    """Return the HTML of a heading."""
    return f'<div style="{_DIM};margin-top:.5em"><b>{escaped(text)}</b></div>'


def entry(seen: Seen, *, whole: float = 0.0, is_alone: bool = False) -> str:
    """Return the HTML block of one value. *whole* is the value of the longest score bar."""
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
    """Return the HTML of several values, and the number of omitted ones out of *count*."""
    shown = list(islice(items, ENTRIES))
    whole = max((_above(seen.terms) for seen in shown), default=0.0)
    return "".join(entry(seen, whole=whole) for seen in shown) + more(count - ENTRIES)


def more(count: int) -> str:
    """Return the HTML line for *count* omitted values, empty if there are none."""
    return f'<div style="{_DIM}">… {count:,} more</div>' if count > 0 else ""


def table(rows: Sequence[Sequence[object]], *, count: int | None = None, head: Sequence[str] = ()) -> str:
    """
    Return an HTML table whose first column has row labels.

    *count* is the total number of rows.
    """
    top = "".join(f'<th style="text-align:left;padding:.15em .8em .15em 0">{escaped(name)}</th>' for name in head)
    cells = ["".join(_cell(str(cell), at, len(row)) for at, cell in enumerate(row)) for row in rows[:ENTRIES]]
    body = "".join(f"<tr>{row}</tr>" for row in [top, *cells] if row)
    style = "border-collapse:collapse;margin:.3em 0;font-size:90%;background:none"
    return f'<table style="{style}">{body}</table>{more((len(rows) if count is None else count) - ENTRIES)}'


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a text table with *words* left-aligned columns; others are right-aligned."""
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
    """Nested statistics by name: a dict whose ``repr`` is a table of the nonzero values."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the names, prefixed by their groups, and the formatted nonzero values."""
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
    """
    Return a stacked bar of the terms of a score.

    Negative terms are drawn as frames over the end.
    """
    told = {name: term for name, term in terms.items() if abs(term) >= _SMALLEST}
    if not told:
        return ""
    scale = 100 / max(whole, _above(told), _SMALLEST)
    score, at, bars, sums = max(sum(told.values()), 0.0), 0.0, [], []
    for name, term in sorted(told.items(), key=lambda one: one[1] < 0):
        start, end = sorted((at, at + term))
        at += term
        colour = COLOURS.get(name, _OTHER)
        # The part that negative terms subtract is pale, framed in the colour of each negative term.
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
