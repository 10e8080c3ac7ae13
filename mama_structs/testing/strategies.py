"""
Hypothesis strategies for Structs data: ids, texts that merely look like ids, payloads with planted ids, worlds, delays.
For refs: documents with planted refs, and ways to cut a text. For agents: memories, arguments of tools, messages.

They share no code with the detector or the parser, so that they can tell whether these are right.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import json
import random
import string
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from mama_structs.memory.model import Memory
from mama_structs.memory.store import MemoryStore
from mama_structs.structs.ids import MAX_INDEX, EntityId, EntityType
from mama_structs.testing.world import TABLES, World

__all__ = [
    "Delays",
    "PlantedChain",
    "PlantedMessage",
    "PlantedPayload",
    "PlantedRef",
    "PlantedReference",
    "RefDocument",
    "chains",
    "chunkings",
    "decisions",
    "delays",
    "entity_id_texts",
    "entity_ids",
    "entity_types",
    "latencies",
    "list_payloads",
    "look_alikes",
    "memories",
    "messages",
    "payloads",
    "ref_documents",
    "ref_ids",
    "tool_arguments",
    "worlds",
]

_WITH_IDS: Final = tuple(member for member in EntityType if member.has_ids)

# Small numbers, so that ids meet again; the ends of the range; and numbers that floats cannot hold.
_INDEXES = st.integers(1, 30) | st.sampled_from([2**53 + 1, 2**63, MAX_INDEX]) | st.integers(1, MAX_INDEX)


def entity_types() -> st.SearchStrategy[EntityType]:
    """Give every type, infusions and addresses included."""
    return st.sampled_from(tuple(EntityType))


def entity_ids(*, types: Iterable[EntityType] | None = None) -> st.SearchStrategy[EntityId]:
    """
    Give ids of the types that have ids.

    Args:
        types: Only of these types; None for all that have ids.

    """
    return st.builds(EntityId, st.sampled_from(_WITH_IDS if types is None else tuple(types)), _INDEXES)


def entity_id_texts(*, types: Iterable[EntityType] | None = None) -> st.SearchStrategy[str]:
    """Give ids as the chain writes them, such as ``1-11``; see `entity_ids`."""
    return entity_ids(types=types).map(str)


_KNOWN_LOOK_ALIKES = (
    "01-1", "1-01", "1-0", "0-0", " 1-1", "1-1 ", "1-11\n", "\ufeff1-11", "12-3", "14-5", "20-1", "100-1", "2024-01",
    "2025-1", "11-1-194", "6-1-100-1", "6-53@1-194", "8-structs1qypqxpq9@0", "uguild.0-1", "structs.planet.2-223.1-194",
    "3-1/structs1qypqxpq9", "1--1", "-1-1", "1-", "-1", "-", "", "1-+1", "+1-1", "1-1.0", "1-1e3", "1_0-1", "1-1_0",
    "0x1-1", "1-0x1", "1 - 1", "1:1", "1/1", "1\u20131", "1\u22121",
    "\u0661-\u0661", "1-\u0661\u0662", "\uff11-\uff11", "\u00b9-\u00b2",
    f"1-{MAX_INDEX + 1}", "1-" + "9" * 40, "1-1\x00", "v1-1", "1-1a", "1-11,1-12", '"1-11"', "14", "2184",
)  # fmt: skip


def look_alikes() -> st.SearchStrategy[str]:
    """Give texts that look like ids and are none: `EntityId.parse` refuses every one."""
    text = entity_id_texts()
    index = _INDEXES.map(str)
    return st.one_of(
        st.sampled_from(_KNOWN_LOOK_ALIKES),
        st.builds("{}{}".format, text, st.sampled_from([" ", "\n", "\t", "-1", ".0", "@1-1", "a", "\u0660"])),
        st.builds("{}{}".format, st.sampled_from([" ", "0", "-", "+", "uguild.", "v", "5-1@"]), text),
        st.builds("{}-0{}".format, st.integers(0, 11), index),
        st.builds("{}-{}".format, st.integers(min_value=12), index),
        st.builds("{}-{}".format, st.integers(0, 11), st.integers(min_value=MAX_INDEX + 1)),
        text.map(lambda known: known.translate({ord("0") + digit: 0x0660 + digit for digit in range(10)})),
    )


def worlds(*, players: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[World]:
    """
    Give generated worlds.

    Args:
        players: Their sizes; None for 12 to 60 players.

    """
    sizes = st.integers(12, 60) if players is None else players
    return st.builds(World.generate, seed=st.integers(0, 2**32 - 1), players=sizes)


def latencies(ids: Collection[str], *, max: float = 0.02) -> st.SearchStrategy[dict[str, float]]:  # noqa: A002 - seconds at most
    """
    Give a latency for each of some ids, as `mama_structs.testing.FakeNode` takes it.

    Args:
        ids: The ids.
        max: The longest, in seconds.

    """
    return st.fixed_dictionaries({entity_id: st.floats(0.0, max, allow_subnormal=False) for entity_id in ids})


@attrs.frozen
class Delays:
    """
    A delay for every id there is, always the same for the same id.

    Args:
        seed: Another seed gives other delays.
        max: The longest, in seconds.

    """

    seed: int
    max: float

    def __getitem__(self, entity_id: str) -> float:
        """Return the delay of an id in seconds."""
        # A quarter comes at once, so that ties occur too.
        delay = random.Random(f"{self.seed}/{entity_id}").uniform(-self.max / 3, self.max)  # noqa: S311 - no secret
        return delay if delay > 0 else 0.0


def delays(*, max: float = 0.02) -> st.SearchStrategy[Delays]:  # noqa: A002 - seconds at most
    """
    Give a delay for every id, when the ids are not known before: ``delays["1-11"]`` is in seconds.

    Args:
        max: The longest, in seconds.

    """
    return st.builds(Delays, seed=st.integers(0, 2**32 - 1), max=st.just(max))


# Payloads in which the ids that a detector must find are known

Draw = st.DrawFn

_G, _P, _L, _R = EntityType.GUILD, EntityType.PLAYER, EntityType.PLANET, EntityType.REACTOR
_S, _T, _A, _F = EntityType.SUBSTATION, EntityType.STRUCT, EntityType.ALLOCATION, EntityType.FLEET

# What a field may hold; direct relations first.
_PRIMARY: Final = {
    "owner": (_P,), "guildId": (_G,), "planetId": (_L,), "fleetId": (_F,), "substationId": (_S,),
    "primaryReactorId": (_R,), "entrySubstationId": (_S,), "reactorId": (_R,), "locationId": (_L, _F),
    "providerId": (EntityType.PROVIDER,), "allocationId": (_A,), "sourceObjectId": (_P, _R, _S),
    "destinationId": (_R, _S, _T), "controller": (_P,),
    "guild_id": (_G,), "planet_id": (_L,), "fleet_id": (_F,), "substation_id": (_S,), "primary_reactor_id": (_R,),
    "entry_substation_id": (_S,), "provider_id": (EntityType.PROVIDER,), "location_id": (_L, _F),
}  # fmt: skip
_SECONDARY: Final = {
    "playerId": (_P,), "player_id": (_P,), "proposer": (_P,), "commandStruct": (_T,), "command_struct": (_T,),
    "locationListStart": (_F,), "locationListLast": (_F,), "locationListForward": (_F,), "locationListBackward": (_F,),
    "attackerStructId": (_T,), "objectId": _WITH_IDS,
}  # fmt: skip
_SCALARS: Final = _PRIMARY | _SECONDARY
_HINTED: Final = {name: types for name, types in _SCALARS.items() if types != _WITH_IDS}
_ARRAYS: Final = ("space", "air", "land", "water", "structDefenders", "defending_struct_ids")
# Names that promise nothing; some need escapes in a JSON pointer.
_NEUTRAL: Final = ("related", "target", "nearby", "a/b", "m~n", "~1", "", "대상", "0")
_DENIED: Final = (
    "pfp", "pfpClientRenderAttributes", "endpoint", "name", "username", "description", "message", "error", "version",
    "schema_version", "api_version", "coordinates", "position", "range", "timestamp", "created_at", "updated_at",
    "next_key", "total",
)  # fmt: skip
_NOISE: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [None, True, False, 0, 11, -1.5, "", "0", "active", "structs1qypqxpq9", "0.040000000000000000", [], {}, [None, 7]]
)

# The fields of each type's records that hold references.
_ROW_FIELDS: Final = {
    _G: ("owner", "primaryReactorId", "entrySubstationId"),
    _P: ("guildId", "substationId", "planetId", "fleetId"),
    _L: ("owner", "space", "air", "land", "water", "locationListStart", "locationListLast"),
    _R: ("guildId", "owner"),
    _S: ("owner",),
    _T: ("owner", "locationId"),
    _A: ("sourceObjectId", "destinationId", "controller"),
    _F: ("owner", "locationId", "locationListForward", "locationListBackward", "space", "land", "commandStruct"),
    EntityType.PROVIDER: ("substationId", "owner"),
    EntityType.AGREEMENT: ("providerId", "allocationId", "owner"),
}


@attrs.frozen
class PlantedReference:
    """
    An id that a detector must find.

    Args:
        id: The id.
        pointers: The JSON pointers (RFC 6901) of all its places, in document order;
            an id inside JSON in a string is at the string.
        primary: Whether one of the places is a direct relation.

    """

    id: EntityId
    pointers: tuple[str, ...]
    primary: bool


@attrs.frozen
class PlantedPayload:
    """
    A payload and what a detector must find in it: exactly *references*.

    Args:
        payload: The payload, as JSON would give it.
        references: The ids, each once, in the order of their first places.
        look_alikes: The texts in it that look like ids and are not to be found.
        subject: The id of the entity that the payload is about, which is no reference to itself; None without one.
        own_ids: For a list: the rows' own ids.

    """

    payload: dict[str, Any]
    references: tuple[PlantedReference, ...]
    look_alikes: tuple[str, ...]
    subject: EntityId | None = None
    own_ids: tuple[EntityId, ...] = ()

    @property
    def ids(self) -> list[str]:
        """The ids of the references as text, in document order."""
        return [str(reference.id) for reference in self.references]


@attrs.frozen
class _Value:
    """A value of a payload in the making, and the ids in it, with whether each is a direct relation; None: not one."""

    value: Any
    ids: tuple[tuple[str, bool | None], ...]


def _ids(types: Iterable[EntityType]) -> st.SearchStrategy[str]:
    # Few of them, so that they meet again.
    indexes = st.integers(1, 5) | st.sampled_from([2**53 + 1, MAX_INDEX])
    return st.builds(EntityId, st.sampled_from([*types]), indexes).map(str)


def _references(types: Iterable[EntityType], *, primary: bool = False) -> st.SearchStrategy[_Value]:
    return _ids(types).map(lambda text: _Value(text, ((text, primary),)))


def _misleading(texts: st.SearchStrategy[str]) -> st.SearchStrategy[_Value]:
    return texts.map(lambda text: _Value(text, ((text, None),)))


def _in_text(owner: str, struct: str) -> _Value:
    """Write JSON into a string: what is in it stands where the string stands."""
    text = json.dumps({"owner": owner, "land": ["", struct], "name": "2-1"})
    return _Value(text, ((owner, True), (struct, False)))


def _bare(index: int, kind: type) -> _Value:
    """Write the index of a struct without its type; 0 stands for none."""
    return _Value(kind(index), ((f"5-{index}", False),) if index else ())


def _one_of(fields: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.sampled_from([*fields]).flatmap(lambda name: st.tuples(st.just(name), fields[name]))


def _any_of(names: Iterable[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.sampled_from([*names]), values)


_DEPTH: Final = 3
_FIELDS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    **{name: _references(types, primary=name in _PRIMARY) for name, types in _SCALARS.items()},
    **{name: st.lists(_references((_T,)) | st.just(""), max_size=4) for name in _ARRAYS},
}
_MISMATCHED: Final = {
    name: _misleading(_ids(one for one in _WITH_IDS if one not in types)) for name, types in _HINTED.items()
}
_NO_REFERENCE: Final = _misleading(_ids(_WITH_IDS))
_LOOK_ALIKES: Final = st.sampled_from(
    ["01-1", "1-0", " 1-1", "12-3", "2024-01", "11-1-194", "6-53@1-194", "uguild.0-1", "1-11\n", "1-1\u0661",
     "7-1", "8-2", f"1-{MAX_INDEX + 1}"]
)  # fmt: skip
_PAGINATION: Final = st.fixed_dictionaries(
    {"next_key": _NO_REFERENCE, "first": st.tuples(_misleading(st.just("1-11"))).map(list), "total": st.just("2")}
)
_MEMBERS: Final = (
    # Three, so that they are chosen more often.
    *(_one_of(_FIELDS) for _ in range(3)),
    _any_of(_NEUTRAL, _references(_WITH_IDS)),
    _any_of(_DENIED, _NO_REFERENCE),
    _one_of(_MISMATCHED),
    _any_of([*_NEUTRAL, *_SCALARS], _misleading(_LOOK_ALIKES)),
    _any_of(["protectedStructIndex"], st.builds(_bare, st.integers(0, 9), st.sampled_from([int, str]))),
    _any_of(["pagination"], _PAGINATION),
    _any_of(["map", "detail"], st.builds(_in_text, _ids((_P,)), _ids((_T,)))),
    _any_of(["map", "detail"], _misleading(st.just('{"owner": "1-11"'))),
    _any_of(["maxOre", "status", "gridAttributes", "index"], _NOISE),
)


@functools.cache
def _mappings(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    members = [*_MEMBERS]
    if depth:
        members.append(_any_of(["attributes", "nested", "a/b", "outer~inner"], _mappings(depth - 1)))
    # Not at the top: an array of objects there makes a list of rows of the payload.
    if 0 < depth < _DEPTH:
        members.append(_any_of(["rows", "events"], st.lists(_mappings(depth - 1), max_size=3)))
    return st.lists(st.one_of(members), max_size=7).map(dict)


def escape(name: str) -> str:
    """Write a key as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _planted(tree: dict[str, Any], own: Collection[EntityId] = (), **about: Any) -> PlantedPayload:
    """Write a payload, and note where its ids stand; *own* are no references."""
    found: dict[str, list[tuple[str, bool]]] = {}
    look_alikes: list[str] = []

    def write(node: Any, pointer: str) -> Any:
        if isinstance(node, dict):
            return {name: write(member, f"{pointer}/{escape(name)}") for name, member in node.items()}
        if isinstance(node, list):
            return [write(member, f"{pointer}/{at}") for at, member in enumerate(node)]
        if not isinstance(node, _Value):
            return node
        for text, primary in node.ids:
            if primary is None or text in map(str, own):
                look_alikes.append(text)
            else:
                found.setdefault(text, []).append((pointer, primary))
        return node.value

    payload = write(tree, "")
    references = [
        PlantedReference(EntityId.parse(text), tuple(at for at, _ in places), any(primary for _, primary in places))
        for text, places in found.items()
    ]
    return PlantedPayload(payload, tuple(references), tuple(look_alikes), **about)


