"""Whether a content is code, data or text: what its attributes say, else what it looks like."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from mama_structs.descriptors.fences import Fence, language_of, opening_fence

Category = Literal["code", "data", "text"]

_LOOKED_AT: Final = 20_000
_ATTRIBUTES: Final = ("category", "type", "lang", "language")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CODE_WORDS: Final = _words(
    "code source script program snippet function module"
    " python py python3 ipython pycon javascript js jsx mjs cjs typescript ts tsx java kotlin kt kts scala groovy"
    " c h cpp c++ cc cxx hpp objective-c objc csharp c# cs fsharp f# vb go golang rust rs swift dart zig nim d v"
    " ruby rb php perl pl lua r julia jl matlab octave fortran cobol pascal ada haskell hs ocaml ml elixir ex exs"
    " erlang erl clojure clj lisp scheme racket prolog sql plsql tsql mysql postgresql psql sqlite graphql gql cypher"
    " sparql html html5 xhtml css scss sass less vue svelte astro jinja jinja2 handlebars"
    " shell shell-session shellscript sh bash zsh fish console powershell ps1 pwsh bat batch cmd awk sed"
    " makefile make cmake dockerfile docker nix hcl terraform tf bicep bazel starlark gradle"
    " solidity sol vyper move cairo wasm wat asm assembly nasm glsl hlsl wgsl cuda verilog vhdl systemverilog"
    " diff patch regex mermaid dot graphviz plantuml protobuf proto thrift ecmascript emacs-lisp elisp vim viml"
)
_DATA_WORDS: Final = _words(
    "data dataset table json json5 jsonc jsonl ndjson json-lines geojson jsonld csv tsv yaml yml toml xml rss atom svg"
    " ini cfg conf config properties env dotenv tab-separated-values log logs"
)
_TEXT_WORDS: Final = _words(
    "text txt plain plaintext prose markdown md mdx rst restructuredtext asciidoc adoc org textile tex latex"
    " note notes summary essay letter email article story report"
)
_HTML_TAGS: Final = _words("html head body div span p a ul ol li table section main header nav form script style")

_YAML_LINE: Final = re.compile(r"\s*(?:- )?(?:[\w./-]{1,80}|\"[^\"]{1,80}\"|'[^']{1,80}'):(?:\s|\Z)|\s*- \S|\s*#")
_YAML_KEY: Final = re.compile(r"\s*(?:- )?[\w./\"'-]{1,80}:(?:\s|\Z)")
_INI_LINE: Final = re.compile(r"\s*(?:\[{1,2}[^\]]{1,200}\]{1,2}\s*\Z|[\w.\"-]{1,80}\s{0,20}[=:]|[#;])")
_ENV_LINE: Final = re.compile(r"(?:export )?[A-Z][A-Z0-9_]{0,80}=|#|\Z")
_TABLE_RULE: Final = re.compile(r"\|[\s:|-]{3,}\|?\s*\Z")
_TAG: Final = re.compile(r"<(?P<name>[A-Za-z][\w:.-]{0,60})[\s/>]")
_STRING: Final = re.compile(r"\"(?:[^\"\\]|\\.)*+\"", re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_DEEPEST: Final = 100
_JSON_START: Final = re.compile(r"\{\s*(?:\"|\Z)|\[\s*(?:[\[{\"\d-]|\Z)")

_MODIFIERS: Final = (
    r"(?:(?:export|default|pub|public|private|protected|internal|static|async|abstract|final|unsafe|inline|const|open"
    r"|override|virtual|sealed|data|extern|declare)\s+){0,4}"
)
# Lines that hardly occur in prose, and lines that may.
_STRONG_LINE: Final = re.compile(
    rf"\s*(?:{_MODIFIERS}(?:def|class|function|fn|func|fun|interface|struct|enum|trait|impl|namespace|module|sub)\b"
    r"[^.?!]*[({:;=]\s*\Z"
    r"|#include\b|#!|#define\b|from \S{1,100} import\b|import [\w.{*\"']{1,100}+[^.?!]*+\Z"
    r"|(?:const|let|var)\s+[\w{\[][^.?!=]*=|@\w[\w.]*(?:\(.*\))?\Z"
    r"|(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE (?:OR REPLACE )?(?:TABLE|VIEW|INDEX|FUNCTION)|ALTER TABLE)\b"
    r"|(?:if|for|while|switch|elif|else if)\b[^?!]*[:{]\s*\Z|(?:try|else|finally|do)\s*[:{]\s*\Z"
    r"|\$ \S|(?:return|yield|await|raise|throw)\b[^?!]*[\w)\]}'\"];?\Z)"
)
_WEAK_LINE: Final = re.compile(
    r"\s*(?:[\w.\[\]\"']{1,80}\s?[-+*/|&]?=\s?\S|[\w.]{1,80}\(.*\)[;,]?\Z|[})\]]+[;,)]*\Z|//|/\*|\*/|--\s|#\s)"
)
_ENDS_CODE: Final = (";", "{", "};", "})", "});", "):", "->", "=>")


def category_of(attributes: Mapping[str, str], text: str) -> Category:
    """
    Tell whether a content is code, data or text.

    The attributes ``category``, ``type``, ``lang`` and ``language`` decide, in this order, where one is a category, a
    MIME type or the name of a language; one that is none of these does not.
    Else it is derived from the first 20,000 characters: a fence around them and its language, then JSON, XML, CSV,
    YAML and INI, then lines that look like code.
    Languages that are run or shown (SQL and HTML too) are code, formats that hold values (JSON, YAML, TOML, XML) data,
    and markup for prose (Markdown, LaTeX) text.

    Args:
        attributes: Of the ref, names in lower case.
        text: The content.

    """
    for name in _ATTRIBUTES:
        category = category_of_word(attributes.get(name, ""))
        if category is not None:
            return category
    return _look(text[:_LOOKED_AT], cut=len(text) > _LOOKED_AT, unfenced=False)


def category_of_word(word: str) -> Category | None:
    """Tell the category that a word, a language's name or a MIME type stands for; None when it stands for none."""
    word = word.strip().lower()[:100]
    if "/" in word:
        main, _, word = word.partition(";")[0].strip().partition("/")
        if main not in {"text", "application"}:
            # A picture's format may be written in XML; where the type is image/svg+xml the content is still markup.
            return "data" if word.endswith(("+xml", "+json")) else None
        word = word.rpartition("+")[2].removeprefix("x-").removeprefix("vnd.")
    if word in _CODE_WORDS:
        return "code"
    if word in _DATA_WORDS:
        return "data"
    return "text" if word in _TEXT_WORDS else None


