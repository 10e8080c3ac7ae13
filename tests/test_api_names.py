"""
The public names of the package match the table of the API note.

The note is in ``shared/`` next to the repository. Without it, the tests of this module are skipped. `EXTRA` and
`ABSENT` list all differences, each with its reason.
"""

import csv
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

import mama_structs
from mama_structs import Filter, MemoryStore, Session, sync
from mama_structs import types as public_types
from mama_structs._internal.validation import UNSET
from mama_structs.errors import MamaStructsError

SHARED = Path(mama_structs.__file__).parents[2] / "shared"
TABLE = SHARED / "tools" / "api_names.tsv"
NOTE = SHARED / "API.md"
needs_note = pytest.mark.skipif(not TABLE.exists() or not NOTE.exists(), reason=f"{SHARED} has no API note")

# Modules of the table, mapped to their new names. FACADES contain the classes of all other modules.
MODULES = {
    "mama_structs.adapters.embedders": "mama_structs.embedders",
    "mama_structs.importing": "mama_structs.importers",
    "mama_structs.v1": "mama_structs.importers",
    "mama_structs.testing.memory_suite": "mama_structs.testing.conformance.memory_suite",
    "mama_structs.testing.scripted": "mama_structs.testing.scripted_model",
    "mama_structs.testing.session_driver": "mama_structs.testing.conformance.session_driver",
    "adapters.anthropic_memory": "mama_structs.adapters.anthropic",
    "adapters.google_adk_artifacts": "mama_structs.adapters.google_adk",
    "adapters.haystack_components": "mama_structs.adapters.haystack",
    "adapters.langchain_stores": "mama_structs.adapters.langchain",
    "adapters.langchain_vectors": "mama_structs.adapters.langchain",
    "adapters.langgraph_checkpoints": "mama_structs.adapters.langgraph",
    "adapters.openai_agents_session": "mama_structs.adapters.openai_agents",
}
FACADES = ("mama_structs", "mama_structs.types", "mama_structs.settings")

# Renames that the text of the note has and its table has not.
RENAMED = {
    ("ImportWarning", ""): "ItemWarning",  # The note's name hides a builtin exception.
    ("ItemCount", "found"): "total",
    ("World", "of"): "from_entities",
    ("World", "given"): "overrides",
    ("ModelRequest", "said"): "transcript",
    ("ModelRequest", "sent"): "options",
    ("MemoryMachine", "known"): "acknowledged",
    ("SessionMachine", "what_was_acknowledged_is_there"): "acknowledged_data_is_readable",
    ("MemoryMachine", "what_was_acknowledged_is_there"): "acknowledged_data_is_readable",
    ("MemoryMachine", "the_memories_are_those_that_were_acknowledged"): "memories_equal_acknowledged_memories",
    ("Fault", "cut"): "cut_off",
    ("recalling", ""): "add_recall",
}

# Members that the table does not have, with the reason.
PROVENANCE = "origin and trust of texts came after the table"
NEW = "new in the text of the note"
EXTRA = {
    **dict.fromkeys([("Ref", "origin"), ("Ref", "trust"), ("Ref", "provenance")], PROVENANCE),
    **dict.fromkeys([("Descriptor", "origin"), ("Descriptor", "trust"), ("Descriptor", "provenance")], PROVENANCE),
    ("ResolvedArguments", "provenance"): PROVENANCE,
    **dict.fromkeys([("Hit", "id"), ("Hit", "type"), ("Hit", "topic"), ("Hit", "content"), ("Hit", "passage")], NEW),
    **dict.fromkeys([("Recall", "lines"), ("Recall", "left_out")], NEW),
    **dict.fromkeys([("Memory", name) for name in ("reasoning", "confidence", "outcome", "outcome_reason")], NEW),
    **dict.fromkeys([("Memory", name) for name in ("tags", "source")], NEW),
    **dict.fromkeys([("MemoryStore", "save"), ("MemoryStore", "list")], NEW),
    **dict.fromkeys([("DecisionMetadata", "tags"), ("DecisionMetadata", "source")], NEW),
    **dict.fromkeys([("CheckpointMetadata", "tags"), ("CheckpointMetadata", "source")], NEW),
    **dict.fromkeys([("ContextMetadata", "tags"), ("Session", "namespace"), ("Source", "from_function")], NEW),
    **dict.fromkeys([("ToolSet", "wire_names"), ("Results", "to_dicts"), ("FakeNode", "latency")], NEW),
    ("Chain", "to_frame"): "the same as of other results; came after the table",
    **dict.fromkeys(
        [("MemoryStore", "conflicts"), ("MemoryStore", "dismiss_conflict")],
        "list and dismiss the conflicts that saves detected; came after the table",
    ),
    ("MemorySettings", "load_embedder_at_open"): "came after the table",
    ("ConversationInfo", "recalled_count"): "came after the table",
    **dict.fromkeys(
        [("SentenceEmbedder", "load_model"), ("UniversalSentenceEmbedder", "load_model")],
        "called when a session opens; came after the table",
    ),
    **dict.fromkeys([("MemorySettings", "record_versions"), ("MemorySettings", "record_versions_ttl")], NEW),
    **dict.fromkeys([("DescriptorSettings", "suggest_refs"), ("RefEnd", "is_json")], NEW),
    ("Session", "ui"): "starts the local pages; came after the table",
    ("RefStore", "run_in_thread"): "stores texts that are too long for the event loop; came after the table",
    ("RefStream", "finish"): "stores answers that are too long for the event loop; came after the table",
    **dict.fromkeys(
        [("ImportReport", "total"), ("ImportReport", "skipped"), ("ItemWarning", "skipped")],
        "account for each item of a source; came after the table",
    ),
    ("McpServer", "create_initialization_options"): "overrides a method of the MCP SDK",
    ("McpServer", "get_capabilities"): "overrides a method of the MCP SDK",
}  # fmt: skip

