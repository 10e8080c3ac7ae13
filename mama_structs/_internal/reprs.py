"""
Display of values: as lines in a terminal, as HTML in a notebook, and as rows of a data frame.

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
from datetime import UTC
from itertools import accumulate, chain, islice, starmap
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import attrs

from mama_structs._internal.hints.call_hints import make_attribute_error
from mama_structs._internal.hints.peer_names import VALUE_ATTRIBUTES, VALUE_CALLS
from mama_structs._internal.jsonable import JsonMixin

MAX_LINE_COLUMNS: Final = 120
"""Maximum number of columns of a line."""
MIN_TEXT_COLUMNS: Final = 24  # Minimum number of columns reserved for each text.
MAX_FACT_COLUMNS: Final = 24  # Maximum number of columns of a fact, which may be untrusted text.
ID_SUFFIX_COLUMNS: Final = 22  # Columns of the time and the number at the end of a memory id.
MAX_LINES: Final = 20
MAX_FIELD_CHARS: Final = 200
MAX_FIELD_ITEMS: Final = 10
CONTAINER_BRACKETS: Final[Mapping[type, tuple[str, str]]] = {tuple: ("(", ")"), list: ("[", "]")}
# A text is first cut to this multiple of the limit, so that the cost does not depend on its length.
READ_FACTOR: Final = 8
MAX_DEFAULT_COLUMNS: Final = 10
"""Number of columns of a table without ``all=True``."""

ColumnType = Literal["text", "time", "float", "int", "object"]
"""Type of a column. All except int accept None."""
Columns = Mapping[str, ColumnType]
"""Columns of a table in their order, the most useful first, with their types."""
NON_SPACE_PATTERN: Final = re.compile(r"\S")


class _BoundedRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxlong = MAX_FIELD_CHARS
        self.maxtuple = self.maxlist = self.maxdict = self.maxfrozenset = MAX_FIELD_ITEMS

    def repr_str(self, text: str, level: int) -> str:  # noqa: ARG002 - signature of `reprlib.Repr`
        return repr(text) if len(text) <= MAX_FIELD_CHARS else f"{text[:MAX_FIELD_CHARS]!r}…({len(text)} characters)"


BOUNDED_REPR: Final = _BoundedRepr()


class FieldReprMixin(JsonMixin):
    """
    Mixin for an attrs class with ``repr=False``. Its `repr` has lines of at most `MAX_LINE_COLUMNS` columns.

    It has one line for each field if all fields do not fit on one line. Empty optional fields are omitted.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return format_fields(self)


class Bar(NamedTuple):
    """A segment of a stacked bar."""

    label: str
    value: float
    colour: str


class ReprContent(NamedTuple):
    """The parts from which the one-line and the HTML display of a value are built."""

    text: str
    facts: tuple[str | None, ...] = ()
    """Short facts; None is skipped."""
    id: str = ""
    second_text: tuple[str, str] | None = None
    """A relation and a second text, if there is one."""
    html_facts: tuple[str | None, ...] = ()
    """Further facts, shown in HTML only."""
    details: tuple[tuple[str, str], ...] = ()
    """Labels and texts, shown in HTML only, and only if the value is displayed alone."""
    bars: Sequence[Bar] = ()
    """Parts of a score, the negative ones last."""
    is_replaced: bool = False
    """True if another value has replaced this one."""


class ReprMixin(JsonMixin):
    """Mixin with a one-line `repr` that begins with the value's text, and with an HTML display."""

    __slots__ = ()
    _table_columns: ClassVar[Columns] = {}

    def _repr_content(self) -> ReprContent:
        raise NotImplementedError

    def _table_row(self) -> dict[str, Any]:
        """Return the cells of this object's row in a table, by column."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return format_line(type(self).__name__, self._repr_content())

    def _repr_html_(self) -> str:
        return wrap_html(format_entry(self._repr_content(), is_alone=True))

    # Type checkers must not see this method, or they would accept every attribute name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`. If a nested object has the attribute, the message suggests its path."""
            place = "" if name.startswith("_") else _find_right_attribute(self, name)
            meant = f". Did you mean {place!r}?" if place else ""
            if not place and name in VALUE_CALLS and hasattr(type(self), "content"):
                meant = f". Use {VALUE_CALLS[name]}."
            message = f"{type(self).__name__!r} object has no attribute {name!r}{meant}"
            # No suggestion here, because Python adds its own.
            raise make_attribute_error(message, name) if meant else AttributeError(message)


