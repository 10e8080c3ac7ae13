"""How far a reader has to walk: who spells a decision's parameters, and how many modules a save goes through."""

import ast
import sys
import threading
from pathlib import Path

import mama_structs
from mama_structs import HashEmbedder, Session

# Of these, conflict detection has two modules, telemetry one and records one; provenance and the choice between the
# event loop and a thread have one each.
MOST_IN_THE_LOOP, MOST = 18, 39
PACKAGE = Path(mama_structs.__file__).parent


def test_few_functions_spell_the_parameters_of_a_decision():
    """The store's method and the tool; everything between them carries one request."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if {"supersedes", "reasoning"}
        <= {arg.arg for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    ]

    assert 3 >= len(found), found


async def test_a_save_walks_through_few_modules(tmp_path, monkeypatch):
    """Of this package: from the method of the store to the engine, and on the store's thread to the rows and back."""
    # Other tests may have loaded it, and then a save is watched.
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    entered = set()

    def enter(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            entered.add((threading.get_ident(), str(Path(frame.f_code.co_filename).relative_to(PACKAGE))))

    # Threads that start from now on, the store's among them, are looked at as well.
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        async with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
            before = await session.memories.save_decision("login", "Use tokens", "stateless")
            entered.clear()
            await session.memories.save_decision("login", "Use sessions", "revocable", supersedes=before.id)
            found = set(entered)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    in_the_loop = {module for thread, module in found if thread == threading.get_ident()}

    assert MOST_IN_THE_LOOP >= len(in_the_loop), sorted(in_the_loop)
    assert MOST >= len({module for _, module in found}), sorted({module for _, module in found})
