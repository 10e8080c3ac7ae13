"""Public values: `to_dict`, `to_json`, documented fields, and lists of results."""

import datetime as dt
import functools
import importlib
import inspect
import json
import random
import re

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mama_structs
from mama_structs import importers, settings, types
from mama_structs._internal.jsonable import JsonMixin
from mama_structs.memory.graph.results import Page, Results
from mama_structs.memory.types.model import METADATA_TYPES

SEOUL = dt.timezone(dt.timedelta(hours=9))
TIME = dt.datetime(2026, 3, 1, 8, 30, tzinfo=SEOUL)
TIME_TEXT = "2026-02-28T23:30:00Z"

MODULES = (mama_structs, types, importers, settings)
CLASSES = {
    name: value
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name)) and value.__module__.startswith("mama_structs")
}

# Classes without a JSON form, by reason.
EXEMPT = {
    "services": {
        "ExposedTools", "MemoryPlots", "MemoryStore", "RecordStore", "RefStore", "RefStream", "Resolver", "Session",
        "SessionStream", "UiServer", "Tool", "ToolSet", "RefParser", "StructsClient", "StructsSource", "HashEmbedder",
        "SentenceEmbedder", "UniversalSentenceEmbedder",
    },
    "protocols": {"Embedder", "Reranker"},
    "descriptions of a host's functions": {"IdScheme", "Source"},
    "enumerations, which are text": {"EntityType", "LinkType", "MemoryType", "Outcome"},
    "lists, which have to_dicts": {"Page", "Results"},
    "errors": {"MamaStructsError"},
}  # fmt: skip


def memory(**fields):
    values = {
        "id": "decision_tea_1_00000000", "type": types_of("decision"), "content": "tea", "created_at": TIME, "updated_at": TIME,
        "metadata": types.DecisionMetadata(outcome_at=TIME, history=(types.OutcomeChange(outcome=mama_structs.Outcome.FAILED, at=TIME),)),
        "repeated_at": (TIME,),
        "warnings": types.SaveWarnings(duplicate_of=(types.RelatedMemory("a", 1.0),)),
    }  # fmt: skip
    return mama_structs.Memory(**{**values, **fields})


def types_of(name):
    return mama_structs.MemoryType(name)


def link():
    return mama_structs.Link(
        id="link_1", from_id="a", to_id="b", link_type=mama_structs.LinkType.EVOLUTION, confidence=0.5,
        created_by="user", created_at=TIME, metadata=types.LinkMetadata(original_relationship="supersedes"),
    )  # fmt: skip


def hit():
    return mama_structs.Hit(memory=memory(), score=1.0, relevance=0.5, signals={"recency": 0.1})


def record():
    return types.Record(
        labels=("a",), key="b", value={"c": [1]}, version=1, created_at=TIME, updated_at=TIME, expires_at=TIME
    )


def reached():
    return types.TraversedMemory(memory=memory(), depth=1, path=("a", "b"), strength=0.5)


def text():
    return types.Content.from_text("one\ntwo\n")


def ref():
    return mama_structs.Ref(
        id="plan", version=1, category="text", created_at=TIME, page_size=100, content=text(), origin="model", trust="model",
    )  # fmt: skip


def descriptor():
    return mama_structs.Descriptor(
        number=1, source="tool_result", category="text", created_at=TIME, page_size=100, content=text(), origin="tool", trust="tool",
    )  # fmt: skip


def match():
    line = types.ContextLine(1, "one", cut=False)
    return types.Match(
        line=1, column=1, char=1, length=3, text="one", text_cut=False, prefix="", prefix_cut=False, suffix="", suffix_cut=False,
        last_line=1, before=(line,), after=(),
    )  # fmt: skip


def id_match():
    from mama_structs.references.matches import FieldRule  # noqa: PLC0415 - internal, for this one value

    return types.IdMatch(("1-11", FieldRule("player", "owner"), None, None, "owner"))


def selection():
    return types.ToolSelection("searching", 0.9, frozenset({"search/decisions"}), ())


def text_excerpt():
    from mama_structs.refs.store.text import read_excerpt  # noqa: PLC0415 - creates the only public excerpts

    return read_excerpt(text(), handle="fd:1", page_size=100)


