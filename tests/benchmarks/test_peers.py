"""Comparison with other packages: docs/internals/comparison.md matches the results, and the benchmarks work."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE_PATH = ROOT / "docs" / "internals" / "comparison.md"
WRITTEN = json.loads(PAGE_PATH.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.fixture
def table(monkeypatch):
    """The script that compares the peers and writes the table."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("_peers_table")


def test_page_matches_results(table):
    page = PAGE_PATH.read_text(encoding="utf-8")

    assert table.page_with(page, WRITTEN) == page, "run `python benchmarks/peers.py --table`"


def test_page_has_every_row_and_every_peer(table):
    """A peer without a column has a reason."""
    figures = WRITTEN["figures"]
    lines = PAGE_PATH.read_text(encoding="utf-8").splitlines()
    rows: dict[str, list[str]] = {}
    for line in lines:
        # The first table has all rows. A table for more memories repeats some of them.
        if line.startswith("| "):
            rows.setdefault(line.split(" | ")[0].removeprefix("| "), line.split(" | "))

    assert set(table.PEERS) == set(figures["peers"]) | set(figures["missing"])
    assert "ours" in figures["peers"]
    for label, *_ in table.ROWS:
        assert len(figures["peers"]) + 1 == len(rows[label])
        assert all(cell.strip("| ") for cell in rows[label]), label


def test_page_names_every_row_in_which_a_peer_is_better(table):
    """The sentence contains the peer and both numbers."""
    said = PAGE_PATH.read_text(encoding="utf-8")
    behind = [line for line in table.lines_of(WRITTEN["figures"]) if line.better and line.ahead()]

    assert behind
    for line in behind:
        (sentence,) = [one for one in said.splitlines() if one.lower().startswith(f"* {line.label.lower()}:")]
        assert line.cell("ours") in sentence
        for name in line.ahead():
            assert f"{table.PEERS[name].title} {line.cell(name)}" in sentence


def test_missing_value_has_a_text_and_no_rank(table):
    line = table.Line("open", {"ours": 3.0, "numpy": None}, "{:.1f} s", -1)

    assert ["3.0 s", "no such thing"] == line.cells
    assert [] == line.ahead()


@pytest.mark.parametrize(("better", "ahead"), [(1, ["numpy", "chroma"]), (-1, ["mem0"]), (0, [])])
def test_rank_uses_displayed_numbers(table, better, ahead):
    """Numbers with the same text are equal."""
    line = table.Line("x", {"ours": 2.0, "mem0": 1.0, "chroma": 3.0, "numpy": 4.0, "lancedb": 2.001}, "{:.1f}", better)

    assert ahead == line.ahead()


def test_vector_without_metadata_line_is_ignored(monkeypatch, tmp_path):
    """The raw peer may be killed between writing its two files."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    scale, shared = importlib.import_module("scale"), importlib.import_module("_scale")
    corpus, store = tmp_path / "corpus", tmp_path / "store"
    corpus.mkdir()
    scale.make_corpus(scale.Sizes(20, 0, 1, 1, 0), corpus, quick=True)
    rows = shared.Rows(corpus)
    peer = importlib.import_module("_peers.numpy_file").Peer(rows, {})
    peer.open(store)
    peer.put(0, 3)
    peer.close()
    with (store / "vectors.f32").open("ab") as file:
        file.write(rows.vectors(3, 4).tobytes())
    peer.open(store)
    peer.put(4, 5)

    assert [0, 1, 2, 4] == peer.stored() == peer.find_by_own_vectors([0, 1, 2, 4])
    peer.close()


def test_own_peer_finds_saved_memories_after_reopening(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    scale, shared = importlib.import_module("scale"), importlib.import_module("_scale")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    scale.make_corpus(scale.Sizes(20, 2, 3, 1, 0), corpus, quick=True)
    peer = importlib.import_module("_peers.ours").Peer(shared.Rows(corpus), {})
    peer.open(tmp_path / "store")
    peer.bulk(0, 20)
    peer.save(20, 22)
    peer.wait_until_idle()
    _, found = peer.search(0, 3)
    peer.close()
    peer.open(tmp_path / "store")

    assert [10, 10, 10] == [len(set(one)) for one in found]
    assert list(range(22)) == sorted(peer.stored()) == sorted(peer.find_by_own_vectors(list(range(22))))
    peer.close()


def test_failing_peer_is_reported_and_others_continue(monkeypatch, tmp_path):
    """The reason is the name of the error."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    peers = importlib.import_module("peers")
    corpus, stores = tmp_path / "corpus", tmp_path / "stores"
    corpus.mkdir()
    stores.mkdir()
    sizes = peers.Sizes(20, 2, 3, 1, 1, 1, 1, 1, 0)
    peers.make_corpus(peers.CorpusSizes(20, 2, 3, 1, 0), corpus, quick=True)
    rival = peers.Rival("numpy_file", {}, sys.executable, ROOT)
    figures = {"numpy": {}, "chroma": {}}
    failed = peers.loaded(sizes, {"chroma": rival._replace(kind="nobody"), "numpy": rival}, corpus, stores, figures)

    assert {"chroma": "failed with ModuleNotFoundError"} == failed
    assert {"save", "search", "recall", "open"} <= figures["numpy"].keys()
