"""
Prepare and check a release. docs/internals/releasing.md has all steps.

``check`` lists the reasons that prevent a release. ``switch`` changes the install commands of README.md and docs/ from
a checkout to a package index. ``install DIST`` installs the built package from a local index into a new environment.
"""

from __future__ import annotations

import argparse
import email
import email.message
import functools
import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "mama-structs"
# The words that pages add to an install command before the first release, and the command itself.
CHECKOUT_NOTE = re.compile(
    r"(?: +#)? +in a checkout of the repository(?: \(version \S+ is not on a package index yet\))?"
)
CHECKOUT_COMMAND = re.compile(r"pip install (?P<quote>['\"]?)\.(?=[\s\[`'\"])")
IMPORTS = "import mama_structs as package; [getattr(package, name) for name in package.__all__]"


# --- pages -----------------------------------------------------------------------------------------------------------


def find_pages(root: Path) -> list[Path]:
    """Return the README, the pages and the notebooks for users."""
    pages = [path for kind in ("md", "ipynb") for path in sorted((root / "docs").rglob(f"*.{kind}"))]
    return [root / "README.md", *(path for path in pages if path.parent.name != "internals")]


def switch_text(text: str) -> str:
    """Return the text with commands that install from a package index. Idempotent."""
    text = CHECKOUT_NOTE.sub("", text)
    return CHECKOUT_COMMAND.sub(rf"pip install \g<quote>{NAME}", text)


def switch(root: Path) -> list[Path]:
    """Change the install commands of all pages, and return the changed pages."""
    changed = []
    for page in find_pages(root):
        before = page.read_text(encoding="utf-8")
        after = switch_text(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed


# --- check -----------------------------------------------------------------------------------------------------------


def find_problems(root: Path, *, tag: str | None = None) -> list[str]:
    """Return the reasons that prevent a release under *tag*, each with an instruction."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    version = project["project"]["version"]
    repository = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    problems = []
    if not re.fullmatch(r"https://[^/\s]+(/[^/\s]+)+", repository):
        problems.append(
            f"pyproject.toml has no address of the repository, got {repository!r}. Set `repository` in "
            '[tool.hatch.metadata.hooks.custom] to "https://HOST/OWNER/mama-structs", without a slash at the end.'
        )
    heading = re.search(
        rf"^## \[{re.escape(version)}\] - (.+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    if not heading or not _is_date(heading[1]):
        problems.append(f"CHANGELOG.md has no dated section of this version. Write `## [{version}] - {date.today()}`.")  # noqa: DTZ011
    pages = [page for page in find_pages(root) if switch_text(text := page.read_text("utf-8")) != text]
    if pages:
        problems.append(f"{len(pages)} pages install from a checkout. Run `python scripts/release.py switch`.")
    if tag not in (None, f"v{version}"):
        problems.append(
            f"The tag {tag!r} is not the version {version!r} in pyproject.toml. Tag the release v{version}."
        )
    return problems


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


# --- install ---------------------------------------------------------------------------------------------------------


@contextmanager
def serve_index(distributions: list[Path]) -> Iterator[str]:
    """Serve the files as a package index (PEP 503) on 127.0.0.1, and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "simple" / NAME
        project.mkdir(parents=True)
        for path in distributions:
            (project / path.name).write_bytes(path.read_bytes())
        links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in distributions)
        (project / "index.html").write_text(f"<!doctype html>\n{links}", encoding="utf-8")
        handler = functools.partial(_QuietHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/simple/"
            server.shutdown()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Print nothing."""


def read_metadata(wheel: Path) -> email.message.Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def read_quickstart(readme: str) -> tuple[str, str]:
    """Return the first program of a README and its output."""
    found = re.search(r"```python\n(.*?)```\n+```text output\n(.*?)```", readme, re.DOTALL)
    if found is None:
        raise SystemExit("README.md has no Python block with an output block after it")
    return found[1], found[2]


def install(distributions: Path, python: str, *, extras: bool) -> None:
    """
    Install the wheel from a local index with another interpreter, and run the demo and the README's first program.

    With *extras*, pip also resolves each extra, without installing it.

    Raises:
        SystemExit: A step fails. Its output is printed.

    """
    files = [*distributions.glob("*.whl"), *distributions.glob("*.tar.gz")]
    wheel = next(path for path in files if path.suffix == ".whl")
    metadata = read_metadata(wheel)
    required = f"=={metadata['Version']}"
    # An empty directory, so that neither Python nor pip finds a checkout.
    with serve_index(files) as index, tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        _run([python, "-m", "venv", "venv"], here)
        program = str(here / "venv" / "bin" / "python")
        pip = [program, "-m", "pip", "install", "--quiet", "--extra-index-url", index, "--report", "report.json"]
        _run([*pip, f"{NAME}[semantic]{required}"], here)
        found = next(one for one in _read_report(here) if one["metadata"]["name"] == NAME)
        if not found["download_info"]["url"].startswith(index):
            raise SystemExit(f"pip installed another package of this name: {found['download_info']['url']}")
        _run([program, "-c", IMPORTS], here)
        print(_run([str(here / "venv" / "bin" / NAME), "demo"], here))
        code, expected = read_quickstart(str(metadata.get_payload()))
        printed = _run([program, "-c", code], here)
        if printed != expected:
            raise SystemExit(f"README.md shows\n{expected}\nand its program prints\n{printed}")
        for extra in metadata.get_all("Provides-Extra", []) if extras else ():
            _run([*pip, "--dry-run", f"{NAME}[{extra}]{required}"], here)
            print(f"{NAME}[{extra}]: resolved, {len(_read_report(here))} more packages", flush=True)


def _read_report(folder: Path) -> list[dict[str, dict[str, str]]]:
    packages: list[dict[str, dict[str, str]]] = json.loads((folder / "report.json").read_text("utf-8"))["install"]
    return packages


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="list the reasons that prevent a release")
    checking.add_argument("--tag", help="the tag of the release, which must name the version")
    commands.add_parser("switch", help="let the pages install from a package index")
    installing = commands.add_parser("install", help="install the built package from a local index")
    installing.add_argument("distributions", type=Path, help="the directory with the wheel and the sdist")
    installing.add_argument("--python", default=sys.executable, help="the interpreter of the new environment")
    installing.add_argument("--extras", action="store_true", help="also resolve each extra")
    given = parser.parse_args()
    if given.command == "switch":
        print(*(page.relative_to(ROOT) for page in switch(ROOT)), sep="\n")
    elif given.command == "install":
        install(given.distributions.resolve(), given.python, extras=given.extras)
    elif problems := find_problems(ROOT, tag=given.tag):
        raise SystemExit("\n".join(["This version cannot be released:", *(f"* {one}" for one in problems)]))


if __name__ == "__main__":
    main()
