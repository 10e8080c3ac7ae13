"""
Runs the same work on this package and on other local stores, for docs/internals/comparison.md.

Each peer (`_peers`) has its own environment, which pip creates in the temporary folder, and its own process. All have the
same texts and vectors as `scale.py`, with generated words. Saves and searches are interleaved. For approximate indexes
the recall is equalized: each peer uses the smallest `ef` that reaches the required recall.

``--write`` also writes the figures to comparison.json and the table into comparison.md in docs/internals; ``--table``
only writes the table again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from _common import RESULTS, quantiles, report
from _peers_table import PEERS, lines_of, page_with
from _retrieval import METRICS, Question, Sample, bootstrap, measured
from _scale import Rows
from scale import EFS, HERE, Process, Rival, make_corpus, nearest, on_disk, recall, run_interleaved
from scale import Sizes as CorpusSizes

from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder

MONTH: Final = HERE.parent / "tests" / "data" / "month"
PAGE_PATH: Final = HERE.parent / "docs" / "internals" / "comparison.md"
FIGURES: Final = PAGE_PATH.with_suffix(".json")
RECALL: Final = 0.99
TUNING: Final = 100
"""The number of questions on which `ef` is chosen. These questions are not measured."""
PATIENCE: Final = 30.0
MAX_LARGER_SECONDS: Final = 120
"""Peers that would take longer are left out of the larger runs."""
"""The maximum seconds to wait for some saves before a peer is killed."""
FLUSHES: Final = "trace=fsync,fdatasync,msync,sync_file_range"


class Sizes(NamedTuple):
    """The amounts of data in a run."""

    memories: int
    saves: int
    searches: int
    turn: int
    writers: int
    kills: int
    opens: int
    month: int
    flushed: int


class Failed(Exception):
    """Raised if a peer's process has ended. The exception text is the error name in the last message of the process."""


class Peer(Process):
    """A peer in its own process. Its messages are written to a log file."""

    def send(self, *command: Any) -> None:
        """Send a request. If the process has ended, the following `answer` raises."""
        with suppress(BrokenPipeError):
            super().send(*command)

    def __init__(self, rival: Rival, corpus: Path, store: Path, under: Sequence[str] = ()) -> None:
        self.log = store.with_suffix(".log")
        with self.log.open("a", encoding="utf-8") as log:
            super().__init__(rival, corpus, store, "_peer.py", under=under, stderr=log)

    def answer(self, *command: Any) -> tuple[float, Any]:
        """
        Wait for the answer of a request.

        Raise `Failed` with the reason if the process has ended.
        """
        try:
            return super().answer(*command)
        except RuntimeError:
            said = [line for line in self.log.read_text(encoding="utf-8").splitlines() if line.strip()]
            self.kill()
            # Use only the name of the error, because its message may contain paths.
            raise Failed(said[-1].split(":")[0].split(".")[-1] if said else "nothing was said") from None


@contextmanager
def opened(rival: Rival, corpus: Path, store: Path, under: Sequence[str] = ()) -> Iterator[Peer]:
    """Start a peer and open its store, yield it, and close the store afterwards."""
    peer = Peer(rival, corpus, store, under)
    peer("open")
    try:
        yield peer
    except BaseException:
        peer.kill()
        raise
    peer("close")
    peer.end()


# Environments


def environments(names: Sequence[str], *, quick: bool, install: bool) -> tuple[dict[str, Rival], dict[str, str]]:
    """Return the Python interpreter of each available peer, and the reasons why peers are unavailable."""
    rivals, missing = {}, {}
    for name in names:
        given = PEERS[name]
        settings = {"packages": given.packages}
        if name == "ours" or quick:
            rivals[name] = Rival(given.module, settings, sys.executable, HERE.parent)
            continue
        folder = Path(tempfile.gettempdir()) / "mama-structs-benchmarks" / given.environment
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
        elif not install:
            rivals[name] = Rival(given.module, settings, str(python), HERE)
            continue
        print(f"{given.title}: installing", file=sys.stderr)
        wanted = [*given.packages, *given.besides, "numpy"]
        pip = [python, "-m", "pip", "install", "-q", "-U", "--disable-pip-version-check", *wanted]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)  # noqa: S603 - as named there
        if done.returncode:
            missing[name] = "could not be installed here"
            print(done.stderr, file=sys.stderr)
        else:
            rivals[name] = Rival(given.module, settings, str(python), HERE)
    return rivals, missing


# Measurements


