"""Async functions as tools for a model: schemas from signatures, checked arguments, and which of them a model sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._lazy import attach

if TYPE_CHECKING:
    from mama_structs._plain import to_jsonable as to_jsonable
    from mama_structs.tools.cues import DEFAULT_CONTEXTS as DEFAULT_CONTEXTS
    from mama_structs.tools.cues import OTHER as OTHER
    from mama_structs.tools.cues import ContextRule as ContextRule
    from mama_structs.tools.cues import Cue as Cue
    from mama_structs.tools.cues_default import DEFAULT_CUES as DEFAULT_CUES
    from mama_structs.tools.exposed import Exposed as Exposed
    from mama_structs.tools.exposed import ExposedTools as ExposedTools
    from mama_structs.tools.exposure import MEMORY_TOOLS as MEMORY_TOOLS
    from mama_structs.tools.exposure import Context as Context
    from mama_structs.tools.exposure import Exposure as Exposure
    from mama_structs.tools.tool import Tool as Tool
    from mama_structs.tools.tool import ToolAnnotations as ToolAnnotations
    from mama_structs.tools.toolset import ToolSet as ToolSet

_SOURCES = {
    "Context": "mama_structs.tools.exposure",
    "ContextRule": "mama_structs.tools.cues",
    "Cue": "mama_structs.tools.cues",
    "DEFAULT_CONTEXTS": "mama_structs.tools.cues",
    "DEFAULT_CUES": "mama_structs.tools.cues_default",
    "Exposed": "mama_structs.tools.exposed",
    "ExposedTools": "mama_structs.tools.exposed",
    "Exposure": "mama_structs.tools.exposure",
    "MEMORY_TOOLS": "mama_structs.tools.exposure",
    "OTHER": "mama_structs.tools.cues",
    "Tool": "mama_structs.tools.tool",
    "ToolAnnotations": "mama_structs.tools.tool",
    "ToolSet": "mama_structs.tools.toolset",
    "to_jsonable": "mama_structs._plain",
}

__all__ = [
    "DEFAULT_CONTEXTS",
    "DEFAULT_CUES",
    "MEMORY_TOOLS",
    "OTHER",
    "Context",
    "ContextRule",
    "Cue",
    "Exposed",
    "ExposedTools",
    "Exposure",
    "Tool",
    "ToolAnnotations",
    "ToolSet",
    "to_jsonable",
]

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __getattr__, __dir__ = attach(__name__, _SOURCES)
