"""
The demo: a scripted agent answers one question without references and with them, and every call is counted.

The text of it has plain tables, and answers shortened to what matters here.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import attrs

from mama_structs._plain import json_size
from mama_structs.errors import MamaStructsError, StructsUnreachable
from mama_structs.references.detection import SECTION
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
_WITH_REFERENCES: Final[dict[str, Any]] = {"include_references": True, "reference_types": [*_RELATIONS.values()]}
_AGAIN: Final = "run the demo again"
_CHOOSE: Final = "leave --player out, and a player with guild, planet and fleet is chosen"
# The demo counts what references cost and bring, so that answers come whole, however long.
_WHOLE: Final = Settings(descriptors=DescriptorSettings(enabled=False))
_SHOWN_FIELDS: Final = (
    "reference_type", "id", "name", "owner", "guildId", "planetId", "fleetId", "status", "locationId",
    "gridAttributes", "ore", "next_key",
)  # fmt: skip
_WIDTH: Final = 100

Facts = dict[str, Any]
Entity = Mapping[str, Any]


@attrs.frozen
class DemoCall:
    """One tool call of the agent, and what it read."""

    tool: str
    arguments: Entity
    answer: Entity


@attrs.define
class DemoRun:
    """An agent that asks through a session's tools, as a model does: every call, what it found out, and the cost."""

    session: Session
    # The bundled one, whose counters can be seen.
    node: FakeNode | None = None
    # Where the page of the list begins that the agent reads; an agent has it from the page before.
    page_key: str | None = None
    calls: list[DemoCall] = attrs.field(factory=list)
    facts: Facts = attrs.field(factory=dict)
    upstream_queries: int = 0
    # The paths that the bundled node was asked for.
    asked: tuple[str, ...] | None = None
    from_cache: int = 0
    seconds: float = 0.0

    async def ask(self, tool: str, **arguments: Any) -> Entity:
        """Call a tool and return its answer."""
        answer: Entity = await self.session.call(tool, arguments)
        self.calls.append(DemoCall(tool, arguments, answer))
        return answer

    async def page(self, **options: Any) -> Entity:
        """Return the page of the list of players that the player in question is on."""
        place = {} if self.page_key is None else {"pagination_key": self.page_key}
        return await self.ask("structs_list_players", pagination_limit=PAGE, **place, **options)

    async def measure(self, script: Callable[[DemoRun, str], Awaitable[Facts]], player_id: str) -> Self:
        """Find out by a script, and count."""
        before, seen = self.session.resolver.stats, len(self.node.requests) if self.node else 0
        started = time.perf_counter()
        self.facts = await script(self, player_id)
        self.seconds = time.perf_counter() - started
        after = self.session.resolver.stats
        self.upstream_queries = after.upstream_queries - before.upstream_queries
        self.from_cache = after.cache_hits - before.cache_hits
        if self.node is not None:
            self.asked = tuple(request.path for request in self.node.requests[seen:])
            if len(self.asked) != self.upstream_queries:
                raise MamaStructsError(
                    f"the session counted {self.upstream_queries} queries and the node {len(self.asked)}",
                    hint="this is a bug of mama_structs; please report it",
                )
        return self

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


@attrs.frozen
class Story:
    """The question, answered several times."""

    player_id: str
    # One call after the other, and in one call.
    without: DemoRun
    with_references: DemoRun
    # In the same session, while its cache is valid.
    repeat: DemoRun
    # Without the question's last part.
    player_only: DemoRun

    @property
    def same_facts(self) -> bool:
        """Whether every run found out the same."""
        return self.without.facts == self.with_references.facts == self.repeat.facts

    @property
    def figures(self) -> dict[str, Any]:
        """All runs in numbers."""
        runs = {"without": self.without, "with": self.with_references, "repeat": self.repeat}
        return {**{name: run.figures for name, run in runs.items()}, "same_facts": self.same_facts}


async def one_by_one(agent: DemoRun, player_id: str) -> Facts:
    """Find out without references: look at the player, then at each id that it names, then at who else is there."""
    player = _flat(await agent.ask("structs_query_player", player_id=player_id), "Player")
    related = []
    for field, kind in _RELATIONS.items():
        answer = await agent.ask(f"structs_query_{kind}", **{f"{kind}_id": _related(player, field)})
        related.append(_flat(answer, kind.capitalize()))
    rows = (await agent.page())["Player"]
    return _facts_of(_row(rows, player_id), related, rows)