def payloads() -> st.SearchStrategy[PlantedPayload]:
    """
    Give payloads of any nesting with ids under many fields, among much that must not be taken for ids.

    Some are about an entity: ``{"Player": {"id": ..., ...}, ...}``, with that id elsewhere too.
    """

    def about(subject: EntityId, record: dict[str, Any], beside: dict[str, Any], met_again: bool) -> PlantedPayload:  # noqa: FBT001 - drawn
        if met_again and (named := _planted(beside).references):
            subject = named[0].id
        entity = {TABLES[subject.type].key: {"id": str(subject), **record}}
        return _planted(entity | beside, [subject], subject=subject)

    subjects = st.builds(EntityId, st.sampled_from(_WITH_IDS), st.integers(1, 30))
    # Beside the entity the usual siblings; without one the payload's own members.
    members = _mappings(_DEPTH)
    return members.map(_planted) | st.builds(about, subjects, _mappings(_DEPTH - 1), members, st.booleans())


def list_payloads(*, min_size: int = 0, max_size: int = 5) -> st.SearchStrategy[PlantedPayload]:
    """
    Give the chain's lists: rows of one type, and ``pagination``.

    Args:
        min_size: The fewest rows.
        max_size: The most rows.

    """

    def of(kind: EntityType) -> st.SearchStrategy[PlantedPayload]:
        fields = {name: _FIELDS[name] | st.just("") for name in _ROW_FIELDS[kind]}
        row = st.fixed_dictionaries(fields | {"pfp": _NO_REFERENCE})
        rows = st.dictionaries(st.integers(1, 5) | st.integers(1, 30), row, min_size=min_size, max_size=max_size)
        next_keys = st.sampled_from([None, "MS0xMg=="]) | _misleading(st.just("1-12"))
        return st.builds(listed, st.just(kind), rows, next_keys)

    def listed(kind: EntityType, rows: dict[int, dict[str, Any]], next_key: Any) -> PlantedPayload:
        own = tuple(EntityId(kind, index) for index in sorted(rows, key=str))
        page = [{"id": str(one), **rows[one.index]} for one in own]
        pagination = {"next_key": next_key, "total": str(len(rows))}
        return _planted({TABLES[kind].key: page, "pagination": pagination}, own, own_ids=own)

    return st.sampled_from([*_ROW_FIELDS]).flatmap(of)


