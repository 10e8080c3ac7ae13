"""Public names, lazy loading, and the import rules of the package."""

import ast
import collections
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from row_helpers import every_row
from tree_helpers import tree_of

import mama_structs

ROOT = Path(mama_structs.__file__).parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(ROOT)], "mama_structs.")
    if not module.name.endswith("__main__")
)


def python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


# All public modules, including the adapters, which need extras.
PUBLIC_MODULES = sorted(
    {
        "mama_structs",
        "mama_structs.admin",
        "mama_structs.embedders",
        "mama_structs.errors",
        "mama_structs.importers",
        "mama_structs.notebook",
        "mama_structs.settings",
        "mama_structs.sources",
        "mama_structs.spi",
        "mama_structs.structs",
        "mama_structs.sync",
        "mama_structs.testing",
        "mama_structs.types",
    }
    | {name for name in MODULES if re.fullmatch(r"mama_structs\.adapters\.(?!shared)\w+", name)}
)
# Names of these modules do not count: one per error, and building blocks without a promise of stability.
UNCOUNTED = {"mama_structs.errors", "mama_structs.spi"}


def typed_imports(door):
    """Return the names that a package's stub exports to type checkers, with their modules."""
    tree = tree_of(ROOT.parent.joinpath(*door.split("."), "__init__.pyi"))
    return {
        alias.asname: f"{door}.{node.module}"
        for node in tree.body
        if node.module is not None
        for alias in node.names
        if alias.asname == alias.name
    }


SOURCES = typed_imports("mama_structs")


def test_dunder_all_is_sorted_and_equal_for_loader_and_type_checkers():
    assert sorted(mama_structs.__all__) == mama_structs.__all__
    assert mama_structs.__all__ == sorted(SOURCES)


@every_row("name", mama_structs.__all__)
def test_public_name_loads_from_its_module_and_stays_loaded(name):
    value = getattr(mama_structs, name)

    assert value is getattr(importlib.import_module(SOURCES[name]), name)
    assert SOURCES[name] == value.__module__
    assert value is vars(mama_structs)[name]
    assert value.__doc__


def test_number_of_public_names_is_limited():
    """40 names at the top level, and 250 in all public modules, without errors and building blocks."""
    names = {name for door in PUBLIC_MODULES if door not in UNCOUNTED for name in names_of(door)}

    assert 40 >= len(mama_structs.__all__)
    assert 250 >= len(names)


