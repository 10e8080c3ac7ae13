"""The documentation: blocks run, links resolve, and pages have the agreed form and length."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib

import pytest
from hypothesis import settings

from mama_structs._internal.jsonable import to_json_text
from mama_structs.adapters import openai
from mama_structs.cli.main import main
from mama_structs.settings import Settings, ToolSettings
from mama_structs.sync import Session

# Entry pages, whose code examples create no store.
SHORT = ("README.md", "index.md")
DEMO = "python3 -m venv .venv && .venv/bin/pip install '.[semantic]' && .venv/bin/mama-structs demo"
TESTS = "python3 -m venv .venv-test && .venv-test/bin/pip install nox && .venv-test/bin/nox"

GROUPS = [
    "Get started",
    "Tutorials",
    "Memory",
    "References and refs",
    "Frameworks",
    "Operations",
    "Concepts",
    "Reference",
]
# Target words of each page. A page may have up to 15 per cent more.
BUDGETS = {
    "index": 400,
    **{f"get-started/{name}": 900 for name in ("quickstart", "what-is-sent-to-the-model", "glossary")},
    "get-started/choose-a-memory-type": 700,
    "tutorials/decisions-that-change": 1200,
    "tutorials/refs-in-answers": 1300,
    "tutorials/references-in-tool-results": 1000,
    "tutorials/build-an-agent": 1000,
    "memory/save-and-search": 1700,
    "memory/recall-and-learn": 1200,
    "memory/duplicates-and-conflicts": 900,
    "memory/update-delete-erase": 900,
    "memory/key-value-records": 700,
    "memory/embedders-and-rerankers": 1400,
    "memory/import-and-migrate": 2000,
    "references/add-references": 1500,
    "references/use-your-own-ids": 1200,
    "references/use-a-structs-node": 900,
    "references/long-texts-and-refs": 1600,
    "references/tools-for-models": 1600,
    "frameworks/overview": 700,
    "operations/look-at-memories": 800,
    "operations/web-applications": 1300,
    "operations/notebooks-and-plots": 800,
    "operations/processes-and-postgresql": 1800,
    "operations/back-up-and-monitor": 1000,
    "operations/test-an-agent": 1700,
    "concepts/search": 1500,
    "concepts/links-and-decay": 1200,
    "concepts/storage-and-crashes": 1500,
    "concepts/ids-and-references": 1200,
    "concepts/refs": 1000,
    "concepts/performance": 800,
    "concepts/comparison": 800,
}
FRAMEWORK_BUDGET = 500
BUDGET_TOLERANCE = 1.15


def test_page_blocks_print_the_shown_output(docs, page):
    """All pages share one directory, and leave no files in it."""
    before = set(docs.here.iterdir())
    docs.run_page(page)

    assert page.name in SHORT or before == set(docs.here.iterdir())


def test_short_pages_print_the_same_twice(docs):
    """The second run finds the files that the first run left in the shared directory."""
    for page in 2 * [page for page in docs.pages if page.name in SHORT]:
        docs.run_page(page)


def test_pages_have_blocks(docs):
    """Otherwise the tests of blocks would pass without effect."""
    counts = {page.name: sum(block.info == "python" for block in docs.blocks_of(page)) for page in docs.pages}

    assert counts["README.md"] >= 1
    assert counts["references-in-tool-results.md"] >= 8
    assert counts["refs-in-answers.md"] >= 12
    assert counts["decisions-that-change.md"] >= 12
    assert sum(counts.values()) >= 150


@pytest.mark.once
def test_tests_in_pages_pass(docs, page, tmp_path):
    """A block that defines tests is a complete test module, which runs with pytest."""
    blocks = [block for block in docs.blocks_of(page) if block.info == "python"]
    modules = [block for block in blocks if re.search(r"^(async )?def test_", block.text, re.MULTILINE)]
    if not modules:
        return
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    # The same few examples in each run, as in our own property tests.
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\n"
        f"settings.register_profile('page', settings.get_profile('ci'), max_examples={settings.default.max_examples})\n"
        "settings.load_profile('page')\n"
    )
    for number, block in enumerate(modules):
        (tmp_path / f"test_block_{number}.py").write_text(block.text)
    tests = sum(len(re.findall(r"^(?:async )?def test_", block.text, re.MULTILINE)) for block in modules)

    # With CI set, Hypothesis uses fixed examples and no deadline.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "CI": "true", "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout + run.stderr
    assert f"{tests} passed" in run.stdout


# --- links -----------------------------------------------------------------------------------------------------------


def _without_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(text):
    headings = re.findall(r"^#+ (.+)$", _without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _links(page):
    return re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", _without_blocks(page.read_text(encoding="utf-8")))


def test_links_between_pages_resolve(docs):
    """Files and headings exist."""
    for page, link in [(one, link) for one in docs.pages for link in _links(one)]:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page

        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in _anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def _clicks(index):
    """Return the minimum number of clicks from the index page to each reachable page."""
    clicks, reached = {index: 0}, [index]
    for page in reached:
        for link in _links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in clicks:
                clicks[target] = clicks[page] + 1
                reached.append(target)
    return clicks


def test_every_page_is_at_most_two_clicks_away(docs):
    """Clicks are counted from docs/index.md, to which the README links. CONTRIBUTING.md links the internals."""
    clicks = _clicks(docs.root / "docs" / "index.md")
    pages = [page for page in docs.pages[1:] if page.parent.name != "internals"]

    assert {} == {page: clicks.get(page) for page in pages if clicks.get(page, 3) > 2}
    assert "docs/index.md" in _links(docs.root / "README.md")


def test_internals_are_linked_from_contributing(docs):
    clicks = _clicks(docs.root / "CONTRIBUTING.md")

    assert [] == [page for page in docs.pages if page.parent.name == "internals" and page not in clicks]


def test_index_has_eight_groups_with_all_pages(docs):
    """The lists of the index are the navigation of the site."""
    index = docs.root / "docs" / "index.md"
    text = index.read_text(encoding="utf-8")
    linked = {(index.parent / link).resolve() for link in _links(index)}
    unlisted = ("internals", "reference")

    assert GROUPS == re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [] == [page for page in docs.pages[1:] if page.parent.name not in unlisted and page not in {index, *linked}]


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        ("memory/save-and-search.md", ["save_decision(", ".search("]),
        *(
            (f"frameworks/{name}.md", ["session"])
            for name in ("openai", "anthropic", "langchain", "pydantic-ai", "mcp")
        ),
        ("tutorials/build-an-agent.md", ["session"]),
        ("operations/web-applications.md", ["FastAPI", "Flask", "Django"]),
        ("references/use-a-structs-node.md", ["structs="]),
        ("memory/import-and-migrate.md", ["mem0", "LangMem"]),
        ("concepts/storage-and-crashes.md", ["`journal/cache.db`", "`views/`", "`locks`", "0700"]),
        ("concepts/storage-and-crashes.md", ["kill", "power", "disk"]),
        ("get-started/what-is-sent-to-the-model.md", ["tokens", "characters", "ms"]),
    ],
)
def test_frequent_questions_are_answered_within_two_clicks(docs, asked, texts):
    """The questions are about saving and searching, frameworks, storage, crashes, and token costs."""
    target = docs.root / "docs" / asked
    text = target.read_text(encoding="utf-8")

    assert _clicks(docs.root / "docs" / "index.md")[target] <= 2
    assert [] == [words for words in texts if words not in text]


def count_words(text):
    """
    Return the number of words of a page for its budget.

    Fenced blocks, HTML comments, generated sections, link targets and the lines below table headers do not count.
    A code span counts as its words.
    """
    text = re.sub(r"<!-- the table: .*?<!-- end of the table -->", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", _without_blocks(text), flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^\|[ :|-]+\|$", "", text, flags=re.MULTILINE)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


def test_pages_are_within_their_word_budget(docs):
    counts = {
        str(page.relative_to(docs.root / "docs"))[: -len(".md")]: count_words(page.read_text(encoding="utf-8"))
        for page in docs.pages[1:]
    }
    budgets = {name: FRAMEWORK_BUDGET for name in counts if name.startswith("frameworks/")} | BUDGETS

    assert set(BUDGETS) <= set(counts)
    assert {} == {name: counts[name] for name, budget in budgets.items() if counts[name] > BUDGET_TOLERANCE * budget}


def test_glossary_explains_the_terms_of_the_package(docs):
    """Each term has a row of a table."""
    text = (docs.root / "docs" / "get-started" / "glossary.md").read_text(encoding="utf-8").lower()
    terms = [
        *("memory", "decision", "insight", "context", "checkpoint", "record", "topic", "outcome", "link", "evidence"),
        *("namespace", "session", "store", "hit", "score", "relevance", "recall", "embedder", "reranker"),
        *("judge", "handle", "ref", "descriptor", "reference", "source", "resolver", "tool", "origin", "trust"),
    ]

    assert [] == [term for term in terms if not re.search(rf"^\| {term}\b", text, re.MULTILINE)]


def test_readme_is_short_and_has_generated_picture(docs):
    """Its first block has at most ten lines."""
    readme = docs.root / "README.md"
    code = next(block for block in docs.blocks_of(readme) if block.info == "python")
    made = runpy.run_path(str(docs.root / "scripts" / "picture.py"))

    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 80
    assert len([line for line in code.text.splitlines() if line]) <= 10
    assert "docs/pictures/decisions.svg" in readme.read_text(encoding="utf-8")
    assert made["picture"]() == made["TARGET"].read_text(encoding="utf-8"), "run scripts/picture.py"


def test_notebooks_have_no_outputs(docs):
    """`nox -s docs` executes them."""
    notebooks = sorted((docs.root / "docs" / "notebooks").glob("*.ipynb"))
    cells = [cell for path in notebooks for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    code = [cell for cell in cells if cell["cell_type"] == "code"]

    assert ["agent", "memory", "references"] == [path.stem for path in notebooks]
    assert {(None, False)} == {(cell["execution_count"], bool(cell["outputs"])) for cell in code}


def test_example_agent_has_at_most_forty_lines(docs):
    """Each block of the tutorial is short enough to read at once."""
    blocks = docs.blocks_of(docs.root / "docs" / "tutorials" / "build-an-agent.md")

    assert [] == [block.line for block in blocks if len(block.text.splitlines()) > 40]


def test_lines_contain_one_sentence(docs):
    """Diffs then show only the changed sentences."""
    prose = [
        (page.name, line)
        for page in docs.pages
        for line in re.sub(r"`[^`\n]*`", "code", _without_blocks(page.read_text(encoding="utf-8"))).splitlines()
    ]

    assert [] == [one for one in prose if not one[1].startswith("|") and re.search(r"[a-z)][.!?] [A-Z]", one[1])]


def test_tables_have_separator_line(docs):
    """Without it, rows are rendered as plain text."""
    for page in docs.pages:
        text = _without_blocks(page.read_text(encoding="utf-8"))

        assert [] == re.findall(r"(?:\A|\n(?!\|).*\n)(\|.*)\n(?!\|[ :|-]+\|\n)", f"\n\n{text}\n"), page


def test_comparison_has_the_measured_versions_and_figures(docs):
    """The rows that are written by hand repeat the figures of `nox -s peers`."""
    text = (docs.root / "docs/concepts/comparison.md").read_text(encoding="utf-8")
    figures = json.loads((docs.root / "docs/internals/comparison.json").read_text(encoding="utf-8"))["figures"]
    ours, peers = figures["peers"]["ours"], figures["peers"]
    columns = ("ours", "mem0", "langgraph", "chroma", "lancedb", "qdrant", "sqlite_vec")

    assert f"| version | {' | '.join(next(iter(peers[one]['versions'].values())) for one in columns)} |" in text
    assert f"| one save on disk, median | {1000 * ours['save']['median']:.1f} ms |" in text
    assert f"| bulk load | {ours['bulk']:,.0f} per second |" in text
    assert f"| search by a vector, median | {1000 * ours['nearest']['median']:.2f} ms |" in text
    assert f"| search with words, median | {1000 * ours['search']['median']:.1f} ms |" in text
    assert f"| recall@10 with words | {ours['quality']['search']['recall@10']:.3f} |" in text
    assert f"| memory of the work | {ours['peak'] / 1e6:.0f} MB |" in text


# --- commands in the README ------------------------------------------------------------------------------------------


def test_readme_has_exactly_the_two_commands(docs):
    shell = [
        block.text.strip() for block in docs.blocks_of(docs.root / "README.md") if block.language in ("sh", "bash")
    ]

    # A released README installs the package from an index.
    assert shell in ([DEMO, TESTS], [runpy.run_path(str(docs.root / "scripts/release.py"))["switch_text"](DEMO), TESTS])


def test_first_command_runs_existing_script():
    assert callable(main)


def test_second_command_is_what_ci_runs(docs):
    """The script `.ci/run` runs the same command, but may add -q to pip."""
    script = (docs.root / ".ci" / "run").read_text(encoding="utf-8")

    # `nox` must have no arguments, so that it runs all default sessions.
    assert re.search(re.escape(TESTS) + r"\s*(;|\}|$)", script.replace("pip install -q ", "pip install "), re.MULTILINE)


def test_default_nox_sessions_run_docs_and_tests(docs):
    """`.ci/run` also runs the sessions that start servers and kill processes."""
    noxfile = (docs.root / "noxfile.py").read_text(encoding="utf-8")
    default = re.search(r"nox\.options\.sessions = \[(.*?)\]", noxfile, re.DOTALL)

    assert default
    assert {"lint", "types", "docs", "tests"} == set(re.findall(r'"(\w+)"', default[1]))
    assert 'session.run("pytest", *(session.posargs or [*ON_ALL_CORES, WITHOUT_SERVERS, *elsewhere])' in noxfile
    assert 'WITHOUT_SERVERS = "--ignore=tests/postgres"' in noxfile
    assert 'counting = ["--cov", "--cov-report=", *ON_ALL_CORES' in noxfile
    assert 'session.run("pytest", *counting, *left_out' in noxfile
    assert "nox -s others postgres" in (docs.root / ".ci" / "run").read_text(encoding="utf-8")
    with (docs.root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    assert "mama_structs.cli.main:main" == project["project"]["scripts"]["mama-structs"]


def test_modules_named_in_pages_exist(docs):
    package = docs.root / "mama_structs"
    missing = {
        (page.name, name)
        for page in docs.pages
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))
        if not (package / name).exists() and not (docs.root / name).exists()
    }

    assert set() == missing


PAGES_WITH_TOOLS = (
    *("agent-framework", "anthropic", "claude-agent", "google-adk", "haystack", "langchain", "mcp", "openai"),
    *("openai-agents", "pydantic-ai"),
)


def test_framework_pages_say_what_the_memory_profile_saves(docs):
    """The stated number is that of the default session with OpenAI's strict definitions, the largest of all."""
    sizes = {}
    for profile in ("all", "memory"):
        with Session.open(settings=Settings(tools=ToolSettings(profile=profile))) as session:
            sizes[profile] = (len(to_json_text(openai.tools(session))) + len(session.system_prompt())) / 4
    said = f"saves [up to {round(sizes['all'] - sizes['memory'], -2):,.0f} tokens]"
    folder = docs.root / "docs" / "frameworks"

    assert [] == [name for name in PAGES_WITH_TOOLS if said not in (folder / f"{name}.md").read_text(encoding="utf-8")]