# Answers of a model in which the refs that a parser must find are known

_FIRST: Final = string.ascii_letters + string.digits
_BREAKS: Final = ("\n", "\r\n")

# Text that means nothing anywhere. None of it, joined in any order, makes a tag, a fence or a code span.
_PROSE: Final = st.sampled_from(
    [
        "plain words", " ", "\n", "\r\n", "\n\n", "    ", "a < b && c > d", "<b>bold</b>", "<", ">", "/", '"', "'", "=",
        '<refs id="no">', "<reference id='no'>", "</refs>", '<ref\u00a0id="no">', '&lt;ref id="no">&lt;/ref>',
        '<re f id="no">', 'ref id="no"', "~5", "\u00e9\u4e2d\U0001f600", "\t", "\r", "\x00", "x" * 600,
    ]
)  # fmt: skip

# Refs that are none, because they are shown as code. Each fence stands on lines of its own, and no two runs touch.
_DECOYS: Final = st.sampled_from(
    [
        '`<ref id="decoy">no</ref>` ', '``a ` <ref id="decoy"> ` b`` ', "`<ref id='decoy'/>` ", "`</ref>` ",
        '\n```\n<ref id="decoy">no</ref>\n```\n', '\n~~~ text\n<ref id="decoy">\n~~~\n',
        '\n````\n```\n<ref id="decoy">\n```\n`````\t\n', '\n~~~~\n```\n~~~\n    ~~~~\n<ref id="decoy">\n~~~~\r\n',
        '\r\n```\r\n<ref id="decoy">no</ref>\r\n```\r\n', "\n   ```html\n</ref>\n ```  \n",
    ]
)  # fmt: skip

