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

from mama_structs._internal.jsonable import to_json_text
from mama_structs.references.detection import META_KEY, SECTION_KEY
from mama_structs.references.section import ENTRY_KEYS, FAILURE_SEPARATOR, SHORTENED_KEY, is_failed, is_section

OMITTED_IDS_KEY: Final = "omitted_ids"
OMITTED_IDS_HANDLE_KEY: Final = "omitted_fd"
MAX_LISTED_IDS: Final = 20

# Keys of the omitted texts that can be stored under a handle.
_SECTION_TEXT: Final = SECTION_KEY
_OMITTED_IDS_TEXT: Final = META_KEY
# Number of scalar fields shown for a type without brief fields.
_MAX_SUMMARY_FIELDS: Final = 3
_MAX_LINE_CHARS: Final = 160
_MAX_VALUE_CHARS: Final = 60

GetBriefFields = Callable[[str], tuple[str, ...]]
Entries = Mapping[str, Any]


@attrs.frozen
class _Rendering:
    """
    A way to render all references.

    `left_out` describes the omitted content in ``references_meta.shortened``; `render` renders one entry.
    """

    left_out: str
    render: Callable[[Any, GetBriefFields], Any]


@attrs.frozen
class TruncatedReferences:
    """References truncated to fit, and the omitted content."""

    section: Entries
    meta: Entries
    # Description of the omitted content, or None if nothing is omitted.
    left_out: str | None
    # Number of references before truncation.
    total: int
    texts: Mapping[str, Callable[[], str]]
    is_empty: bool = False

    def to_answer(self, handles: Mapping[str, str]) -> dict[str, Any]:
        """Return the section and its metadata with *handles* for the omitted texts."""
        if self.is_empty:
            return {}
        meta = {key: value for key, value in self.meta.items() if key != OMITTED_IDS_KEY}
        if OMITTED_IDS_KEY in self.meta:
            meta[OMITTED_IDS_KEY] = list(self.meta[OMITTED_IDS_KEY])[:MAX_LISTED_IDS]
            if _OMITTED_IDS_TEXT in handles:
                meta[OMITTED_IDS_HANDLE_KEY] = handles[_OMITTED_IDS_TEXT]
        if self.left_out is not None:
            shortened_meta: dict[str, Any] = {"shown": len(self.section), "of": self.total, "left_out": self.left_out}
            meta[SHORTENED_KEY] = shortened_meta | (
                {"fd": handles[_SECTION_TEXT]} if _SECTION_TEXT in handles else {"kept": False}
            )
        return {SECTION_KEY: self.section, **({META_KEY: meta} if meta else {})}


@attrs.frozen
class ReferenceBudget:
    """The references of an answer, which have a separate share of the answer's size budget."""

    payload: Entries
    get_brief_fields: GetBriefFields

    @classmethod
    def from_answer(cls, answer: Entries, get_brief_fields: GetBriefFields) -> ReferenceBudget | None:
        """Return the references of an answer, or None if this package added none."""
        section, meta = answer.get(SECTION_KEY), answer.get(META_KEY, {})
        return cls(answer, get_brief_fields) if is_section(section, meta) and SECTION_KEY in answer else None

    @property
    def without_references(self) -> Entries:
        """The answer without its references."""
        return {key: value for key, value in self.payload.items() if key not in (SECTION_KEY, META_KEY)}

    @property
    def has_too_many_ids(self) -> bool:
        """True if more ids were omitted than the answer may list. The list is then always truncated."""
        return len(self._meta.get(OMITTED_IDS_KEY, ())) > MAX_LISTED_IDS

    def truncate(self, max_chars: int, handle_chars: int) -> TruncatedReferences:
        """
        Return the most complete form of the references that fits into *max_chars* characters.

        Handles are assumed to be *handle_chars* characters long.
        """
        section, meta = self._section, self._meta
        ids = list(meta.get(OMITTED_IDS_KEY, ()))
        texts: dict[str, Callable[[], str]] = {}
        if len(ids) > MAX_LISTED_IDS:
            texts[_OMITTED_IDS_TEXT] = functools.partial(_to_json_lines, ids)
        whole = TruncatedReferences(section, meta, None, len(section), texts)
        if _fits(whole, max_chars, handle_chars):
            return whole
        texts = {_SECTION_TEXT: functools.partial(_to_json_lines, section.values()), **texts}
        made = whole
        for form in _RENDERINGS:
            written = {key: form.render(entry, self.get_brief_fields) for key, entry in section.items()}
            made = TruncatedReferences(written, meta, form.left_out, len(section), texts)
            if _fits(made, max_chars, handle_chars):
                return made
        return self._take_first(made, max_chars, handle_chars)

    def _take_first(self, references: TruncatedReferences, max_chars: int, handle_chars: int) -> TruncatedReferences:
        """
        Return as many references in their shortest form as fit.

        If even the metadata does not fit, reduce it to counts, and finally omit it.
        """
        for meta in (references.meta, _only_counts(references.meta), {}):
            none = attrs.evolve(references, section={}, meta=meta)
            left = max_chars - _measure_chars(none, handle_chars)
            if left < 0:
                continue
            shown = {}
            for key, line in references.section.items():
                left -= len(to_json_text({key: line})) - 1
                if left < 0:
                    break
                shown[key] = line
            return attrs.evolve(references, section=shown, meta=meta)
        return attrs.evolve(references, section={}, meta={}, texts={}, is_empty=True)

    @property
    def _section(self) -> Entries:
        section: Entries = self.payload[SECTION_KEY]
        return section

    @property
    def _meta(self) -> Entries:
        meta: Entries = self.payload.get(META_KEY, {})
        return meta