# Members of the table that do not exist, with the reason.
ABSENT = dict.fromkeys(
    [("MemorySettings", "traversal_cache_entries"), ("MemorySettings", "traversal_cache_ttl")],
    "traversals are not cached: see docs/internals/open-points.md",
)

# FastAPI converts a value with `keys` by `dict(value)`.
JSON_NAMES = {"to_dict", "to_json", "keys"}

TOP = [
    "Session",
    "Settings",
    "Filter",
    "with_references",
    "with_descriptors",
    "RefStore",
    "MemoryStore",
    "Memory",
    "MemoryType",
    "Hit",
    "Link",
    "LinkType",
    "Outcome",
    "Chain",
    "Recall",
    "Ref",
    "Descriptor",
    "RefParser",
    "ObservedMessage",
    "Resolver",
    "ReferenceOptions",
    "References",
    "Source",
    "IdScheme",
    "EntityId",
    "EntityType",
    "StructsClient",
    "StructsSource",
    "Embedder",
    "HashEmbedder",
    "UniversalSentenceEmbedder",
    "as_embedder",
    "Tool",
    "ToolSet",
    "ToolSelector",
    "MemorySettings",
    "ReferenceSettings",
    "DescriptorSettings",
    "ToolSettings",
    "MamaStructsError",
]


@functools.cache
def table():
    """Return the rows of the table by module and class: member, action and new name."""
    found = {}
    with TABLE.open(encoding="utf-8") as file:
        for module, name, member, action, new in csv.reader(file, delimiter="\t"):
            found.setdefault((module, name), []).append((member, action, new))
    return found


def new_modules(module):
    if module in MODULES:
        return (MODULES[module],)
    if module.startswith("adapters."):
        return (f"mama_structs.{module}",)
    return (module,) if module.startswith("mama_structs.") and module != "mama_structs.records" else FACADES


