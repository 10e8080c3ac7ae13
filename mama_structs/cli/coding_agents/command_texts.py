"""Slash commands as Markdown for a coding agent, and a rule for agents whose hooks may not add recalled memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

SERVER_NAME: Final = "mama"
"""Name of the MCP server in the configuration of the agents."""
CONFIGURE: Final = "mama-configure"
"""Name of the command that sets the exposure mode."""


@attrs.frozen
class Command:
    """
    A slash command.

    Args:
        description: One line for the list of commands.
        hint: What the user can type after the command, or "".
        text: The prompt.

    """

    description: str
    hint: str
    text: str

    def render(self, front_matter: Mapping[str, str]) -> str:
        """Return the Markdown file, with the entries of the front matter that have a value."""
        lines = [f"{key}: {value}\n" for key, value in front_matter.items() if value]
        return f"---\n{''.join(lines)}---\n\n{self.text}" if lines else self.text


_SEARCH: Final = """Search the memories for: {argument}

Call the tool search__by_context of the MCP server "mama" with this text.
Report the relevant results, each with its date, its outcome and its id.
If a decision failed or was replaced, say by what and why.
If nothing relevant is found, say so.
"""
_DECIDE: Final = """Save this decision: {argument}

If no decision is given, use the latest one of this conversation.
First call search__by_context of the MCP server "mama" to find an earlier decision on the same topic.
If the new decision replaces it, call evolve__supersede. Otherwise call save__decision.
Give a short topic, the decision in one sentence, and the reasons with rejected alternatives.
Report the id.
"""
_CHECKPOINT: Final = """Save the state of this work, with this note if one is given: {argument}

Call save__checkpoint of the MCP server "mama".
Say what is done and tested, what is open, and the next steps, with names of files.
Write only what you know from this conversation. Report the id.
"""
_RESUME: Final = """Call load__checkpoint and load__context of the MCP server "mama".
Check the named files, because they can have changed since.
Report in a few lines what is done, what is open and the next step. Then wait for an answer.
"""
_CONFIGURE: Final = """Set the exposure mode of the memory tools to: {argument}

The modes:

- auto: clients that follow changes of the tool list see the tools that match the message; others see all
- force_static: every client always sees all tools
- force_dynamic: every client sees only the tools that match the message

If no mode or another word is given, explain the modes and ask for one.
Otherwise run this command with the mode in place of MODE, and report its output:

    {configure} --dynamic MODE --yes

The mode applies when the MCP server starts the next time. {restart}
"""
RULE: Final = """---
description: Memory of earlier sessions
alwaysApply: true
---

The MCP server "mama" has memories of earlier sessions: decisions with reasons, failures and checkpoints.

- Before you start a task, call search__by_context with the task in one sentence, unless memories were recalled already.
- After a decision, call save__decision with a topic, the decision and its reasons.
- When a task is finished or interrupted, call save__checkpoint with what is done, what is open and the next steps.
"""
"""A rule of Cursor that applies to every conversation."""


def list_commands(*, argument: str, configure: str, restart: str) -> dict[str, Command]:
    """
    Return the commands by their names.

    Args:
        argument: The agent's placeholder for what the user typed after the command, or a description of it.
        configure: The shell command that sets the mode.
        restart: How to restart the MCP server.

    """
    texts = {
        "mama-search": ("Search the saved memories", "what to search for", _SEARCH),
        "mama-decide": ("Save a decision with its reasons", "the decision", _DECIDE),
        "mama-checkpoint": ("Save the state of the work", "a note", _CHECKPOINT),
        "mama-resume": ("Resume the work from the last checkpoint", "", _RESUME),
        CONFIGURE: ("Choose which memory tools are offered", "auto, force_static or force_dynamic", _CONFIGURE),
    }
    return {
        name: Command(description, hint, text.format(argument=argument, configure=configure, restart=restart))
        for name, (description, hint, text) in texts.items()
    }
