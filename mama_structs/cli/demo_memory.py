"""Memory part of the demo: saves, an outcome, a replacement, a recall in another session, and a search."""

from __future__ import annotations

import tempfile
import textwrap
from typing import Any, Final

import attrs

from mama_structs._internal.reprs import escape_unprintable
from mama_structs.memory.graph.results import Hit
from mama_structs.memory.types.model import Memory
from mama_structs.session.session import Session

RECALL_MESSAGE: Final = "How should logins work?"
SEARCH_QUERY: Final = "What is Ada's job?"
CHARS_PER_TOKEN: Final = 4
"""Approximate number of characters per token of a model."""
_INDENT: Final = "  "
_NEXT_COMMANDS: Final = (
    ("mama-structs demo --references", "tool results with and without references"),
    ("mama-structs --help", "all commands"),
)


@attrs.frozen
class MemoryDemo:
    """The results of the memory part, in the order of the calls."""

    saved: tuple[Memory, ...]
    failed: Memory
    replacement: Memory
    recalled_text: str
    hit: Hit

    @property
    def figures(self) -> dict[str, Any]:
        """Sizes and results, as ``--json`` prints them."""
        chars = len(self.recalled_text)
        return {
            "saved": len(self.saved) + 1,
            "recall": {"message": RECALL_MESSAGE, "chars": chars, "tokens": chars // CHARS_PER_TOKEN},
            "search": {"query": SEARCH_QUERY, "hit": self.hit.content, "relevance": self.hit.relevance},
        }


async def run_memory_demo() -> MemoryDemo:
    """Save memories in one session, and recall and search them in another one."""
    with tempfile.TemporaryDirectory() as folder:
        async with Session.open(folder) as session:
            memories = session.memories
            jwt = await memories.save_decision("Use JWT for logins", topic="auth", reasoning="No server state")
            ada = await memories.save("Ada works as a nurse", topic="ada")
            checkpoint = await memories.save_checkpoint("The signup page is done", next_steps=["Add a logout"])
            failed = await memories.set_outcome(jwt, "FAILED", reason="A stolen JWT could not be revoked")
            redis = await memories.supersede(jwt, "Keep logins in Redis", reasoning="They can be revoked")
        async with Session.open(folder) as session:
            recalled = await session.recall(RECALL_MESSAGE)
            (hit,) = await session.memories.search(SEARCH_QUERY, limit=1)
    return MemoryDemo((jwt, ada, checkpoint), failed, redis, recalled.text, hit)


def render_memory_demo(demo: MemoryDemo, *, width: int) -> str:
    """Return the text of the memory part. Lines have at most *width* columns, except for longer words."""
    tokens = len(demo.recalled_text) // CHARS_PER_TOKEN
    columns = max(len(command) for command, _ in _NEXT_COMMANDS)
    lines = [
        "An agent saves three memories:",
        *(_INDENT + _describe_memory(memory) for memory in demo.saved),
        "The decision fails, and another decision replaces it:",
        f'{_INDENT}FAILED: "{demo.failed.outcome_reason}"',
        _INDENT + _describe_memory(demo.replacement),
        f'Later, recall adds this to the prompt for "{RECALL_MESSAGE}" (about {tokens} tokens):',
        *(_INDENT + line for line in demo.recalled_text.splitlines()),
        f'A search for "{SEARCH_QUERY}" returns:',
        f'{_INDENT}"{demo.hit.content}" (relevance {demo.hit.relevance:.2f})',
        "Next commands:",
        *(f"{_INDENT}{command:<{columns}}{_INDENT}{purpose}" for command, purpose in _NEXT_COMMANDS),
    ]
    return "\n".join(_wrap_line(escape_unprintable(line), width) for line in lines)


def _describe_memory(memory: Memory) -> str:
    reason = f', because "{memory.reasoning}"' if memory.reasoning else ""
    return f'{memory.type}: "{memory.content}"{reason}'


def _wrap_line(line: str, width: int) -> str:
    indent = (len(line) - len(line.lstrip())) * " "
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
