"""Which session a bare decorator uses: the one entered in this context, else the only open one of the process."""

from __future__ import annotations

import contextvars
import weakref
from typing import Protocol

from mama_structs.errors import NoSession
from mama_structs.references.resolver import Resolver


class HasResolver(Protocol):
    """A session, as far as a decorator sees it."""

    @property
    def resolver(self) -> Resolver:
        """What resolves its references."""

    @property
    def is_open(self) -> bool:
        """Whether it can be used: opened, not closed, and its event loop still there."""


# Innermost last.
_entered: contextvars.ContextVar[tuple[HasResolver, ...]] = contextvars.ContextVar("mama_structs_sessions", default=())
_open: weakref.WeakSet[HasResolver] = weakref.WeakSet()


def add(session: HasResolver) -> None:
    """Count *session* among the open ones of the process."""
    _open.add(session)


def remove(session: HasResolver) -> None:
    """Count *session* no more."""
    _open.discard(session)


def enter(session: HasResolver) -> None:
    """Make *session* the one of this context."""
    _entered.set((*_entered.get(), session))


def leave(session: HasResolver) -> None:
    """
    Undo the last `enter` of *session*.

    Where it was entered in another context, as a notebook's cells are, there is nothing to undo here.
    """
    entered = list(_entered.get())
    for place in reversed(range(len(entered))):
        if entered[place] is session:
            del entered[place]
            _entered.set(tuple(entered))
            return


def find_resolver() -> Resolver | None:
    """Return the resolver that a bare decorator uses here, None when there is none or more than one to choose from."""
    for session in reversed(_entered.get()):
        if session.is_open:
            return session.resolver
    candidates = _candidates()
    return candidates[0].resolver if len(candidates) == 1 else None


def no_session(tool: str) -> NoSession:
    """Return the error of a tool that asks for references where `find_resolver` finds none."""
    count = len(_candidates())
    state = f"{count} sessions are open and none was entered here" if count else "no session is open"
    return NoSession(
        f"{tool} asks for references, but {state}",
        hint="enter one (async with Session.open(...)), or bind the tool: @session.with_references "
        "or @with_references(resolver=resolver)",
    )


def _candidates() -> list[HasResolver]:
    return [session for session in _open if session.is_open]
