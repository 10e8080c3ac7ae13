"""The package's one door, and which way its modules import each other."""

import ast
import collections
import functools
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

import mama_structs
from mama_structs._internal.lazy_import import homes

ROOT = Path(mama_structs.__file__).parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(ROOT)], "mama_structs.")
    if not module.name.endswith("__main__")
)


@functools.cache
def tree_of(file):
    """A file's syntax tree: several tests read all files."""
    return ast.parse(file.read_text())


def python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


# What a user imports from, with what each needs that only an extra installs.
DOORS = sorted(
    {
        "mama_structs",
        "mama_structs.structs",
        "mama_structs.testing",
        "mama_structs.errors",
        "mama_structs.importers",
        "mama_structs.records",
        "mama_structs.importers.mama_v1",
    }
    | {
        name
        for name in MODULES
        if re.fullmatch(r"mama_structs\.adapters\.(?!_|answers|reading|recalling|schemas)\w+", name)
    }
)
SOURCES = homes("mama_structs", mama_structs._NAMES)


def typed_imports():
    """The names that type checkers see, with their modules."""
    tree = tree_of(ROOT / "__init__.py")
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in guarded.body for alias in node.names if alias.asname == alias.name}


def test_all_is_sorted_and_the_same_everywhere():
    """The public names are in order, and type checkers, the loader and `__all__` agree on them."""
    assert sorted(mama_structs.__all__) == mama_structs.__all__
    assert SOURCES == typed_imports()
    assert mama_structs.__all__ == sorted(SOURCES)


@every_row("name", mama_structs.__all__)
def test_each_public_name_loads_from_its_home(name):
    """A name is the object of the module that defines it, and stays loaded."""
    value = getattr(mama_structs, name)

    assert value is getattr(importlib.import_module(SOURCES[name]), name)
    assert SOURCES[name] == value.__module__
    assert value is vars(mama_structs)[name]
    assert value.__doc__


@pytest.mark.parametrize(("name", "home"), homes("mama_structs", mama_structs._MOVED).items())
def test_a_name_that_moved_loads_with_a_warning(name, home):
    """What stood at the door before is still found, and its warning says where it is now."""
    with pytest.warns(DeprecationWarning, match=rf"^mama_structs\.{name} is now in {re.escape(home)}"):
        value = getattr(mama_structs, name)

    assert value is getattr(importlib.import_module(home), name)
    assert home == value.__module__
    assert name not in mama_structs.__all__


def test_the_doors_are_narrow():
    """At most 40 names at the front door, and 155 at all together, errors apart: each framework has a few."""
    assert 40 >= len(mama_structs.__all__)
    assert 155 >= len({name for door in DOORS if door != "mama_structs.errors" for name in names_of(door)})


