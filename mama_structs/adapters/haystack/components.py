"""Retriever and tool result store for Haystack; needs the extra ``haystack``."""

from __future__ import annotations

import mimetypes
from typing import Any, Final, Self

from mama_structs._internal import validation as _check
from mama_structs._internal.offload import measure_input
from mama_structs.adapters.haystack.connection import SessionComponent, SessionLocation
from mama_structs.adapters.haystack.document_store import HaystackDocumentStore
from mama_structs.adapters.haystack.documents import Filters
from mama_structs.refs.store.entries import Descriptor

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.types import FilterPolicy, apply_filter_policy
    from haystack.hooks.tool_result_offloading import ToolResultStore
except ImportError as _missing:
    raise ImportError(
        "mama_structs.adapters.haystack needs Haystack: pip install 'mama-structs[haystack]'"
    ) from _missing

_BINARY_MIME_TYPE: Final = "application/octet-stream"


@component
class HaystackRetriever:
    """
    Finds documents of a `HaystackDocumentStore` by vector similarity and keywords.

    The session embeds the query, so that no embedder component is needed.

    Args:
        document_store: The store to search.
        filters: Only documents that match.
        top_k: Maximum number of documents, at least 1.
        filter_policy: Whether the filters of a run replace *filters* or are combined with them.

    Raises:
        InvalidArgument: *top_k* is not an integer of at least 1.

    """

    def __init__(
        self,
        document_store: HaystackDocumentStore,
        *,
        filters: Filters = None,
        top_k: int = 10,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        self.document_store = document_store
        self.filters = filters
        self.top_k: int = _check.check_integer("top_k", top_k, 1)
        self.filter_policy = filter_policy

    def to_dict(self) -> dict[str, Any]:
        """Return the retriever's serialized form for a pipeline file."""
        return default_to_dict(
            self,
            document_store=self.document_store,
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return a retriever from its serialized form."""
        parameters = data["init_parameters"]
        policy = FilterPolicy.from_str(parameters["filter_policy"])
        return default_from_dict(cls, {**data, "init_parameters": {**parameters, "filter_policy": policy}})

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: Filters = None, top_k: int | None = None) -> dict[str, list[Document]]:
        """
        Return the documents that match a query, best first.

        Args:
            query: The text to search for.
            filters: Haystack filters; None for those of the component.
            top_k: The maximum number of documents; None for that of the component.

        """
        return {"documents": self.document_store.retrieve(query, **self._create_search_options(filters, top_k))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: Filters = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """
        Return the documents that match a query, best first.

        Args:
            query: The text to search for.
            filters: Haystack filters; None for those of the component.
            top_k: The maximum number of documents; None for that of the component.

        """
        return {
            "documents": await self.document_store.retrieve_async(query, **self._create_search_options(filters, top_k))
        }

    def _create_search_options(self, filters: Filters, top_k: int | None) -> dict[str, Any]:
        chosen = apply_filter_policy(self.filter_policy, self.filters, filters)
        return {"filters": chosen, "top_k": self.top_k if top_k is None else top_k}


class HaystackToolResultStore(SessionComponent, ToolResultStore):
    """
    Stores long tool results under handles such as ``fd:1``.

    Pass it to Haystack's `ToolResultOffloadHook`.

    A result, text or bytes, is on disk when `write` returns. The session's own tools (``read_fd``, ``search_fd``) can
    read it page by page.

    Args:
        session: A session, or the location of one that is opened at the first use and closed by `close`: a directory,
            a server's URL, or a Secret that contains either.
        namespace: The namespace of a session that is opened here.
        conversation: The conversation of a session that is opened here, to find its results again; None for a new one.

    """

    supports_binary_content = True

    def __init__(
        self, session: SessionLocation, *, namespace: str = "default", conversation: str | None = None
    ) -> None:
        super().__init__(session, namespace=namespace, conversation=conversation)

    def write(self, *, key: str, content: str | bytes) -> str:
        """
        Store a result and return its handle.

        Args:
            key: Haystack's name for it, shown to the model as the source.
            content: Text, or the bytes of an image or file, whose type is guessed from the extension of *key*.

        Raises:
            QuotaExceeded: The conversation's quota is exceeded.
            InvalidArgument: The text has lone surrogates, which cannot be encoded.

        """
        session = self._bridge.session
        mime_type = (mimetypes.guess_type(key)[0] or _BINARY_MIME_TYPE) if isinstance(content, bytes) else None

        async def write() -> str:
            descriptor = await session.refs._change(
                measure_input(content),
                lambda refs: refs._add_any(content, source=key, mime_type=mime_type, origin="tool"),
            )
            await session.flush()
            return descriptor.handle

        return self._bridge.run(write)

    def read(self, reference: str) -> str | bytes:
        """
        Return the complete result that was stored under the handle *reference*.

        Raises:
            InvalidHandle: *reference* is not a handle.
            HandleNotFound: There is no such result.

        """

        async def read() -> str | bytes:
            entry = self._bridge.session.refs.get(reference)
            return entry.data if isinstance(entry, Descriptor) and not entry.is_text else entry.text

        return self._bridge.run(read)

    def to_dict(self) -> dict[str, Any]:
        """
        Return the store's serialized form for a pipeline file.

        Raise `InvalidArgument` for a temporary session, or a URL with a password.
        """
        return default_to_dict(self, **self._serialize_location())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return a store from its serialized form."""
        return default_from_dict(cls, data)
