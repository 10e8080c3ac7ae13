"""
Which ids to resolve and which to leave out, decided before anything is asked.

Pure: a function of what was found and of the options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

import attrs

from mama_structs.references.detection import Found
from mama_structs.references.options import ReferenceOptions, Scope

PER_ENTITY: Final = "max_references_per_entity"
TOTAL: Final = "max_references"
BYTES: Final = "max_bytes"

Filter = Literal["secondary", "type"]


@attrs.define
class Plan:
    """
    What one level of a call will do.

    Args:
        start: Ids to resolve, with their type, in payload order.
        omitted: Ids that a limit leaves out, with the limit's name.
        filtered: Ids that were not asked for, with the reason.

    """

    start: dict[str, str] = attrs.field(factory=dict)
    omitted: dict[str, str] = attrs.field(factory=dict)
    filtered: dict[str, Filter] = attrs.field(factory=dict)


def plan_level(  # noqa: C901, PLR0912 - one pass over what may be tens of thousands
    found: Iterable[Found],
    options: ReferenceOptions,
    scope: Scope,
    *,
    known: Collection[str] = (),
    started: int = 0,
) -> Plan:
    """
    Choose from *found*, in its order.

    Args:
        found: What detection found on this level.
        options: The call's options.
        scope: Whether only direct relations count.
        known: Ids that the answer has already, or that an earlier level left out.
        started: How many references earlier levels started.

    """
    plan = Plan()
    start, omitted, filtered = plan.start, plan.omitted, plan.filtered
    types = None if options.reference_types is None else frozenset(options.reference_types)
    only_primary = scope == "primary"
    per_row, room = options.max_references_per_entity, options.max_references - started
    row: int | None = None
    in_row: set[str] = set()
    for entity_id, rule, where, _, _ in found:
        if entity_id in known:
            continue
        if only_primary and not rule.primary:
            filtered.setdefault(entity_id, "secondary")
            continue
        if types is not None and rule.type not in types:
            filtered.setdefault(entity_id, "type")
            continue
        if where is not None:
            if where != row:
                row = where
                in_row = set()
            if entity_id not in in_row:
                if len(in_row) >= per_row:
                    if entity_id not in start:
                        omitted.setdefault(entity_id, PER_ENTITY)
                    continue
                in_row.add(entity_id)
        if entity_id in start:
            continue
        if len(start) < room:
            start[entity_id] = rule.type
            omitted.pop(entity_id, None)
        else:
            omitted[entity_id] = TOTAL
    for entity_id in [chosen for chosen in filtered if chosen in start or chosen in omitted]:
        del filtered[entity_id]
    return plan
