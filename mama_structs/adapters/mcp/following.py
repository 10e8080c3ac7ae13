"""Whether a client follows changes of the list of tools: decided from what it was told and when it asked."""

from __future__ import annotations

from typing import Final

import attrs

from mama_structs.tools.exposure import Mode

# Seconds that a client has to ask for the list after it was told that the list has changed (DESIGN 7).
LIMIT: Final = 0.5


@attrs.define
class Following:
    """
    What is known of one client.

    No client says that it follows, and the main ones do not: it must have been seen to. Who is taken for a follower
    and is none would never see a hidden tool again.

    Args:
        mode: ``"auto"`` waits until the client is seen to follow, ``"force_static"`` never narrows its list,
            ``"force_dynamic"`` always does.
        owed: Whether the client may hold a list of which nothing is known here, see `is_owed`.

    """

    mode: Mode
    _owed: bool = attrs.field(default=False, kw_only=True)
    _follows: bool = attrs.field(default=False, init=False)
    # The names that the client was listed, None before it asked.
    _held: frozenset[str] | None = attrs.field(default=None, init=False)
    _narrowed: bool = attrs.field(default=False, init=False)
    # When the client was told of a change for which it has not asked since.
    _told: float | None = attrs.field(default=None, init=False)

    @property
    def follows(self) -> bool:
        """Whether the client gets the list for the message at hand."""
        return self.mode == "force_dynamic" or (self.mode == "auto" and self._follows)

    @property
    def held(self) -> frozenset[str] | None:
        """The names that the client was listed last."""
        return self._held

    @property
    def is_narrowed(self) -> bool:
        """Whether tools were left out of the list that the client has."""
        return self._narrowed

    @property
    def is_owed(self) -> bool:
        """
        Whether to tell the client, as soon as it can be told, that the list may have changed.

        So it is where nothing is known of the list that it has, or where that is narrowed and a notice got lost.
        """
        return self._owed and self.mode != "force_static"

    def wanted(self, names: frozenset[str], *, now: float) -> bool:
        """
        Take note of what the client should see, and return whether to tell it that the list has changed.

        Args:
            names: The tools that the client should see.
            now: Seconds on a clock that never steps back.

        """
        if self._told is not None and now - self._told > LIMIT:
            self._follows = False
            self._told = None
        if self.mode == "force_static" or self._held is None or names == self._held:
            self._told = None
            return False
        self._told = now
        return True

    def asked(self, *, now: float) -> bool:
        """
        Take note that the client asks for the list, and return whether it gets the list for the message at hand.

        Args:
            now: As above.

        """
        if self._told is not None:
            self._follows = now - self._told <= LIMIT
            self._told = None
        return self.follows

    def listed(self, names: frozenset[str], *, narrowed: bool = False) -> None:
        """
        Take note of the tools that the client is listed.

        Args:
            names: The tools.
            narrowed: Whether there are others.

        """
        self._held = names
        self._narrowed = narrowed
        self._owed = False

    def telling(self) -> None:
        """Take note that the client is about to be told; what it is owed proves nothing about whether it follows."""
        self._owed = False

    def failed(self) -> None:
        """Take note that the client could not be told."""
        self._follows = False
        self._told = None
        self._owed = self._owed or self._narrowed or self._held is None
