"""
Runs the same work with this package on a PostgreSQL server and in a directory, and with LangGraph on the server.

LangGraph uses its `AsyncPostgresStore`.

The script starts its own server with PostgreSQL's default settings (so that a commit waits for the disk), or uses the
one of ``--url``, in which it creates its own databases. Each store has its own process and, on the server, its own
database; LangGraph's also has its own environment, which pip creates in the temporary folder. All have the texts and
vectors of `scale.py`, and are measured interleaved. Vector lookups are not timed.

The calls do not do the same work. A save of this package indexes words and, except for *unlinked*, finds memories on the
same subject and links them; LangGraph's stores a text and its vector. A search of this package compares vectors and
words and follows links and supersession; LangGraph's compares vectors with an approximate index. LangGraph has no
links, so its memories contain each other's keys, and a traversal fetches each level with one query.

Above `MAX_LINKED_BULK` memories, the stores that link are loaded without links, and only their single saves find links.

``--write`` also puts the tables into docs/internals/performance.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from _common import MILLI, RESULTS, quantiles, report
from _postgres import administer, database, run_server
from _scale import DIMENSIONS, Rows
from scale import HERE, WORDS, Process, Rival, Sizes, make_corpus, nearest, recall, run_interleaved

from mama_structs._internal.reprs import align_columns

PAGE_PATH: Final = HERE.parent / "docs" / "internals" / "performance.md"
BEGIN, END = "<!-- server: begin -->", "<!-- server: end -->"
LANGGRAPH: Final = ("langgraph-checkpoint-postgres", "psycopg[binary]")
MAX_LINKED_BULK: Final = 1_000
BASE: Final = "langgraph"
"""The rival to whose figures the others are compared, if it runs."""

FIGURES: Final[tuple[tuple[str, Callable[[dict[str, Any]], float], int], ...]] = (
    ("open p50, ms", lambda own: own["open"]["median"] * MILLI, 1),
    ("one save p50, ms", lambda own: own["save"]["median"] * MILLI, 2),
    ("one save p99, ms", lambda own: own["save"]["p99"] * MILLI, 2),
    ("many saves at once, a second", lambda own: own["bulk"], 0),
    ("search p50, ms", lambda own: own["search"]["median"] * MILLI, 2),
    ("search p99, ms", lambda own: own["search"]["p99"] * MILLI, 2),
    ("its vectors p50, ms", lambda own: own["vectors"]["median"] * MILLI, 2),
    ("recall@10 of the vectors", lambda own: own["recall"], 3),
    ("walk of depth 5, p50, ms", lambda own: own["walk"]["median"] * MILLI, 2),
    ("walk of depth 5, p99, ms", lambda own: own["walk"]["p99"] * MILLI, 2),
)


def langgraph_python() -> str:
    """Create an environment with LangGraph's store, and return its Python interpreter."""
    folder = Path(tempfile.gettempdir()) / "mama-structs-benchmarks" / "langgraph-postgres"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *LANGGRAPH, "numpy"]
        subprocess.run(pip, check=True)  # noqa: S603 - as named there
    return str(python)


def measured(
    sizes: Sizes, opens: int, rivals: dict[str, Rival], url: str, folder: Path, *, quick: bool
) -> dict[str, dict[str, Any]]:
    """Run all measurements with one amount of data."""
    corpus = folder / "corpus"
    corpus.mkdir()
    make_corpus(sizes, corpus, quick=quick)
    rows = Rows(corpus)
    truth = nearest(rows, sizes.memories, range(sizes.searches))
    unlinked = {"bulk_linking": "off"} if sizes.memories > MAX_LINKED_BULK else {}
    loaded_otherwise = {name for name, rival in rivals.items() if unlinked and is_linked(rival)}
    rivals = {
        name: rival._replace(settings=rival.settings | unlinked) if name in loaded_otherwise else rival
        for name, rival in rivals.items()
    }
    figures: dict[str, dict[str, Any]] = {name: {} for name in rivals}
    with running(rivals, url, corpus, folder) as (processes, urls):
        for name, process in processes.items():
            bulk = process("bulk", 0, sizes.memories)[0] + process("wait_until_idle")[0]
            figures[name]["bulk"] = float("nan") if name in loaded_otherwise else sizes.memories / bulk
            print(name, figures[name], file=sys.stderr) if not quick else None
        # Analyse the tables now. The server's autovacuum would do this within about a minute.
        for one in urls:
            administer(one, "VACUUM ANALYZE")
        for what, kept in (("search", "search"), ("nearest", "vectors")):
            for name, (seconds, found) in run_interleaved(processes, what, 0, sizes.searches, sizes.turn).items():
                figures[name][kept] = quantiles(seconds)
                if what == "nearest":
                    figures[name]["recall"] = recall(rows, truth, found, range(sizes.searches))
        for name, (seconds, _) in run_interleaved(processes, "save", sizes.memories, rows.count, sizes.turn).items():
            figures[name]["save"] = quantiles(seconds)
        taken: dict[str, list[float]] = {name: [] for name in rivals}
        for _ in range(opens):
            for name, process in processes.items():
                process("close")
                taken[name].append(process("open")[0])
        for name, seconds in taken.items():
            figures[name]["open"] = quantiles(seconds)
    walkers = {
        name: rival._replace(kind="langgraph walks" if rival.kind == "langgraph" else "walks")
        for name, rival in rivals.items()
    }
    with running(walkers, url, corpus, folder, "walks") as (processes, urls):
        for process in processes.values():
            process("bulk", 0, sizes.memories)
        for one in urls:
            administer(one, "VACUUM ANALYZE")
        for name, (seconds, found) in run_interleaved(processes, "search", 0, sizes.walked, sizes.turn).items():
            figures[name]["walk"] = quantiles(seconds) | {"reached": max(map(max, found))}
    return figures