# What is code outside refs and mere text inside them.
_INSIDE: Final = st.sampled_from(["`", "```", "\n```\n", "\n~~~\n", "``", "\n````python\nprint('<b>')\n", "~~~", "`x"])

_ATTRIBUTES: Final = st.sampled_from(["type", "lang", "title", "data-x", "x_y", "flag", "\u00e9"])
_VALUES: Final = st.sampled_from(
    ["", "code", "a>b", "<b>", '<ref id="no">', "</ref>", "it's", 'say "x"', "two\nlines", "`", "a/b", "=", "&amp;",
     " x "]
)  # fmt: skip
_SPACES: Final = st.sampled_from([" ", " ", "  ", "\n", "\t", "\r\n", "\f"])
_NO_SPACES: Final = st.sampled_from(["", "", "", " ", "\n"])


@attrs.frozen
class PlantedRef:
    """
    A ref that a parser must find.

    Args:
        id: Its id.
        attributes: The others, names in lower case.
        content: Its text without the tags of refs inside, and without the one line break at each end.
        complete: False when it is not closed.

    """

    id: str
    attributes: dict[str, str]
    content: str
    complete: bool


@attrs.frozen
class RefDocument:
    """
    A text and what a parser must find in it: exactly *refs*.

    Args:
        text: What a model wrote.
        refs: Its refs, in order of opening tags.
        visible: The text without their tags.

    """

    text: str
    refs: tuple[PlantedRef, ...]
    visible: str


