"""
Provenance of texts: the author, and the least trusted author of its sources.

Refs, descriptors and memories have a provenance. `limit_stored_provenance` passes the provenance of the handles in a
tool call's arguments to everything that the tool stores, because the tool itself only sees text.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import attrs

from mama_structs._internal.jsonable import JsonMixin

Origin = Literal["user", "model", "tool", "outside"]
"""Author of a text: the host's user, a model, a tool's result, or an outside source such as a page or a mail."""

ORIGINS: Final[tuple[Origin, ...]] = ("user", "model", "tool", "outside")
"""All origins, the most trusted first."""

UNKNOWN_ORIGIN: Final[Origin] = "outside"
"""Origin of a text whose author is not recorded, such as a handle that an earlier version stored."""

SOURCE_ORIGINS: Final[dict[str, Origin]] = {"user_input": "user", "host": "user", "tool_result": "tool"}
TRUST_MARKS: Final[dict[Origin, str]] = {"tool": "from a tool", "outside": "from outside, unchecked"}


def least_trusted(origins: Iterable[Origin]) -> Origin:
    """Return the least trusted of several origins. Without origins, return ``"user"``."""
    return max(origins, key=ORIGINS.index, default=ORIGINS[0])


def get_marked_trust(trust: Origin) -> Origin | None:
    """Return *trust* if answers for models must show it, else None."""
    return trust if trust in TRUST_MARKS else None


def get_mark(trust: Origin) -> str | None:
    """Return the mark that a prompt shows for a text of this trust, or None if it needs no mark."""
    return TRUST_MARKS.get(trust)


def find_trusts(answer: object) -> Iterator[Origin]:
    """Yield the values of all ``trust`` and ``…_trust`` fields in an answer, if the value needs a mark."""
    waiting = [answer]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key, value in one.items():
                if not isinstance(value, str):
                    waiting.append(value)
                elif isinstance(key, str) and key.endswith("trust"):
                    yield from (origin for origin in TRUST_MARKS if origin == value)
        elif isinstance(one, list):
            waiting.extend(one)


@attrs.frozen
class Provenance(JsonMixin):
    """
    Author of a text, and least trusted origin among its sources.

    Args:
        origin: The least trusted author of the text itself.
        trust: The least trusted origin among the text and everything that it is based on.

    """

    origin: Origin
    trust: Origin

    @classmethod
    def from_author(cls, origin: Origin) -> Provenance:
        """Return the provenance of a text that has no sources except its author."""
        return cls(origin, origin)

    @classmethod
    def from_source(cls, source: str) -> Provenance:
        """Return the provenance for a *source* argument of `RefStore.wrap` and `RefStore.add`."""
        return cls.from_author(SOURCE_ORIGINS.get(source, UNKNOWN_ORIGIN))

    def merge_with(self, *others: Provenance | None) -> Provenance:
        """Return the provenance of a text that combines this text with texts of the provenances *others*."""
        known = [self, *(one for one in others if one is not None)]
        return Provenance(
            least_trusted(one.origin for one in known),
            least_trusted(origin for one in known for origin in (one.origin, one.trust)),
        )


# None outside of a tool call. An empty tuple if the arguments of the call contain no text inserted for a handle.
_inserted_provenance: Final[contextvars.ContextVar[tuple[Provenance, ...] | None]] = contextvars.ContextVar(
    "mama_structs_inserted_texts", default=None
)


def get_inserted_provenance() -> Provenance | None:
    """Return the provenance of the texts inserted for handles in this tool call's arguments, or None."""
    return next(iter(_inserted_provenance.get() or ()), None)


def is_tool_call() -> bool:
    """Return True while a session runs a tool call. Handles in its arguments are already replaced."""
    return _inserted_provenance.get() is not None


@contextlib.contextmanager
def limit_stored_provenance(provenance: Provenance | None) -> Iterator[None]:
    """Limit the trust of everything stored in this block to *provenance* and that of an enclosing block."""
    outer = get_inserted_provenance()
    both = outer if provenance is None else provenance.merge_with(outer)
    token = _inserted_provenance.set(() if both is None else (both,))
    try:
        yield
    finally:
        _inserted_provenance.reset(token)
