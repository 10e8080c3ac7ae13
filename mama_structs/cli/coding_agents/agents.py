"""The coding agents: their configuration files, hook events and slash commands."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

import attrs

from mama_structs.cli.coding_agents.command_texts import CONFIGURE, RULE, SERVER_NAME, list_commands
from mama_structs.cli.coding_agents.names import AgentName
from mama_structs.cli.coding_agents.targets import JsonTarget, Target, TextTarget, TomlTarget

# The first hook of a session starts the helper process while the agent starts its other programs.
_START_SECONDS: Final = 5


@attrs.frozen(kw_only=True)
class Setup:
    """
    Settings of one connected agent.

    Args:
        agent: The coding agent.
        project: The project's directory, or None for all projects of the user.
        store: The directory of the session.
        dynamic: The exposure mode of the memory tools, see `ToolSettings.dynamic`.
        namespace: The namespace of the memories.

    """

    agent: AgentName
    project: Path | None
    store: str
    dynamic: str | None = None
    namespace: str | None = None

    def get_root(self) -> Path:
        """Return the directory that contains the agent's files."""
        return Path.home() if self.project is None else self.project

    def get_directory(self) -> Path:
        """Return the agent's own directory."""
        variable, name = {
            "claude-code": ("CLAUDE_CONFIG_DIR", ".claude"),
            "codex": ("CODEX_HOME", ".codex"),
            "cursor": ("", ".cursor"),
        }[self.agent]
        configured = os.environ.get(variable) if self.project is None else None
        return Path(configured).absolute() if configured else self.get_root() / name


def find_program() -> list[str]:
    """
    Return the command that starts this program from any directory and environment.

    Coding agents often have another PATH than the shell, so the path is absolute.
    """
    script = Path(sysconfig.get_path("scripts")) / ("mama-structs.exe" if os.name == "nt" else "mama-structs")
    on_path = shutil.which("mama-structs")
    # The one on PATH can be a link that stays valid after a reinstallation, for example by pipx.
    if on_path is not None and (not script.exists() or Path(on_path).resolve() == script.resolve()):
        return [os.path.abspath(on_path)]  # noqa: PTH100 - Path.resolve would follow the link
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "mama_structs"]


def quote_command(words: list[str]) -> str:
    """Return a command line for the shell."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def list_targets(setup: Setup) -> list[Target]:
    """Return the files to edit, with the additions to each."""
    program = find_program()
    namespace = [] if setup.namespace is None else ["--namespace", setup.namespace]
    mode = [] if setup.dynamic is None else ["--dynamic", setup.dynamic]
    server = {"command": program[0], "args": [*program[1:], "serve-mcp", setup.store, *namespace, *mode]}
    hook = [*program, "hook", setup.store, *namespace]
    hooks = {"start": quote_command([*hook, "--seconds", str(_START_SECONDS)]), "other": quote_command(hook)}
    where = ["--user"] if setup.project is None else ["--project", str(setup.project)]
    configure = quote_command([*program, "init", setup.agent, *where])
    return _LISTS[setup.agent](setup, server, hooks, configure)


def _list_claude_code(setup: Setup, server: Any, hooks: dict[str, str], configure: str) -> list[Target]:
    own = setup.get_directory()
    servers = setup.get_root() / ".mcp.json"
    if setup.project is None:
        # With CLAUDE_CONFIG_DIR, this file is in the configured directory.
        servers = (own if os.environ.get("CLAUDE_CONFIG_DIR") else setup.get_root()) / ".claude.json"
    commands = list_commands(
        argument="$ARGUMENTS",
        configure=configure,
        restart="In Claude Code, the user reconnects it with /mcp.",
    )
    return [
        JsonTarget(_name(setup, servers), members={("mcpServers", SERVER_NAME): server}),
        JsonTarget(_name(setup, own / "settings.json"), items=_list_hooks(hooks)),
        *(
            TextTarget(
                _name(setup, own / "commands" / f"{name}.md"),
                command.render(
                    {
                        "description": command.description,
                        "argument-hint": command.hint,
                        # A JSON string is also a YAML string.
                        "allowed-tools": json.dumps(f"Bash({configure} --dynamic:*)") if name == CONFIGURE else "",
                        # Only the user starts a command, so its description costs no tokens.
                        "disable-model-invocation": "true",
                    }
                ),
            )
            for name, command in commands.items()
        ),
    ]


def _list_codex(setup: Setup, server: Any, hooks: dict[str, str], configure: str) -> list[Target]:
    own = setup.get_directory()
    # Codex reads skills instead of its earlier custom prompts. `$mama-search` or /skills starts one.
    skills = list_commands(
        argument="(the text that follows the name of this skill)",
        configure=configure,
        restart="Codex starts it with its next session. The command writes to the directory .codex, "
        "so it can need a permission to run outside the sandbox.",
    )
    folder = setup.get_root() / ".agents" / "skills"
    return [
        TomlTarget(_name(setup, own / "config.toml"), ("mcp_servers", SERVER_NAME), server),
        JsonTarget(_name(setup, own / "hooks.json"), items=_list_hooks(hooks)),
        *(
            TextTarget(
                _name(setup, folder / name / "SKILL.md"),
                skill.render({"name": name, "description": skill.description}),
            )
            for name, skill in skills.items()
        ),
    ]


def _list_cursor(setup: Setup, server: Any, hooks: dict[str, str], configure: str) -> list[Target]:
    own = setup.get_directory()
    commands = list_commands(
        argument="(the text that follows this command)",
        configure=configure,
        restart="In Cursor, the user switches it off and on in the settings, under MCP.",
    )
    events = {"sessionStart": hooks["start"], "beforeSubmitPrompt": hooks["other"], "preCompact": hooks["other"]}
    items: dict[tuple[str, ...], Any] = {("hooks", event): {"command": command} for event, command in events.items()}
    targets: list[Target] = [
        JsonTarget(_name(setup, own / "mcp.json"), members={("mcpServers", SERVER_NAME): server}),
        JsonTarget(_name(setup, own / "hooks.json"), items=items, skeleton={"version": 1}),
        *(TextTarget(_name(setup, own / "commands" / f"{name}.md"), one.text) for name, one in commands.items()),
    ]
    if setup.project is not None:
        # The rules of a user are not files.
        targets.append(TextTarget(_name(setup, own / "rules" / "mama-structs.mdc"), RULE))
    return targets


def _list_hooks(hooks: dict[str, str]) -> dict[tuple[str, ...], Any]:
    """Return the hooks of Claude Code and Codex. A session also starts after a compaction and after `/clear`."""
    events = {"SessionStart": hooks["start"], "UserPromptSubmit": hooks["other"]}
    return {("hooks", event): {"hooks": [{"type": "command", "command": command}]} for event, command in events.items()}


def _name(setup: Setup, path: Path) -> str:
    """Return the name of a file: its path below the project, or below the home directory with ``~``."""
    root = setup.get_root()
    if not path.is_relative_to(root):
        return str(path)
    name = path.relative_to(root).as_posix()
    return name if setup.project is not None else f"~/{name}"


_LISTS: Final = {"claude-code": _list_claude_code, "codex": _list_codex, "cursor": _list_cursor}
NEXT_STEPS: Final = {
    "claude-code": "Start Claude Code, approve the MCP server if it asks, and try /mama-search.",
    "codex": "Start Codex, trust the project and the hooks when it asks (/hooks), and try $mama-search.",
    "cursor": "Restart Cursor, enable the MCP server in its settings, and try /mama-search.",
}
"""What the user does after `init`."""
