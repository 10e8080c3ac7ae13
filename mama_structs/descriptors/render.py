"""
What models are shown: results as XML whose text a parser gives back exactly, and what a system prompt says.

What XML 1.0 cannot hold (section 2.2 of the recommendation: most control characters, U+FFFE and U+FFFF) becomes U+FFFD,
and the element says how often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mama_structs.descriptors.entries import Descriptor, Entry, Ref
from mama_structs.descriptors.export import FileResult
from mama_structs.descriptors.parser import ID_RULE
from mama_structs.descriptors.search import Match, SearchResult
from mama_structs.descriptors.text import Excerpt, Preview
from mama_structs.errors import MamaStructsError
from mama_structs.settings import DescriptorSettings

_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_REPLACEMENT: Final = "\ufffd"

Attribute = str | int | bool | None


def _without_forbidden(text: str) -> tuple[str, int]:
    """Return a text with U+FFFD for each character that XML cannot hold, and their number."""
    return _FORBIDDEN.subn(_REPLACEMENT, text)


def _escaped(text: str) -> str:
    """Return a text as the content of an element; a parser would read a bare carriage return as a line feed."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def start_tag(name: str, attributes: Mapping[str, Attribute], *, empty: bool = False) -> str:
    """Return a start tag, *empty* if the element ends here; attributes whose value is None are left out."""
    written = "".join(f' {key}="{_attribute(value)}"' for key, value in attributes.items() if value is not None)
    return f"<{name}{written}{'/' if empty else ''}>"


def element(name: str, attributes: Mapping[str, Attribute], text: str) -> str:
    """Return an element around a text; where characters were replaced, ``replaced`` says how many."""
    clean, replaced = _without_forbidden(text)
    return f"{start_tag(name, {**attributes, 'replaced': replaced or None})}{_escaped(clean)}</{name}>"


def _attribute(value: Attribute) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _escaped(_without_forbidden(str(value))[0])
    # A parser would read each of these as a blank.
    return text.replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")


# Results


def fd_content(excerpt: Excerpt) -> str:
    """Show what was read: the element's text is the content, exactly."""
    return element("fd_content", {"fd": excerpt.handle, **_place(excerpt)}, excerpt.text)


def fd_extraction(excerpt: Excerpt, made: Descriptor) -> str:
    """Show that a part was stored as a descriptor of its own."""
    attributes = {"fd": excerpt.handle, "new_fd": made.handle, **_place(excerpt)}
    message = f"{made.handle} now holds {_count(made.chars, 'character')} of {excerpt.handle}"
    return _parts("fd_extraction", attributes, [element("message", {}, message)])


def fd_result(descriptor: Descriptor, shown: Preview) -> str:
    """Show what was too large: its size, its beginning and its end, and what is left out between."""
    content = descriptor.content
    size = {"chars": content.chars, "lines": content.lines, "pages": descriptor.pages}
    attributes: dict[str, Attribute] = {
        "fd": descriptor.handle,
        "source": descriptor.source,
        **size,
        "category": descriptor.category,
    }
    parts = [element("message", {}, _about(descriptor, shown))]
    if shown.head:
        place: dict[str, Attribute] = {"lines": _span(shown.head_lines), "chars": f"1-{len(shown.head)}"}
        parts.append(element("head", {**place, "truncated": shown.head_ends_in_line or None}, shown.head))
    if shown.omitted_chars:
        omitted = {"chars": _span(shown.omitted_range), "lines": _span(shown.omitted_lines)}
        parts.append(start_tag("omitted", omitted, empty=True))
    if shown.tail:
        first = content.chars - len(shown.tail) + 1
        place = {"lines": _span(shown.tail_lines), "chars": f"{first}-{content.chars}"}
        parts.append(element("tail", {**place, "continued": shown.tail_starts_in_line or None}, shown.tail))
    return _parts("fd_result", attributes, parts)


def ref_list(refs: Sequence[Ref]) -> str:
    """Show what is marked."""
    return _parts("ref_list", {"count": len(refs)}, [start_tag("ref", _about_ref(ref), empty=True) for ref in refs])


def ref_content(ref: Ref) -> str:
    """Show a whole ref: the element's text is its content, exactly."""
    return element("ref_content", _about_ref(ref), ref.body.text)


