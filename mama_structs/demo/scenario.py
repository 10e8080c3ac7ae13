"""What the demo plays: a scripted agent answers one question through tools, and every call is counted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from mama_structs._plain import json_size
from mama_structs.errors import MamaStructsError, StructsUnreachable
from mama_structs.references.section import References
from mama_structs.session import Session
from mama_structs.settings import DescriptorSettings, Settings
from mama_structs.testing.fake_node import FakeNode

# The player that every generated world furnishes with a guild, a planet and a fleet.
BUNDLED_PLAYER: Final = "1-11"
# Rows that name three entities each: a page of 16 stays within the 50 references of a call.
PAGE: Final = 16
# How far the player in question is looked for; a chain has no index of pages by id.
MOST_PAGES: Final = 64

_RELATIONS: Final = {"guildId": "guild", "planetId": "planet", "fleetId": "fleet"}
_AGAIN: Final = "run the demo again"
_CHOOSE: Final = "leave --player out, and a player with guild, planet and fleet is chosen"

Facts = dict[str, Any]
Record = Mapping[str, Any]


@attrs.frozen
class Call:
    """One tool call of the agent, and what it read."""

    tool: str
    arguments: dict[str, Any]
    answer: dict[str, Any]


@attrs.frozen(kw_only=True)
class Run:
    """
    How the agent came to its facts once, and what that cost.

    Args:
        calls: The calls that the agent made, in order.
        facts: What it found out.
        upstream_queries: Queries that the node was asked, as the session counted them.
        asked: The paths that the bundled node was asked for; None with a node that cannot tell.
        from_cache: Answers that the session's cache gave.
        seconds: From the first call to the last answer.

    """

    calls: tuple[Call, ...]
    facts: Facts
    upstream_queries: int
    asked: tuple[str, ...] | None
    from_cache: int
    seconds: float

    @property
    def bytes(self) -> int:
        """How much the agent read: its answers as compact JSON."""
        return sum(json_size(call.answer) for call in self.calls)

    @property
    def figures(self) -> dict[str, float]:
        """The run in numbers."""
        return {
            "agent_calls": len(self.calls),
            "upstream_queries": self.upstream_queries,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
        }


@attrs.frozen(kw_only=True)
class Story:
    """
    The question, answered three times.

    Args:
        player_id: The player it is about.
        without: In a session of its own, one call after the other.
        with_references: In a session of its own, in one call.
        repeat: The same call again in the same session, while its cache is valid.
        player_only: In a session of its own, the question without its last part: the player with references.

    """

    player_id: str
    without: Run
    with_references: Run
    repeat: Run
    player_only: Run

    @property
    def question(self) -> str:
        """What the agent wants to know."""
        return f"Who is player {self.player_id}, what are its guild, planet and fleet, and who else is in the guild?"

    @property
    def same_facts(self) -> bool:
        """Whether every run found out the same."""
        return self.without.facts == self.with_references.facts == self.repeat.facts

    @property
    def figures(self) -> dict[str, Any]:
        """All runs in numbers."""
        return {
            "without": self.without.figures,
            "with": self.with_references.figures,
            "repeat": self.repeat.figures,
            "same_facts": self.same_facts,
        }


class Agent:
    """Asks through a session's tools, as a model does, and remembers every call."""

    def __init__(self, session: Session, *, page_key: str | None = None) -> None:
        self._session = session
        # Where the page of the list begins that the agent reads; an agent has it from the page before.
        self.listing: dict[str, Any] = {"pagination_limit": PAGE}
        if page_key is not None:
            self.listing["pagination_key"] = page_key
        self.calls: list[Call] = []

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its answer."""
        answer: dict[str, Any] = await self._session.call(tool, arguments)
        self.calls.append(Call(tool, arguments, answer))
        return answer


# The demo counts what references cost and bring, so that answers come whole, however long.
_WHOLE = Settings(descriptors=DescriptorSettings(enabled=False))

Script = Callable[[Agent, str], Awaitable[Facts]]


async def one_by_one(agent: Agent, player_id: str) -> Facts:
    """Find out without references: look at the player, then at each id that it names, then at who else is there."""
    player = _flat(await agent.ask("structs_query_player", player_id=player_id), "Player")
    guild_id, planet_id, fleet_id = (_related(player, field) for field in _RELATIONS)
    guild = _flat(await agent.ask("structs_query_guild", guild_id=guild_id), "Guild")
    planet = _flat(await agent.ask("structs_query_planet", planet_id=planet_id), "Planet")
    fleet = _flat(await agent.ask("structs_query_fleet", fleet_id=fleet_id), "Fleet")
    page = await agent.ask("structs_list_players", **agent.listing)
    return facts_of(_row(page["Player"], player_id), guild, planet, fleet, page["Player"])


async def at_once(agent: Agent, player_id: str) -> Facts:
    """Find out with references: the list's row names guild, planet and fleet, and each comes along."""
    page = await agent.ask(
        "structs_list_players",
        **agent.listing,
        include_references=True,
        reference_types=list(_RELATIONS.values()),
    )
    player = _row(page["Player"], player_id)
    references = References.of(page)
    guild, planet, fleet = (_referenced(references, _related(player, field)) for field in _RELATIONS)
    return facts_of(player, guild, planet, fleet, page["Player"])


async def player_only(agent: Agent, player_id: str) -> Facts:
    """Find out with references, but not who else is in the guild."""
    answer = await agent.ask(
        "structs_query_player",
        player_id=player_id,
        include_references=True,
        reference_types=list(_RELATIONS.values()),
    )
    references = References.of(answer)
    guild, planet, fleet = (_referenced(references, _related(answer["Player"], field)) for field in _RELATIONS)
    return facts_of(answer["Player"], guild, planet, fleet, ())


