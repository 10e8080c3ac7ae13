"""
Rendering of results for models as XML-like elements, and the system prompt.

Content is not escaped: escaping makes code up to 50 % longer, and models copy the entities. To prevent content from
closing its element, both tags get a random ``end`` attribute if the content looks like it contains one of our tags.
Attributes and messages are escaped. Control characters other than tab and line breaks become U+FFFD; the element states
how many were replaced.
"""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeVar

import attrs

from mama_structs._internal.budget import Budget
from mama_structs._internal.prompt_quoting import INVISIBLE_CHARS
from mama_structs._internal.reprs import format_count
from mama_structs.errors import MamaStructsError
from mama_structs.refs.store.entries import Descriptor, Entry, Ref
from mama_structs.refs.store.export import FileResult
from mama_structs.refs.store.text import Excerpt, Preview
from mama_structs.refs.store.text_search import Match, SearchResult
from mama_structs.settings import DescriptorSettings

# Control characters, and characters that XML 1.0 or UTF-8 forbids. U+0085 is missing, because it is a line break.
_FORBIDDEN_CHARS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_REPLACEMENT: Final = "\ufffd"
_TAG_NAMES: Final = (
    "fd_content",
    "fd_error",
    "fd_extraction",
    "fd_file_result",
    "fd_matches",
    "fd_result",
    "ref_content",
    "ref_list",
    "ref_stored",
    "stored_handles",
    "file_descriptor_instructions",
    "reference_id_instructions",
    "message",
    "omitted",
    "recalled",
    "match",
    "head",
    "tail",
    "ref",
    "fd",
)
_MAX_ATTRIBUTE_CHARS: Final = {"title": 80, "type": 20, "lang": 20, "source": 80, "file_path": 200}
# Maximum length of the values of all other attributes, such as invalid handles and other text from callers.
_MAX_OTHER_ATTRIBUTE_CHARS: Final = 100
# Minimum number of characters to request in the call that reads the next part.
_MIN_NEXT_CHARS: Final = 4_000
# Approximate number of characters of a short element in a list.
_ROW_CHARS: Final = 80

Attribute = str | int | bool | None
E = TypeVar("E", Ref, Entry)


def start_tag(name: str, attributes: Mapping[str, Attribute], *, empty: bool = False) -> str:
    """Return a start tag, self-closing if *empty*. Attributes with value None are omitted."""
    written = "".join(f' {key}="{_escape_attribute(value)}"' for key, value in attributes.items() if value is not None)
    return f"<{name}{written}{'/' if empty else ''}>"


def message_element(text: str) -> str:
    """Return a message element with escaped text."""
    return f"<message>{_escape(_FORBIDDEN_CHARS.sub(_REPLACEMENT, text))}</message>"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_attribute(value: Attribute) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _escape(_FORBIDDEN_CHARS.sub(_REPLACEMENT, str(value)))
    # Escape quotes, and the whitespace that an XML parser would normalize to spaces.
    for character, written in (('"', "&quot;"), ("\n", "&#10;"), ("\t", "&#9;"), ("\r", "&#13;")):
        text = text.replace(character, written)
    return text


