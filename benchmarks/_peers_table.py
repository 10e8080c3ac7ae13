"""The list of compared peers, and the table of docs/internals/comparison.md with the figures of `peers.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
from _common import MILLI

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
NO_SUCH: Final = "no such thing"
MEGA: Final = 1e6


@attrs.frozen
class PeerInfo:
    """
    A peer in the comparison.

    Args:
        title: The name in the table.
        module: The module in `_peers`.
        packages: The installed packages whose versions are reported.
        environment: The folder of its environment, shared by peers with the same packages.
        besides: Further packages to install.
        keeps: Whether the peer stores data on disk.
        words: Whether its own search uses words.
    """

    title: str
    module: str
    packages: Sequence[str]
    environment: str = ""
    besides: Sequence[str] = ()
    keeps: bool = True
    words: bool = False


SQLITE: Final = ("pysqlite3-binary; sys_platform == 'linux' and platform_machine == 'x86_64'",)
"""Needed if the SQLite of the interpreter cannot load extensions."""
SUITE: Final = ("attrs", "regex")
"""The dependencies of this package that the drivers of `stores.py` need."""
LANGGRAPH: Final = ("langgraph", "langgraph-checkpoint-sqlite")

PEERS: Final[Mapping[str, PeerInfo]] = {
    "ours": PeerInfo("mama-structs", "ours", ("mama-structs",), words=True),
    "mem0": PeerInfo("mem0", "mem0_local", ("mem0ai",), "mem0", SUITE),
    "langgraph": PeerInfo("LangGraph SqliteStore", "langgraph_sqlite", LANGGRAPH, "langgraph", (*SQLITE, *SUITE)),
    "langgraph_memory": PeerInfo(
        "LangGraph InMemoryStore", "langgraph_memory", LANGGRAPH, "langgraph", SQLITE, keeps=False
    ),
    "chroma": PeerInfo("Chroma", "chroma", ("chromadb",), "chroma", SUITE),
    "lancedb": PeerInfo("LanceDB", "lancedb_table", ("lancedb",), "lancedb", ("pyarrow",), words=True),
    "qdrant": PeerInfo("Qdrant local", "qdrant_local", ("qdrant-client",), "qdrant"),
    "milvus": PeerInfo("Milvus Lite", "milvus_lite", ("pymilvus", "milvus-lite"), "milvus"),
    "sqlite_vec": PeerInfo("sqlite-vec + FTS5", "sqlite_vec", ("sqlite-vec",), "sqlite-vec", SQLITE, words=True),
    "hnswlib": PeerInfo("hnswlib + diskcache", "hnswlib_diskcache", ("hnswlib", "diskcache"), "hnswlib"),
    "numpy": PeerInfo("NumPy + files", "numpy_file", ("numpy",), "numpy"),
}

NOT_RUN: Final[Mapping[str, str]] = {
    "Zep (`zep-cloud`)": "a client of a service: it needs a network and a key",
    "Memori (`memori`)": "it needs a key of its service, and a language model",
    "Graphiti (`graphiti-core`)": "it needs a server for its graph, and a language model for each text that is added",
    "cognee": "a language model makes its graph of each text that is added",
    "LangMem": "a language model writes what it keeps; it keeps it in LangGraph's stores, which are in the table",
    "Letta": "an agent of its own with a command line, not a library; it needs a language model",
    "Memvid (`memvid-sdk`)": "100 texts with vectors took it 30 s when it was tried, so thousands do not fit into this run",
    "txtai": "not tried: it needs PyTorch and transformers",
}


@attrs.frozen
class Line:
    """
    A row of the table.

    Args:
        label: The label of the row.
        values: For each peer a number, a text, or None if the peer has no such value.
        show: The format of a number.
        better: 1 if larger values are better, -1 if smaller values are better, 0 if neither.
    """

    label: str
    values: Mapping[str, Any]
    show: str = "{}"
    better: int = 0

    def cell(self, name: str) -> str:
        """Return the text of this row in the column of a peer."""
        value = self.values[name]
        return NO_SUCH if value is None else value if isinstance(value, str) else self.show.format(value)

    @property
    def cells(self) -> list[str]:
        """Return the texts of this row in the columns of all peers."""
        return [self.cell(name) for name in self.values]

    def ahead(self) -> list[str]:
        """Return the peers with a better value than this package, best first."""
        known = {name: value for name, value in self.values.items() if value is not None}
        mine = known.get("ours")
        if mine is None or not self.better:
            return []
        # Treat values as equal if the table shows the same text for them.
        ahead = [n for n, v in known.items() if (v - mine) * self.better > 0 and self.cell(n) != self.cell("ours")]
        return sorted(ahead, key=lambda name: -self.better * known[name])


def part(*path: str, scale: float = 1) -> Callable[[dict[str, Any]], Any]:
    """Return a function that extracts a value from a peer's figures. It returns None if the value is missing."""

    def extract(own: Any) -> Any:
        for name in path:
            own = None if own is None else own.get(name)
        return own if own is None else own * scale

    return extract


