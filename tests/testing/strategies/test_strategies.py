import asyncio
import json
import os
import subprocess
import sys
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from importlib.metadata import entry_points
from typing import Annotated

import pytest
from case_helpers import find_missing_cases
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta

from mama_structs import HashEmbedder, RefStore, Session, Tool
from mama_structs.errors import InvalidArgument
from mama_structs.structs.ids import EntityId, EntityType
from mama_structs.testing.strategies import (
    Delays,
    chains,
    delays,
    entity_id_texts,
    entity_ids,
    latencies,
    list_payloads,
    look_alikes,
    memories,
    messages,
    payloads,
    tool_arguments,
    worlds,
)


def at(payload, pointer):
    """Return the value at a JSON pointer (RFC 6901)."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        payload = payload[int(key)] if isinstance(payload, list) else payload[key]
    return payload


@given(text=entity_id_texts())
def test_entity_id_texts_are_ids(text):
    assert text == str(EntityId.parse(text))


@given(entity_id=entity_ids(types=[EntityType.FLEET, EntityType.PLANET]))
def test_entity_ids_can_be_limited_to_types(entity_id):
    assert entity_id.type in {EntityType.FLEET, EntityType.PLANET}


@given(text=look_alikes())
@settings(max_examples=500)
def test_look_alikes_are_not_ids(text):
    with pytest.raises(InvalidArgument):
        EntityId.parse(text)


@given(planted=payloads() | list_payloads())
def test_planted_references_are_at_their_pointers(planted):
    """References are distinct and in document order."""
    copied = json.loads(json.dumps(planted.payload))

    assert planted.payload == copied
    assert len(planted.ids) == len(set(planted.ids))
    for reference in planted.references:
        for pointer in reference.pointers:
            value = at(planted.payload, pointer)
            if pointer.endswith(("/map", "/detail")):
                assert f'"{reference.id}"' in value
            elif pointer.endswith("/protectedStructIndex"):
                assert str(reference.id) == f"5-{value}"
            else:
                assert str(reference.id) == value
    assert not {"references", "references_meta"} & planted.payload.keys()


@given(planted=payloads())
def test_subject_of_payload_is_not_a_reference(planted):
    if planted.subject is not None:
        (record, *_) = planted.payload.values()

        assert str(planted.subject) == record["id"]
        assert str(planted.subject) not in planted.ids


@given(planted=list_payloads(min_size=1, max_size=3))
def test_list_payloads_have_format_of_chain_lists(planted):
    """The rows' own ids are not references."""
    rows, pagination = planted.payload.values()

    assert 1 <= len(rows) <= 3
    assert [str(own) for own in planted.own_ids] == [row["id"] for row in rows]
    assert {"next_key", "total"} == pagination.keys()
    assert not set(planted.ids) & {row["id"] for row in rows}


INTERESTING_CASES = {
    "many references": lambda planted: len(planted.references) > 5,
    "repeated references": lambda planted: any(len(one.pointers) > 1 for one in planted.references),
    "direct references": lambda planted: any(one.primary for one in planted.references),
    "a look-alike": lambda planted: "7-1" in planted.look_alikes,
    "deep references": lambda planted: any(
        pointer.count("/") > 3 for one in planted.references for pointer in one.pointers
    ),
    "the subject as a look-alike": lambda planted: (
        planted.subject is not None and str(planted.subject) in planted.look_alikes
    ),
    "JSON in text": lambda planted: "map" in planted.payload,
}


@pytest.mark.once
def test_payloads_cover_interesting_cases():
    generated = settings(max_examples=5000, database=None, phases=[Phase.generate])

    assert set() == find_missing_cases(payloads(), INTERESTING_CASES, generated)


@given(found=latencies(["1-11", "0-1"], max=0.5))
def test_latencies_have_exactly_the_given_ids(found):
    assert {"1-11", "0-1"} == found.keys()
    assert all(0 <= seconds <= 0.5 for seconds in found.values())


@given(found=delays(max=0.5), entity_id=entity_id_texts())
def test_delays_are_deterministic_for_every_id(found, entity_id):
    assert 0 <= found[entity_id] <= 0.5
    assert found[entity_id] == Delays(seed=found.seed, max=0.5)[entity_id]


@given(world=worlds(players=st.just(12)))
@settings(max_examples=5, deadline=None)
def test_worlds_have_requested_size(world):
    """Three more players have ids that are prefixes of each other."""
    assert 15 == len(world.ids("player"))


@given(entity_id=st.from_type(EntityId), kind=st.from_type(EntityType))
def test_types_are_registered_by_entry_point(entity_id, kind):
    """Importing Hypothesis is sufficient."""
    assert isinstance(entity_id, EntityId)
    assert entity_id.type.has_ids
    assert isinstance(kind, EntityType)
    assert ["mama_structs.testing.hypothesis_hook:register"] == [
        point.value for point in entry_points(group="hypothesis") if point.name == "mama_structs"
    ]