def _look(sample: str, *, cut: bool, unfenced: bool) -> Category:
    lines = sample.strip("\ufeff").splitlines()
    if cut and len(lines) > 1:
        # The last one may be half of a line.
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        return "text"
    if not unfenced and (fence := opening_fence(lines[0])) is not None:
        inner = _inside(fence, lines, cut=cut)
        if inner is not None:
            told = category_of_word(language_of(fence.info) or "")
            return told or _look("\n".join(inner), cut=False, unfenced=True)
    if any(opening_fence(line) for line in lines):
        # Prose with examples between.
        return "text"
    if _is_markup_for_people(lines):
        return "code"
    return "data" if _is_data(sample, lines, cut=cut) else "code" if _is_code(lines) else "text"


def _inside(fence: Fence, lines: Sequence[str], *, cut: bool) -> Sequence[str] | None:
    """Find what one fence around everything holds; None when there is more than that."""
    closing = next((number for number, line in enumerate(lines) if number and fence.closed_by(line)), None)
    if closing is None:
        return lines[1:]
    return lines[1:closing] if closing == len(lines) - 1 and not cut else None


def _is_markup_for_people(lines: Sequence[str]) -> bool:
    first = lines[0].lstrip()[:200].lower()
    tag = _TAG.match(first)
    return first.startswith("<!doctype html") or (tag is not None and tag["name"] in _HTML_TAGS and _ends_tag(lines))


def _ends_tag(lines: Sequence[str]) -> bool:
    return lines[-1].rstrip().endswith(">")


def _is_data(sample: str, lines: Sequence[str], *, cut: bool) -> bool:
    return (
        _is_json(sample, lines, cut=cut)
        or lines[0].lstrip().startswith("<?xml")
        or (_TAG.match(lines[0].lstrip()) is not None and (cut or _ends_tag(lines)))
        or _is_table(lines)
        or _is_yaml(lines)
        or _is_ini(lines)
    )


def _is_json(sample: str, lines: Sequence[str], *, cut: bool) -> bool:
    if not lines[0].lstrip().startswith(("{", "[")):
        return False
    if cut and _JSON_START.match(sample.lstrip()[:1_000]):
        return True
    return _parses(sample) or (len(lines) > 1 and all(line.lstrip()[0] in "{[" and _parses(line) for line in lines))


def _parses(text: str) -> bool:
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        # The standard library's parser may run out of stack in a thread that has little of it.
        return depth == 0
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_table(lines: Sequence[str]) -> bool:
    if len(lines) < 2:  # noqa: PLR2004 one line tells no columns
        return False
    if _TABLE_RULE.match(lines[1].strip()) and "|" in lines[0]:
        return True
    return any(_has_columns(lines, delimiter) for delimiter in "\t,;|")


def _has_columns(lines: Sequence[str], delimiter: str) -> bool:
    if delimiter not in lines[0]:
        return False
    try:
        rows = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return False
    columns = len(rows[0])
    if columns < 2 or any(len(row) != columns for row in rows) or all(not row[-1] for row in rows):  # noqa: PLR2004
        return False
    # Prose has a blank behind its commas, and code a bracket before them.
    airy = any(cell[:1] == " " for row in rows for cell in row[1:])
    coded = any(mark in cell for row in rows for cell in row for mark in "(){}=")
    return not coded and (not airy or (columns > 2 and len(rows) > 2))  # noqa: PLR2004


def _is_yaml(lines: Sequence[str]) -> bool:
    keys = sum(1 for line in lines if _YAML_KEY.match(line) and not line.rstrip().endswith(("{", ";", ",")))
    if lines[0].rstrip() == "---":
        return keys > 0
    plain = sum(1 for line in lines if _YAML_LINE.match(line) or line.startswith((" ", "\t")))
    # A Python block ends its first line with a colon too, but behind a bracket or more than one word.
    return keys >= 2 and plain == len(lines) and keys * 3 >= len(lines)  # noqa: PLR2004 one key may be "Note: ..."


def _is_ini(lines: Sequence[str]) -> bool:
    sections = sum(1 for line in lines if line.lstrip().startswith("["))
    if sections and sections < len(lines) and all(_INI_LINE.match(line) for line in lines):
        return True
    assigned = sum(1 for line in lines if "=" in line)
    return assigned > 1 and all(_ENV_LINE.match(line) for line in lines)


def _is_code(lines: Sequence[str]) -> bool:
    if lines[0].startswith("#!"):
        return True
    strong = weak = 0
    for line in lines:
        # A line of prose may be as long as a paragraph.
        shown = line[:400].rstrip()
        if _STRONG_LINE.match(shown):
            strong += 1
        elif _WEAK_LINE.match(shown) or shown.endswith(_ENDS_CODE):
            weak += 1
    return (strong > 0 or weak > 2) and (2 * strong + weak) * 5 >= len(lines) * 3  # noqa: PLR2004
