"""The generated reference: each public name is in the inventory of the site, and docstrings are complete."""

import ast
import collections
import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# ``nox -s docs`` sets the variable to the inventory of the site that it has built.
INVENTORY_VARIABLE = "MAMA_STRUCTS_TEST_INVENTORY"
NAMES = ROOT / "tests" / "data" / "api_names.tsv"
SECONDS = 900
# The names for authors of adapters and engines have no promise of stability. Hypothesis calls the rules of state
# machines, and the suite calls its drivers, whose protocol is documented.
EXEMPT_MODULES = (
    "mama_structs.spi",
    "mama_structs.testing.machines",
    "mama_structs.testing.conformance.session_driver",
)
# Participles and clauses that were renamed after the list was written.
LATER_RENAMES = {
    *(("World", name) for name in ("of", "given")),
    *(("ModelRequest", "said"), ("ModelRequest", "sent"), ("MemoryMachine", "known"), ("Fault", "cut")),
    ("ItemCount", "found"),
    # Invariants, which Hypothesis calls and shows in its reports.
    *((machine, "what_was_acknowledged_is_there") for machine in ("MemoryMachine", "SessionMachine")),
    ("MemoryMachine", "the_memories_are_those_that_were_acknowledged"),
}


@functools.cache
def reference_pages():
    """Return the Sphinx extension that finds the public names."""
    pytest.importorskip("sphinx", reason="nox -s docs runs the test")
    sys.path.insert(0, str(ROOT / "docs" / "_extensions"))
    try:
        return importlib.import_module("reference_pages")
    finally:
        sys.path.pop(0)


def read_inventory(path):
    """Return the names of all Python objects in an ``objects.inv`` file."""
    head, _, body = path.read_bytes().partition(b"zlib.\n")
    assert b"Sphinx inventory version 2" in head
    lines = zlib.decompress(body).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines if line.split(" ", 2)[1].startswith("py:")}


@pytest.fixture(scope="module")
def inventory(tmp_path_factory):
    """Return the Python names of the site. Build it unless `nox -s docs` has just built it."""
    pytest.importorskip("sphinx", reason="nox -s docs runs the test")
    pytest.importorskip("furo", reason="nox -s docs runs the test")
    built = os.environ.get(INVENTORY_VARIABLE)
    if built is None:
        site = tmp_path_factory.mktemp("site")
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-E",
            "-d",
            str(site / "doctrees"),
            str(ROOT / "docs"),
            str(site),
        ]
        subprocess.run(command, check=True, timeout=SECONDS, env=os.environ | {"PYTHONPATH": str(ROOT)})
        built = str(site / "objects.inv")
    return read_inventory(Path(built))


def read_api_names():
    """Yield the module, the new class name and the new member name of each kept or renamed name."""
    rows = [line.split("\t") for line in NAMES.read_text(encoding="utf-8").splitlines()]
    classes = {
        (module, name): name if action == "move" else new for module, name, member, action, new in rows if not member
    }
    actions = {(module, name): action for module, name, member, action, _ in rows if not member}
    for module, name, member, action, new in rows:
        if action not in ("keep", "rename") or actions[module, name] not in ("keep", "rename", "move"):
            continue
        if (name, member) not in LATER_RENAMES:
            yield module, classes[module, name], new if member else ""


@pytest.mark.once
def test_inventory_has_each_name_of_the_api(inventory):
    """The list was written before the names were implemented, and is independent of the code."""
    endings = collections.defaultdict(set)
    for name in inventory:
        parts = name.split(".")
        for length in (1, 2):
            endings[".".join(parts[-length:])].add(name)
    missing = []
    for module, name, member in read_api_names():
        ending = f"{name}.{member}" if member else name
        found = {full for full in endings[ending] if module != "mama_structs.sync" or full.startswith(f"{module}.")}
        if not found:
            missing.append(f"{module}: {ending}")

    assert [] == missing


