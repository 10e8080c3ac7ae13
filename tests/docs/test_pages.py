"""The documentation: blocks run, links resolve, and the reference is complete."""

import ast
import enum
import functools
import importlib
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import typing

import attrs
import pytest

import mama_structs
from mama_structs import (
    LinkingPolicy,
    MemoryStore,
    Session,
    Settings,
    ToolSettings,
    embedders,
    errors,
    structs,
    testing,
)
from mama_structs.cli.main import main
from mama_structs.memory.embedding import protocol
from mama_structs.memory.graph import results
from mama_structs.memory.types import model
from mama_structs.references import matches
from mama_structs.references import results as outcomes
from mama_structs.refs.markup import content_types as kinds
from mama_structs.refs.markup import parser
from mama_structs.refs.store import entries, export
from mama_structs.refs.store import ref_store as store
from mama_structs.refs.store import text as content
from mama_structs.refs.store import text_search as search
from mama_structs.storage import sqlite_errors

# Entry pages, whose code examples create no store.
SHORT = ("README.md", "index.md")
DEMO = "python3 -m venv .venv && .venv/bin/pip install '.[semantic]' && .venv/bin/mama-structs demo"
TESTS = "python3 -m venv .venv-test && .venv-test/bin/pip install nox && .venv-test/bin/nox"

PUBLIC_MODULES = (
    "mama_structs",
    "mama_structs.embedders",
    "mama_structs.notebook",
    "mama_structs.types",
    "mama_structs.sources",
    "mama_structs.structs",
    "mama_structs.testing",
    "mama_structs.testing.machines",
    "mama_structs.testing.scripted_model",
    "mama_structs.testing.session_faults",
    "mama_structs.testing.strategies",
)
ERRORS = sorted(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.MamaStructsError)
)


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
    assert counts["tutorial-references.md"] >= 8
    assert counts["tutorial-refs.md"] >= 12
    assert counts["tutorial-decisions.md"] >= 12
    assert sum(counts.values()) >= 150


def test_tests_in_pages_pass(docs, page, tmp_path):
    """A block that defines tests is a complete test module, which runs with pytest."""
    blocks = [block for block in docs.blocks_of(page) if block.info == "python"]
    modules = [block for block in blocks if re.search(r"^(async )?def test_", block.text, re.MULTILINE)]
    if not modules:
        return
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    for number, block in enumerate(modules):
        (tmp_path / f"test_block_{number}.py").write_text(block.text)
    tests = sum(len(re.findall(r"^(?:async )?def test_", block.text, re.MULTILINE)) for block in modules)

    # With CI set, Hypothesis uses fixed examples and no deadline.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
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
    """Clicks are counted from docs/index.md, to which the README links."""
    clicks = _clicks(docs.root / "docs" / "index.md")

    assert {} == {page: clicks.get(page) for page in docs.pages[1:] if clicks.get(page, 3) > 2}
    assert "docs/index.md" in _links(docs.root / "README.md")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("how-to/memories.md", ["save_decision(", ".search("]),
        *((f"how-to/{name}.md", ["session"]) for name in ("openai", "anthropic", "langchain", "pydantic-ai")),
        *((f"how-to/{name}.md", ["session"]) for name in ("openai-agents", "mcp", "own-loop", "hooks")),
        ("explanation/on-disk.md", ["`journal/cache.db`", "`views/`", "`locks`", "0700"]),
        ("explanation/on-disk.md", ["## What a crash leaves", "killed", "power", "disk is full"]),
        ("explanation/cost.md", ["## Tokens", "characters", "## Time", "ms"]),
    ],
)
def test_frequent_questions_are_answered_within_two_clicks(docs, asked, says):
    """The questions are about saving and searching, frameworks, storage, crashes, and token costs."""
    target = docs.root / "docs" / asked
    text = target.read_text(encoding="utf-8")

    assert _clicks(docs.root / "docs" / "index.md")[target] <= 2
    assert [] == [words for words in says if words not in text]


def test_readme_is_short_and_has_generated_picture(docs):
    """Its first code has eight lines."""
    readme = docs.root / "README.md"
    code = next(block for block in docs.blocks_of(readme) if block.info == "python")
    made = runpy.run_path(str(docs.root / "scripts" / "picture.py"))

    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 120
    assert 8 == len([line for line in code.text.splitlines() if line])
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
    """The example is the first block of how-to/own-loop.md."""
    agent, *_ = docs.blocks_of(docs.root / "docs" / "how-to" / "own-loop.md")

    assert len(agent.text.splitlines()) <= 40


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


# --- reference -------------------------------------------------------------------------------------------------------


