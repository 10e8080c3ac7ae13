"""Import rules that import-linter cannot check, because it does not see imports by name."""

import ast
from pathlib import Path

import pytest

import mama_structs

ROOT = Path(mama_structs.__file__).parent
LOADERS = {"import_module", "load_module", "__import__"}


def imports_of(file):
    """Yield the modules that a file imports, by statement or by name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOADERS:
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


@pytest.mark.parametrize(
    ("package", "importer"),
    [("hnswlib", "memory/engines/local/views/hnsw.py"), ("regex", "_internal/lazy_import.py")],
)
def test_package_is_imported_by_one_module_only(package, importer):
    importers = [file for file in ROOT.rglob("*.py") if package in imports_of(file)]

    assert [importer] == [file.relative_to(ROOT).as_posix() for file in importers]
