"""
Hypothesis strategies for model answers with known refs.

They share no code with the parser, so that tests can verify the parser with them.
"""

from __future__ import annotations

import itertools
import re
import string
from typing import Any, Final

import attrs
from hypothesis import strategies as st

_FIRST_ID_CHARS: Final = string.ascii_letters + string.digits
_LINE_BREAKS: Final = ("\n", "\r\n")

# Texts that the parser must leave unchanged. No concatenation of them makes a tag, a fence or a code span.
_PROSE: Final = st.sampled_from(
    [
        "plain words", " ", "\n", "\r\n", "\n\n", "    ", "a < b && c > d", "<b>bold</b>", "<", ">", "/", '"', "'", "=",
        '<refs id="no">', "<reference id='no'>", "</refs>", '<ref\u00a0id="no">', '&lt;ref id="no">&lt;/ref>',
        '<re f id="no">', 'ref id="no"', "~5", "\u00e9\u4e2d\U0001f600", "\t", "\r", "\x00", "x" * 600,
    ]
)  # fmt: skip

# Refs in code, which the parser must ignore. Fences are on separate lines, and runs of backticks never touch.
_REFS_IN_CODE: Final = st.sampled_from(
    [
        '`<ref id="decoy">no</ref>` ', '``a ` <ref id="decoy"> ` b`` ', "`<ref id='decoy'/>` ", "`</ref>` ",
        '\n```\n<ref id="decoy">no</ref>\n```\n', '\n~~~ text\n<ref id="decoy">\n~~~\n',
        '\n````\n```\n<ref id="decoy">\n```\n`````\t\n', '\n~~~~\n```\n~~~\n    ~~~~\n<ref id="decoy">\n~~~~\r\n',
        '\r\n```\r\n<ref id="decoy">no</ref>\r\n```\r\n', "\n   ```html\n</ref>\n ```  \n",
    ]
)  # fmt: skip

# Code markup, which is plain text inside a ref.
_CODE_MARKUP: Final = st.sampled_from(
    ["`", "```", "\n```\n", "\n~~~\n", "``", "\n````python\nprint('<b>')\n", "~~~", "`x"]
)

_ATTRIBUTE_NAMES: Final = st.sampled_from(["type", "lang", "title", "data-x", "x_y", "flag", "\u00e9"])
_ATTRIBUTE_VALUES: Final = st.sampled_from(
    ["", "code", "a>b", "<b>", '<ref id="no">', "</ref>", "it's", 'say "x"', "two\nlines", "`", "a/b", "=", "&amp;",
     " x "]
)  # fmt: skip
_SPACES: Final = st.sampled_from([" ", " ", "  ", "\n", "\t", "\r\n", "\f"])
_OPTIONAL_SPACES: Final = st.sampled_from(["", "", "", " ", "\n"])


@attrs.frozen
class PlantedRef:
    """
    A ref that a parser must find.

    Args:
        id: Its id.
        attributes: Its other attributes, names in lower case.
        content: Its text without the tags of inner refs, and without one line break at each end.
        complete: False if its closing tag is missing.

    """

    id: str
    attributes: dict[str, str]
    content: str
    complete: bool


@attrs.frozen
class RefDocument:
    """
    A text, and the exact *refs* that a parser must find in it.

    Args:
        text: The text of a model.
        refs: Its refs, in order of their opening tags.
        visible: The text without their tags.

    """

    text: str
    refs: tuple[PlantedRef, ...]
    visible: str


@attrs.frozen
class _DocumentPart:
    """A part of a document: its source text, its visible text and its refs."""

    text: str = ""
    visible: str = ""
    refs: tuple[PlantedRef, ...] = ()

    def __add__(self, other: _DocumentPart) -> _DocumentPart:
        return _DocumentPart(self.text + other.text, self.visible + other.visible, self.refs + other.refs)


