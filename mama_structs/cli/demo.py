"""
References part of the demo: two questions with and without references, and the cost.

Its sessions have the default settings, so the counts are those of a real model.
Its text consists of plain tables and abbreviated answers.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import attrs

from mama_structs._internal.jsonable import to_json_text
from mama_structs._internal.reprs import align_columns, escape_unprintable
from mama_structs.cli.demo_memory import CHARS_PER_TOKEN
from mama_structs.errors import MamaStructsError, StructsUnreachable
from mama_structs.references.detection import META_KEY, SECTION_KEY
from mama_structs.references.section import References
from mama_structs.session.session import Session
from mama_structs.testing.node.fake_node import FakeNode

# In every generated world, this player has a guild, a planet and a fleet.
BUNDLED_PLAYER: Final = "1-11"
# Players per page. With two related entities each, a page stays below the limit of 50 references per call.
PAGE_ROWS: Final = 16
# Maximum number of list pages to read until the player is found.
# A chain has no query for the page that contains an id, so the pages are read in order.
MAX_PAGES: Final = 64

_RELATION_FIELDS: Final = {"guildId": "guild", "planetId": "planet", "fleetId": "fleet"}
_NAMED_RELATION_FIELDS: Final = {
    "guildId": "guild",
    "planetId": "planet",
}  # Relations whose entities have a name. Fleets are omitted.
_RETRY_HINT: Final = "run the demo again"
_PLAYER_HINT: Final = "leave --player out, and a player with guild, planet and fleet is chosen"
_SHOWN_FIELDS: Final = (
    "reference_type", "id", "name", "owner", "guildId", "planetId", "fleetId", "status", "locationId",
    "gridAttributes", "ore",
)  # fmt: skip
MAX_COLUMNS: Final = 100
"""Maximum line width in columns. A narrower terminal reduces it."""

DemoFacts = dict[str, Any]
Entity = Mapping[str, Any]


@attrs.frozen
class DemoCall:
    """One tool call of the agent and its answer."""

    tool: str
    arguments: dict[str, Any]
    answer: Any

    @property
    def chars(self) -> int:
        """The length of the answer in characters."""
        return len(self.answer if isinstance(self.answer, str) else to_json_text(self.answer))


@attrs.define
class DemoRun:
    """A scripted agent that calls a session's tools: its calls, its results and their cost."""

    session: Session
    # The bundled node, which counts requests. None if the demo uses a real node.
    node: FakeNode | None = None
    # Pagination key of the page that contains the player. A real agent gets it from the previous page.
    page_key: str | None = None
    calls: list[DemoCall] = attrs.field(factory=list)
    facts: DemoFacts = attrs.field(factory=dict)
    upstream_queries: int = 0
    # Paths of the requests that the bundled node received during the run.
    requested_paths: tuple[str, ...] | None = None
    from_cache: int = 0
    seconds: float = 0.0

    async def call_tool(self, tool: str, **arguments: Any) -> Any:
        """Call a tool and return its answer."""
        answer = await self.session.call(tool, arguments)
        self.calls.append(DemoCall(tool, arguments, answer))
        return answer

    async def read_page(self, **options: Any) -> tuple[Entity, list[Entity]]:
        """Return the answer for the page with the demo's player, and all rows of the page."""
        place = {} if self.page_key is None else {"pagination_key": self.page_key}
        answer = await self.call_tool("structs_list_players", pagination_limit=PAGE_ROWS, **place, **options)
        rows = list(answer["Player"])
        rest = answer.get("shortened", {}).get("/Player")
        while rest is not None and len(rows) < rest["of"]:
            more = await self.call_tool("read_fd", fd=rest["fd"], mode="line", start=len(rows) + 1, count=rest["of"])
            lines = [line.partition("\t")[2] for line in more.splitlines() if line[:1].isdigit()]
            rows += map(json.loads, lines)
            if not lines:
                raise MamaStructsError("the rest of the list cannot be read", hint=_RETRY_HINT)
        return answer, rows

    async def measure(self, script: Callable[[DemoRun, str], Awaitable[DemoFacts]], player_id: str) -> Self:
        """Run a script of agent calls; store its facts, duration and query counts."""
        before, seen = self.session.resolver.stats, len(self.node.requests) if self.node else 0
        started = time.perf_counter()
        self.facts = await script(self, player_id)
        self.seconds = time.perf_counter() - started
        after = self.session.resolver.stats
        self.upstream_queries = after.upstream_queries - before.upstream_queries
        self.from_cache = after.cache_hits - before.cache_hits
        if self.node is not None:
            self.requested_paths = tuple(request.path for request in self.node.requests[seen:])
            if len(self.requested_paths) != self.upstream_queries:
                raise MamaStructsError(
                    f"the session counted {self.upstream_queries} queries and the node {len(self.requested_paths)}",
                    hint="this is a bug of mama_structs; please report it",
                )
        return self

    @property
    def chars(self) -> int:
        """The number of characters that the model reads."""
        return sum(call.chars for call in self.calls)

    @property
    def costs(self) -> dict[str, float]:
        """Calls, queries, characters, tokens and duration of the run."""
        return {
            "agent_calls": len(self.calls),
            "upstream_queries": self.upstream_queries,
            "chars": self.chars,
            "tokens": self.chars // CHARS_PER_TOKEN,
            "seconds": round(self.seconds, 6),
        }


