"""Preparation of a release: install commands of the pages, the readme of a package index, and the checks."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"))
PAGES = RELEASE["find_pages"](ROOT)
REPOSITORY = "https://code.example/owner/mama-structs"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the files that a release changes or checks."""
    root = tmp_path_factory.mktemp("project")
    for path in [*PAGES, ROOT / "pyproject.toml", ROOT / "CHANGELOG.md"]:
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return root


@pytest.fixture
def hatch_build(monkeypatch):
    """The names of hatch_build.py. Only a build has hatchling."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return runpy.run_path(str(ROOT / "hatch_build.py"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pip install '.[mcp]'  # in a checkout of the repository", "pip install 'mama-structs[mcp]'"),
        ("pip install . httpx  # in a checkout of the repository", "pip install mama-structs httpx"),
        ("Run `pip install .` in a checkout of the repository.", "Run `pip install mama-structs`."),
        ("Run this in a checkout of the repository (version 1.2.0 is not on a package index yet):", "Run this:"),
        ("pip install -e '.[test]'", "pip install -e '.[test]'"),
        ("pip install ./other.whl", "pip install ./other.whl"),
    ],
)
def test_switch_text_changes_install_commands_of_a_checkout(before, after):
    assert after == RELEASE["switch_text"](before)


def test_switched_pages_install_from_an_index_only(copied):
    before = {page: page.read_text(encoding="utf-8") for page in RELEASE["find_pages"](copied)}
    RELEASE["switch"](copied)

    for page, text in before.items():
        switched = page.read_text(encoding="utf-8")

        assert "in a checkout" not in switched, page
        assert "pip install '." not in switched, page
        assert "not on a package index" not in switched, page
        assert text.count("pip install") == switched.count("pip install"), page
    assert [] == RELEASE["switch"](copied)


def test_find_problems_names_each_reason_until_it_is_fixed(tmp_path):
    project = '[project]\nversion = "1.2.0"\n[tool.hatch.metadata.hooks.custom]\nrepository = "%s"\n'
    (tmp_path / "pyproject.toml").write_text(project % "")
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.0] - not released yet\n")
    (tmp_path / "README.md").write_text("pip install .  # in a checkout of the repository\n")

    assert ["pyproject.toml", "CHANGELOG.md", "1"] == [one.split()[0] for one in RELEASE["find_problems"](tmp_path)]

    (tmp_path / "pyproject.toml").write_text(project % REPOSITORY)
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.0] - 2026-12-01\n")
    RELEASE["switch"](tmp_path)

    assert [] == RELEASE["find_problems"](tmp_path, tag="v1.2.0")
    assert ["The tag 'v1.3.0' is not the version"] == [
        one.partition(" '1")[0] for one in RELEASE["find_problems"](tmp_path, tag="v1.3.0")
    ]


def test_make_links_absolute_leaves_no_relative_link_in_readme(hatch_build):
    """The index shows the README of the tag, with its picture."""
    text = hatch_build["make_links_absolute"]((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, "v1.2.0")

    assert f"]({REPOSITORY}/raw/v1.2.0/docs/pictures/decisions.svg)" in text
    assert f"]({REPOSITORY}/blob/v1.2.0/docs/index.md)" in text
    assert "](docs/" not in text
    assert "](CHANGELOG.md)" not in text
    assert text == hatch_build["make_links_absolute"](text, REPOSITORY, "v1.2.0")


@pytest.mark.parametrize(("repository", "expected"), [("", None), (f"{REPOSITORY}/", REPOSITORY)])
def test_build_has_urls_if_the_repository_is_set(hatch_build, repository, expected):
    hook = hatch_build["RepositoryHook"]()
    hook.root, hook.config = str(ROOT), {"repository": repository}
    metadata = {"version": "1.2.0"}
    hook.update(metadata)

    assert expected == metadata.get("urls", {}).get("Repository")
    assert ("](docs/" in metadata["readme"]["text"]) == (expected is None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[![CI](a.svg "x")](docs/b.md)', f'[![CI]({REPOSITORY}/raw/v1/a.svg "x")]({REPOSITORY}/blob/v1/docs/b.md)'),
        (
            "[![CI](https://x.org/a.svg)](docs/b.md#c)",
            f"[![CI](https://x.org/a.svg)]({REPOSITORY}/blob/v1/docs/b.md#c)",
        ),
        ("[a](#b) [c](mailto:d) [e]", "[a](#b) [c](mailto:d) [e]"),
    ],
)
def test_make_links_absolute_accepts_badges_and_titles(hatch_build, text, expected):
    assert expected == hatch_build["make_links_absolute"](text, REPOSITORY, "v1")