def is_linked(rival: Rival) -> bool:
    """Return True if a store of this package links its memories automatically."""
    return rival.kind == "ours" and rival.settings.get("linking") != "off"


@contextmanager
def running(
    rivals: dict[str, Rival], url: str, corpus: Path, folder: Path, what: str = "memories"
) -> Iterator[tuple[dict[str, Process], list[str]]]:
    """Start all rivals and open their stores. Yield the processes, and the databases on the server."""
    processes, urls = {}, []
    for name, rival in rivals.items():
        store, settings = f"{name.replace(' ', '_')}_{what}", dict(rival.settings)
        if settings.pop("server", False):
            settings["url"] = database(url, f"mama_structs_benchmark_{store}")
            urls.append(settings["url"])
        processes[name] = Process(rival._replace(settings=settings), corpus, folder / store)
        processes[name]("open")
    try:
        yield processes, urls
    except BaseException:
        for process in processes.values():
            process.kill()
        raise
    for process in processes.values():
        process("close")
        process.end()


def lines(figures: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a table row for each figure, with the value of each rival and its ratio to LangGraph's."""
    rows = []
    for what, of, digits in FIGURES:
        base = of(figures[BASE]) if BASE in figures else 0.0
        cells = [(of(own), f"{of(own):,.{digits}f}") for own in figures.values()]
        rows.append(
            [
                what,
                *("" if cell == "nan" else f"{cell} ({value / base:.2f})" if base else cell for value, cell in cells),
            ]
        )
    return rows


def render_section(title: str, tables: list[str], busy: str) -> str:
    """Return the new text between the marker comments of the page."""
    blocks = "\n\n".join(f"```text\n{one}\n```" for one in tables)
    return f"{BEGIN}\n\n{title}\n{busy}\n\n{blocks}\n\n{END}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run, without LangGraph, that only shows it works")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000], help="(%(default)s)")
    parser.add_argument("--url", help="a superuser's URL of a server that is there, instead of one that is started")
    parser.add_argument("--only", nargs="+", help="some of: directory, server, 'server unlinked', langgraph, ...")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/internals/performance.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    given = parser.parse_args()
    rivals = {
        name: Rival("ours", {"server": "server" in name} | settings, sys.executable, HERE.parent)
        for where in ("directory", "server")
        for name, settings in ((where, {}), (f"{where} unlinked", {"linking": "off"}))
    }
    if not given.quick and "langgraph" in (given.only or ["langgraph"]):
        rivals["langgraph"] = Rival("langgraph", {"server": True}, langgraph_python(), HERE)
    wanted = ["directory", "server"] if given.quick else given.only or [*rivals]
    rivals = {name: rival for name, rival in rivals.items() if name in wanted}
    figures: dict[str, Any] = {}
    tables = []
    load = [os.getloadavg()[0]]
    with run_server() if given.url is None else nullcontext(given.url) as url:
        version = administer(url, "SELECT current_setting('server_version')")[0][0]
        for count in [40] if given.quick else given.sizes:
            sizes = Sizes(count, 4, 4, 2, 4) if given.quick else Sizes(count, 200, 200, 20, 60)
            with tempfile.TemporaryDirectory() as folder:
                some = measured(sizes, 1 if given.quick else 9, rivals, url, Path(folder), quick=given.quick)
            figures[str(count)] = some
            load.append(os.getloadavg()[0])
            title = f"{count:,} memories of {DIMENSIONS} dimensions and {WORDS} words"
            title += f"; in brackets: as a multiple of {BASE}" if BASE in rivals else ""
            rows = lines(some)
            report("server", title, ("what", *some), rows, figures=figures, folder=given.results, words=1)
            tables.append(f"{title}\n\n{align_columns(('what', *some), rows, left_columns=1)}")
    if given.write:
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        title = f"Taken on {date} on PostgreSQL {version.split()[0]} on the machine of its clients, with {os.cpu_count()} cores."
        busy = f"The load average before and after each size was {', '.join(f'{one:.1f}' for one in load)}"
        busy += ": the machine was busy with other work." if load[0] > 1 else "."
        page = PAGE_PATH.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE_PATH.write_text(before + render_section(title, tables, busy) + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
