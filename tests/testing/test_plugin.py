import json
import os
import subprocess
import sys
import textwrap
import urllib.request

import aiohttp
import pytest

import mama_structs.testing


def run(*arguments, cwd):
    # Others that run tests clean up in the common place, and each warns of what the other one took away.
    environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(cwd)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_a_sync_test_has_a_node(mama_structs_node):
    """The fixture needs no event loop."""
    with urllib.request.urlopen(f"{mama_structs_node.url}/structs/player/1-11", timeout=600) as answer:
        assert "1-11" == json.load(answer)["Player"]["id"]

    assert 1 == mama_structs_node.count("1-11")


async def test_an_async_test_has_a_node(mama_structs_node):
    """The fixture does not share the test's loop."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{mama_structs_node.url}/structs/player/1-11") as answer,
    ):
        assert "1-11" == (await answer.json())["Player"]["id"]


@pytest.mark.mama_structs_node(seed=5, players=20, height=7)
def test_the_marker_sets_world_and_options(mama_structs_node):
    """Seed, size and any option of the node can be marked."""
    assert 22 == len(mama_structs_node.data.ids("player"))
    assert 7 == mama_structs_node.height


@pytest.mark.mama_structs_node(entities={"1-11": {"id": "1-11"}})
def test_the_marker_can_name_exact_entities(mama_structs_node):
    """With entities the node has these and no world."""
    assert ["1-11"] == mama_structs_node.data.ids("player")


def test_the_plugin_works_without_pytest_asyncio_and_knows_its_marker(tmp_path):
    """The installed plugin serves a plain pytest with strict markers."""
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import urllib.request, pytest

            @pytest.mark.mama_structs_node(players=12)
            def test_it(mama_structs_node):
                assert b"1-11" in urllib.request.urlopen(mama_structs_node.url + "/structs/player/1-11").read()
            """
        )
    )
    result = run("-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "--strict-markers", cwd=tmp_path)

    assert "1 passed" in result.stdout, result.stdout + result.stderr
    markers = run("-m", "pytest", "--markers", cwd=tmp_path).stdout
    assert "mama_structs_node(seed=0, players=40, **options)" in markers


WRONG = {
    "(7)": "takes its options by name, such as players=40, got 7",
    "(entities={}, players=12)": "entities and players exclude each other",
    "(world=None, seed=1)": "world and seed exclude each other",
    "(colour='red')": "unexpected keyword argument 'colour'",
    "(players=3)": "players must be a whole number from 12, got 3",
    "(latency=-1)": "latency must be 0 or more seconds",
}


async def test_an_async_test_has_a_session_of_its_loop(mama_session, mama_clock):
    """It is open, has a directory, and reads the time from the clock."""
    first = await mama_session.memories.save_context("the shield holds")
    mama_clock.advance(3_600)
    second = await mama_session.memories.save_context("the shield fell")
    await mama_session.observe('<ref id="a">x</ref>')

    assert 3_600 == (second.created_at - first.created_at).total_seconds()
    assert 2026 == second.created_at.year == mama_session.refs.get("a").created_at.year
    assert mama_session.location.is_dir()


def test_a_sync_test_has_a_session_without_await(mama_session, mama_clock):
    """The same for code that has no event loop; a clock may be set back."""
    first = mama_session.memories.save_context("the shield holds")
    mama_clock.step(-60)

    assert -60 == (mama_session.memories.save_context("it fell").created_at - first.created_at).total_seconds()


@pytest.mark.mama_session(namespace="bob")
async def test_the_marker_sets_a_sessions_options(mama_session):
    """What `Session.open` takes can be marked."""
    assert "bob" == mama_session.memories.namespace


@pytest.mark.parametrize(
    ("options", "mark"),
    [(["-p", "no:anyio"], "pytest.mark.asyncio"), (["-p", "no:asyncio"], "pytest.mark.anyio")],
    ids=["pytest-asyncio, strict", "anyio"],
)
def test_the_session_is_there_with_every_plugin_for_async_tests(tmp_path, options, mark):
    """Neither mode nor plugin has to be configured for it."""
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            f"""
            import pytest

            @pytest.fixture
            def anyio_backend():
                return "asyncio"

            @{mark}
            async def test_it(mama_session):
                assert (await mama_session.memories.save_context("x")).content == "x"

            @pytest.mark.mama_session("bob")
            def test_wrong(mama_session):
                raise AssertionError("it has no session")
            """
        )
    )
    result = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, cwd=tmp_path)

    assert "1 passed, 1 error" in result.stdout, result.stdout + result.stderr
    assert "UsageError: @pytest.mark.mama_session takes its options by name" in result.stdout


def test_a_marker_that_means_nothing_is_a_usage_error(tmp_path):
    """What the marker cannot mean ends the test with one line that says so."""
    marked = "".join(
        f"@pytest.mark.mama_structs_node{marker}\ndef test_{number}(mama_structs_node): pass\n"
        for number, marker in enumerate(WRONG)
    )
    (tmp_path / "test_it.py").write_text(f"import pytest\n{marked}")
    result = run("-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "--tb=line", cwd=tmp_path)
    said = [
        line
        for line in result.stdout.splitlines()
        if line.startswith("E ") and "UsageError: @pytest.mark.mama_structs_node" in line
    ]

    assert 1 == result.returncode
    assert f"{len(WRONG)} errors" in result.stdout
    assert [f"ERROR test_it.py::test_{number}" for number in range(len(WRONG))] == [
        line.split(" - ")[0] for line in result.stdout.splitlines() if line.startswith("ERROR")
    ]
    assert [] == [message for line, message in zip(said, WRONG.values(), strict=True) if message not in line], said


def test_the_plugin_costs_a_run_without_it_three_small_modules(tmp_path):
    """Every pytest run of every user loads the plugin: what it imports is itself, and nothing that it needs."""
    (tmp_path / "test_it.py").write_text("import sys\n\n\ndef test_it():\n    print(*sys.modules)\n")
    ours = {
        "mama_structs",
        "mama_structs._internal.lazy_import",
        "mama_structs.testing",
        "mama_structs.testing.pytest_plugin",
    }

    def loaded(*options):
        # Others that are installed beside it may load anything, and some of them this package.
        others = [argument for name in ("asyncio", "anyio", "hypothesispytest") for argument in ("-p", f"no:{name}")]
        result = run("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *others, *options, cwd=tmp_path)
        return set(result.stdout.splitlines()[0].split())

    assert ours == loaded() - loaded("-p", "no:mama_structs")


def test_the_package_loads_its_names_lazily(tmp_path):
    """Importing `mama_structs.testing` loads none of its modules; every public name loads when asked for."""
    code = "import sys, mama_structs.testing; print(sorted(m for m in sys.modules if m.startswith('mama_structs.testing.')))"
    result = run("-c", code, cwd=tmp_path)

    assert "[]" == result.stdout.strip()
    assert sorted(mama_structs.testing.__all__) == mama_structs.testing.__all__
    for name in mama_structs.testing.__all__:
        assert getattr(mama_structs.testing, name).__name__ == name
        assert name in dir(mama_structs.testing)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        assert mama_structs.testing.Nothing