def test_hook_imports_neither_hypothesis_nor_package():
    code = (
        "import sys, mama_structs.testing.hypothesis_hook;"
        "print([m for m in ('hypothesis', 'aiohttp', 'attrs', 'mama_structs.structs') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)

    assert "[]" == result.stdout.strip()


def test_importing_hypothesis_imports_only_the_hook():
    code = "import sys, hypothesis; print(*sys.modules)"

    def loaded(**environment):
        environment = {**os.environ, **environment}
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600, check=True
        )
        return set(run.stdout.split())

    ours = {
        "mama_structs",
        "lazy_loader",
        "mama_structs._internal",
        "mama_structs._internal.lazy_import",
        "mama_structs.testing",
        "mama_structs.testing.hypothesis_hook",
    }
    assert ours == loaded() - loaded(HYPOTHESIS_NO_PLUGINS="1")


# Strategies for memories, tools and messages


async def save_all(records, chain):
    async with Session.open(embedder=HashEmbedder(dimensions=32)) as session:
        saved = await session.memories.save_many(records)
        made = await chain.save(session.memories)
        links = {(link.from_id, link.to_id) for one in made for link in await session.memories.links(one.id)
                 if link.link_type == "evolution"}  # fmt: skip
    return saved, made, links


@settings(max_examples=max(10, settings.default.max_examples // 5))
@given(records=st.lists(memories(), max_size=4), chain=chains())
def test_generated_memories_and_chains_can_be_saved(records, chain):
    """The decisions of a chain supersede each other as planned."""
    saved, made, links = asyncio.run(save_all(records, chain))

    assert [record["type"] for record in records] == [memory.type for memory in saved]
    assert [given["content"] for given in chain.decisions] == [memory.content for memory in made]
    assert 1 == len({memory.topic for memory in made})
    assert links == {
        (memory.id, made[earlier].id)
        for memory, earlier in zip(made, chain.supersedes, strict=True)
        if earlier is not None
    }


SCHEMA = {
    "type": "object",
    "required": ["planet_id", "how", "where"],
    "properties": {
        "planet_id": {"type": "string"},
        "how": {"$ref": "#/$defs/How"},
        "where": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/How"}, "minItems": 1}, {"type": "null"}]},
        "when": {"type": "string", "format": "date-time"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "kind": {"const": "raid"},
        "share": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "free": {},
    },
    "$defs": {"How": {"type": "object", "properties": {"fast": {"type": "boolean"}}, "required": ["fast"]}},
}


@given(arguments=tool_arguments(SCHEMA, texts={"*_id": st.sampled_from(["2-1", "2-2"])}))
def test_tool_arguments_are_valid_for_schema(arguments):
    Draft202012Validator(SCHEMA).validate(arguments)


def act(
    *,
    many: Annotated[int, Meta(ge=100)],
    few: Annotated[int, Meta(le=-10)],
    between: Annotated[int, Meta(gt=0, lt=3)],
    fives: Annotated[int, Meta(gt=3, multiple_of=5)],
    share: Annotated[float, Meta(gt=0, lt=1)],
    vast: Annotated[float, Meta(ge=1e10)],
    owed: Annotated[float, Meta(lt=-1e12)],
    pair: Annotated[list[int], Meta(max_length=2)],
    essay: Annotated[str, Meta(min_length=100)],
    place: tuple[int, str],
    names: Annotated[set[str], Meta(min_length=3)],
    counts: Annotated[dict[str, int], Meta(min_length=1)],
    key: uuid.UUID,
    at: Annotated[datetime, Meta(tz=True)],
    within: timedelta,
    price: Decimal,
    picture: Annotated[bytes, Meta(min_length=2, max_length=6)],
) -> None:
    """Accept arguments with bounds, members and formats."""


TOOL = Tool.from_function(act)


@given(arguments=tool_arguments(TOOL.input_schema))
def test_tool_accepts_arguments_generated_from_its_schema(arguments):
    Draft202012Validator(TOOL.input_schema).validate(arguments)
    TOOL._signature.check(arguments, tool=TOOL.name)


def test_mapping_with_arbitrary_names_is_not_always_empty():
    schema = {
        "type": "object",
        "properties": {"counts": {"type": "object", "additionalProperties": {"type": "integer"}}},
    }

    assert find(tool_arguments(schema), lambda given: given.get("counts"))


def test_given_texts_are_used_for_matching_parameters():
    """Arbitrary texts are generated, too."""
    ids = tool_arguments(SCHEMA, texts={"*_id": st.just("2-1")})

    # Without shrinking, because any example is sufficient.
    generated = settings(phases=[Phase.generate])
    assert "2-1" == find(ids, lambda given: given["planet_id"] == "2-1", settings=generated)["planet_id"]
    assert "2-1" != find(ids, lambda given: given["planet_id"] != "2-1", settings=generated)["planet_id"]


@given(planted=messages())
def test_messages_contain_planted_refs_in_every_format(planted):
    seen = RefStore().observe(planted.message)

    assert [(ref.id, ref.content, ref.complete) for ref in planted.document.refs] == [
        (ref.id, ref.text, ref.is_complete) for ref in seen.refs
    ]
