"""
Importers for memories of other programs, whose files they do not change.

`import_from` imports memories of mem0, LangGraph stores, MCP's memory server and basic-memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._internal.lazy_import import attach

if TYPE_CHECKING:
    from mama_structs.importers.dispatch import import_from as import_from
    from mama_structs.importers.shared.import_model import OddItem as OddItem
    from mama_structs.importers.shared.import_report import ImportReport as ImportReport
    from mama_structs.importers.shared.import_report import ItemCount as ItemCount

_NAMES = {"dispatch": "import_from", "shared.import_model": "OddItem", "shared.import_report": "ImportReport ItemCount"}

if not TYPE_CHECKING:  # Hidden from type checkers: with __getattr__ they would accept every misspelt name.
    __all__, __getattr__, __dir__ = attach(__name__, _NAMES)
