"""Fields of the search form, read from an address, and the filter that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.memory.types.filters import Filter

_DATE_CHARS: Final = len("2026-11-29")


def _read_field(text: str | None) -> str | None:
    return text.strip() or None if text is not None else None


@attrs.frozen(kw_only=True, field_transformer=lambda _, fields: [one.evolve(converter=_read_field) for one in fields])
class SearchForm:
    """
    The fields of the search form. Empty fields are None.

    Args:
        q: The query; None to list the newest memories.
        type: A type of memories.
        topic: A topic, exactly as it was saved.
        outcome: An outcome of decisions.
        origin: An origin.
        since: The first day, or a time (UTC).
        until: The last day, or a time (UTC) before which memories were created.
        tag: A tag.
        source: A source.
        outdated: ``"no"`` leaves out memories that newer ones replace.

    """

    q: str | None = None
    type: str | None = None
    topic: str | None = None
    outcome: str | None = None
    origin: str | None = None
    since: str | None = None
    until: str | None = None
    tag: str | None = None
    source: str | None = None
    outdated: str | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> SearchForm:
        """Return the form with the fields of an address."""
        return cls(**{field.name: query.get(field.name) for field in attrs.fields(cls)})

    @property
    def where(self) -> Filter:
        """
        The conditions of the form.

        Raises:
            InvalidArgument: A condition is invalid.

        """
        return Filter(
            type=self.type,
            topic=self.topic,
            outcome=self.outcome,
            origin=self.origin,  # type: ignore[arg-type] # the filter checks it
            since=parse_time("since", self.since),
            until=parse_time("until", self.until, is_end=True),
            tags=self.tag,
            source=self.source,
        )

    @property
    def has_conditions(self) -> bool:
        """True if a field other than the query is set."""
        return attrs.evolve(self, q=None) != SearchForm()

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are set, for addresses."""
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}


def parse_time(name: str, text: str | None, *, is_end: bool = False) -> datetime | None:
    """Return a time of an address or of a form in UTC. The last day of a period belongs to it."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return time + timedelta(days=1) if is_end and len(text) == _DATE_CHARS else time
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name} must be a date or a time, got {repr_short(text)}", hint="2026-03-01, or 2026-03-01T12:00"
        ) from None
