"""One call's references: its levels, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs._plain import json_size
from mama_structs.references.cache import Answer
from mama_structs.references.detection import Detector, Found, Scan
from mama_structs.references.flights import Outcome
from mama_structs.references.options import ReferenceOptions, Scope
from mama_structs.references.planning import Plan, plan_level
from mama_structs.references.section import REMEMBERED, Origin, Record, Sought, build, entry_of, is_failed
from mama_structs.references.shape import SECTION, Shape

# What an entry has of its own, which is no data of the entity.
_ADDED: Final = ("reference_type", "id", "referenced_from", "referenced_in", REMEMBERED)
_EARLIER: Final = "earlier"

# Asks for ids (with their types) until a time of the loop, and gives an outcome for each.
Load = Callable[[Mapping[str, str], float, float], Awaitable[Mapping[str, Outcome]]]
Flatten = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
# Gives the newest decisions about ids; an id about which there are none is left out.
Recall = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[Mapping[str, Any]]]]]


@attrs.define
class Run:
    """
    What one call seeks.

    Args:
        options: What it asks for.
        scope: Which fields count.
        detector: Finds ids in what was fetched.
        load: Asks the sources.
        flatten: Gives the fields of an answer as they stand in a reference.
        existing: The section that the payload has already.
        omitted: Ids that an earlier call left out.

    """

    options: ReferenceOptions
    scope: Scope
    detector: Detector
    load: Load
    flatten: Flatten
    existing: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    omitted: dict[str, str] = attrs.field(factory=dict)
    lookalikes: int = 0
    complete: bool = True
    until: float = attrs.field(init=False)
    records: dict[str, Record] = attrs.field(init=False, factory=dict)
    _origins: dict[str, Origin] = attrs.field(init=False, factory=dict)
    _filtered: dict[str, str] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.until = asyncio.get_running_loop().time() + self.options.deadline

    async def start(self, scan: Scan, shape: Shape) -> None:
        """Resolve what the payload itself names, and what lies below."""
        self._note(scan, shape.holder, via=None)
        known = {entity_id for entity_id, entry in self.existing.items() if not is_failed(entry)}
        named = dict.fromkeys(found.id for found in scan.found if found.id in known)
        await self.follow(plan_level(scan.found, self.options, self.scope, known=known), named=list(named))

    async def follow(self, plan: Plan, *, named: Sequence[str] = ()) -> None:
        """
        Resolve a level, then the next one if it was asked for.

        Args:
            plan: What to resolve.
            named: Ids of the existing section that stand on this level, and are followed like new ones.

        """
        await self._resolve(plan)
        if self.options.reference_depth < 2 or self._is_full():  # noqa: PLR2004 - the rule itself
            return
        found: list[Found] = []
        for entity_id in [*named, *self.records]:
            fields = self.existing[entity_id] if entity_id in named else self.records[entity_id].fields
            scan = self.detector.scan(
                fields,
                exclude={entity_id},
                place=((None, SECTION), entity_id),
                skip=_ADDED if entity_id in named else (),
            )
            self._note(scan, lambda _, holder=entity_id: holder, via=entity_id)  # type: ignore[misc]
            found += scan.found
        known = {*self.records, *(key for key, entry in self.existing.items() if not is_failed(entry))}
        await self._resolve(plan_level(found, self.options, self.scope, known=known, started=len(self.records)))

    async def remember(self, recall: Recall, own: Collection[str]) -> dict[str, Any]:
        """
        Add what is remembered of each reference, and return what is remembered of the payload's own entities.

        Args:
            recall: Asks the memories.
            own: The ids that the payload is about.

        """
        about = sorted(own)[: self.options.max_references]
        remembered = await recall(list(dict.fromkeys([*about, *self.records])))
        for entity_id, record in self.records.items():
            record.remembered = remembered.get(entity_id, ())
        return {one: [dict(decision) for decision in remembered[one]] for one in about if one in remembered}

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the section, and its meta where there is something to say."""
        kept = {entity_id: entry for entity_id, entry in self.existing.items() if entity_id not in self.records}
        sought = Sought(
            records=self.records,
            origins={key: self._origins.get(key, Origin(None)) for key in self.records}
            if self.options.metadata
            else {},
            omitted={key: why for key, why in self.omitted.items() if key not in self.records and key not in kept},
            filtered=Counter(why for key, why in self._filtered.items() if key not in self.records),
            complete=self.complete,
            kept=kept,
        )
        return build(sought, self.options)

    def leave_out_as_before(self, omitted: Sequence[object]) -> None:
        """Go on saying what an earlier call left out, unless this one resolves it."""
        self.omitted.update({str(entity_id): _EARLIER for entity_id in omitted})

    async def _resolve(self, plan: Plan) -> None:
        self.omitted.update(plan.omitted)
        self._filtered.update(plan.filtered)
        outcomes = await self.load(plan.start, self.until, self.options.deadline)
        for entity_id, kind in plan.start.items():
            outcome = outcomes[entity_id]
            fields = self.flatten(entity_id, outcome.data) if isinstance(outcome, Answer) else {}
            self.records[entity_id] = Record(kind, outcome, fields)

    def _is_full(self) -> bool:
        """Tell whether the section is over its bytes already, so that a further level could add nothing."""
        if self.options.max_bytes is None:
            return False
        entries = {entity_id: entry_of(entity_id, record, None) for entity_id, record in self.records.items()}
        return json_size({**self.existing, **entries}) > self.options.max_bytes

    def _note(self, scan: Scan, holder: Callable[[int | None], str | None], *, via: str | None) -> None:
        self.lookalikes += len(scan.lookalikes)
        self.complete = self.complete and scan.complete
        if self.options.metadata:
            for found in scan.found:
                origin = self._origins.setdefault(found.id, Origin(holder(found.row)))
                origin.places.append((via, found.pointer))
