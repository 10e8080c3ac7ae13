"""References include the stored decisions about the referenced entity."""

import pytest

from mama_structs import ReferenceOptions, Resolver
from mama_structs.errors import InvalidArgument, StoreBusy
from mama_structs.references.section import References
from mama_structs.settings import ReferenceSettings
from mama_structs.testing import FakeSource

pytestmark = pytest.mark.usefixtures("virtual_time")

ENTITIES = {"1-11": {"id": "1-11", "guildId": "0-1"}, "0-1": {"id": "0-1", "name": "Golden Falcon"}}
ABOUT = {"0-1": [{"id": "decision_guild_1", "decision": "leave the guild"}], "2-1": [{"id": "d2", "decision": "mine"}]}
PAYLOAD = {"id": "2-1", "owner": "1-11", "guildId": "0-1"}


class Recall:
    """A fake recall function that returns `ABOUT` and records the requested ids."""

    def __init__(self, about=ABOUT, error=None):
        self.about, self.error, self.asked = about, error, []

    async def __call__(self, ids):
        self.asked.append(list(ids))
        if self.error:
            raise self.error
        return {one: self.about[one] for one in ids if one in self.about}


def resolver(recall, **settings):
    return Resolver([FakeSource(ENTITIES)], settings=ReferenceSettings(**settings), recall=recall)


async def test_references_include_decisions_about_their_entity():
    """Other references and the entity's own fields do not change."""
    recall = Recall()
    async with resolver(recall) as one:
        result = await one.enrich(PAYLOAD, ReferenceOptions(include_memories=True))

    assert ABOUT["0-1"] == result["references"]["0-1"]["remembered"]
    assert "remembered" not in result["references"]["1-11"]
    assert "Golden Falcon" == result["references"]["0-1"]["name"]
    assert [["2-1", "1-11", "0-1"]] == recall.asked


async def test_decisions_about_payloads_own_entity_are_added_to_result():
    """The queried entity has no reference to itself."""
    async with resolver(Recall()) as one:
        result = await one.enrich(PAYLOAD, ReferenceOptions(include_memories=True))

    assert {"2-1": ABOUT["2-1"]} == result["remembered"]


async def test_decisions_are_not_recalled_by_default():
    recall = Recall()
    async with resolver(recall) as one:
        result = await one.enrich(PAYLOAD)

    assert [] == recall.asked
    assert {"id", "owner", "guildId", "references"} == result.keys()


async def test_include_memories_setting_applies_to_all_calls():
    async with resolver(Recall(), include_memories=True) as one:
        result = await one.enrich(PAYLOAD)
        resolved = await one.resolve(["0-1"])

    assert {"2-1"} == result["remembered"].keys()
    assert ABOUT["0-1"] == resolved["0-1"]["remembered"]


async def test_enrich_without_decisions_when_recall_fails():
    """The failure is logged."""
    async with resolver(Recall(error=StoreBusy("busy", waited=1.0))) as one:
        result = await one.enrich(PAYLOAD, ReferenceOptions(include_memories=True))

    assert {"1-11", "0-1"} == result["references"].keys()
    assert "remembered" not in result


async def test_max_bytes_includes_decisions():
    long = {"0-1": [{"id": "d", "decision": "x" * 500}]}
    async with resolver(Recall(long)) as one:
        options = ReferenceOptions(include_memories=True, max_bytes=300)
        result = await one.enrich(PAYLOAD, options)

    assert ("0-1",) == References.from_result(result).omitted
    assert ["1-11"] == list(result["references"])


async def test_enriched_payload_is_not_scanned_inside_decisions():
    about = {"2-1": [{"id": "1-99", "decision": "mine"}], "0-1": [{"id": "1-98", "decision": "leave"}]}
    async with resolver(Recall(about)) as one:
        options = ReferenceOptions(include_memories=True, reference_depth=2)
        once = await one.enrich(PAYLOAD, options)
        again = await one.enrich(once, options)

    assert once == again


async def test_own_field_named_remembered_is_kept():
    """In an entity it is renamed."""
    entities = {"0-1": {"id": "0-1", "remembered": "for ever"}}
    async with Resolver([FakeSource(entities)], recall=Recall()) as one:
        result = await one.enrich(
            {"id": "2-1", "guildId": "0-1", "remembered": 3}, ReferenceOptions(include_memories=True)
        )

    assert 3 == result["remembered"]
    assert ("for ever", ABOUT["0-1"]) == tuple(
        result["references"]["0-1"][key] for key in ("remembered_", "remembered")
    )


async def test_failed_reference_with_decisions_is_still_failed():
    async with Resolver([FakeSource({})], recall=Recall()) as one:
        result = await one.enrich({"guildId": "0-1"}, ReferenceOptions(include_memories=True))

    assert {"0-1": "Entity not found"} == References.from_result(result).failed
    assert ABOUT["0-1"] == result["references"]["0-1"]["remembered"]


def test_include_memories_must_be_bool():
    with pytest.raises(InvalidArgument, match="include_memories must be True or False"):
        ReferenceOptions(include_memories=1)
