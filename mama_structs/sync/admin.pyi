"""Types of `mama_structs.sync.admin`; written by ``scripts/sync_stub.py``, never by hand."""

from mama_structs._internal.validation import TimeInput
from mama_structs.admin import Progress
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.graph.results import JsonlImport
from mama_structs.memory.types.model import MaintenanceReport
from mama_structs.memory.types.namespace_erasure import NamespaceErasure
from mama_structs.memory.types.reports import CopyReport
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.storage.sqlite_errors import CheckReport
from mama_structs.sync import MemoryStore, Session
from pathlib import Path
import os

__all__ = ["backup", "check", "copy", "delete_conversation", "delete_namespace", "export_jsonl", "import_jsonl",
    "list_conversations", "list_namespaces", "maintain", "prune", "rebuild", "reembed"]

def backup(store: str | os.PathLike[str] | Session, path: str | os.PathLike[str], *,
    progress: Progress | None = None) -> Path: ...

def check(store: str | os.PathLike[str] | Session | MemoryStore, *, namespace: str | None = None,
    progress: Progress | None = None) -> CheckReport: ...

def copy(source: str | os.PathLike[str], target: str | os.PathLike[str], *, namespace: str | None = None,
    progress: Progress | None = None) -> CopyReport: ...

def delete_conversation(store: str | os.PathLike[str] | Session, name: str, *,
    namespace: str | None = None) -> None: ...

def delete_namespace(store: str | os.PathLike[str] | Session, name: str, *,
    progress: Progress | None = None) -> NamespaceErasure: ...

def export_jsonl(store: str | os.PathLike[str] | Session | MemoryStore, path: str | os.PathLike[str], *,
    namespace: str | None = None, progress: Progress | None = None) -> int: ...

def import_jsonl(store: str | os.PathLike[str] | Session | MemoryStore, path: str | os.PathLike[str], *,
    namespace: str | None = None, progress: Progress | None = None) -> JsonlImport: ...

def list_conversations(store: str | os.PathLike[str] | Session, *,
    namespace: str | None = None) -> tuple[ConversationInfo, ...]: ...

def list_namespaces(store: str | os.PathLike[str] | Session) -> tuple[str, ...]: ...

def maintain(store: str | os.PathLike[str] | Session | MemoryStore, *,
    namespace: str | None = None) -> MaintenanceReport: ...

def prune(store: str | os.PathLike[str] | Session | MemoryStore, *, namespace: str | None = None,
    now: TimeInput | None = None) -> int: ...

def rebuild(store: str | os.PathLike[str] | Session | MemoryStore, *, namespace: str | None = None,
    progress: Progress | None = None) -> list[str]: ...

def reembed(store: str | os.PathLike[str] | Session | MemoryStore, embedder: Embedder, *, namespace: str | None = None,
    progress: Progress | None = None) -> int: ...
