"""Classification of contents (code, data, text), and suggested ids for code blocks."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs

from mama_structs._internal.jsonable import JsonMixin
from mama_structs.refs.markup.fences import FencedBlock, find_fenced_blocks, parse_language
from mama_structs.refs.markup.parser import RefEnd, RefParser, RefStart, is_ref_id

Category = Literal["code", "data", "text"]

_MAX_SAMPLE_CHARS: Final = 20_000
_CATEGORY_ATTRIBUTES: Final = ("category", "type", "lang", "language")


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _alternation(words: str) -> str:
    return "|".join(map(re.escape, words.split()))


_HTML_TAGS: Final = _split_words("html head body div span p a ul ol li table section main header nav form script style")

_YAML_LINE: Final = re.compile(r"\s*(?:- )?(?:[\w./-]{1,80}|\"[^\"]{1,80}\"|'[^']{1,80}'):(?:\s|\Z)|\s*- \S|\s*#")
_YAML_KEY: Final = re.compile(r"\s*(?:- )?[\w./\"'-]{1,80}:(?:\s|\Z)")
_INI_LINE: Final = re.compile(r"\s*(?:\[{1,2}[^\]]{1,200}\]{1,2}\s*\Z|[\w.\"-]{1,80}\s{0,20}[=:]|[#;])")
_ENV_LINE: Final = re.compile(r"(?:export )?[A-Z][A-Z0-9_]{0,80}=|#|\Z")
_TABLE_RULE: Final = re.compile(r"\|[\s:|-]{3,}\|?\s*\Z")
_TAG: Final = re.compile(r"<(?P<name>[A-Za-z][\w:.-]{0,60})[\s/>]")
_STRING: Final = re.compile(r"\"(?:[^\"\\]|\\.)*+\"", re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_MAX_JSON_DEPTH: Final = 100
_JSON_START: Final = re.compile(r"\{\s*(?:\"|\Z)|\[\s*(?:[\[{\"\d-]|\Z)")

_MODIFIERS: Final = (
    r"(?:(?:export|default|pub|public|private|protected|internal|static|async|abstract|final|unsafe|inline|const|open"
    r"|override|virtual|sealed|data|extern|declare)\s+){0,4}"
)
# Patterns for lines of code. Prose rarely matches the strong pattern, but sometimes matches the weak one.
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
_CODE_LINE_ENDINGS: Final = (";", "{", "};", "})", "});", "):", "->", "=>")


def detect_category(attributes: Mapping[str, str], text: str) -> Category:
    """
    Return the category of a content. The attributes of its tag take precedence over a sample of the text.

    Args:
        attributes: The attributes of the tag, with names in lower case.
        text: The content. Only its first 20,000 characters are examined.

    """
    for name in _CATEGORY_ATTRIBUTES:
        if (category := lookup_category(attributes.get(name, ""))) is not None:
            return category
    return _detect_text_category(text[:_MAX_SAMPLE_CHARS], cut=len(text) > _MAX_SAMPLE_CHARS, unfenced=False)


def lookup_category(word: str) -> Category | None:
    """Return the category of a keyword, such as a language name or MIME type, or None if unknown."""
    word = word.strip().lower()[:100]
    if "/" in word:
        main, _, word = word.partition(";")[0].strip().partition("/")
        if main not in {"text", "application"}:
            # Other main types are not text, except formats written in XML or JSON, such as image/svg+xml.
            return "data" if word.endswith(("+xml", "+json")) else None
        word = word.rpartition("+")[2].removeprefix("x-").removeprefix("vnd.")
    return _load_categories().get(word)


@functools.cache
def _load_categories() -> Mapping[str, Category]:
    """Load the categories of languages and other keywords."""
    words = json.loads(Path(__file__).with_name("categories.json").read_text(encoding="utf-8"))
    return {word: category for category, lines in words.items() for line in lines for word in line.split()}


def _detect_text_category(sample: str, *, cut: bool, unfenced: bool) -> Category:
    lines = sample.strip("\ufeff").splitlines()
    if cut and len(lines) > 1:
        # The sample was truncated, so its last line may be incomplete.
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        return "text"
    text = "\n".join(lines)
    if (block := next(find_fenced_blocks(text), None)) is not None:
        if unfenced or block.opening_start or (block.closed and (cut or block.position_after <= len(text))):
            # With text outside of the fence, the content is prose with code examples.
            return "text"
        told = lookup_category(parse_language(block.info) or "")
        return told or _detect_text_category(text[block.start : block.end], cut=False, unfenced=True)
    first = lines[0].lstrip()
    tag, ends_tag = _TAG.match(first), lines[-1].rstrip().endswith(">")
    if first[:20].lower().startswith("<!doctype html") or (tag and tag["name"].lower() in _HTML_TAGS and ends_tag):
        return "code"
    is_markup = first.startswith("<?xml") or (tag is not None and (cut or ends_tag))
    is_data = is_markup or _is_json(sample, lines, cut=cut) or _is_table(lines) or _is_yaml(lines) or _is_ini(lines)
    return "data" if is_data else "code" if _is_code(lines) else "text"


def _is_json(sample: str, lines: Sequence[str], *, cut: bool) -> bool:
    if not lines[0].lstrip().startswith(("{", "[")):
        return False
    if cut and _JSON_START.match(sample.lstrip()[:1_000]):
        return True
    return _is_json_text(sample) or (
        len(lines) > 1 and all(line.lstrip()[0] in "{[" and _is_json_text(line) for line in lines)
    )


def _is_json_text(text: str) -> bool:
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > _MAX_JSON_DEPTH:
        # Only count brackets at this depth, because `json.loads` may overflow the stack of a thread with a small stack.
        return depth == 0
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_table(lines: Sequence[str]) -> bool:
    if len(lines) < 2:  # noqa: PLR2004 - a single line cannot prove that columns repeat
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
    # Reject prose, in which a space follows the comma, and code, which contains brackets.
    airy = any(cell[:1] == " " for row in rows for cell in row[1:])
    coded = any(mark in cell for row in rows for cell in row for mark in "(){}=")
    return not coded and (not airy or (columns > 2 and len(rows) > 2))  # noqa: PLR2004


def _is_yaml(lines: Sequence[str]) -> bool:
    keys = sum(1 for line in lines if _YAML_KEY.match(line) and not line.rstrip().endswith(("{", ";", ",")))
    if lines[0].rstrip() == "---":
        return keys > 0
    plain = sum(1 for line in lines if _YAML_LINE.match(line) or line.startswith((" ", "\t")))
    # The first line of a Python block is no key, because a bracket or several words precede its colon.
    return keys >= 2 and plain == len(lines) and keys * 3 >= len(lines)  # noqa: PLR2004 - one key may be "Note: ..."


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
        # Match only the beginning, because a line of prose may be as long as a paragraph.
        shown = line[:400].rstrip()
        if _STRONG_LINE.match(shown):
            strong += 1
        elif _WEAK_LINE.match(shown) or shown.endswith(_CODE_LINE_ENDINGS):
            weak += 1
    return (strong > 0 or weak > 2) and (2 * strong + weak) * 5 >= len(lines) * 3  # noqa: PLR2004


# Suggested ids for code blocks

Reason = Literal["file", "definition", "heading", "language"]

_MAX_ID_CHARS: Final = 64
# Shorter than the maximum length of an id, so that a separator and a number can be appended.
_MAX_STEM_CHARS: Final = 54
_MIN_LINES: Final = 3
_MIN_CHARS: Final = 80
# Limits of the search for definitions, which occur near the beginning. Longer lines are usually generated code.
_MAX_SCANNED_LINES: Final = 200
_MAX_SCANNED_LINE_CHARS: Final = 200
_MAX_LINES_BEFORE: Final = 3

_FILE: Final = re.compile(
    r"(?:\.?[\w@-][\w.@-]{0,80}/|\.{1,2}/|/){0,12}(?P<name>\.?[A-Za-z0-9_][\w-]{0,60}(?:\.[\w-]{1,30}){0,4})"
)
_FILES_WITHOUT_EXTENSION: Final = _split_words("dockerfile makefile justfile procfile jenkinsfile .env")
_FILE_EXTENSIONS: Final = _split_words("txt md rst lock env gitignore dockerignore ipynb log")
_TITLE: Final = re.compile(r"(?:title|file|filename|name|path)=[\"']?(?P<path>[^\"'\s}]{1,200})")
_COMMENT: Final = re.compile(r"\s*(?:#|//|--|/\*|<!--|;)\s*(?P<text>[^\s*<>]{1,200})\s*(?:\*/|-->)?\s*\Z")
_MARKED_TEXT: Final = re.compile(r"`([^`]{1,200})`|\*\*([^*]{1,200})\*\*|__([^_]{1,200})__")
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(?P<title>[^\r\n]*)")
_BOLD_LINE: Final = re.compile(r"\s*\*\*(?P<title>[^*]{1,200})\*\*:?\s*\Z")
_NUMBERING: Final = re.compile(r"\s*(?:\d{1,4}[.)]){1,6}\d{0,4}\s+")
_INVALID_ID_CHARS: Final = re.compile(r"[^A-Za-z0-9_.-]+")

# A block in these languages usually contains commands or output, not the file that the preceding sentence names.
_OUTPUT_LANGUAGES: Final = _split_words(
    "bash sh shell zsh console terminal shell-session powershell ps1 text txt output"
)
_OUTPUT_FILE_EXTENSIONS: Final = _split_words("bash sh zsh ps1 txt log env")

_NAME_MODIFIERS: Final = _alternation(
    "export default pub public private protected internal static async abstract final unsafe inline open override"
    " virtual sealed partial data extern declare template constexpr suspend unsigned"
)
_DEFINITION_KEYWORDS: Final = _alternation(
    "def class function* function fn func fun interface struct enum trait namespace module defmodule protocol record"
    " object message service contract sub void int bool char float double long auto string String boolean"
)
# In Go, the receiver of a method precedes its name.
_DEFINITION: Final = re.compile(
    rf"\s*+(?:(?:{_NAME_MODIFIERS}|pub\([^ ]*+) ++)*+"
    rf"(?:(?P<strong>func \([^)]*+\)|(?:{_DEFINITION_KEYWORDS})(?= ))|"
    r"(?P<create>(?i:create)) |(?:const|let|var|val|type) )"
    r"(?P<rest>.*)"
)
_SQL_KINDS: Final = _split_words("table view function procedure index trigger type schema")
_SQL_MODIFIERS: Final = _split_words("or replace temp temporary unique materialized if not exists recursive")
_NAME: Final = re.compile(r"[\"`\[]?(?P<name>[A-Za-z_$][\w$]*(?:[.:]{1,2}[A-Za-z_]\w*)*)")
_SHELL_FUNCTION: Final = re.compile(r"(?P<name>[A-Za-z_][\w-]*)\s?\(\)\s?\{")
_AFTER_NAME: Final = re.compile(
    r"[\"`\]]?\s*(?:\Z|[({\[<:=;,]|(?:extends|implements|where|struct|interface|is|as|on|do|returns|final|for)\b)"
)


@attrs.frozen
class Suggestion(JsonMixin):
    """A suggested id for a code block outside of refs. Positions and lines count from 1."""

    id: str
    category: Category
    language: str | None
    start: int  # start of the content, without the fence
    end: int
    line: int  # number of the first line of the content
    reason: Reason
    content: str  # content without its last line break


@attrs.frozen
class _BlockContext:
    block: FencedBlock
    heading: str
    line_before: str
    line: int


def suggest_ids(text: str, *, used_ids: Collection[str] = ()) -> list[Suggestion]:
    """
    Return suggested ids for the fenced code blocks outside of refs and thoughts, in order.

    Args:
        text: The complete text.
        used_ids: Ids that are in use. A suggestion that collides with one, or with an id of the text, gets a number.

    """
    unmarked, ids = _blank_refs(text)
    used = {*used_ids, *ids}
    # Continue the numbering of each stem, because restarting it for each block would take quadratic time.
    counters: dict[str, Iterator[int]] = {}

    def new_id(base: str, *, numbered: bool) -> str:
        name = base
        if numbered or base in used:
            stem = f"{base[:_MAX_STEM_CHARS]}{'-' if numbered else '_'}"
            numbers = counters.setdefault(stem, itertools.count(1 if numbered else 2))
            name = next(name for number in numbers if (name := f"{stem}{number}") not in used)
        used.add(name)
        return name

    suggestions = []
    for below in _find_blocks(unmarked):
        block = below.block
        content = text[block.start : block.end]
        if content.count("\n") + 1 < _MIN_LINES and len(content.strip()) < _MIN_CHARS:
            continue
        language = _detect_language(block.info)
        category = detect_category({"lang": language or ""}, content)
        base, reason = _choose_id(below, language, category, content)
        name = new_id(base, numbered=reason == "language")
        suggestion = Suggestion(name, category, language, block.start + 1, block.end, below.line, reason, content)
        suggestions.append(suggestion)
    return suggestions


def _blank_refs(text: str) -> tuple[str, list[str]]:
    """
    Return the text in which blanks replace thoughts and all lines that touch a ref, and the ids of the refs.

    The length of the text is unchanged, so that positions stay valid.
    """
    parser = RefParser()
    parts: list[str] = []
    ids: list[str] = []
    depth = at = first = 0
    for event in [*parser.feed(text), *parser.close()]:
        if isinstance(event, RefStart):
            ids.append(event.id)
            # Search backwards only to *at*. Otherwise, many refs on one line would take quadratic time.
            first = first if depth else max(at, text.rfind("\n", at, event.position) + 1)
            depth += 1
        elif isinstance(event, RefEnd):
            depth -= 1
            if not depth:
                last = text.find("\n", max(at, event.position - 1))
                marked = text[first : last if last >= 0 else None]
                parts += text[at:first], "\n".join(" " * len(line) for line in marked.split("\n"))
                at = first + len(marked)
    unmarked, at = "".join([*parts, text[at:]]), 0
    parts = []
    for start, end in parser._past_thoughts:
        parts += unmarked[at:start], re.sub(r"[^\r\n]", " ", unmarked[start:end])
        at = end
    return "".join([*parts, unmarked[at:]]), ids


def _find_blocks(text: str) -> Iterator[_BlockContext]:
    """Yield each fenced block, with the heading above it and the last text line before it."""
    heading, position, number = "", 0, 1
    for block in find_fenced_blocks(text):
        number += text.count("\n", position, block.start)
        lines = text[position : block.opening_start].split("\n")[:-1]
        heading = next(filter(None, map(_parse_heading, reversed(lines))), heading)
        line_before = next(filter(None, map(str.strip, reversed(lines[-_MAX_LINES_BEFORE:]))), "")
        yield _BlockContext(block, heading, line_before, number)
        number += text.count("\n", block.start, block.position_after)
        position = block.position_after


def _parse_heading(line: str) -> str:
    found = _HEADING.match(line[:300]) or _BOLD_LINE.match(line[:300])
    return found["title"].strip().rstrip("#").strip() if found else ""


def _detect_language(info: str) -> str | None:
    language = parse_language(info)
    if language is None or lookup_category(language) is not None:
        return language
    # Models also write a file name in place of the language, as in "```app.py".
    extension = language.rpartition(".")[2]
    return extension if lookup_category(extension) is not None else language


def _choose_id(below: _BlockContext, language: str | None, category: Category, content: str) -> tuple[str, Reason]:
    info = below.block.info
    titled = _TITLE.search(info)
    words = [titled["path"]] if titled else re.split(r"[\s{}:]+", info[:300])
    if comment := _COMMENT.match(content.partition("\n")[0][:_MAX_SCANNED_LINE_CHARS]):
        words.append(comment["text"])
    if file := next(filter(None, map(_parse_file_name, words)), "") or _find_file_before(below.line_before, language):
        return file, "file"
    if category == "code" and (name := _find_definition(content)):
        return name, "definition"
    if heading := _to_ref_id(_NUMBERING.sub("", below.heading, count=1), lower=True):
        return heading, "heading"
    return _to_ref_id(language or category, lower=True) or category, "language"


def _find_file_before(line: str, language: str | None) -> str:
    """
    Return the file name that the line before a block contains, or "".

    The name must be in backticks, bold, or the only text of the line.
    """
    line = line[:1_000]
    marked = [next(group for group in found.groups() if group) for found in _MARKED_TEXT.finditer(line)]
    alone = line.strip("#*`_: \t")
    names = [
        name for part in [*marked, alone] if " " not in part.strip() and (name := _parse_file_name(part.strip("`*_: ")))
    ]
    if names and language in _OUTPUT_LANGUAGES and names[-1].rpartition(".")[2].lower() not in _OUTPUT_FILE_EXTENSIONS:
        return ""
    return names[-1] if names else ""


def _parse_file_name(word: str) -> str:
    """Return the file name at the end of a path, or "" if *word* is not a path of a known file type."""
    found = _FILE.fullmatch(word)
    name = found["name"] if found else ""
    stem, _, extension = name.rpartition(".")
    known = stem and (extension.lower() in _FILE_EXTENSIONS or lookup_category(extension) is not None)
    return _to_ref_id(name) if known or name.lower() in _FILES_WITHOUT_EXTENSION else ""


def _find_definition(content: str) -> str:
    value = ""
    for line in content.split("\n", _MAX_SCANNED_LINES)[:_MAX_SCANNED_LINES]:
        name, strong = _parse_definition(line[:_MAX_SCANNED_LINE_CHARS])
        if name and strong:
            return name
        value = value or name
    return value


def _parse_definition(line: str) -> tuple[str, bool]:
    """Return the name that a line defines, and True unless the line may define only a variable."""
    if shell := _SHELL_FUNCTION.match(line):
        return _to_ref_id(shell["name"]), True
    found = _DEFINITION.match(line.rstrip())
    if found is None:
        return "", False
    rest, strong = found["rest"], found["strong"] is not None
    if found["create"]:
        return _parse_sql_definition(rest), True
    if not strong and ("require(" in rest or "import(" in rest):
        return "", False
    return _parse_identifier(rest.lstrip(" *&")), strong or rest.endswith(("{", "=>", "("))


def _parse_sql_definition(rest: str) -> str:
    words = rest.split()
    kind = next((number for number, word in enumerate(words[:6]) if word.lower() in _SQL_KINDS), len(words))
    names = (word for word in words[kind + 1 :] if word.lower() not in _SQL_MODIFIERS)
    return _parse_identifier(next(names, "").partition("(")[0])


def _parse_identifier(rest: str) -> str:
    found = _NAME.match(rest)
    is_name = found and _AFTER_NAME.match(rest, found.end())
    return _to_ref_id(found["name"].replace("::", ".").replace("$", "")) if found and is_name else ""


def _to_ref_id(name: str, *, lower: bool = False) -> str:
    """Convert a name to a valid id. Return "" if the result has no letter or is invalid."""
    plain = unicodedata.normalize("NFKD", name[:300]).encode("ascii", "ignore").decode()
    slug = _INVALID_ID_CHARS.sub("-", plain).lstrip("_.-")[:_MAX_ID_CHARS].rstrip("_.-")
    if not any(character.isalpha() for character in slug) or not is_ref_id(slug):
        return ""
    return slug.lower() if lower else slug