def facts_of(player: Record, guild: Record, planet: Record, fleet: Record, players: Iterable[Record]) -> Facts:
    """Say what the answers tell about the question, whichever way they came."""
    mates = [row for row in players if row["guildId"] == player["guildId"] and row["id"] != player["id"]]
    return {
        "player": {"id": player["id"], "name": _name(player)},
        "guild": {"id": guild["id"], "name": _name(guild), "owner": guild["owner"]},
        "planet": {"id": planet["id"], "ore": planet["gridAttributes"]["ore"], "owner": planet["owner"]},
        "fleet": {"id": fleet["id"], "status": fleet["status"], "place": fleet["locationId"]},
        "guild_mates": [_name(row) for row in mates],
    }


async def play(
    *,
    base_url: str | None = None,
    player_id: str | None = None,
    seed: int = 1,
    players: int = 12,
    latency: float = 0.02,
) -> Story:
    """
    Play the scenario.

    Args:
        base_url: A real node; None for the bundled one.
        player_id: The player in question, wherever in the first pages of the list it is; by default 1-11 of the
            bundled node, and of a real one the first player that has a guild, a planet and a fleet.
        seed: The bundled world's seed.
        players: The bundled world's size.
        latency: Seconds that the bundled node takes for every answer.

    Raises:
        MamaStructsError: The node does not answer, or the player is not one that the scenario can be about.

    """
    if base_url is None:
        async with FakeNode.world(seed=seed, players=players, latency=latency) as node:
            return await _play_on(node.url, player_id or BUNDLED_PLAYER, node)
    try:
        return await _play_on(base_url, player_id, None)
    except StructsUnreachable as error:
        raise MamaStructsError(
            "no Structs node answers at --base-url", hint="is it running? A local one is at http://localhost:1317"
        ) from error


async def _play_on(base_url: str, wanted: str | None, node: FakeNode | None) -> Story:
    player_id, page_key = await _found(base_url, wanted)

    async def run(session: Session, script: Script) -> Run:
        return await _measured(Agent(session, page_key=page_key), script, player_id, session=session, node=node)

    # A session of its own for each, so that no run finds what another one left in the cache.
    async with Session.open(structs=base_url, settings=_WHOLE) as session:
        without = await run(session, one_by_one)
    async with Session.open(structs=base_url, settings=_WHOLE) as session:
        with_references = await run(session, at_once)
        repeat = await run(session, at_once)
    async with Session.open(structs=base_url, settings=_WHOLE) as session:
        alone = await run(session, player_only)
    return Story(
        player_id=player_id, without=without, with_references=with_references, repeat=repeat, player_only=alone
    )


async def _measured(agent: Agent, script: Script, player_id: str, *, session: Session, node: FakeNode | None) -> Run:
    before = session.resolver.stats
    seen = len(node.requests) if node else 0
    started = time.perf_counter()
    facts = await script(agent, player_id)
    seconds = time.perf_counter() - started
    after = session.resolver.stats
    run = Run(
        calls=tuple(agent.calls),
        facts=facts,
        upstream_queries=after.upstream_queries - before.upstream_queries,
        asked=tuple(request.path for request in node.requests[seen:]) if node else None,
        from_cache=after.cache_hits - before.cache_hits,
        seconds=seconds,
    )
    if run.asked is not None and len(run.asked) != run.upstream_queries:
        raise MamaStructsError(
            f"the session counted {run.upstream_queries} queries and the node {len(run.asked)}",
            hint="this is a bug of mama_structs; please report it",
        )
    return run


async def _found(base_url: str, wanted: str | None) -> tuple[str, str | None]:
    """Return the player in question, or the first that fits, and the key of the list's page that holds it."""
    async with Session.open(structs=base_url, settings=_WHOLE) as session:
        if wanted is not None:
            player = (await session.call("structs_query_player", {"player_id": wanted}))["Player"]
            for field in _RELATIONS:
                _related(player, field)
        key: str | None = None
        seen = 0
        for _ in range(MOST_PAGES):
            page = await session.call("structs_list_players", {"pagination_limit": PAGE, "pagination_key": key})
            for row in page["Player"]:
                if row["id"] == wanted or (wanted is None and all(row.get(field) for field in _RELATIONS)):
                    return str(row["id"]), key
            seen += len(page["Player"])
            key = page["pagination"].get("next_key")
            if not key:
                break
    if wanted is not None:
        raise MamaStructsError(
            f"player {wanted} is not among the first {seen:,} players, through which the demo looks for it",
            hint=_CHOOSE,
        )
    raise MamaStructsError(
        f"none of the first {seen:,} players has a guild, a planet and a fleet",
        hint="name another node, or a player with --player",
    )


def _flat(answer: Record, envelope: str) -> Record:
    """Return an entity's own fields with what stands beside them, as a reference has them."""
    return {**answer[envelope], **{name: value for name, value in answer.items() if name != envelope}}


def _row(rows: Iterable[Record], player_id: str) -> Record:
    for row in rows:
        if row["id"] == player_id:
            return row
    raise MamaStructsError(f"player {player_id} is not on the page that the agent lists any more", hint=_AGAIN)


def _related(player: Record, field: str) -> str:
    if not player.get(field):
        raise MamaStructsError(f"player {player['id']} has no {_RELATIONS[field]}", hint=_CHOOSE)
    return str(player[field])


def _referenced(references: References, entity_id: str) -> Record:
    if entity_id in references.failed or entity_id not in references:
        why = references.failed.get(entity_id, "it was left out")
        raise MamaStructsError(f"the reference to {entity_id} is missing: {why}", hint=_AGAIN)
    return references[entity_id]


def _name(record: Record) -> str:
    """Return the name of a record; older chains have none."""
    return str(record.get("name") or record["id"])
