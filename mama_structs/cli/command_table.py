"""Command line parser: the table of commands with their arguments, help and functions."""

# ruff: noqa: PLC0415 - slow imports are local, so that the command starts fast

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from mama_structs._internal.validation import is_url, to_printable
from mama_structs.cli import read_commands as reading
from mama_structs.cli import serve_commands as serving
from mama_structs.cli import store_commands as upkeep
from mama_structs.cli.arguments import (
    LOOPBACK,
    MAX_PORT,
    create_integer_parser,
    is_session,
    parse_address,
    parse_player_id,
    parse_time,
)
from mama_structs.cli.coding_agents.names import AGENTS
from mama_structs.cli.output import discard_output, mask_passwords, print_lines, write_stderr
from mama_structs.errors import InvalidArgument, MamaStructsError

# The exit codes that shells report for SIGINT and SIGPIPE.
_EXIT_INTERRUPTED: Final = 130
_EXIT_BROKEN_PIPE: Final = 141
# Width of the column with the command names in the overview.
_NAME_COLUMNS: Final = 15
# `mama_structs.testing.World.generate` needs at least this many players.
_MIN_WORLD_PLAYERS: Final = 12
# Maximum latency in ms. A call with 50 references takes ten rounds of five, which must fit into 5 seconds.
_MAX_DEMO_LATENCY_MS: Final = 400


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    Args:
        arguments: The arguments after the command's name; by default those of this process.

    """
    try:
        # Escape characters that the terminal cannot encode, because untrusted names must not crash the command.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a host may have replaced the stream
        try:
            code = run(parse(arguments))
        finally:
            # argparse does not flush the output of --help and --version.
            print_lines()
    except MamaStructsError as error:
        # Escape control characters: the error may quote text that a node sent.
        write_stderr(f"mama-structs: {to_printable(str(error))}\n")
        return 1
    except BrokenPipeError:
        # The reader closed the pipe (`| head -1`).
        discard_output()
        return _EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages contain no passwords."""

    def error(self, message: str) -> NoReturn:
        """Print an error and exit."""
        super().error(mask_passwords(message))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line, or exit as `argparse` does."""
    parser, _ = create_parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        # Without arguments, print the help.
        parser.print_help(sys.stderr)
        parser.exit(2)
    return parser.parse_args(given)


def create_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and the parser of each command by its name."""
    import importlib.metadata

    parser = _Parser(
        prog="mama-structs",
        description="Memory, references and refs for agents.",
        epilog=_create_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("mama-structs")
    parser.add_argument("--version", action="version", version=f"mama-structs {version}")
    # Add commands without help, so that argparse does not list them. The overview lists them by purpose.
    commands = parser.add_subparsers(title="command", required=True, metavar="COMMAND", help="see below")
    groups: dict[str, Any] = {"": commands}
    parsers: dict[str, argparse.ArgumentParser] = {}
    for path, (command, *members) in _COMMANDS.items():
        group_name, _, name = path.rpartition(" ")
        if group_name not in groups:
            line = _SHORT_DESCRIPTIONS[group_name]
            made = commands.add_parser(group_name, description=f"{line[:1].upper()}{line[1:]}.")
            groups[group_name] = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
        options_of_list = {"help": _describe_command(path)} if group_name else {}
        epilog = " ".join(filter(None, (_EPILOGS.get(path), f"Example: mama-structs {path} {_EXAMPLES[path]}")))
        added = groups[group_name].add_parser(name, **options_of_list, description=command.__doc__, epilog=epilog)
        parsers[path] = added
        is_old = any(one in members for one in (_STORE, _DIRECTORY))
        added.set_defaults(run=command, usage_error=added.error, needs_store=is_old)
        group: Any = added
        for argument in members:
            if isinstance(argument, str):
                group = added.add_argument_group(argument)
                continue
            title, text, *more = argument
            flag, _, metavar = title.partition(" ")
            options: Any = dict(*more, **({"metavar": metavar} if metavar else {})) or {"action": "store_true"}
            group.add_argument(flag, help=text, **options)
    return parser, parsers


def _describe_command(path: str) -> str:
    """Return a command's line in the overview: its short description or its docstring."""
    about = _COMMANDS[path][0].__doc__ if path in _COMMANDS else ""
    return _SHORT_DESCRIPTIONS.get(path) or f"{about[:1].lower()}{about[1:-1]}"


def _wrap_line(line: str) -> str:
    """Wrap a line of the overview like an option, because `argparse` does not wrap epilogs."""
    room = max(shutil.get_terminal_size().columns - 2, 2 * _NAME_COLUMNS)
    return textwrap.fill(line, room, subsequent_indent=(2 + _NAME_COLUMNS) * " ", break_on_hyphens=False)


def _create_overview() -> str:
    """Return all commands, grouped by purpose, and examples."""
    parts = []
    for title, names in _GROUPS.items():
        lines = (_wrap_line(f"  {name:<{_NAME_COLUMNS}}{_describe_command(name)}") for name in names)
        parts.append("\n".join((f"{title}:", *lines)))
    examples = (f"  mama-structs {path} {_EXAMPLES[path]}".rstrip() for path in _OVERVIEW_EXAMPLES)
    parts.append("\n".join(("examples:", *examples)))
    return "\n\n".join((*parts, "Details of a command: mama-structs COMMAND --help"))


def run(given: argparse.Namespace) -> int:
    """Run a parsed command and return its exit code."""
    import asyncio

    if given.needs_store and not is_session(given.store):
        # Check the path first, because opening creates a missing store.
        # Without the check, a mistyped path would look like an empty store.
        is_server = is_url(given.store)
        raise InvalidArgument(
            "the database contains no session yet"
            if is_server
            else f"{given.store!r:.200} is not the directory of a store",
            hint=f"nothing was created; check the {'address' if is_server else 'path'}",
        )

    return asyncio.run(given.run(given)) or 0


def _list_world_arguments(players: int, latency: int, slowest: int | None = None) -> Iterator[str | tuple[Any, ...]]:
    yield "the generated world and its node"
    yield "--seed N", "seed of the generated world (%(default)s)", {"type": create_integer_parser(), "default": 1}
    many = f"number of players, at least {_MIN_WORLD_PLAYERS} (%(default)s)"
    yield "--players N", many, {"type": create_integer_parser(_MIN_WORLD_PLAYERS), "default": players}
    pace = create_integer_parser(0, slowest, why="" if slowest is None else ", so that references meet their deadline")
    most = "" if slowest is None else f", at most {slowest}"
    yield (
        "--latency MS",
        f"delay of each answer in ms{most} (%(default)s)",
        {"type": pace, "default": latency},
    )


def _create_limit_argument(count: int, which: str = "newest") -> tuple[Any, ...]:
    return (
        "--limit N",
        f"maximum number of memories, the {which} first (%(default)s)",
        {"type": create_integer_parser(1), "default": count},
    )


_DIRECTORY: Final = ("store STORE", "an existing session's directory")
_STORE: Final = (
    "store STORE",
    "an existing session's directory, or the URL of a server: postgresql://user@host/database",
)
_NAMESPACE: Final = ("--namespace NAME", "namespace of the memories (%(default)s)", {"default": "default"})
_NEW_NAMESPACE: Final = ("--namespace NAME", "the namespace to move it to", {"required": True})
_OLD_NAMESPACE: Final = ("--from NAME", "its current namespace (%(default)s)", {"dest": "origin", "default": "default"})
_JSON: Final = ("--json", "print one JSON object")
_TYPES: Final = (
    "--type TYPE",
    "only memories of this type; can be repeated",
    {"action": "append", "dest": "types", "choices": ("decision", "checkpoint", "insight", "context", "record")},
)
_TOPIC: Final = ("--topic TOPIC", "only memories of this topic")
_ID: Final = ("id ID", "a memory's id")
_REPORT: Final = ("--json", "print the report as one JSON object")
_EMBEDDERS: Final = ("semantic", "hash")
_EMBEDDER_HELP: Final = "semantic: the sentence encoder of the extra 'semantic'; hash: words only, always available"
_IMPORT_SOURCES: Final = ("mem0", "langgraph", "mcp-memory", "basic-memory", "claude-code", "claude-mem")
_SOURCE_HELP: Final = (
    "mem0: Qdrant's folder, history.db, or the JSON of get_all(); langgraph: the file of a SqliteStore; "
    "mcp-memory: the server's memory.jsonl; basic-memory: the folder with the notes; "
    "claude-code: ~/.claude/projects, or a folder or transcript in it; claude-mem: claude-mem.db"
)
_NEW_STORE: Final = ("store STORE", "a session's directory, created if missing, or the URL of a server")
_DEFAULT_HELP: Final = "by default the embedder of the store, or for a new store the best installed one"
_EMBEDDER: Final = ("--embedder", f"{_EMBEDDER_HELP}; {_DEFAULT_HELP}", {"choices": _EMBEDDERS})
_PLAYER_HELP: Final = (
    "the player to show, such as 1-11, with guild, planet and fleet, among the first 1,024 of the node; "
    "by default 1-11 on the bundled node, else the first player that has all three"
)
_INIT_STORE_HELP: Final = (
    "the session's directory; by default the one of the last run, or agent.mama in the project or the home directory"
)
_DYNAMIC_MODES: Final = ("auto", "force_static", "force_dynamic")
_DYNAMIC_HELP: Final = (
    "auto: clients that subscribe to changes see the tools that match the user's message; "
    "force_static: all clients see all tools; force_dynamic: all clients see the matching tools"
)
_TOKEN_HELP: Final = (
    f"Over HTTP, clients must send the token from {serving.TOKEN_VARIABLE} or --token-file as "
    "'Authorization: Bearer ...'. It is required on an address that other computers can reach."
)
_HOOK_HELP: Final = (
    "Reads the event from stdin, as the agent writes it: session start, user prompt or compaction. "
    "Writes the answer to stdout in the agent's format: {} if there is nothing to say or if an error occurs. The "
    "exit code is always 0. A helper process keeps the store open, and ends after half an hour without events."
)
_GROUPS: Final = {
    "try it": ("demo", "fake-node"),
    "read memories": ("ui", "list", "search", "show", "recall", "view", "stats"),
    "erase": ("erase",),
    "connect an agent": ("init", "serve-mcp", "hook"),
    "maintain a store": (
        "check", "backup", "copy", "export", "import", "conversations", "maintain", "rebuild", "reembed",
    ),
    "import from other programs": ("import-from", "migrate", "rollback"),
}  # fmt: skip
# Arguments of the example call in the help of each command.
_EXAMPLES: Final = {
    "demo": "",
    "fake-node": "--port 1317",
    "ui": "agent.mama",
    "list": "agent.mama --type decision",
    "search": "agent.mama 'why did we leave JWT?'",
    "show": "agent.mama decision_auth_1795436746081_3188da2e",
    "recall": "agent.mama 'continue from yesterday'",
    "view": "agent.mama -o memories.html",
    "stats": "agent.mama --namespace user:ada",
    "erase": "agent.mama --about customer-17 --dry-run",
    "init": "claude-code ~/agent.mama --dry-run",
    "serve-mcp": "agent.mama --http 8317",
    "hook": "agent.mama < event.json",
    "check": "agent.mama",
    "backup": "agent.mama copies/monday.mama",
    "copy": "agent.mama other.mama",
    "export": "agent.mama memories.jsonl",
    "import": "other.mama memories.jsonl",
    "conversations list": "agent.mama",
    "conversations delete": "monday agent.mama",
    "conversations assign": "monday agent.mama --namespace user:ada",
    "maintain": "agent.mama",
    "rebuild": "agent.mama",
    "reembed": "agent.mama --embedder semantic",
    "import-from": "mem0 /tmp/qdrant agent.mama",
    "migrate": "~/.claude/mama-memory.db agent.mama --dry-run",
    "rollback": "agent.mama",
}
# The overview shows the examples of these commands.
_OVERVIEW_EXAMPLES: Final = ("demo", "search", "view", "serve-mcp")
_SHORT_DESCRIPTIONS: Final = {
    "demo": "show a memory that fails, is replaced, recalled and found",
    "ui": "show memories, recalls and conversations in a browser",
    "show": "show one memory in full, with its history and links",
    "view": "write an HTML page with a filter, timelines and links",
    "erase": "erase memories and all copies of their texts; asks first",
    "init": "connect Claude Code, Codex or Cursor; shows the changes, asks first",
    "hook": "answer the hooks of a coding agent with recalled memories",
    "check": "check a store for damage; repairs nothing",
    "copy": "copy a store to another, or continue a copy, and compare",
    "import": "import the memories of an exported file",
    "maintain": "remove weak and old automatic links",
    "rebuild": "rebuild the search indexes from the saved memories",
    "reembed": "change to another embedder",
    "import-from": "import from other memory programs, and Claude Code transcripts",
    "migrate": "import the memories of a MAMA v1.0 database",
    "fake-node": "serve a generated Structs world until interrupted",
    "conversations": "list, delete and move conversations",
    "serve-mcp": "serve a session's tools to MCP clients, over stdio or HTTP",
}
_EPILOGS: Final = {"serve-mcp": _TOKEN_HELP, "hook": _HOOK_HELP}
# Each command has a function and arguments. The function's docstring is the command's help text.
# The docstring is also the command's line in the overview, unless `_SHORT_DESCRIPTIONS` contains the command.
# An argument has a name with metavar, a help text and options of `add_argument`. Without options it is a flag.
# In a list of arguments, a string starts an argument group.
_COMMANDS: Final[dict[str, tuple[Any, ...]]] = {
    "demo": (
        serving.demo,
        ("--references", "compare tool results with and without references, and their costs"),
        ("--base-url URL", "the node for --references, such as http://localhost:1317; a bundled one by default"),
        ("--player ID", _PLAYER_HELP, {"type": parse_player_id}),
        ("--json", "print only the figures of both parts, as one JSON object"),
        *_list_world_arguments(**serving.DEMO_WORLD, slowest=_MAX_DEMO_LATENCY_MS),
    ),
    "fake-node": (
        serving.fake_node,
        ("--host", "the address to listen on (%(default)s)", {"default": LOOPBACK}),
        (
            "--port",
            "the port, or 0 for a free port (%(default)s)",
            {"type": create_integer_parser(0, MAX_PORT), "default": 1317},
        ),
        *_list_world_arguments(players=40, latency=0),
    ),
    "ui": (
        serving.ui,
        _STORE,
        ("--write", "also change and delete memories; without it, the pages are read-only"),
        (
            "--port",
            "the port on 127.0.0.1, or 0 for a free port (%(default)s)",
            {"type": create_integer_parser(0, MAX_PORT), "default": 0},
        ),
        ("--open", "open the address in the default browser"),
        _NAMESPACE,
    ),
    "list": (reading.list_memories, _STORE, _create_limit_argument(20), _TYPES, _TOPIC, _NAMESPACE, _JSON),
    "show": (reading.show, _STORE, _ID, _NAMESPACE, _JSON),
    "search": (
        reading.search,
        _STORE,
        ("query QUERY", "the text to search for"),
        _create_limit_argument(10, "best"),
        _TYPES,
        _TOPIC,
        _NAMESPACE,
        _JSON,
    ),
    "recall": (
        reading.recall,
        _STORE,
        ("message MESSAGE", "the message of a user"),
        (
            "--max-chars N",
            "maximum number of characters (%(default)s)",
            {"type": create_integer_parser(300), "default": 2_000},
        ),
        ("--explain", "say why each line is there, and why other memories are left out"),
        _NAMESPACE,
        _JSON,
    ),
    "view": (
        reading.view,
        _STORE,
        (
            "-o FILE",
            "the output file; by default the directory's name with .html",
            {"dest": "output"},
        ),
        ("--query TEXT", "only the results of this search, best first"),
        _TYPES,
        _TOPIC,
        ("--outcome OUTCOME", "only decisions with this outcome", {"choices": ("SUCCESS", "FAILED", "PARTIAL")}),
        (
            "--origin ORIGIN",
            "only memories of this origin; can be repeated",
            {"action": "append", "dest": "origins", "choices": ("user", "model", "tool", "outside")},
        ),
        ("--tag TAG", "only memories with this tag; can be repeated", {"action": "append", "dest": "tags"}),
        ("--source SOURCE", "only memories with this source"),
        ("--since TIME", "only memories saved at this date or time (UTC), or later", {"type": parse_time}),
        ("--before TIME", "only memories saved before this date or time (UTC)", {"type": parse_time}),
        _create_limit_argument(10_000),
        _NAMESPACE,
    ),
    "erase": (
        reading.erase,
        _STORE,
        ("ids ID", "ids of the memories to erase", {"nargs": "*"}),
        ("--about NAME", "only memories that mention this id or have exactly this topic"),
        ("--source SOURCE", "only memories with this source, or with evidence from it"),
        ("--before TIME", "only memories saved before this date or time (UTC)", {"type": parse_time}),
        ("--dry-run", "only print the number of items that would be erased"),
        ("--yes", "skip the question"),
        _NAMESPACE,
        _REPORT,
    ),
    "check": (upkeep.check, _STORE, _NAMESPACE, _JSON),
    "stats": (upkeep.stats, _STORE, _NAMESPACE, _JSON),
    "rebuild": (upkeep.rebuild, _STORE, _NAMESPACE),
    "backup": (upkeep.backup_store, _DIRECTORY, ("target TARGET", "a directory that is missing or empty")),
    "copy": (
        upkeep.copy_store,
        _STORE,
        ("target TARGET", "another directory or server: empty, or with the copy of an earlier run"),
        ("--namespace NAME", "only the memories and conversations of this namespace; by default all"),
        _JSON,
    ),
    "conversations assign": (
        upkeep.assign_conversation,
        ("name CONVERSATION", "its name"),
        _STORE,
        _NEW_NAMESPACE,
        _OLD_NAMESPACE,
    ),
    "conversations list": (upkeep.list_conversations, _STORE, _NAMESPACE, _JSON),
    "conversations delete": (upkeep.delete_conversation, ("name CONVERSATION", "its name"), _STORE, _NAMESPACE),
    "export": (upkeep.export, _STORE, ("file FILE", "the JSON Lines file; an existing file is replaced"), _NAMESPACE),
    "import": (upkeep.import_file, _STORE, ("file FILE", "the file"), _NAMESPACE),
    "maintain": (upkeep.maintain, _STORE, _NAMESPACE),
    "reembed": (
        upkeep.reembed,
        _STORE,
        _NAMESPACE,
        ("--embedder", _EMBEDDER_HELP, {"choices": _EMBEDDERS, "required": True}),
    ),
    "migrate": (
        upkeep.migrate,
        ("old OLD.db", "the v1.0 database, such as ~/.claude/mama-memory.db"),
        _NEW_STORE,
        ("--dry-run", "only report what would be imported"),
        _EMBEDDER,
        _NAMESPACE,
        _REPORT,
    ),
    "import-from": (
        upkeep.import_from,
        ("kind KIND", f"the program: {', '.join(_IMPORT_SOURCES)}", {"choices": _IMPORT_SOURCES}),
        ("source SOURCE", _SOURCE_HELP),
        _NEW_STORE,
        ("--user ID", "only mem0's memories of this user id"),
        ("--dry-run", "only report what would be imported"),
        ("--again", "also import memories that were imported earlier and deleted here since"),
        _EMBEDDER,
        _NAMESPACE,
        _REPORT,
    ),
    "rollback": (
        upkeep.roll_back,
        _STORE,
        ("--force", "also delete memories that changed since or that later memories link to"),
        _NAMESPACE,
        _REPORT,
    ),
    "init": (
        serving.init,
        ("agent AGENT", f"the coding agent: {', '.join(AGENTS)}", {"choices": AGENTS}),
        ("store STORE", _INIT_STORE_HELP, {"nargs": "?"}),
        ("--user", "connect all projects of this user, by files in the home directory"),
        ("--project DIR", "the directory of the project to connect; by default the current one"),
        ("--dynamic", _DYNAMIC_HELP, {"choices": _DYNAMIC_MODES}),
        ("--namespace NAME", "namespace of the memories; by default the one of the last run, or 'default'"),
        ("--dry-run", "only show the changes"),
        ("--yes", "do not show the changes, and do not ask"),
        ("--undo", "remove what earlier runs added, and keep all other changes"),
    ),
    "hook": (
        serving.hook,
        _DIRECTORY,
        ("--namespace NAME", "namespace of the memories (%(default)s)", {"default": "default"}),
        ("--max-chars N", "maximum number of characters of the text, at least 300 (%(default)s)", {"default": 2_000}),
        ("--seconds S", "maximum seconds that the agent waits (%(default)s)", {"default": 2.0}),
    ),
    "serve-mcp": (
        serving.serve_mcp,
        ("store STORE", "the session's directory, created if missing, or the URL of a server"),
        ("--structs URL", "a Structs node, such as http://localhost:1317"),
        ("--namespace NAME", "namespace of the memories and conversations (%(default)s)", {"default": "default"}),
        (
            "--reads NAME",
            "a further namespace to search but not to write; can be repeated",
            {"action": "append", "default": []},
        ),
        ("--conversation NAME", "the conversation with the refs; by default a fresh one"),
        ("--files DIR", "the directory below which clients may write files; by default clients cannot write files"),
        ("--dynamic", _DYNAMIC_HELP, {"choices": _DYNAMIC_MODES}),
        ("--deprecated", "also list the deprecated tools of v1.0"),
        ("--verbose", "log decisions to stderr, without content"),
        "over HTTP",
        (
            "--http [HOST:]PORT",
            f"serve over HTTP, by default on {LOOPBACK} only; port 0 selects a free port",
            {"type": parse_address},
        ),
        ("--token-file FILE", "file with the token that clients must send"),
        (
            "--allow-host NAME",
            "a further host name of this server; can be repeated",
            {"action": "append", "default": []},
        ),
    ),
}
