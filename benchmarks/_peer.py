"""Process that runs one peer for `peers.py`: ``_peer.py MODULE CORPUS STORE SETTINGS``."""

from __future__ import annotations

import importlib
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _scale import Rows, clock, memory_now, serve


def main() -> None:
    module, corpus, store, settings = sys.argv[1:]
    given = json.loads(settings)
    rows, before = Rows(Path(corpus)), memory_now()["resident"]
    seconds, peer = clock(importlib.import_module, f"_peers.{module}")
    about = {
        "import": seconds,
        "imported": memory_now()["resident"] - before,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in given.pop("packages", ())},
    }

    def make() -> Any:
        driver = peer.Peer(rows, given)
        driver.about = lambda: about
        return driver

    serve(make, Path(store))


if __name__ == "__main__":
    main()
