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
    # Use a separate temporary root, because concurrent test runs delete each other's files in the default root.
    environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(cwd)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_node_fixture_works_in_sync_test(mama_structs_node):
    with urllib.request.urlopen(f"{mama_structs_node.url}/structs/player/1-11", timeout=600) as answer:
        assert "1-11" == json.load(answer)["Player"]["id"]

    assert 1 == mama_structs_node.count("1-11")


async def test_node_fixture_works_in_async_test(mama_structs_node):
    """The fixture does not share the test's event loop."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{mama_structs_node.url}/structs/player/1-11") as answer,
    ):
        assert "1-11" == (await answer.json())["Player"]["id"]


@pytest.mark.mama_structs_node(seed=5, players=20, height=7)
def test_node_marker_sets_world_and_options(mama_structs_node):
    assert 22 == len(mama_structs_node.data.ids("player"))
    assert 7 == mama_structs_node.height


@pytest.mark.mama_structs_node(entities={"1-11": {"id": "1-11"}})
def test_node_marker_sets_exact_entities(mama_structs_node):
    assert ["1-11"] == mama_structs_node.data.ids("player")


def test_plugin_works_without_pytest_asyncio_and_registers_marker(tmp_path):
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
    "(colour='red')": "FakeNode() has no 'colour'. It takes",
    "(players=3)": "players must be 12 or more, got 3",
    "(latency=-1)": "latency must be 0 or more seconds",
}


async def test_session_fixture_is_async_in_async_test(mama_session, mama_clock):
    """It is open, has a directory, and uses the fake clock."""
    first = await mama_session.memories.save_context("the shield holds")
    mama_clock.advance(3_600)
    second = await mama_session.memories.save_context("the shield fell")
    await mama_session.observe('<ref id="a">x</ref>')

    assert 3_600 == (second.created_at - first.created_at).total_seconds()
    assert 2026 == second.created_at.year == mama_session.refs.get("a").created_at.year
    assert mama_session.location.is_dir()


def test_session_fixture_is_sync_in_sync_test(mama_session, mama_clock):
    """The clock may be set back."""
    first = mama_session.memories.save_context("the shield holds")
    mama_clock.step(-60)

    assert -60 == (mama_session.memories.save_context("it fell").created_at - first.created_at).total_seconds()


@pytest.mark.mama_session(namespace="bob")
async def test_session_marker_sets_options(mama_session):
    assert "bob" == mama_session.memories.namespace


@pytest.mark.parametrize(
    ("options", "mark"),
    [(["-p", "no:anyio"], "pytest.mark.asyncio"), (["-p", "no:asyncio"], "pytest.mark.anyio")],
    ids=["pytest-asyncio, strict", "anyio"],
)
def test_session_fixture_works_with_every_async_plugin(tmp_path, options, mark):
    """Neither mode nor plugin needs configuration."""
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


def test_invalid_marker_is_a_usage_error(tmp_path):
    """The error is one line."""
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


def test_plugin_imports_only_its_own_modules(tmp_path):
    """Every pytest run of every user loads the plugin."""
    (tmp_path / "test_it.py").write_text("import sys\n\n\ndef test_it():\n    print(*sys.modules)\n")
    ours = {
        "mama_structs",
        "lazy_loader",
        "mama_structs._internal",
        "mama_structs._internal.lazy_import",
        "mama_structs.testing",
        "mama_structs.testing.pytest_plugin",
    }

    def loaded(*options):
        # Disable other installed plugins, because they may import modules of this package.
        others = [argument for name in ("asyncio", "anyio", "hypothesispytest") for argument in ("-p", f"no:{name}")]
        result = run("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *others, *options, cwd=tmp_path)
        return set(result.stdout.splitlines()[0].split())

    assert ours == loaded() - loaded("-p", "no:mama_structs")


def test_testing_package_imports_names_lazily(tmp_path):
    code = "import sys, mama_structs.testing; print(sorted(m for m in sys.modules if m.startswith('mama_structs.testing.')))"
    result = run("-c", code, cwd=tmp_path)

    assert "[]" == result.stdout.strip()
    assert sorted(mama_structs.testing.__all__) == mama_structs.testing.__all__
    for name in mama_structs.testing.__all__:
        assert getattr(mama_structs.testing, name).__name__ == name
        assert name in dir(mama_structs.testing)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        assert mama_structs.testing.Nothing