def resolver_stats():
    hints = {field.name: field.default for field in attrs.fields(types.ResolverStats)}
    return types.ResolverStats(
        **{name: {} if name in {"failures", "latency"} else 0 for name, default in hints.items() if default is attrs.NOTHING}
    )  # fmt: skip


EXAMPLES = {
    "Calibration": types.Calibration,
    "Chain": lambda: mama_structs.Chain(memories=(memory(),), links=(link(),), forks=(), nearby=(reached(),)),
    "CheckReport": lambda: types.CheckReport((types.Issue("error", "lost", "a row is lost"),)),
    "Issue": lambda: types.Issue("error", "lost", "a row is lost"),
    "Conflict": lambda: types.Conflict(memories=(memory(), memory())),
    "Content": text,
    "ContextLine": lambda: types.ContextLine(1, "one", cut=False),
    "ConversationInfo": lambda: types.ConversationInfo(
        name="a", created_at=TIME, last_used_at=TIME, handle_count=1, recalled_count=3, bytes=2, is_open=False
    ),
    "CopyReport": lambda: types.CopyReport(namespaces=(EXAMPLES["NamespaceCopy"](),)),
    "NamespaceCopy": lambda: types.NamespaceCopy(name="a", added=1, counts={"memories": 1}, digests={"memories": "f"}),
    "Cue": lambda: types.Cue(kind="searching", words=("suche",)),
    "SelectionRule": lambda: types.SelectionRule(kind="searching", tools=("search/*",), priority=()),
    "ToolSelection": selection,
    "ToolSelector": mama_structs.ToolSelector,
    "ExposedToolNames": lambda: types.ExposedToolNames(
        version=1, names=("a",), selection=selection(), is_narrowed=True
    ),
    "Descriptor": descriptor,
    "Ref": ref,
    "Diagnostic": lambda: types.Diagnostic("nested", "a", 1, "a ref in a ref"),
    "EntityId": lambda: mama_structs.EntityId.parse("1-11"),
    "Evidence": lambda: types.Evidence(source="ref:plan@1", digest="f", text="a"),
    "Excerpt": text_excerpt,
    "Explanation": lambda: types.Explanation(memory_id="a", terms={"words": 1.0}),
    "ExtractionResult": lambda: types.ExtractionResult(
        saved=(memory(),), rejected=(EXAMPLES["RejectedMemory"](),), skipped_messages=1
    ),
    "RejectedMemory": lambda: types.RejectedMemory(reason="no content", proposal={"type": "decision"}),
    "FileResult": lambda: types.FileResult(
        handle="fd:1", path="a", absolute_path="/a", mode="write", chars_written=1, bytes_written=1, size=1, lines=1, created=True
    ),
    "Filter": lambda: mama_structs.Filter(since=TIME, until=TIME, type=["insight", "decision"], extra={"a": 1}),
    "Hit": hit,
    "IdMatch": id_match,
    "ImportReport": lambda: importers.ImportReport(
        kind="mem0", source="a", namespace="b", items=(EXAMPLES["ItemCount"](),), warnings=(EXAMPLES["ItemWarning"](),)
    ),
    "ItemCount": lambda: importers.ItemCount(item="memories", total=3, added=2, existing=1),
    "ItemWarning": lambda: importers.ItemWarning(item="memories", id="a", kind="no_text", note="skipped"),
    "MigrationReport": lambda: importers.MigrationReport(
        source="a", checksum="f", namespace="b", migration="c", at=TIME,
        tables=(EXAMPLES["TableCount"](),), warnings=(EXAMPLES["MigrationWarning"](),),
    ),
    "MigrationWarning": lambda: importers.MigrationWarning(table="decisions", id="a", kind="no_topic", what="kept"),
    "RollbackReport": lambda: importers.RollbackReport(namespace="a"),
    "TableCount": lambda: importers.TableCount(table="decisions", rows=1, migrated=1, skipped=0),
    "V1Database": lambda: importers.V1Database(
        path="a", checksum="f", content="f", version=1, decisions=(), edges=(), checkpoints=(), others=()
    ),
    "LeftOut": lambda: types.LeftOut(memory=memory(), relevance=0.5, reason="no room"),
    "Link": link,
    "NamespaceErasure": lambda: types.NamespaceErasure(namespace="a", memories={"decision": 1}),
    "LinkMetadata": lambda: types.LinkMetadata(original_relationship="supersedes"),
    "Match": match,
    "SearchResult": lambda: types.SearchResult(handle="fd:1", matches=(match(),), total=1, next_start=None),
    "Memory": memory,
    "MemoryDetails": lambda: types.MemoryDetails(
        memory=memory(), history=EXAMPLES["Chain"](), nearby=(reached(),), links=(link(),)
    ),
    "NewRecord": lambda: types.NewRecord(labels=("a",), key="b", value=1, expires_at=TIME),
    "RecallLine": lambda: types.RecallLine(
        text="- a", section="current", memories=(memory(),), reason="match", shown=(0, 1)
    ),
    "Record": record,
    "RecordHit": lambda: types.RecordHit(record=record(), score=1.0, relevance=0.5),
    "ObservedMessage": lambda: mama_structs.ObservedMessage(
        refs=(ref(),), diagnostics=(), text="a", visible_text="a", compact_text="a"
    ),
    "OutcomeChange": lambda: types.OutcomeChange(outcome=mama_structs.Outcome.SUCCESS, at=TIME),
    "PlainText": lambda: types.PlainText("a"),
    "PreviousText": lambda: types.PreviousText(content="a", until=TIME),
    "PreviousValue": lambda: types.PreviousValue(value={"a": 1}, version=1, at=TIME),
    "Recall": lambda: mama_structs.Recall(text="a", hits=(hit(),), conflicts=(EXAMPLES["Conflict"](),)),
    "RefEnd": lambda: types.RefEnd("a", is_complete=True),
    "RefStart": lambda: types.RefStart("a", {"lang": "py"}),
    "RefText": lambda: types.RefText("a"),
    "References": lambda: mama_structs.References({"1-11": {"reference_type": "player"}}, {"resolved": 1}),
    "RelatedMemory": lambda: types.RelatedMemory("a", 0.5),
    "MemoryConflict": lambda: types.MemoryConflict(
        newer=memory(), older=memory(), kind="replaces", probability=0.9, detected_at=memory().created_at
    ),
    "RelationshipCount": lambda: types.RelationshipCount(word="refines", count=1, near_synonyms=(("improves", 0.9),)),
    "ResolvedArguments": lambda: types.ResolvedArguments({"a": "b"}, ("ref:a@1",)),
    "ResolverStats": resolver_stats,
    "SimilarMemory": lambda: types.SimilarMemory(memory=memory(), similarity=0.9),
    "Suggestion": lambda: types.Suggestion("a", "code", "python", 1, 2, 1, "heading", "x"),
    "TraversedMemory": reached,
    "Usage": lambda: types.Usage(1, 10, 100, 1000),
    "WireNames": lambda: types.WireNames._from_names(["save/decision"]),
}  # fmt: skip


