"""The architecture page lists all modules, and the package follows rules that import-linter cannot check."""

import ast
import re
from pathlib import Path

from tree_helpers import tree_of

import mama_structs

ROOT = Path(mama_structs.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "internals" / "architecture.md"
MAX_MODULES_OF_PACKAGE = 14
MAX_LINES_OF_MODULE = 900
LOADERS = {"import_module", "load_module", "__import__"}


def imports_of(file):
    """Yield the modules that a file imports, by import statement or by a loader function."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOADERS:
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def test_packages_are_imported_by_one_module_only():
    importers = {"hnswlib": [], "voyager": [], "regex": []}
    for file in ROOT.rglob("*.py"):
        for package in importers.keys() & set(imports_of(file)):
            importers[package].append(file.relative_to(ROOT).as_posix())

    assert {
        "hnswlib": ["memory/engines/local/views/hnsw_libraries.py"],
        "voyager": ["memory/engines/local/views/hnsw_libraries.py"],
        "regex": ["_internal/lazy_import.py"],
    } == importers


def listed_modules():
    """Return the modules that the architecture page lists, by package."""
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| ([^|]*) \|$", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", modules)) for package, modules in rows}


def existing_modules():
    """Return the existing modules by package, except `__init__`."""
    found = {}
    for path in ROOT.rglob("*.py"):
        package = path.parent.relative_to(ROOT).as_posix()
        found.setdefault("mama_structs" if package == "." else package, set()).add(path.stem)
    return {package: modules - {"__init__"} for package, modules in found.items()}


def test_architecture_page_lists_every_module():
    assert existing_modules() == listed_modules()


def test_packages_have_at_most_14_modules():
    sizes = {package: len(modules) for package, modules in existing_modules().items()}

    assert {} == {package: size for package, size in sizes.items() if size > MAX_MODULES_OF_PACKAGE}


def test_modules_have_at_most_900_lines():
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}

    assert {} == {path: size for path, size in sizes.items() if size > MAX_LINES_OF_MODULE}