def ref_ids() -> st.SearchStrategy[str]:
    """Return a strategy for valid ref ids. Short ids are more frequent, so that ids repeat."""
    short = st.sampled_from(["a", "b", "plan", "x.1", "A", "0", "한글-1", "план"])
    return short | st.builds(
        str.__add__, st.sampled_from(_FIRST_ID_CHARS), st.text(_FIRST_ID_CHARS + "_.-\u00e9한", max_size=63)
    )


def _draw_case(draw: st.DrawFn, word: str) -> str:
    return draw(st.sampled_from([word, word, word.upper(), word.title()]))


def _draw_attribute(draw: st.DrawFn, name: str, value: str) -> str:
    if not value and draw(st.booleans()):
        return name
    quotes = [quote for quote in "\"'" if quote not in value]
    quote = draw(st.sampled_from(quotes))
    return f"{name}{draw(_OPTIONAL_SPACES)}={draw(_OPTIONAL_SPACES)}{quote}{value}{quote}"


def _draw_tag(draw: st.DrawFn, ref_id: str, attributes: dict[str, str], *, empty: bool) -> str:
    members = draw(st.permutations([("id", ref_id), *attributes.items()]))
    if draw(st.booleans()):
        # If an attribute is repeated, the parser must use its first value.
        members = [*members, (draw(st.sampled_from(members))[0], draw(_ATTRIBUTE_VALUES))]
    written = "".join(
        draw(_SPACES) + _draw_attribute(draw, name if name == "\u00e9" else _draw_case(draw, name), value)
        for name, value in members
    )
    return f"<{_draw_case(draw, 'ref')}{written}{draw(_OPTIONAL_SPACES)}{'/' * empty}>"


def _draw_ref(draw: st.DrawFn, depth: int, *, closed: bool = True) -> _DocumentPart:
    ref_id = draw(ref_ids())
    attributes = draw(st.dictionaries(_ATTRIBUTE_NAMES, _ATTRIBUTE_VALUES, max_size=3))
    if closed and draw(st.integers(0, 5)) == 0:
        return _DocumentPart(
            _draw_tag(draw, ref_id, attributes, empty=True), "", (PlantedRef(ref_id, attributes, "", complete=True),)
        )
    body = _draw_body(draw, depth - 1)
    if not closed:
        # Only the last part of an open ref may be open as well, because an open ref extends to the end of the text.
        deeper = depth > 1 and draw(st.booleans())
        body += _draw_ref(draw, depth - 1, closed=False) if deeper else _make_text_part("and so on")
    content = body.visible
    wraps = (
        [*_LINE_BREAKS, *_LINE_BREAKS]
        if content.startswith(_LINE_BREAKS) or content.endswith("\n")
        else ["", *_LINE_BREAKS]
    )
    wrap = draw(st.sampled_from(wraps))
    ending = wrap if closed else ""
    closing = f"</{_draw_case(draw, 'ref')}{draw(_OPTIONAL_SPACES)}>" if closed else ""
    planted = PlantedRef(ref_id, attributes, content, complete=closed)
    return _DocumentPart(
        f"{_draw_tag(draw, ref_id, attributes, empty=False)}{wrap}{body.text}{ending}{closing}",
        f"{wrap}{body.visible}{ending}",
        (planted, *body.refs),
    )


def _make_text_part(text: str) -> _DocumentPart:
    return _DocumentPart(text, text)


def _draw_body(draw: st.DrawFn, depth: int) -> _DocumentPart:
    part = _DocumentPart()
    for _ in range(draw(st.integers(0, 4))):
        nested = depth > 0 and draw(st.integers(0, 2)) == 0
        part += _draw_ref(draw, depth) if nested else _make_text_part(draw(_PROSE | _CODE_MARKUP))
    return part


def ref_documents(*, max_size: int = 8, max_depth: int = 3, unclosed: bool = True) -> st.SearchStrategy[RefDocument]:
    """
    Return a strategy for model answers with refs among prose, markup, look-alikes and code.

    Refs may be adjacent, nested or empty, contain code, and have tags with unusual order, case, quotes and white space.

    Args:
        max_size: Maximum number of parts, each a ref or other text.
        max_depth: Maximum nesting depth of refs; 1 for no nesting, 0 for no refs.
        unclosed: Whether refs may be left open at the end.

    """
    return _draw_document(max_size, max_depth, unclosed=unclosed).filter(_has_distinct_refs)