@attrs.frozen
class _Part:
    """A piece of a document: as written, as seen, and the refs in it."""

    text: str = ""
    visible: str = ""
    refs: tuple[PlantedRef, ...] = ()

    def __add__(self, other: _Part) -> _Part:
        return _Part(self.text + other.text, self.visible + other.visible, self.refs + other.refs)


def ref_ids() -> st.SearchStrategy[str]:
    """Give the ids that a ref may have; short ones more often, so that some meet again."""
    short = st.sampled_from(["a", "b", "plan", "x.1", "A", "0", "한글-1", "план"])
    return short | st.builds(str.__add__, st.sampled_from(_FIRST), st.text(_FIRST + "_.-\u00e9한", max_size=63))


def _cased(draw: Draw, word: str) -> str:
    return draw(st.sampled_from([word, word, word.upper(), word.title()]))


def _attribute(draw: Draw, name: str, value: str) -> str:
    if not value and draw(st.booleans()):
        return name
    quotes = [quote for quote in "\"'" if quote not in value]
    quote = draw(st.sampled_from(quotes))
    return f"{name}{draw(_NO_SPACES)}={draw(_NO_SPACES)}{quote}{value}{quote}"


def _tag(draw: Draw, ref_id: str, attributes: dict[str, str], *, empty: bool) -> str:
    members = draw(st.permutations([("id", ref_id), *attributes.items()]))
    if draw(st.booleans()):
        # The first of a repeated attribute counts.
        members = [*members, (draw(st.sampled_from(members))[0], draw(_VALUES))]
    written = "".join(
        draw(_SPACES) + _attribute(draw, name if name == "\u00e9" else _cased(draw, name), value)
        for name, value in members
    )
    return f"<{_cased(draw, 'ref')}{written}{draw(_NO_SPACES)}{'/' * empty}>"


