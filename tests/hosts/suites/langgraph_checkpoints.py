"""
Runs LangGraph's conformance suite for checkpointers on ours; its last line says as JSON what passed and what failed.

``python tests/hosts/suites/langgraph_checkpoints.py``; each of its capabilities gets a store of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langgraph.checkpoint.conformance import checkpointer_test, validate

from mama_structs import HashEmbedder, Session
from mama_structs.adapters.langgraph.checkpoints import LangGraphCheckpointer


@checkpointer_test(name="LangGraphCheckpointer")
async def ours() -> Any:
    """Give a checkpointer on an empty store."""
    async with Session.open(embedder=HashEmbedder()) as session:
        yield LangGraphCheckpointer(session)


def main() -> int:
    """Run all that the suite has."""
    report = asyncio.run(validate(ours))
    report.print_report()
    told = {
        "passed": sum(one.tests_passed for one in report.results.values()),
        "failed": [failure for one in report.results.values() for failure in one.failures],
        "excused": [name for name, one in report.results.items() if not one.detected],
    }
    sys.stdout.write(f"{json.dumps(told)}\n")
    return int(bool(told["failed"]))


if __name__ == "__main__":
    sys.exit(main())
