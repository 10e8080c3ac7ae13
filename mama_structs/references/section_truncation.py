"""
Truncation of the references section, first to fewer fields, then to fewer references.

This module stores nothing. Omitted content is returned as named texts, for which the caller may supply handles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import json_text
from mama_structs.references.detection import META, SECTION
from mama_structs.references.section import ADDED, FAILED, SHORTENED, is_failed, is_section

OMITTED: Final = "omitted_ids"
OMITTED_FD: Final = "omitted_fd"
MOST_IDS: Final = 20

# Names of the omitted texts for which handles can be supplied.
_REST: Final = SECTION
_IDS: Final = META
# Number of scalar fields in the brief form of a type without configured brief fields.
_FEW: Final = 3
_MOST_LINE: Final = 160
_MOST_WORD: Final = 60

BriefOf = Callable[[str], tuple[str, ...]]
Entries = Mapping[str, Any]


@attrs.frozen
class _Form:
    """
    A rendering of all references.

    `left` is its name in ``references_meta.shortened``, `write` renders one entry.
    """

    left: str
    write: Callable[[Any, BriefOf], Any]


@attrs.frozen
class ShrunkReferences:
    """References truncated to fit, and the omitted content."""

    section: Entries
    meta: Entries
    # Name of the rendering, None if complete; and the number of references before truncation.
    left: str | None
    of: int
    texts: Mapping[str, Callable[[], str]]
    is_bare: bool = False

    def answer(self, handles: Mapping[str, str]) -> dict[str, Any]:
        """Return the section and its metadata with *handles* for the omitted texts."""
        if self.is_bare:
            return {}
        meta = {key: value for key, value in self.meta.items() if key != OMITTED}
        if OMITTED in self.meta:
            meta[OMITTED] = list(self.meta[OMITTED])[:MOST_IDS]
            if _IDS in handles:
                meta[OMITTED_FD] = handles[_IDS]
        if self.left is not None:
            told: dict[str, Any] = {"shown": len(self.section), "of": self.of, "left_out": self.left}
            meta[SHORTENED] = told | ({"fd": handles[_REST]} if _REST in handles else {"kept": False})
        return {SECTION: self.section, **({META: meta} if meta else {})}


@attrs.frozen
class ReferenceShare:
    """The references of an answer, which get a separate share of the answer's size budget."""

    payload: Entries
    brief_of: BriefOf

    @classmethod
    def of(cls, answer: Entries, brief_of: BriefOf) -> ReferenceShare | None:
        """Return the references of an answer, or None if this package added none."""
        section, meta = answer.get(SECTION), answer.get(META, {})
        return cls(answer, brief_of) if is_section(section, meta) and SECTION in answer else None

    @property
    def rest(self) -> Entries:
        """The answer without its references."""
        return {key: value for key, value in self.payload.items() if key not in (SECTION, META)}

    @property
    def is_over(self) -> bool:
        """True if there are more omitted ids than may be listed at any size."""
        return len(self._meta.get(OMITTED, ())) > MOST_IDS

    def within(self, room: int, width: int) -> ShrunkReferences:
        """
        Return the most complete form that fits into *room* characters.

        Handles are assumed to be *width* characters long.
        """
        section, meta = self._section, self._meta
        ids = list(meta.get(OMITTED, ()))
        texts: dict[str, Callable[[], str]] = {}
        if len(ids) > MOST_IDS:
            texts[_IDS] = functools.partial(_lines, ids)
        whole = ShrunkReferences(section, meta, None, len(section), texts)
        if _fits(whole, room, width):
            return whole
        texts = {_REST: functools.partial(_lines, section.values()), **texts}
        made = whole
        for form in _FORMS:
            written = {key: form.write(entry, self.brief_of) for key, entry in section.items()}
            made = ShrunkReferences(written, meta, form.left, len(section), texts)
            if _fits(made, room, width):
                return made
        return self._first(made, room, width)

    def _first(self, made: ShrunkReferences, room: int, width: int) -> ShrunkReferences:
        """
        Return the first references that fit in the shortest form.

        The metadata is reduced too if necessary.
        """
        for meta in (made.meta, _counts(made.meta), {}):
            none = attrs.evolve(made, section={}, meta=meta)
            left = room - _length(none, width)
            if left < 0:
                continue
            shown = {}
            for key, line in made.section.items():
                left -= len(json_text({key: line})) - 1
                if left < 0:
                    break
                shown[key] = line
            return attrs.evolve(made, section=shown, meta=meta)
        return attrs.evolve(made, section={}, meta={}, texts={}, is_bare=True)

    @property
    def _section(self) -> Entries:
        section: Entries = self.payload[SECTION]
        return section

    @property
    def _meta(self) -> Entries:
        meta: Entries = self.payload.get(META, {})
        return meta


def _length(made: ShrunkReferences, width: int) -> int:
    return len(json_text(made.answer(dict.fromkeys(made.texts, "f" * max(width, len("false"))))))


def _fits(made: ShrunkReferences, room: int, width: int) -> bool:
    return _length(made, width) <= room


def _counts(meta: Entries) -> Entries:
    return {key: value for key, value in meta.items() if isinstance(value, int)}


def _lines(values: Iterable[Any]) -> str:
    return "\n".join(map(json_text, values))


# Renderings, from the most to the least complete


def _is_empty(value: Any) -> bool:
    return value is None or (not isinstance(value, bool) and value in ("", "0", 0, [], {}))


def _without_empty(value: Any) -> Any:
    """Return a mapping without empty or zero values, recursively for nested mappings."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_empty(member) for key, member in value.items()}
    return {key: member for key, member in kept.items() if not _is_empty(member)}


def _full(entry: Any, _: BriefOf) -> Any:
    return _without_empty(entry)


def _brief(entry: Any, brief_of: BriefOf) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    names = ("status", "error") if is_failed(entry) else _said(entry, brief_of)
    return {key: entry[key] for key in ("reference_type", "id", *names)}


def _line(entry: Any, brief_of: BriefOf) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    kind = str(entry["reference_type"])
    if is_failed(entry):
        return f"{kind}{FAILED}{_word(entry['error'], _MOST_LINE)}"
    said = _said(entry, brief_of)
    first = f"{kind} {_word(entry['name'])}" if "name" in said else kind
    line = ", ".join([first, *(f"{name} {_word(entry[name])}" for name in said if name != "name")])
    return line if len(line) <= _MOST_LINE else f"{line[: _MOST_LINE - 1]}…"


def _title(entry: Any, brief_of: BriefOf) -> str:
    return _line(entry, brief_of).partition(", ")[0]


def _said(entry: Entries, brief_of: BriefOf) -> list[str]:
    """Return the names of the non-empty summary fields of an entry."""
    scalars = (key for key, value in entry.items() if key not in ADDED and not isinstance(value, (Mapping, list)))
    named = brief_of(str(entry["reference_type"])) or dict.fromkeys(["name", *islice(scalars, _FEW)])
    return [key for key in named if key in entry and key not in ADDED and not _is_empty(entry[key])]


def _word(value: Any, most: int = _MOST_WORD) -> str:
    text = " ".join((value if isinstance(value, str) else json_text(value)).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


_FORMS: Final = (
    _Form("fields that are empty or zero", _full),
    _Form("all but the main fields", _brief),
    _Form("all but a line each", _line),
    _Form("all but type and name", _title),
)