VALUES = {name: kind for name, kind in CLASSES.items() if not any(name in names for names in EXEMPT.values())}


def example(name):
    """Return a value of a public class. Classes whose fields all have defaults need no example."""
    return EXAMPLES.get(name, CLASSES[name])()


def times_in(data):
    if isinstance(data, dict):
        return [found for one in data.values() for found in times_in(one)]
    if isinstance(data, list):
        return [found for one in data for found in times_in(one)]
    return [data] if isinstance(data, str) and re.match(r"\d{4}-\d\d-\d\dT", data) else []


def test_exempt_classes_are_public_and_have_no_json_form():
    exempt = {name for names in EXEMPT.values() for name in names} & set(CLASSES)

    assert [] == [name for name in exempt if issubclass(CLASSES[name], JsonMixin)]
    assert set(EXAMPLES) <= set(VALUES)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_value_has_json_form_with_attribute_names_and_utc_times(name):
    value = example(name)
    data = json.loads(value.to_json())

    assert data == value.to_dict()
    assert [] == [key for key in data if key.startswith("_") or not hasattr(value, key)]
    if attrs.has(type(value)):
        assert {field.name for field in attrs.fields(type(value)) if not field.name.startswith("_")} <= set(data)
    assert {TIME_TEXT} >= set(times_in(data))


@pytest.mark.parametrize("name", ["Memory", "MigrationReport", "Filter", "Record", "PreviousText"])
def test_time_with_other_offset_is_converted_to_utc(name):
    assert {TIME_TEXT} == set(times_in(example(name).to_dict()))


