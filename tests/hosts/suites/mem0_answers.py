"""
Compares the mem0 adapter with mem0: the same calls must return answers of the same shape and meaning.

mem0 has no conformance suite, so its package is the reference. Its embedder and its model are fakes without network
access. ``nox -s hosts`` runs this file.
"""

from __future__ import annotations

import hashlib
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_helpers import SMALL

from mama_structs import sync
from mama_structs.adapters import mem0 as ours

# Importing mem0 emits warnings.
pytestmark = pytest.mark.filterwarnings("ignore")
ADA = {"user_id": "ada"}
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


class Embedding:
    """A fake embedder for mem0 with eight dimensions."""

    def embed(self, text, memory_action=None):
        return [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]]

    def embed_batch(self, texts, *_others):
        return [self.embed(text) for text in texts]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Make mem0 store everything below a temporary folder, without telemetry."""
    folder = tmp_path_factory.mktemp("mem0")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (("MEM0_DIR", str(folder)), ("MEM0_TELEMETRY", "False"), ("HOME", str(folder))):
            patched.setitem(os.environ, name, value)
        main = pytest.importorskip("mem0.memory.main")
        patched.setattr(main.EmbedderFactory, "create", staticmethod(lambda *_others, **_more: Embedding()))
        patched.setattr(main.LlmFactory, "create", staticmethod(lambda *_others, **_more: None))
        yield folder, main.Memory


def theirs(home, name):
    folder, kind = home
    store = {"path": str(folder / name), "embedding_model_dims": 8, "on_disk": True}
    return kind.from_config(
        {
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": str(folder / f"{name}.db"),
        }
    )


@pytest.fixture
def both(home, request):
    """An empty memory of this package and an empty memory of mem0."""
    with sync.Session.open(None, embedder=SMALL) as session:
        other = theirs(home, re.sub(r"\W", "_", request.node.name))
        yield ours.Memory(session), other
        other.vector_store.client.close()
        other.close()


def shape(answer, names):
    """Return an answer in which placeholders replace ids, times and scores, because these always differ."""
    if isinstance(answer, dict):
        return (
            {key: shape(value, names) for key, value in answer.items()}
            | {key: "..." for key in ("created_at", "updated_at") if answer.get(key) is not None}
            | ({"score": answer["score"] is not None} if "score" in answer else {})
        )
    if isinstance(answer, list):
        return [shape(one, names) for one in answer]
    if isinstance(answer, str) and IDS.fullmatch(answer):
        return names.setdefault(answer, f"id {len(names)}")
    return answer


def ordered(answer):
    return {"results": sorted(answer["results"], key=lambda one: one["memory"])}


def told(memory):
    """Call all methods of a memory, and return the shapes of their answers."""
    names = {}
    answers = [
        memory.add(
            [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "Ada likes green tea"},
                {"role": "assistant", "content": "Noted", "name": "helper"},
                {"role": "assistant", "content": None},
            ],
            user_id="ada",
            infer=False,
            metadata={"topic": "drinks", "n": 3},
        )
    ]
    name = answers[0]["results"][0]["id"]
    answers += [
        memory.add("Bob hates rain", user_id=7, agent_id="a1", run_id="r1", infer=False, expiration_date="2999-01-01"),
        memory.get(name),
        memory.get("00000000-0000-4000-8000-000000000000"),
        memory.update(name, "Ada likes black tea", metadata={"n": 4}),
        memory.get(name),
        memory.update(name, metadata={"m": 1}),
        memory.update(name, expiration_date="2999-01-01"),
        memory.update(name, expiration_date=None),
        ordered(memory.get_all(filters=ADA)),
        ordered(memory.get_all(filters={"user_id": " 7 "})),
        ordered(memory.search("tea", filters=ADA, threshold=0.0)),
        memory.history(name),
        memory.delete(name),
        memory.get(name),
        memory.history(name),
        memory.history("unknown"),
        memory.delete_all(user_id="ada"),
        memory.get_all(filters=ADA),
        memory.reset(),
        memory.get_all(filters={"user_id": "7"}),
        memory.history(name),
    ]
    return [shape(one, names) for one in answers]


def test_the_answers_are_the_same(both):
    """All methods return answers of the same shape and meaning."""
    mine, other = map(told, both)

    for number, (one, two) in enumerate(zip(mine, other, strict=True)):
        assert two == one, number


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("add", ["x"], {"infer": False}),
        ("add", [7], {**ADA, "infer": False}),
        ("add", ["x"], {**ADA, "timestamp": 1}),
        ("add", ["x"], {**ADA, "memory_type": "other"}),
        ("add", ["x"], {**ADA, "expiration_date": "soon"}),
        ("add", ["x"], {"user_id": "a b"}),
        ("get_all", [], {}),
        ("get_all", [], ADA),
        ("get_all", [], {"filters": {"topic": "x"}}),
        ("get_all", [], {"filters": ADA, "top_k": -1}),
        ("search", [" "], {"filters": ADA}),
        ("search", ["x"], {"filters": ADA, "threshold": 2}),
        ("search", ["x"], {"filters": ADA, "reference_date": 1}),
        ("search", ["x"], {"filters": {**ADA, "OR": []}}),
        ("update", ["x"], {}),
        ("update", ["00000000-0000-4000-8000-000000000000", "x"], {}),
        ("delete", ["00000000-0000-4000-8000-000000000000"], {}),
        ("delete_all", [], {}),
    ],
)
def test_invalid_call_raises_in_both(both, method, arguments, options):
    """Both raise for the same calls."""
    for memory in both:
        with pytest.raises(Exception, match=r"."):
            getattr(memory, method)(*arguments, **options)


VALUES = st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "ab", "2026-01-01", "2026-02-01T10:00:00Z"])
METADATA = st.dictionaries(st.sampled_from("xyz"), VALUES | st.lists(VALUES, max_size=3))
TEXTS = st.sampled_from(["a", "b", "ab"])
FIELDS = st.one_of(
    VALUES,
    st.just("*"),
    st.lists(TEXTS, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), st.integers(0, 3), min_size=1),
    st.dictionaries(st.sampled_from(["gt", "lte"]), st.sampled_from(["2026-01-01", "2026-01-15"]), min_size=1),
    st.builds(lambda value: {"eq": value}, VALUES),
    st.builds(lambda value: {"ne": value}, TEXTS),
    st.builds(lambda several: {"in": several}, st.lists(TEXTS, min_size=1)),
    st.builds(lambda several: {"nin": several}, st.lists(TEXTS, min_size=1)),
)
CONDITIONS = st.recursive(
    st.dictionaries(st.sampled_from("xyz"), FIELDS, min_size=1, max_size=2),
    lambda inner: st.builds(
        lambda word, some: {word: some}, st.sampled_from(["AND", "OR", "NOT"]), st.lists(inner, min_size=1, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def filled(home):
    """A memory of this package and a memory of mem0, with the same contents."""
    with sync.Session.open(None, embedder=SMALL) as session:
        pair = ours.Memory(session), theirs(home, "filled")
        values = [
            True,
            False,
            0,
            1,
            3,
            "a",
            "ab",
            "b",
            "2026-01-01",
            "2026-01-15",
            "2026-02-01T10:00:00Z",
            ["a", 1],
            [],
        ]
        for number, value in enumerate(values):
            metadata = {"x": value, "y": values[number // 2], **({"z": number % 4} if number % 3 else {})}
            for memory in pair:
                memory.add(f"fact {number}", user_id="ada", metadata=metadata, infer=False)
        yield pair
        pair[1].vector_store.client.close()
        pair[1].close()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters=CONDITIONS)
def test_filters_mean_the_same(filled, filters):
    """Every filter matches the same memories."""
    found = [
        sorted(one["memory"] for one in memory.get_all(filters={**ADA, **filters}, top_k=1_000)["results"])
        for memory in filled
    ]

    assert found[1] == found[0]