def _measure_chars(references: TruncatedReferences, handle_chars: int) -> int:
    return len(
        to_json_text(references.to_answer(dict.fromkeys(references.texts, "f" * max(handle_chars, len("false")))))
    )


def _fits(references: TruncatedReferences, max_chars: int, handle_chars: int) -> bool:
    return _measure_chars(references, handle_chars) <= max_chars


def _only_counts(meta: Entries) -> Entries:
    return {key: value for key, value in meta.items() if isinstance(value, int)}


def _to_json_lines(values: Iterable[Any]) -> str:
    return "\n".join(map(to_json_text, values))


# Renderings of references, from the most to the least complete.


def _is_empty(value: Any) -> bool:
    return value is None or (not isinstance(value, bool) and value in ("", "0", 0, [], {}))


def _drop_empty(value: Any) -> Any:
    """Remove empty and zero values from a mapping, recursively."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _drop_empty(member) for key, member in value.items()}
    return {key: member for key, member in kept.items() if not _is_empty(member)}


def _render_full(entry: Any, _: GetBriefFields) -> Any:
    return _drop_empty(entry)


def _render_brief(entry: Any, brief_of: GetBriefFields) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    names = ("status", "error") if is_failed(entry) else _summary_fields(entry, brief_of)
    return {key: entry[key] for key in ("reference_type", "id", *names)}


def _render_line(entry: Any, brief_of: GetBriefFields) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    kind = str(entry["reference_type"])
    if is_failed(entry):
        return f"{kind}{FAILURE_SEPARATOR}{_truncate_value(entry['error'], _MAX_LINE_CHARS)}"
    said = _summary_fields(entry, brief_of)
    first = f"{kind} {_truncate_value(entry['name'])}" if "name" in said else kind
    line = ", ".join([first, *(f"{name} {_truncate_value(entry[name])}" for name in said if name != "name")])
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[: _MAX_LINE_CHARS - 1]}…"


def _render_title(entry: Any, brief_of: GetBriefFields) -> str:
    return _render_line(entry, brief_of).partition(", ")[0]


def _summary_fields(entry: Entries, brief_of: GetBriefFields) -> list[str]:
    """Return the names of the fields in the short forms of an entry, without empty fields."""
    scalars = (key for key, value in entry.items() if key not in ENTRY_KEYS and not isinstance(value, (Mapping, list)))
    named = brief_of(str(entry["reference_type"])) or dict.fromkeys(["name", *islice(scalars, _MAX_SUMMARY_FIELDS)])
    return [key for key in named if key in entry and key not in ENTRY_KEYS and not _is_empty(entry[key])]


def _truncate_value(value: Any, max_chars: int = _MAX_VALUE_CHARS) -> str:
    text = " ".join((value if isinstance(value, str) else to_json_text(value)).split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


_RENDERINGS: Final = (
    _Rendering("fields that are empty or zero", _render_full),
    _Rendering("all but the main fields", _render_brief),
    _Rendering("all but a line each", _render_line),
    _Rendering("all but type and name", _render_title),
)