def handle_list(entries: Sequence[Entry]) -> str:
    """Show what is stored, for a system prompt."""
    parts = []
    for entry in entries:
        if isinstance(entry, Ref):
            name, about = "ref", _about_ref(entry)
        else:
            name = "fd"
            about = {"fd": entry.handle, "source": entry.source, "lines": entry.lines, "chars": entry.chars}
        parts.append(start_tag(name, about, empty=True))
    return _parts("stored_handles", {"count": len(entries)}, parts)


def fd_matches(result: SearchResult) -> str:
    """Show what a search found and where."""
    counts = {"count": len(result.matches), "total": result.total, "more": result.more}
    return _parts("fd_matches", {"fd": result.handle, **counts}, [_match(match) for match in result.matches])


def fd_file_result(result: FileResult) -> str:
    """Show what was written to a file."""
    attributes: dict[str, Attribute] = {
        "fd": result.handle,
        "file_path": result.path,
        "mode": result.mode,
        "chars": result.chars_written,
        "bytes": result.bytes_written,
        "size": result.size,
        "lines": result.lines,
        "new_file": result.created,
        "insert_at": result.insert_at,
    }
    verb = {"write": "was written to", "append": "was added to the end of", "insert": "was inserted into"}[result.mode]
    now = f"{_count(result.lines, 'line')} and {_count(result.size, 'byte')}"
    message = f"{result.handle} {verb} {result.path}, which now has {now}"
    return _parts("fd_file_result", attributes, [element("message", {}, message)])


def fd_error(error: MamaStructsError, *, handle: str | None = None) -> str:
    """Show what went wrong and what to do about it; *handle* where the error does not say what the call was about."""
    attributes = {"type": error.type, "fd": getattr(error, "handle", None) or handle}
    return _parts("fd_error", attributes, [element("message", {}, str(error))])


def _place(excerpt: Excerpt) -> dict[str, Attribute]:
    """Say where an excerpt stands and what comes after it."""
    return {
        "mode": excerpt.mode,
        "start": excerpt.start,
        "count": excerpt.count,
        "page": excerpt.page,
        "pages": excerpt.pages,
        "lines": f"{excerpt.first_line}-{excerpt.last_line}",
        "total_lines": excerpt.total_lines,
        "chars": f"{excerpt.first_char}-{excerpt.last_char}" if excerpt.text else "none",
        "total_chars": excerpt.total_chars,
        "continued": excerpt.starts_in_line or None,
        "truncated": excerpt.ends_in_line or None,
        "next_start": excerpt.next_start,
        "next_char": excerpt.next_char,
        "remaining": excerpt.remaining,
        "remaining_chars": excerpt.remaining_chars,
    }


def _about_ref(ref: Ref) -> dict[str, Attribute]:
    """Say what a ref is; what its tag said comes last, and says nothing else than we do."""
    own: dict[str, Attribute] = {
        "id": ref.id,
        "created": ref.created_at.isoformat(timespec="seconds"),
        "lines": ref.lines,
        "chars": ref.chars,
        "version": ref.version,
        "category": ref.category,
        "complete": None if ref.complete else False,
    }
    said = {key: ref.attributes[key] for key in ("type", "lang", "title") if key in ref.attributes}
    return {**own, **said}


def _about(descriptor: Descriptor, shown: Preview) -> str:
    what = f"{descriptor.handle} holds {_count(descriptor.chars, 'character')} in {_count(descriptor.lines, 'line')}"
    if shown.omitted_range is None:
        return f"{what}, all of which are shown."
    ends = [name for name, part in (("beginning", shown.head), ("end", shown.tail)) if part]
    sight = {0: "none is shown", 1: f"the {''.join(ends)} is shown", 2: "beginning and end are shown"}[len(ends)]
    start, handle = shown.omitted_range[0], descriptor.handle
    onward = f'read_fd(fd="{handle}", mode="char", start={start}, count={descriptor.page_size})'
    pages = f'read_fd(fd="{handle}", page=1), {_count(descriptor.pages, "page")} in all'
    left_out = _count(shown.omitted_chars, "character")
    return f"{what}; {sight}; left out: {left_out}. To read on: {onward}. By pages: {pages}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _match(match: Match) -> str:
    place = {"line": match.line, "column": match.column, "char": match.char, "length": match.length}
    last = match.line if match.last_line == match.line else f"{match.line}-{match.last_line}"
    cut = match.prefix_cut or match.text_cut or match.suffix_cut
    shown = element("line", {"number": last, "cut": cut or None}, f"{match.prefix}{match.text}{match.suffix}")
    before, after = (
        [element("line", {"number": line.number, "cut": line.cut or None}, line.text) for line in lines]
        for lines in (match.before, match.after)
    )
    return _parts("match", place, [*before, shown, *after])


