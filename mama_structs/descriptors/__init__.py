"""
Refs and descriptors: what a model marked in its answers, and what was too large to show.

Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_structs._lazy import attach

if TYPE_CHECKING:
    from mama_structs.descriptors.decorator import with_descriptors as with_descriptors
    from mama_structs.descriptors.entries import Descriptor as Descriptor
    from mama_structs.descriptors.entries import Ref as Ref
    from mama_structs.descriptors.entries import Usage as Usage
    from mama_structs.descriptors.export import FileResult as FileResult
    from mama_structs.descriptors.kinds import Suggestion as Suggestion
    from mama_structs.descriptors.parser import Diagnostic as Diagnostic
    from mama_structs.descriptors.parser import RefEnd as RefEnd
    from mama_structs.descriptors.parser import RefParser as RefParser
    from mama_structs.descriptors.parser import RefStart as RefStart
    from mama_structs.descriptors.parser import RefText as RefText
    from mama_structs.descriptors.parser import Text as Text
    from mama_structs.descriptors.search import ContextLine as ContextLine
    from mama_structs.descriptors.search import Match as Match
    from mama_structs.descriptors.search import SearchResult as SearchResult
    from mama_structs.descriptors.store import Ingested as Ingested
    from mama_structs.descriptors.store import RefStore as RefStore
    from mama_structs.descriptors.store import RefStream as RefStream
    from mama_structs.descriptors.text import Content as Content
    from mama_structs.descriptors.text import Excerpt as Excerpt

_SOURCES = {
    "Content": "mama_structs.descriptors.text",
    "ContextLine": "mama_structs.descriptors.search",
    "Descriptor": "mama_structs.descriptors.entries",
    "Diagnostic": "mama_structs.descriptors.parser",
    "Excerpt": "mama_structs.descriptors.text",
    "FileResult": "mama_structs.descriptors.export",
    "Ingested": "mama_structs.descriptors.store",
    "Match": "mama_structs.descriptors.search",
    "Ref": "mama_structs.descriptors.entries",
    "RefEnd": "mama_structs.descriptors.parser",
    "RefParser": "mama_structs.descriptors.parser",
    "RefStart": "mama_structs.descriptors.parser",
    "RefStore": "mama_structs.descriptors.store",
    "RefStream": "mama_structs.descriptors.store",
    "RefText": "mama_structs.descriptors.parser",
    "SearchResult": "mama_structs.descriptors.search",
    "Suggestion": "mama_structs.descriptors.kinds",
    "Text": "mama_structs.descriptors.parser",
    "Usage": "mama_structs.descriptors.entries",
    "with_descriptors": "mama_structs.descriptors.decorator",
}

__all__ = [
    "Content",
    "ContextLine",
    "Descriptor",
    "Diagnostic",
    "Excerpt",
    "FileResult",
    "Ingested",
    "Match",
    "Ref",
    "RefEnd",
    "RefParser",
    "RefStart",
    "RefStore",
    "RefStream",
    "RefText",
    "SearchResult",
    "Suggestion",
    "Text",
    "Usage",
    "with_descriptors",
]

if not TYPE_CHECKING:  # A type checker that sees __getattr__ lets every misspelt name pass.
    __getattr__, __dir__ = attach(__name__, _SOURCES)
