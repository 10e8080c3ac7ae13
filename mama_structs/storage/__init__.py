"""The one place that opens diskcache, safely, and the locks beside it."""

from mama_structs.storage._disk import Damaged
from mama_structs.storage.failures import again
from mama_structs.storage.files import sweep as sweep_temporary
from mama_structs.storage.inspection import Finding
from mama_structs.storage.locks import DirectoryLocks
from mama_structs.storage.opening import check_path
from mama_structs.storage.rows import Change, New, Rows, Snapshot
from mama_structs.storage.store import Storage, outcome

__all__ = [
    "Change",
    "Damaged",
    "DirectoryLocks",
    "Finding",
    "New",
    "Rows",
    "Snapshot",
    "Storage",
    "again",
    "check_path",
    "outcome",
    "sweep_temporary",
]
