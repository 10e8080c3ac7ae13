"""
Parser of basic-memory notes: frontmatter block, observations and relations.

It reads the same observations and relations as basic-memory 0.24, except for links in HTML blocks. An observation keeps
the text of all its lines, and its context in parentheses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

_MAX_TAGS: Final = 100
LINK_RELATION: Final = "links_to"
FRONTMATTER: Final = re.compile(r"(?:[ \t]*\n)*---[ \t]*\n")
FRONTMATTER_END: Final = re.compile(r"^---[ \t]*$\n?", re.MULTILINE)
QUOTE_MARKS: Final = re.compile(r"^(?: {0,3}> ?)+")
LIST_ITEM: Final = re.compile(r"^[ \t]*(?:[-*+]|(\d{1,9})[.)])[ \t]+(\S.*)$")
HEADING: Final = re.compile(r"^ {0,3}#{1,6}(?=[ \t]|$)")
RULE: Final = re.compile(r"^ {0,3}(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*)+|=+[ \t]*)$")
INDENTED_CODE: Final = re.compile(r"^(?: {4}| {0,3}\t)")
CODE_FENCE: Final = re.compile(r"^[ \t>]*(`{3,}|~{3,})")
BACKTICK_RUN: Final = re.compile("`+")
TASK_MARKS: Final = ("[ ]", "[x]", "[-]")
_ONLY_LINK: Final = re.compile(r"^\[[^\[\]]*\]\([^()]*\)$|^\[\[[^\[\]]*\]\]$")
_CATEGORY: Final = re.compile(r"^\[([^\[\]()]*)\][ \t]+(.+)$")
# Matches a timestamp of a transcript, such as `[01:23]`, which looks like a category.
TIMESTAMP: Final = re.compile(r"^\d{1,3}:\d{2}(?::\d{2})?(?:[.,]\d{1,3})?(?:\s+-\s+\d{1,3}:\d{2}.*)?$")
_TAG: Final = re.compile(r"(?:^|(?<=\s))#(\S+)")
# A list item that ends with this directive has no relationship; its links are plain links.
_LINKS_DIRECTIVE: Final = re.compile(r"(?<!\s)\s+#bm:links_to\s*$")
_CONTEXT: Final = re.compile(r"\(([^()]*)\)$")
_RELATION: Final = re.compile(r"""^(?:"([^"\[]+)"|'([^'\[]+)'|([^\s\[]+))[ \t]*\[\[([^\[\]]+)\]\][ \t]*(\(.*\))?$""")
WIKI_LINK: Final = re.compile(r"(?<!\\)\[\[([^\[\]]+)\]\]")
_FILE_LINK: Final = re.compile(r"""(?<![!\\])\[[^\[\]]*\]\((?:<([^<>]*)>|([^()\[\]<>\s]+))(?:[ \t]+"[^"]*")?\)""")


class Block(NamedTuple):
    """The text of a paragraph, a heading or a list item."""

    text: str
    is_listed: bool
    is_quoted: bool


class Observation(NamedTuple):
    """An observation in a note: its category, text and tags, and the context in parentheses at the end of its text."""

    category: str | None
    content: str
    tags: tuple[str, ...]
    context: str | None = None


class Relation(NamedTuple):
    """A relation to another note: its relationship, its target, and the context in parentheses."""

    word: str
    target: str
    context: str | None = None


def split_frontmatter(text: str) -> tuple[str | None, str]:
    """Split a note into frontmatter and body. The frontmatter is None if it is missing or unterminated."""
    start = FRONTMATTER.match(text)
    end = start and FRONTMATTER_END.search(text, start.end())
    return (text[start.end() : end.start()], text[end.end() :]) if start and end else (None, text)


def parse_tags(value: str | list[str] | None) -> tuple[str, ...]:
    """Return the tags of a frontmatter field: a list, or a comma-separated text."""
    several = value.split(",") if isinstance(value, str) else value or []
    return tuple(dict.fromkeys(one.strip().lstrip("#") for one in several if one.strip(" #")))[:_MAX_TAGS]


def find_observations(body: str) -> list[Observation]:
    """Return the observations of a note: the paragraphs and list items with a category or a tag."""
    return [
        observation
        for block in _iter_blocks(body)
        if not block.is_quoted and (observation := _parse_observation(block.text)) is not None
    ]


def _parse_observation(text: str) -> Observation | None:
    content = _LINKS_DIRECTIVE.sub("", text)
    if content.startswith(TASK_MARKS) or _ONLY_LINK.match(content):
        return None
    category = None
    match = _CATEGORY.match(content)
    if match and not TIMESTAMP.match(match[1].strip()) and not _is_checkbox(match[1].strip()):
        category, content = match[1].strip() or None, match[2].strip()
    context = _CONTEXT.search(content)
    words = _TAG.findall(content[: context.start()] if context else content)
    tags = tuple(dict.fromkeys(tag for word in words for tag in word.split("#") if tag))[:_MAX_TAGS]
    if category is None and not tags:
        return None
    return Observation(category, content, tags, (context[1].strip() or None) if context else None)


