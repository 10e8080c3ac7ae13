"""First guesses of newcomers: each one works, or its error names the right call."""

from __future__ import annotations

import asyncio
import copy
import inspect
import operator
import pickle
import re
import traceback

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mama_structs
from mama_structs import Filter, HashEmbedder, Memory, MemoryStore, RefStore, Session, ToolSet, admin, sync
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import CallHints, is_hint, with_call_hints
from mama_structs.memory.records.record_store import RecordStore
from mama_structs.memory.store.memory_reader import MemoryReader
from mama_structs.refs.store.ref_reader import RefReader
from mama_structs.structs.client import StructsClient
from mama_structs.testing import FakeNode

HINTED = {
    MemoryStore: peer_names.MEMORY_STORE,
    RecordStore: peer_names.RECORD_STORE,
    RefStore: peer_names.REF_STORE,
    Session: peer_names.SESSION,
}


@pytest.fixture
async def session():
    async with Session.open(embedder=HashEmbedder()) as opened:
        yield opened


@pytest.fixture
def sync_session():
    with sync.Session.open(embedder=HashEmbedder()) as opened:
        yield opened


# Attributes


@pytest.mark.parametrize(
    ("guess", "message"),
    [
        ("add", "MemoryStore has no 'add'. Use save(content)."),
        ("put", "MemoryStore has no 'put'. Use save(content)."),
        ("get_all", "MemoryStore has no 'get_all'. Use list(), or iter_all()."),
        ("recent", "MemoryStore has no 'recent'. Use list(limit=)."),
        ("query", "MemoryStore has no 'query'. Use search(query)."),
        ("remove", "MemoryStore has no 'remove'. Use delete(memory)."),
        ("reset", "erase(where=Filter(...)), or mama_structs.admin.delete_namespace(location, name)."),
        ("save_fact", "MemoryStore has no 'save_fact'. Use save(content)."),
        ("save_memory", "MemoryStore has no 'save_memory'. Use save(content)."),
        ("save_decison", "MemoryStore has no 'save_decison'. Did you mean 'save_decision'?"),
        ("backup", "MemoryStore has no 'backup'. Use mama_structs.admin.backup(session, path)."),
        ("list_insights", "MemoryStore has no 'list_insights'. Use list(type='insight')."),
        ("records", "MemoryStore has no 'records'. Use session.records."),
        ("serach", "MemoryStore has no 'serach'. Did you mean 'search'?"),
        ("xyzzy", "MemoryStore has no 'xyzzy'."),
    ],
)
async def test_missing_attribute_of_memory_store_names_right_call(session, guess, message):
    with pytest.raises(AttributeError) as error:
        getattr(session.memories, guess)

    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("remember_this", "Did you mean 'remember'?"),
        ("add", "Session has no 'add'. Use session.memories.save(content)."),
        ("search", "Session has no 'search'. Use session.memories.search(query)."),
        ("memory", "Session has no 'memory'. Use session.memories."),
        ("list_namespaces", "Use mama_structs.sync.admin.list_namespaces(session)."),
        ("backup", "Session has no 'backup'. Use mama_structs.sync.admin.backup(session, path)."),
        ("export", "Session has no 'export'. Use mama_structs.sync.admin.export_jsonl(session, path)."),
        ("add_tool", "Session has no 'add_tool'. Use session.tools.add(function)."),
        ("save_fact", "Session has no 'save_fact'. Use session.memories.save(content)."),
        ("references", "Use session.with_references to decorate a tool, or session.resolver to fetch entities."),
        ("memories.check", "MemoryStore has no 'check'. Use mama_structs.sync.admin.check(session)."),
        ("memories.clear", "or mama_structs.sync.admin.delete_namespace(location, name)."),
        (
            "refs.write",
            "RefStore has no 'write'. Use to_file(handle, file_path) for a file, or put(ref_id, text) for a ref.",
        ),
        ("refs.store", "RefStore has no 'store'. Use add(text), or put(ref_id, text) to choose the name."),
        ("refs.parse_refs", "RefStore has no 'parse_refs'. Use observe(message)."),
        ("refs.dump", "RefStore has no 'dump'. Use to_file(handle, file_path)."),
        ("records.set", "RecordStore has no 'set'. Use put(labels, key, value)."),
        ("records.sweep", "RecordStore has no 'sweep'. Use delete_expired()."),
    ],
)
def test_missing_attribute_of_sync_session_names_right_call(sync_session, path, message):
    with pytest.raises(AttributeError) as error:
        operator.attrgetter(path)(sync_session)

    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("guess", "meant"),
    [("text", "content"), ("body", "content"), ("expires_at", "valid_until"), ("kind", "type"), ("uuid", "id")],
)
async def test_missing_attribute_of_memory_names_right_attribute(session, guess, meant):
    memory = await session.memories.save("Ada works as a nurse")

    with pytest.raises(AttributeError, match=f"Did you mean '{meant}'"):
        getattr(memory, guess)