@attrs.frozen
class DemoQuestion:
    """A question that is answered twice: with one call per entity, and with references."""

    text: str
    without_references: DemoRun
    with_references: DemoRun

    @property
    def same_facts(self) -> bool:
        """True if both runs found the same facts."""
        return self.without_references.facts == self.with_references.facts


@attrs.frozen
class DemoStory:
    """The results of the demo: a question about one player and one about a list page."""

    player_id: str
    one: DemoQuestion
    page: DemoQuestion
    # A second run of the list question in the same session, to measure a warm cache.
    repeat: DemoRun

    @property
    def same_facts(self) -> bool:
        """True if all runs found the same facts."""
        return self.one.same_facts and self.page.same_facts and self.repeat.facts == self.page.without_references.facts

    @property
    def runs(self) -> dict[tuple[str, str], DemoRun]:
        """All runs, keyed by question and variant."""
        both = {("player", "without"): self.one.without_references, ("player", "with"): self.one.with_references}
        listed = {("list", "without"): self.page.without_references, ("list", "with"): self.page.with_references}
        return {**both, **listed, ("list", "repeat"): self.repeat}

    @property
    def figures(self) -> dict[str, Any]:
        """The costs of all runs by question and variant, and whether their facts are equal."""
        figures: dict[str, Any] = {"player": {}, "list": {}}
        for (question, way), run in self.runs.items():
            figures[question][way] = run.costs
        return {**figures, "same_facts": self.same_facts}


async def query_player_one_by_one(agent: DemoRun, player_id: str) -> DemoFacts:
    """Find the facts about a player without references: one call for each id."""
    player = (await agent.call_tool("structs_query_player", player_id=player_id))["Player"]
    related = []
    for field, kind in _RELATION_FIELDS.items():
        answer = await agent.call_tool(f"structs_query_{kind}", **{f"{kind}_id": _get_related_id(player, field)})
        related.append(_flatten(answer, kind.capitalize()))
    return _collect_facts(player, related)


async def query_player_with_references(agent: DemoRun, player_id: str) -> DemoFacts:
    """Find the facts about a player with references: one call for all related entities."""
    types = [*_RELATION_FIELDS.values()]
    answer = await agent.call_tool(
        "structs_query_player", player_id=player_id, include_references=True, reference_types=types
    )
    player = answer["Player"]
    return _collect_facts(
        player, [_get_reference(answer, _get_related_id(player, field)) for field in _RELATION_FIELDS]
    )


async def query_page_one_by_one(agent: DemoRun, _: str) -> DemoFacts:
    """Find the facts about a page of players without references: one call per distinct id."""
    rows = (await agent.read_page())[1]
    return await _look_up_rows(agent, rows, {})


