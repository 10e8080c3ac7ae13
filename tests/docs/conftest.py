"""
Runs the Python blocks of a Markdown page in order, and compares their output with the page.

The blocks of a page share one namespace and one event loop. Each runs in its own context, like a notebook cell.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import gc
import inspect
import io
import ipaddress
import re
import sys
import tempfile
import textwrap
import types
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from postgres_helpers import database, postgres, prepared

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SECONDS = 600.0

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_PYTHON_NAMES = frozenset({"py", "python", "python3", "pycon", "ipython"})


class PageError(AssertionError):
    """A documentation page contains an error. The message starts with its file and line."""


@attrs.frozen
class Block:
    """A fenced code block of a page: its info string, its text and its line number."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split()[0].lower() if self.info else ""

    @property
    def is_output(self) -> bool:
        return self.info in ("text output", "json output")

    def wrong(self, what: str) -> PageError:
        name = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return PageError(f"{name}:{self.line}: {what}")


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    blocks: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        matched = _FENCE.match(line)
        if opened is None:
            if matched:
                if matched["indent"]:
                    raise PageError(f"{page}:{number}: an indented fence is not looked at: take it to the margin")
                opened, lines = (number, matched["marks"], matched["info"].strip()), []
        elif matched and matched["marks"] == opened[1] and not matched["info"].strip():
            blocks.append(Block(page, opened[0], opened[2], "".join(f"{text}\n" for text in lines)))
            opened = None
        else:
            lines.append(line)
    if opened is not None:
        raise PageError(f"{page}:{opened[0]}: the block is never closed")
    return blocks


def needed_by(page: Path) -> list[str]:
    """Return the modules that a page needs, from its first line ``<!-- needs: one, another -->``."""
    said = re.match(r"<!-- needs: (.+) -->$", page.read_text(encoding="utf-8").partition("\n")[0])
    return [] if said is None else [name.strip() for name in said[1].split(",")]


def check_block(block: Block) -> None:
    """Reject a Python block that would not be executed, or that has no effect."""
    if block.language in _PYTHON_NAMES and block.info != "python":
        raise block.wrong(f"a Python block is tagged exactly `python`, got `{block.info}`")
    if block.info != "python":
        return
    for node in ast.walk(_parse(block)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis:
            raise block.wrong("`...` does nothing: write what runs")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if all(isinstance(statement, ast.Pass) for statement in body):
                raise block.wrong(f"{node.name} does nothing: write what runs")


def _parse(block: Block) -> ast.Module:
    try:
        return ast.parse(block.text)
    except SyntaxError as error:
        raise block.wrong(f"is no Python: {error}") from error


def matches(shown: str, printed: str) -> bool:
    """Return True if the output matches the page. A line ``...`` of the page matches any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"[ \t]*\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else printed + "\n") is not None


def run_page(page: Path) -> int:
    """
    Run a page, and return the number of its Python blocks.

    Raises:
        PageError: A block fails, warns, prints other output than the page shows, connects to another host,
            or leaves a resource open.

    """
    blocks = blocks_of(page)
    for block in blocks:
        check_block(block)
    for before, block in pairwise([None, *blocks]):
        if block.is_output and (before is None or before.info != "python"):
            raise block.wrong("an output block must follow the Python block that prints it")
    python = [(block, following) for block, following in pairwise([*blocks, None]) if block.info == "python"]
    if not python:
        return 0
    name = f"docs_{re.sub('[^a-z0-9]', '_', page.stem.lower())}"
    # Register the module, because dataclasses and typing.get_type_hints look it up in sys.modules.
    sys.modules[name] = module = types.ModuleType(name)
    left: list[str] = []
    # Collect the garbage of earlier tests, so that it does not count as resources that the page leaves open.
    gc.collect()
    hook, sys.unraisablehook = sys.unraisablehook, lambda raised: left.append(f"{raised.exc_value!r}")
    try:
        with warnings.catch_warnings(), _loopback_only(), asyncio.Runner() as runner:
            warnings.simplefilter("error")
            for block, following in python:
                printed = _run_block(block, module.__dict__, runner)
                shown = following.text if following is not None and following.is_output else ""
                if not matches(shown, printed):
                    raise block.wrong(f"printed\n{_indented(printed)}\nand the page shows\n{_indented(shown)}")
            tasks = asyncio.all_tasks(runner.get_loop())
            module.__dict__.clear()
            gc.collect()
        if tasks or left:
            raise python[-1][0].wrong(f"the page leaves something open: {[*left, *map(repr, tasks)]}")
    finally:
        # Release the resources of a failed page, so that they do not affect the next page.
        module.__dict__.clear()
        gc.collect()
        sys.unraisablehook = hook
        del sys.modules[name]
    return len(python)


def _run_block(block: Block, namespace: dict[str, Any], runner: asyncio.Runner) -> str:
    # Leading blank lines give the code the line numbers of the page, so that tracebacks point into it.
    source = "\n" * block.line + block.text
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    function = types.FunctionType(code, namespace)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:

                async def within_time() -> None:
                    async with asyncio.timeout(SECONDS):
                        await function()

                runner.run(within_time(), context=contextvars.copy_context())
            else:
                contextvars.copy_context().run(function)
    except Exception as error:
        raise block.wrong(f"raised {type(error).__name__}: {error}") from error
    return printed.getvalue()


def _indented(text: str) -> str:
    return textwrap.indent(text or "(nothing)\n", "    ", lambda _: True)


# --- network ---------------------------------------------------------------------------------------------------------

_guarded = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guarded:
        return
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and not _is_loopback(address[0]):
            raise PageError(f"a block connects to {address[0]}: pages need no network")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not _is_loopback(arguments[0]):
        raise PageError(f"a block looks {arguments[0]} up: pages need no network")


def _is_loopback(host: object) -> bool:
    if host in ("localhost", b"localhost", None, "", "0.0.0.0"):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


sys.addaudithook(_audit)


@contextlib.contextmanager
def _loopback_only() -> Any:
    global _guarded  # noqa: PLW0603 - an audit hook cannot be removed, only disabled
    _guarded = True
    try:
        yield
    finally:
        _guarded = False


__all__ = ["database", "postgres", "prepared"]

# --- fixtures: with `--import-mode=importlib`, test modules cannot import shared code ---------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that has an argument *page* once for every page."""
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory shared by all documentation pages, whose examples run one after the other."""
    return tmp_path_factory.mktemp("here")


@pytest.fixture
def docs(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> types.SimpleNamespace:
    """Provide the functions of this module to a test, which runs in the shared working directory."""
    monkeypatch.chdir(here)
    if "page" in request.fixturenames:
        for name in needed_by(request.getfixturevalue("page")):
            pytest.importorskip(name, reason=f"the page needs {name}: nox -s hosts runs it")
    if "page" in request.fixturenames and request.getfixturevalue("page").name == "processes-and-postgresql.md":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("database"))
    # Create the temporary directories of a page in the temporary directory of its test.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return types.SimpleNamespace(
        root=ROOT,
        here=here,
        pages=PAGES,
        run_page=run_page,
        blocks_of=blocks_of,
        check_block=check_block,
        needed_by=needed_by,
        PageError=PageError,
    )
