"""What is remembered of entities, beside what they are."""

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
    """Remembers `ABOUT`, and what it was asked."""

    def __init__(self, about=ABOUT, error=None):
        self.about, self.error, self.asked = about, error, []

    async def __call__(self, ids):
        self.asked.append(list(ids))
        if self.error:
            raise self.error
        return {one: self.about[one] for one in ids if one in self.about}


def resolver(recall, **settings):
    return Resolver([FakeSource(ENTITIES)], settings=ReferenceSettings(**settings), recall=recall)


async def test_a_reference_carries_what_was_decided_about_it():
    """Each reference about which there is something has it; the others, and the entity's own fields, are as ever."""
    recall = Recall()
    async with resolver(recall) as one:
        result = await one.enrich(PAYLOAD, ReferenceOptions(include_memories=True))

    assert ABOUT["0-1"] == result["references"]["0-1"]["remembered"]
    assert "remembered" not in result["references"]["1-11"]
    assert "Golden Falcon" == result["references"]["0-1"]["name"]
    assert [["2-1", "1-11", "0-1"]] == recall.asked


async def test_what_the_payload_is_about_is_remembered_beside_the_references():
    """The queried entity is no reference to itself, so what was decided about it has a place of its own."""
    async with resolver(Recall()) as one:
        result = await one.enrich(PAYLOAD, ReferenceOptions(include_memories=True))

    assert {"2-1": ABOUT["2-1"]} == result["remembered"]


async def test_nothing_is_remembered_unless_it_is_asked_for():
    """Without the option nobody is asked, and nothing is added."""
    recall = Recall()
    async with resolver(recall) as one:
        result = await one.enrich(PAYLOAD)

    assert [] == recall.asked
    assert {"id", "owner", "guildId", "references"} == result.keys()


async def test_a_setting_asks_for_all_calls():
    """With the setting every call with references has what is remembered."""
    async with resolver(Recall(), include_memories=True) as one:
        result = await one.enrich(PAYLOAD)
        resolved = await one.resolve(["0-1"])

    assert {"2-1"} == result["remembered"].keys()
    assert ABOUT["0-1"] == resolved["0-1"]["remembered"]


async def test_memories_that_cannot_be_read_cost_only_themselves():
    """The answer and its references are whole, and the log says what is missing."""
    async with resolver(Recall(error=StoreBusy("busy", waited=1.0))) as one:
        result = await one.enrich(PAYLOAD, ReferenceOptions(include_memories=True))

    assert {"1-11", "0-1"} == result["references"].keys()
    assert "remembered" not in result


async def test_what_is_remembered_counts_as_bytes():
    """The section stays within its limit with what is remembered."""
    long = {"0-1": [{"id": "d", "decision": "x" * 500}]}
    async with resolver(Recall(long)) as one:
        options = ReferenceOptions(include_memories=True, max_bytes=300)
        result = await one.enrich(PAYLOAD, options)

    assert ("0-1",) == References.of(result).omitted
    assert ["1-11"] == list(result["references"])


async def test_an_enriched_payload_is_not_searched_for_what_is_remembered():
    """Ids within what was remembered before are no references."""
    about = {"2-1": [{"id": "1-99", "decision": "mine"}], "0-1": [{"id": "1-98", "decision": "leave"}]}
    async with resolver(Recall(about)) as one:
        options = ReferenceOptions(include_memories=True, reference_depth=2)
        once = await one.enrich(PAYLOAD, options)
        again = await one.enrich(once, options)

    assert once == again


async def test_a_field_of_that_name_is_left_alone():
    """A payload that has such a field keeps it, and so does an entity, under a name beside it."""
    entities = {"0-1": {"id": "0-1", "remembered": "for ever"}}
    async with Resolver([FakeSource(entities)], recall=Recall()) as one:
        result = await one.enrich(
            {"id": "2-1", "guildId": "0-1", "remembered": 3}, ReferenceOptions(include_memories=True)
        )

    assert 3 == result["remembered"]
    assert ("for ever", ABOUT["0-1"]) == tuple(
        result["references"]["0-1"][key] for key in ("remembered_", "remembered")
    )


async def test_a_failed_reference_that_is_remembered_is_still_a_failed_one():
    """What was decided about an entity that is gone is worth knowing, and hides no failure."""
    async with Resolver([FakeSource({})], recall=Recall()) as one:
        result = await one.enrich({"guildId": "0-1"}, ReferenceOptions(include_memories=True))

    assert {"0-1": "Entity not found"} == References.of(result).failed
    assert ABOUT["0-1"] == result["references"]["0-1"]["remembered"]


def test_the_option_is_a_flag():
    """Anything but True and False is refused."""
    with pytest.raises(InvalidArgument, match="include_memories must be True or False"):
        ReferenceOptions(include_memories=1)
