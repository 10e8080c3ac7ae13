"""Parser of basic-memory notes: frontmatter block, observations and relations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

_MAX_TAGS: Final = 100
LINK_RELATION: Final = "links_to"
FRONTMATTER_FENCE: Final = re.compile(r"^---[ \t]*$")
LIST_ITEM: Final = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(\S.*)$")
CODE_FENCE: Final = re.compile(r"^[ \t>]*(`{3,}|~{3,})")
BACKTICK_RUN: Final = re.compile("`+")
_CATEGORY: Final = re.compile(r"^\[([^\[\]()]+)\][ \t]+(.+)$")
# Matches a timestamp of a transcript, such as `[01:23]`, which looks like a category.
TIMESTAMP: Final = re.compile(r"^\d{1,3}:\d{2}(?::\d{2})?(?:[.,]\d{1,3})?(?:\s+-\s+\d{1,3}:\d{2}.*)?$")
_TAG: Final = re.compile(r"(?:^|(?<=\s))#([^\s#]+)")
_RELATION: Final = re.compile(
    r"""^(?:"([^"\[]+)"|'([^'\[]+)'|([^\s\[]+))[ \t]*\[\[([^\[\]]+)\]\][ \t]*(?:\(([^()]*)\))?$"""
)
WIKI_LINK: Final = re.compile(r"(?<!\\)\[\[([^\[\]]+)\]\]")
_FILE_LINK: Final = re.compile(r"(?<!!)\[[^\[\]]*\]\(<?([^()\[\]<>\s#]+?\.md)(?:#[^()\[\]]*)?>?\)", re.IGNORECASE)


class Observation(NamedTuple):
    """An observation in a note: its category, text and tags."""

    category: str | None
    content: str
    tags: tuple[str, ...]


class Relation(NamedTuple):
    """A relation to another note: its relationship, its target, and the context in parentheses."""

    word: str
    target: str
    context: str | None = None


def split_frontmatter(text: str) -> tuple[str | None, str]:
    """Split a note into frontmatter and body. The frontmatter is None if it is missing or unterminated."""
    lines = text.lstrip("\n").split("\n")
    if FRONTMATTER_FENCE.match(lines[0]):
        for number, line in enumerate(lines[1:], start=1):
            if FRONTMATTER_FENCE.match(line):
                return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :])
    return None, text


def parse_tags(value: str | list[str] | None) -> tuple[str, ...]:
    """Return the tags of a frontmatter field: a list, or a comma-separated text."""
    several = value.split(",") if isinstance(value, str) else value or []
    return tuple(dict.fromkeys(one.strip().lstrip("#") for one in several if one.strip(" #")))[:_MAX_TAGS]


def find_observations(body: str) -> list[Observation]:
    """Return the deduplicated observations of a note: its list items that have a category or a tag."""
    found: dict[Observation, None] = {}
    for item, is_listed in _iter_lines(body):
        if not is_listed:
            continue
        match = _CATEGORY.match(item)
        category = match[1].strip() if match else None
        if category is not None and (TIMESTAMP.match(category) or _is_checkbox(category)):
            category = None
        if category is None and match and _is_checkbox(match[1].strip()):
            continue
        content = match[2].strip() if match and category is not None else item
        tags = tuple(dict.fromkeys(_TAG.findall(content)))[:_MAX_TAGS]
        if category or tags:
            found[Observation(category, content, tags)] = None
    return list(found)


def _is_checkbox(category: str) -> bool:
    """Return True if the text in brackets marks a task checkbox, as ``x`` does, and is not a category."""
    return category == "" or (len(category) == 1 and (category in "xX" or not category.isalnum()))


def find_relations(body: str) -> list[Relation]:
    """Return the deduplicated relations of a note. Links to other notes count as relations, too."""
    found: dict[Relation, None] = {}
    for line, is_listed in _iter_lines(body):
        # Links inside code are examples, not relations.
        plain = _remove_code_spans(line)
        told = _RELATION.match(plain) if is_listed else None
        if told:
            word = next(filter(None, told.group(1, 2, 3)))
            found[Relation(word.strip(), _link_target(told[4]), (told[5] or "").strip() or None)] = None
            continue
        for target in WIKI_LINK.findall(plain):
            found[Relation(LINK_RELATION, _link_target(target))] = None
        for target in _FILE_LINK.findall(plain):
            if "://" not in target:
                found[Relation(LINK_RELATION, f"./{target}" if not target.startswith((".", "/")) else target)] = None
    return [relation for relation in found if relation.target]


def _link_target(text: str) -> str:
    """Return the target of a wiki link, without its display text."""
    return text.split("|", maxsplit=1)[0].strip().removeprefix("memory://").replace("::", "/")


def _iter_lines(body: str) -> Iterator[tuple[str, bool]]:
    """
    Yield each line outside of code blocks, and True if it is a list item.

    A list item is yielded together with its continuation lines, as one line.
    """
    fence = None
    item: list[str] = []
    for line in body.split("\n"):
        mark = CODE_FENCE.match(line)
        if fence is not None or mark:
            if mark and fence is None:
                fence = mark[1]
            elif mark and fence is not None and mark[1].startswith(fence) and not line.strip(" \t>`~"):
                fence = None
            yield from _join_item(item)
            continue
        start = LIST_ITEM.match(line)
        if start:
            yield from _join_item(item)
            item.append(start[1].strip())
        elif item and line.strip() and line.startswith((" ", "\t")):
            item.append(line.strip())
        else:
            yield from _join_item(item)
            if line.strip():
                yield line.strip(), False
    yield from _join_item(item)


def _join_item(item: list[str]) -> Iterator[tuple[str, bool]]:
    if item:
        yield " ".join(item), True
        item.clear()


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
