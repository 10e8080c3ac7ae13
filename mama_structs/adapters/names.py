"""Names that every provider takes, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, Self

import attrs

from mama_structs.errors import UnknownTool
from mama_structs.tools.toolset import hint_at

# What all providers have in common: 64 characters at the most, a letter first, no dash; hosts put prefixes before them.
MAX_WIRE_NAME: Final = 40
_TAIL: Final = 9
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_]")


@attrs.frozen
class WireNames:
    """
    The names of tools as a provider takes them: ``save/decision`` is ``save__decision``.

    A name depends on the tools before it only, so that tools that are added later change none.

    Args:
        by_tool: The name on the wire for each tool's name.
        by_wire: The other way round.
        told: The names on the wire that a hint may name.

    """

    by_tool: Mapping[str, str]
    by_wire: Mapping[str, str]
    told: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str], *, hidden: Iterable[str] = ()) -> Self:
        """
        Give each tool a name of its own.

        Args:
            names: The tools' names, in the order in which they were added.
            hidden: Names of tools that can be called, and of which no model is told; they take no name away.

        """
        shown = tuple(names)
        by_tool: dict[str, str] = {}
        by_wire: dict[str, str] = {}
        for name in (*shown, *hidden):
            plain = wire_name(name)
            wire, number = plain, 1
            while wire in by_wire:
                number += 1
                wire = f"{plain[: MAX_WIRE_NAME - len(str(number)) - 1]}_{number}"
            by_tool[name], by_wire[wire] = wire, name
        return cls(by_tool, by_wire, tuple(by_tool[name] for name in shown))

    def tool(self, wire: str) -> str:
        """
        Return the tool's name for one on the wire; the tool's own name is understood, too.

        Raises:
            UnknownTool: There is no such tool.

        """
        if wire in self.by_wire:
            return self.by_wire[wire]
        if wire in self.by_tool:
            return wire
        raise UnknownTool(wire, hint=hint_at(wire, self.told))

    def said(self, text: str) -> str:
        """
        Return a text for a model with the names on the wire in place of the tools' own.

        Only names of two parts are looked for: others are on the wire as they are, or words like any other.

        Args:
            text: Of ours, such as a description or a hint; never what a memory says.

        """
        own = [name for name in self.by_tool if "/" in name]
        if not own:
            return text
        names = "|".join(map(re.escape, sorted(own, key=len, reverse=True)))
        return re.sub(rf"(?<![\w/-])(?:{names})(?![\w/-])", lambda found: self.by_tool[found[0]], text)


def wire_name(name: str) -> str:
    """Return a name as every provider takes it, if it were the only one."""
    plain = _OTHERS.sub("_", name.replace("/", "__"))
    if not plain[:1].isalpha():
        plain = f"tool_{plain}"
    if len(plain) <= MAX_WIRE_NAME:
        return plain
    # Cut names stay apart by what they were cut from.
    return f"{plain[: MAX_WIRE_NAME - _TAIL]}_{blake2b(name.encode(), digest_size=4).hexdigest()}"
