"""
Reader of YAML frontmatter, within limits on size, nesting and aliases.

PyYAML, with which basic-memory writes its notes, produces the parse events. No YAML value is constructed: aliases are
looked up without expansion, and tags are ignored. Scalars remain texts, exactly as written in the note.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from mama_structs.errors import InvalidArgument

MAX_FRONTMATTER_CHARS: Final = 2**14
"""The largest frontmatter block. PyYAML parses about 10 kB in 0.1 s."""
MAX_EVENTS: Final = 2_000
MAX_ALIASES: Final = 50
"""PyYAML writes an alias for a date that two fields share. A YAML bomb needs many more aliases."""
MAX_DEPTH: Final = 50
NULL_TAG: Final = "tag:yaml.org,2002:null"
NOT_A_MAPPING: Final = "it is no YAML mapping"

FieldValue = str | list[str]


@functools.cache
def _yaml() -> ModuleType:
    try:
        import yaml  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        hint = "pip install 'mama-structs[basic-memory]'"
        raise InvalidArgument(
            "notes of basic-memory are read with PyYAML, which is not installed", hint=hint
        ) from error
    found: ModuleType = yaml
    return found


def check_installed() -> None:
    """Raise InvalidArgument if PyYAML is not installed."""
    _yaml()


def read_fields(frontmatter: str) -> dict[str, FieldValue]:
    """
    Return the fields of a frontmatter block whose values are a scalar, except null, or a list of scalars.

    Raises:
        ValueError: The block is neither a YAML mapping nor empty, or exceeds a limit.

    """
    if len(frontmatter) > MAX_FRONTMATTER_CHARS:
        raise ValueError(f"it has more than {MAX_FRONTMATTER_CHARS:,} characters")
    yaml = _yaml()
    builder = FieldCollector(yaml)
    try:
        # Use the pure Python loader, because libyaml recurses in C and deep nesting could crash the process.
        for count, event in enumerate(yaml.parse(frontmatter, Loader=yaml.SafeLoader)):
            if count >= MAX_EVENTS or builder.aliases > MAX_ALIASES or len(builder.open) > MAX_DEPTH:
                limits = f"{MAX_EVENTS:,} YAML nodes, {MAX_ALIASES} aliases or {MAX_DEPTH} levels"
                raise ValueError(f"it has more than {limits}")
            builder.take(event)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(NOT_A_MAPPING) from error
    if not builder.is_mapping:
        raise ValueError(NOT_A_MAPPING)
    return builder.fields


class FieldCollector:
    """Collects the fields of the top-level mapping from parse events."""

    def __init__(self, yaml: ModuleType) -> None:
        self._yaml = yaml
        self._resolver = yaml.resolver.Resolver()
        self.fields: dict[str, FieldValue] = {}
        # False if the block is a scalar or a list, for example text between two horizontal rules.
        self.is_mapping: bool = True
        # Stack of open collections. Each entry has the scalars of a list (None for a mapping) and the YAML anchor.
        self.open: list[tuple[list[str] | None, str | None]] = []
        self.aliases: int = 0
        self._key: str | None = None
        self._is_value = False
        self._anchors: dict[str, FieldValue | None] = {}

    def take(self, event: Any) -> None:
        """Process the next parse event."""
        yaml = self._yaml
        if isinstance(event, yaml.ScalarEvent):
            is_null = (
                event.implicit[0] and self._resolver.resolve(yaml.ScalarNode, event.value, (True, False)) == NULL_TAG
            )
            value = None if is_null else event.value
            if event.anchor is not None:
                self._anchors[event.anchor] = value
            self._add(value)
        elif isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            self._add(self._anchors.get(event.anchor))
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self.is_mapping = self.is_mapping and (bool(self.open) or isinstance(event, yaml.MappingStartEvent))
            self.open.append(([] if isinstance(event, yaml.SequenceStartEvent) else None, event.anchor))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            items, anchor = self.open.pop()
            if items is not None and anchor is not None:
                self._anchors[anchor] = items
            if self.open:
                self._add(items)

    def _add(self, value: FieldValue | None) -> None:
        """Add a value to the innermost open collection. A null or unsupported value is passed as None."""
        self.is_mapping = self.is_mapping and (bool(self.open) or value is None)
        items = self.open[-1][0] if self.open else None
        if items is not None and isinstance(value, str):
            items.append(value)
        if len(self.open) != 1 or items is not None:
            return
        if not self._is_value:
            self._key = value if isinstance(value, str) else None
        elif self._key is not None and value is not None:
            self.fields[self._key] = list(value) if isinstance(value, list) else value
        elif self._key is not None:
            # The last of several values for a key is current.
            self.fields.pop(self._key, None)
        self._is_value = not self._is_value