NESTED_FIELDS: Final = ("memory", "metadata")


def _find_right_attribute(holder: object, name: str) -> str:
    """Return the attribute that a caller probably meant, or an empty string."""
    if path := _find_attribute_path(holder, name):
        return path
    known = VALUE_ATTRIBUTES.get(name, ())
    return next((one for one in known if hasattr(type(holder), one)), "") or next(
        filter(None, (_find_attribute_path(holder, one) for one in known)), ""
    )


def _find_attribute_path(holder: object, name: str) -> str:
    """Return the path to the attribute in a nested object, or an empty string if no nested object has it."""
    for step in NESTED_FIELDS:
        # A partly initialized object, such as a copy in progress, has no fields yet.
        with contextlib.suppress(AttributeError):
            inner = object.__getattribute__(holder, step)
            if hasattr(type(inner), name):
                return f"{step}.{name}"
            if path := _find_attribute_path(inner, name):
                return f"{step}.{path}"
    return ""


def escape_unprintable(text: str) -> str:
    """Escape unprintable characters, which a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def truncate_line(text: str, max_columns: int) -> str:
    """Return the beginning of a text as one line of at most *max_columns* columns."""
    signs = [escape_unprintable(sign) for sign in " ".join(text[: READ_FACTOR * max_columns].split())]
    # Count a zero-width character as one column. Otherwise the length of a text of combining marks would be unlimited.
    ends = list(accumulate(map(_count_columns, signs)))
    if not NON_SPACE_PATTERN.search(text, READ_FACTOR * max_columns) and (not ends or ends[-1] <= max_columns):
        return "".join(signs)
    return f"{''.join(signs[: bisect_right(ends, max_columns - 1)])}…"


def format_line(name: str, content: ReprContent, *, opening: str = "<", closing: str = ">") -> str:
    """
    Return one line of at most `MAX_LINE_COLUMNS` columns.

    The facts reserve their columns first, and the texts share the rest.
    """
    texts = [content.text] if content.second_text is None else [content.text, content.second_text[1]]
    between = "" if content.second_text is None else f" {truncate_line(content.second_text[0], MAX_FACT_COLUMNS)} "
    facts = [truncate_line(fact, MAX_FACT_COLUMNS) for fact in content.facts if fact]
    used_columns = _count_columns(f"{opening}{name}{between}{', '.join([*facts, ''])}{closing}") + 2 + 2 * len(texts)
    if content.id:
        id_columns = (
            MAX_LINE_COLUMNS
            - used_columns
            - sum(min(MIN_TEXT_COLUMNS, _count_columns(truncate_line(text, MIN_TEXT_COLUMNS))) for text in texts)
        )
        id_ = _shorten_id(escape_unprintable(content.id), id_columns)
        facts.append(id_)
        used_columns += _count_columns(id_)
    quoted_texts = [_quote(truncate_line(text, (MAX_LINE_COLUMNS - used_columns) // len(texts))) for text in texts]
    prefix = f"{name} " if name else ""
    suffix = f" {', '.join(facts)}" if facts else ""
    return f"{opening}{prefix}{between.join(quoted_texts)}{suffix}{closing}"


def format_fields(holder: Any) -> str:
    """Return the fields of an attrs object on one line, or, if they do not fit, on a line each."""
    shown = {field.alias: getattr(holder, field.name) for field in attrs.fields(type(holder)) if field.repr}
    optional = {field.alias for field in attrs.fields(type(holder)) if field.default is not attrs.NOTHING}
    shown = {key: value for key, value in shown.items() if key not in optional or not _is_empty(value)}
    name = type(holder).__name__
    line = f"{name}({', '.join(f'{key}={BOUNDED_REPR.repr(value)}' for key, value in shown.items())})"
    if line.isprintable() and _count_columns(line) <= MAX_LINE_COLUMNS:
        return line
    return "\n".join([f"{name}(", *chain.from_iterable(starmap(_format_field, shown.items())), ")"])


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Collection) and not value)


def _format_field(name: str, value: object) -> Iterator[str]:
    """Yield the lines of a field: one, or one for each item of a container that does not fit on one line."""
    start = f"    {name}="
    columns = MAX_LINE_COLUMNS - len(start) - 1
    text = BOUNDED_REPR.repr(value)
    if _count_columns(text) <= columns or not isinstance(value, Collection):
        yield f"{start}{truncate_line(text, columns)},"
    elif isinstance(value, str):
        count = f" ({len(value):,} characters)"
        yield f"{start}{_quote(truncate_line(value, columns - len(count) - 2))}{count},"
    else:
        opening, closing = CONTAINER_BRACKETS.get(type(value), ("{", "}"))
        yield f"{start}{opening}"
        items: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
        for item in islice(items, MAX_FIELD_ITEMS):
            parts = item if isinstance(value, Mapping) else (item,)
            yield f"        {truncate_line(': '.join(map(BOUNDED_REPR.repr, parts)), MAX_LINE_COLUMNS - 9)},"
        if len(value) > MAX_FIELD_ITEMS:
            yield f"        … {len(value) - MAX_FIELD_ITEMS:,} more"
        yield f"    {closing},"


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun in singular or plural form."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def join_lines(items: Iterable[str], count: int, *, max_lines: int = MAX_LINES) -> str:
    """Join the first lines, and append the number of omitted lines."""
    return "\n".join([*islice(items, max_lines), *([f"… {count - max_lines:,} more"] if count > max_lines else [])])


def wrap_lines(text: str, max_columns: int) -> Iterator[str]:
    """Yield the lines of a text, of at most *max_columns* columns each, with unprintable characters escaped."""
    for line in text.splitlines():
        rest = escape_unprintable(line)
        while _count_columns(rest) > max_columns:
            stop = bisect_right(list(accumulate(map(_count_columns, rest[: max_columns + 1]))), max_columns)
            # Break inside a word if no space is near the end of the line.
            stop = rest.rfind(" ", stop // 2, stop + 1) if " " in rest[stop // 2 : stop + 1] else stop
            yield rest[:stop]
            rest = rest[stop:].lstrip()
        yield rest


def _quote(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"


def _shorten_id(text: str, max_columns: int) -> str:
    """Return an id. If it is too long, it is shortened in the middle, because ids differ in their suffix."""
    if _count_columns(text) <= max_columns:
        return text
    return (
        truncate_line(text[:-ID_SUFFIX_COLUMNS], max_columns - _count_columns(text[-ID_SUFFIX_COLUMNS:]))
        + text[-ID_SUFFIX_COLUMNS:]
    )


def _count_columns(text: str) -> int:
    """Return an upper bound of the number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def require_extra(package: str, extra: str = "notebook") -> Any:
    """Import a package that an extra installs, or raise `ImportError` with the install command of the extra."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise ImportError(f"this needs {name}: pip install 'mama-structs[{extra}]'", name=name) from error


def order_columns(first: str, columns: Columns) -> Columns:
    """Return *columns* with the columns whose names *first* contains, separated by spaces, at the beginning."""
    return {name: columns[name] for name in dict.fromkeys([*first.split(), *columns])}


def make_frame(rows: Iterable[Mapping[str, Any]], columns: Columns, *, has_all: bool) -> Any:
    """
    Return a `pandas.DataFrame` of the first ten columns, or of all columns.

    The types of the columns do not depend on the values, so an empty table has the same types.

    Raises:
        ImportError: pandas is not installed (extra ``notebook``).

    """
    pandas, numpy = require_extra("pandas"), require_extra("numpy")
    # Texts are `str` in pandas 3, and objects in older versions.
    dtypes = {"text": pandas.Series([""]).dtype, "float": "float64", "int": "int64"}
    names = list(columns)[: None if has_all else MAX_DEFAULT_COLUMNS]
    found = list(rows)

    def make_column(name: str) -> Any:
        values = [row[name] for row in found]
        if columns[name] != "time":
            return pandas.Series(values, dtype=dtypes.get(columns[name], object))
        # NumPy converts them, because pandas 2 converts no `datetime` after the year 2262.
        in_utc = [value and value.astimezone(UTC).replace(tzinfo=None) for value in values]
        return pandas.Series(numpy.array(in_utc, "datetime64[us]")).dt.tz_localize("UTC")

    return pandas.DataFrame({name: make_column(name) for name in names}, columns=names)


# Do not use scripts, classes or style sheets, because they would affect the whole page.
# Use colours of medium lightness and the page's text colour, which are readable on light and dark pages.

MAX_HTML_CHARS: Final = 600  # Maximum number of characters of a text.
MAX_HTML_ENTRIES: Final = 50
"""Maximum number of values and table rows that are displayed."""
UNESCAPED_CHARS: Final = "\n\t\u200c\u200d"  # Do not escape joiners, because some scripts are unreadable without them.
BORDER_COLOUR: Final = "#8885"
DIM_STYLE: Final = "opacity:.7;font-size:85%"
COLOURS: Final = {
    "SUCCESS": "#2e9e5b",
    "FAILED": "#d1495b",
    "PARTIAL": "#c98a1b",
}


def truncate_text(text: str, max_chars: int) -> str:
    """Return the beginning of a multi-line text with unprintable characters escaped."""
    shown = text[:max_chars]
    # Replace only the characters that need it, because a call for each character blocks the event loop for long texts.
    unprintable = {ord(one): escape_unprintable(one) for one in {*shown} - {*UNESCAPED_CHARS} if not one.isprintable()}
    visible_text = shown.translate(unprintable) if unprintable else shown
    return f"{visible_text} … ({len(text):,} characters)" if len(text) > max_chars else visible_text


def escape_html(text: str, max_chars: int = MAX_HTML_CHARS) -> str:
    """Return the beginning of a text, escaped for HTML."""
    return f"<bdi>{html.escape(truncate_text(text, max_chars))}</bdi>"


def join_texts(texts: Collection[str]) -> str:
    """Join several texts, one per line. Limit the length of each and their number."""
    rest = len(texts) - MAX_HTML_ENTRIES
    return "\n".join(
        [
            *(one[:MAX_HTML_CHARS] for one in islice(texts, MAX_HTML_ENTRIES)),
            *([f"… {rest:,} more"] if rest > 0 else []),
        ]
    )


def wrap_html(*parts: str) -> str:
    """Return HTML parts in the outer block of a notebook output."""
    style = "max-width:60em;line-height:1.45;text-align:left;overflow-x:auto"
    return f'<div style="{style}">{"".join(parts)}</div>'


def format_heading(text: str) -> str:
    """Return the HTML of a heading."""
    return f'<div style="{DIM_STYLE};margin-top:.5em"><b>{escape_html(text)}</b></div>'


def format_entry(content: ReprContent, *, max_bar_value: float = 0.0, is_alone: bool = False) -> str:
    """Return the HTML block of one value. *max_bar_value* is the value of the longest score bar."""
    texts = [escape_html(content.text)]
    if content.second_text is not None:
        texts += [
            f'<span style="opacity:.7">— {escape_html(content.second_text[0], MAX_FACT_COLUMNS)} →</span>',
            escape_html(content.second_text[1]),
        ]
    faded = ";opacity:.6" if content.is_replaced else ""
    text_html = f'<div style="white-space:pre-wrap;overflow-wrap:anywhere{faded}">{" ".join(texts)}</div>'
    facts = [_format_fact(fact) for fact in (*content.facts, *content.html_facts) if fact]
    facts += [f'<code style="background:none;color:inherit">{escape_html(content.id)}</code>'] if content.id else []
    parts = [
        text_html,
        f'<div style="{DIM_STYLE}">{" · ".join(facts)}</div>',
        _format_bars(content.bars, max_bar_value),
    ]
    if is_alone and content.details:
        parts.append(format_table(content.details))
    style = f"padding:.4em 0 .4em .7em;border-left:3px solid {BORDER_COLOUR};margin:.3em 0"
    return f'<div style="{style}">{"".join(parts)}</div>'


def format_entries(items: Iterable[ReprContent], count: int) -> str:
    """Return the HTML of several values. If *count* is larger than their number, say how many are omitted."""
    contents = list(islice(items, MAX_HTML_ENTRIES))
    max_bar_value = max((_sum_positive_values(seen.bars) for seen in contents), default=0.0)
    return "".join(format_entry(seen, max_bar_value=max_bar_value) for seen in contents) + format_omitted_count(
        count - MAX_HTML_ENTRIES
    )


def format_section(title: str, items: Sequence[ReprMixin]) -> str:
    """Return the HTML of several values below a heading, or an empty text if there are none."""
    return format_heading(title) + format_entries((one._repr_content() for one in items), len(items)) if items else ""


def format_omitted_count(count: int) -> str:
    """Return the HTML line that reports *count* omitted values, or an empty text for 0."""
    return f'<div style="{DIM_STYLE}">… {count:,} more</div>' if count > 0 else ""


def format_table(rows: Sequence[Sequence[object]], *, count: int | None = None, header: Sequence[str] = ()) -> str:
    """
    Return an HTML table. The first column contains row labels.

    *count* is the total number of rows, including omitted ones.
    """
    top = "".join(f'<th style="text-align:left;padding:.15em .8em .15em 0">{escape_html(name)}</th>' for name in header)
    cells = [
        "".join(_format_cell(str(cell), at, len(row)) for at, cell in enumerate(row)) for row in rows[:MAX_HTML_ENTRIES]
    ]
    body = "".join(f"<tr>{row}</tr>" for row in [top, *cells] if row)
    style = "border-collapse:collapse;margin:.3em 0;font-size:90%;background:none"
    omitted_count = (len(rows) if count is None else count) - MAX_HTML_ENTRIES
    return f'<table style="{style}">{body}</table>{format_omitted_count(omitted_count)}'


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> str:
    """Return a text table. The first *left_columns* columns are left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


