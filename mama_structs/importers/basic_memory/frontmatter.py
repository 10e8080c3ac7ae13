"""
Reader of YAML frontmatter, within limits on size, nesting and aliases.

PyYAML, with which basic-memory writes its notes, produces the parse events. No YAML value is constructed: aliases are
looked up without expansion, and tags are ignored. Scalars remain texts, exactly as written in the note.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mama_structs.errors import InvalidArgument
from mama_structs.importers.shared.safe_files import import_error

MAX_FRONTMATTER_CHARS: Final = 2**14
"""The largest frontmatter block. PyYAML parses about 10 kB in 0.1 s."""
MAX_EVENTS: Final = 2_000
MAX_ALIASES: Final = 50
"""PyYAML writes an alias for a date that two fields share. A YAML bomb needs many more aliases."""
MAX_DEPTH: Final = 50
_HINT: Final = "shorten the frontmatter of the note, or take the note out of the folder"

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


def read_fields(frontmatter: str, path: Path) -> dict[str, FieldValue] | None:
    """
    Return the fields of a frontmatter block whose values are a scalar or a list of scalars.

    Args:
        frontmatter: The block, without its fences.
        path: The note, for the error message.

    Returns:
        The fields; None if the block is not valid YAML. Fields with other values are left out.

    Raises:
        MigrationError: The block exceeds a limit.

    """
    if len(frontmatter) > MAX_FRONTMATTER_CHARS:
        what = f"must have a frontmatter of at most {MAX_FRONTMATTER_CHARS:,} characters, got {len(frontmatter):,}"
        raise import_error(path, what, _HINT)
    yaml = _yaml()
    builder = FieldCollector(yaml)
    try:
        # Use the pure Python loader, because libyaml recurses in C and deep nesting could crash the process.
        for count, event in enumerate(yaml.parse(frontmatter, Loader=yaml.SafeLoader)):
            if count >= MAX_EVENTS or builder.aliases > MAX_ALIASES or len(builder.open) > MAX_DEPTH:
                limits = f"{MAX_EVENTS:,} YAML nodes and {MAX_ALIASES} aliases, nested at most {MAX_DEPTH} deep"
                raise import_error(path, f"must have a frontmatter of at most {limits}", _HINT)
            builder.take(event)
    except (yaml.YAMLError, RecursionError, ValueError):
        # PyYAML passes an escaped code point to chr(), which raises ValueError beyond the Unicode range.
        return None
    return builder.fields


class FieldCollector:
    """Collects the fields of the top-level mapping from parse events."""

    def __init__(self, yaml: ModuleType) -> None:
        self._yaml = yaml
        self.fields: dict[str, FieldValue] = {}
        # Stack of open collections. Each entry has the scalars of a list (None for a mapping) and the YAML anchor.
        self.open: list[tuple[list[str] | None, str | None]] = []
        self.aliases: int = 0
        self._key: str | None = None
        self._is_value = False
        self._anchors: dict[str, FieldValue] = {}

    def take(self, event: Any) -> None:
        """Process the next parse event."""
        yaml = self._yaml
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                self._anchors[event.anchor] = event.value
            self._add(event.value)
        elif isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            self._add(self._anchors.get(event.anchor))
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self.open.append(([] if isinstance(event, yaml.SequenceStartEvent) else None, event.anchor))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            items, anchor = self.open.pop()
            if items is not None and anchor is not None:
                self._anchors[anchor] = items
            if self.open:
                self._add(items)

    def _add(self, value: FieldValue | None) -> None:
        """Add a value to the innermost open collection. An unsupported value is passed as None."""
        items = self.open[-1][0] if self.open else None
        if items is not None and isinstance(value, str):
            items.append(value)
        if len(self.open) != 1 or items is not None:
            return
        if not self._is_value:
            self._key = value if isinstance(value, str) else None
        elif self._key is not None and value is not None:
            self.fields[self._key] = list(value) if isinstance(value, list) else value
        self._is_value = not self._is_value
