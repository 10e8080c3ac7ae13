"""Names of the coding agents that ``mama-structs init`` connects."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

AgentName: TypeAlias = Literal["claude-code", "codex", "cursor"]
AGENTS: Final[tuple[AgentName, ...]] = ("claude-code", "codex", "cursor")
