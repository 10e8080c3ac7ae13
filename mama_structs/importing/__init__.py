"""
Memories of other programs: read from their files as they leave them, and taken over.

`import_from` takes over those of mem0, LangGraph's stores, MCP's memory server and basic-memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._lazy import attach

if TYPE_CHECKING:
    from mama_structs.importing.kinds import import_from as import_from
    from mama_structs.importing.outside import OddItem as OddItem
    from mama_structs.importing.report import ImportReport as ImportReport
    from mama_structs.importing.report import ItemCount as ItemCount

_NAMES = {"kinds": "import_from", "outside": "OddItem", "report": "ImportReport ItemCount"}

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