def _ref(draw: Draw, depth: int, *, closed: bool = True) -> _Part:
    ref_id = draw(ref_ids())
    attributes = draw(st.dictionaries(_ATTRIBUTES, _VALUES, max_size=3))
    if closed and draw(st.integers(0, 5)) == 0:
        return _Part(
            _tag(draw, ref_id, attributes, empty=True), "", (PlantedRef(ref_id, attributes, "", complete=True),)
        )
    body = _inside(draw, depth - 1)
    if not closed:
        # Where the text ends, all refs that are open do: they have their last character in common.
        deeper = depth > 1 and draw(st.booleans())
        body += _ref(draw, depth - 1, closed=False) if deeper else _plain("and so on")
    content = body.visible
    wraps = [*_BREAKS, *_BREAKS] if content.startswith(_BREAKS) or content.endswith("\n") else ["", *_BREAKS]
    wrap = draw(st.sampled_from(wraps))
    ending = wrap if closed else ""
    closing = f"</{_cased(draw, 'ref')}{draw(_NO_SPACES)}>" if closed else ""
    planted = PlantedRef(ref_id, attributes, content, complete=closed)
    return _Part(
        f"{_tag(draw, ref_id, attributes, empty=False)}{wrap}{body.text}{ending}{closing}",
        f"{wrap}{body.visible}{ending}",
        (planted, *body.refs),
    )


def _plain(text: str) -> _Part:
    return _Part(text, text)


def _inside(draw: Draw, depth: int) -> _Part:
    part = _Part()
    for _ in range(draw(st.integers(0, 4))):
        nested = depth > 0 and draw(st.integers(0, 2)) == 0
        part += _ref(draw, depth) if nested else _plain(draw(_PROSE | _INSIDE))
    return part


def ref_documents(*, max_size: int = 8, max_depth: int = 3, unclosed: bool = True) -> st.SearchStrategy[RefDocument]:
    """
    Give answers of a model with refs among prose, markup, look-alikes and code that shows refs.

    Refs may touch and be nested, be empty, hold code, and have tags with odd order, case, quotes and white space.

    Args:
        max_size: The most pieces, each a ref or other text, that one follows the other.
        max_depth: How deep refs are nested at the most; 1 for no nesting, 0 for no refs.
        unclosed: Whether refs may be left open at the end.

    """
    return _ref_documents(max_size, max_depth, unclosed=unclosed)


@st.composite
def _ref_documents(draw: Draw, max_size: int, max_depth: int, *, unclosed: bool) -> RefDocument:
    part = _Part()
    for _ in range(draw(st.integers(0, max_size))):
        kind = draw(st.sampled_from(["ref", "ref", "prose", "decoy"]))
        if kind == "ref" and max_depth:
            part += _ref(draw, max_depth)
        else:
            part += _plain(draw(_DECOYS if kind == "decoy" else _PROSE))
    if unclosed and max_depth and draw(st.integers(0, 3)) == 0:
        part += _ref(draw, max_depth, closed=False)
    return RefDocument(part.text, part.refs, part.visible)


