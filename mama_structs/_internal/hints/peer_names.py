"""Names from mem0, LangMem, Chroma and similar libraries, mapped to the matching calls of this API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mama_structs._internal.hints.call_hints import CallHints

_SAVE: Final = "save(content)"
_SAVE_OR_PUT: Final = "save(content), or session.records.put(labels, key, value) for a value under a key"
_ERASE_ALL: Final = "erase(where=Filter(...)), or mama_structs.admin.delete_namespace(location, name)"
_OPEN_NAMESPACE: Final = "Session.open(location, namespace=)"
_ADMIN_CALLS: Final[Mapping[str, str]] = {
    **{
        name: f"mama_structs.admin.{name}(session)"
        for name in ("check", "maintain", "prune", "rebuild", "list_namespaces", "list_conversations")
    },
    "backup": "mama_structs.admin.backup(session, path)",
    "copy": "mama_structs.admin.copy(location, target)",
    "reembed": "mama_structs.admin.reembed(session, embedder)",
    **dict.fromkeys(("export_jsonl", "export", "dump"), "mama_structs.admin.export_jsonl(session, path)"),
    "import_jsonl": "mama_structs.admin.import_jsonl(session, path)",
    **{name: f"mama_structs.admin.{name}(location, name)" for name in ("delete_namespace", "delete_conversation")},
    **dict.fromkeys(("namespaces", "collections"), "mama_structs.admin.list_namespaces(session)"),
    "conversations": "mama_structs.admin.list_conversations(session)",
    "restore": "Session.open(path) with the path of a backup, or mama_structs.admin.copy(path, target)",
}

KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("k", "top_k", "topk", "n", "n_results", "num_results", "max_results", "size"), ("limit",)),
    **dict.fromkeys(
        ("user", "user_id", "agent_id", "app_id", "collection", "namespace"), ("namespace", "Session.open(namespace=)")
    ),
    **dict.fromkeys(("run_id", "thread_id", "session_id"), ("conversation", "Session.open(conversation=)")),
    "metadata": ("extra=, tags= or source=", "where=Filter(extra=...)"),
    **dict.fromkeys(("filters", "filter"), ("where=Filter(...)", "predicate")),
    **dict.fromkeys(("types", "memory_type", "memory_types", "kind", "category"), ("type", "where=Filter(type=...)")),
    "after": ("cursor or since", "since", "where=Filter(since=...)", "cursor"),
    **dict.fromkeys(("start", "start_time", "created_after"), ("since", "where=Filter(since=...)", "cursor")),
    **dict.fromkeys(("before", "until", "end", "end_time", "created_before"), ("until", "where=Filter(until=...)")),
    "tags": ("where=Filter(tags=...)",),
    "tag": ("tags", "where=Filter(tags=...)"),
    **dict.fromkeys(
        ("origin", "min_trust", "mentions", "outcome", "created_by", "extra", "source"), ("where=Filter(...)",)
    ),
    **dict.fromkeys(("min_score", "score_threshold", "threshold"), ("min_relevance", "threshold")),
    **dict.fromkeys(("text", "decision", "summary", "data", "document", "memory_text", "value"), ("content", "text")),
    **dict.fromkeys(("id", "memory_id", "ids", "memory_ids"), ("memory", "memories", "handle")),
    **dict.fromkeys(("reason", "rationale", "why"), ("reasoning", "change_reason")),
    **dict.fromkeys(("ttl", "expires", "expires_in"), ("expires_at", "valid_until")),
    **dict.fromkeys(("expires_at", "expiration_date"), ("valid_until",)),
    "valid_until": ("expires_at",),
    **dict.fromkeys(("offset", "page", "page_token", "start_after"), ("cursor",)),
    **dict.fromkeys(("after_key", "last_key"), ("cursor",)),
    **dict.fromkeys(("last_first", "descending", "desc"), ("reverse", "order='oldest'")),
    "history": ("keep_history",),
    "forget": ("erase",),
    **dict.fromkeys(
        ("path", "directory", "db_path", "url", "database", "persist_directory", "persist_path"),
        ("location", "file_path"),
    ),
    **dict.fromkeys(("embedding_function", "embeddings", "embedding", "embed", "index"), ("embedder",)),
    "role": ("session.remember(messages, extract=) for the messages of a conversation",),
    **dict.fromkeys(("files", "root", "output"), ("files_root",)),
    "references": ("reference_options",),
    "exposure": ("tool_selector",),
    "again": ("repeat",),
    **dict.fromkeys(("handle", "ref", "name", "ref_id", "key", "fd"), ("handle", "ref_id")),
    **dict.fromkeys(("trust", "minimum_trust"), ("min_trust", "where=Filter(min_trust=...)")),
    **dict.fromkeys(("mention", "entity", "entity_id"), ("mentions", "where=Filter(mentions=...)")),
    "author": ("origin", "created_by"),
    **dict.fromkeys(("players", "seed"), ("FakeNode.world(players=, seed=)",)),
    "message": ("query",),
    "prompt": ("query",),
}
"""The right arguments by guessed keyword, best first; see `CallHints.keywords`."""

MEMORY_STORE: Final = CallHints(
    constructor="Use Session.open(location).memories.",
    attributes={
        **dict.fromkeys(("add", "store", "create", "insert", "append", "write", "upsert"), _SAVE),
        "put": _SAVE_OR_PUT,
        "remember": "session.remember(messages, extract=) for a conversation, or save(content) for a text",
        "recall": "session.recall(message) for a text for a model, or search(query) for hits",
        **dict.fromkeys(("add_many", "save_all", "add_texts", "add_documents", "batch"), "save_many(items)"),
        **dict.fromkeys(("get_all", "all"), "list(), or iter_all()"),
        **dict.fromkeys(("recent", "latest"), "list(limit=)"),
        **dict.fromkeys(("about", "by_topic"), "list(topic=)"),
        "find": "search(query), or list(topic=)",
        "items": "iter_all()",
        **dict.fromkeys(
            ("query", "retrieve", "similarity_search", "ask", "semantic_search", "lookup"), "search(query)"
        ),
        **dict.fromkeys(("remove", "discard", "pop"), "delete(memory)"),
        "forget": "erase(memory), or delete(memory), which is faster and may leave bytes on disk",
        **dict.fromkeys(("delete_all", "clear", "reset", "purge", "truncate", "drop"), _ERASE_ALL),
        **dict.fromkeys(("correct", "edit", "change", "modify"), "update(memory, content)"),
        "replace": "supersede(memory, content, reasoning=) for a new decision, or update(memory, content) for a text",
        "why": "explain(query, memory)",
        "commit": "session.flush() for texts of refs; a save of a memory is on disk when it returns",
        **dict.fromkeys(("begin", "transaction"), "save_many(items) for several memories"),
        **dict.fromkeys(("for_user", "get_or_create_collection", "create_collection"), _OPEN_NAMESPACE),
        **dict.fromkeys(("evolution", "evolve", "chain"), "history(memory), or history(topic=)"),
        **dict.fromkeys(("connected", "get_connected", "neighbours", "neighbors", "graph"), "traverse(memory)"),
        "links_of": "links(memory)",
        "evidence_of": "evidence(memory)",
        "load_context": "details(memory)",
        **dict.fromkeys(("add_link", "connect", "relate"), "link(from_memory, to_memory, relationship)"),
        **dict.fromkeys(("list_decisions", "decisions"), "list(type='decision')"),
        **dict.fromkeys(("list_insights", "insights"), "list(type='insight')"),
        **dict.fromkeys(("list_contexts", "contexts"), "list(type='context')"),
        **dict.fromkeys(("list_checkpoints", "checkpoints"), "list(type='checkpoint')"),
        "add_decision": "save_decision(content, topic=, reasoning=)",
        "save_content": _SAVE,
        "reads": "read_namespaces",
        "records": "session.records",
        **_ADMIN_CALLS,
    },
    prefixes={"save_": _SAVE, "add_": _SAVE, "store_": _SAVE},
    keywords=KEYWORDS,
    operators={"__iter__": "list() or iter_all()", "__len__": "count()"},
)

RECORD_STORE: Final = CallHints(
    attributes={
        **dict.fromkeys(("save", "set", "add", "insert", "create", "store", "upsert"), "put(labels, key, value)"),
        **dict.fromkeys(("get_all", "all", "items", "keys", "values", "find"), "list(labels)"),
        **dict.fromkeys(("remove", "forget", "discard"), "delete(labels, key)"),
        **dict.fromkeys(("clear", "reset", "purge"), "delete_all(labels)"),
        "query": "search(query, labels)",
        "sweep": "delete_expired()",
        "namespaces": "labels()",
        **dict.fromkeys(("update", "replace"), "put(labels, key, value)"),
    },
    keywords={
        **{name: tuple(one for one in calls if "Filter(" not in one) for name, calls in KEYWORDS.items()},
        **dict.fromkeys(("filters", "filter"), ("where",)),
    },
    operators={"__iter__": "list()", "__len__": "list() and the length of its result"},
)

REF_STORE: Final = CallHints(
    attributes={
        **dict.fromkeys(("save", "store", "create", "insert"), "add(text), or put(ref_id, text) to choose the name"),
        "write": "to_file(handle, file_path) for a file, or put(ref_id, text) for a ref",
        **dict.fromkeys(("parse", "parse_refs", "ingest", "feed", "collect"), "observe(message)"),
        **dict.fromkeys(("export", "save_to_file", "write_file", "download", "dump"), "to_file(handle, file_path)"),
        **dict.fromkeys(("load", "open", "fetch"), "read(handle), or get(handle)"),
        **dict.fromkeys(("remove", "forget", "erase", "discard"), "delete(handle)"),
        **dict.fromkeys(("update", "replace", "modify"), "edit(ref_id, old, new), or put(ref_id, text)"),
        **dict.fromkeys(("find", "grep", "query"), "search(handle, query)"),
        **dict.fromkeys(("all", "get_all", "refs", "list_refs", "keys"), "list(), or list_descriptors()"),
        **dict.fromkeys(("descriptors", "list_fds"), "list_descriptors()"),
        "adopt": "copy_from(child, ref_id)",
        "suggest": "suggest_refs(text)",
        **dict.fromkeys(("prompt", "instructions"), "system_prompt()"),
        **dict.fromkeys(("files", "root"), "files_root"),
        **dict.fromkeys(("truncate", "shorten"), "wrap(result)"),
        "history": "versions(ref_id)",
    },
    keywords=KEYWORDS,
    methods={
        "put": "To store a text without a name, use add(text).",
        "read": "It reads one handle, such as ref:app.py or fd:1.",
    },
)

SESSION: Final = CallHints(
    attributes={
        **dict.fromkeys(("save", "add", "store", "insert", "create", "write"), "session.memories.save(content)"),
        "put": f"session.memories.{_SAVE_OR_PUT}",
        **{
            name: f"session.memories.{call}"
            for name, call in {
                "save_decision": "save_decision(content, topic=, reasoning=)",
                "save_insight": "save_insight(content)",
                "save_context": "save_context(content)",
                "save_checkpoint": "save_checkpoint(content)",
                "save_many": "save_many(items)",
                "search": "search(query)",
                "query": "search(query)",
                "list": "list()",
                "get_all": "list()",
                "get": "get(memory)",
                "supersede": "supersede(memory, content, reasoning=)",
                "history": "history(memory), or session.memories.history(topic=)",
                "why": "explain(query, memory)",
                **dict.fromkeys(("begin", "transaction"), "save_many(items) for several memories"),
                "update": "update(memory, content)",
                "delete": "delete(memory)",
                "forget": "erase(memory)",
                "delete_all": _ERASE_ALL,
                "clear": _ERASE_ALL,
                "reset": _ERASE_ALL,
            }.items()
        },
        **dict.fromkeys(("memory", "mem", "memory_store"), "session.memories"),
        **dict.fromkeys(("ref", "descriptors", "files"), "session.refs"),
        **dict.fromkeys(("read", "read_fd"), "session.refs.read(handle)"),
        "to_file": "session.refs.to_file(handle, file_path)",
        **dict.fromkeys(("parse", "extract", "ingest"), "session.observe(message)"),
        "record": "session.records",
        **dict.fromkeys(("run", "invoke", "call_tool", "execute"), "session.call(tool_name, arguments)"),
        "references": "session.with_references to decorate a tool, or session.resolver to fetch entities",
        "exposed": "exposed_tools",
        "allowed_for": "tool_names_for(message)",
        "resolved": "resolve_arguments(tool_name, arguments)",
        "is_recalled": "was_recalled(text)",
        "warm_up": "preload()",
        "wire_names": "session.tools.wire_names",
        **dict.fromkeys(("prompt", "instructions"), "system_prompt()"),
        **_ADMIN_CALLS,
        **dict.fromkeys(("add_tool", "register", "register_tool", "tool"), "session.tools.add(function)"),
        "commit": "session.flush() for texts of refs; a save of a memory is on disk when it returns",
        "connect": "Session.open(location)",
        **dict.fromkeys(("for_user", "get_or_create_collection", "create_collection"), _OPEN_NAMESPACE),
        **dict.fromkeys(("user_id", "user"), "session.namespace"),
    },
    prefixes=dict.fromkeys(("save_", "store_"), "session.memories.save(content)"),
    keywords=KEYWORDS,
    methods={
        "remember": "Give a function that passes a prompt to your model, or use session.memories.save(content).",
    },
    unknown_keywords={"call": "Give the arguments of the tool as a dict: call(tool_name, {...})."},
    constructor="Use Session.open(location).",
)

MEMORY: Final = CallHints(
    constructor="Stores return memories. Use Session.open(location) and session.memories.save(content)."
)

FILTER: Final = CallHints(keywords=KEYWORDS, has_constructor=True)

SOURCE: Final = CallHints(
    keywords={
        **KEYWORDS,
        **dict.fromkeys(
            ("pattern", "type_of", "fetch_many", "max_batch", "cache"),
            ("Source(IdScheme(name=, pattern=, types=), fetch=, fetch_many=)",),
        ),
        "name": ("type",),
        **dict.fromkeys(("function", "load", "loader", "get"), ("fetch",)),
        **dict.fromkeys(("field", "keys", "columns"), ("fields",)),
    },
    has_constructor=True,
)

MEM0_MEMORY: Final = CallHints(
    attributes={
        "chat": "search(query) and a call of your model; these methods call no model",
        **dict.fromkeys(("remove", "forget"), "delete(memory_id)"),
        **dict.fromkeys(("list", "all"), "get_all(filters=)"),
    },
    methods={"__init__": "Open one: Memory(mama_structs.sync.Session.open(location))."},
    has_constructor=True,
)

LANGGRAPH_STORE: Final = CallHints(
    attributes={"setup": "the store without it; the session creates its tables"},
    keywords={"index": ("fields=, and Session.open(embedder=)",)},
    has_constructor=True,
)

TOOL_SET: Final = CallHints(
    attributes=dict.fromkeys(("register", "append", "tool", "register_tool", "add_tool"), "add(function)"),
    operators={
        "__call__": "session.tools without a call, session.tools_for(message), or the tools(session) of an adapter"
    },
)

FAKE_NODE: Final = CallHints(
    keywords=KEYWORDS,
    has_constructor=True,
    operators=dict.fromkeys(
        ("__enter__", "__exit__"), "with FakeNode.world().in_thread() as node in code without async"
    ),
)

ADMIN: Final = CallHints(
    attributes={
        **dict.fromkeys(("export", "dump", "save"), "export_jsonl(store, path), or backup(store, path)"),
        **dict.fromkeys(("import_", "load"), "import_jsonl(store, path)"),
        "restore": "Session.open(path) with the path of a backup, or copy(path, target)",
        **dict.fromkeys(("namespaces", "collections", "users", "tenants"), "list_namespaces(store)"),
        **dict.fromkeys(("conversations", "threads"), "list_conversations(store)"),
        **dict.fromkeys(("drop_namespace", "erase_namespace", "delete_user"), "delete_namespace(store, name)"),
        **dict.fromkeys(("verify", "validate", "fsck", "health"), "check(store)"),
        **dict.fromkeys(("vacuum", "compact", "cleanup", "optimize"), "maintain(store)"),
        **dict.fromkeys(("reindex", "repair"), "rebuild(store)"),
        **dict.fromkeys(("stats", "count"), "session.stats(), or session.memories.count()"),
        **dict.fromkeys(("migrate", "clone"), "copy(source, target)"),
        "snapshot": "backup(store, path)",
    }
)

VALUE_CALLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("supersedes", "predecessor", "successor", "superseded"),
        "session.memories.history(memory). A hit has superseded_by",
    ),
    **dict.fromkeys(("links", "connected"), "session.memories.links(memory)"),
    "history": "session.memories.history(memory)",
    "update": "session.memories.update(memory, content)",
    "delete": "session.memories.delete(memory)",
}
"""The right calls by guessed attribute of a memory or hit."""

RESULT_ATTRIBUTES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cursor", "next", "next_page", "next_page_token", "has_more"), "next_cursor"),
    **dict.fromkeys(("items", "results", "memories", "hits", "data"), "the list itself"),
    **dict.fromkeys(("total", "total_count"), "session.memories.count()"),
    **dict.fromkeys(("to_dict", "model_dump", "dict", "as_dict"), "to_dicts()"),
    **dict.fromkeys(("json", "model_dump_json"), "to_json()"),
    **dict.fromkeys(("to_pandas", "to_dataframe", "df"), "to_frame()"),
}
"""The right attributes by guessed attribute of a list of results."""

VALUE_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("text", "body", "value", "data", "summary", "decision", "page_content"), ("content", "text")),
    "memory": ("content",),
    **dict.fromkeys(("memory_id", "uuid", "key"), ("id",)),
    **dict.fromkeys(("memory_type", "kind", "category"), ("type",)),
    **dict.fromkeys(("similarity", "distance", "rank"), ("relevance",)),
    **dict.fromkeys(("created", "date", "timestamp", "time"), ("created_at",)),
    **dict.fromkeys(("updated", "modified", "modified_at"), ("updated_at",)),
    **dict.fromkeys(("expires_at", "expires"), ("valid_until",)),
    **dict.fromkeys(("user_id", "user"), ("namespace",)),
    **dict.fromkeys(("dict", "model_dump", "as_dict", "asdict"), ("to_dict",)),
    **dict.fromkeys(("json", "model_dump_json", "as_json"), ("to_json",)),
    **dict.fromkeys(("name", "path", "fd", "ref"), ("handle", "id")),
    "content": ("text",),
}
"""The right attributes of a value by guessed name, best first."""

MODULE_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("parse_refs", "extract_refs"), "session.observe(message), or RefParser"),
    **dict.fromkeys(
        ("Client", "MemoryClient", "AsyncMemory", "AsyncMemoryClient", "Store", "Memories", "Agent", "MamaStructs"),
        "Session.open(location)",
    ),
    **dict.fromkeys(("connect", "open", "init"), "Session.open(location)"),
    **dict.fromkeys(("SyncSession", "SyncClient"), "mama_structs.sync.Session"),
    **dict.fromkeys(("save", "add", "remember"), "session.memories.save(content)"),
    **dict.fromkeys(("search", "query"), "session.memories.search(query)"),
}
"""The right calls by name that callers guess in the module ``mama_structs``."""
