"""
Count wording that needs a rewrite, and fail if a count is higher than the recorded one.

``python scripts/check_prose.py`` compares the package, tests, benchmarks and scripts with ``scripts/check_prose.json``.
``--update`` writes lower counts to that file. ``--list KIND`` prints the hits of one kind, and ``--sample N`` prints N
random docstrings and comments to judge by hand. A text without a hit can still be unreadable.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOTS = (Path("mama_structs"), Path("tests"), Path("benchmarks"), Path("scripts"))
LIMITS = Path(__file__).with_suffix(".json")
MAX_TEST_NAME_CHARS = 79
TEXTS = frozenset({"docstrings", "comments"})
TOOL_COMMENT = re.compile(r"(noqa|ruff|type:|pragma|mypy|pyright)")
# Matches texts that begin with a vague pronoun, or with a question word as a noun ("What a newcomer forgets").
LEAD = re.compile(r"^(What|Who|Whose|Whether|How|Where|Which|Whatever|Whoever|Those|Of|Tell whether|Say|Let)\b")
PHRASES = re.compile(
    r"\b(anew|likewise|thereof|whoever|whatever|whichever|nobody|somebody|everybody|by itself|of (its|their) own|"
    r"at the (most|least)|so many|so much|as far as|of which|in (its|their) place|"
    r"what (is|was|are|were|stands|holds|comes|has|had)|those (that|of|which|who)|told|tells?|stands?|"
    r"holds? (true|still)|comes? to be|again is no error|let go|is gone|"
    r"each once|beside|save for|mend(ed|s)?|refuse[sd]?|the one that|one (that|of)|that there (is|are)|"
    r"there is none)\b",
    re.IGNORECASE,
)
# Matches constant names that consist only of an adjective, pronoun, participle or superlative.
BARE = re.compile(
    r"^_?(FEW|MUCH|MANY|MOST|LEAST|SOME|NONE|NOTHING|LONGEST|LARGEST|SHORTEST|DEEPEST|SURE|LIKELY|NEAR|FAR|READ|SAID|"
    r"TOLD|NAMED|SHOWN|FOUND|KNOWN|GIVEN|COMMON|ALIKE|TOGETHER|ALONE|BEHIND|BESIDE|NEXT|OURS|THEIRS|FORGOTTEN|"
    r"COMPARED|TRIES|"
    r"PLACE|PAGE|MORE|LESS|WHOLE|OTHER|SAME|AT_ONCE|UNSAID|ASKED|WANTED|PART|PIECE|ROOM|CUT|CUTS|SIZES)$"
)
PARTICIPLE = re.compile(
    r"^_?(Told|Heard|Said|Meant|Spoken|Passed|Known|Seen|Sought|Wanted|Doomed|Opened|Prepared|Named|Along|Alike|Reached|"
    r"Learned|Copied|Maintained|Forgotten|Noticed|Gathered|Ranked|Found|Asked|Compared|Given|Kept|Held|Taken|"
    r"Left|Drawn|"
    r"Beside|Around|Ingested|Imported|Unlinked|Shown|Lent|Met|Read|Written|Lost|Gone)$"
)
BAD_FUNCTION = re.compile(
    r"^_?(told|said|shown|given|found|known|seen|asked|wanted|named|lent|led|beside|among|whole|plain|plainly|of|tell|ask|look|"
    r"settle|stands|holding|standing|saying|noticing|carried|kept|taken|written|drawn|cut|folded|placed|counted|"
    r"boxed|escaped|"
    r"quoted|normalised|bound|passed|awaited|observed|served|in_turns|to_its_end|moment|share|room)$"
)
VAGUE_TEST = re.compile(
    r"^test_(what|whatever|whichever|who|whoever|where|whether|everything|nothing|something|any|each|all|one|another|others|it|"
    r"there|two|some|many|much)_|_(is|are|was|were)_(told|said|known|gone|whole|right|named)$|_stands?(_|$)|_beside(_|"
    r"$)|_anew(_|$)"
)


Hit = tuple[str, bool, int, str]
"""A text: its kind, True if it needs a rewrite, its line, and its words."""


def docstrings(tree: ast.Module, *, is_test: bool) -> Iterator[Hit]:
    """Yield the first paragraph of every docstring. Test functions are excluded, because their names are judged."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if not isinstance(node, kinds) or not (doc := ast.get_docstring(node)):
            continue
        name = getattr(node, "name", "<module>")
        if not (is_test and name.startswith("test_")):
            text = " ".join(doc.strip().split("\n\n")[0].split())
            yield "docstrings", is_vague(text), getattr(node, "lineno", 1), f"{name}: {text}"