def _span(lines: tuple[int, int] | None) -> str | None:
    return None if lines is None else f"{lines[0]}-{lines[1]}"


def _parts(name: str, attributes: Mapping[str, Attribute], parts: Sequence[str]) -> str:
    inner = "".join(f"\n{part}" for part in parts)
    return f"{start_tag(name, attributes)}{inner}\n</{name}>" if parts else start_tag(name, attributes, empty=True)


# The system prompt

_REFERENCES = f"""\
<reference_id_instructions>
Mark a part of your answer that you or the user may need again (code, data, a draft), and use it later by its id instead
of writing it again:
<ref id="parser" type="code" lang="python">
def parse(text): ...
</ref>

- The id is {ID_RULE}. Choose one that says what the part is, and put it in quotes.
- The part can be used as ref:parser by every call that follows, in the same turn too. The tags are not part of it.
- An id that you use again makes a new version: ref:parser is the newest, ref:parser@1 the first.
- Put the tags outside of code fences; inside a fence or inline code they are plain text. A fence inside a ref is kept.
- Inside a ref, write &lt;ref or &lt;/ref where you mean the text and no tag. Refs may stand inside refs.
- Other attributes are kept. type is code, data or text.

Calls that use refs:
list_refs()                                              what is marked so far
get_ref(ref_id="parser")                                 all of it
read_fd(fd="ref:parser", mode="line", start=10, count=5) lines 10 to 14
search_fd(fd="ref:parser", query="parse")                where it says so
fd_to_file(fd="ref:parser", file_path="parser.py")       write it to a file
Any argument may be {{"$ref": "ref:parser"}} where you can write an object: the tool gets the marked text.
</reference_id_instructions>"""

_DESCRIPTORS = """\
<file_descriptor_instructions>
{intro}

- Everything is counted from 1: pages, lines, characters. A page has up to {page_size:,} characters.
- Each answer says what comes next and how much remains. What a preview leaves out, it says.
- Search before you read many pages. A number is never used again.

Calls:
read_fd(fd="fd:1", page=2)                               one page
read_fd(fd="fd:1", mode="line", start=10, count=5)       lines 10 to 14
read_fd(fd="fd:1", mode="char", start=1, count=200)      the first 200 characters
read_fd(fd="fd:1", read_all=true)                        all of it
read_fd(fd="fd:1", page=2, extract_to_new_fd=true)       keep page 2 as a new fd
search_fd(fd="fd:1", query="error", context=2)           matches with two lines around each
fd_to_file(fd="fd:1", file_path="out.txt")               write it to a file; mode="append" and mode="insert" too
Any argument may be {{"$ref": "fd:1"}} where you can write an object: the tool gets the whole text.
</file_descriptor_instructions>"""

_WRAPPING = (
    "Results and inputs with more than {wrap_over:,} characters are kept as fd:1, fd:2 and so on;\n"
    "you are shown the beginning and the end."
)
_FILE_CALL: Final = re.compile(r"^fd_to_file\(.*\n", re.MULTILINE)


def instructions(settings: DescriptorSettings, *, files: bool = False, stored: Sequence[Entry] | None = None) -> str:
    """Return the blocks for a system prompt; with *files*, how one is written, with *stored*, a list of these too."""
    if not settings.enabled:
        return ""
    intro = _WRAPPING.format(wrap_over=settings.wrap_over)
    blocks = [_DESCRIPTORS.format(intro=intro, page_size=settings.page_size)]
    if settings.references_enabled:
        blocks.insert(0, _REFERENCES)
    if stored is not None:
        blocks.append(handle_list(stored))
    prompt = "\n\n".join(blocks)
    return prompt if files else _FILE_CALL.sub("", prompt)
