"""
Memories at scale, compared with Chroma and plain libraries.

It measures saving, loading, searching, opening and traversal.

Each store has its own process, so that its memory use can be measured; measurements are interleaved. All stores have
the same generated texts and vectors. A text has 15 words, drawn by Zipf's law from the words of the samples and from
generated words; the vocabulary is as large as that of as many English texts. A third of the words belong to a subject
that some hundred texts share. A vector is that of its subject plus noise. Nothing is embedded, and vector lookups are
not timed.

``--chroma-python`` is a Python that can import chromadb; ``--chroma`` makes one in the temporary folder with pip.
``--against REV`` measures another revision of this package in the same run, as `before`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import MILLI, RESULTS, RETRIEVAL_DATA, quantiles, report
from _scale import DIMENSIONS, NEAREST, Rows

HERE = Path(__file__).parent
MATTER = 150  # memories per subject
# Generated vectors: number of latent dimensions, exponent by which their scales decay, and scale of the noise.
LATENT, DECAY, ELSE = 128, 0.3, 0.3
WORDS, ASKED = 15, 6
RECALL, EFS = 0.98, (16, 32, 64, 96, 128, 192, 256, 384, 512)
MEGA = 1e6
MEMORY_COUNTS = [10_000, 50_000, 100_000]


class Sizes(NamedTuple):
    """The amounts of data in a run."""

    memories: int
    saves: int
    searches: int
    turn: int
    walked: int


class Rival(NamedTuple):
    """A store in the comparison: its kind, its memory settings, its Python, and the folder of its package."""

    kind: str
    settings: dict[str, Any]
    python: str
    package: Path


class Process:
    """A store in its own process."""

    def __init__(
        self,
        rival: Rival,
        corpus: Path,
        store: Path,
        script: str = "_scale.py",
        under: Sequence[str] = (),
        **options: Any,
    ) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._process = subprocess.Popen(  # noqa: S603 - a script of the benchmarks
            [*under, rival.python, HERE / script, rival.kind, corpus, store, json.dumps(rival.settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | one | {"PYTHONPATH": str(rival.package)},
            **options,
        )

    def __call__(self, *command: Any) -> tuple[float, Any]:
        """Execute a request, and return its duration and result."""
        self.send(*command)
        return self.answer(*command)

    def send(self, *command: Any) -> None:
        """Send a request."""
        print(json.dumps(command), file=self._process.stdin, flush=True)

    def answer(self, *command: Any) -> tuple[float, Any]:
        """Wait for the answer of a request."""
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args[2:4]} ended in {command}")
        seconds, found = json.loads(line)
        return seconds, found

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Wait until the process has closed its store and ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


def vocabulary(count: int, *, quick: bool) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Return words with their probabilities. The words of the samples come first, then generated words."""
    found: Counter[str] = Counter()
    for path in [] if quick else sorted(RETRIEVAL_DATA.glob("**/memories.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            memory = json.loads(line)
            found.update(re.findall(r"[a-z]{2,}", str(memory.get("content", memory.get("text", ""))).lower()))
    # The size of the vocabulary follows Heaps' law with the parameters of English.
    wanted = max(2_000, round(10 * math.sqrt(WORDS * count)))
    syllables = [first + second for first in "bcdfglmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "er", "ol")]
    made = ("".join(some) for some in itertools.product(syllables, repeat=3))
    words = list(dict.fromkeys([*(word for word, _ in found.most_common()), *itertools.islice(made, 1, None, 7)]))[
        :wanted
    ]
    weights = 1 / (np.arange(len(words)) + 2.7)
    return words, weights / weights.sum()


def make_corpus(sizes: Sizes, folder: Path, *, quick: bool) -> None:
    """Write the texts, topics and vectors of the memories, followed by questions about some of them."""
    chance, count = np.random.default_rng(1), sizes.memories + sizes.saves
    words, weights = vocabulary(count, quick=quick)
    matters = max(4, count // MATTER)
    own = chance.integers(len(words) // 50, len(words), (matters, 30))
    matter = chance.integers(0, matters, count)
    picked = chance.choice(len(words), (count, WORDS), p=weights)
    special = own[matter[:, None], chance.integers(0, 30, (count, WORDS // 3))]
    picked[:, : WORDS // 3] = special
    picked = chance.permuted(picked, axis=1)
    texts = [" ".join([words[at] for at in row]) for row in picked.tolist()]
    seen: Counter[str] = Counter()
    for at, text in enumerate(texts):
        seen[text] += 1
        texts[at] = f"{text} {seen[text]}" if seen[text] > 1 else text
    topics = [f"matter_{of}" if of % 5 < 3 else None for of in matter.tolist()]
    about = chance.integers(0, sizes.memories, sizes.searches + 100)
    for at in about.tolist():
        telling = sorted(picked[at].tolist())[-ASKED:]
        texts.append("what did we decide about " + " ".join(words[word] for word in telling) + " for the")
    # The constants make cosines similar to real sentences: mean 0.16, best hit of a question 0.7, tenth hit 0.5.
    share = (np.arange(LATENT) + 1.0) ** -DECAY
    spread = (share / np.sqrt(np.mean(share**2)))[:, None] * chance.standard_normal((LATENT, DIMENSIONS))
    spread /= math.sqrt(DIMENSIONS)
    common, centres = chance.standard_normal(LATENT), chance.standard_normal((matters, LATENT))
    noise = chance.uniform(0.6, 1.5, (count, 1))
    with (folder / "vectors.f32").open("wb") as file:
        latent = np.empty((count, LATENT), np.float32)
        for at in range(0, count, 50_000):
            rows = slice(at, min(at + 50_000, count))
            size = (rows.stop - at, LATENT)
            latent[rows] = 0.7 * (common + centres[matter[rows]]) + noise[rows] * chance.standard_normal(size)
            file.write(flat(latent[rows], spread, chance))
        file.write(flat(latent[about] + chance.standard_normal((len(about), LATENT)), spread, chance))
    whole = json.dumps([texts, topics, about.tolist()])
    (folder / "texts.json").write_text(whole, encoding="utf-8")


def flat(latent: Any, spread: Any, chance: np.random.Generator) -> bytes:
    vectors = latent @ spread + ELSE * chance.standard_normal((len(latent), DIMENSIONS))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32).tobytes()


def nearest(rows: Rows, memories: int, questions: range) -> list[float]:
    """Return each question's cosine to the `NEAREST`-th nearest of the first *memories* memories."""
    asked = rows.vectors(rows.count + questions.start, rows.count + questions.stop)
    best = np.full((len(asked), NEAREST), -np.inf, np.float32)
    for at in range(0, memories, 20_000):
        cosines = asked @ rows.vectors(at, min(at + 20_000, memories)).T
        best = np.partition(np.concatenate([best, cosines], axis=1), -NEAREST, axis=1)[:, -NEAREST:]
    return best.min(axis=1).tolist()


def recall(rows: Rows, truth: list[float], found: list[list[int]], questions: range) -> float:
    hits = 0
    for number, least, ids in zip(questions, truth, found, strict=True):
        (asked,) = rows.vectors(rows.count + number, rows.count + number + 1)
        hits += sum(float(rows.vectors(at, at + 1)[0] @ asked) >= least - 1e-5 for at in ids)
    return hits / (NEAREST * len(truth))


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("**/*") if path.is_file())


def run_interleaved(
    running: dict[str, Process], command: str, first: int, last: int, turn: int
) -> dict[str, tuple[Any, Any]]:
    """Run an operation in parts, interleaved over all rivals. Return the times and results of each rival."""
    taken: dict[str, tuple[list[float], list[Any]]] = {name: ([], []) for name in running}
    for at in range(first, last, turn):
        for name, process in running.items():
            seconds, found = process(command, at, min(at + turn, last))[1]
            taken[name][0].extend(seconds)
            taken[name][1].extend(found)
    return taken


def measured(sizes: Sizes, rivals: dict[str, Rival], folder: Path, *, quick: bool) -> dict[str, dict[str, Any]]:
    """Run all measurements with one amount of data."""
    corpus = folder / "corpus"
    corpus.mkdir()
    make_corpus(sizes, corpus, quick=quick)
    rows = Rows(corpus)
    print(
        f"{sizes.memories:,} texts like: {rows.texts[0]} | {rows.question(0)}", file=sys.stderr
    ) if not quick else None
    figures: dict[str, dict[str, Any]] = {name: {} for name in rivals}
    running = {name: Process(rival, corpus, folder / name.replace(" ", "-")) for name, rival in rivals.items()}
    questions, tuning = range(sizes.searches), range(sizes.searches, sizes.searches + 100)
    truth = nearest(rows, sizes.memories, questions)
    for name, process in running.items():
        process("open")
        bulk = process("bulk", 0, sizes.memories)[0]
        settling = process("wait_until_idle")[0]
        figures[name] |= {"bulk": sizes.memories / bulk, "settled": sizes.memories / (bulk + settling)}
        figures[name]["ef"] = tune(process, rivals[name], rows, sizes.memories, tuning)
        figures[name]["loaded"] = process("memory")[1]
        if not quick:
            print(name, json.dumps(figures[name]), file=sys.stderr)
    searched = run_interleaved(running, "search", 0, sizes.searches, sizes.turn)
    asked = run_interleaved(running, "nearest", 0, sizes.searches, sizes.turn)
    rows_about = rows.about[: sizes.searches]
    for name, (seconds, found) in searched.items():
        hits = [about in ids for about, ids in zip(rows_about, found, strict=True)]
        figures[name] |= {
            "search": quantiles(seconds),
            "vectors": quantiles(asked[name][0]),
            "found": sum(hits) / len(hits),
            "recall": recall(rows, truth, asked[name][1], questions),
        }
    for name, (seconds, _) in run_interleaved(running, "save", sizes.memories, rows.count, sizes.turn).items():
        figures[name]["save"] = quantiles(seconds)
    for name, process in running.items():
        figures[name] |= {"peak": process("memory")[1], "stats": process("stats")[1]}
        figures[name]["close"] = process("close")[0]
        process.end()
        figures[name]["disk"] = on_disk(folder / name.replace(" ", "-"))
    running = {name: Process(rival, corpus, folder / name.replace(" ", "-")) for name, rival in rivals.items()}
    for name, process in running.items():
        figures[name]["open"] = process("open")[0]
        process("tune", figures[name]["ef"])
        figures[name]["first"] = process("search", 0, 1)[0]
    for name, (seconds, _) in run_interleaved(running, "search", 0, sizes.searches, sizes.turn).items():
        figures[name]["reopened"] = quantiles(seconds)
    for name, process in running.items():
        figures[name]["after"] = process("memory")[1]
        process("close")
        process.end()
    return figures


def tune(process: Process, rival: Rival, rows: Rows, memories: int, questions: range) -> int:
    """
    Set the plain index to the smallest `ef` that reaches the recall that this package guarantees.

    The other stores keep their default.
    """
    truth = nearest(rows, memories, questions) if rival.kind == "raw" else []
    for ef in EFS if truth else ():
        process("tune", ef)
        found = process("nearest", questions.start, questions.stop)[1][1]
        if recall(rows, truth, found, questions) >= RECALL:
            return ef
    return EFS[-1]


def walks(sizes: Sizes, rivals: dict[str, Rival], folder: Path) -> dict[str, Any]:
    """Time traversals that start at random memories and reach 1,000 others. Each traversal runs only once."""
    (folder / "corpus").mkdir()
    make_corpus(sizes._replace(memories=10, saves=0, searches=1), folder / "corpus", quick=True)
    running = {}
    for name, rival in rivals.items():
        running[name] = Process(rival._replace(kind="walks"), folder / "corpus", folder / name.replace(" ", "-"))
        running[name]("open")
        running[name]("bulk", 0, sizes.walked)
    taken = run_interleaved(running, "search", 0, sizes.searches // 3, sizes.turn)
    for process in running.values():
        process("close")
        process.end()
    return {name: quantiles(seconds) | {"reached": max(map(max, found))} for name, (seconds, found) in taken.items()}


@contextmanager
def revision(name: str) -> Iterator[Path]:
    """Yield a folder with the package of another revision."""
    folder = Path(tempfile.mkdtemp()) / "before"
    git = [shutil.which("git") or "git", "-C", str(HERE.parent), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", folder, name], check=True)  # noqa: S603 - as given
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", folder], check=True)  # noqa: S603 - as above
        folder.parent.rmdir()


def chroma_python(*, quick: bool) -> str:
    """Create an environment with the newest Chroma, and return its Python interpreter."""
    folder = Path(tempfile.gettempdir()) / "mama-structs-benchmarks" / "chroma"
    python = folder / "bin" / "python"
    if not python.exists() and not quick:
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "chromadb"], check=True)  # noqa: S603 - as asked
    return str(python)


FIGURES = (
    ("single save p50, ms", lambda own: own["save"]["median"] * MILLI, 2),
    ("single save p99, ms", lambda own: own["save"]["p99"] * MILLI, 2),
    ("bulk, a second", lambda own: own["bulk"], 0),
    ("bulk until all serves, a second", lambda own: own["settled"], 0),
    ("search after bulk p50, ms", lambda own: own["search"]["median"] * MILLI, 2),
    ("search after bulk p99, ms", lambda own: own["search"]["p99"] * MILLI, 2),
    ("its vectors p50, ms", lambda own: own["vectors"]["median"] * MILLI, 2),
    ("search after restart p50, ms", lambda own: own["reopened"]["median"] * MILLI, 2),
    ("search after restart p99, ms", lambda own: own["reopened"]["p99"] * MILLI, 2),
    ("recall@10 of the vectors", lambda own: own["recall"], 3),
    ("finds what is asked for, @10", lambda own: own["found"], 3),
    ("open, s", lambda own: own["open"], 3),
    ("first search, ms", lambda own: own["first"] * MILLI, 1),
    ("close, s", lambda own: own["close"], 2),
    ("peak memory, MB", lambda own: own["peak"]["peak"] / MEGA, 0),
    ("own pages after bulk, MB", lambda own: own["loaded"]["anonymous"] / MEGA, 0),
    ("own pages after restart, MB", lambda own: own["after"]["anonymous"] / MEGA, 0),
    ("disk, MB", lambda own: own["disk"] / MEGA, 0),
)


def table(count: int, figures: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a table row for each figure, with the ratio of each rival to the plain libraries."""
    rows = []
    for what, of, digits in FIGURES:
        cells = []
        for own in figures.values():
            value, base = of(own), of(figures["raw"])
            cells.append(f"{value:,.{digits}f} ({value / base:.2f})" if base else f"{value:,.{digits}f}")
        rows.append([f"{count:,}", what, *cells])
    links = [f"{own['stats']['links'] / count:.2f}" if own["stats"] else "" for own in figures.values()]
    return [*rows, [f"{count:,}", "links a memory", *links]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--sizes", type=int, nargs="+", default=MEMORY_COUNTS, help="(%(default)s)")
    parser.add_argument("--synthetic", type=int, help="so many memories, without links and Chroma; raw on two threads")
    parser.add_argument("--walked", type=int, default=100_000, help="memories that walks go over, 0 for no walks")
    parser.add_argument("--searches", type=int, default=300, help="questions (%(default)s)")
    parser.add_argument("--only", nargs="+", help="some of: chroma, before, 'before unlinked', ours, 'ours unlinked'")
    parser.add_argument("--chroma-python", help="a Python that can import chromadb")
    parser.add_argument("--chroma", action="store_true", help="make such a Python with pip, in the temporary folder")
    parser.add_argument("--against", metavar="REV", help="another revision of this package, measured as 'before'")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    given = parser.parse_args()
    counts = [60] if given.quick else [given.synthetic] if given.synthetic else given.sizes
    figures: dict[str, Any] = {}
    # Give partial runs their own file names, so that they do not overwrite other results.
    written = "_".join(
        ["scale", *(f"{count // 1000}k" for count in counts if counts != MEMORY_COUNTS and not given.quick)]
    )
    with ExitStack() as stack:
        packages = {"ours": HERE.parent}
        if given.against:
            packages = {"before": stack.enter_context(revision(given.against)), **packages}
        rivals = {"raw": Rival("raw", {"threads": 2} if given.synthetic else {}, sys.executable, HERE)}
        python = chroma_python(quick=given.quick) if given.chroma else given.chroma_python
        if python and not given.synthetic:
            rivals["chroma"] = Rival("chroma", {}, python, HERE)
        for name, package in packages.items():
            rivals[name] = Rival("ours", {}, sys.executable, package)
            rivals[f"{name} unlinked"] = Rival("ours", {"linking": "off"}, sys.executable, package)
        wanted = given.only or [name for name in rivals if not given.synthetic or name == "ours unlinked"]
        rivals = {name: rival for name, rival in rivals.items() if name == "raw" or name in wanted}
        for count in counts:
            sizes = Sizes(count, 8, 6, 3, 60) if given.quick else Sizes(count, 300, given.searches, 50, given.walked)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            figures[str(count)] = measured(sizes, rivals, folder, quick=given.quick)
            shutil.rmtree(folder / "corpus")
            some = figures[str(count)]
            report(
                written,
                f"{count:,} memories of {DIMENSIONS} dimensions and {WORDS} words; in brackets: as a multiple of raw",
                ("memories", "what", *some),
                table(count, some),
                figures=figures,
                folder=given.results,
            )
        if sizes.walked:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ours = {name: rivals[name] for name in rivals if name.endswith("unlinked")}
            figures["walks"] = walks(sizes, ours, folder)
            report(
                written,
                f"A walk for the first time, over {sizes.walked:,} memories with five links each",
                ("who", "what", "p50 ms", "p99 ms"),
                [
                    [name, f"{own['reached']} reached", f"{own['median'] * MILLI:.2f}", f"{own['p99'] * MILLI:.2f}"]
                    for name, own in figures["walks"].items()
                ],
                figures=figures,
                folder=given.results,
            )


if __name__ == "__main__":
    main()