def comments(source: str) -> Iterator[Hit]:
    """Yield every comment, except instructions for tools such as ``noqa``."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ").strip()
        if token.type == tokenize.COMMENT and text and not TOOL_COMMENT.match(text):
            yield "comments", is_vague(text), token.start[0], f"# {text}"


def names(tree: ast.Module, *, is_test: bool) -> Iterator[Hit]:
    """Yield error messages and the names of classes, functions, tests and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = ast.unparse(node.exc.args[0])
            yield "errors", bool(PHRASES.search(text)), node.lineno, text
        elif isinstance(node, ast.ClassDef):
            yield "classes", bool(PARTICIPLE.match(node.name)), node.lineno, node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_"):
                is_bad = bool(VAGUE_TEST.search(node.name)) or len(node.name) > MAX_TEST_NAME_CHARS
                yield "tests", is_bad, node.lineno, node.name
            elif not is_test:
                yield "functions", bool(BAD_FUNCTION.match(node.name)), node.lineno, node.name
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield "constants", bool(BARE.match(target.id)), node.lineno, target.id


def is_vague(text: str) -> bool:
    """Return True if a text begins with a relative clause, or contains a phrase of `PHRASES`."""
    return bool(LEAD.search(text) or PHRASES.search(text))


def scan(path: Path) -> list[Hit]:
    """Return all hits of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    is_test = path.name.startswith("test_") or "tests" in path.parts
    return [*docstrings(tree, is_test=is_test), *comments(source), *names(tree, is_test=is_test)]


def main() -> int:
    """Print the counts. Return 1 if a count is higher than its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders to count without a comparison")
    parser.add_argument("--sample", type=int, default=0, metavar="N")
    parser.add_argument("--list", dest="kind", metavar="KIND")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    files = [
        file for root in options.paths or ROOTS for file in ([root] if root.is_file() else sorted(root.rglob("*.py")))
    ]
    found = [(file, *hit) for file in files for hit in scan(file)]
    totals = Counter(kind for _, kind, *_ in found)
    counts = Counter(kind for _, kind, is_bad, *_ in found if is_bad)
    for kind, total in sorted(totals.items()):
        print(f"{kind:<11} {counts[kind]:>6} of {total:>6}  {100 * counts[kind] / total:5.1f} %")
    for file, kind, is_bad, line, text in found:
        if is_bad and kind == options.kind:
            print(f"{file}:{line}: {text[:200]}")
    if options.sample:
        texts = [f"{file}:{line}: {text[:220]}" for file, kind, _, line, text in found if kind in TEXTS]
        random.Random(options.seed).shuffle(texts)
        print("", *texts[: options.sample], sep="\n")
    if options.paths:
        return 0
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    if options.update:
        lower = {kind: min(counts[kind], limits.get(kind, counts[kind])) for kind in sorted(totals)}
        LIMITS.write_text(json.dumps(lower, indent=4) + "\n", encoding="utf-8")
        return 0
    risen = {kind: bad for kind, bad in counts.items() if bad > limits.get(kind, 0)}
    for kind, bad in risen.items():
        print(f"{kind}: {bad} hits, at most {limits.get(kind, 0)} allowed; see them with --list {kind}")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
