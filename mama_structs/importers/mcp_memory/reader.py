"""
Reader of the knowledge graph of MCP's memory server, a JSON Lines file.

The server is ``@modelcontextprotocol/server-memory``. Its tool ``read_graph`` answers with the graph in one object, and
other servers with its format write items without ``type``. Both are read, too.

An entity becomes a context whose topic is the entity's name. An observation becomes a context with the same topic, and
a relation becomes a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.importers.shared.import_model import (
    ImportedData,
    ImportedLink,
    ImportedMemory,
    compute_digest,
    to_relationship,
    to_topic,
)
from mama_structs.importers.shared.json_values import iter_json_values, read_json_file, repair_json
from mama_structs.importers.shared.safe_files import import_error

KIND: Final = "mcp-memory"
SOURCE: Final = "mcp-memory"
"""The source of the imported memories; `MemoryStore.erase` can select them by it."""
ENTITIES: Final = "entities"
OBSERVATIONS: Final = "observations"
RELATIONS: Final = "relations"
OTHER_LINES: Final = "lines"
LOCATION_HINT: Final = "it is where MEMORY_FILE_PATH says, or beside the server's own program, as memory.jsonl"
# A relationship with a known type (see `look_up_type`), so that no embedder is needed to determine the type.
ENTITY_RELATION: Final = "refers to"
KNOWN_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "entity": frozenset({"type", "name", "entityType", "observations"}),
    "relation": frozenset({"type", "from", "to", "relationType"}),
}
TYPE_FIELDS: Final[Mapping[str, str]] = {"entity": "entityType", "relation": "relationType"}
# The fields by which an item without a known type is recognized.
FIELDS_BY_KIND: Final[tuple[tuple[str, tuple[frozenset[str], ...]], ...]] = (
    ("relation", (frozenset({"from", "to"}),)),
    ("entity", (frozenset({"name", "entityType"}), frozenset({"name", "observations"}))),
    ("graph", (frozenset({"entities"}), frozenset({"relations"}))),
)


def read(path: Path) -> ImportedData:
    """
    Read a memory server's file without changing it. Blocks.

    Raises:
        InvalidArgument: The file does not exist.
        MigrationError: The file is too large, or is not empty and contains neither an entity nor a relation.

    """
    graph = _GraphCollector(KIND, path, (ENTITIES, OBSERVATIONS, RELATIONS))
    try:
        text = read_json_file(path, "the file of MCP's memory server")
    except ValueError as error:
        raise import_error(path, "is no file of MCP's memory server: it is not UTF-8", LOCATION_HINT) from error
    for line, item in iter_json_values(text):
        graph.take(item, f"line {line}")
    if graph.found[OTHER_LINES] and not graph.found[ENTITIES] and not graph.found[RELATIONS]:
        raise import_error(path, "is no file of MCP's memory server: no line is an entity or a relation", LOCATION_HINT)
    return graph


@attrs.define
class _GraphCollector(ImportedData):
    """Collects the memories and links of the graph."""

    names: set[str] = attrs.field(init=False, factory=set)

    def take(self, item: Any, place: str) -> None:
        """Add an entity, a relation, or a list or graph of them. Another value is reported."""
        if isinstance(item, list):
            for number, one in enumerate(item, start=1):
                self.take(one, f"{place}, item {number}")
            return
        kind = _find_kind(item) if isinstance(item, Mapping) else None
        if kind == "graph":
            for name, value in item.items():
                self.take(value, f"{place}, {name}")
        elif kind is None:
            self.skip(OTHER_LINES, place, "no_item", "it is neither an entity nor a relation")
        else:
            item, problem = repair_json(item)
            if item.get("type", kind) != kind:
                # Some servers write the entity type or the relation's word as `type`.
                item = {TYPE_FIELDS[kind]: item["type"], **item}
            if problem is not None:
                self.add_odd(ENTITIES if kind == "entity" else RELATIONS, place, "no_json", problem)
            extra = {name: value for name, value in item.items() if name not in KNOWN_FIELDS[kind]}
            if kind == "entity":
                self._add_entity(item, extra, place)
            else:
                self._add_relation(item, extra, place)

    def _add_entity(self, item: Mapping[str, Any], extra: Mapping[str, Any], place: str) -> None:
        name, kind, told = item.get("name"), item.get("entityType"), item.get("observations")
        if not isinstance(name, str) or not name.strip():
            self.skip(ENTITIES, place, "no_name", "it has no name")
            for _ in self._iter_observations(told, place):
                self.skip(OBSERVATIONS, place, "no_name", "its entity has no name")
            return
        self.found[ENTITIES] += 1
        is_typed = isinstance(kind, str) and bool(kind.strip())
        if not is_typed:
            self.add_odd(ENTITIES, name, "no_type", "it has no type")
        # If entities share a name, the memory server uses only the first. Import the observations of all.
        if name not in self.names:
            record = {"type": "context", "content": f"{name} ({kind})" if is_typed else name}
            own = {"name": name, "entityType": kind, **extra}
            self._add_memory(ENTITIES, name, record, name, own)
        else:
            self.leave_out(ENTITIES, name, "same_name", "another one has its name; its observations are not left out")
        self.names.add(name)
        for position, text in enumerate(self._iter_observations(told, name)):
            if not isinstance(text, str) or not text.strip():
                self.skip(OBSERVATIONS, name, "no_text", f"observation {position + 1} is no text")
                continue
            self.found[OBSERVATIONS] += 1
            key = f"{name}#{compute_digest(text)}"
            self._add_memory(OBSERVATIONS, key, {"type": "context", "content": text}, name, {"name": name})
            self.links.append(
                ImportedLink(
                    what=OBSERVATIONS, from_key=key, to_key=name, relationship=ENTITY_RELATION, is_explicit=False
                )
            )

    def _iter_observations(self, told: Any, name: str) -> Iterator[Any]:
        if isinstance(told, list):
            yield from told
        elif told is not None:
            self.add_odd(ENTITIES, name, "no_list", "its observations are no list")
            yield told

    def _add_memory(self, what: str, key: str, record: Mapping[str, Any], name: str, extra: Mapping[str, Any]) -> None:
        filled = {**record, "topic": to_topic(name), "source": SOURCE}
        self.memories.append(ImportedMemory(what=what, key=key, record=filled, extra={KIND: extra}))

    def _add_relation(self, item: Mapping[str, Any], extra: Mapping[str, Any], place: str) -> None:
        ends = [item.get(name) for name in ("from", "to", "relationType")]
        if not all(isinstance(end, str) and end.strip() for end in ends):
            self.skip(RELATIONS, place, "no_end", "an end or its word is missing")
            return
        self.found[RELATIONS] += 1
        if extra:
            what = f"what else it says has no place here: {', '.join(sorted(extra))}"
            self.add_odd(RELATIONS, place, "more_fields", what)
        from_name, to_name, said = map(str, ends)
        word, whole = to_relationship(said)
        self.links.append(
            ImportedLink(what=RELATIONS, from_key=from_name, to_key=to_name, relationship=word, reason=whole)
        )


def _find_kind(item: Mapping[str, Any]) -> str | None:
    """Return the kind of an item: its type, or, if that is missing or unknown, the kind that has its fields."""
    kind = item.get("type")
    if isinstance(kind, str) and kind in KNOWN_FIELDS:
        return kind
    return next((kind for kind, fields in FIELDS_BY_KIND if any(one <= item.keys() for one in fields)), None)
