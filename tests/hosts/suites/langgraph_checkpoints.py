"""
Runs LangGraph's conformance suite for checkpointers on ours. The last output line is the result as JSON.

Usage: ``python tests/hosts/suites/langgraph_checkpoints.py``. Each capability gets its own store.
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
    """Yield our checkpointer on an empty store."""
    async with Session.open(embedder=HashEmbedder()) as session:
        yield LangGraphCheckpointer(session)


def main() -> int:
    """Run all capabilities of the suite."""
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
