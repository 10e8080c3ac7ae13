"""
Values, protocols and services that the methods of `mama_structs` return or accept, for annotations and tests.

The most frequent ones, such as `Memory`, `Hit` and `Filter`, are in `mama_structs` itself. All public values have
``to_dict()`` and ``to_json()``.
"""

from __future__ import annotations

from mama_structs._internal.validation import UNSET, TimeInput, Unset
from mama_structs.memory.embedding.protocol import Calibration
from mama_structs.memory.graph.plot import MemoryPlots
from mama_structs.memory.graph.results import (
    ErasureReport,
    Evidence,
    Explanation,
    JsonlImport,
    LinkLike,
    MemoryDetails,
    MemoryLike,
    Page,
    RelationshipCount,
    Results,
    SimilarMemory,
    TraversedMemory,
)
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.save.conflict_records import MemoryConflict
from mama_structs.memory.types.filters import TypeCondition
from mama_structs.memory.types.judge import Judge
from mama_structs.memory.types.model import (
    CheckpointMetadata,
    ContextMetadata,
    CreatedBy,
    DecisionMetadata,
    InsightMetadata,
    LinkMetadata,
    MaintenanceReport,
    Origin,
    OutcomeChange,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    RelatedMemory,
    SaveWarnings,
)
from mama_structs.memory.types.namespace_erasure import NamespaceErasure
from mama_structs.memory.types.record import NewRecord, Record, RecordHit
from mama_structs.memory.types.reports import CopyReport, ExtractionResult, NamespaceCopy, RejectedMemory
from mama_structs.memory.types.reranker import Reranker
from mama_structs.recall import Conflict, LeftOut, RecallLine
from mama_structs.references.matches import IdMatch
from mama_structs.references.results import ResolverStats
from mama_structs.refs.conversations.conversation_info import ConversationInfo
from mama_structs.refs.markup.content_types import Suggestion
from mama_structs.refs.markup.parser import Diagnostic, PlainText, RefEnd, RefStart, RefText
from mama_structs.refs.store.entries import HandleLike, Usage
from mama_structs.refs.store.export import FileResult
from mama_structs.refs.store.ref_collector import RefStream
from mama_structs.refs.store.text import Content, Excerpt
from mama_structs.refs.store.text_search import ContextLine, Match, SearchResult
from mama_structs.session.session import SessionStream
from mama_structs.session.ui_server import UiServer
from mama_structs.storage.sqlite_errors import CheckReport, Issue
from mama_structs.tools.exposed_tools import ExposedToolNames, ExposedTools
from mama_structs.tools.exposure import Cue, SelectionRule, ToolSelection
from mama_structs.tools.pass_by_reference import ResolvedArguments
from mama_structs.tools.tool import ToolAnnotations
from mama_structs.tools.wire_names import WireNames

__all__ = [
    "UNSET",
    "Calibration",
    "CheckReport",
    "CheckpointMetadata",
    "Conflict",
    "Content",
    "ContextLine",
    "ContextMetadata",
    "ConversationInfo",
    "CopyReport",
    "CreatedBy",
    "Cue",
    "DecisionMetadata",
    "Diagnostic",
    "ErasureReport",
    "Evidence",
    "Excerpt",
    "Explanation",
    "ExposedToolNames",
    "ExposedTools",
    "ExtractionResult",
    "FileResult",
    "HandleLike",
    "IdMatch",
    "InsightMetadata",
    "Issue",
    "JsonlImport",
    "Judge",
    "LeftOut",
    "LinkLike",
    "LinkMetadata",
    "MaintenanceReport",
    "Match",
    "MemoryConflict",
    "MemoryDetails",
    "MemoryLike",
    "MemoryPlots",
    "NamespaceCopy",
    "NamespaceErasure",
    "NewRecord",
    "Origin",
    "OutcomeChange",
    "Page",
    "PlainText",
    "PreviousText",
    "PreviousValue",
    "RecallLine",
    "Record",
    "RecordHit",
    "RecordMetadata",
    "RecordStore",
    "RefEnd",
    "RefStart",
    "RefStream",
    "RefText",
    "RejectedMemory",
    "RelatedMemory",
    "RelationshipCount",
    "Reranker",
    "ResolvedArguments",
    "ResolverStats",
    "Results",
    "SaveWarnings",
    "SearchResult",
    "SelectionRule",
    "SessionStream",
    "SimilarMemory",
    "Suggestion",
    "TimeInput",
    "ToolAnnotations",
    "ToolSelection",
    "TraversedMemory",
    "TypeCondition",
    "UiServer",
    "Unset",
    "Usage",
    "WireNames",
]
