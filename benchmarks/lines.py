"""Number of modules, lines and lines of code in each package of mama_structs, compared with a commit."""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from _common import RESULTS, report

ROOT = Path(__file__).parents[1]
PACKAGE = "mama_structs"
BEFORE = "561ec94"
FIGURES = ("modules", "lines", "code", "largest", "data")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(text: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
            continue
        lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def count(text: str) -> tuple[int, int]:
    """Return the number of lines, and of lines that are not blank, a comment or part of a docstring."""
    lines = text.splitlines()
    documented = docstring_lines(text)
    code = sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented
        for number, line in enumerate(lines, 1)
    )
    return len(lines), code


def checkout() -> Iterator[tuple[str, bytes]]:
    for path in sorted((ROOT / PACKAGE).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_bytes()


def commit(revision: str) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and contents of a commit's files. Yield nothing if git or the commit is missing."""
    command = ["git", "-C", str(ROOT), "archive", revision, PACKAGE]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        return
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                yield member.name, file.read()


def sizes(files: Iterator[tuple[str, bytes]]) -> dict[str, dict[str, int]]:
    """Return the figures of each package: modules, lines, code, lines of the largest module, and bytes of data."""
    parts: dict[str, dict[str, int]] = {}
    for name, content in files:
        package = "/".join(name.split("/")[1:-1])
        for part in (package or "(top)", "all"):
            own = parts.setdefault(part, dict.fromkeys(FIGURES, 0))
            if name.endswith(".py"):
                lines, code = count(content.decode())
                own["modules"] += not name.endswith("__init__.py")
                own["lines"] += lines
                own["code"] += code
                own["largest"] = max(own["largest"], lines)
            elif not name.endswith((".pyi", "py.typed")):
                own["data"] += len(content)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE, help="the commit to compare with (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that it works")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the JSON (%(default)s)")
    options = parser.parse_args()
    some = 20 if options.quick else None
    now, before = (sizes(itertools.islice(files, some)) for files in (checkout(), commit(options.before)))
    none = dict.fromkeys(FIGURES, 0)
    rows = []
    for part in sorted(now | before, key=lambda name: (name == "all", name)):
        old, new = before.get(part, none), now.get(part, none)
        changed = [f"{old[name]} -> {new[name]}" if before else str(new[name]) for name in FIGURES[:4]]
        rows.append([part, *changed, f"{new['data'] / 1024:.0f} KiB"])
    title = f"{PACKAGE}/ at {options.before} and now" if before else f"{PACKAGE}/ now"
    header = ["package", "modules", "lines", "code", "largest module", "data files"]
    report("lines", title, header, rows, figures={"before": before, "now": now}, folder=options.results, words=1)


if __name__ == "__main__":
    main()