def acknowledged(own: dict[str, Any]) -> str | None:
    """Return the location of a save at its acknowledgement, derived from the number of disk flushes."""
    if "killed" not in own:
        return "in memory"
    if own["flushes"] is None:
        return "not counted here"
    return "on the disk" if own["flushes"] >= 1 else "with the operating system"


def refused(own: dict[str, Any]) -> str | None:
    """Return the errors of two concurrent writers, "nothing" if there were none, or None if not measured."""
    return ", ".join(dict.fromkeys(own["writers"]["wrong"])) or "nothing" if "writers" in own else None


def lost(own: dict[str, Any], what: str) -> int | None:
    """Return the number of acknowledged saves that were not *what* ("kept" or "found") after the kills."""
    killed = own.get("killed")
    return killed and killed["acknowledged"] - killed.get(what, 0)


def opens(own: dict[str, Any]) -> str | None:
    """Return a text that says whether the store opened after every kill of its process."""
    killed = own.get("killed")
    return killed and (f"{killed['rounds']} of {killed['rounds']}" if killed["opens"] else f"no: {killed['why']}")


ROWS: Final[Sequence[tuple[str, Callable[[dict[str, Any]], Any], str, int]]] = (
    ("version", lambda own: ", ".join(f"{name} {one}" for name, one in own["versions"].items()), "{}", 0),
    ("one save, median", part("save", "median", scale=MILLI), "{:,.2f} ms", -1),
    ("one save, 99th percentile", part("save", "p99", scale=MILLI), "{:,.2f} ms", -1),
    ("flushes to the disk at each save", part("flushes"), "{:.1f}", 0),
    ("an acknowledged save is", acknowledged, "{}", 0),
    ("bulk load until all is found", part("bulk"), "{:,.0f} a second", 1),
    ("recall@10 of its vectors", part("recall"), "{:.3f}", 1),
    ("`ef` for that recall", lambda own: str(own["ef"] or "nothing to tune"), "{}", 0),
    ("search by a vector, median", part("nearest", "median", scale=MILLI), "{:,.2f} ms", -1),
    ("search with words too, median", part("search", "median", scale=MILLI), "{:,.2f} ms", -1),
    ("search with words too, 99th percentile", part("search", "p99", scale=MILLI), "{:,.2f} ms", -1),
    ("questions: recall@10 by vectors", part("quality", "nearest", "recall@10"), "{:.3f}", 1),
    ("questions: recall@10 with words", part("quality", "search", "recall@10"), "{:.3f}", 1),
    ("questions: recall@10 with words, and what a hit names as its copies", part("quality", "folded"), "{:.3f}", 0),
    ("questions: recall@10 with words, half b", part("quality", "search", "recall@10 b"), "{:.3f}", 1),
    ("questions: recall@1 with words", part("quality", "search", "recall@1"), "{:.3f}", 1),
    ("questions: MRR with words", part("quality", "search", "MRR"), "{:.3f}", 1),
    ("import", part("import"), "{:.2f} s", -1),
    ("open", part("open", scale=MILLI), "{:,.0f} ms", -1),
    ("memory of the import", part("imported", scale=1 / MEGA), "{:,.0f} MB", -1),
    ("memory of the work, peak", part("peak", scale=1 / MEGA), "{:,.0f} MB", -1),
    ("disk", part("disk", scale=1 / MEGA), "{:,.0f} MB", -1),
    ("two writers: saves acknowledged", part("writers", "acknowledged"), "{}", 1),
    ("two writers: of those there", part("writers", "kept"), "{}", 1),
    ("two writers: of those found", part("writers", "found"), "{}", 1),
    ("two writers: what went wrong", refused, "{}", 0),
    ("`kill -9`: saves acknowledged", part("killed", "acknowledged"), "{}", 0),
    ("`kill -9`: of those lost", lambda own: lost(own, "kept"), "{}", -1),
    ("`kill -9`: of those not found", lambda own: lost(own, "found"), "{}", -1),
    ("`kill -9`: opens after it", opens, "{}", 0),
)