def test_naive_time_is_converted_from_local_time():
    local = dt.datetime(2026, 3, 1, 8, 30)  # noqa: DTZ001 - naive on purpose

    text = mama_structs.Filter(since=local).to_dict()["since"]

    assert local.astimezone(dt.UTC) == dt.datetime.fromisoformat(text)


def test_to_dict_writes_functions_as_names_and_patterns_as_text():
    tokens = settings.AnswerSettings(max_tokens=2_000, count_tokens=len)

    assert "len" == tokens.to_dict()["count_tokens"]
    assert "(?<!\\w)(?:suche)" == types.Cue(kind="searching", words=("suche",)).to_dict()["regex"]


def test_entity_id_is_text_in_other_values_and_has_fields_of_its_own():
    entity = mama_structs.EntityId.parse("1-11")

    assert {"type": "player", "index": 11} == entity.to_dict()
    assert "1-11" == types.PreviousValue(value=entity, version=1, at=TIME).to_dict()["value"]


@pytest.mark.parametrize("kind", METADATA_TYPES)
def test_metadata_of_every_type_has_json_form(kind):
    data = memory(type=kind, metadata=METADATA_TYPES[kind]()).to_dict()

    assert kind.value == data["type"]
    assert METADATA_TYPES[kind]().to_dict() == data["metadata"]


@given(st.text(), st.dictionaries(st.text(), st.integers() | st.none() | st.text()))
def test_to_json_preserves_text_and_extra(content, extra):
    value = memory(content=content, metadata=types.ContextMetadata(extra=extra))
    data = json.loads(value.to_json())

    assert content == data["content"]
    assert extra == data["metadata"]["extra"]


def documented_fields(kind):
    """Return the names in the section Args of a class docstring."""
    section = re.search(r"^Args:\n((?:    .*(?:\n|\Z)|\n)*)", inspect.cleandoc(kind.__doc__ or ""), re.MULTILINE)
    return None if section is None else set(re.findall(r"^    (\w+): ", section[1], re.MULTILINE))


def test_documented_fields_are_read_from_docstrings():
    """Without this, a docstring in another form would make the next test check nothing."""
    assert {"memory", "score", "relevance", "path"} <= documented_fields(CLASSES["Hit"])


@pytest.mark.parametrize("name", sorted(name for name in CLASSES if attrs.has(CLASSES[name])))
def test_docstring_names_only_existing_arguments(name):
    documented = documented_fields(CLASSES[name])
    fields = {field.alias for field in attrs.fields(CLASSES[name])}

    assert documented is None or documented <= fields


# Lists of results


@pytest.mark.parametrize("name", ["Memory", "Hit", "Link", "TraversedMemory", "SimilarMemory", "Record", "RecordHit"])
def test_results_convert_to_dicts_json_and_frame(name):
    results = Results([example(name), example(name)])

    assert [example(name).to_dict()] * 2 == results.to_dicts() == json.loads(results.to_json())
    assert 2 == len(results.to_frame())


def test_page_is_list_with_cursor_and_json_form():
    page = Page([memory()], next_cursor="x")

    assert "x" == page.next_cursor
    assert [memory().to_dict()] == page.to_dicts()


def test_json_dumps_accepts_dicts_of_results():
    results = Results([hit()])

    assert results.to_dicts() == json.loads(json.dumps(results.to_dicts()))
    with pytest.raises(TypeError, match="Hit is not JSON serializable"):
        json.dumps(results)


def test_fastapi_route_returns_dicts_of_results():
    fastapi = pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient")
    app = fastapi.FastAPI()

    @app.get("/search")
    def search():
        return Results([hit()]).to_dicts()

    assert [hit().to_dict()] == client.TestClient(app).get("/search").json()


@functools.cache
def modules_of_values():
    return {importlib.import_module(kind.__module__) for kind in VALUES.values()}


def test_every_value_class_is_defined_in_package():
    assert all(module.__name__.startswith("mama_structs.") for module in modules_of_values())


def make_hits():
    return Results([mama_structs.Hit(memory=memory(), score=0.5, relevance=0.5, signals={})])


def make_page() -> Page[mama_structs.Memory]:
    return Page([memory()])


def make_parts():
    return {"hits": make_hits(), "page": make_page()}


def make_list() -> list[mama_structs.Hit]:
    return make_hits()


