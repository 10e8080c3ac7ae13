"""The package's one door, and which way its modules import each other."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

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


def typed_imports():
    """The names that type checkers see, with their modules."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in guarded.body for alias in node.names if alias.asname == alias.name}


def test_all_is_sorted_and_the_same_everywhere():
    """The public names are in order, and type checkers, the loader and `__all__` agree on them."""
    assert sorted(mama_structs.__all__) == mama_structs.__all__
    assert mama_structs._SOURCES == typed_imports()
    assert mama_structs.__all__ == sorted(mama_structs._SOURCES)


@pytest.mark.parametrize("name", mama_structs.__all__)
def test_each_public_name_loads_from_its_home(name):
    """A name is the object of the module that defines it, and stays loaded."""
    value = getattr(mama_structs, name)

    assert value is getattr(importlib.import_module(mama_structs._SOURCES[name]), name)
    assert mama_structs._SOURCES[name] == value.__module__
    assert value is vars(mama_structs)[name]
    assert value.__doc__


def test_dir_lists_the_public_names():
    """What can be completed is what is public."""
    assert mama_structs.__all__ == dir(mama_structs)


@pytest.mark.parametrize("name", ["NoSuchName", "resolver_", "__path_", "Fleet"])
def test_another_name_is_an_attribute_error(name):
    """A name that does not exist says so in the usual words."""
    with pytest.raises(AttributeError, match=f"module 'mama_structs' has no attribute '{name}'"):
        getattr(mama_structs, name)


def test_from_import_of_an_unknown_name_is_an_import_error():
    """The usual statement fails in the usual way."""
    with pytest.raises(ImportError, match="Nothing"):
        from mama_structs import Nothing  # noqa: F401, PLC0415 - it must not be there


def test_importing_the_package_loads_nothing_heavy():
    """`import mama_structs` loads no dependency and none of its own modules but the loader."""
    loaded = set(python("import sys, mama_structs; print(*sys.modules)").split())
    heavy = [
        "aiohttp",
        "numpy",
        "hnswlib",
        "msgspec",
        "cattrs",
        "attrs",
        "attr",
        "diskcache",
        "hypothesis",
        "pytest",
        "pydantic",
        "asyncio",
        "mama_structs.session",
    ]

    assert [] == [name for name in heavy if name in loaded]
    assert {"mama_structs", "mama_structs._lazy"} == {name for name in loaded if name.startswith("mama_structs")}


@pytest.mark.parametrize("name", mama_structs.__all__)
def test_no_public_name_needs_an_extra(name):
    """Each name loads without anything that only an extra or the tests install."""
    code = f"import sys; sys.modules.update(dict.fromkeys(['hypothesis', 'pytest', 'pydantic', 'jsonschema'])); from mama_structs import {name}"

    assert "" == python(code)


def test_values_and_options_load_without_the_network():
    """Options, settings, schemes and ids need no HTTP client and no index."""
    names = "ReferenceOptions, Settings, IdScheme, EntityId, Resolver, Source, with_references"
    loaded = set(python(f"import sys; from mama_structs import {names}; print(*sys.modules)").split())

    assert [] == [name for name in ("aiohttp", "numpy", "hnswlib", "msgspec", "cattrs", "diskcache") if name in loaded]


def test_the_package_says_that_it_is_typed():
    """Type checkers read the annotations of a package with this file."""
    assert (ROOT / "py.typed").exists()


# Type hints


def public_objects(module):
    for name, value in vars(module).items():
        if (
            not name.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
            and (inspect.isclass(value) or inspect.isfunction(value))
        ):
            yield value


def functions_of(kind):
    for value in vars(kind).values():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and function.__module__ == kind.__module__:
            yield function


# Nobody but a type checker reads the hints of these: they are inner works, or made by Hypothesis's own decorator.
UNREADABLE = {
    f"mama_structs.{name}"
    for name in ("references.flights", "structs.record", "tools.schema", "testing._planting", "testing._ref_documents")
}


@pytest.mark.parametrize("name", sorted(set(MODULES) - UNREADABLE))
def test_type_hints_resolve(name):
    """`typing.get_type_hints` works on every class, method and function: frameworks read tools that way."""
    module = importlib.import_module(name)
    for value in public_objects(module):
        assert isinstance(typing.get_type_hints(value), dict)
        for function in functions_of(value) if inspect.isclass(value) else ():
            assert isinstance(typing.get_type_hints(function), dict), function.__qualname__


# Imports run one way


def imports_of(path):
    """The modules of ours that a file imports, inside functions too, but not what only type checkers see."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and "TYPE_CHECKING" in ast.unparse(guard.test)
        for node in ast.walk(guard)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("mama_structs"))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not used"
            if node.module.split(".")[0] == "mama_structs":
                if node.module != "mama_structs":
                    yield node.module
                for alias in node.names if node.module == "mama_structs" else ():
                    if alias.name in mama_structs._SOURCES:
                        yield "mama_structs"
                    yield mama_structs._SOURCES.get(alias.name, f"mama_structs.{alias.name}")


def part_of(module):
    """The part of the house that a module belongs to."""
    return [*module.split("."), ""][1]


TOP = {
    "testing",
    "cli",
    "demo",
    "__main__",
    "adapters",
    "notebook",
}
# What each part may import from, beside itself.
BASE = {"errors", "_check", "_lru", "_async", "_plain", "_introspect", "_lazy", "settings"}
ALLOWED = {
    "errors": set(),
    "_lazy": set(),
    "_lru": set(),
    "_check": {"errors"},
    "_async": {"errors"},
    "_plain": {"errors"},
    "_introspect": {"errors"},
    "settings": {"errors", "_check"},
    "storage": BASE - {"settings"},
    "references": BASE,
    "descriptors": {*BASE, "storage"},
    "memory": {*BASE, "storage"},
    "tools": {*BASE, "descriptors", "memory"},
    "structs": {*BASE, "references", "tools"},
    "v1": {*BASE, "memory", "tools"},
    "directories": {*BASE, "storage", "descriptors", "memory"},
    "composition": {*BASE, "storage", "references", "descriptors", "memory", "tools", "structs", "directories"},
}
ALLOWED["session"] = {*ALLOWED["composition"], "composition", "v1"}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_one_way(file):
    """No module imports from a part above its own, not even inside a function, and none through the front door."""
    part = file.relative_to(ROOT).parts[0].removesuffix(".py")
    imported = list(imports_of(file))

    allowed = ALLOWED.get(part)
    assert allowed is None or [] == [module for module in imported if part_of(module) not in {part, *allowed}]
    assert part in {"__init__", "cli", "demo", "__main__", "testing", "adapters"} or "mama_structs" not in imported


def test_the_rules_of_imports_know_every_part():
    """A new part of the house must be given its place here."""
    parts = {
        path.stem
        for path in ROOT.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }

    assert set() == parts - set(ALLOWED) - TOP - {"__init__"}


def test_the_scan_of_imports_sees_imports():
    """The rules above are read from files that do import each other."""
    assert "mama_structs.errors" in imports_of(ROOT / "settings.py")
    assert "mama_structs.structs.source" in imports_of(ROOT / "session.py")


def test_no_module_of_the_core_needs_an_extra():
    """Only the parts for tests and adapters import what an extra installs."""
    extras = re.compile(r"^\s*(?:import|from) (?:hypothesis|pytest|pydantic|jsonschema)\b", re.MULTILINE)
    core = [
        file
        for file in ROOT.rglob("*.py")
        if file.relative_to(ROOT).parts[0] not in {"testing", "adapters", "notebook"}
    ]

    assert [] == [file.name for file in core if extras.search(file.read_text())]
