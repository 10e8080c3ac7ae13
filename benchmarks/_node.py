"""A fake node in a separate process, so that measurements of this process exclude the node's CPU time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def node_process(*, players: int, latency: int) -> Iterator[str]:
    """Run ``mama-structs fake-node`` with *latency* milliseconds and yield its URL."""
    command = ["fake-node", "--port", "0", "--players", str(players), "--latency", str(latency)]
    process = subprocess.Popen([sys.executable, "-m", "mama_structs", *command], stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=10)
