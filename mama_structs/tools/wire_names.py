"""The names of tools: ours, those of v1.0, and each as every provider takes it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Self

import attrs

from mama_structs.errors import InvalidSetting, UnknownTool, shown

# The memory tools with their titles for people: the only tools that are ever hidden, by their whole names, since a
# host's own `save/file` is none of them.
MEMORY_TOOLS: Final[Mapping[str, str]] = {
    "save/decision": "Save a decision",
    "save/checkpoint": "Save a checkpoint",
    "save/insight": "Save an insight",
    "load/checkpoint": "Load the last checkpoint",
    "load/context": "Load a memory with its context",
    "search/by_topic": "Search by topic",
    "search/by_context": "Search by question",
    "search/recent": "List recent memories",
    "evolve/outcome": "Say how a decision turned out",
    "evolve/supersede": "Replace a decision",
    "evolve/correct": "Correct a memory",
    "evolve/forget": "Forget memories",
}
# A name of v1.0 is seen whenever the tool that took its place is.
SUCCESSORS: Final[Mapping[str, str]] = {
    "save_decision": "save/decision",
    "recall_decision": "search/by_topic",
    "suggest_decision": "search/by_context",
    "list_decisions": "search/recent",
    "update_outcome": "evolve/outcome",
    "save_checkpoint": "save/checkpoint",
    "load_checkpoint": "load/checkpoint",
}
REMOVED_IN: Final = "2.0"

# What all providers have in common: 64 characters at the most, a letter first, no dash; hosts put prefixes before them.
MAX_WIRE_NAME: Final = 40
_TAIL: Final = 9
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_]")
_MAX_NAMED: Final = 10
_CHAIN: Final = "structs_"


def in_profile(profile: str | tuple[str, ...], names: Sequence[str]) -> frozenset[str]:
    """Return which of the ready-made tools there are to be, by ``settings.tools.profile``."""
    if profile == "all":
        return frozenset(names)
    if profile == "memory":
        return frozenset(name for name in names if name in MEMORY_TOOLS or name in SUCCESSORS)
    for name in profile:
        if name not in names:
            hint = "ToolSettings(forget=True) allows it" if name == "evolve/forget" else hint_at(name, names)
            if SUCCESSORS.get(name) in names:
                hint = f"did you mean {SUCCESSORS[name]}? ToolSettings(deprecated=True) has the tools of v1.0, too"
            raise InvalidSetting(f"profile names {shown(name)}, and there is no such tool", name="profile", hint=hint)
    return frozenset(profile)


def note_on(name: str) -> str:
    """Return what each result of a tool of v1.0 says."""
    return f"use {SUCCESSORS[name]}; removed in {REMOVED_IN}"


def last_line(name: str) -> str:
    """Return what the last line of each text of a tool of v1.0 says; adapters look for it."""
    return f"Deprecated: {note_on(name)}"


def hint_at(name: object, names: Sequence[str]) -> str:
    """Say which tools a model may have meant by a name that none of *names* is."""
    if str(name).startswith(_CHAIN) and not any(one.startswith(_CHAIN) for one in names):
        return "the session asks no node of the chain: open it with structs=URL for the tools that do"
    if name == "fd_to_file":
        return "the host named no directory for files: Session.open(files=...)"
    near = difflib.get_close_matches(str(name), names, n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    rest = len(names) - _MAX_NAMED
    return f"there are: {', '.join(names[:_MAX_NAMED]) or 'none'}{f', and {rest} more' if rest > 0 else ''}"


@attrs.frozen
class WireNames:
    """The names of tools as a provider takes them: ``save/decision`` is ``save__decision``."""

    by_tool: Mapping[str, str]
    by_wire: Mapping[str, str]
    # The names on the wire that a hint may name.
    told: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str], *, hidden: Iterable[str] = ()) -> Self:
        """Give each tool a name of its own; *hidden* ones can be called, are in no hint, and take none away."""
        # A name depends on the tools before it only, so that tools that are added later change none.
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
        """Return the tool's name for one on the wire or its own; raise `UnknownTool` where there is none."""
        if wire in self.by_wire:
            return self.by_wire[wire]
        if wire in self.by_tool:
            return wire
        raise UnknownTool(wire, hint=hint_at(wire, self.told))

    def said(self, text: str) -> str:
        """Return a text of ours (never what a memory says) with the names on the wire in place of the tools' own."""
        # Others than those of two parts are on the wire as they are, or words like any other.
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
