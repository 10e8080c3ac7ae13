"""The ``references`` section of an answer: selection of ids, entries, and metadata."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from mama_structs._internal.jsonable import JsonMixin, as_mapping, copy_containers, measure_json_bytes
from mama_structs._internal.reprs import MAX_HTML_ENTRIES, format_heading, format_table, wrap_html
from mama_structs.references.detection import META_KEY, SECTION_KEY, IdDetector
from mama_structs.references.matches import FieldRule, ScanResult
from mama_structs.references.options import ReferenceOptions, Scope
from mama_structs.references.results import Failure, SourceOutcome

ROOT_HOLDER: Final = "root"
MEMORIES_KEY: Final = "remembered"
# Keys of an entry that this package adds. All other keys are fields of the entity.
ENTRY_KEYS: Final = ("reference_type", "id", "referenced_from", "referenced_in", "as_of", MEMORIES_KEY)
SHORTENED_KEY: Final = "shortened"
"""Key in the metadata of a truncated section, whose entries may be single lines of text."""
FAILURE_SEPARATOR: Final = " failed: "
"""Separator of type and reason in the line of a failed reference."""
_FAILED_ENTRY_KEYS: Final = frozenset({*ENTRY_KEYS, "status", "error"})

# Id suffix of a field name. The field name without it is the name of the relation.
_ID_SUFFIX_PATTERN: Final = re.compile(r"(?<=.)(?:Ids?|_ids?)$")
# Index of the field name after splitting a pointer such as ``/references/2-1/owner`` at "/".
_POINTER_FIELD_INDEX: Final = 3

# Minimum number of omitted ids to list, even if they exceed the size limit.
_MIN_LISTED_IDS: Final = 20

PER_ENTITY_LIMIT: Final = "max_references_per_entity"
TOTAL_LIMIT: Final = "max_references"
BYTE_LIMIT: Final = "max_bytes"
ANSWER_LIMIT: Final = "answer_budget"
OMITTED_EARLIER: Final = "earlier"

# Options that can exclude an id from the references.
ExclusionReason = Literal["primary", "types", "path"]
# Reason to exclude an id if its type differs from the type that its field expects.
HINT_MISMATCH: Final = "hints"


@attrs.define
class LevelPlan:
    """
    Ids selected for one level of references, in payload order.

    `selected` maps ids to types, `omitted` to the exceeded limit, and `filtered` to the reason of the exclusion.
    """

    selected: dict[str, str] = attrs.field(factory=dict)
    omitted: dict[str, str] = attrs.field(factory=dict)
    filtered: dict[str, ExclusionReason] = attrs.field(factory=dict)


def select_references(  # noqa: C901, PLR0912 - a single pass over up to tens of thousands of matches
    matches: Iterable[tuple[Any, ...]],
    options: ReferenceOptions,
    scope: Scope,
    *,
    known_ids: Collection[str] = (),
    previous_count: int = 0,
    idless_types: Collection[str] = (),
) -> LevelPlan:
    """
    Select the ids to resolve from the matches of one level.

    *known_ids* ids are skipped; *previous_count* is the number of references of earlier levels.
    The scope does not apply to *idless_types*, because no field is a direct relation to them.
    """
    plan = LevelPlan()
    start, omitted, filtered = plan.selected, plan.omitted, plan.filtered
    types = None if options.reference_types is None else frozenset(options.reference_types)
    only_primary = scope == "primary"
    per_row, room = options.max_references_per_entity, options.max_references - previous_count
    row: int | None = None
    in_row: set[str] = set()
    for entity_id, rule, where, _, _ in matches:
        if entity_id in known_ids:
            continue
        if only_primary and not rule.primary and rule.type not in idless_types:
            filtered.setdefault(entity_id, "primary")
            continue
        if types is not None and rule.type not in types:
            filtered.setdefault(entity_id, "types")
            continue
        if where is not None:
            if where != row:
                row, in_row = where, set()
            if entity_id not in in_row:
                if len(in_row) >= per_row:
                    if entity_id not in start:
                        omitted.setdefault(entity_id, PER_ENTITY_LIMIT)
                    continue
                in_row.add(entity_id)
        if entity_id in start:
            continue
        if len(start) < room:
            start[entity_id] = rule.type
            omitted.pop(entity_id, None)
        else:
            omitted[entity_id] = TOTAL_LIMIT
    for entity_id in [chosen for chosen in filtered if chosen in start or chosen in omitted]:
        del filtered[entity_id]
    return plan


class ExpandPaths:
    """
    Paths of the option *expand*, such as ``guild.owner``. Each step is the name of a field, relation or type.

    The first step selects ids in the payload, the second one ids in the entities that the first step selected.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._second_steps_by_first: dict[str, set[str]] = {}
        for path in paths:
            first, _, second = path.partition(".")
            self._second_steps_by_first.setdefault(first, set()).update([second] if second else [])
        # Cache of the second steps by field rule, None if no path starts with the field. Payloads have few rules.
        self._second_steps_by_rule: dict[FieldRule, set[str] | None] = {}
        self._second_steps_by_id: dict[str, set[str]] = {}

    def match_first_step(self, entity_id: str, rule: FieldRule) -> bool:
        """
        Return True if a path selects this id with its first step.

        Store the second steps of all such paths by id, for `match_second_step`.
        """
        if rule not in self._second_steps_by_rule:
            matching = [
                self._second_steps_by_first[name] for name in _path_names(rule) if name in self._second_steps_by_first
            ]
            self._second_steps_by_rule[rule] = set().union(*matching) if matching else None
        second = self._second_steps_by_rule[rule]
        if second is None:
            return False
        self._second_steps_by_id.setdefault(entity_id, set()).update(second)
        return True

    def match_second_step(self, holder: str, rule: FieldRule) -> bool:
        """Return True if a path selects *holder* with its first step, and a field of this rule with its second step."""
        return not self._second_steps_by_id.get(holder, set()).isdisjoint(_path_names(rule))


