"""
Runs the memory suite on several stores, to check that acknowledged changes are durable.

The suite is `mama_structs.testing.conformance.memory_suite`.

Each store has the environment that `peers.py` makes for it, and a driver that uses its own API (`_stores`).

``--write`` also writes the results to docs/internals/comparison-stores.json and the table from them into docs/internals/comparison.md;
``--table`` only writes the table again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from _common import RESULTS, report
from _peers_table import PEERS, page_between
from _postgres import administer, run_server
from peers import HERE, PAGE_PATH, environments

FIGURES: Final = PAGE_PATH.with_name("comparison-stores.json")
BEGIN, END = "<!-- stores: begin -->", "<!-- stores: end -->"
DRIVER_MODULE: Final = "mama_structs.testing.conformance.session_driver"
# The checks of a quick run, which only shows that the benchmark works.
QUICKLY: Final = ("saved_is_found", "limit_is_exact", "deleted_is_gone")


class Store(NamedTuple):
    """A store in the comparison: its title, the peer whose environment it uses, and its driver."""

    title: str
    peer: str
    driver: str


STORES: Final[Mapping[str, Store]] = {
    "ours": Store("mama-structs, a directory", "ours", f"{DRIVER_MODULE}:SessionDriver"),
    "server": Store("mama-structs, PostgreSQL", "ours", f"{DRIVER_MODULE}:ServerSessionDriver"),
    "langgraph": Store("LangGraph SqliteStore", "langgraph", "_stores.langgraph_sqlite:Driver"),
    "chroma": Store("Chroma", "chroma", "_stores.chroma:Driver"),
    "mem0": Store("mem0", "mem0", "_stores.mem0_local:Driver"),
}


@contextmanager
def open_location(name: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the suite's arguments for the store's location, and the version of the server if there is one."""
    if name != "server":
        yield [], {}
        return
    with run_server() as url:
        (row,) = administer(url, "SHOW server_version")
        yield ["--location", url], {"PostgreSQL": row[0].split()[0]}


def checked(name: str, python: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the suite on a store. Return the versions of its packages and the result of each check."""
    store = STORES[name]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    with tempfile.TemporaryDirectory() as folder, open_location(name) as (where, server):
        path = Path(folder) / "results.json"
        suite = [
            python,
            "-m",
            "mama_structs.testing.conformance.memory_suite",
            store.driver,
            *where,
            *arguments,
            "--json",
            path,
        ]
        done = subprocess.run(suite, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
        if not path.exists():
            raise SystemExit(f"{store.title}: {done.stderr or done.stdout}")
        results = json.loads(path.read_text(encoding="utf-8"))
    code = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]))"
    packages = PEERS[store.peer].packages
    said = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True).stdout  # noqa: S603 - ourselves
    return {"versions": dict(zip(packages, said.split(), strict=True)) | server, "checks": results}


# Table

CELLS: Final = {"passed": "yes", "failed": "no", "excused": "excused"}


def rows_of(stores: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the table with their labels."""
    versions = [", ".join(f"{name} {one}" for name, one in own["versions"].items()) for own in stores.values()]
    columns = [{one["sentence"]: CELLS[one["outcome"]] for one in own["checks"]} for own in stores.values()]
    rows = [[sentence, *(column[sentence] for column in columns)] for sentence in columns[0]]
    totals = [f"{list(column.values()).count('yes')} of {len(column)}" for column in columns]
    return [["versions", *versions], *rows, ["yes in all", *totals]]


def _generated(written: Mapping[str, Any]) -> Iterator[str]:
    figures, machine = written["figures"], written["machine"]
    yield ""
    yield (
        f"Taken on {figures['date']} ({machine['system']}, {machine['python']}), with {figures['rounds']} kills "
        f"of a writing process and the seed {figures['seed']}."
    )
    yield ""
    yield "| | " + " | ".join(STORES[name].title for name in figures["stores"]) + " |"
    yield "| --- |" + " --- |" * len(figures["stores"])
    for label, *cells in rows_of(figures["stores"]):
        yield f"| {label} | " + " | ".join(cells) + " |"
    for name, why in figures["missing"].items():
        yield f"| {STORES[name].title} | {why} |"
    yield ""
    yield 'What the suite said where a cell is "no", and why one is excused:'
    yield ""
    for name, own in figures["stores"].items():
        for one in own["checks"]:
            if one["outcome"] != "passed":
                said = one["reason"] or "; ".join(dict.fromkeys(one["findings"]))
                yield f"* {STORES[name].title}, {CELLS[one['outcome']]}, `{one['name']}`: {said}."
    yield ""


def page_with(page: str, written: Mapping[str, Any]) -> str:
    """Return the page with a new table between its marker comments."""
    return page_between(page, BEGIN, END, _generated(written))


def write_page() -> None:
    """Write the table of docs/internals/comparison-stores.json into the page."""
    written = json.loads(FIGURES.read_text(encoding="utf-8"))
    PAGE_PATH.write_text(page_with(PAGE_PATH.read_text(encoding="utf-8"), written), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some checks of ours, to show that it works")
    parser.add_argument("--only", nargs="+", choices=[*STORES], default=[*STORES], help="some of the stores")
    parser.add_argument("--as-installed", action="store_true", help="do not look for newer versions of the peers")
    parser.add_argument("--rounds", type=int, default=10, help="kills of a writing process (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the plan of the run (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument(
        "--write", action="store_true", help="also write docs/internals/comparison-stores.json and the page"
    )
    parser.add_argument("--table", action="store_true", help="only write the table again")
    given = parser.parse_args()
    if given.table:
        write_page()
        return
    names = ["ours"] if given.quick else given.only
    peers = dict.fromkeys(STORES[name].peer for name in names)
    rivals, missing = environments([*peers], quick=given.quick, install=not given.as_installed)
    arguments = ["--rounds", str(given.rounds), "--seed", str(given.seed)]
    arguments += ["--only", *QUICKLY] if given.quick else []
    stores = {}
    for name in names:
        if STORES[name].peer in rivals:
            print(STORES[name].title, file=sys.stderr) if not given.quick else None
            stores[name] = checked(name, rivals[STORES[name].peer].python, arguments)
    figures = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "rounds": given.rounds,
        "seed": given.seed,
        "stores": stores,
        "missing": {name: missing[STORES[name].peer] for name in names if STORES[name].peer in missing},
    }
    titles = [STORES[name].title for name in stores]
    report("stores", "memory stores", ("what", *titles), rows_of(stores), figures=figures, folder=given.results)
    if given.write:
        shutil.copy(given.results / "stores.json", FIGURES)
        write_page()


if __name__ == "__main__":
    main()
