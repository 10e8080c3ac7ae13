"""What a system prompt says about refs and descriptors."""

from __future__ import annotations

from collections.abc import Sequence

from mama_structs.descriptors.entries import Entry
from mama_structs.descriptors.handles import ID_RULE
from mama_structs.descriptors.render import handle_list
from mama_structs.settings import DescriptorSettings

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
_NOT_WRAPPING = "Long texts may be kept for you as fd:1, fd:2 and so on."


def instructions(settings: DescriptorSettings, *, stored: Sequence[Entry] | None = None) -> str:
    """
    Return the blocks for a system prompt.

    Args:
        settings: What is switched on, and the numbers.
        stored: Entries to list; None for no list.

    """
    intro = _WRAPPING.format(wrap_over=settings.wrap_over) if settings.enabled else _NOT_WRAPPING
    blocks = [_DESCRIPTORS.format(intro=intro, page_size=settings.page_size)]
    if settings.references_enabled:
        blocks.insert(0, _REFERENCES)
    if stored is not None:
        blocks.append(handle_list(stored))
    return "\n\n".join(blocks)