def _path_names(rule: FieldRule) -> set[str]:
    """
    Return the names by which a path can select a field.

    These are the field name with and without its id ending, and its type.
    """
    field = str(rule.field)
    return {field, _ID_SUFFIX_PATTERN.sub("", field), rule.type} - {""}


# Position of an id: the entity and the reference that contain it (each may be None), and its JSON pointer.
IdPosition = tuple[str | None, str | None, str]


@attrs.define
class Reference:
    """A reference: type, outcome and fields of an entity, and the newest decisions about it."""

    kind: str
    outcome: SourceOutcome
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    # The id without type prefix, if it differs from the key of the entry.
    bare_id: str | None = None
    remembered: Sequence[Mapping[str, Any]] = ()
    # Chain height and age of the answer, shown if metadata is requested.
    as_of: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def is_failed(self) -> bool:
        """True if the reference could not be resolved."""
        return isinstance(self.outcome, Failure)

    def format_id(self, key: str) -> Any:
        """Return the id as its own system writes it. It is a number if the entity's own id field is a number."""
        own = self.fields.get("id")
        return own if self.bare_id is not None and str(own) == self.bare_id else self.bare_id or key


def is_empty(value: Any) -> bool:
    """Return True for null, zero, and empty texts and containers. False is a value."""
    return value is None or (not isinstance(value, bool) and value in ("", "0", 0, [], {}))


