"""Records: what hosts keep under labels and a key, and what finds it; a session's are `Session.records`."""

from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.types.record import HostRecord, NewRecord, RecordHit

__all__ = ["HostRecord", "NewRecord", "RecordHit", "RecordStore"]
