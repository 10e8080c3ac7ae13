"""
The ``references`` section of an answer, and what it says about itself.

Pure: a function of payload, plan and answers, in payload order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from mama_structs.references.failures import Failure
from mama_structs.references.payloads import as_mapping, copy_plain
from mama_structs.references.shape import META, SECTION

ROOT: Final = "root"

_FAILED_KEYS: Final = frozenset({"reference_type", "id", "status", "error", "referenced_from", "referenced_in"})


@attrs.define
class Origin:
    """Where an id was found: JSON pointers into the finished answer, and the entity that holds the first."""

    holder: str | None
    pointers: list[str] = attrs.field(factory=list)


def success(entity_id: str, kind: str, fields: Mapping[str, Any], origin: Origin | None) -> dict[str, Any]:
    """
    Return the entry of a resolved reference.

    A field of the entity whose name the entry needs for itself and whose value is another is kept with ``_`` behind,
    and so is ``error`` where the entity alone would look like a reference that failed.
    """
    own = {"reference_type": kind, "id": entity_id, **_metadata(origin)}
    entry = dict(own)
    for name, value in fields.items():
        key = name
        if name in own:
            if value == own[name]:
                continue
            while key in fields or key in entry:
                key += "_"
        entry[key] = copy_plain(value)
    if is_failed(entry):
        entry["error_"] = entry.pop("error")
    return entry


def failure(entity_id: str, kind: str, failed: Failure, origin: Origin | None) -> dict[str, Any]:
    """Return the entry of a reference that could not be resolved."""
    return {"reference_type": kind, "id": entity_id, "status": "failed", "error": failed.error, **_metadata(origin)}


def _metadata(origin: Origin | None) -> dict[str, Any]:
    return {} if origin is None else {"referenced_from": origin.pointers, "referenced_in": origin.holder or ROOT}


def is_failed(entry: Mapping[str, Any]) -> bool:
    """Tell whether an entry is a failed reference, and not an entity whose own status happens to be that word."""
    return entry.get("status") == "failed" and "error" in entry and _FAILED_KEYS.issuperset(entry)


def is_section(value: object) -> bool:
    """Tell whether a payload's ``references`` is a section of ours, and not the tool's own."""
    return isinstance(value, Mapping) and all(
        isinstance(entry, Mapping) and "reference_type" in entry and "id" in entry for entry in value.values()
    )


@attrs.define
class Meta:
    """
    What a section leaves out.

    Args:
        found: Ids found in the payload and in what was followed, as asked for.
        resolved: References that were resolved.
        failures: Failed references by kind.
        omitted: Ids left out by a limit, with the limit's name.
        filtered: Ids that were not asked for, by reason.
        complete: Whether the payload was searched whole.

    """

    found: int = 0
    resolved: int = 0
    failures: Counter[str] = attrs.field(factory=Counter)
    omitted: dict[str, str] = attrs.field(factory=dict)
    filtered: Counter[str] = attrs.field(factory=Counter)
    complete: bool = True

    def worth_saying(self, *, hidden_failures: bool) -> bool:
        """Tell whether something would be lost in silence without it."""
        lost = self.omitted or self.failures["deadline"] or not self.complete
        return bool(lost) or (hidden_failures and bool(self.failures))

    def as_dict(self) -> dict[str, Any]:
        """Return the ``references_meta`` of an answer."""
        meta: dict[str, Any] = {
            "found": self.found,
            "resolved": self.resolved,
            "failed": sum(self.failures.values()),
            "omitted": len(self.omitted),
        }
        if self.failures:
            meta["failed_by"] = dict(sorted(self.failures.items()))
        if self.omitted:
            meta["omitted_by"] = dict(sorted(Counter(self.omitted.values()).items()))
        if self.filtered:
            meta["filtered_by"] = dict(sorted(self.filtered.items()))
        if not self.complete:
            meta["searched"] = "in part: the payload has too many containers"
        if self.omitted:
            meta["omitted_ids"] = list(self.omitted)
        return meta


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