def drop_empty(value: Any) -> Any:
    """Remove empty and zero values from a mapping, recursively."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: drop_empty(member) for key, member in value.items()}
    return {key: member for key, member in kept.items() if not is_empty(member)}


def make_entry(
    entity_id: str,
    reference: Reference,
    positions: Sequence[IdPosition] | None,
    fields: Collection[str] | None = None,
    *,
    omits_empty: bool = False,
) -> dict[str, Any]:
    """
    Return the entry of a reference with all or some *fields* of its entity, with *omits_empty* without empty ones.

    Fields whose names collide with those of the entry get a ``_`` suffix.
    """
    own: dict[str, Any] = {"reference_type": reference.kind, "id": reference.format_id(entity_id)}
    if isinstance(reference.outcome, Failure):
        own |= {"status": "failed", "error": reference.outcome.error}
    if positions is not None:
        holder = positions[0][0] if positions else None
        own |= {"referenced_from": [pointer for _, _, pointer in positions], "referenced_in": holder or ROOT_HOLDER}
        own |= {"as_of": dict(reference.as_of)} if reference.as_of else {}
    if reference.remembered:
        own[MEMORIES_KEY] = [dict(one) for one in reference.remembered]
    entry = dict(own)
    for name, value in (drop_empty(reference.fields) if omits_empty else reference.fields).items():
        if fields is not None and name not in fields:
            continue
        key = name
        if name in own:
            if value == own[name]:
                continue
            while key in reference.fields or key in entry:
                key += "_"
        entry[key] = copy_containers(value)
    # Rename an entity's own field "error", so that the entry does not look like a failed reference.
    if not reference.is_failed and is_failed(entry):
        entry["error_"] = entry.pop("error")
    return entry


def is_failed(entry: Mapping[str, Any]) -> bool:
    """Return True if an entry is a failed reference. An entity whose own status is "failed" is not."""
    return entry.get("status") == "failed" and "error" in entry and _FAILED_ENTRY_KEYS.issuperset(entry)


def is_section(value: object, meta: object = None) -> bool:
    """
    Return True if the value of ``references`` is a section that this package added.

    Otherwise it is a field of the tool's own result.
    """
    lines = isinstance(meta, Mapping) and SHORTENED_KEY in meta
    return isinstance(value, Mapping) and all(
        (isinstance(entry, Mapping) and "reference_type" in entry and "id" in entry)
        or (lines and isinstance(entry, str))
        for entry in value.values()
    )


def parse_line(entity_id: str, line: str) -> dict[str, Any]:
    """Parse a line of a truncated section, and return it as an entry."""
    kind, failed, error = line.partition(FAILURE_SEPARATOR)
    if failed and " " not in kind:
        return {"reference_type": kind, "id": entity_id, "status": "failed", "error": error}
    return {"reference_type": line.partition(" ")[0].rstrip(","), "id": entity_id, "line": line}


@attrs.define(kw_only=True)
class SectionDraft:
    """Mutable data from which the section of one call is built."""

    references: dict[str, Reference] = attrs.field(factory=dict)
    # Remaining time to wait for sources. The time for processing the payload does not count.
    wait_seconds: float = 0.0
    # All positions of each id. Empty unless metadata is requested.
    positions: dict[str, list[IdPosition]] = attrs.field(factory=dict)
    # Omitted ids, with the name of the exceeded limit or the reason why they were not queried.
    omitted: dict[str, str] = attrs.field(factory=dict)
    filtered: dict[str, str] = attrs.field(factory=dict)
    # Paths of the option *expand*, or None if the option is not used.
    paths: ExpandPaths | None = None
    # Returns the names of the fields to show for a type, or None to show all fields.
    get_shown_fields: Callable[[str], Collection[str] | None] = attrs.field(default=lambda _: None)
    # True if entries omit fields that are empty or zero.
    omits_empty: bool = False
    # Requested types whose ids have no entity. The metadata names the types without any id in the payload.
    idless_types: tuple[str, ...] = ()
    # Additional messages for the metadata, as sentences.
    notes: tuple[str, ...] = ()
    # Ids of entities that the scanned data contains completely. They need no reference.
    present_ids: set[str] = attrs.field(factory=set)
    # False if the scan stopped early.
    is_complete: bool = True
    # True if only the part of the payload that the answer shows was scanned.
    is_part: bool = False
    # Number of skipped look-alikes.
    lookalikes: int = 0
    # Number of objects that could not be read.
    unreadable_objects: int = 0
    # The section that the payload already contains.
    existing_entries: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    # Ceilings of the tool that reduced the caller's options.
    ceilings: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def resolved_existing_ids(self) -> set[str]:
        """The ids in the existing section that are not failed."""
        return {entity_id for entity_id, entry in self.existing_entries.items() if not is_failed(entry)}

    def add_scan(
        self, scan: ScanResult, find_holder_id: Callable[[int | None], str | None], *, via: str | None, metadata: bool
    ) -> None:
        """Add the result of a scan. *via* is the id of the scanned reference, or None for the payload."""
        self.present_ids |= scan.present_ids
        self.lookalikes += len(scan.lookalikes)
        for found in scan.lookalikes:
            self.filtered.setdefault(found.id, HINT_MISMATCH)
        self.unreadable_objects += scan.unreadable_objects
        self.is_complete = self.is_complete and scan.is_complete
        for found in scan.matches if metadata else ():
            self.positions.setdefault(found.id, []).append((find_holder_id(found.row), via, found.pointer))

    def find_second_level(
        self, detector: IdDetector, existing_ids: Collection[str], *, metadata: bool
    ) -> list[tuple[Any, ...]]:
        """
        Return the ids found in resolved references and in the existing section.

        In the existing section, only the entries *existing_ids* are scanned.
        """
        found: list[tuple[Any, ...]] = []
        for entity_id in [*existing_ids, *self.references]:
            scan = self._scan_entity(entity_id, detector, is_existing=entity_id in existing_ids)
            self.add_scan(scan, lambda _, holder=entity_id: holder, via=entity_id, metadata=metadata)  # type: ignore[misc]
            found += self.filter_by_paths(scan.matches.iter_tuples(), functools.partial(self._is_on_path, entity_id))
        return found

    def count_second_level(self, detector: IdDetector, options: ReferenceOptions, scope: Scope) -> int:
        """Return the number of references of the second level in the resolved references. This records nothing."""
        found = (
            match
            for entity_id in self.references
            for match in self._scan_entity(entity_id, detector).matches.iter_tuples()
            if self.paths is None or self._is_on_path(entity_id, match[0], match[1])
        )
        known = {*self.references, *self.resolved_existing_ids, *self.present_ids}
        plan = select_references(found, options, scope, known_ids=known, idless_types=self.idless_types)
        return len(plan.selected)

    def _scan_entity(self, entity_id: str, detector: IdDetector, *, is_existing: bool = False) -> ScanResult:
        """Find the ids in a resolved reference, or in an entry of the existing section."""
        entry = self.existing_entries.get(entity_id, {}) if is_existing else {}
        return detector.scan(
            entry if is_existing else self.references[entity_id].fields,
            exclude={entity_id},
            position=((None, SECTION_KEY), entity_id),
            main_type=entry["reference_type"] if is_existing else self.references[entity_id].kind,
            skip_fields=ENTRY_KEYS if is_existing else (),
        )

    def _is_on_path(self, holder: str, _: str, rule: FieldRule) -> bool:
        return self.paths is not None and self.paths.match_second_step(holder, rule)

    def filter_by_paths(
        self, matches: Iterable[tuple[Any, ...]], is_on_path: Callable[[str, FieldRule], bool]
    ) -> Iterable[tuple[Any, ...]]:
        """Return the matches on a path, and record all ids as filtered. Without paths, return all matches."""
        if self.paths is None:
            return matches
        every = list(matches)
        # Record even selected ids, because `build_section` ignores this record for an id that any match selects.
        self.filtered.update((one[0], "path") for one in every)
        return [one for one in every if is_on_path(one[0], one[1])]

    def _make_entry(
        self, entity_id: str, reference: Reference, positions: Sequence[IdPosition] | None
    ) -> dict[str, Any]:
        shown = self.get_shown_fields(reference.kind)
        return make_entry(entity_id, reference, positions, shown, omits_empty=self.omits_empty)

    def exceeds_bytes(self, max_bytes: int | None) -> bool:
        """
        Return True if the section already exceeds *max_bytes* bytes.

        A second level of references would then not fit.
        """
        if max_bytes is None:
            return False
        entries = {key: self._make_entry(key, one, None) for key, one in self.references.items()}
        return measure_json_bytes({**self.existing_entries, **entries}) > max_bytes

    def build_section(self, options: ReferenceOptions) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the section and its metadata. The metadata is empty if there is nothing to report."""
        kept = {
            entity_id: entry for entity_id, entry in self.existing_entries.items() if entity_id not in self.references
        }
        places = self.positions if options.metadata else None
        shown = {
            key: self._make_entry(key, one, None if places is None else places.get(key, ()))
            for key, one in self.references.items()
            if options.on_error == "indicate" or not one.is_failed
        }
        omitted = {key: why for key, why in self.omitted.items() if key not in self.references and key not in kept}
        if options.max_bytes is not None:
            fitting = _take_fitting(shown, options.max_bytes - measure_json_bytes(kept), is_first=not kept)
            omitted |= dict.fromkeys((entity_id for entity_id in shown if entity_id not in fitting), BYTE_LIMIT)
            shown = fitting
        section = {**kept, **shown}
        for entity_id, entry in shown.items() if options.metadata else ():
            # Omit pointers into entries or fields that the section does not show.
            entry["referenced_from"] = [
                pointer
                for _, via, pointer in self.positions.get(entity_id, ())
                if via is None or (via in section and self._shows_field(via, pointer))
            ]
        failures = Counter(
            one.outcome.kind
            for entity_id, one in self.references.items()
            if isinstance(one.outcome, Failure) and entity_id not in omitted
        )
        filtered = Counter(
            why
            for key, why in self.filtered.items()
            if key not in self.references and key not in omitted and key not in kept
        )
        found_types = {one.kind for one in self.references.values()}
        empty = [name for name in self.idless_types if name not in found_types]
        note = f"{' and '.join(empty)} found nothing: no entity has an id of such a type"
        notes = [*([note] if empty else []), *self.notes]
        hidden = options.on_error == "omit" and failures
        searched = "" if self.is_complete else "in part: the payload is too large to be searched whole"
        if self.unreadable_objects and self.is_complete:
            searched = f"in part: {self.unreadable_objects} of the payload's objects cannot be read"
        if self.is_part and not searched:
            searched = "only the shown part: reading the rest by its fd adds no references"
        has_meta = omitted or filtered or failures["deadline"] or hidden or self.ceilings or notes or searched
        if not (options.metadata or has_meta):
            return section, {}
        resolved = sum(not self.references[entity_id].is_failed for entity_id in shown)
        failed = sum(failures.values())
        meta: dict[str, Any] = {
            "found": resolved + failed + len(omitted),
            "resolved": resolved,
            "failed": failed,
            "omitted": len(omitted),
            "failed_by": dict(sorted(failures.items())),
            "omitted_by": dict(sorted(Counter(omitted.values()).items())),
            "present": len(self.present_ids) or None,
            "filtered": dict(sorted(filtered.items())),
            "searched": searched,
            "ceilings": dict(self.ceilings),
            "notes": notes,
            "omitted_ids": _list_ids(omitted, options.max_bytes),
        }
        return section, {name: value for name, value in meta.items() if value or isinstance(value, int)}

    def _shows_field(self, via: str, pointer: str) -> bool:
        """Return True if the entry of the reference *via* shows the field that *pointer* addresses."""
        one = self.references.get(via)
        fields = None if one is None else self.get_shown_fields(one.kind)
        return (
            fields is None or pointer.split("/")[_POINTER_FIELD_INDEX].replace("~1", "/").replace("~0", "~") in fields
        )