def chunkings(text: str) -> st.SearchStrategy[list[str]]:
    """
    Give ways to cut a text into chunks: a few anywhere, all of one size, and the text as a whole.

    Args:
        text: What the chunks make up when they are joined; some may be empty.

    """

    def at(places: list[int]) -> list[str]:
        places = [0, *sorted(places), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(places)]

    def of(size: int) -> list[str]:
        return [text[start : start + size] for start in range(0, len(text), size)]

    anywhere: st.SearchStrategy[Any] = st.lists(st.integers(0, len(text)), max_size=8).map(at)
    return anywhere | st.integers(1, 20).map(of)


# Memories, as `MemoryStore.save_many` takes them

_WORDS: Final = (
    "shield", "raid", "guild", "login", "token", "session", "queue", "use", "keep", "not", "2-1", "42 %", "JWT",
    "마이그레이션", "로그인은", "\U0001f600", "'quoted'", "<b>", "</memory>", "a\nline",
)  # fmt: skip
# Of few words, so that memories are of one matter; and of any, so that nothing is taken for granted.
_SAID: Final = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=8).map(" ".join) | st.text(
    st.characters(codec="utf-8"), min_size=1, max_size=40
).filter(str.strip)
_TOPICS: Final = st.sampled_from(["auth", "raids", "storage", "마이그레이션"])


def decisions(*, topics: st.SearchStrategy[str] = _TOPICS) -> st.SearchStrategy[dict[str, Any]]:
    """
    Give decisions as `MemoryStore.save_many` takes them; without ``type`` they are the arguments of `save_decision`.

    Args:
        topics: Their topics; a few by default, so that they meet.

    """
    said = {"type": st.just("decision"), "topic": topics, "decision": _SAID, "reasoning": _SAID | st.just("")}
    return st.fixed_dictionaries(said, optional={"confidence": st.floats(0, 1)})