def make_memory() -> mama_structs.Memory:
    return memory()


def make_chain() -> mama_structs.Chain:
    return EXAMPLES["Chain"]()


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"IdMatch", "WireNames", "References"}))
def test_pydantic_documents_public_value_as_object(name):
    pydantic = pytest.importorskip("pydantic")
    for mode in ("validation", "serialization"):
        schema = pydantic.TypeAdapter(VALUES[name]).json_schema(mode=mode)

        assert {"type": "object", "title": VALUES[name].__name__} == schema


def test_pydantic_documents_results_as_array():
    pydantic = pytest.importorskip("pydantic")

    for kind in (Results[mama_structs.Hit], Page[mama_structs.Memory], Page):
        assert {"type": "array", "items": {"type": "object"}} == pydantic.TypeAdapter(kind).json_schema()


def test_fastapi_documents_routes_with_public_values():
    """Routes that return them, and a route that returns a model with a field of a public class."""
    fastapi = pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    pydantic = pytest.importorskip("pydantic")
    app = fastapi.FastAPI()
    answer = pydantic.create_model("Answer", hit=(mama_structs.Hit, ...), report=types.ErasureReport)
    for route in (make_hits, make_page, make_list, make_memory, make_chain):
        app.get(f"/{route.__name__}")(route)
    app.get("/answer", response_model=answer)(lambda: answer(hit=hit(), report=types.ErasureReport()))
    client = testclient.TestClient(app)

    documented = client.get("/openapi.json").json()

    assert {"/answer", "/make_chain", "/make_hits", "/make_list", "/make_memory", "/make_page"} == set(
        documented["paths"]
    )
    assert {"title": "Hit", "type": "object"} == documented["components"]["schemas"]["Answer"]["properties"]["hit"]
    assert hit().to_dict() == client.get("/answer").json()["hit"]


def test_fastapi_route_returns_public_values():
    """With and without a return annotation, alone and inside other data."""
    fastapi = pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    app = fastapi.FastAPI()
    routes = (make_hits, make_page, make_parts, make_list, make_memory)
    for route in routes:
        app.get(f"/{route.__name__}")(route)
    client = testclient.TestClient(app)

    hits, one = make_hits().to_dicts(), memory().to_dict()
    expected = [hits, [one], {"hits": hits, "page": [one]}, hits, one]
    assert expected == [client.get(f"/{route.__name__}").json() for route in routes]


def test_public_value_converts_to_dict_and_is_not_iterable():
    value = memory()

    assert value.to_dict() == dict(value) == {**value}
    assert "tea" == value["content"]
    for call in (iter, len, list):
        with pytest.raises(TypeError):
            call(value)


# The keys of `References` are entity ids.
@pytest.mark.parametrize(
    "name", sorted(name for name in VALUES if issubclass(VALUES[name], JsonMixin) and name != "References")
)
def test_keys_and_items_are_those_of_to_dict(name):
    value = example(name)
    data = value.to_dict()

    assert [*data] == [*value.keys()]
    assert data == {key: value[key] for key in data}


def test_getting_one_item_converts_only_its_field(monkeypatch):
    value = hit()
    monkeypatch.setattr(JsonMixin, "to_dict", lambda _: pytest.fail("converted every field"))

    assert 0.5 == value["relevance"]
    assert "relevance" in value.keys()  # noqa: SIM118 - no mapping


def test_missing_key_names_path_to_nested_value():
    with pytest.raises(KeyError, match=r"Hit has no key 'content'\. Use \['memory'\]\['content'\]\."):
        hit()["content"]
    with pytest.raises(KeyError, match="Hit has no key 'xyzzy'"):
        hit()["xyzzy"]


def test_chain_is_indexed_by_position_slice_and_key():
    versions = tuple(memory(id=f"decision_tea_{number}_00000000") for number in range(3))
    chain = mama_structs.Chain(memories=versions)

    assert versions[0] == chain[0]
    assert versions[-1] == chain[-1]
    assert versions[:2] == chain[:2]
    assert [*reversed(versions)] == [*reversed(chain)]
    assert random.choice(chain) in versions
    assert chain.to_dict() == dict(chain.to_dict()) == {key: chain[key] for key in chain.keys()}  # noqa: SIM118 - no mapping
    with pytest.raises(IndexError):
        chain[3]