def _list_ids(ids: Iterable[str], max_bytes: int | None) -> list[str]:
    """Return at least the first twenty ids, and more if they fit into *max_bytes* bytes of JSON."""
    sizes = itertools.accumulate(measure_json_bytes(one) + len(",") for one in ids)
    return [
        one
        for at, (one, size) in enumerate(zip(ids, sizes, strict=True))
        if at < _MIN_LISTED_IDS or max_bytes is None or size < max_bytes
    ]


def _take_fitting(
    entries: Mapping[str, dict[str, Any]], max_bytes: int, *, is_first: bool
) -> dict[str, dict[str, Any]]:
    """Return the first entries that fit into *max_bytes* bytes of JSON. The outer braces do not count."""
    fitting: dict[str, dict[str, Any]] = {}
    for entity_id, entry in entries.items():
        max_bytes -= measure_json_bytes({entity_id: entry}) - len("{}") + (0 if is_first else len(","))
        is_first = False
        if max_bytes < 0:
            break
        fitting[entity_id] = entry
    return fitting


@attrs.frozen(repr=False, eq=False)
class References(Mapping[str, Mapping[str, Any]], JsonMixin):
    """
    The references of an answer, by id.

    Args:
        entries: The ``references`` section.
        meta: The ``references_meta`` of the section; empty if there is nothing to report.

    """

    entries: Mapping[str, Mapping[str, Any]]
    meta: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def from_result(cls, result: object) -> References:
        """Return the references in a tool's result. The object is empty if the result has none."""
        mapping = as_mapping(result) or {}
        section, meta = mapping.get(SECTION_KEY), mapping.get(META_KEY)
        if not isinstance(section, Mapping) or not is_section(section, meta):
            return cls({})
        entries = {key: parse_line(key, entry) if isinstance(entry, str) else entry for key, entry in section.items()}
        return cls(entries, meta if isinstance(meta, Mapping) else {})

    def __getitem__(self, entity_id: str) -> Mapping[str, Any]:
        return self.entries[str(entity_id)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        return dict(self.entries) == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def by_type(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Return the resolved references of one type, such as ``planet``."""
        return {
            entity_id: entry
            for entity_id, entry in self.entries.items()
            if entry["reference_type"] == kind and not is_failed(entry)
        }

    @property
    def failed(self) -> dict[str, str]:
        """The ids that could not be resolved, with their error messages."""
        return {entity_id: str(entry["error"]) for entity_id, entry in self.entries.items() if is_failed(entry)}

    @property
    def omitted(self) -> tuple[str, ...]:
        """The listed ids that a limit omitted. ``meta["omitted"]`` counts all omitted ids."""
        return tuple(self.meta.get("omitted_ids", ()))

    @property
    def filtered(self) -> dict[str, int]:
        """Number of excluded ids by reason: ``primary``, ``types``, ``path`` or ``hints``."""
        return dict(self.meta.get("filtered", {}))

    def __repr__(self) -> str:
        parts = [f"{len(self.entries) - len(self.failed)} resolved"]
        counts = {"failed": len(self.failed), "omitted": self.meta.get("omitted", len(self.omitted))}
        parts += [f"{count} {word}" for word, count in counts.items() if count]
        return f"<References: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        known = ("reference_type", "id", "error")
        rows = []
        for entity_id, entry in itertools.islice(self.entries.items(), MAX_HTML_ENTRIES):
            told = {key: value for key, value in entry.items() if key not in known and value not in ("", "0", 0, None)}
            plain = (f"{key} {value!s:.200}" for key, value in told.items() if isinstance(value, str | int | float))
            fields = ", ".join(itertools.islice(plain, MAX_HTML_ENTRIES))
            rows.append([entity_id, entry["reference_type"], entry["error"] if is_failed(entry) else fields])
        return wrap_html(
            format_heading(repr(self)[1:-1]), format_table(rows, count=len(self), header=("id", "type", "what it is"))
        )