async def test_missing_attribute_of_hit_names_path_to_its_memory(session):
    await session.memories.save("Ada works as a nurse")
    (hit,) = await session.memories.search("Ada")

    for guess, meant in {"body": "content", "similarity": "relevance", "expires_at": "memory.valid_until"}.items():
        with pytest.raises(AttributeError, match=f"Did you mean '{meant}'"):
            getattr(hit, guess)


@pytest.mark.parametrize("guess", ["supersedes", "predecessor"])
async def test_guessed_relation_of_memory_names_history(session, guess):
    memory = await session.memories.save("Ada works as a nurse")
    (hit,) = await session.memories.search("Ada")

    for value in (memory, hit):
        with pytest.raises(
            AttributeError, match=r"Use session\.memories\.history\(memory\)\. A hit has superseded_by\."
        ):
            getattr(value, guess)


async def test_guessed_attribute_of_results_names_right_one(session):
    await session.memories.save("Ada works as a nurse")
    page = await session.memories.list()
    hits = await session.memories.search("Ada")

    with pytest.raises(AttributeError, match=r"Page has no 'cursor'\. Use next_cursor\."):
        page.cursor  # noqa: B018
    with pytest.raises(AttributeError, match=r"Results has no 'to_dict'\. Use to_dicts\(\)\."):
        hits.to_dict  # noqa: B018
    with pytest.raises(AttributeError, match="'Results' object has no attribute 'cursor'"):
        hits.cursor  # noqa: B018
    assert list(page) == pickle.loads(pickle.dumps(page)) == copy.copy(page)


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("memories.save_fact", "Use save(content)."),
        ("memories.serach", "Did you mean 'search'?"),
        ("memories.xyzzy", "MemoryStore has no 'xyzzy'."),
        ("refs.usagee", "Did you mean 'usage'?"),
        ("backup", "admin.backup(session, path)."),
    ],
)
@pytest.mark.parametrize("fixture", ["session", "sync_session"])
def test_traceback_has_one_suggestion(sync_session, path, advice, fixture):
    holder = sync_session if fixture == "sync_session" else sync_session._inner
    with pytest.raises(AttributeError) as caught:
        operator.attrgetter(path)(holder)

    last_line = traceback.format_exception_only(caught.value)[-1].rstrip()
    # Python 3.11 adds its suggestion only when it prints the error itself; it adds none to attributes of None.
    assert caught.value.obj is None
    assert last_line.endswith(advice)
    assert 1 >= last_line.count("Did you mean")


@pytest.mark.parametrize("module", [admin, sync.admin])
@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        ("export", "Use export_jsonl(store, path), or backup(store, path)."),
        ("restore", "Use Session.open(path) with the path of a backup, or copy(path, target)."),
        ("namespaces", "Use list_namespaces(store)."),
        ("bakup", "Did you mean 'backup'?"),
    ],
)
def test_missing_function_of_admin_names_right_one(module, guess, advice):
    with pytest.raises(AttributeError) as error:
        getattr(module, guess)

    assert f"{module.__name__} has no {guess!r}. {advice}" == str(error.value)
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'xyzzy'"):
        module.xyzzy  # noqa: B018