async def at_once(agent: DemoRun, player_id: str) -> Facts:
    """Find out with references: the list's row names guild, planet and fleet, and each comes along."""
    page = await agent.page(**_WITH_REFERENCES)
    player = _row(page["Player"], player_id)
    return _facts_of(player, _referenced(page, player), page["Player"])


async def player_only(agent: DemoRun, player_id: str) -> Facts:
    """Find out with references, but not who else is in the guild."""
    answer = await agent.ask("structs_query_player", player_id=player_id, **_WITH_REFERENCES)
    return _facts_of(answer["Player"], _referenced(answer, answer["Player"]), ())


def _facts_of(player: Entity, related: Sequence[Entity], players: Iterable[Entity]) -> Facts:
    """Say what the answers tell about the question, whichever way they came."""
    guild, planet, fleet = related
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
    """Play the scenario on a real node, or on the bundled one; see the command's help for what each of them takes."""
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
    runs: list[DemoRun] = []
    # A session of its own for each, so that no run finds what another one left in the cache.
    for scripts in ((one_by_one,), (at_once, at_once), (player_only,)):
        async with Session.open(structs=base_url, settings=_WHOLE) as session:
            runs += [await DemoRun(session, node, page_key).measure(script, player_id) for script in scripts]
    return Story(player_id, *runs)


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
        what = f"player {wanted} is not among the first {seen:,} players, through which the demo looks for it"
        raise MamaStructsError(what, hint=_CHOOSE)
    what = f"none of the first {seen:,} players has a guild, a planet and a fleet"
    raise MamaStructsError(what, hint="name another node, or a player with --player")


def _flat(answer: Entity, envelope: str) -> Entity:
    """Return an entity's own fields with what stands beside them, as a reference has them."""
    beside = {name: value for name, value in answer.items() if name != envelope}
    return {**answer[envelope], **beside}


def _row(rows: Iterable[Entity], player_id: str) -> Entity:
    for row in rows:
        if row["id"] == player_id:
            return row
    raise MamaStructsError(f"player {player_id} is not on the page that the agent lists any more", hint=_AGAIN)


def _related(player: Entity, field: str) -> str:
    if not player.get(field):
        raise MamaStructsError(f"player {player['id']} has no {_RELATIONS[field]}", hint=_CHOOSE)
    return str(player[field])


def _referenced(answer: Entity, player: Entity) -> list[Entity]:
    """Return a player's guild, planet and fleet from an answer's references."""
    references = References.of(answer)
    found = []
    for field in _RELATIONS:
        entity_id = _related(player, field)
        if entity_id in references.failed or entity_id not in references:
            why = references.failed.get(entity_id, "it was left out")
            raise MamaStructsError(f"the reference to {entity_id} is missing: {why}", hint=_AGAIN)
        found.append(references[entity_id])
    return found


def _name(entity: Entity) -> str:
    """Return the name of an entity; older chains have none."""
    return str(entity.get("name") or entity["id"])


