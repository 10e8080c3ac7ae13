"""The command ``mama-structs init``: plans the changes of an agent's files, shows them, and writes or undoes them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs._internal.validation import is_url
from mama_structs.cli.coding_agents.agents import NEXT_STEPS, Setup, list_targets
from mama_structs.cli.coding_agents.config_files import (
    FileChange,
    encode_text,
    format_diff,
    read_text,
    remove_directories,
    write_changes,
)
from mama_structs.cli.coding_agents.json_text import parse_json
from mama_structs.cli.coding_agents.targets import Change, Record
from mama_structs.cli.output import confirm, print_lines
from mama_structs.errors import InvalidArgument, MamaStructsError
from mama_structs.memory.types.requests import check_namespace

_RECORD_NAME: Final = "mama-structs.json"
_RECORD_FORMAT: Final = 1
_DEFAULT_STORE: Final = "agent.mama"


@attrs.frozen
class _Earlier:
    """The record of the last run: its settings, its additions by file, and the directories that it created."""

    settings: dict[str, str | None] = attrs.field(factory=dict)
    files: dict[str, Record] = attrs.field(factory=dict)
    directories: tuple[str, ...] = ()


@attrs.frozen
class _Plan:
    """Changes of files, the record afterwards, and notes about unchanged entries."""

    changes: list[FileChange]
    files: dict[str, Record]
    notes: list[str]


def run_init(given: argparse.Namespace) -> int:
    """Run the command, and return 1 if the user did not agree to the changes."""
    project = None if given.user else Path(given.project or ".").absolute()
    if project is not None and not project.is_dir():
        raise InvalidArgument(f"{str(project)!r:.200} is not a directory", hint="nothing was changed")
    if not given.undo and importlib.util.find_spec("mcp") is None:
        raise MamaStructsError(
            "the MCP server needs the package mcp; nothing was changed", hint="pip install 'mama-structs[mcp]'"
        )
    found = Setup(agent=given.agent, project=project, store="")
    record_path = found.get_directory() / _RECORD_NAME
    earlier = _read_record(record_path)
    # In the home directory, both scopes have the same record.
    is_of_user = any(Path(name).expanduser().is_absolute() for name in earlier.files)
    if earlier.files and is_of_user != given.user:
        option = "with --user" if is_of_user else "without --user"
        raise InvalidArgument(
            f"{given.agent} was connected {option} here; nothing was changed",
            hint=f"undo that first: mama-structs init {given.agent}{' --user' if is_of_user else ''} --undo",
        )
    if given.undo and not earlier.files:
        raise InvalidArgument(
            f"{given.agent} was not connected here: {str(record_path)!r:.200} does not exist",
            hint="use the same --user or --project as for init",
        )
    named = {"store": given.store, "dynamic": given.dynamic, "namespace": given.namespace}
    setup = _choose_settings(found, earlier, {} if given.undo else named)
    plan = _plan(setup, earlier, undo=given.undo)
    if not plan.changes and not given.undo:
        if plan.files != earlier.files and not given.dry_run:
            # A crash interrupted the last run before it wrote the record.
            _write(setup, plan, earlier, record_path)
        print_lines(*plan.notes, f"{given.agent} is already connected: nothing to change.")
        return 0
    if not _has_consent(given, plan):
        return 0 if given.dry_run else 1
    _write(setup, plan, earlier, record_path)
    for change in plan.changes:
        action = "deleted" if change.after is None else "created" if change.before is None else "changed"
        print_lines(f"{action} {change.name}")
    if not given.undo:
        print_lines(f"Memories are stored in {setup.store}.", NEXT_STEPS[setup.agent])
    return 0


def _has_consent(given: argparse.Namespace, plan: _Plan) -> bool:
    """Show the changes, and return True if they may be written."""
    if not given.yes:
        # An agent that runs this with --yes must not read the rest of the user's files in the diff.
        print_lines(*(f"{format_diff(change)}\n" for change in plan.changes))
    print_lines(*plan.notes)
    if given.dry_run:
        print_lines(f"{len(plan.changes)} files would change; --dry-run changed nothing.")
        return False
    if plan.changes and not given.yes and not confirm(f"Change these {len(plan.changes)} files?"):
        print_lines("Nothing was changed.")
        return False
    return True


def _choose_settings(found: Setup, earlier: _Earlier, named: dict[str, str | None]) -> Setup:
    """Return the setup. The last run and then the defaults provide settings that are not named."""
    values = {**earlier.settings, **{name: value for name, value in named.items() if value is not None}}
    store = values.get("store") or _DEFAULT_STORE
    if is_url(store):
        raise InvalidArgument(
            "init needs a session's directory, because hooks cannot use a server", hint="pass a directory"
        )
    store = os.path.abspath(found.get_root() / store if named.get("store") is None else Path(store).expanduser())  # noqa: PTH100 - Path.resolve would follow links
    if Path(store).exists() and not Path(store).is_dir():
        raise InvalidArgument(f"the store {store!r:.200} is not a directory; nothing was changed")
    namespace = values.get("namespace")
    if namespace is not None:
        namespace = check_namespace(namespace)
    for what, value in (("path", store), ("namespace", namespace)):
        # This includes names of files that are not UTF-8.
        if value is not None and not value.isprintable():
            raise InvalidArgument(f"the {what} {value!r:.200} has characters that a configuration file cannot contain")
    return attrs.evolve(found, store=store, dynamic=values.get("dynamic"), namespace=namespace)


def _plan(setup: Setup, earlier: _Earlier, *, undo: bool) -> _Plan:
    """Compute all changes before any is written, so that an error changes nothing."""
    plan = _Plan([], {}, [])
    for target in list_targets(setup):
        path, before, text = read_text(target.name, _resolve(setup, target.name))
        record = earlier.files.get(target.name)
        try:
            if undo:
                made = Change(text) if record is None else target.undo(text, record)
            else:
                made = target.merge(text, record)
        except (KeyError, TypeError, AttributeError) as error:
            raise _create_record_error(setup.get_directory() / _RECORD_NAME) from error
        plan.notes.extend(made.notes)
        if made.record is not None:
            plan.files[target.name] = made.record
        if made.text != text:
            plan.changes.append(FileChange(target.name, path, before, encode_text(made.text, before)))
    return plan


def _write(setup: Setup, plan: _Plan, earlier: _Earlier, record_path: Path) -> None:
    """Write the files and the record. Delete the record, and directories that init created, after an undo."""
    path, before, _ = read_text(_RECORD_NAME, record_path)
    missing = {
        one
        for changed in (path, *(change.path for change in plan.changes if change.after is not None))
        for one in changed.parents
        if not one.exists()
    }
    directories = {*earlier.directories, *(_get_relative(setup, one) for one in missing)}
    settings = {"store": setup.store, "dynamic": setup.dynamic, "namespace": setup.namespace}
    record = {
        "about": "Written by mama-structs init, which needs it for --undo.",
        "format": _RECORD_FORMAT,
        "settings": settings,
        "directories": sorted(directories),
        "files": plan.files,
    }
    after = json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n" if plan.files else None
    saved = FileChange(_RECORD_NAME, path, before, after)
    # A crash between two files must leave a record of the files: after a first run the new one, later the previous one.
    write_changes([saved, *plan.changes] if before is None else [*plan.changes, saved])
    if not plan.files:
        own = {one for target in list_targets(setup) for one in _resolve(setup, target.name).resolve().parents}
        remove_directories([one for one in own if _get_relative(setup, one) in earlier.directories])


def _get_relative(setup: Setup, path: Path) -> str:
    """Return a directory's name in the record, which stays valid when the project is moved."""
    return os.path.relpath(path, setup.get_root().resolve())


def _resolve(setup: Setup, name: str) -> Path:
    """Return the path of a file's name."""
    return Path(name).expanduser() if setup.project is None else setup.project / name


def _read_record(path: Path) -> _Earlier:
    """Return the record of the last run. Raise if it was not written by this version."""
    _, _, text = read_text(str(path), path)
    if text is None:
        return _Earlier()
    try:
        found: Any = parse_json(text)
        if found["format"] != _RECORD_FORMAT:
            raise ValueError("unknown format")
        earlier = _Earlier(dict(found["settings"]), dict(found["files"]), tuple(found["directories"]))
        texts = [*(value for value in earlier.settings.values() if value is not None), *earlier.directories]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a setting is not a text")
    except (ValueError, KeyError, TypeError) as error:
        raise _create_record_error(path) from error
    return earlier


def _create_record_error(path: Path) -> InvalidArgument:
    return InvalidArgument(
        f"{str(path)!r:.200} is not a record of this version; nothing was changed",
        hint="restore it, or delete it and remove the entries of mama-structs yourself",
    )