async def _look_up_rows(agent: DemoRun, rows: Iterable[Entity], page: Entity) -> DemoFacts:
    """Return the facts about the rows, with one call for each id that has no reference in *page*."""
    rows = list(rows)
    found: dict[str, Entity] = {one: _get_reference(page, one) for one in References.from_result(page)}
    for row in rows:
        for field, kind in _NAMED_RELATION_FIELDS.items():
            if (entity_id := row[field]) and entity_id not in found:
                answer = await agent.call_tool(f"structs_query_{kind}", **{f"{kind}_id": entity_id})
                found[entity_id] = answer[kind.capitalize()]
    return _collect_row_facts(rows, found.__getitem__)


async def query_page_with_references(agent: DemoRun, _: str) -> DemoFacts:
    """Find the facts about a page of players with references. Only the shown rows have them."""
    answer, rows = await agent.read_page(include_references=True, reference_types=[*_NAMED_RELATION_FIELDS.values()])
    return await _look_up_rows(agent, rows, answer)


def _collect_facts(player: Entity, related: Sequence[Entity]) -> DemoFacts:
    """Return the facts about a player, in the same form for both variants."""
    guild, planet, fleet = related
    return {
        "player": {"id": player["id"], "name": _get_name(player)},
        "guild": {"id": guild["id"], "name": _get_name(guild), "owner": guild["owner"]},
        "planet": {"id": planet["id"], "ore": planet["gridAttributes"]["ore"], "owner": planet["owner"]},
        "fleet": {"id": fleet["id"], "status": fleet["status"], "place": fleet["locationId"]},
    }


def _collect_row_facts(rows: Iterable[Entity], entity: Callable[[str], Entity]) -> DemoFacts:
    """Return the names of each row and of its related entities, keyed by the row's id."""
    return {
        row["id"]: {
            "name": _get_name(row),
            **{kind: _get_name(entity(row[field])) for field, kind in _NAMED_RELATION_FIELDS.items() if row[field]},
        }
        for row in rows
    }


async def run_demo(
    *,
    base_url: str | None = None,
    player_id: str | None = None,
    seed: int = 1,
    players: int = 12,
    latency: float = 0.02,
) -> DemoStory:
    """Run the demo on a real or the bundled node. The command has the same arguments."""
    if base_url is None:
        async with FakeNode.world(seed=seed, players=players, latency=latency) as node:
            return await _run_on_node(node.url, player_id or BUNDLED_PLAYER, node)
    try:
        return await _run_on_node(base_url, player_id, None)
    except StructsUnreachable as error:
        raise MamaStructsError(
            "no Structs node answers at --base-url", hint="is it running? A local one is at http://localhost:1317"
        ) from error


async def _run_on_node(base_url: str, wanted: str | None, node: FakeNode | None) -> DemoStory:
    player_id, page_key = await _find_player(base_url, wanted)
    runs: list[DemoRun] = []
    # Each variant starts a new session with an empty cache, so that it does not profit from earlier runs.
    for scripts in (
        (query_player_one_by_one,),
        (query_player_with_references,),
        (query_page_one_by_one,),
        (query_page_with_references, query_page_with_references),
    ):
        async with Session.open(structs=base_url) as session:
            session.resolver.invalidate()
            runs += [await DemoRun(session, node, page_key).measure(script, player_id) for script in scripts]
    one = DemoQuestion(f"Who is player {player_id}, and what are its guild, planet and fleet?", *runs[:2])
    page = DemoQuestion("What are the guilds and planets of the players on this page of the list called?", *runs[2:4])
    return DemoStory(player_id, one, page, runs[4])