def loaded(
    sizes: Sizes, rivals: Mapping[str, Rival], corpus: Path, folder: Path, figures: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """
    Load, search and save in all peers, interleaved, and then reopen each store.

    Return the reasons of the peers that failed.
    """
    rows = Rows(corpus)
    truth = nearest(rows, sizes.memories, range(sizes.searches))
    running: dict[str, Process] = {}
    failed: dict[str, str] = {}
    for name, rival in rivals.items():
        try:
            peer = Peer(rival, corpus, folder / name)
            figures[name] |= peer("about")[1]
            peer("open")
            bulk = peer("bulk", 0, sizes.memories)[0] + peer("wait_until_idle")[0]
            figures[name] |= {"bulk": sizes.memories / bulk, "ef": tuned(peer, rows, sizes)}
            peer("search", 0, 1)
        except Failed as why:
            failed[name] = f"failed with {why}"
            continue
        running[name] = peer
        print(f"{name}: {figures[name]}", file=sys.stderr) if sizes.memories > 100 else None
    for what in ("nearest", "search"):
        for name, (seconds, found) in run_interleaved(running, what, 0, sizes.searches, sizes.turn).items():
            figures[name][what] = quantiles(seconds)
            if what == "nearest":
                figures[name]["recall"] = recall(rows, truth, found, range(sizes.searches))
    saved = run_interleaved(running, "save", sizes.memories, sizes.memories + sizes.saves, sizes.turn)
    for name, (seconds, _) in saved.items():
        figures[name]["save"] = quantiles(seconds)
        figures[name]["peak"] = running[name]("memory")[1]["peak"]
        figures[name]["stored"] = len(running[name]("stored")[1])
        running[name]("close")
        running[name].end()
        if PEERS[name].keeps:
            figures[name]["disk"] = on_disk(folder / name)
    for _ in range(sizes.opens):
        for name, rival in rivals.items():
            if PEERS[name].keeps and name in running:
                peer = Peer(rival, corpus, folder / name)
                taken = peer("open")[0]
                figures[name]["open"] = min(taken, figures[name].get("open", taken))
                peer.kill()
    return failed


def tuned(peer: Process, rows: Rows, sizes: Sizes) -> int | None:
    """Return the smallest `ef` that reaches the required recall, or None if the peer has no such setting."""
    questions = range(sizes.searches, sizes.searches + TUNING)
    truth = nearest(rows, sizes.memories, questions)
    if not peer("tunable")[1]:
        return None
    for ef in EFS:
        peer("tune", ef)
        if recall(rows, truth, peer("nearest", questions.start, questions.stop)[1][1], questions) >= RECALL:
            return ef
    return EFS[-1]


def writers(rival: Rival, corpus: Path, folder: Path, count: int) -> dict[str, Any]:
    """Save from two concurrent processes to one directory, and count the memories that are stored afterwards."""
    acknowledged, wrong, peers = [], [], []
    for number in range(2):
        peer = Peer(rival, corpus, folder / "store")
        try:
            peer("open")
        except Failed as failed:
            wrong.append(f"{failed} at opening")
        else:
            peers.append((number, peer))
    for number, peer in peers:
        peer.send("stream", number * count, number * count + count, str(folder / f"told{number}"))
    for number, peer in peers:
        try:
            error = peer.answer("stream")[1]
            if error:
                wrong.append(error)
            peer("close")
            peer.end()
        except Failed as failed:
            wrong.append(str(failed))
        acknowledged += read_acknowledged(folder / f"told{number}")
    return {"asked": 2 * count, "wrong": wrong} | count_stored_saves(rival, corpus, folder / "store", acknowledged)


def killed(rival: Rival, corpus: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Repeatedly kill a process that saves, and count the memories that are stored afterwards."""
    acknowledged: list[int] = []
    share = Rows(corpus).count // rounds
    for number in range(rounds):
        path = folder / f"told{number}"
        peer = Peer(rival, corpus, folder / "store")
        try:
            peer("open")
        except Failed as failed:
            return {"rounds": number, "acknowledged": len(acknowledged), "opens": False, "why": str(failed)}
        peer.send("stream", share * number, share * number + share, str(path))
        end = time.monotonic() + PATIENCE
        while len(read_acknowledged(path)) < min(7 + 9 * number, share // 2) and time.monotonic() < end:
            time.sleep(0.0003)
        peer.kill()
        acknowledged += read_acknowledged(path)
    return {"rounds": rounds, "opens": True} | count_stored_saves(rival, corpus, folder / "store", acknowledged)


def read_acknowledged(path: Path) -> list[int]:
    """Return the numbers of the acknowledged saves in a file."""
    return [int(line) for line in path.read_text(encoding="ascii").splitlines()] if path.exists() else []


def count_stored_saves(rival: Rival, corpus: Path, store: Path, acknowledged: list[int]) -> dict[str, Any]:
    """Reopen a store. Count the acknowledged saves that are stored, and the stored ones that a search finds."""
    counts = {"acknowledged": len(acknowledged)}
    try:
        with opened(rival, corpus, store) as peer:
            there = set(peer("stored")[1]) & set(acknowledged)
            return counts | {"kept": len(there), "found": len(peer("find_by_own_vectors", sorted(there))[1])}
    except Failed as failed:
        return counts | {"kept": 0, "found": 0, "opens": False, "why": str(failed)}


def flushes(rival: Rival, corpus: Path, folder: Path, count: int) -> float | None:
    """Return the number of disk flushes per save, or None if strace cannot count them."""
    strace = shutil.which("strace")
    if strace is None or not count:
        return None
    counts = []
    # Opening and closing also flush. Both measurements include these flushes, so the difference does not.
    for saves in (5, 5 + count):
        path = folder / f"calls{saves}"
        under = [strace, "-f", "-qq", "-e", FLUSHES, "-o", str(path)]
        try:
            with opened(rival, corpus, folder / f"store{saves}", under) as peer:
                peer("save", 0, saves)
        except Failed:
            return None
        counts.append(sum("sync" in line and "resumed" not in line for line in path.read_text().splitlines()))
    return (counts[1] - counts[0]) / count


# Retrieval


def month(folder: Path, limit: int, embedder: Embedder) -> Sample:
    """Write the memories of tests/data/month as a corpus, and return a sample of the memories and their questions."""
    saves = [json.loads(line) for line in (MONTH / "saves.jsonl").read_text(encoding="utf-8").splitlines()][:limit]
    known = {row["id"] for row in saves}
    questions = [json.loads(line) for line in (MONTH / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    end = datetime.fromisoformat(saves[-1]["at"])
    asked = [
        Question(row["question"], tuple(row["answers"]), row["half"], "", end)
        for row in questions
        if row["answers"] and known.issuperset(row["answers"])
    ]
    texts = [join_texts(row["save"]) for row in saves]
    vectors = [embedder.embed(texts, kind="document"), embedder.embed([one.text for one in asked], kind="query")]
    folder.mkdir()
    (folder / "vectors.f32").write_bytes(np.concatenate(vectors).astype(np.float32).tobytes())
    topics = [row["save"].get("topic") for row in saves]
    given = [[*texts, *(one.text for one in asked)], topics, [0] * len(asked)]
    (folder / "texts.json").write_text(json.dumps(given), encoding="utf-8")
    records = [row["save"] | {"created_at": row["at"]} for row in saves]
    (folder / "records.json").write_text(json.dumps(records), encoding="utf-8")
    return Sample([{"id": row["id"]} for row in saves], asked)


def join_texts(save: Mapping[str, Any]) -> str:
    """Return all texts of a save, joined."""
    given = (save.get(name) for name in ("topic", "content", "reasoning", "next_steps"))
    said = (one if isinstance(one, str) else ". ".join(one) for one in given if one)
    return "\n".join(said)


def retrieval(
    rivals: Mapping[str, Rival], corpus: Path, folder: Path, sample: Sample, embedder: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Return the retrieval quality of each peer, with vector search only and with the peer's best search mode.

    The second value contains the differences to this package with confidence intervals.
    """
    labels = [record["id"] for record in sample.records]
    quality: dict[str, Any] = {}
    every: dict[str, Any] = {}
    count = len(sample.questions)
    second = np.array([question.kind == "b" for question in sample.questions])
    for name, rival in rivals.items():
        settings = rival.settings | (
            {"records": str(corpus / "records.json"), "embedder": embedder} if name == "ours" else {}
        )
        with opened(rival._replace(settings=settings), corpus, folder / name) as peer:
            peer("bulk", 0, len(labels))
            peer("wait_until_idle")
            quality[name] = {}
            for what in ("nearest", "search"):
                lists = peer(what, 0, count)[1][1]
                found = [[(labels[at],) for at in one if at >= 0] for one in lists]
                values = measured([sample], [found])
                quality[name][what] = {metric: float(values[metric].mean()) for metric in METRICS}
                quality[name][what]["recall@10 b"] = float(values["recall@10"][second].mean()) if second.any() else None
                every[name, what] = values["recall@10"]
            folded = peer("find_with_duplicates", 0, count)[1]
            if folded:
                found = [[tuple(labels[at] for at in group) for group in one] for one in folded]
                quality[name]["folded"] = float(measured([sample], [found])["recall@10"].mean())
    apart = {
        name: bootstrap(every["ours", "search"], every[name, "search"])
        for name in rivals
        if ("ours", "search") in every
    }
    return quality, apart


# Complete run


def run(sizes: Sizes, rivals: Mapping[str, Rival], scratch: Path, *, quick: bool) -> dict[str, Any]:
    """Run all measurements, and return the figures."""
    figures: dict[str, dict[str, Any]] = {name: {} for name in rivals}
    corpus = scratch / "corpus"
    corpus.mkdir()
    make_corpus(CorpusSizes(sizes.memories, sizes.saves, sizes.searches, sizes.turn, 0), corpus, quick=True)
    stores = scratch / "stores"
    stores.mkdir()
    failed = loaded(sizes, rivals, corpus, stores, figures)
    rivals = {name: rival for name, rival in rivals.items() if name not in failed}
    figures = {name: figures[name] for name in rivals}
    shutil.rmtree(stores)
    embedder = HashEmbedder() if quick else UniversalSentenceEmbedder()
    sample = month(scratch / "month", sizes.month, embedder)
    (scratch / "asked").mkdir()
    quality, apart = retrieval(rivals, scratch / "month", scratch / "asked", sample, type(embedder).__name__)
    for name, rival in rivals.items():
        figures[name] |= {"quality": quality[name], "apart": apart[name]}
        if PEERS[name].keeps:
            for what, work in (
                ("writers", lambda *given: writers(*given, sizes.writers)),
                ("killed", lambda *given: killed(*given, sizes.kills)),
                ("flushes", lambda *given: flushes(*given, sizes.flushed)),
            ):
                folder = scratch / f"{what}-{name}"
                folder.mkdir()
                figures[name][what] = work(rival, corpus, folder)
                print(name, what, figures[name][what], file=sys.stderr) if sizes.memories > 100 else None
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "sizes": sizes._asdict(), "questions": len(sample.questions)} | {
        "peers": figures,
        "missing": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny run of ours and NumPy that only shows that it works"
    )
    parser.add_argument(
        "--memories", type=int, nargs="+", default=[5_000, 50_000], help="loaded in each run, ascending (%(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=[*PEERS], default=[*PEERS], help="some of the peers")
    parser.add_argument("--as-installed", action="store_true", help="do not look for newer versions of the peers")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    parser.add_argument(
        "--write", action="store_true", help="also write docs/internals/comparison.json and the table of the page"
    )
    parser.add_argument(
        "--table", action="store_true", help="only write the table again, from docs/internals/comparison.json"
    )
    given = parser.parse_args()
    if given.table:
        write_page()
        return
    names = ["ours", "numpy"] if given.quick else given.only
    sizes = (
        Sizes(60, 6, 6, 3, 5, 1, 0, 40, 0)
        if given.quick
        else Sizes(min(given.memories), 200, 200, 50, 100, 5, 3, 10**6, 20)
    )
    rivals, missing = environments(names, quick=given.quick, install=not given.as_installed)
    with tempfile.TemporaryDirectory() as scratch:
        figures = run(sizes, rivals, Path(scratch), quick=given.quick)
    figures["missing"] |= missing
    figures["larger"] = []
    for memories in () if given.quick else sorted(given.memories)[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            figures["larger"].append(run_larger(sizes, memories, figures["peers"], rivals, Path(scratch)))
    for one in (*figures["larger"], figures):
        table = [[line.label, *line.cells] for line in lines_of(one, every_size=one is not figures)]
        titles = [PEERS[name].title for name in one["peers"]]
        heading = f"{one['sizes']['memories']:,} memories"
        report("peers", heading, ("what", *titles), table, figures=figures, folder=given.results)
    if given.write:
        shutil.copy(given.results / "peers.json", FIGURES)
        write_page()


def run_larger(
    sizes: Sizes, memories: int, smaller: Mapping[str, Any], rivals: Mapping[str, Rival], scratch: Path
) -> dict[str, Any]:
    """Load, search, save and open with more memories, in the peers that would not take too long."""
    growth = memories / sizes.memories
    missing, chosen = {}, {}
    for name, own in smaller.items():
        # Searches by vectors and by text, and the tuning.
        searching = (2 * sizes.searches + TUNING) * own["nearest"]["median"] * growth
        seconds = memories / own["bulk"] + searching
        if name != "ours" and seconds > MAX_LARGER_SECONDS:
            missing[name] = (
                f"would take {seconds / 60:.0f} minutes at {memories:,}, if linear in the number of memories"
            )
        else:
            chosen[name] = rivals[name]
    larger = sizes._replace(memories=memories)
    figures: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    corpus, stores = scratch / "corpus", scratch / "stores"
    corpus.mkdir()
    stores.mkdir()
    make_corpus(CorpusSizes(memories, sizes.saves, sizes.searches, sizes.turn, 0), corpus, quick=True)
    missing |= loaded(larger, chosen, corpus, stores, figures)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "sizes": larger._asdict(),
        "peers": {name: figures[name] for name in figures if name not in missing},
        "missing": missing,
    }


def write_page() -> None:
    """Write the table of docs/internals/comparison.json into the page."""
    written = json.loads(FIGURES.read_text(encoding="utf-8"))
    PAGE_PATH.write_text(page_with(PAGE_PATH.read_text(encoding="utf-8"), written), encoding="utf-8")


if __name__ == "__main__":
    main()