_FENCE_PATTERN: Final = re.compile("(`{3,}|~{3,}).*")


def _has_distinct_refs(document: RefDocument) -> bool:
    """
    Return False if two refs with the same id differ only in their code fences.

    A store treats these two refs as one version.
    """
    contents = {(ref.id, ref.content) for ref in document.refs}
    fenced = {
        (ref_id, _FENCE_PATTERN.sub("", text).strip()) for ref_id, text in contents if _FENCE_PATTERN.search(text)
    }
    plain = [(ref_id, text.strip()) for ref_id, text in contents if not _FENCE_PATTERN.search(text)]
    return fenced.isdisjoint(plain) and len(fenced) + len(plain) == len(contents)


@st.composite
def _draw_document(draw: st.DrawFn, max_size: int, max_depth: int, *, unclosed: bool) -> RefDocument:
    part = _DocumentPart()
    for _ in range(draw(st.integers(0, max_size))):
        kind = draw(st.sampled_from(["ref", "ref", "prose", "decoy"]))
        if kind == "ref" and max_depth:
            part += _draw_ref(draw, max_depth)
        else:
            part += _make_text_part(draw(_REFS_IN_CODE if kind == "decoy" else _PROSE))
    if unclosed and max_depth and draw(st.integers(0, 3)) == 0:
        part += _draw_ref(draw, max_depth, closed=False)
    return RefDocument(part.text, part.refs, part.visible)


def chunkings(text: str) -> st.SearchStrategy[list[str]]:
    """
    Return a strategy for splits of a text into chunks.

    The text is split at random positions, into chunks of equal size, or not at all.

    Args:
        text: The concatenation of the chunks; chunks may be empty.

    """

    def split_at(places: list[int]) -> list[str]:
        places = [0, *sorted(places), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(places)]

    def split_by_size(size: int) -> list[str]:
        return [text[start : start + size] for start in range(0, len(text), size)]

    anywhere: st.SearchStrategy[Any] = st.lists(st.integers(0, len(text)), max_size=8).map(split_at)
    return anywhere | st.integers(1, 20).map(split_by_size)


@attrs.frozen
class PlantedMessage:
    """
    A model's message in a provider's format, with known refs.

    Args:
        message: For `Session.observe` or `RefStore.observe`.
        document: Its text and its refs.

    """

    message: Any
    document: RefDocument


def messages(*, documents: st.SearchStrategy[RefDocument] | None = None) -> st.SearchStrategy[PlantedMessage]:
    """
    Return a strategy for model messages in several formats.

    The formats are plain text, the two APIs of OpenAI, and Anthropic.
    Some messages have a tool call.

    Args:
        documents: A strategy for their texts; None for `ref_documents`.

    """

    def message(document: RefDocument, shape: str, has_call: bool) -> PlantedMessage:  # noqa: FBT001 - drawn by Hypothesis
        text, calls = document.text, range(int(has_call))
        chat = [{"id": "c", "type": "function", "function": {"name": "list_refs", "arguments": "{}"}} for _ in calls]
        blocks = [{"type": "tool_use", "id": "c", "name": "list_refs", "input": {}} for _ in calls]
        called = [{"type": "function_call", "call_id": "c", "name": "list_refs", "arguments": "{}"} for _ in calls]
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        shapes: dict[str, Any] = {
            "text": text,
            "chat": {"role": "assistant", "content": text, "tool_calls": chat},
            "responses": {"output": [said, *called]},
            "anthropic": {"role": "assistant", "content": [{"type": "text", "text": text}, *blocks]},
        }
        return PlantedMessage(shapes[shape], document)

    shapes = st.sampled_from(["text", "chat", "responses", "anthropic"])
    return st.builds(message, ref_documents() if documents is None else documents, shapes, st.booleans())