async def _find_player(base_url: str, wanted: str | None) -> tuple[str, str | None]:
    """
    Return a player's id and the key of its page.

    The default is the first player with all relations.
    """
    async with Session.open(structs=base_url) as session:
        if wanted is not None:
            player = (await session.call("structs_query_player", {"player_id": wanted}))["Player"]
            for field in _RELATION_FIELDS:
                _get_related_id(player, field)
        key: str | None = None
        seen = 0
        for _ in range(MAX_PAGES):
            page = await session.call("structs_list_players", {"pagination_limit": PAGE_ROWS, "pagination_key": key})
            for row in page["Player"]:
                if row["id"] == wanted or (wanted is None and all(row.get(field) for field in _RELATION_FIELDS)):
                    return str(row["id"]), key
            seen += len(page["Player"])
            key = page["pagination"].get("next_key")
            if not key:
                break
    if wanted is not None:
        what = f"player {wanted} is not among the first {seen:,} players, through which the demo looks for it"
        raise MamaStructsError(what, hint=_PLAYER_HINT)
    what = f"none of the first {seen:,} players has a guild, a planet and a fleet"
    raise MamaStructsError(what, hint="name another node, or a player with --player")


def _flatten(answer: Entity, envelope: str) -> Entity:
    """Merge the fields of an entity and of its envelope into one mapping, as references do."""
    outer_fields = {name: value for name, value in answer.items() if name != envelope}
    return {**answer[envelope], **outer_fields}


def _get_related_id(player: Entity, field: str) -> str:
    if not player.get(field):
        raise MamaStructsError(f"player {player['id']} has no {_RELATION_FIELDS[field]}", hint=_PLAYER_HINT)
    return str(player[field])


def _get_reference(answer: Entity, entity_id: str) -> Entity:
    """Return the reference to an id from an answer. Raise if it is missing or failed."""
    references = References.from_result(answer)
    if entity_id in references.failed or entity_id not in references:
        why = references.failed.get(entity_id, "it was left out")
        raise MamaStructsError(f"the reference to {entity_id} is missing: {why}", hint=_RETRY_HINT)
    return references[entity_id]


def _get_name(entity: Entity) -> str:
    """Return the name of an entity, or its id on older chains, which have no names."""
    return str(entity.get("name") or entity["id"])


# Text output


def render_story(story: DemoStory, *, width: int = MAX_COLUMNS) -> str:
    """
    Return the text of this part: references for one player, and the cost of references.

    Lines have at most *width* columns, except for longer words.
    """
    costs = [
        (
            question, way, str(len(run.calls)), str(run.upstream_queries), f"{run.chars:,}",
            f"{run.chars // CHARS_PER_TOKEN:,}", _format_milliseconds(run.seconds),
        )
        for (question, way), run in story.runs.items()
    ]  # fmt: skip
    header = ("question", "references", "calls", "queries", "characters", "tokens", "time")
    table = align_columns(header, costs, left_columns=2)
    if max(map(len, table.splitlines())) > width:
        table = "\n".join(
            f"{question} ({way}): {', '.join(map(' '.join, zip(header[2:-1], counts, strict=True)))}, {taken}"
            for question, way, *counts, taken in costs
        )
    parts = [
        *_describe_question(story),
        _format_heading("What references cost, with the default settings"),
        f"The same for a list: {story.page.text} {_describe_result(story.page)}.",
        table,
        "\n".join(f"* {note}" for note in _describe_costs(story)),
    ]
    return "\n".join(_wrap_line(line, width) for line in "\n\n".join(parts).splitlines())


def _wrap_line(line: str, width: int) -> str:
    """Wrap a line to *width* columns; continuation lines are indented except for prose."""
    if not line.strip("="):
        return line[:width]
    indent = "" if line[0].isalpha() else (len(line) - len(line.lstrip()) + 2) * " "
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _describe_question(story: DemoStory) -> Iterator[str]:
    """Yield the question about one player, both runs and the facts."""
    question = story.one
    yield _format_heading(f"References: {question.text}")
    for way, run in (
        ("Without references", question.without_references),
        ("With references", question.with_references),
    ):
        yield f"{way}: {len(run.calls)} call{'' if len(run.calls) == 1 else 's'}"
        yield from (_format_exchange(call) for call in run.calls)
    yield f"{_describe_result(question)}:"
    runs = (
        (question.without_references,)
        if question.same_facts
        else (question.without_references, question.with_references)
    )
    for run in runs:
        yield "\n".join(f"{name:<8} {_format_fact(fact)}" for name, fact in run.facts.items())