def load(name):
    """Import a module, or return None if it needs a framework that is not installed here."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "mama-structs[" in str(error) or name.startswith("mama_structs.adapters."):
            return None
        raise


def find(module, name):
    """Return the object with a name in the new modules; None if no module has it, or a module is not installed."""
    loaded = [load(one) for one in new_modules(module)]
    return next((getattr(one, name) for one in loaded if one is not None and hasattr(one, name)), None)


def is_installed(module):
    return all(load(one) is not None for one in new_modules(module))


def own_classes(kind):
    return [one for one in inspect.getmro(kind) if one.__module__.startswith("mama_structs")]


def public_members(kind):
    """Return the public methods, properties and fields of a class of this package."""
    names = {name for one in own_classes(kind) for name in (*vars(one), *vars(one).get("__annotations__", {}))}
    return {name for name in names if not name.startswith("_")}


def instance_attributes(kind):
    """Return the attributes that ``__init__`` sets."""
    written = [one for one in own_classes(kind) if "__init__" in vars(one) and not hasattr(one, "__attrs_attrs__")]
    pattern = re.compile(r"^\s+self\.([a-z]\w*)(?:: [^=\n]+)? = ", re.MULTILINE)
    return {name for one in written for name in pattern.findall(inspect.getsource(one.__init__))}


def wrapped_class(kind):
    """Return the async class of a synchronous proxy, or the class itself."""
    return getattr(kind, "_kind", kind)


def new_name(rows, name):
    """Return the new name of a class, or None if it is no longer public."""
    action, new = next(((action, new) for member, action, new in rows if not member), ("keep", name))
    if action in {"remove", "private"}:
        return None
    renamed = new if action == "rename" else name
    return RENAMED.get((renamed, ""), renamed)


def expected_members(name, rows):
    kept = {
        new if action == "rename" else member for member, action, new in rows if member and action in {"keep", "rename"}
    }
    return {RENAMED.get((name, member), member) for member in kept}


CASES = [(module, name) for module, name in table() if TABLE.exists()] if TABLE.exists() else []


@needs_note
def test_top_level_has_the_names_of_the_note():
    noted = re.search(r"^Top: (.+)$", NOTE.read_text(encoding="utf-8"), re.MULTILINE)[1].split()

    assert sorted(TOP) == sorted(noted)


def test_top_level_has_40_names():
    assert sorted(TOP) == mama_structs.__all__
    assert 40 == len(TOP)


@needs_note
def test_every_public_name_of_the_table_is_in_its_new_module():
    expected = {(module, new_name(rows, name)) for (module, name), rows in table().items()}

    assert [] == sorted(
        f"{module}.{name}"
        for module, name in expected
        if name is not None and is_installed(module) and find(module, name) is None
    )


@needs_note
def test_names_that_the_note_removes_are_not_exported():
    exported = {
        (one.__name__, name)
        for (module, name), rows in table().items()
        if new_name(rows, name) is None
        for one in map(load, new_modules(module))
        if one is not None and name in getattr(one, "__all__", ())
    }

    assert set() == exported


@needs_note
def test_types_have_every_class_of_the_note_that_is_not_at_the_top():
    """Sections 3.1 to 3.3 list them by their old modules."""
    listed = {
        new_name(rows, name)
        for (module, name), rows in table().items()
        if new_modules(module) == FACADES and not module.startswith("settings")
    }
    classes = {name for name in listed - {None} if not hasattr(importlib.import_module("mama_structs.settings"), name)}

    assert classes - set(TOP) <= set(public_types.__all__)


@pytest.mark.parametrize(("module", "name"), CASES)
def test_class_has_the_members_of_the_note(module, name):
    rows = table()[module, name]
    kind = find(module, current) if (current := new_name(rows, name)) is not None else None
    if not inspect.isclass(kind) or issubclass(kind, MamaStructsError) or module.startswith("adapters."):
        return
    kind = wrapped_class(kind)
    actual, expected = public_members(kind), expected_members(current, rows)

    missing = {member for member in expected - actual - instance_attributes(kind) if (current, member) not in ABSENT}
    extra = {member for member in actual - expected - JSON_NAMES if (current, member) not in EXTRA}

    assert (set(), set()) == (missing, extra)


@needs_note
def test_explained_differences_exist():
    """An explanation without a difference is deleted."""
    members = {}
    for (module, name), rows in table().items():
        current = new_name(rows, name)
        kind = None if current is None else find(module, current)
        if inspect.isclass(kind):
            members.setdefault(current, set()).update(public_members(wrapped_class(kind)))

    installed = {key for key in EXTRA if key[0] in members}

    assert [] == [key for key in installed if key[1] not in members[key[0]]]
    assert [] == [key for key in ABSENT if key[1] in members.get(key[0], ())]


# Signatures

SAVE_METHODS = ["save", "save_decision", "save_insight", "save_context", "save_checkpoint", "save_many"]


@pytest.mark.parametrize("store", [MemoryStore, sync.MemoryStore])
@pytest.mark.parametrize("method", SAVE_METHODS)
def test_save_method_accepts_one_positional_argument(store, method):
    _, first, *others = inspect.signature(getattr(store, method)).parameters.values()

    assert inspect.Parameter.POSITIONAL_OR_KEYWORD == first.kind
    assert ("items" if method == "save_many" else "content") == first.name
    assert {inspect.Parameter.KEYWORD_ONLY} == {one.kind for one in others}


@pytest.mark.parametrize("store", [MemoryStore, sync.MemoryStore])
@pytest.mark.parametrize(
    ("method", "positional"),
    [
        ("supersede", ["memory", "content"]), ("set_outcome", ["memory", "outcome"]), ("update", ["memory", "content"]),
        ("delete", ["memories"]), ("erase", ["memories"]), ("search", ["query"]), ("explain", ["query", "memory"]),
        ("list", []), ("count", []), ("iter_all", []), ("get", ["memory"]), ("evidence", ["memory"]), ("details", ["memory"]),
        ("history", ["memory"]), ("link", ["from_memory", "to_memory", "relationship"]), ("unlink", ["link"]),
        ("links", ["memory"]), ("traverse", ["memory"]), ("similar", ["memory"]),
    ],
)  # fmt: skip
def test_method_accepts_the_positional_arguments_of_the_note(store, method, positional):
    _, *parameters = inspect.signature(getattr(store, method)).parameters.values()

    assert positional == [one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]


# The signatures of section 2 of the note, as the parameters of a lambda expression.
LINKS_TO_ORIGIN = (
    "links=(), evidence=(), tags=(), source=None, extra=None, {}created_at=None, created_by='user', origin=None, "
    "valid_until=None"
)
COMMON, OF_CHECKPOINT = LINKS_TO_ORIGIN.format("on_duplicate='keep', "), LINKS_TO_ORIGIN.format("")
DIRECT = "type=None, topic=None, since=None, where=None"
SEARCH = f"{DIRECT}, limit=10, min_relevance=None, max_chars=None, superseded='demote', as_of=None"
SIGNATURES = {
    "save": f"content, *, type='insight', topic=None, {COMMON}",
    "save_decision": f"content, *, topic, reasoning, confidence=0.7, supersedes=None, implements=(), {COMMON}",
    "save_insight": f"content, *, topic=None, category=None, {COMMON}",
    "save_context": f"content, *, topic=None, {COMMON}",
    "save_checkpoint": f"content, *, topic=None, open_files=(), next_steps=(), implements=(), {OF_CHECKPOINT}",
    "save_many": "items, *, progress=None",
    "supersede": f"memory, content, *, reasoning, topic=None, confidence=0.7, implements=(), {COMMON}",
    "set_outcome": "memory, outcome, *, reason=None, at=None, created_by='user'",
    "update": "memory, content=None, *, reasoning=UNSET, topic=UNSET, tags=UNSET, valid_until=UNSET, "
    "change_reason=None, origin=None",
    "delete": "memories=None, *, where=None, dry_run=False",
    "erase": "memories=None, *, where=None, dry_run=False, progress=None",
    "list": f"*, {DIRECT}, limit=20, cursor=None, order='newest'",
    "count": f"*, {DIRECT}",
    "iter_all": f"*, {DIRECT}",
    "search": f"query, *, {SEARCH}",
    "explain": f"query, memory, *, {SEARCH}",
    "similar": "memory=None, *, content=None, threshold=None, where=None, limit=10",
    "get": "memory",
    "evidence": "memory",
    "details": "memory, *, link_types=None",
    "history": "memory=None, *, topic=None, link_types=None",
    "link": "from_memory, to_memory, relationship, *, confidence=0.8, reason=None, tags=(), created_at=None, "
    "created_by='user'",
    "unlink": "link",
    "links": "memory=None, *, limit=100, cursor=None",
    "traverse": "memory, *, link_types=None, max_depth=5, direction='both', min_strength=0.0, limit=1000",
}
FILTER = (
    "*, type=None, topic=None, since=None, until=None, origin=None, min_trust=None, tags=None, mentions=None, "
    "source=None, outcome=None, created_by=None, namespace=None, extra=None"
)
SESSION_OPEN = (
    "location=None, *, structs=None, sources=(), embedder=None, reranker=None, judge=None, namespace='default', "
    "read_namespaces=(), conversation=None, files_root=None, reference_options=None, resolver=None, settings=None, "
    "tool_selector=None"
)
# Parameters that the note does not have, with the reason.
EXTRA_PARAMETERS = {("set_outcome", "origin"): "tools pass it for a reason that a model wrote in the name of the user"}


def to_parameters(text):
    """Return the name, kind and default of each parameter of a signature of the note."""
    return describe(eval(f"lambda {text}: None", {"UNSET": UNSET}))


def describe(function):
    parameters = inspect.signature(function).parameters.values()
    return {one.name: (one.kind, one.default) for one in parameters if one.name != "self"}


@pytest.mark.parametrize("store", [MemoryStore, sync.MemoryStore])
@pytest.mark.parametrize("method", SIGNATURES)
def test_method_has_the_parameters_of_the_note(store, method):
    actual = describe(getattr(store, method))
    explained = {name for owner, name in EXTRA_PARAMETERS if owner == method}

    assert explained <= actual.keys()
    assert to_parameters(SIGNATURES[method]) == {name: one for name, one in actual.items() if name not in explained}


@pytest.mark.parametrize(
    ("function", "expected"),
    [(Session.open, SESSION_OPEN), (sync.Session.open, SESSION_OPEN), (Filter, FILTER)],
    ids=["Session.open", "sync.Session.open", "Filter"],
)
def test_entry_point_has_the_parameters_of_the_note(function, expected):
    assert to_parameters(expected) == describe(function)


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in vars(sync).items() if name in sync.__all__ and inspect.isclass(kind))
)
def test_synchronous_class_has_the_members_of_the_async_class(name):
    kind = wrapped_class(getattr(sync, name))

    assert set() == public_members(kind) - set(dir(getattr(sync, name))) - fields_of(kind)


def fields_of(kind):
    """Return the annotated attributes without a value in the class, which proxies pass on."""
    return {name for one in own_classes(kind) for name in vars(one).get("__annotations__", {})}