def _is_checkbox(category: str) -> bool:
    """Return True if the text in brackets marks a task checkbox, as ``x`` does, and is not a category."""
    return len(category) == 1 and (category in "xX" or not category.isalnum())


def find_relations(body: str) -> list[Relation]:
    """Return the deduplicated relations of a note. Links to other notes and files count as relations, too."""
    found: dict[Relation, None] = {}
    for block in _iter_blocks(body):
        # Links inside code are examples, not relations.
        plain = _remove_code_spans(block.text)
        told = _RELATION.match(plain) if block.is_listed and not _LINKS_DIRECTIVE.search(plain) else None
        if told and _is_one_group(told[5] or "()"):
            word = next(filter(None, told.group(1, 2, 3)))
            found[Relation(word.strip(), _link_target(told[4]), (told[5] or "")[1:-1].strip() or None)] = None
            continue
        for target in WIKI_LINK.findall(plain):
            found[Relation(LINK_RELATION, _link_target(target))] = None
        for quoted, other in _FILE_LINK.findall(plain):
            found[Relation(LINK_RELATION, _file_target(quoted or other))] = None
    return [relation for relation in found if relation.word and relation.target]


def _is_one_group(text: str) -> bool:
    """Return True if the first parenthesis of a text is closed by the last one."""
    depth = 0
    for position, sign in enumerate(text, start=1):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return position == len(text)
    return False


def _link_target(text: str) -> str:
    """Return the target of a wiki link, without its display text."""
    return text.split("|", maxsplit=1)[0].strip().removeprefix("memory://").replace("::", "/")


def _file_target(address: str) -> str:
    """Return the relative path in a Markdown link; an empty text for a URL, a fragment or a folder."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    path = unquote(parts.path)
    if parts.scheme or parts.netloc or "\\" in path or path.endswith("/"):
        return ""
    return f"./{path}" if path and not path.startswith(("./", "../", "/")) else path


def _iter_blocks(body: str) -> Iterator[Block]:
    """Yield the paragraphs, headings and list items outside of code blocks, each joined to one line."""
    lines: list[str] = []
    is_listed = is_list_open = is_quoted = False
    for line, has_quote_mark in _iter_lines(body):
        item, heading, is_indented = LIST_ITEM.match(line), HEADING.match(line), INDENTED_CODE.match(line) is not None
        is_gap = not line.strip() or bool(RULE.match(line))
        if lines and not is_listed and item and (is_indented or item[1] not in {None, "1"}):
            # Such a list item cannot interrupt a paragraph.
            item = None
        if lines and (item or heading or is_gap or (has_quote_mark and not is_quoted)):
            yield Block(" ".join(lines), is_listed, is_quoted)
            lines = []
        if is_gap:
            # After an empty line, a list continues with an indented line.
            is_list_open = is_list_open and not line.strip() and (has_quote_mark or not is_quoted)
        elif lines or not is_indented or is_list_open:
            if not lines:
                is_quoted, is_list_open = has_quote_mark, bool(item) or (is_list_open and line[0] in " \t")
                is_listed = is_list_open
            lines.append((item[2] if item else line[heading.end() :] if heading else line).strip())
            if heading:
                yield Block(lines.pop(), is_listed, is_quoted)


def _iter_lines(body: str) -> Iterator[tuple[str, bool]]:
    """Yield each line without quotation marks, and True if it has them. Fenced code becomes empty lines."""
    fence = None
    for line in body.split("\n"):
        quote = QUOTE_MARKS.match(line)
        mark = CODE_FENCE.match(line)
        is_code = bool(mark or fence)
        if mark and fence is None:
            fence = mark[1]
        elif mark and fence and mark[1].startswith(fence) and not line.strip(" \t>`~"):
            fence = None
        yield "" if is_code else line[quote.end() :] if quote else line, quote is not None
    yield "", False


def _remove_code_spans(line: str) -> str:
    """
    Return a line without its code spans.

    A span ends at the next run of backticks that is as long as its opening run.
    """
    runs = [(match.start(), match.end()) for match in BACKTICK_RUN.finditer(line)]
    ahead: defaultdict[int, list[int]] = defaultdict(list)
    for place in range(len(runs) - 1, -1, -1):
        ahead[runs[place][1] - runs[place][0]].append(place)
    kept, at, place = [], 0, 0
    while place < len(runs):
        begin, end = runs[place]
        same = ahead[end - begin]
        while same and same[-1] <= place:
            same.pop()
        if same:
            kept.append(line[at:begin])
            place = same.pop()
            at = runs[place][1]
        place += 1
    return "".join((*kept, line[at:]))