def _describe_result(question: DemoQuestion) -> str:
    return "Both ways find out the same" if question.same_facts else "The two ways did NOT find out the same"


def _describe_costs(story: DemoStory) -> Iterator[str]:
    """Yield notes on the cost table, including the extra cost of references."""
    for what, question, plain in (
        ("the player's answer", story.one, story.one.without_references.calls[0].chars),
        ("the list's answer", story.page, story.page.without_references.calls[0].chars),
    ):
        run = question.with_references
        more = run.chars - plain
        yield (
            f"The price: with references {what} has {run.chars:,} characters instead of {plain:,} ({more:,} more), and "
            f"the node answers {run.upstream_queries} queries instead of 1, even if the model needs none of them. "
            f"If it would have asked for them, {_describe_savings(question)}."
        )
    left = story.page.with_references.calls[0].answer
    meta = left.get(META_KEY, {}) if isinstance(left, Mapping) else {}
    if (short := meta.get("shortened")) is not None:
        fd = f" {short['fd']} has them whole." if "fd" in short else ""
        yield f"The list shows {short['shown']} of {short['of']} references; left out: {short['left_out']}.{fd}"
    asked = (
        ", ".join(f"GET {path}" for path in story.repeat.requested_paths or ())
        or f"{story.repeat.upstream_queries} answers"
    )
    yield (
        f"The same call again, while answers are cached: {story.repeat.from_cache} answers came from the cache, "
        f"and the node was asked for {asked if story.repeat.upstream_queries else 'nothing'}."
    )
    yield (
        "Queries are those that the node answers, tokens are a quarter of the characters that the model reads, and "
        "times are those of the tools. Each call is also a turn of the model, which takes time of its own."
    )


def _describe_savings(question: DemoQuestion) -> str:
    without, with_references = question.without_references, question.with_references
    calls, chars = len(without.calls) - len(with_references.calls), without.chars - with_references.chars
    return f"it saves {calls} calls and {chars:,} characters" if chars >= 0 else f"it saves {calls} calls"


def _format_milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _format_fact(fact: Mapping[str, str]) -> str:
    return escape_unprintable(", ".join(f"{name} {part}" for name, part in fact.items()))


def _format_heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"


def _format_exchange(call: DemoCall) -> str:
    return f"{_format_call(call)}\n{abbreviate(call.answer)}"


def _format_call(call: DemoCall) -> str:
    return f"> {call.tool}({', '.join(f'{name}={_format_json(value)}' for name, value in call.arguments.items())})"


def abbreviate(answer: Mapping[str, Any]) -> str:
    """Abbreviate an answer: one line per part and reference, ``...`` for omitted fields."""
    parts = []
    for key, value in answer.items():
        if key == SECTION_KEY:
            inner = ",\n    ".join(f"{_format_json(name)}: {_format_fields(entry)}" for name, entry in value.items())
            parts.append(f"{_format_json(key)}: {{\n    {inner}\n  }}")
        else:
            parts.append(f"{_format_json(key)}: {_format_fields(value)}")
    return "{\n  " + ",\n  ".join(parts) + "\n}"


def _format_fields(value: Any) -> str:
    """Format a value on one line. For a mapping, include only the fields in `_SHOWN_FIELDS`."""
    if not isinstance(value, Mapping):
        return _format_json(value)
    parts = [f"{_format_json(name)}: {_format_fields(value[name])}" for name in value if name in _SHOWN_FIELDS]
    return "{" + ", ".join([*parts, *(["..."] if len(parts) < len(value) else [])]) + "}"


def _format_json(value: Any) -> str:
    return escape_unprintable(json.dumps(value, ensure_ascii=False))
