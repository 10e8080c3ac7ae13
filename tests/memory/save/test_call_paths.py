"""Structural limits: a save runs through a limited number of functions, modules and packages."""

import ast
import sys
import threading
from pathlib import Path

from tree_helpers import tree_of

import mama_structs
from mama_structs import HashEmbedder, Session

# Some counted modules serve single features: conflict detection (two), telemetry, records, provenance, offloading,
# hints for wrong calls.
MAX_MODULES_IN_LOOP, MAX_MODULES = 20, 44
MAX_PACKAGES = 7
# Packages that are not counted: values and helpers of all packages, and the session's callback that finds mentions.
NOT_COUNTED = {".", "_internal", "_internal/hints", "memory/types", "session"}
PACKAGE = Path(mama_structs.__file__).parent


def test_decision_parameters_occur_in_few_functions():
    """In the store's method and the tool. All functions in between pass a request object."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if {"supersedes", "reasoning"}
        <= {arg.arg for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    ]

    assert 3 >= len(found), found


async def test_save_runs_through_few_packages_and_modules(tmp_path, monkeypatch):
    """Counted from the store's method to the engine, and in the store's thread to the rows."""
    # Hide OpenTelemetry: if another test has imported it, saves run through additional modules.
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    entered = set()

    def enter(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            entered.add((threading.get_ident(), str(Path(frame.f_code.co_filename).relative_to(PACKAGE))))

    # `threading.setprofile` covers threads that start later, such as the store's thread.
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
            before = await session.memories.save_decision("Use tokens", topic="login", reasoning="stateless")
            entered.clear()
            await session.memories.save_decision(
                "Use sessions", topic="login", reasoning="revocable", supersedes=before.id
            )
            found = set(entered)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    in_the_loop = {module for thread, module in found if thread == threading.get_ident()}

    modules = {module for _, module in found}
    packages = {Path(module).parent.as_posix() for module in modules} - NOT_COUNTED

    assert MAX_PACKAGES >= len(packages), sorted(packages)
    assert MAX_MODULES_IN_LOOP >= len(in_the_loop), sorted(in_the_loop)
    assert MAX_MODULES >= len(modules), sorted(modules)
