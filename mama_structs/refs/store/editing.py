"""New versions of refs: appending, editing, rewriting, and diffs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import attrs

from mama_structs.errors import InvalidParameter
from mama_structs.provenance import Provenance
from mama_structs.refs.markup.fences import parse_enclosing_fence
from mama_structs.refs.store.entries import Entry, Ref
from mama_structs.refs.store.text import Content

# Prefix that models see before each line if they read in line mode.
_LINE_NUMBER_PREFIX: Final = re.compile(r"[ \t]*[0-9]+\t")
_MAX_CANDIDATES: Final = 5
_MAX_LINE_CHARS: Final = 120
_MAX_COMPARED_LINES: Final = 1_000
_FALSE_VALUES: Final = frozenset({"false", "no", "0"})


@attrs.frozen
class Revision:
    """Data of the next version of a ref: text, attributes, completeness and provenance."""

    text: str
    attributes: Mapping[str, str]
    complete: bool = True
    provenance: Provenance = attrs.field(kw_only=True)

    @classmethod
    def from_body(
        cls,
        body: str,
        ref: Ref,
        attributes: Mapping[str, str],
        *,
        author: Provenance,
        complete: bool = True,
    ) -> Revision:
        """
        Return a revision of *ref* with exactly this body.

        The language of *ref* is kept. *author* is the provenance of the change.
        """
        said = {**attributes}
        if ref.language is not None and not {"lang", "language"} & said.keys():
            said["lang"] = ref.language
        said.pop("fence", None)
        if parse_enclosing_fence(body) is not None:
            said["fence"] = "keep"
        return cls(body, said, complete, provenance=ref.provenance.merge_with(author))


def is_append_requested(attributes: Mapping[str, str]) -> bool:
    """Return True if a tag has an attribute that requests appending to the earlier ref."""
    return attributes.get("append", "no").lower() not in _FALSE_VALUES


def append_revision(ref: Ref, more: Revision) -> Revision:
    """
    Return a revision of *ref* with the text of *more* appended.

    The text starts on a new line, or directly after the old text if the ref is incomplete. A continuation inside an
    open code fence may close that fence, or repeat it.
    """
    said = {**ref.attributes, **more.attributes}
    own = parse_enclosing_fence(more.text)
    if not ref.is_complete and own is None:
        provenance = ref.provenance.merge_with(more.provenance)
        return Revision(f"{ref.text}{more.text}", said, more.complete, provenance=provenance)
    keeps = more.attributes.get("fence", "").lower() == "keep"
    added = more.text if own is None or keeps else own.text
    body = ref.body.text
    line_break = "\r\n" if "\r\n" in body else "\n"
    between = line_break if ref.is_complete and body and added and not body.endswith("\n") else ""
    return Revision.from_body(f"{body}{between}{added}", ref, said, author=more.provenance, complete=more.complete)


def is_unchanged(ref: Ref, other: Ref) -> bool:
    """
    Return True if *other* has the same content and attributes as *ref*, so that no new version is needed.

    The authors are not compared.
    """
    if ref.body != other.body or ref.is_complete != other.is_complete:
        return False
    known = {"lang": ref.language, "language": ref.language, **ref.attributes}
    said = {**other.attributes, **({"lang": other.language} if other.language else {})}
    # The comparison of bodies above already covers the attribute "fence".
    return all(known.get(name) == value for name, value in said.items() if name != "fence")


# Edits


def replace_text(entry: Ref, old: str, new: str, *, author: Provenance) -> Revision:
    """
    Return a ref in which *new* replaces the only occurrence of *old*.

    Raises:
        InvalidParameter: *old* does not occur exactly once, or an argument is not text.

    """
    handle, body = entry.versioned_handle, entry.body.text
    for name, value in (("old", old), ("new", new)):
        if not isinstance(value, str):
            raise InvalidParameter(f"{name} must be text, got {type(value).__name__}", parameter=name, handle=handle)
    if not old:
        raise InvalidParameter(
            "old must not be empty",
            parameter="old",
            handle=handle,
            hint="to add to the end write <ref id=... append>; to write all of it anew use put_ref",
        )
    if "\r\n" in body and "\r" not in old and old not in body:
        # Models omit carriage returns in *old* and *new*, because they do not see them.
        old, new = (re.sub(r"\r?\n", "\r\n", text) for text in (old, new))
    places = list(islice(_find_offsets(body, old), _MAX_CANDIDATES + 1))
    if len(places) == 1:
        changed = f"{body[: places[0]]}{new}{body[places[0] + len(old) :]}"
        return Revision.from_body(changed, entry, entry.attributes, author=author, complete=entry.is_complete)
    raise _ambiguous_text_error(handle, entry.body, places) if places else _missing_text_error(handle, entry.body, old)


def _find_offsets(text: str, wanted: str) -> Iterator[int]:
    """Yield all offsets of a text in another, including overlapping ones."""
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _ambiguous_text_error(handle: str, body: Content, places: list[int]) -> InvalidParameter:
    candidates = _format_lines(
        body, dict.fromkeys(body.text.count("\n", 0, place) + 1 for place in places[:_MAX_CANDIDATES])
    )
    times = f"{len(places)} times" if len(places) <= _MAX_CANDIDATES else f"more than {_MAX_CANDIDATES} times"
    return InvalidParameter(
        f"old stands {times} in {handle}, and must stand there once",
        parameter="old",
        handle=handle,
        candidates=candidates,
        hint="give more of the text around the one that you mean",
    )


def _missing_text_error(handle: str, body: Content, old: str) -> InvalidParameter:
    if _LINE_NUMBER_PREFIX.match(old):
        return InvalidParameter(
            "old begins with a line number and a tab, which read_fd writes and the text does not have",
            parameter="old",
            handle=handle,
            hint="leave the numbers out, in new as well",
        )
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:_MAX_LINE_CHARS]
    known: dict[str, int] = {}
    for number, line in enumerate(body.text.split("\n"), 1):
        known.setdefault(line.strip()[:_MAX_LINE_CHARS], number)
    # Compare only the first lines of a long text, because fuzzy comparison is slow.
    beginning = list(islice(known, _MAX_COMPARED_LINES))
    close = [wanted] if wanted in known else difflib.get_close_matches(wanted, beginning, n=_MAX_CANDIDATES, cutoff=0.5)
    return InvalidParameter(
        f"old does not stand in {handle}, character for character",
        parameter="old",
        handle=handle,
        candidates=_format_lines(body, [known[line] for line in close if wanted]),
        hint="copy it exactly, with its blanks and line breaks; read_fd shows the text",
    )


def _format_lines(body: Content, numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the numbered lines of a content as messages, with long lines truncated."""
    lines = body.text.split("\n")
    shown = {number: lines[number - 1].rstrip("\r") for number in numbers}
    cut = {
        number: line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…" for number, line in shown.items()
    }
    return tuple(f"line {number}: {line}" for number, line in cut.items())


def make_unified_diff(before: Entry, after: Entry) -> str:
    """Return a unified diff between two bodies, or "" if they are equal."""
    old, new = (entry.body.text.split("\n") for entry in (before, after))
    return "\n".join(difflib.unified_diff(old, new, before.versioned_handle, after.versioned_handle, lineterm=""))
