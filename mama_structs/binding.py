"""Which session a bare decorator uses: the one entered in this context, else the only open one of the process."""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mama_structs.errors import NoSession


class Bindable(Protocol):
    """A session, as far as a decorator sees it."""

    # Decorators take different parts of a session, and the parts do not know each other.
    @property
    def resolver(self) -> Any:
        """What resolves its references."""

    @property
    def refs(self) -> Any:
        """What keeps its refs and descriptors."""

    @property
    def is_open(self) -> bool:
        """Whether it can be used: opened, not closed, and its event loop still there."""


# Innermost last.
_entered: contextvars.ContextVar[tuple[Bindable, ...]] = contextvars.ContextVar("mama_structs_sessions", default=())
_open: weakref.WeakSet[Bindable] = weakref.WeakSet()


def add(session: Bindable) -> None:
    """Count *session* among the open ones of the process."""
    _open.add(session)


def remove(session: Bindable) -> None:
    """Count *session* no more."""
    _open.discard(session)


def enter(session: Bindable) -> None:
    """Make *session* the one of this context."""
    _entered.set((*_entered.get(), session))


def leave(session: Bindable) -> None:
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


@contextmanager
def using(session: Bindable) -> Iterator[None]:
    """Make *session* the one of this context for a while."""
    enter(session)
    try:
        yield
    finally:
        leave(session)


def find_session() -> Bindable | None:
    """Return the session that a bare decorator uses here, None when there is none or more than one to choose from."""
    for session in reversed(_entered.get()):
        if session.is_open:
            return session
    candidates = _candidates()
    return candidates[0] if len(candidates) == 1 else None


def no_session(what: str, *, hint: str) -> NoSession:
    """
    Return the error of a tool that needs a session where `find_session` finds none.

    Args:
        what: The tool and what it does.
        hint: How to bind it.

    """
    count = len(_candidates())
    state = f"{count} sessions are open and none was entered here" if count else "no session is open"
    return NoSession(f"{what}, but {state}", hint=f"enter one (async with Session.open(...)), or bind the tool: {hint}")


def _candidates() -> list[Bindable]:
    while True:
        try:
            sessions = list(_open)
        except RuntimeError:
            # Another thread opened or closed a session meanwhile.
            continue
        return [session for session in sessions if session.is_open]
