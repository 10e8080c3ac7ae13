"""What the memory tools take, in types with bounds and words for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from mama_structs.errors import InvalidArgument
from mama_structs.memory.relationships import LONGEST
from mama_structs.memory.requests import MAX_ITEMS, MAX_LINKS, MAX_TOPIC

MAX_LIMIT: Final = 50
_MAX_ID: Final = 512
_MAX_ITEM: Final = 10_000
_MAX_QUERY: Final = 10_000
_MAX_TIME: Final = 64
# "2026-03-01"; words that a model tries instead get an answer that says more than their length.
_MIN_TIME: Final = 10

Text = Annotated[str, Meta(min_length=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Topic = Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC)]
Question = Annotated[str, Meta(min_length=1, max_length=_MAX_QUERY)]
Id = Annotated[str, Meta(min_length=1, max_length=_MAX_ID)]
Ids = Annotated[Sequence[Id], Meta(max_length=MAX_LINKS)]
Item = Annotated[str, Meta(min_length=1, max_length=_MAX_ITEM)]
Items = Annotated[Sequence[Item], Meta(max_length=MAX_ITEMS)]
Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
Kinds = Annotated[Sequence[Literal["decision", "checkpoint", "insight", "context"]], Meta(min_length=1)]
Time = Annotated[str, Meta(max_length=_MAX_TIME, extra_json_schema={"minLength": _MIN_TIME})]
Result = Literal["SUCCESS", "FAILED", "PARTIAL"]


class LinkTo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that a model asks for, from what it saves to a memory that there is."""

    to_id: Annotated[Id, Meta(description="The id of the memory that it leads to, as another tool gave it")]
    relationship: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=LONGEST,
            description="Any word or two for it, such as depends on, contradicts, caused by, refines",
        ),
    ]
    confidence: Annotated[Share, Meta(description="How sure it is")] = 0.8
    reason: Annotated[Item | None, Meta(description="Why they belong together")] = None
    tags: Annotated[Items, Meta(description="Words to group links by")] = ()


Links = Annotated[Sequence[LinkTo], Meta(max_length=MAX_LINKS)]


def as_mappings(links: Sequence[LinkTo]) -> list[Mapping[str, Any]]:
    """Return links as `MemoryStore` takes them."""
    return [msgspec.structs.asdict(link) for link in links]


def moment(name: str, text: str) -> datetime:
    """
    Read a time that a model gave; without a time zone it is meant as UTC.

    Raises:
        InvalidArgument: It is no time in the form of ISO 8601.

    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"{name} must be a date or time in ISO 8601, such as 2026-03-01 or 2026-03-01T09:30:00Z, got {text!r:.80}",
            hint="work out the date; for words such as 'last week' use search/by_context, which understands them",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
