"""Names of the built-in tools, successors of the v1.0 tools, and wire names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Self

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.errors import InvalidSetting, UnknownTool, repr_short

# Memory tools and their display titles. Only tools with exactly these names may be hidden, not a host's `save/file`.
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
# Maps each v1.0 tool to its successor. The v1.0 tool is visible exactly if its successor is visible.
DEPRECATED_SUCCESSORS: Final[Mapping[str, str]] = {
    "save_decision": "save/decision",
    "recall_decision": "search/by_topic",
    "suggest_decision": "search/by_context",
    "list_decisions": "search/recent",
    "update_outcome": "evolve/outcome",
    "save_checkpoint": "save/checkpoint",
    "load_checkpoint": "load/checkpoint",
}
REMOVED_IN: Final = "2.0"

# All providers accept names of up to 64 characters that start with a letter and contain no dashes.
# The names are limited to fewer characters, because hosts add prefixes.
MAX_WIRE_NAME_CHARS: Final = 40
HASH_SUFFIX_CHARS: Final = 9
INVALID_CHAR_PATTERN: Final = re.compile(r"[^A-Za-z0-9_]")
MAX_HINT_NAMES: Final = 10
CHAIN_PREFIX: Final = "structs_"


def select_profile(profile: str | tuple[str, ...], names: Sequence[str]) -> frozenset[str]:
    """Return the names of the built-in tools in ``settings.tools.profile``."""
    if profile == "all":
        return frozenset(names)
    if profile == "memory":
        return frozenset(name for name in names if name in MEMORY_TOOLS or name in DEPRECATED_SUCCESSORS)
    for name in profile:
        if name not in names:
            hint = "ToolSettings(forget=True) allows it" if name == "evolve/forget" else make_name_hint(name, names)
            if DEPRECATED_SUCCESSORS.get(name) in names:
                successor = DEPRECATED_SUCCESSORS[name]
                hint = f"did you mean {successor}? ToolSettings(deprecated=True) has the tools of v1.0, too"
            raise InvalidSetting(
                f"profile names {repr_short(name)}, and there is no such tool", name="profile", hint=hint
            )
    return frozenset(profile)


def get_deprecation_note(name: str) -> str:
    """Return the note that a v1.0 tool adds to its results."""
    return f"use {DEPRECATED_SUCCESSORS[name]}; removed in {REMOVED_IN}"


def get_deprecation_line(name: str) -> str:
    """
    Return the last line of a v1.0 tool's text results.

    Adapters recognize it by this exact text.
    """
    return f"Deprecated: {get_deprecation_note(name)}"


def make_name_hint(name: object, names: Sequence[str]) -> str:
    """Return a hint for an unknown tool name, with similar names or the existing *names*."""
    if str(name).startswith(CHAIN_PREFIX) and not any(one.startswith(CHAIN_PREFIX) for one in names):
        return "the session asks no node of the chain: open it with structs=URL for the tools that do"
    if name == "fd_to_file":
        return "the host named no directory for files: Session.open(files_root=...)"
    similar_names = difflib.get_close_matches(str(name), names, n=3)
    if similar_names:
        return f"did you mean {' or '.join(similar_names)}?"
    rest = len(names) - MAX_HINT_NAMES
    return f"there are: {', '.join(names[:MAX_HINT_NAMES]) or 'none'}{f', and {rest} more' if rest > 0 else ''}"


@attrs.frozen
class WireNames(JsonMixin):
    """Two-way mapping of tool names to wire names, such as ``save/decision`` to ``save__decision``."""

    by_tool: Mapping[str, str]
    by_wire: Mapping[str, str]
    # Wire names of the visible tools, which are the only names that hints may suggest.
    _visible: tuple[str, ...]

    @classmethod
    def _from_names(cls, names: Iterable[str], *, hidden: Iterable[str] = ()) -> Self:
        """
        Assign a unique wire name to each tool.

        *hidden* tools come last and are never suggested.
        """
        # A wire name depends only on earlier tools, so adding a tool does not change the existing names.
        visible_names = tuple(names)
        by_tool: dict[str, str] = {}
        by_wire: dict[str, str] = {}
        for name in (*visible_names, *hidden):
            plain = make_wire_name(name)
            wire, number = plain, 1
            while wire in by_wire:
                number += 1
                wire = f"{plain[: MAX_WIRE_NAME_CHARS - len(str(number)) - 1]}_{number}"
            by_tool[name], by_wire[wire] = wire, name
        return cls(by_tool, by_wire, tuple(by_tool[name] for name in visible_names))

    def _tool(self, wire: str) -> str:
        """Return the tool name for a wire name or tool name, or raise `UnknownTool`."""
        if wire in self.by_wire:
            return self.by_wire[wire]
        if wire in self.by_tool:
            return wire
        raise UnknownTool(wire, hint=make_name_hint(wire, self._visible))

    def _replace_tool_names(self, text: str) -> str:
        """Replace the tool names in a text with wire names. The text must not contain stored data."""
        # Skip names without a slash, because they equal their wire name or could be ordinary words.
        own = [name for name in self.by_tool if "/" in name]
        if not own:
            return text
        names = "|".join(map(re.escape, sorted(own, key=len, reverse=True)))
        return re.sub(rf"(?<![\w/-])(?:{names})(?![\w/-])", lambda found: self.by_tool[found[0]], text)


def make_wire_name(name: str) -> str:
    """Return the wire name of a tool, without resolving conflicts with other tools."""
    plain = INVALID_CHAR_PATTERN.sub("_", name.replace("/", "__"))
    if not plain[:1].isalpha():
        plain = f"tool_{plain}"
    if len(plain) <= MAX_WIRE_NAME_CHARS:
        return plain
    # A hash of the full name keeps truncated names unique.
    return f"{plain[: MAX_WIRE_NAME_CHARS - HASH_SUFFIX_CHARS]}_{blake2b(name.encode(), digest_size=4).hexdigest()}"
