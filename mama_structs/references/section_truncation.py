"""
References within the budget of an answer.

`PartChooser` chooses the part of a payload that an answer shows, so that only the references of this part are fetched.
`ReferenceBudget` truncates the references section, first to fewer fields, then to fewer references. It stores nothing:
omitted content is returned as named texts, for which the caller may supply handles.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import to_answer, to_json_text
from mama_structs.references.detection import META_KEY, SECTION_KEY, IdDetector
from mama_structs.references.matches import ScanResult
from mama_structs.references.options import Kind, ReferenceOptions, Scope
from mama_structs.references.payload_shape import PayloadShape, classify_and_scan
from mama_structs.references.section import (
    ENTRY_KEYS,
    FAILURE_SEPARATOR,
    SHORTENED_KEY,
    LevelPlan,
    Reference,
    SectionDraft,
    drop_empty,
    is_empty,
    is_failed,
    is_section,
    make_entry,
    select_references,
)

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

# Maximum number of characters of one entry in its short form, so that one long text does not need the room of many.
_MAX_ENTRY_CHARS: Final = 600
# Ratio of the room for references that each round of queries fills. The first round has only an assumed entry size, the
# second one has the mean size of the entries of the first one.
_FILL_RATIOS: Final = (0.3, 0.98)
# Do not send a second round of queries for fewer additional references than this ratio of the first round.
_MIN_GAIN: Final = 1 / 8
# Assumed entry for a type without fetched entities.
_ASSUMED_ENTRY: Final = (
    '"1-1234":{"reference_type":"substation","id":"1-1234","name":"amber-lantern-1234","owner":"1-1234",'
    '"guildId":"0-1","planetId":"2-1234","fleetId":"9-1234","substationId":"4-12","status":"active"},'
)
# Minimum ratio of the budget for a payload without rows, and of the room for references of the first level.
_MIN_RATIO: Final = 1 / 2
# Room for ``references_meta``, with and without references: this many characters, at most this ratio of the budget.
_META_CHARS: Final = 560
_EMPTY_META_CHARS: Final = 160
_MAX_META_RATIO: Final = 1 / 8
_CHARS_PER_TOKEN: Final = 4
_INFINITE_SIZE: Final = 2**31
# The search for the visible part varies its size by this ratio of the budget.
_STEPS: Final = 128

GetBriefFields = Callable[[str], tuple[str, ...]]
Entries = Mapping[str, Any]


@attrs.frozen
class VisiblePart:
    """The part of a payload that an answer shows, its ids, and the references that are selected."""

    payload: Entries
    shape: PayloadShape
    scan: ScanResult
    scope: Scope
    plan: LevelPlan
    # False if the answer shows only a part of the payload.
    is_complete: bool = True
    # Ids of references that would not fit in the answer.
    excess_ids: tuple[str, ...] = ()

    def lacks_references_of(self, complete: VisiblePart) -> bool:
        """Return True if the complete payload has references that this part does not have."""
        own = {*self.plan.selected, *self.plan.omitted, *self.excess_ids}
        return not own.issuperset([*complete.plan.selected, *complete.plan.omitted])


def to_payload_data(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a payload as JSON data, without the references that an earlier call added."""
    data: Mapping[str, Any] = to_answer(mapping)
    added = (SECTION_KEY, META_KEY) if is_section(data.get(SECTION_KEY), data.get(META_KEY)) else ()
    return {key: value for key, value in data.items() if key not in added}


def select_part(
    payload: Mapping[str, Any],
    *,
    detector: IdDetector,
    kind: Kind,
    subject: object,
    options: ReferenceOptions,
    draft: SectionDraft,
) -> VisiblePart:
    """Scan a payload, or a part of it, and select its references. This records nothing in *draft*."""
    shape, scan = classify_and_scan(payload, detector, kind=kind, subject=subject)
    matches: Iterable[tuple[Any, ...]] = scan.matches.iter_tuples()
    if draft.paths is not None:
        matches = [one for one in matches if draft.paths.match_first_step(one[0], one[1])]
    scope = options._scope(is_list=shape.kind == "list")
    known = draft.resolved_existing_ids
    plan = select_references(matches, options, scope, known_ids=known, idless_types=draft.idless_types)
    return VisiblePart(payload, shape, scan, scope, plan)


@attrs.define(eq=False)
class AnswerRoom:
    """
    Room of the answer to a model's call, which a payload and its references share.

    Without a *budget*, the room is unlimited. *show* returns the part of a payload that an answer with so many
    characters shows, and its text with handles. *to_rows* returns the rows of a list or set, or None for other results,
    including a list of content blocks.
    """

    budget: Budget | None
    show: Callable[[Entries, int], tuple[Entries, str]]
    to_rows: Callable[[Any], Sequence[Any] | None]
    # Number of characters chosen for the payload; None if its references were not fetched for a visible part.
    payload_chars: int | None = None

    def add_to_payload(self, key: str, value: Any) -> None:
        """Extend the room of the payload by a member that was added to it."""
        if self.payload_chars is not None:
            self.payload_chars += len(to_json_text({key: value}))


