"""
The ``references`` section of an answer, and what it says about itself.

Pure: a function of payload, plan and answers, in payload order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs._plain import as_mapping, copy_plain, json_size
from mama_structs.references.cache import Answer
from mama_structs.references.failures import Failure
from mama_structs.references.options import ReferenceOptions
from mama_structs.references.planning import BYTES
from mama_structs.references.shape import META, SECTION

ROOT: Final = "root"
REMEMBERED: Final = "remembered"

_FAILED_KEYS: Final = frozenset(
    {"reference_type", "id", "status", "error", "referenced_from", "referenced_in", REMEMBERED}
)


@attrs.define
class Origin:
    """
    Where an id was found.

    Args:
        holder: The entity that holds the first occurrence, None for none.
        places: Each occurrence: the reference whose fields hold it (None for the payload), and the JSON pointer into
            the finished answer.

    """

    holder: str | None
    places: list[tuple[str | None, str]] = attrs.field(factory=list)


@attrs.define
class Record:
    """
    One reference of a call.

    Args:
        kind: The type's name.
        outcome: What came of it.
        fields: The entity's fields as they stand in a reference; empty for a failure.
        remembered: The newest decisions about it; empty where none are asked for.

    """

    kind: str
    outcome: Answer | Failure
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    remembered: Sequence[Mapping[str, Any]] = ()

    @property
    def is_failed(self) -> bool:
        """Whether it could not be resolved."""
        return isinstance(self.outcome, Failure)


def entry_of(entity_id: str, record: Record, origin: Origin | None) -> dict[str, Any]:
    """
    Return a reference's entry.

    A field of the entity whose name the entry needs for itself, with another value, is kept with ``_`` behind;
    so is the error of an entity that would read as a failed reference.
    """
    own: dict[str, Any] = {"reference_type": record.kind, "id": entity_id}
    if isinstance(record.outcome, Failure):
        own |= {"status": "failed", "error": record.outcome.error}
    if origin is not None:
        own |= {
            "referenced_from": [pointer for _, pointer in origin.places],
            "referenced_in": origin.holder or ROOT,
        }
    if record.remembered:
        own[REMEMBERED] = [dict(one) for one in record.remembered]
    entry = dict(own)
    for name, value in record.fields.items():
        key = name
        if name in own:
            if value == own[name]:
                continue
            while key in record.fields or key in entry:
                key += "_"
        entry[key] = copy_plain(value)
    if not record.is_failed and is_failed(entry):
        entry["error_"] = entry.pop("error")
    return entry


def is_failed(entry: Mapping[str, Any]) -> bool:
    """Tell whether an entry is a failed reference, and not an entity whose own status happens to be that word."""
    return entry.get("status") == "failed" and "error" in entry and _FAILED_KEYS.issuperset(entry)


def is_section(value: object) -> bool:
    """Tell whether a payload's ``references`` is a section of ours, and not the tool's own."""
    return isinstance(value, Mapping) and all(
        isinstance(entry, Mapping) and "reference_type" in entry and "id" in entry for entry in value.values()
    )


@attrs.frozen(kw_only=True)
class Sought:
    """
    All that one call found, asked and left out, before it becomes a section.

    Args:
        records: What was asked for, in order.
        origins: Where each id was found; empty unless *metadata* is asked for.
        omitted: Ids left out by a limit, with the limit's name.
        filtered: How many ids were not asked for, by reason.
        complete: Whether the payload was searched whole.
        kept: Entries of an earlier section that stay.

    """

    records: Mapping[str, Record]
    origins: Mapping[str, Origin] = attrs.field(factory=dict)
    omitted: Mapping[str, str] = attrs.field(factory=dict)
    filtered: Mapping[str, int] = attrs.field(factory=dict)
    complete: bool = True
    kept: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)


def build(sought: Sought, options: ReferenceOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the section of a call, and its meta (empty where there is nothing to say)."""
    shown = {
        entity_id: entry_of(entity_id, record, sought.origins.get(entity_id))
        for entity_id, record in sought.records.items()
        if options.on_error == "indicate" or not record.is_failed
    }
    omitted = dict(sought.omitted)
    if options.max_bytes is not None:
        fitting = _fitting(shown, options.max_bytes - json_size(sought.kept), is_first=not sought.kept)
        omitted |= dict.fromkeys((entity_id for entity_id in shown if entity_id not in fitting), BYTES)
        shown = fitting
    section = {**sought.kept, **shown}
    for entity_id, entry in shown.items():
        if (origin := sought.origins.get(entity_id)) is not None:
            # What the limit cut cannot be pointed into.
            entry["referenced_from"] = [pointer for via, pointer in origin.places if via is None or via in section]
    failures = Counter(
        record.outcome.kind
        for entity_id, record in sought.records.items()
        if isinstance(record.outcome, Failure) and entity_id not in omitted
    )
    hidden = options.on_error == "omit" and failures
    if not (options.metadata or omitted or failures["deadline"] or hidden or not sought.complete):
        return section, {}
    resolved = sum(not sought.records[entity_id].is_failed for entity_id in shown)
    failed = sum(failures.values())
    meta: dict[str, Any] = {
        "found": resolved + failed + len(omitted),
        "resolved": resolved,
        "failed": failed,
        "omitted": len(omitted),
        "failed_by": dict(sorted(failures.items())),
        "omitted_by": dict(sorted(Counter(omitted.values()).items())),
        "filtered_by": dict(sorted(sought.filtered.items())),
        "searched": "" if sought.complete else "in part: the payload is too large to be searched whole",
        "omitted_ids": list(omitted),
    }
    return section, {name: value for name, value in meta.items() if value or isinstance(value, int)}


def _fitting(entries: Mapping[str, dict[str, Any]], room: int, *, is_first: bool) -> dict[str, dict[str, Any]]:
    """Return the entries before the first that does not fit into *room* bytes; the braces are counted already."""
    fitting: dict[str, dict[str, Any]] = {}
    for entity_id, entry in entries.items():
        room -= json_size({entity_id: entry}) - len("{}") + (0 if is_first else len(","))
        is_first = False
        if room < 0:
            break
        fitting[entity_id] = entry
    return fitting


@attrs.frozen(repr=False, eq=False)
class References(Mapping[str, Mapping[str, Any]]):
    """
    The references of an answer, by id.

    Args:
        entries: The ``references`` section.
        meta: The ``references_meta`` beside it; empty when nothing was left out.

    """

    entries: Mapping[str, Mapping[str, Any]]
    meta: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, result: object) -> References:
        """Return the references of a tool's result; empty when it has none."""
        mapping = as_mapping(result) or {}
        section = mapping.get(SECTION)
        if not is_section(section):
            return cls({})
        meta = mapping.get(META)
        return cls(section, meta if isinstance(meta, Mapping) else {})  # type: ignore[arg-type]

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
        """The references that could not be resolved, each with what happened."""
        return {entity_id: str(entry["error"]) for entity_id, entry in self.entries.items() if is_failed(entry)}

    @property
    def omitted(self) -> tuple[str, ...]:
        """The ids that a limit left out."""
        return tuple(self.meta.get("omitted_ids", ()))

    def __repr__(self) -> str:
        parts = [f"{len(self.entries) - len(self.failed)} resolved"]
        counts = {"failed": len(self.failed), "omitted": len(self.omitted)}
        parts += [f"{count} {word}" for word, count in counts.items() if count]
        return f"<References: {', '.join(parts)}>"