def memories(*, topics: st.SearchStrategy[str] = _TOPICS) -> st.SearchStrategy[dict[str, Any]]:
    """
    Give memories of any type, as `MemoryStore.save_many` takes them.

    Args:
        topics: As for `decisions`.

    """
    several = st.lists(_SAID, max_size=3)

    def record(kind: str, optional: dict[str, Any], **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({"type": st.just(kind), **fields}, optional=optional)

    return st.one_of(
        decisions(topics=topics),
        record("checkpoint", {"open_files": several, "next_steps": several}, summary=_SAID),
        record("insight", {"category": _SAID, "tags": several}, content=_SAID),
        record("context", {"topic": topics, "source": _SAID}, content=_SAID),
    )


@attrs.frozen
class PlantedChain:
    """
    Decisions of one topic, most of which take the place of an earlier one.

    Args:
        decisions: The arguments of `save_decision`, oldest first.
        supersedes: For each of them the position of the one whose place it takes, None for none.

    """

    decisions: tuple[dict[str, Any], ...]
    supersedes: tuple[int | None, ...]

    async def save(self, memories: MemoryStore) -> list[Memory]:
        """Save them, and return them oldest first."""
        saved: list[Memory] = []
        for given, earlier in zip(self.decisions, self.supersedes, strict=True):
            before = None if earlier is None else saved[earlier].id
            saved.append(await memories.save_decision(**given, supersedes=before))
        return saved


def chains(*, max_size: int = 6) -> st.SearchStrategy[PlantedChain]:
    """
    Give chains of decisions, forks among them.

    Args:
        max_size: The most decisions.

    """
    return _chains(max_size)


@st.composite
def _chains(draw: Draw, max_size: int) -> PlantedChain:
    told = draw(st.lists(decisions(topics=st.just(draw(_TOPICS))), min_size=1, max_size=max_size))
    earlier = [None, *(draw(st.none() | st.integers(0, number)) for number in range(len(told) - 1))]
    given = [{name: value for name, value in one.items() if name != "type"} for one in told]
    return PlantedChain(tuple(given), tuple(earlier))


# Arguments of tools


def tool_arguments(
    schema: Mapping[str, Any], *, texts: Mapping[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """
    Give what a tool takes.

    Args:
        schema: The tool's ``input_schema``.
        texts: What to give, beside any text, for parameters by name, such as ids that there are:
            ``{"planet_id": st.sampled_from(ids), "*_id": ...}``. The first pattern that fits counts.

    """
    return _accepted(schema, "", dict(texts or {}), schema)


def _accepted(
    schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[Any]:
    """Give what a JSON schema, of the kind that signatures become, accepts."""
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return st.deferred(lambda: _accepted(target, name, texts, root))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return st.one_of(*(_accepted(one, name, texts, root) for one in schema[several]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    kinds = schema.get("type", "any")
    if not isinstance(kinds, str):
        return st.one_of(*(_accepted({**schema, "type": kind}, name, texts, root) for kind in kinds))
    least, most = schema.get("minimum"), schema.get("maximum")
    makers: dict[str, Any] = {
        "object": lambda: _objects(schema, texts, root),
        "array": lambda: st.lists(
            _accepted(schema.get("items", {}), name, texts, root),
            min_size=schema.get("minItems", 0), max_size=max(4, schema.get("minItems", 0)),
        ),
        "string": lambda: _texts(schema, name, texts),
        "integer": lambda: st.integers(-3 if least is None else least, 60 if most is None else most),
        "number": lambda: st.floats(-1e9 if least is None else least, 1e9 if most is None else most),
        "boolean": st.booleans,
        "null": st.none,
    }  # fmt: skip
    maker: Any = makers.get(kinds, lambda: st.none() | st.booleans() | st.integers(-3, 60) | st.text(max_size=5))
    given: st.SearchStrategy[Any] = maker()
    return given


def _objects(
    schema: Mapping[str, Any], texts: dict[str, st.SearchStrategy[Any]], root: Mapping[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    members = {name: _accepted(one, name, texts, root) for name, one in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: one for name, one in members.items() if name in required},
        optional={name: one for name, one in members.items() if name not in required},
    )


def _texts(schema: Mapping[str, Any], name: str, texts: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[str]:
    least = schema.get("minLength", 0)
    most = min(schema.get("maxLength", 60), max(least, 60))
    if schema.get("format") in ("date-time", "date"):
        moments = st.datetimes(timezones=st.timezones()) if schema["format"] == "date-time" else st.dates()
        return moments.map(lambda moment: moment.isoformat())
    if "pattern" in schema:
        return st.from_regex(schema["pattern"]).filter(lambda text: least <= len(text) <= schema.get("maxLength", 200))
    written = st.text(min_size=least, max_size=most)
    known = next((one for pattern, one in texts.items() if fnmatch.fnmatchcase(name, pattern)), None)
    return written if known is None else known | written


# Messages of a model


@attrs.frozen
class PlantedMessage:
    """
    A model's message as a provider gives it, in which the refs are known.

    Args:
        message: For `Session.observe` or `RefStore.ingest`.
        document: Its text, and the refs in it.

    """

    message: Any
    document: RefDocument


def messages(*, documents: st.SearchStrategy[RefDocument] | None = None) -> st.SearchStrategy[PlantedMessage]:
    """
    Give a model's messages: bare texts, and messages of OpenAI (both APIs) and Anthropic, with a tool call or without.

    Args:
        documents: Their texts; None for `ref_documents`.

    """

    def message(document: RefDocument, shape: str, has_call: bool) -> PlantedMessage:  # noqa: FBT001 - drawn
        text, calls = document.text, range(int(has_call))
        chat = [{"id": "c", "type": "function", "function": {"name": "list_refs", "arguments": "{}"}} for _ in calls]
        blocks = [{"type": "tool_use", "id": "c", "name": "list_refs", "input": {}} for _ in calls]
        called = [{"type": "function_call", "call_id": "c", "name": "list_refs", "arguments": "{}"} for _ in calls]
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        shapes: dict[str, Any] = {
            "text": text,
            "chat": {"role": "assistant", "content": text, "tool_calls": chat},
            "responses": {"output": [said, *called]},
            "anthropic": {"role": "assistant", "content": [{"type": "text", "text": text}, *blocks]},
        }
        return PlantedMessage(shapes[shape], document)

    shapes = st.sampled_from(["text", "chat", "responses", "anthropic"])
    return st.builds(message, ref_documents() if documents is None else documents, shapes, st.booleans())