def names_of(door):
    """The names that a module exports, without importing it: adapters need what only extras install."""
    path = ROOT.parent.joinpath(*door.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in tree_of(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
            return list(homes(door, ast.literal_eval(node.value)))
    return [node.name for node in tree_of(file).body if hasattr(node, "name") and not node.name.startswith("_")]


def test_other_packages_export_nothing():
    """The `__init__` of a package that is no door holds a docstring and nothing else."""
    packages = {path.parent for path in ROOT.rglob("__init__.py")}
    closed = [
        path for path in packages if ".".join(("mama_structs", *path.relative_to(ROOT).parts)).rstrip(".") not in DOORS
    ]

    assert closed
    assert [] == [path.name for path in closed if len(tree_of(path / "__init__.py").body) > 1]


def test_a_class_name_stands_once():
    """A reader who searches for a class finds one."""
    found = collections.Counter(
        node.name for file in ROOT.rglob("*.py") for node in tree_of(file).body if isinstance(node, ast.ClassDef)
    )

    assert set() == {name for name, count in found.items() if count > 1}


def test_the_embedded_engine_is_chosen_in_one_place():
    """Everything else speaks to the protocol; what tests and measures it stands beside."""
    users = {
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*.py")
        if any(module.startswith("mama_structs.memory.engines.local") for module in imports_of(file))
    }

    assert {"_home.py"} == {user for user in users if not user.startswith(("memory/embedded/", "testing/"))}


def test_opening_a_session_loads_only_what_it_uses(tmp_path):
    """Without `structs=`: nothing of v1.0, no adapter, nothing of the chain, no HTTP client."""
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
        "mama_structs.session.session",
    ]

    assert [] == [name for name in heavy if name in loaded]
    assert {"mama_structs", "mama_structs._internal.lazy_import"} == {
        name for name in loaded if name.startswith("mama_structs")
    }


def test_no_public_name_needs_an_extra():
    """Each name loads without anything that only an extra or the tests install."""
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


def test_values_and_options_load_without_the_network():
    """A session's class, options, settings, schemes and ids need no HTTP client, no index and no database."""
    names = "Session, ReferenceOptions, Settings, IdScheme, EntityId, Resolver, Source, with_references"
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
    for name, value in vars(kind).items():
        if name.startswith("_") and name != "__init__":
            continue
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and function.__module__ == kind.__module__:
            yield function


# Nobody but a type checker reads the hints of these: they are inner works.
UNREADABLE = {f"mama_structs.{name}" for name in ("references.flights", "structs.record", "tools.schema")}
# Their base is Hypothesis's, whose own hints cannot be resolved.
UNREADABLE.add("mama_structs.testing.machines")


@every_row("name", sorted(set(MODULES) - UNREADABLE))
def test_type_hints_resolve(name):
    """`typing.get_type_hints` works on every class, method and function: frameworks read tools that way."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        # Those of the extra `test` are there; the others have an environment of their own, see tests/hosts.
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


# Imports run one way


@functools.cache
def imports_of(path):
    """The modules of ours that a file imports, inside functions too, but not what only type checkers see."""
    return tuple(_imports_of(tree_of(path)))


def _imports_of(tree):
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
                    if alias.name in SOURCES:
                        yield "mama_structs"
                    yield SOURCES.get(alias.name, f"mama_structs.{alias.name}")


def part_of(module):
    """The part of the house that a module belongs to."""
    return [*module.split("."), ""][1]


TOP = {
    "testing",
    "cli",
    "commands",
    "demo",
    "demo_memory",
    "records",
    "sync",
    "__main__",
    "adapters",
    "notebook",
}
# What each part may import from, beside itself.
BASE = {
    "errors",
    "_check",
    "_lru",
    "_budget",
    "_provenance",
    "_control_flow",
    "_offload",
    "_async",
    "_plain",
    "_introspect",
    "_lazy",
    "_shared",
    "_telemetry",
    "_quoting",
    "_showing",
    "settings",
}
ALLOWED = {
    "errors": set(),
    "_lazy": set(),
    "_lru": set(),
    "_budget": set(),
    "_provenance": set(),
    "_control_flow": set(),
    "_offload": {"errors", "_async"},
    "_check": {"errors"},
    "_async": {"errors"},
    "_plain": {"errors"},
    "_introspect": {"errors", "_async"},
    "settings": {"errors", "_check", "_budget"},
    "storage": BASE,
    "references": BASE,
    "descriptors": {*BASE, "storage"},
    "memory": {*BASE, "storage"},
    "tools": {*BASE, "descriptors", "memory"},
    "structs": {*BASE, "references", "tools"},
    "importing": {*BASE, "storage", "memory"},
    "v1": {*BASE, "storage", "memory", "tools", "importing"},
    "_shared": set(),
    "_telemetry": {"errors"},
    "_quoting": set(),
    "_showing": set(),
    "_facade": {"_async", "errors"},
    "_home": {*BASE, "storage", "descriptors", "memory"},
    "composition": {*BASE, "storage", "references", "descriptors", "memory", "tools", "structs"},
}
ALLOWED["recall"] = {"", "_showing"}
ALLOWED["recalling"] = {*BASE, "descriptors", "memory", "tools", "recall"}
ALLOWED["_copying"] = {*ALLOWED["_home"], "_home", "tools"}
ALLOWED["session"] = {"_copying", "recall", "recalling", *ALLOWED["composition"], "composition", "_home", "v1", ""}


@every_row("file", sorted(ROOT.rglob("*.py")))
def test_imports_run_one_way(file):
    """No module imports from a part above its own, not even inside a function, and none through the front door."""
    part = file.relative_to(ROOT).parts[0].removesuffix(".py")
    imported = imports_of(file)

    allowed = ALLOWED.get(part)
    assert allowed is None or [] == [module for module in imported if part_of(module) not in {part, *allowed}]
    assert (
        part in {"__init__", "session", "recall", "v1", "cli", "commands", "demo", "__main__", "testing", "adapters"}
        or "mama_structs" not in imported
    )


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
    assert "mama_structs" in imports_of(ROOT / "session.py")


def test_no_module_of_the_core_needs_an_extra():
    """Only the parts for tests and adapters import what an extra installs."""
    extras = re.compile(r"^\s*(?:import|from) (?:hypothesis|pytest|pydantic|jsonschema)\b", re.MULTILINE)
    core = [
        file
        for file in ROOT.rglob("*.py")
        if file.relative_to(ROOT).parts[0] not in {"testing", "adapters", "notebook"}
    ]

    assert [] == [file.name for file in core if extras.search(file.read_text())]


def test_no_log_takes_an_errors_text_along():
    """The traceback that logging adds by itself ends with the error's text, which may be content."""
    calls = [
        f"{file.name}:{node.lineno}"
        for file in ROOT.rglob("*.py")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id in {"_log", "_logger", "logging"}
        if node.func.attr == "exception" or any(one.arg == "exc_info" for one in node.keywords)
    ]

    assert [] == calls