@functools.cache
def _reference(root):
    """Return all pages of the reference as one string."""
    pages = sorted((root / "docs" / "reference").glob("*.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


@functools.cache
def _reference_names(root):
    """Return all names in code spans of the reference, including the parts of dotted names."""
    spans = re.findall(r"`([^`\n]+)`", _reference(root))
    return frozenset(name for span in spans for name in re.findall(r"[A-Za-z_]\w*", span))


def _section(docs, heading):
    section = re.search(rf"^##? {heading}$(.*?)^#", _reference(docs.root) + "\n#", re.MULTILINE | re.DOTALL)
    assert section, f"the reference has no section {heading}"
    return section[1]


def _home_of(name):
    inner = (
        *(results, model, store, entries, parser, content, search, export, kinds),
        *(matches, outcomes, protocol, sqlite_errors),
    )
    # The modules in `inner` are not public. The reference lists them because users get their objects as results.
    doors = (mama_structs, testing, embedders, *inner)
    return next(module for module in doors if name in getattr(module, "__all__", vars(module)))


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_public_names_load_and_are_in_the_reference(docs, module):
    public = importlib.import_module(module).__all__
    known = _reference_names(docs.root)

    assert list(public), f"{module} has no public names"
    assert [] == [name for name in public if not hasattr(importlib.import_module(module), name)]
    assert [] == [name for name in public if name not in known]


def test_errors_are_in_the_reference(docs):
    known = _reference_names(docs.root)

    assert len(ERRORS) > 10
    assert [] == [name for name in ERRORS if name not in known]


@pytest.mark.parametrize(
    "documented",
    [
        *("ReferenceOptions", "ReferenceSettings", "IdScheme", "Source", "StructsClient", "ResolverStats"),
        *("DescriptorSettings", "ToolSettings", "Settings", "RefStore", "with_descriptors"),
        *("Ingested", "Diagnostic", "Excerpt", "SearchResult", "Match", "FileResult", "Usage", "Suggestion"),
        *("Ref", "Descriptor"),
        *("MemorySettings", "LinkingPolicy", "Memory", "Link", "Hit", "Chain", "Reached", "Similar", "Surroundings"),
        *("RelationshipWord", "Maintained", "Imported", "Calibration", "HashEmbedder", "UniversalSentenceEmbedder"),
        *("as_embedder", "Finding"),
    ],
)
def test_parameters_are_in_section_of_their_class(docs, documented):
    section = _section(docs, documented)
    parameters = inspect.signature(getattr(_home_of(documented), documented)).parameters

    assert [] == [
        name for name in parameters if not name.startswith("_") and not re.search(rf"`[^`]*\b{name}\b", section)
    ]


@pytest.mark.parametrize(
    "documented",
    [
        *("Session", "Resolver", "References", "Found", "ReferenceOptions", "IdScheme", "Source"),
        *("Tool", "ToolSet", "StructsClient", "StructsSource", "EntityId"),
        *("FakeNode", "FakeSource", "FakeClock", "Fault", "Faults", "World"),
        *("RefStore", "RefParser", "RefStream", "Ref", "Descriptor"),
        *("MemoryStore", "Link", "Chain", "LinkingPolicy"),
        *("Embedder", "Calibration", "HashEmbedder", "UniversalSentenceEmbedder"),
    ],
)
def test_members_are_in_section_of_their_class(docs, documented):
    section = _section(docs, documented)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", section))))
    home = _home_of(documented)
    members = {
        name
        for parent in getattr(home, documented).__mro__
        if parent.__module__.startswith("mama_structs.")
        for name, value in vars(parent).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
    }

    assert members
    assert set() == members - named


def test_events_are_in_the_reference_with_signatures(docs):
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)`", _section(docs, "Events"), re.MULTILINE))
    known = {
        kind.__name__: ", ".join(
            str(one.replace(annotation=one.empty)) for one in inspect.signature(kind).parameters.values()
        )
        for kind in typing.get_args(parser.Event)
    }

    assert "id, attributes, position=0" == known["RefStart"]
    assert known == {name: parameters.replace("*, ", "") for name, parameters in rows.items()}


@pytest.mark.parametrize(
    "documented", ["ReferenceSettings", "DescriptorSettings", "MemorySettings", "ToolSettings", "LinkingPolicy"]
)
def test_settings_are_in_the_reference_with_defaults(docs, documented):
    rows = re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", _section(docs, documented), re.MULTILINE)
    said = {name: ast.literal_eval(default) for name, default in rows}
    kind = getattr(mama_structs, documented)

    assert [field.name for field in attrs.fields(kind)] == list(said)
    assert kind() == kind(**said)


def test_strict_linking_matches_the_reference(docs):
    """The third column of the table of `LinkingPolicy` contains the strict values."""
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|", _section(docs, "LinkingPolicy"), re.MULTILINE)

    assert LinkingPolicy.strict() == LinkingPolicy(**{name: ast.literal_eval(value) for name, value in rows})


def _written(signature):
    """Return a signature in the format of the reference."""
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name != "self"]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return text.replace("'", '"')[1:-1]


def test_memory_store_methods_are_in_the_reference_with_signatures(docs):
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)`", _section(docs, "MemoryStore"), re.MULTILINE))
    known = {
        name: _written(inspect.signature(value))
        for name, value in inspect.getmembers(MemoryStore, callable)
        if not name.startswith("_")
    }

    assert 'id, *, direction="both"' == known["connected"]
    assert known == rows


def test_metadata_classes_are_in_the_reference_with_attributes(docs):
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", _section(docs, "Metadata"), re.MULTILINE))
    known = {kind.__name__: kind for kind in (*model.METADATA_TYPES.values(), model.OutcomeChange, model.PreviousValue)}

    assert known.keys() == rows.keys()
    for name, kind in known.items():
        text = re.sub(r"\(.*?\)", "", rows[name])
        assert [field.name for field in attrs.fields(kind)] == re.findall(r"`(\w+)`", text), name


def test_providers_are_in_the_reference_with_arguments(docs):
    """Arguments are listed in order, with their defaults."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", _section(docs, "Providers"), re.MULTILINE))

    assert len(rows) == 5
    for name, text in rows.items():
        arguments = re.findall(r"`(\w+)(?:=([^`]*))?`", re.sub(r"\(.*?\)", "", text))
        parameters = inspect.signature(getattr(embedders, name)).parameters.values()
        # Required arguments have no default, and 0 or None select the provider's default, so the page omits these.
        known = {one.name: None if one.default in (inspect.Parameter.empty, 0) else one.default for one in parameters}
        assert known == {argument: ast.literal_eval(value or "None") for argument, value in arguments}, name


async def test_session_tools_are_in_the_reference_with_arguments(docs):
    """Arguments are listed in order, with their defaults. Schemas omit None and False."""
    rows = re.findall(r"^\| `([\w/]+)` \| (.*?) \|", _section(docs, "Tools for models"), re.MULTILINE)
    known = {}
    allowed = Settings(tools=ToolSettings(forget=True))
    async with Session.open(files_root=".", settings=allowed) as session:
        for name, tool in session.tools.items():
            properties = tool.input_schema["properties"]
            known[name] = [
                parameter
                if "default" not in properties[parameter]
                else f"{parameter}={properties[parameter]['default']!r}"
                for parameter in properties
            ]

    assert known == {
        name: re.findall(r"`(.*?)(?:=None|=False)?`", arguments.replace('"', "'")) for name, arguments in rows
    }


def test_chain_models_are_in_the_reference_with_attributes(docs):
    rows = {
        name: set(re.findall(r"`(\w+)`", has))
        for name, has in re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", _section(docs, "Models of the chain"), re.MULTILINE)
    }
    bookkeeping = {"extra", "absent", "as_written"}
    wrong = {}
    for name in structs.__all__:
        model = getattr(structs, name)
        if name.endswith(("Page", "Pagination")) or name in ("Answer", "Record") or not inspect.isclass(model):
            continue
        if issubclass(model, enum.Enum) and model is not structs.EntityType:
            has = {member.value for member in model}
        elif issubclass(model, structs.Record):
            has = {field.name for field in attrs.fields(model)} - bookkeeping
        else:
            continue
        if rows.get(name) != has:
            wrong[name] = has ^ rows.get(name, set())

    assert {} == wrong


def test_error_rows_match_base_class_type_and_attributes(docs):
    rows = re.findall(
        r"^\| `(\w+)` \| (?:`(\w+)`)? ?\| `(\w+)` \| .* \| (.*?) ?\|$", _section(docs, "Errors"), re.MULTILINE
    )

    assert set(ERRORS) == {name for name, *_ in rows}
    for name, base, word, data in rows:
        error = getattr(errors, name)
        assert word == error.type, name
        assert not base or base in {parent.__name__ for parent in error.__mro__[1:]}, name
        # A row lists the attributes that its error class annotates. Below `DescriptorError`, rows also list `handle`.
        documented = set(re.findall(r"`(\w+)`", data))
        own = set(vars(error).get("__annotations__", ())) - {"type"}
        assert own <= documented, name
        assert documented <= {"hint", *errors._get_attributes(error)}, name
        assert ("hint" in documented) == (error is errors.MamaStructsError), name


# --- commands in the README ------------------------------------------------------------------------------------------


def test_readme_has_exactly_the_two_commands(docs):
    shell = [
        block.text.strip() for block in docs.blocks_of(docs.root / "README.md") if block.language in ("sh", "bash")
    ]

    assert [DEMO, TESTS] == shell


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