def test_hints_of_admin_name_existing_functions():
    for guess, call in peer_names.ADMIN.attributes.items():
        assert not hasattr(admin, guess)
        for name in re.findall(r"(?<![.\w])(\w+)\(", call):
            assert hasattr(admin, name), call


def _enter(manager):
    with manager:
        pass


async def test_hasattr_and_private_names_behave_as_usual(session):
    assert not hasattr(session.memories, "add")
    assert not hasattr(session.memories, "_private")
    with pytest.raises(AttributeError, match="'MemoryStore' object has no attribute '__deepcopy__'"):
        session.memories.__deepcopy__  # noqa: B018


def test_attribute_error_in_property_is_raised_again():
    @with_call_hints(CallHints(attributes={"guess": "right()"}))
    class Service:
        @property
        def broken(self):
            return self._missing_part.value

    with pytest.raises(AttributeError, match="_missing_part"):
        Service().broken  # noqa: B018


@pytest.mark.parametrize("name", ["parse_refs", "MemoryClient", "Store"])
def test_import_of_guessed_name_names_right_call(name):
    with pytest.raises(ImportError, match=rf"mama_structs has no '{name}'. Use .+\."):
        exec(f"from mama_structs import {name}", {})

    with pytest.raises(AttributeError, match="module 'mama_structs' has no attribute 'Xyzzy'"):
        mama_structs.Xyzzy  # noqa: B018


# Arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.search("tea", n_results=3), "search() has no 'n_results'. Use limit."),
        (lambda m: m.list(topk=3), "list() has no 'topk'. Use limit."),
        (lambda m: m.search("tea", memory_types=["insight"]), "search() has no 'memory_types'. Use type."),
        (lambda m: m.search("tea", filters={}), "search() has no 'filters'. Use where=Filter(...)."),
        (lambda m: m.list(before="2026-01-01"), "list() has no 'before'. Use where=Filter(until=...)."),
        (lambda m: m.count(after="2026-01-01"), "count() has no 'after'. Use since."),
        (lambda m: m.iter_all(tags="food"), "iter_all() has no 'tags'. Use where=Filter(tags=...)."),
        (lambda m: m.search("tea", agent_id="ada"), "search() has no 'agent_id'. Use Session.open(namespace=)."),
        (lambda m: m.save("tea", metadata={"a": 1}), "save() has no 'metadata'. Use extra=, tags= or source=."),
        (lambda m: m.save(text="tea"), "save() has no 'text'. Use content. save() needs content."),
        (lambda m: m.search("tea", limt=3), "search() has no 'limt'. Did you mean limit?"),
        (
            lambda m: m.save_decision("auth", "Use JWT", "stateless"),
            "save_decision() takes one positional argument, content. Give topic=, reasoning= by name.",
        ),
        (
            lambda m: m.save_decision("Use JWT", topic="auth"),
            "save_decision() needs reasoning=.",
        ),
        (
            lambda m: m.set_outcome("decision_1", "FAILED", "It was slow"),
            "set_outcome() takes two positional arguments, memory and outcome. Give reason= by name.",
        ),
        (lambda m: m.save("tea", content="milk"), "save() got content twice."),
        (lambda m: m.stats(1), "stats() takes no positional argument."),
    ],
)
async def test_wrong_arguments_of_memory_store_name_right_ones(session, call, message):
    made = call(session.memories)
    with pytest.raises(TypeError) as error:
        await (made if inspect.isawaitable(made) else anext(made))

    assert message == str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.memories.search("tea", k=3), "search() has no 'k'. Use limit."),
        (lambda s: s.memories.save_checkpoint(), "save_checkpoint() needs content."),
        (lambda s: s.refs.put("a text"), "put() needs text. To store a text without a name, use add(text)."),
        (lambda s: s.records.list("notes", last_first=True), "list() has no 'last_first'. Use reverse."),
        (lambda s: s.records.put("notes", "a"), "put() needs value."),
        (lambda s: s.recall("tea", again=True), "recall() has no 'again'. Use repeat."),
        (lambda s: len(s.memories), "MemoryStore has no len(). Use count()."),
        (lambda s: [*s.memories], "MemoryStore cannot be iterated. Use list() or iter_all()."),
        (lambda _: sync.Session("a.mama"), "Session() is not called directly. Use Session.open(location)."),
        (lambda _: Session("a.mama"), "Session() is not called directly. Use Session.open(location)."),
        (lambda _: sync.Session.open(user_id="ada"), "Session.open() has no 'user_id'. Use namespace."),
        (lambda _: sync.Session.open(user="ada"), "Session.open() has no 'user'. Use namespace."),
        (lambda _: Filter(tag="food"), "Filter() has no 'tag'. Use tags."),
        (lambda _: Filter(after="2026-01-01"), "Filter() has no 'after'. Use since."),
        (lambda _: Filter(user_id="ada"), "Filter() has no 'user_id'. Use namespace."),
        (
            lambda _: Filter({"tags": "food"}),
            "Filter() takes no positional argument. Give each by name: "
            + ", ".join(f"{field.name}=" for field in attrs.fields(Filter))
            + ".",
        ),
        (lambda _: FakeNode(players=20), "FakeNode() has no 'players'. Use FakeNode.world(players=, seed=)."),
        (lambda _: FakeNode(latencyy=1), "FakeNode() has no 'latencyy'. Did you mean latency?"),
        (
            lambda _: _enter(FakeNode()),
            "FakeNode needs async with. Use with FakeNode.world().in_thread() as node in code without async.",
        ),
        (
            lambda s: s.tools(),
            f"ToolSet cannot be called. Use {peer_names.TOOL_SET.operators['__call__']}.",
        ),
        (lambda _: sync.Session.open(files="out"), "Session.open() has no 'files'. Use files_root."),
        (
            lambda _: Memory(),
            f"Memory() is not called directly. {peer_names.MEMORY.constructor}",
        ),
    ],
)
def test_wrong_calls_of_sync_session_name_right_ones(sync_session, call, message):
    with pytest.raises(TypeError) as error:
        call(sync_session)

    assert message == str(error.value)


