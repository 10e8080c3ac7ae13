"""How far a reader has to walk: who spells a decision's parameters."""

import ast
from pathlib import Path

import mama_structs

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
