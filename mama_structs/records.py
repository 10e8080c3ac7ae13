"""Records: JSON values that a host stores under labels and a key (`Session.records`)."""

from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.types.record import HostRecord, NewRecord, RecordHit

__all__ = ["HostRecord", "NewRecord", "RecordHit", "RecordStore"]