def test_stores_are_true_although_they_have_no_length(sync_session):
    assert sync_session.memories
    assert sync_session.records


@pytest.mark.parametrize(
    ("decorate", "error"),
    [
        (lambda tool: mama_structs.with_references(customer=tool)(tool), "no option 'customer'"),
        (lambda tool: mama_structs.with_references({"customer": tool})(tool), "decorates a function"),
        (lambda tool: mama_structs.Resolver({"customer_id": tool}), "must be a list of sources"),
    ],
)
def test_guesses_at_sources_of_references_name_from_function(decorate, error):
    with pytest.raises(ValueError, match=rf"{error}.*Source\.from_function\('customer', fetch"):
        decorate(_load_customer)


def _load_customer(customer_id):
    return {"id": customer_id}


async def test_extract_of_an_answer_names_observe(session):
    with pytest.raises(ValueError, match=r"observe\(message\) stores the refs of an answer"):
        session.refs.extract('Here: <ref id="app.py">print(1)</ref>')


async def test_path_outside_root_names_root_to_people_only(session, tmp_path):
    ref = session.refs.put("a", "text")
    with pytest.raises(PermissionError) as error:
        await session.refs.to_file(ref, f"{tmp_path}/a.txt")

    assert error.value.root in str(error.value)
    assert error.value.root not in f"{error.value.args}{error.value.hint}"


async def test_unreachable_node_names_host_and_port_to_people_only(unused_tcp_port):
    async with StructsClient(f"http://127.0.0.1:{unused_tcp_port}", retries=0) as client:
        with pytest.raises(ConnectionError) as error:
            await client.query("1-11")

    assert f"127.0.0.1:{unused_tcp_port}" in str(error.value)
    assert ("127.0.0.1", unused_tcp_port) == (error.value.host, error.value.port)
    assert "127.0.0.1" not in f"{error.value.args}{error.value.hint}"


async def test_type_error_inside_a_method_is_not_rewritten(session):
    with pytest.raises(TypeError, match="a wrong type in the host's code"):
        await session.remember("I am Ada", extract=_raise_type_error)