# The text


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a plain table: the first columns, which are *words*, to the left, and the numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def tell(story: Story) -> str:
    """Return the whole story: question, both ways to the answer, and what each cost."""
    found = (story.without,) if story.same_facts else (story.without, story.with_references)
    runs = {
        "without references": story.without,
        "with references": story.with_references,
        "the same again": story.repeat,
    }
    question = f"Who is player {story.player_id}, what are its guild, planet and fleet, and who else is in the guild?"
    costs = [
        (name, str(len(run.calls)), str(run.upstream_queries), f"{run.bytes:,}", _milliseconds(run.seconds))
        for name, run in runs.items()
    ]
    notes = (
        textwrap.fill(note, _WIDTH, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
        for note in _notes(story)
    )
    parts = [
        f"The agent's question: {question}",
        _heading("Without references: it looks up one id after the other"),
        *(_exchange(call, story) for call in story.without.calls),
        _heading("With references: the list names guild, planet and fleet, and each comes along once"),
        *(_exchange(call, story) for call in story.with_references.calls),
        _heading("What it found out, the same both ways" if story.same_facts else "What it found out, NOT the same"),
        *("\n".join(f"{name:<12} {_fact(fact)}" for name, fact in run.facts.items()) for run in found),
        _heading("What it cost"),
        table(("run", "calls the agent made", "upstream queries", "bytes the agent read", "time"), costs),
        "\n".join(notes),
    ]
    return "\n\n".join(parts)


def _notes(story: Story) -> Iterator[str]:
    """Yield what the table does not say by itself, the price included."""
    without, at_once, repeat, alone = story.without, story.with_references, story.repeat, story.player_only
    asked = ", ".join(f"GET {path}" for path in repeat.asked or ()) or f"{repeat.upstream_queries} answers"
    yield (
        f"The same again, while answers are kept: {repeat.from_cache} answers came from the cache, "
        f"and the node was asked for {asked if repeat.upstream_queries else 'nothing'}."
    )
    guild, player = at_once.facts["guild"]["id"], at_once.facts["player"]["id"]
    mates = [row for row in at_once.calls[-1].answer["Player"] if row["guildId"] == guild and row["id"] != player]
    further = sum(bool(row["planetId"]) + bool(row["fleetId"]) for row in mates)
    yield (
        f"The price: references cover every row of the list, so the node had {at_once.upstream_queries} queries "
        f"instead of {without.upstream_queries}, and the agent read {at_once.bytes / without.bytes:.1f} times as much. "
        f"In return it also knows the guild mates' planets and fleets: {further} more calls without references."
    )
    yield (
        f"Only the player, its guild, planet and fleet: {len(alone.calls)} call of structs_query_player with "
        f"references instead of {len(without.calls) - 1}, {alone.upstream_queries} queries, {alone.bytes:,} bytes, "
        f"{_milliseconds(alone.seconds)}."
    )
    turn = (at_once.seconds - without.seconds) / (len(without.calls) - len(at_once.calls))
    yield (
        "Times are those of the tools. Each call is also a turn of the model, which is not in them: the one call is "
        + (f"the faster way as soon as a turn takes {_milliseconds(turn)}." if turn > 0 else "the faster way even so.")
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _fact(fact: Mapping[str, str] | Sequence[str]) -> str:
    parts = (f"{name} {part}" for name, part in fact.items()) if isinstance(fact, Mapping) else fact
    return printable(", ".join(parts))


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"


def _exchange(call: DemoCall, story: Story) -> str:
    arguments = ", ".join(f"{name}={_json(value)}" for name, value in call.arguments.items())
    shown = {story.without.facts[name]["id"] for name in ("player", "guild", "planet", "fleet")}
    return f"> {call.tool}({arguments})\n{shortened(call.answer, shown)}"


def shortened(answer: Mapping[str, Any], shown: Collection[str]) -> str:
    """Return an answer with a line for each entity whose id is *shown*, and ``...`` for what is left out."""
    parts = []
    for key, value in answer.items():
        if isinstance(value, list):
            text = _members("[]", [(row.get("id"), _fields(row)) for row in value], shown)
        elif key == SECTION:
            entries = [(name, f"{_json(name)}: {_fields(entry)}") for name, entry in value.items()]
            text = _members("{}", entries, shown)
        else:
            text = _fields(value)
        parts.append(f"{_json(key)}: {text}")
    return "{\n  " + ",\n  ".join(parts) + "\n}"


def _members(brackets: str, members: Sequence[tuple[Any, str]], shown: Collection[str]) -> str:
    lines = [text for entity_id, text in members if entity_id in shown]
    if hidden := len(members) - len(lines):
        lines.append(f"... {hidden} more")
    inner = ",\n    ".join(lines)
    return f"{brackets[0]}\n    {inner}\n  {brackets[1]}"


def _fields(value: Any) -> str:
    """Return a value on one line, of a mapping only the fields that the story is about."""
    if not isinstance(value, Mapping):
        return _json(value)
    parts = [f"{_json(name)}: {_fields(value[name])}" for name in value if name in _SHOWN_FIELDS]
    return "{" + ", ".join([*parts, *(["..."] if len(parts) < len(value) else [])]) + "}"


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def printable(text: str) -> str:
    """Return *text* with escapes for what a terminal would obey: names on a chain are anybody's."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