def _truncate_attributes(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes, with long values truncated."""
    longest = {key: _MAX_ATTRIBUTE_CHARS.get(key, _MAX_OTHER_ATTRIBUTE_CHARS) for key in attributes}
    return {
        key: f"{value[: longest[key]]}…" if isinstance(value, str) and len(value) > longest[key] else value
        for key, value in attributes.items()
    }


@attrs.frozen
class Rendering:
    """
    Renders the answers of one store within a budget.

    No content can close the element that contains it.
    """

    budget: Budget
    _secret: bytes = attrs.field(factory=lambda: secrets.token_bytes(16), init=False, repr=False, eq=False)

    def quote_element(self, name: str, attributes: Mapping[str, Attribute], text: str) -> str:
        """
        Return an element around unescaped text.

        If characters were replaced, the attribute ``replaced`` is their number.
        """
        clean, replaced = _FORBIDDEN_CHARS.subn(_REPLACEMENT, text)
        end = self._make_end_mark(text) if "<" in text and _tag_pattern().search(text) else None
        start = start_tag(name, {**attributes, "replaced": replaced or None, "end": end})
        return f"{start}{clean}{start_tag(f'/{name}', {'end': end})}"

    def _make_end_mark(self, text: str) -> str:
        """Return the mark of an end tag: a keyed hash that cannot be guessed and does not occur in the text."""
        data, key, end = text.encode(errors="surrogatepass"), self._secret, ""
        while not end or end in text:
            key = hashlib.blake2b(data, key=key, digest_size=16).digest()
            end = key[:4].hex()
        return end

    # Text that was read

    def render_content(self, excerpt: Excerpt) -> str:
        """Render a read excerpt, truncated to the budget."""
        about: dict[str, Attribute] = {"fd": excerpt.handle, "page": excerpt.page, "pages": excerpt.pages}
        totals: dict[str, Attribute] = {"total_lines": excerpt.total_lines, "total_chars": excerpt.total_chars}

        def tag(place: Mapping[str, Attribute]) -> dict[str, Attribute]:
            return {**about, **place, **totals}

        return (
            self._render_lines(excerpt, tag)
            if excerpt.mode == "line"
            else self._render_part("fd_content", excerpt, tag)
        )

    def render_ref(self, ref: Ref, excerpt: Excerpt) -> str:
        """Render a ref, truncated to the budget. *excerpt* contains the complete text of the ref."""
        about = _ref_attributes(ref)

        def tag(place: Mapping[str, Attribute]) -> dict[str, Attribute]:
            shown = {"shown_lines": place["lines"], "shown_chars": place["chars"]} if place["next"] else {}
            return {**about, **shown, **{key: value for key, value in place.items() if key not in {"lines", "chars"}}}

        return self._render_part("ref_content", excerpt, tag, line_break="\n")

    def _render_part(
        self,
        name: str,
        excerpt: Excerpt,
        tag: Callable[[Mapping[str, Attribute]], dict[str, Attribute]],
        *,
        line_break: str = "",
    ) -> str:
        """
        Render the beginning of an excerpt, with a line break after the opening tag and before the closing tag.

        It is cut at the end of a line, unless that removes more than half of the characters that fit.
        """
        text = excerpt.text

        def render_prefix(length: int) -> str:
            shown = f"{line_break}{text[:length]}{line_break}"
            return self.quote_element(name, tag(_position_attributes(excerpt, length)), shown)

        length = self.budget.find_max_items(len(text), render_prefix)
        if length < len(text):
            length = text.rfind("\n", length // 2, length) + 1 or length
            length -= length > 1 and text[length - 1] == "\r" and text[length] == "\n"
        return render_prefix(length)

    def _render_lines(self, excerpt: Excerpt, tag: Callable[[Mapping[str, Attribute]], dict[str, Attribute]]) -> str:
        """Render numbered lines, or the beginning of a line that is longer than the budget."""
        lines, first = excerpt.text.removesuffix("\n").split("\n"), excerpt.first_line
        ends = [*accumulate(len(line) + 1 for line in lines)]
        ends[-1] = len(excerpt.text)

        def render_count(count: int) -> str:
            place = _position_attributes(excerpt, ends[count - 1])
            if count < len(lines):
                # Request the same number of lines again. A request for the omitted lines would make later reads small.
                following = first + count
                place["next"] = _read_call(
                    excerpt, "line", following, min(len(lines), excerpt.total_lines - following + 1)
                )
            return self.quote_element("fd_content", tag(place), _number_lines(first, lines[:count]))

        def render_line_prefix(length: int) -> str:
            place = _position_attributes(excerpt, length)
            place["next"] = _read_call(excerpt, "char", excerpt.first_char + length, ends[0] - length)
            return self.quote_element("fd_content", tag(place), f"\n{first}\t{lines[0][:length]}")

        if count := self.budget.find_max_items(len(lines), render_count):
            return render_count(count)
        return render_line_prefix(max(1, self.budget.find_max_items(len(lines[0]), render_line_prefix)))

    def render_extraction(self, excerpt: Excerpt, made: Descriptor) -> str:
        """Render the confirmation that an excerpt was stored as a new descriptor."""
        attributes = {
            "fd": excerpt.handle,
            "new_fd": made.handle,
            **_position_attributes(excerpt, len(excerpt.text)),
            "next": None,
        }
        about = f"{made.handle} now holds {format_count(made.chars, 'character')} of {excerpt.handle}"
        return _join_parts("fd_extraction", attributes, [message_element(about)])

    def render_result(self, descriptor: Descriptor, shown: Preview) -> str:
        """Render the preview of a large result: size, beginning, end, and the omitted range."""
        content = descriptor.content
        attributes: dict[str, Attribute] = {
            "fd": descriptor.handle,
            "source": descriptor.source,
            "chars": content.chars,
            "lines": content.lines,
            "pages": descriptor.pages,
            "category": descriptor.category,
        }
        parts = [message_element(_describe_preview(descriptor, shown))]
        if shown.head:
            place: dict[str, Attribute] = {"lines": _format_range(shown.head_lines), "chars": f"1-{len(shown.head)}"}
            parts.append(
                self.quote_element("head", {**place, "truncated": shown.head_ends_in_line or None}, shown.head)
            )
        if shown.omitted_chars:
            omitted = {"chars": _format_range(shown.omitted_range), "lines": _format_range(shown.omitted_lines)}
            parts.append(start_tag("omitted", omitted, empty=True))
        if shown.tail:
            first = content.chars - len(shown.tail) + 1
            place = {"lines": _format_range(shown.tail_lines), "chars": f"{first}-{content.chars}"}
            parts.append(
                self.quote_element("tail", {**place, "continued": shown.tail_starts_in_line or None}, shown.tail)
            )
        return _join_parts("fd_result", attributes, parts)

    # Lists

    def render_refs(
        self,
        refs: Sequence[Ref],
        *,
        start: int = 1,
        category: str | None = None,
        creation_times: Mapping[str, datetime] | None = None,
    ) -> str:
        """
        Render a list of refs from number *start* (from 1), as many as fit in the budget.

        All refs belong to *category*, if it is given. *creation_times* has the times of first versions by handle.
        """
        only = "" if category is None else f"category='{category}', "
        rows = _LazyElements(refs[start - 1 :], creation_times)

        def render_count(count: int) -> str:
            following = start + count
            attributes: dict[str, Attribute] = {
                "count": len(refs),
                "start": start if start > 1 else None,
                "next": f"list_refs({only}start={following})" if following <= len(refs) else None,
            }
            return _join_parts("ref_list", attributes, rows.first(count))

        return render_count(self.budget.find_max_items(len(rows), render_count, item_size=_ROW_CHARS))

    def render_handles(self, entries: Sequence[Entry]) -> str:
        """Render as many stored handles as fit in the budget, newest first, for a system prompt."""
        rows = _LazyElements(newest_first(entries))

        def render_count(count: int) -> str:
            number = count if count < len(rows) else None
            return _join_parts("stored_handles", {"count": len(rows), "shown": number}, rows.first(count))

        return render_count(self.budget.find_max_items(len(rows), render_count, item_size=_ROW_CHARS))

    def render_matches(self, result: SearchResult) -> str:
        """
        Render as many search matches as fit in the budget.

        If not even one fits, its context and then the match itself are truncated.
        """
        found = result.matches
        context = max((max(len(match.before), len(match.after)) for match in found), default=0)

        def render_count(count: int, *, context: int = context, width: int | None = None) -> str:
            following = found[count].char if count < len(found) else result.next_start
            attributes: dict[str, Attribute] = {
                "fd": result.handle,
                "count": count,
                "total": result.total,
                "more": following is not None or None,
                "next": None if following is None else f"the same with start={following}",
            }
            return _join_parts(
                "fd_matches", attributes, [self._render_match(one, context, width) for one in found[:count]]
            )

        count = self.budget.find_max_items(len(found), render_count)
        if count or not found:
            return render_count(count)
        context = self.budget.find_max_items(context, lambda context: render_count(1, context=context))
        if self.budget.fits(answer := render_count(1, context=context)):
            return answer
        widest = max(len(match.prefix) + len(match.text) + len(match.suffix) for match in found[:1])
        return render_count(
            1,
            context=0,
            width=self.budget.find_max_items(widest, lambda width: render_count(1, context=0, width=width)),
        )

    def _render_match(self, match: Match, context: int, width: int | None) -> str:
        """Render a match with *context* lines before and after it, and at most *width* characters."""
        own = f"{match.prefix}{match.text}{'' if match.text_cut else match.suffix}"
        lines = own.removesuffix("\n").split("\n")
        before, after = match.before[len(match.before) - context :] if context else (), match.after[:context]
        numbered = [
            *((line.number, line.text) for line in before),
            *enumerate(lines if width is None else [own[:width].partition("\n")[0]], match.line),
            *((line.number, line.text) for line in after),
        ]
        cut = match.prefix_cut or match.text_cut or match.suffix_cut or width is not None
        place: dict[str, Attribute] = {
            "line": match.line if match.last_line == match.line else f"{match.line}-{match.last_line}",
            "char": match.char,
            "length": match.length,
            "cut": cut or any(line.cut for line in (*before, *after)) or None,
        }
        return self.quote_element(
            "match", place, "".join(["\n", *(f"{number}\t{text}\n" for number, text in numbered)])
        )

    # Confirmations and errors

    def render_stored(self, ref: Ref) -> str:
        """Render the confirmation that a ref was stored."""
        attributes: dict[str, Attribute] = {"id": ref.id, "version": ref.version, "lines": ref.lines}
        return start_tag("ref_stored", {**attributes, "chars": ref.chars}, empty=True)

    def render_file_result(self, result: FileResult) -> str:
        """Render the result of a file export."""
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
        verb = {"write": "was written to", "append": "was added to the end of", "insert": "was inserted into"}
        path = str(_truncate_attributes({"file_path": result.path})["file_path"])
        now = f"{format_count(result.lines, 'line')} and {format_count(result.size, 'byte')}"
        about = f"{result.handle} {verb[result.mode]} {path}, which now has {now}"
        return _join_parts("fd_file_result", _truncate_attributes(attributes), [message_element(about)])

    def render_error(self, error: MamaStructsError, *, handle: str | None = None) -> str:
        """Render an error with its hint. *handle* is shown if the error itself has no handle."""
        attributes = _truncate_attributes({"type": error.type, "fd": getattr(error, "handle", None) or handle})
        lines = getattr(error, "candidates", ())
        see = f"; see {'; '.join(lines)}" if lines else ""
        text = f"{error.args[0]}{see}{f' ({error.hint})' if error.hint else ''}"

        def render_prefix(length: int) -> str:
            return _join_parts(
                "fd_error", attributes, [message_element(text if length == len(text) else f"{text[:length]}…")]
            )

        return render_prefix(self.budget.find_max_items(len(text), render_prefix))


def newest_first(entries: Sequence[E]) -> list[E]:
    """Return entries sorted by time, newest first."""
    return sorted(entries, key=lambda entry: entry.created_at)[::-1]


class _LazyElements:
    """List elements that are rendered lazily, because only a small part of a long list fits."""

    def __init__(self, entries: Sequence[Entry], creation_times: Mapping[str, datetime] | None = None) -> None:
        self._entries = entries
        self._creation_times = creation_times or {}
        self._made: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def first(self, count: int) -> list[str]:
        """Return the first *count* elements."""
        new = self._entries[len(self._made) : count]
        self._made += [_render_row(one, self._creation_times.get(one.handle)) for one in new]
        return self._made[:count]


def _render_row(entry: Entry, created_at: datetime | None) -> str:
    if isinstance(entry, Ref):
        return start_tag("ref", _ref_attributes(entry, created_at), empty=True)
    about: dict[str, Attribute] = {
        "fd": entry.handle,
        "source": entry.source,
        "lines": entry.lines if entry.is_text else None,
        "chars": entry.chars if entry.is_text else None,
        "mime_type": None if entry.is_text else entry.mime_type,
        "bytes": None if entry.is_text else entry.size,
    }
    return start_tag("fd", _truncate_attributes(about), empty=True)


def _position_attributes(excerpt: Excerpt, length: int) -> dict[str, Attribute]:
    """
    Return attributes that state the position of an excerpt, and the call that reads the next part.

    *length* is the number of rendered characters.
    """
    last, whole = excerpt.first_char - 1 + length, length == len(excerpt.text)
    if not whole:
        following = _read_call(excerpt, "char", last + 1, len(excerpt.text) - length)
    elif excerpt.next_start is None or excerpt.mode == "all":
        following = None
    else:
        # Enforce a minimum: *count* may be a small remainder, and would make all later reads small.
        count = max(excerpt.count, _MIN_NEXT_CHARS) if excerpt.mode == "char" else excerpt.count
        following = _read_call(excerpt, excerpt.mode, excerpt.next_start, count)
    return {
        "lines": f"{excerpt.first_line}-{excerpt.first_line + excerpt.text.count(chr(10), 0, max(0, length - 1))}",
        "chars": f"{excerpt.first_char}-{last}" if length else "none",
        "continued": excerpt.starts_in_line or None,
        "truncated": (excerpt.ends_in_line if whole else excerpt.text[length - 1] != "\n") or None,
        "next": following,
        "remaining_chars": excerpt.total_chars - last or None,
    }


def _read_call(excerpt: Excerpt, mode: str, start: int, count: int) -> str:
    """Return the tool call, as text, that reads from *start*."""
    if mode == "page":
        where = f"start={start}" if count == 1 else f"start={start}, count={count}"
    else:
        where = f"mode='{mode}', start={start}, count={count}"
    return f"read_fd(fd='{excerpt.handle}', {where})"


def _number_lines(first: int, lines: Sequence[str]) -> str:
    """Return numbered lines as text. The text begins with a line break."""
    return "".join(["\n", *(f"{number}\t{line}\n" for number, line in enumerate(lines, first))])


def _ref_attributes(ref: Ref, created_at: datetime | None = None) -> dict[str, Attribute]:
    """
    Return the attributes of a ref: its own data, and values from its tag.

    Values from the tag never replace its own data. *created_at* is the time of the first version, if it is known.
    """
    created, updated = created_at or ref.created_at, ref.created_at
    own: dict[str, Attribute] = {
        "id": ref.id,
        "created": created.isoformat(timespec="seconds"),
        "updated": updated.isoformat(timespec="seconds") if updated != created else None,
        "lines": ref.lines,
        "chars": ref.chars,
        "version": ref.version,
        "category": ref.category,
        "complete": None if ref.is_complete else False,
    }
    said = {"type": ref.attributes.get("type"), "lang": ref.language, "title": ref.attributes.get("title")}
    return _truncate_attributes({**own, **said})


def _describe_preview(descriptor: Descriptor, shown: Preview) -> str:
    chars, lines = format_count(descriptor.chars, "character"), format_count(descriptor.lines, "line")
    what = f"{descriptor.handle} holds {chars} in {lines}"
    if shown.omitted_range is None:
        return f"{what}, all of which are shown."
    ends = [name for name, part in (("beginning", shown.head), ("end", shown.tail)) if part]
    sight = {0: "none is shown", 1: f"the {''.join(ends)} is shown", 2: "beginning and end are shown"}[len(ends)]
    start, handle = shown.omitted_range[0], descriptor.handle
    onward = f'read_fd(fd="{handle}", mode="char", start={start}, count={descriptor.page_size})'
    pages = f'read_fd(fd="{handle}", start=1), {format_count(descriptor.pages, "page")} in all'
    left_out = format_count(shown.omitted_chars, "character")
    return f"{what}; {sight}; left out: {left_out}. To read on: {onward}. By pages: {pages}."


def _format_range(lines: tuple[int, int] | None) -> str | None:
    return None if lines is None else f"{lines[0]}-{lines[1]}"


def _join_parts(name: str, attributes: Mapping[str, Attribute], parts: Sequence[str]) -> str:
    inner = "".join(f"\n{part}" for part in parts)
    return f"{start_tag(name, attributes)}{inner}\n</{name}>" if parts else start_tag(name, attributes, empty=True)


# The system prompt

_WORD: Final = re.compile(r"\w+")


def render_instructions(
    settings: DescriptorSettings, *, missing_tools: AbstractSet[str], outlives_process: bool
) -> str:
    """Return the system prompt blocks, without the lines that name *missing_tools*."""
    if not settings.enabled:
        return ""
    blocks = [_load_prompt("prompt_descriptors").format(page_size=settings.page_size)]
    if settings.marks_enabled:
        lifetime = ", also after a restart" if outlives_process else ""
        blocks.insert(0, _load_prompt("prompt_refs").format(lifetime=lifetime))
    lines = "\n\n".join(blocks).split("\n")
    return "\n".join(line for line in lines if missing_tools.isdisjoint(_WORD.findall(line)))


@functools.cache
def _tag_pattern() -> re.Pattern[str]:
    """Return the pattern of texts that resemble a tag. Compiling it takes 30 ms, so this is done at the first use."""
    names = "|".join(f"[{INVISIBLE_CHARS}]*+".join(name) for name in _TAG_NAMES)
    # Possessive quantifiers, so that a run of blanks is scanned only once.
    blanks = rf"[\s{INVISIBLE_CHARS}]*+"
    return re.compile(rf"<{blanks}(?:/{blanks})?+(?:{names})(?![A-Za-z0-9_])", re.IGNORECASE)


@functools.cache
def _load_prompt(name: str) -> str:
    return Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").rstrip()