class StatsTable(dict[str, Any]):
    """Nested statistics by name: a dict whose ``repr`` is a table of the values that are not zero."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield a name, prefixed by its groups, and a formatted value for each value that is not zero."""
        yield from _flatten_rows(self, "")

    def __repr__(self) -> str:
        rows = [*self.rows()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        return wrap_html(format_table([*self.rows()]))


def _flatten_rows(figures: Mapping[str, Any], group: str) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flatten_rows(value, f"{group}{name} ")
        elif value:
            formatted = (
                f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            )
            yield f"{group}{name}".replace("_", " "), f"{formatted}"


def _format_cell(text: str, column: int, count: int) -> str:
    wrapped = "white-space:pre-wrap;overflow-wrap:anywhere"
    ellipsis_style = "white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:16em"
    looks = f"{wrapped if column == count - 1 else ellipsis_style}{';opacity:.7' if column == 0 else ''}"
    return f'<td style="text-align:left;vertical-align:top;padding:.15em .8em .15em 0;{looks}">{escape_html(text)}</td>'


def _format_fact(text: str) -> str:
    colour = COLOURS.get(text)
    return (_format_swatch(colour) if colour else "") + escape_html(text, MAX_FACT_COLUMNS)


def _format_swatch(colour: str) -> str:
    size = "display:inline-block;width:.65em;height:.65em;margin-right:.3em;border-radius:2px"
    return f'<span style="{size};background:{colour}"></span>'


def _sum_positive_values(bars: Sequence[Bar]) -> float:
    return sum(bar.value for bar in bars if bar.value > 0)


def _format_bars(bars: Sequence[Bar], max_bar_value: float) -> str:
    """
    Return the parts of a score as a stacked bar.

    Negative parts are drawn as frames over the end of the bar.
    """
    if not bars:
        return ""
    total = sum(bar.value for bar in bars)
    scale = 100 / (max(max_bar_value, _sum_positive_values(bars)) or 1.0)
    score, at, segments, sums = max(total, 0.0), 0.0, [], []
    for label, value, colour in bars:
        start, end = sorted((at, at + value))
        at += value
        # The part that a negative value subtracts is pale, and framed in the colour of the negative value.
        look = f"background:{colour}" if value > 0 else f"box-sizing:border-box;border:2px solid {colour}"
        for left, right, pale in ((start, min(end, score), ""), (max(start, score), end, ";opacity:.3")):
            if left < right:
                position_style = (
                    f"position:absolute;height:100%;left:{scale * left:.2f}%;width:{scale * (right - left):.2f}%"
                )
                segments.append(f'<span style="{position_style};{look}{pale if value > 0 else ""}"></span>')
        sums.append(f"{'+' if value > 0 else '-'} {_format_swatch(colour)}{escape_html(label)} {abs(value):.2f}")
    track = f"position:relative;height:.6em;margin:.25em 0;max-width:40em;overflow:hidden;background:{BORDER_COLOUR}"
    return (
        f'<div style="{track}">{"".join(segments)}</div>'
        f'<div style="{DIM_STYLE}">{" ".join(sums).removeprefix("+ ")} = {total:.2f}</div>'
    )
