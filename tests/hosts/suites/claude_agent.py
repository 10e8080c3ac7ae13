"""
The Claude Agent SDK's contracts for session stores. Each contract uses its own namespace of one directory.

The last line of the output contains the number of passed contracts, and the first failed contract.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import tempfile
import traceback
from pathlib import Path

from claude_agent_sdk.testing import run_session_store_conformance

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.claude_agent import session_store

_OPTIONAL = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")


async def main() -> int:
    """Run the contracts, and return 1 if one fails."""
    opened: list[Session] = []
    source, first = inspect.getsourcelines(run_session_store_conformance)
    # Maps the first line of each contract to its number, which the SDK writes in a comment above it.
    starts = {
        first + at: f"contract {found[1]}"
        for at, line in enumerate(source)
        if (found := re.match(r"\s*# (\d+)\. ", line))
    }
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as directory:

        async def fresh() -> object:
            namespace = f"contract-{len(opened)}"
            opened.append(
                await Session.open(Path(directory, "agent.mama"), namespace=namespace, embedder=HashEmbedder())
            )
            return session_store(opened[-1])

        try:
            store = await fresh()
            # The SDK skips contracts about optional methods that a store lacks, so a missing method counts as failed.
            failed += [name for name in _OPTIONAL if not hasattr(store, name)]
            await run_session_store_conformance(fresh)
        except Exception as error:
            # Any exception is a failure of this contract. The SDK does not run the later contracts.
            traceback.print_exc()
            name = run_session_store_conformance.__name__
            line = max(frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.name == name)
            failed += [contract for start, contract in starts.items() if start <= line][-1:]
        finally:
            for session in opened:
                await session.close()
    passed = 0 if failed else len(starts)
    print(json.dumps({"passed": passed, "failed": failed, "excused": []}))  # noqa: T201 - read by the runner
    return bool(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
