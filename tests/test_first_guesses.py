"""First guesses of newcomers: each one works, or its error names the right call."""

from __future__ import annotations

import abc
import asyncio
import copy
import inspect
import operator
import pickle
import re
import traceback
from unittest import mock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mama_structs
from mama_structs import Filter, HashEmbedder, Memory, MemoryStore, RefStore, Session, Source, ToolSet, admin, sync
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import CallHints, is_hint, with_call_hints
from mama_structs.adapters import mem0
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
        ("put", "Use save(content), or session.records.put(labels, key, value) for a value under a key."),
        ("recall", "Use session.recall(message) for a text for a model, or search(query) for hits."),
        ("remember", "Use session.remember(messages, extract=) for a conversation, or save(content) for a text."),
        (
            "replace",
            "Use supersede(memory, content, reasoning=) for a new decision, or update(memory, content) for a text.",
        ),
        ("begin", "MemoryStore has no 'begin'. Use save_many(items) for several memories."),
        ("for_user", "MemoryStore has no 'for_user'. Use Session.open(location, namespace=)."),
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
        ("put", "or session.records.put(labels, key, value) for a value under a key."),
        ("history", "Use session.memories.history(memory), or session.memories.history(topic=)."),
        ("tools.register", "ToolSet has no 'register'. Use add(function)."),
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


def test_errors_of_memories_of_several_namespaces_name_public_class():
    with sync.Session.open(embedder=HashEmbedder(), namespace="ada", read_namespaces=["team"]) as opened:
        for memories in (opened.memories, opened.memories._inner):
            with pytest.raises(AttributeError, match=r"^MemoryStore has no 'xyzzy'\.$"):
                memories.xyzzy  # noqa: B018
            with pytest.raises(AttributeError, match="'MemoryStore' object has no attribute '__deepcopy__'"):
                opened.memories._inner.__deepcopy__  # noqa: B018
            with pytest.raises(TypeError, match=r"^MemoryStore has no len\(\)\. Use count\(\)\.$"):
                len(memories)


def _enter(manager):
    with manager:
        pass


async def test_hasattr_and_private_names_behave_as_usual(session):
    assert not hasattr(session.memories, "add")
    assert not hasattr(session.memories, "_private")
    with pytest.raises(AttributeError, match="'MemoryStore' object has no attribute '__deepcopy__'"):
        session.memories.__deepcopy__  # noqa: B018


def test_attribute_of_metaclass_is_a_missing_attribute():
    @with_call_hints(CallHints(attributes={"register": "add()"}))
    class Service(abc.ABC):  # noqa: B024 - only its metaclass matters
        pass

    with pytest.raises(AttributeError, match=r"Service has no 'register'\. Use add\(\)\."):
        Service().register  # noqa: B018


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


@pytest.mark.parametrize("name", sorted(peer_names.MODULE_NAMES))
def test_guessed_name_is_missing_attribute_of_package(name):
    assert not hasattr(mama_structs, name)
    assert getattr(mama_structs, name, None) is None
    with pytest.raises(AttributeError, match=rf"mama_structs has no '{name}'. Use .+\."):
        getattr(mama_structs, name)
    with mock.patch(f"mama_structs.{name}", create=True) as patched:
        assert patched is getattr(mama_structs, name)


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
        (lambda m: m.list(after="2026-01-01"), "list() has no 'after'. Use cursor or since."),
        (lambda m: m.list(page=2), "list() has no 'page'. Use cursor."),
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
        (
            lambda _: sync.Session.open(persist_directory="a"),
            "Session.open() has no 'persist_directory'. Use location.",
        ),
        (lambda s: s.records.list(after="a"), "list() has no 'after'. Use cursor."),
        (
            lambda s: s.call("read_fd", fd="fd:1"),
            "call() has no 'fd'. It takes tool_name, arguments, host, max_chars. "
            + peer_names.SESSION.unknown_keywords["call"],
        ),
        (
            lambda _: MemoryStore("a.mama"),
            "MemoryStore() is not called directly. Use Session.open(location).memories.",
        ),
        (lambda _: MemoryStore(), "MemoryStore() is not called directly. Use Session.open(location).memories."),
        (lambda _: sync.MemoryStore(), "MemoryStore() is not called directly. Use Session.open(location).memories."),
        (
            lambda _: mem0.Memory(),
            "Memory() needs session. Open one: Memory(mama_structs.sync.Session.open(location)).",
        ),
        (
            lambda _: Source.from_function("customer", _load_customer, fields="id", pattern="c-.*"),
            "Source.from_function() has no 'pattern'. Use Source(IdScheme(name=, pattern=, types=), fetch=, fetch_many=).",
        ),
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

    assert f"the root is {error.value.root}, and Session.open(files_root=) sets another" in str(error.value)
    assert error.value.root not in f"{error.value.args}{error.value.hint}"