def _raise_type_error(*_):
    raise TypeError("a wrong type in the host's code")


# Objects and natural values


async def test_refs_and_descriptors_are_accepted_as_handles(session, tmp_path):
    refs = session.refs
    ref = session.refs.put("a", "one\n")
    newer = refs.put(ref, "two\n")
    text = refs.add("line\n" * 5_000)

    assert ("one\n", "two\n") == (refs.read(ref).text, refs.read(newer).text)
    assert refs.read(text, page=2) == refs.read(text.handle, start=2)
    assert ref in refs
    assert ("ref:a@1", "ref:a@2") == refs.versions(ref)
    assert "-one" in refs.diff(ref, newer)
    assert "three\n" == refs.edit(ref, "one", "three").text
    assert 5_000 == (await refs.search(text, "line", limit=1)).total
    refs.delete(ref)
    assert ("ref:a@2", "ref:a@3") == refs.versions("a")
    with pytest.raises(ValueError, match="page cannot be combined"):
        refs.read(text, page=2, start=3)


# The mechanism


@pytest.mark.parametrize("owner", HINTED)
def test_hints_concern_names_that_do_not_exist(owner):
    """A hint for an existing name would never be shown."""
    names = {name for name in dir(owner) if not is_hint(getattr(owner, name, None))}
    attributes = {"memories", "refs", "records"} if owner is Session else set()

    assert set() == (names | attributes).intersection(HINTED[owner].attributes)


@pytest.mark.parametrize("owner", HINTED)
def test_hints_name_existing_calls(owner):
    places = {
        "session.memories.": MemoryStore,
        "session.refs.": RefStore,
        "mama_structs.admin.": admin,
        "admin.": admin,
        "session.tools.": ToolSet,
        "session.": Session,
        "Session.": Session,
        "": owner,
    }
    for call in (*HINTED[owner].attributes.values(), *HINTED[owner].operators.values()):
        place = next(one for one in places if call.startswith(one))
        name = re.match(r"\w+", call.removeprefix(place))[0]
        is_attribute = place == "session." and name in ("memories", "refs", "records", "reference_options")
        is_own = name in ("reference_options", "exposed_tools", "files_root", "session", "len")
        assert is_attribute or is_own or hasattr(places[place], name), call


def _function(first, *, second, third=3):
    return first, second, third


ARGUMENTS = st.lists(st.integers(), max_size=3)
KEYWORDS = st.dictionaries(st.sampled_from(["first", "second", "third", "fourth", "self"]), st.integers())


@given(ARGUMENTS, KEYWORDS)
def test_wrapped_call_fails_exactly_if_plain_call_fails(arguments, keywords):
    @with_call_hints(CallHints())
    class Wrapped:
        async def call(self, first, *, second, third=3):
            return first, second, third

    expected = _outcome(_function, arguments, keywords)

    assert expected == _outcome(lambda *a, **k: asyncio.run(Wrapped().call(*a, **k)), arguments, keywords)


def _outcome(function, arguments, keywords):
    try:
        return function(*arguments, **keywords)
    except TypeError:
        return TypeError


@pytest.mark.parametrize("owner", [MemoryStore, MemoryReader, RecordStore, RefStore, RefReader, Session])
def test_wrapped_methods_look_unchanged(owner):
    """Signatures and kinds of methods are those of the wrapped functions."""
    for name, method in vars(owner).items():
        inner = getattr(method, "__wrapped__", None)
        if name.startswith("_") or inner is None or isinstance(method, classmethod):
            continue
        assert inspect.signature(method) == inspect.signature(inner)
        assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(inner)
        assert inspect.isasyncgenfunction(method) == inspect.isasyncgenfunction(inner)
        assert asyncio.iscoroutinefunction(method) == asyncio.iscoroutinefunction(inner)
        assert (inner.__name__, inner.__doc__, inner.__module__) == (method.__name__, method.__doc__, method.__module__)


def test_hint_tables_end_without_punctuation():
    """The error adds the full stop."""
    for hints in HINTED.values():
        for call in hints.attributes.values():
            assert not call.endswith((".", " "))