def names_of(door):
    """Return the exported names of a module. The module is not imported, because adapters need extras."""
    path = ROOT.parent.joinpath(*door.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in tree_of(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
        if isinstance(node, ast.Assign) and "make_lazy_exports(__name__)" == ast.unparse(node.value):
            return list(typed_imports(door))
    return [node.name for node in tree_of(file).body if hasattr(node, "name") and not node.name.startswith("_")]


def test_other_packages_export_nothing():
    packages = {path.parent for path in ROOT.rglob("__init__.py")}
    closed = [
        path
        for path in packages
        if ".".join(("mama_structs", *path.relative_to(ROOT).parts)).rstrip(".") not in PUBLIC_MODULES
    ]

    assert closed
    # The package `testing.strategies` exports names, but is not in PUBLIC_MODULES, because it needs the extra with Hypothesis.
    closed.remove(ROOT / "testing" / "strategies")
    assert [] == [path.name for path in closed if len(tree_of(path / "__init__.py").body) > 1]


def test_class_names_are_unique():
    found = collections.Counter(
        node.name for file in ROOT.rglob("*.py") for node in tree_of(file).body if isinstance(node, ast.ClassDef)
    )

    assert set() == {name for name, count in found.items() if count > 1}


def test_opening_session_loads_only_what_it_uses(tmp_path):
    """Without `structs=`: no v1.0 tools, no adapter, no chain, and no HTTP client."""
    code = (
        "import asyncio, sys\n"
        "from mama_structs import Session\n"
        "async def main():\n"
        f"    async with Session.open({str(tmp_path / 'a.mama')!r}) as session:\n"
        "        await session.memories.save_context('the shield holds')\n"
        "asyncio.run(main())\n"
        "print(*sys.modules)"
    )
    loaded = set(python(code).split())
    left = (
        "mama_structs.importers.mama_v1",
        "mama_structs.adapters",
        "mama_structs.structs",
        "mama_structs.tools.deprecated",
    )

    assert "mama_structs.memory.store.memory_store" in loaded
    assert [] == [name for name in loaded if name.startswith((*left, "aiohttp"))]


# Adapters need extras, so they are imported by their own names.
SUBMODULES = sorted(name.split(".")[1] for name in PUBLIC_MODULES if name.count(".") == 1)


def test_type_checkers_know_every_public_submodule():
    tree = tree_of(ROOT / "__init__.pyi")
    listed = [alias.asname for node in tree.body if node.module is None for alias in node.names]

    assert SUBMODULES == listed


def test_public_submodules_are_loaded_when_they_are_used():
    """Without an import of their own."""
    code = (
        "import sys, mama_structs\n"
        f"for name in {SUBMODULES}:\n"
        "    assert f'mama_structs.{name}' in sys.modules or name not in vars(mama_structs)\n"
        "    assert getattr(mama_structs, name) is sys.modules[f'mama_structs.{name}']\n"
        "print(mama_structs.sync.Session.__name__, mama_structs.admin.check.__name__)"
    )

    assert "Session check\n" == python(code)


def test_dir_lists_public_names():
    assert mama_structs.__all__ == dir(mama_structs)


@pytest.mark.parametrize("name", ["NoSuchName", "resolver_", "__path_", "Fleet"])
def test_unknown_name_raises_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'mama_structs' has no attribute '{name}'"):
        getattr(mama_structs, name)


def test_from_import_of_unknown_name_raises_import_error():
    with pytest.raises(ImportError, match="Nothing"):
        from mama_structs import Nothing  # noqa: F401, PLC0415 - the import must fail


def test_importing_package_loads_nothing_heavy():
    """Only the lazy loader is imported."""
    loaded = set(python("import sys, mama_structs; print(*sys.modules)").split())
    heavy = [
        "aiohttp",
        "numpy",
        "hnswlib",
        "voyager",
        "msgspec",
        "cattrs",
        "attrs",
        "attr",
        "diskcache",
        "hypothesis",
        "pytest",
        "pydantic",
        "asyncio",
        "mama_structs.session.session",
    ]

    assert [] == [name for name in heavy if name in loaded]
    assert {"mama_structs", "mama_structs._internal", "mama_structs._internal.lazy_import"} == {
        name for name in loaded if name.startswith("mama_structs")
    }


def test_public_names_need_no_extra():
    code = (
        "import sys\n"
        "import mama_structs\n"
        "sys.modules.update(dict.fromkeys(['hypothesis', 'pytest', 'pydantic', 'jsonschema']))\n"
        "for name in mama_structs.__all__:\n"
        "    try:\n"
        "        getattr(mama_structs, name)\n"
        "    except ImportError as error:\n"
        "        print(name, error)\n"
    )

    assert "" == python(code)


def test_values_and_options_load_without_network_modules():
    names = "Session, ReferenceOptions, Settings, IdScheme, EntityId, Resolver, Source, with_references"
    loaded = set(python(f"import sys; from mama_structs import {names}; print(*sys.modules)").split())

    assert [] == [
        name for name in ("aiohttp", "numpy", "hnswlib", "voyager", "msgspec", "cattrs", "diskcache") if name in loaded
    ]


def test_package_has_py_typed():
    assert (ROOT / "py.typed").exists()


# Type hints of public objects


def public_objects(module):
    for name, value in vars(module).items():
        if (
            not name.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
            and (inspect.isclass(value) or inspect.isfunction(value))
        ):
            yield value


def functions_of(kind):
    for name, value in vars(kind).items():
        if name.startswith("_") and name != "__init__":
            continue
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and function.__module__ == kind.__module__:
            yield function


# These internal modules contain type hints that only type checkers can resolve.
UNREADABLE = {f"mama_structs.{name}" for name in ("references.inflight", "tools.schema")}
# A class of this module derives from a Hypothesis class whose hints cannot be resolved.
UNREADABLE.add("mama_structs.testing.machines")


@every_row("name", sorted(set(MODULES) - UNREADABLE))
def test_type_hints_resolve(name):
    """Frameworks read the hints of tools with `typing.get_type_hints`."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        # Extras other than `test` are installed in their own environments, where tests/hosts checks these modules.
        is_elsewhere = re.search(
            r"mama-structs\[(langgraph|google-adk|haystack|claude|agent-f|pydantic-ai-h)", str(error)
        )
        if is_elsewhere is None:
            raise
        return
    for value in public_objects(module):
        assert isinstance(typing.get_type_hints(value), dict)
        for function in functions_of(value) if inspect.isclass(value) else ():
            assert isinstance(typing.get_type_hints(function), dict), function.__qualname__


def test_core_modules_need_no_extra():
    extras = re.compile(r"^\s*(?:import|from) (?:hypothesis|pytest|pydantic|jsonschema)\b", re.MULTILINE)
    core = [
        file
        for file in ROOT.rglob("*.py")
        if file.relative_to(ROOT).parts[0] not in {"testing", "adapters", "notebook"}
    ]

    assert [] == [file.name for file in core if extras.search(file.read_text())]


def test_logs_do_not_contain_error_texts():
    """The traceback of `logging` ends with the error's text, which may be content."""
    calls = [
        f"{file.name}:{node.lineno}"
        for file in ROOT.rglob("*.py")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id in {"_log", "_logger", "logging"}
        if node.func.attr == "exception" or any(one.arg == "exc_info" for one in node.keywords)
    ]

    assert [] == calls
