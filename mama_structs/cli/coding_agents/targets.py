"""
Files that `init` edits: the additions to each, and their removal.

`merge` takes a file's text (None if it does not exist) and the record of an earlier merge, and returns a `Change`.
`undo` takes the text and the record. Neither changes what others added.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import attrs

from mama_structs.cli.coding_agents import json_text
from mama_structs.errors import InvalidArgument

Record: TypeAlias = dict[str, Any]
"""Additions of a merge to a file, as JSON."""
_MISSING: Final = object()


@attrs.frozen
class Change:
    """
    The new text of a file, or None to delete it.

    *record* is None if nothing in the file was added by `init`. *notes* explain unchanged entries.
    """

    text: str | None
    record: Record | None = None
    notes: tuple[str, ...] = ()


def _describe_kept(name: str, what: str) -> str:
    return f"{name}: {what} was changed by hand and is left as it is"


def _includes(table: Any, part: Any) -> bool:
    """Return True if a table has at least the given keys and values."""
    return isinstance(table, dict) and isinstance(part, dict) and part.items() <= table.items()


def _parse(name: str, text: str, fragment: str) -> Any:
    try:
        document = json_text.parse_json(text)
    except ValueError as error:
        raise InvalidArgument(
            f"{name} is not valid JSON: {error}; nothing was changed",
            hint=f"correct it, or add this yourself: {fragment}",
        ) from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"{name} must contain a JSON object; nothing was changed", hint=f"add {fragment}")
    return document


def _list_commands(value: Any) -> Iterator[str]:
    """Yield the values of all keys named ``command`` in a value."""
    if isinstance(value, dict):
        for key, member in value.items():
            if key == "command" and isinstance(member, str):
                yield member
            yield from _list_commands(member)
    elif isinstance(value, list):
        for item in value:
            yield from _list_commands(item)


@attrs.frozen
class JsonTarget:
    """
    A JSON file.

    Args:
        name: The file's path below the root.
        members: Values by their paths of keys.
        items: Items of arrays, by the paths of the arrays.
        skeleton: Members that the agent requires in the file.

    """

    name: str
    members: dict[tuple[str, ...], Any] = attrs.field(factory=dict)
    items: dict[tuple[str, ...], Any] = attrs.field(factory=dict)
    skeleton: dict[str, Any] = attrs.field(factory=dict)

    def get_fragment(self) -> str:
        """Return the additions as one JSON object."""
        made: dict[str, Any] = copy.deepcopy(self.skeleton)
        for path, value in (*self.members.items(), *((path, [item]) for path, item in self.items.items())):
            parent = made
            for key in path[:-1]:
                parent = parent.setdefault(key, {})
            parent[path[-1]] = value
        return json.dumps(made, ensure_ascii=False)

    def merge(self, text: str | None, record: Record | None) -> Change:
        """Add the members and items, or replace the ones of an earlier merge in place."""
        if text is None:
            record = {"created": True}
            text = json.dumps(self.skeleton, indent=2) + "\n"
        elif (without := self._remove_comments(text)) is not None:
            if _JsonMerge(self, without, {"created": False}).text == without:
                return Change(text)
            raise InvalidArgument(
                f"{self.name} has comments or trailing commas, which an edit would lose; nothing was changed",
                hint=f"remove them, or add this yourself and run this again: {self.get_fragment()}",
            )
        made = _JsonMerge(self, text, record or {"created": False})
        return Change(made.text, made.record if made.has_additions() else None, tuple(made.notes))

    def undo(self, text: str | None, record: Record) -> Change:
        """Remove the recorded members and items that are unchanged, and containers that became empty."""
        if text is None:
            return Change(None)
        if self._remove_comments(text) is not None:
            note = f"{self.name} has comments or trailing commas: remove this yourself: {self.get_fragment()}"
            return Change(text, None, (note,))
        made = _JsonUndo(self, text, record)
        if record["created"] and made.document in ({}, self.skeleton):
            return Change(None)
        return Change(made.text, None, tuple(made.notes))

    def _remove_comments(self, text: str) -> str | None:
        """Return a document without its comments, or None if it has none or is malformed."""
        try:
            json_text.parse_json(text)
        except ValueError:
            return json_text.remove_comments(text)
        return None


class _JsonEdit:
    """A JSON document during its edits."""

    def __init__(self, target: JsonTarget, text: str) -> None:
        self.target = target
        self.notes: list[str] = []
        self.set_text(text)

    def set_text(self, text: str) -> None:
        self.text = text
        self.document = _parse(self.target.name, text, self.target.get_fragment())

    def get(self, path: json_text.Path) -> Any:
        parent = json_text.get_value(self.document, path[:-1])
        return parent.get(path[-1], _MISSING) if isinstance(parent, dict) else _MISSING

    def remove_member(self, path: json_text.Path) -> None:
        self.set_text(json_text.remove_part(self.text, path[:-1], path[-1]))


class _JsonMerge(_JsonEdit):
    def __init__(self, target: JsonTarget, text: str, old: Record) -> None:
        super().__init__(target, text)
        self.record: Record = {
            "created": old["created"],
            "containers": list(old.get("containers", ())),
            "blanks": list(old.get("blanks", ())),
            "members": [],
            "items": [],
        }
        members: dict[tuple[str, ...], Any] = {}
        if not old["created"]:
            members = {(key,): value for key, value in target.skeleton.items()}
        old_members = {tuple(path): value for path, value in old.get("members", ())}
        old_items = {tuple(path): item for path, item in old.get("items", ())}
        for path, value in {**members, **target.members}.items():
            self._merge_member(path, value, old_members.get(path))
        for path, item in target.items.items():
            self._merge_item(path, item, old_items.get(path))

    def has_additions(self) -> bool:
        return bool(self.record["created"] or self.record["members"] or self.record["items"])

    def _create_containers(self, path: json_text.Path, last: Any) -> None:
        """Create the missing objects of a path, and *last* at its end, and record them."""
        for length in range(1, len(path) + 1):
            value = self.get(path[:length])
            kind: Any = last if length == len(path) else {}
            if value is _MISSING:
                self._record_blank(path[: length - 1])
                self.set_text(json_text.set_member(self.text, path[:length], kind))
                self.record["containers"].append(list(path[:length]))
            elif not isinstance(value, type(kind)):
                raise self._create_conflict(path[:length], f"must be {'a list' if kind == [] else 'an object'}")

    def _record_blank(self, path: json_text.Path) -> None:
        """Record the white space of an empty object or array, which an addition replaces."""
        if blank := json_text.get_blank(self.text, path):
            self.record["blanks"].append([list(path), blank])

    def _create_conflict(self, path: json_text.Path, problem: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self.target.name}: {'.'.join(path)} {problem}; nothing was changed",
            hint=f"rename, correct or remove it, then run this again; it adds {self.target.get_fragment()}",
        )

    def _merge_member(self, path: tuple[str, ...], value: Any, previous: Any) -> None:
        current = self.get(path)
        if current is _MISSING:
            self._create_containers(path[:-1], {})
            self._record_blank(path[:-1])
            self.set_text(json_text.set_member(self.text, path, value))
        elif path[0] in self.target.skeleton and current != value:
            # The user has another version of the file's format.
            return
        elif previous is None and current == value:
            return
        elif current == value:
            # It is also equal if a crash interrupted the run before the record was written.
            pass
        elif previous is None or (current != previous and not _includes(current, previous)):
            raise self._create_conflict(path, "exists with other values")
        elif isinstance(value, dict):
            for key in previous.keys() - value.keys():
                self.remove_member((*path, key))
            for key, one in value.items():
                self.set_text(json_text.set_member(self.text, (*path, key), one))
        self.record["members"].append([list(path), value])

    def _merge_item(self, path: tuple[str, ...], item: Any, previous: Any) -> None:
        self._create_containers(path, [])
        array = self.get(path)
        similar = [one for one in array if {*_list_commands(one)} & {*_list_commands([item, previous])}]
        if previous is not None and previous in array:
            if previous != item:
                self.set_text(json_text.replace_item(self.text, path, array.index(previous), item))
        elif previous is not None and item in array:
            # A crash interrupted the last run before its record was written.
            pass
        elif not similar:
            self._record_blank(path)
            self.set_text(json_text.append_item(self.text, path, item))
        elif {*_list_commands(similar)} & {*_list_commands(item)}:
            # The user has the same hook with other options, so a second one would only repeat it.
            return
        else:
            raise self._create_conflict(path, "has a hook of an earlier run that was changed by hand")
        self.record["items"].append([list(path), item])


class _JsonUndo(_JsonEdit):
    def __init__(self, target: JsonTarget, text: str, record: Record) -> None:
        super().__init__(target, text)
        for path, value in reversed(record.get("members", [])):
            self._undo_member(path, value)
        for path, item in reversed(record.get("items", [])):
            self._undo_item(path, item)
        for path in sorted(record.get("containers", []), key=len, reverse=True):
            if self.get(path) in ({}, []):
                self.remove_member(path)
        for path, blank in record.get("blanks", []):
            if json_text.get_value(self.document, path) in ({}, []):
                self.set_text(json_text.set_blank(self.text, path, blank))

    def _undo_member(self, path: json_text.Path, value: Any) -> None:
        current = self.get(path)
        if current == value:
            self.remove_member(path)
        elif current is not _MISSING:
            self.notes.append(_describe_kept(self.target.name, ".".join(path)))

    def _undo_item(self, path: json_text.Path, item: Any) -> None:
        array = self.get(path)
        if not isinstance(array, list):
            return
        if item in array:
            index = len(array) - 1 - array[::-1].index(item)
            self.set_text(json_text.remove_part(self.text, path, index))
        elif {*_list_commands(array)} & {*_list_commands(item)}:
            self.notes.append(_describe_kept(self.target.name, ".".join(path)))


@attrs.frozen
class TomlTarget:
    """
    A TOML file with one added table.

    The table is a block of text at the end, so that comments and formatting stay as they are.
    """

    name: str
    path: tuple[str, ...]
    table: dict[str, Any]

    def get_fragment(self, newline: str = "\n") -> str:
        """Return the table as TOML."""
        # A JSON string or list of strings is also TOML.
        lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in self.table.items())
        return newline.join((f"[{'.'.join(self.path)}]", *lines, ""))

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            # Floats as texts: NaN is not equal to itself.
            return tomllib.loads(text, parse_float=str)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidArgument(
                f"{self.name} is not valid TOML: {error}; nothing was changed", hint="correct it, then run this again"
            ) from error

    def merge(self, text: str | None, record: Record | None) -> Change:
        """Append the table, or replace that of an earlier merge in place."""
        created = text is None or (record is not None and record["created"])
        text = text or ""
        document = self._parse(text)
        newline = "\r\n" if "\r\n" in text else "\n"
        block = self.get_fragment(newline)
        for length in range(1, len(self.path)):
            if not isinstance(json_text.get_value(document, self.path[:length]), dict | None):
                raise self._create_conflict("cannot be added, because a key above it is not a table")
        table = json_text.get_value(document, self.path)
        gap = "" if record is None else record["block"][: record["block"].index("[")]
        if table is None:
            gap = "" if not text else newline if text.endswith("\n") else 2 * newline
            block = gap + block
            changed = text + block
        elif record is not None and _includes(table, record["table"]) and record["block"] in text:
            block = gap + block
            changed = text.replace(record["block"], block)
        elif record is not None and table == self.table and gap + block in text:
            # A crash interrupted the last run before its record was written.
            block = gap + block
            changed = text
        elif _includes(table, self.table):
            return Change(text)
        else:
            raise self._create_conflict("exists with other values")
        expected = copy.deepcopy(document)
        parent = expected
        for key in self.path[:-1]:
            parent = parent.setdefault(key, {})
        parent[self.path[-1]] = {**(table or {}), **self.table}
        try:
            is_correct = self._parse(changed) == expected
        except InvalidArgument:
            is_correct = False
        if not is_correct:
            raise self._create_conflict("cannot be added at the end of the file, because a table above it is closed")
        return Change(changed, {"created": created, "block": block, "table": self.table})

    def _create_conflict(self, problem: str) -> InvalidArgument:
        fragment = json.dumps({"mcp_servers": {self.path[-1]: self.table}}, ensure_ascii=False)
        return InvalidArgument(
            f"{self.name}: {'.'.join(self.path)} {problem}; nothing was changed",
            hint=f"rename, correct or remove it, then run this again; it adds the table {fragment}",
        )

    def undo(self, text: str | None, record: Record) -> Change:
        """Remove the block of text, unless it or its table was changed."""
        if text is None:
            return Change(None)
        table = json_text.get_value(self._parse(text), self.path)
        notes: tuple[str, ...] = ()
        if table == record["table"] and record["block"] in text:
            text = text.replace(record["block"], "")
        elif table is not None:
            notes = (_describe_kept(self.name, ".".join(self.path)),)
        return Change(None if record["created"] and not text.strip() else text, None, notes)


@attrs.frozen
class TextTarget:
    """A file that belongs to this package as a whole."""

    name: str
    text: str

    def merge(self, text: str | None, record: Record | None) -> Change:
        """Write the file, unless it was changed by hand."""
        own = {"sha256": _hash(self.text)}
        if text == self.text:
            return Change(text, record and own)
        if text is None or (record is not None and record["sha256"] == _hash(text)):
            return Change(self.text, own)
        if record is None:
            raise InvalidArgument(
                f"{self.name} exists with another text; nothing was changed",
                hint="rename or delete it, then run this again",
            )
        return Change(text, record, (_describe_kept(self.name, "the file"),))

    def undo(self, text: str | None, record: Record) -> Change:
        """Delete the file, unless it was changed by hand."""
        if text is None or record["sha256"] == _hash(text):
            return Change(None)
        return Change(text, None, (_describe_kept(self.name, "the file"),))


Target: TypeAlias = JsonTarget | TomlTarget | TextTarget


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