MEASURED_AT_EVERY_SIZE: Final = (
    "bulk load",
    "memory of the work",
    "one save",
    "open",
    "recall",
    "search",
    "`ef`",
    "disk",
)
"""The beginnings of the labels of the rows that are measured with more memories, too."""


def lines_of(figures: Mapping[str, Any], *, every_size: bool = False) -> list[Line]:
    """
    Return the rows of the table: all, or only the ones that are measured at every size.

    Rows about searches with words contain only the peers whose search uses words.
    """
    peers = figures["peers"]
    return [
        Line(
            label,
            {name: None if "with words" in label and not PEERS[name].words else of(own) for name, own in peers.items()},
            show,
            better,
        )
        for label, of, show, better in ROWS
        if not every_size or label.startswith(MEASURED_AT_EVERY_SIZE)
    ]


def page_with(page: str, written: Mapping[str, Any]) -> str:
    """Return the page with a new table between its marker comments."""
    return page_between(page, BEGIN, END, _generated(written))


def page_between(page: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """Return the page with new lines between the marker comments *begin* and *end*."""
    before, rest = page.split(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]


def _generated(written: Mapping[str, Any]) -> Iterator[str]:
    figures, machine = written["figures"], written["machine"]
    sizes, lines = figures["sizes"], lines_of(figures)
    yield ""
    yield (
        f"Taken on {figures['date']} in one run on one machine with {machine['cores']} cores ({machine['system']}, "
        f"{machine['python']}): {sizes['memories']:,} memories, {sizes['saves']} single saves, {sizes['searches']} "
        f"searches, {figures['questions']} questions about a month; {2 * sizes['writers']} saves by two writers, "
        f"{sizes['kills']} kills."
    )
    yield "Another machine gives other figures; the ratios carry further."
    yield ""
    yield from _table(figures, lines)
    for larger in figures["larger"]:
        yield ""
        yield f"In a second run on {larger['date']}, with {larger['sizes']['memories']:,} memories, without the questions:"
        yield ""
        yield from _table(larger, lines_of(larger, every_size=True))
    yield ""
    yield "## Where others are better"
    yield ""
    yield "Made from the same figures: each row in which mama-structs is not the first, and who is before it."
    yield ""
    for line in lines:
        if line.better and (ahead := line.ahead()):
            where = partial(_unsafe, figures["peers"]) if line.label.startswith("one save") else lambda _: ""
            others = ", ".join(f"{PEERS[name].title} {line.cell(name)}{where(name)}" for name in ahead)
            yield f"* {line.label[0].upper()}{line.label[1:]}: {line.cell('ours')}; {others}."
    yield ""
    yield from _apart(figures)
    yield ""
    yield "## Who is not in the table"
    yield ""
    yield "| | why |"
    yield "| --- | --- |"
    for run in (figures, *figures["larger"]):
        for name, why in run["missing"].items():
            yield f"| {PEERS[name].title} | {why} |"
    for title, why in NOT_RUN.items():
        yield f"| {title} | {why} |"
    yield ""


def _table(figures: Mapping[str, Any], lines: Iterable[Line]) -> Iterator[str]:
    yield "| | " + " | ".join(PEERS[name].title for name in figures["peers"]) + " |"
    yield "| --- |" + " ---: |" * len(figures["peers"])
    for line in lines:
        yield f"| {line.label} | " + " | ".join(line.cells) + " |"


def _unsafe(peers: Mapping[str, Any], name: str) -> str:
    """Return a remark for the table if acknowledged saves of a peer are not on the disk."""
    where = acknowledged(peers[name])
    return "" if where == "on the disk" else f" ({where})"


def _apart(figures: Mapping[str, Any]) -> Iterator[str]:
    yield f"How sure is the recall of {figures['questions']} questions?"
    yield "The difference of ours with words to each other's best search, with its 95 % interval (bootstrap over questions):"
    yield ""
    for name, own in figures["peers"].items():
        if name != "ours":
            mean, low, high = own["apart"]
            yield f"* {PEERS[name].title}: {mean:+.3f} ({low:+.3f} to {high:+.3f})"
