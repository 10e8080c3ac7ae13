"""The seven tools of v1.0, with their parameters and results, on top of today's memories; removed in 2.0."""

from mama_structs.tools.deprecated.catalogue import deprecated_tools
from mama_structs.tools.deprecated.notes import REMOVED_IN, forget_warnings, last_line, note_on

__all__ = ["REMOVED_IN", "deprecated_tools", "forget_warnings", "last_line", "note_on"]