@pytest.mark.once
def test_inventory_has_each_member_of_dunder_all(inventory):
    pages = reference_pages()
    modules = pages.read_documented_modules()
    public = {module: pages.load_public_objects(module) for module in modules}
    missing = [
        f"{module}.{name}"
        for module, objects in public.items()
        for name, value in objects.items()
        if not inspect.ismodule(value) and not any(full.endswith(f".{name}") for full in inventory)
    ]

    assert {"mama_structs", "mama_structs.types", "mama_structs.sync", "mama_structs.admin"} <= set(modules)
    assert [] == missing


def test_reference_has_page_for_each_public_module():
    """Adapters and test modules included."""
    modules = set(reference_pages().read_documented_modules())
    adapters = {
        f"mama_structs.adapters.{path.stem}"
        for path in (ROOT / "mama_structs" / "adapters").iterdir()
        if path.stem not in ("__init__", "__pycache__", "shared")
    }

    assert adapters <= modules


# --- docstrings ------------------------------------------------------------------------------------------------------


def public_functions():
    """Return the public functions and methods by full name, which this package defines."""
    pages = reference_pages()
    found = {}
    for module_name in pages.read_documented_modules():
        if module_name in EXEMPT_MODULES:
            continue
        for name, value in pages.load_public_objects(module_name).items():
            if inspect.isfunction(value):
                found[f"{module_name}.{name}"] = value
            elif inspect.isclass(value):
                found |= dict(methods_of(f"{module_name}.{name}", value, pages))
    return {name: function for name, function in found.items() if function.__module__.startswith("mama_structs")}


def methods_of(name, cls, pages):
    """Yield the public methods of a class that implement no interface of another package."""
    for member in pages.list_members(cls):
        home = next((parent for parent in cls.__mro__ if member in vars(parent)), None)
        value = inspect.unwrap(getattr(vars(home)[member], "__func__", vars(home)[member])) if home else None
        foreign = [parent for parent in cls.__mro__ if not parent.__module__.startswith("mama_structs")]
        if inspect.isfunction(value) and not any(member in vars(parent) for parent in foreign):
            yield f"{name}.{member}", value


def describe_gaps(function):
    """
    Return the sections that the docstring of a function lacks.

    A short docstring may name a parameter in emphasis (*limit*), and describe the result in its first sentence.
    A single parameter needs no section of its own if the first sentence is the whole docstring. A docstring may refer
    to the arguments of another method.
    """
    docstring = inspect.getdoc(function)
    if not docstring:
        return ["docstring"]
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls") and not name.startswith("_")]
    _, _, rest = docstring.partition("\n\n")
    gaps = [
        f"Args: {name}" for name in names if not re.search(rf"^\s*\**{name}\b.*?:|\*{name}\*", docstring, re.MULTILINE)
    ]
    is_by_reference = re.search(
        r"\barguments\b.*`\w+`|as `\w+` does|see `\w+`|Run `\w+` and block", docstring, re.DOTALL
    )
    if is_by_reference or (len(names) == 1 and not rest):
        gaps = []
    has_result = str(signature.return_annotation) not in ("None", "NoReturn", "Self", "<class 'inspect._empty'>")
    if (
        has_result
        and not is_by_reference
        and not re.search(r"\b(Returns?|Yields?|returns?|True|The|Iterate)\b", docstring)
    ):
        gaps.append("Returns")
    if raises_directly(function) and not re.search(r"\b(Raises?|raises?)\b", docstring):
        gaps.append("Raises")
    return gaps


def raises_directly(function):
    """Return True if the body of a function contains a `raise` of a new error."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return False
    return any(isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) for node in ast.walk(tree))


def test_public_docstrings_have_args_returns_and_raises():
    """A summary that begins with "Return" describes the result."""
    gaps = {name: found for name, function in public_functions().items() if (found := describe_gaps(function))}

    assert {} == gaps