@attrs.define(eq=False)
class PartChooser:
    """
    Chooses the part of a payload that an answer shows together with the references of this part.

    Args:
        room: Room of the answer, with a budget.
        complete: The complete payload, as JSON data without references.
        select: Scans a part of the payload, and selects its references.
        get_brief_fields: Returns the names of the main fields of a type.

    """

    room: AnswerRoom
    complete: VisiblePart
    select: Callable[[Entries], VisiblePart]
    get_brief_fields: GetBriefFields
    # Parts and their room for references by search step, because the searches of one payload try the same parts.
    _parts: dict[int, tuple[VisiblePart, int]] = attrs.field(factory=dict, init=False)
    _total: int = attrs.field(init=False)
    _limit: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Measure the payload."""
        self._total = len(to_json_text(self.complete.payload))
        self._limit = self._budget.limit if self._budget.size is len else _CHARS_PER_TOKEN * self._budget.limit

    @property
    def _budget(self) -> Budget:
        assert self.room.budget is not None  # noqa: S101 - checked by the caller
        return self.room.budget

    def plan_rounds(
        self, references: Mapping[str, Reference], count_further: Callable[[], int]
    ) -> Iterator[VisiblePart]:
        """
        Yield the part whose references to fetch in each round of queries. Then `choose` returns the part to show.

        The size of a reference is unknown before it is fetched. Therefore the first round fetches the references of a
        part that certainly fits, and the second round extends this part by the measured sizes.

        Args:
            references: The fetched references, extended by the caller after each round.
            count_further: Returns the number of references of the second level in the fetched ones.

        """
        for ratio in _FILL_RATIOS:
            part = self.choose(references, ratio=ratio, further=count_further())
            gain = sum(one not in references for one in part.plan.selected)
            if gain > (0 if part.is_complete else _MIN_GAIN * len(references)):
                yield part

    def choose(
        self, references: Mapping[str, Reference], *, ratio: float = 1.0, further: int = 0, fetched_only: bool = False
    ) -> VisiblePart:
        """
        Return the largest part of the payload whose references fit in the remaining room, in their short form.

        Args:
            references: The fetched references. Other ones are assumed to have the mean size.
            ratio: The part of the room for references that may be used.
            further: Number of references of the second level, which need room, too.
            fetched_only: If True, references that are not fetched do not fit.

        """
        sizes = _EntrySizes(self._budget, references, self.get_brief_fields, fetched_only=fetched_only)
        ratio *= max(_MIN_RATIO, 1 - further / max(1, len(references) + further))

        def measure_excess(step: int) -> float:
            part, room = self._show(step)
            return sizes.sum(part.plan.selected) - ratio * room

        has_rows = _count_rows(self.complete.payload) > 1
        low = 0 if has_rows else min(_STEPS, int(_STEPS * self._limit * _MIN_RATIO / self._size))
        step = _STEPS
        if measure_excess(_STEPS) > 0:
            step = max(low, bisect_left(range(_STEPS), 1, lo=low, key=lambda one: measure_excess(one) > 0) - 1)
            if has_rows and not _count_rows(self._show(step)[0].payload):
                # Show the first row even if its references do not fit.
                first = bisect_left(range(_STEPS), 1, lo=step, key=lambda one: _count_rows(self._show(one)[0].payload))
                step = first if _count_rows(self._show(first)[0].payload) else step
        part, room = self._show(step)
        self.room.payload_chars = self._size * step // _STEPS
        return self._limit_references(part, sizes, ratio * room)

    @property
    def _size(self) -> int:
        return min(self._total, self._limit)

    def _show(self, step: int) -> tuple[VisiblePart, int]:
        """Return the part that *step* steps of the size show, and the room for its references."""
        if step not in self._parts:
            chars = self._size * step // _STEPS
            if chars >= self._total:
                part, text = self.complete, to_json_text(self.complete.payload)
            else:
                shown, text = self.room.show(self.complete.payload, chars)
                part = attrs.evolve(self.select(shown), is_complete=False)
            needs_meta = part.plan.selected or not part.is_complete
            usable = _subtract_meta(self._budget, _META_CHARS if needs_meta else _EMPTY_META_CHARS)
            self._parts[step] = part, usable - self._budget.size(text)
        return self._parts[step]

    def _limit_references(self, part: VisiblePart, sizes: _EntrySizes, room: float) -> VisiblePart:
        """Return the part with the first references only, as many as fit in the room, and at least one."""
        chosen = _take_first(part.plan.selected, sizes, room, least=1)
        excess = tuple(one for one in part.plan.selected if one not in chosen)
        return attrs.evolve(part, plan=attrs.evolve(part.plan, selected=chosen), excess_ids=excess)

    def limit_second_level(
        self, first: VisiblePart, references: Mapping[str, Reference], selected: Mapping[str, str]
    ) -> dict[str, str]:
        """Return those references of the second level, fetched or not, that fit in the room after *first*."""
        sizes = _EntrySizes(self._budget, references, self.get_brief_fields)
        used = self._budget.size(to_json_text(first.payload)) + sizes.sum(first.plan.selected)
        ratio = 1 if references.keys() >= selected.keys() else _FILL_RATIOS[-1]
        return _take_first(selected, sizes, ratio * (_subtract_meta(self._budget, _META_CHARS) - used))


def _take_first(selected: Mapping[str, str], sizes: _EntrySizes, room: float, *, least: int = 0) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for entity_id, kind in selected.items():
        room -= sizes.sum({entity_id: kind})
        if room < 0 and len(chosen) >= least:
            break
        chosen[entity_id] = kind
    return chosen


def _count_rows(value: Any) -> int:
    """Return the number of rows: containers in arrays, including nested ones."""
    if isinstance(value, Mapping):
        return sum(map(_count_rows, value.values()))
    return sum(1 for one in value if isinstance(one, dict | list)) if isinstance(value, list) else 0


def _subtract_meta(budget: Budget, chars: int) -> int:
    """Return the part of a budget that ``references_meta`` does not need if it has *chars* characters."""
    return budget.limit - min(budget.size("0" * chars), int(budget.limit * _MAX_META_RATIO))


class _EntrySizes:
    """Sizes of references in their short form: measured if they are fetched, else the mean of their type."""

    def __init__(
        self,
        budget: Budget,
        references: Mapping[str, Reference],
        get_brief_fields: GetBriefFields,
        *,
        fetched_only: bool = False,
    ) -> None:
        self._unknown = _INFINITE_SIZE if fetched_only else budget.size(_ASSUMED_ENTRY)
        self._sizes = {
            key: budget.size(to_json_text({key: _render_short(make_entry(key, one, None), get_brief_fields)})) - 1
            for key, one in references.items()
        }
        self._by_type: dict[str, list[int]] = defaultdict(list)
        for key, one in references.items() if not fetched_only else ():
            self._by_type[one.kind].append(self._sizes[key])

    def _mean(self, kind: str) -> int:
        """Return the mean size of a type, rounded up."""
        sizes = self._by_type.get(kind)
        return -(-sum(sizes) // len(sizes)) if sizes else self._unknown

    def sum(self, selected: Mapping[str, str]) -> int:
        """Return the size of all references."""
        return sum(self._sizes[key] if key in self._sizes else self._mean(kind) for key, kind in selected.items())


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


def _render_full(entry: Any, _: GetBriefFields) -> Any:
    return drop_empty(entry)


def _render_brief(entry: Any, brief_of: GetBriefFields) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    names = ("status", "error") if is_failed(entry) else _summary_fields(entry, brief_of)
    return {key: entry[key] for key in ("reference_type", "id", *names)}


def _render_short(entry: Any, brief_of: GetBriefFields) -> Any:
    """Return the brief form with its long values shortened to equal parts of the maximum size of an entry."""
    brief = _render_brief(entry, brief_of)
    if not isinstance(brief, Mapping) or len(to_json_text(brief)) <= _MAX_ENTRY_CHARS:
        return brief
    sizes = {key: len(to_json_text(value)) for key, value in brief.items()}
    long = [key for key, size in sizes.items() if size > _MAX_VALUE_CHARS and key not in ENTRY_KEYS]
    rest = len(to_json_text(brief)) - sum(sizes[key] for key in long)
    most = max(_MAX_VALUE_CHARS, (_MAX_ENTRY_CHARS - rest) // max(1, len(long)))
    return {**brief, **{key: _truncate_value(brief[key], most) for key in long if sizes[key] > most}}


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
    return [key for key in named if key in entry and key not in ENTRY_KEYS and not is_empty(entry[key])]


def _truncate_value(value: Any, max_chars: int = _MAX_VALUE_CHARS) -> str:
    text = " ".join((value if isinstance(value, str) else to_json_text(value)).split())
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


_RENDERINGS: Final = (
    _Rendering("fields that are empty or zero", _render_full),
    _Rendering("all but the main fields", _render_brief),
    _Rendering("all but the main fields and the beginnings of their texts", _render_short),
    _Rendering("all but a line each", _render_line),
    _Rendering("all but type and name", _render_title),
)