async def test_unreachable_node_names_host_and_port_to_people_only(unused_tcp_port):
    async with StructsClient(f"http://127.0.0.1:{unused_tcp_port}", retries=0) as client:
        with pytest.raises(ConnectionError) as error:
            await client.query("1-11")

    assert f"127.0.0.1:{unused_tcp_port}" in str(error.value)
    assert ("127.0.0.1", unused_tcp_port) == (error.value.host, error.value.port)
    assert "127.0.0.1" not in f"{error.value.args}{error.value.hint}"


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda m: m.history("auth"), "there is no memory with the id 'auth'", "for a topic: history(topic=...)"),
        (lambda m: m.history("the login"), "a text of 9 characters is no memory id", "history(topic=...)"),
        (lambda m: m.similar("Use JWT"), "a text of 7 characters is no memory id", "for a text: similar(content=...)"),
        (lambda m: m.get("Use JWT"), "a text of 7 characters is no memory id", "search(query) finds memories"),
        (lambda m: m.erase("Use JWT"), "a text of 7 characters is no memory id", "search(query) finds memories"),
        (lambda m: m.supersede("Use JWT", "Use Redis", reasoning="it is fast"), "7 characters", "search(query)"),
    ],
)
def test_text_as_memory_names_methods_that_take_texts(sync_session, call, message, hint):
    with pytest.raises(LookupError) as error:
        call(sync_session.memories)

    assert message in error.value.args[0]
    assert hint in error.value.hint


def test_text_as_memory_in_a_model_call_names_tools_only(sync_session):
    with pytest.raises(LookupError) as error:
        sync_session.call("evolve/outcome", {"decision_id": "Use JWT", "outcome": "SUCCESS"})

    assert "search/by_context" in error.value.hint
    assert "search(" not in str(error.value)


def test_unknown_id_has_no_hint_if_it_looks_like_an_id(sync_session):
    with pytest.raises(LookupError) as error:
        sync_session.memories.history("decision_auth_1790000000000_0a1b2c3d")

    assert error.value.hint is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: sync.Session.open(":memory:"), r"got ':memory:' \(omit location for a session in memory\)"),
        (lambda _: sync.admin.check(":memory:"), "omit location for a session in memory"),
        (lambda _: sync.Session.open("sqlite:///a.db"), "or the path of a directory"),
        (
            lambda _: sync.Session.open(structs="localhost:1317"),
            r"structs: base_url must begin with http:// or https:// \(write http://localhost:1317\)",
        ),
        (
            lambda _: sync.Session.open(structs="user:secret@host"),
            r"structs: base_url must .*\(such as http://localhost:1317\)",
        ),
        (lambda s: s.memories.list(since="yesterday"), r"since=timedelta\(days=1\)"),
        (lambda s: s.memories.save("tea", type="decision"), r"use save_decision\(content"),
        (lambda s: s.memories.save(["tea"]), r"save_many\(items\) saves several texts"),
        (lambda s: s.memories.save_many([{"text": "tea"}]), r"items\[0\]: .*'text' \(use content\)"),
        (lambda s: s.remember("I am Ada", extract=lambda _: []), "extract must accept two arguments"),
        (lambda s: mem0.Memory(s).search("tea", filters={"user_id": "a"}, limit=2), "'limit' \\(use top_k\\)"),
        (lambda _: Source(_load_customer), r"scheme must be an IdScheme.*Source\.from_function\("),
    ],
)
def test_invalid_argument_names_right_one(sync_session, monkeypatch, tmp_path, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call(sync_session)

    assert [] == [*tmp_path.iterdir()]


async def test_async_iterator_as_list_names_comprehension(session):
    memories = session.memories
    for call in (memories.delete, memories.erase, memories.save_many):
        with pytest.raises(ValueError, match=r"got async_generator \(pass \[one async for one in \.\.\.\]\)"):
            await call(memories.iter_all())


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
