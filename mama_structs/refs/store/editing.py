"""How a ref becomes another one: by what is appended, by an edit, or by being written again."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import attrs

from mama_structs.errors import InvalidParameter
from mama_structs.provenance import Provenance
from mama_structs.refs.markup.fences import enclosed
from mama_structs.refs.store.entries import Entry, Ref
from mama_structs.refs.store.text import Content

# What line mode writes before each line that it shows.
_NUMBERED: Final = re.compile(r"[ \t]*[0-9]+\t")
_SHOWN: Final = 5
_SHOWN_CHARS: Final = 120
_COMPARED: Final = 1_000
_SAID_NO: Final = frozenset({"false", "no", "0"})


@attrs.frozen
class Revision:
    """The next version of a ref: its text, the attributes of its tag, whether the tag closed, and its provenance."""

    text: str
    attributes: Mapping[str, str]
    complete: bool = True
    provenance: Provenance = attrs.field(kw_only=True)

    @classmethod
    def of_body(
        cls,
        body: str,
        ref: Ref,
        attributes: Mapping[str, str],
        *,
        author: Provenance,
        complete: bool = True,
    ) -> Revision:
        """Return a revision of *ref* with exactly this body, in the language of *ref*, changed by *author*."""
        said = {**attributes}
        if ref.language is not None and not {"lang", "language"} & said.keys():
            said["lang"] = ref.language
        said.pop("fence", None)
        if enclosed(body) is not None:
            said["fence"] = "keep"
        return cls(body, said, complete, provenance=ref.provenance.limited_by(author))


def asks_to_append(attributes: Mapping[str, str]) -> bool:
    """Tell whether a tag asks to go on with an earlier ref."""
    return attributes.get("append", "no").lower() not in _SAID_NO


def appended(ref: Ref, more: Revision) -> Revision:
    """
    Return a ref with *more* appended: on a new line, or without a line break if the ref is incomplete.

    A continuation inside an open code fence may close that fence, or repeat it.
    """
    said = {**ref.attributes, **more.attributes}
    own = enclosed(more.text)
    if not ref.complete and own is None:
        provenance = ref.provenance.limited_by(more.provenance)
        return Revision(f"{ref.text}{more.text}", said, more.complete, provenance=provenance)
    keeps = more.attributes.get("fence", "").lower() == "keep"
    added = more.text if own is None or keeps else own.text
    body = ref.body.text
    line_break = "\r\n" if "\r\n" in body else "\n"
    between = line_break if ref.complete and body and added and not body.endswith("\n") else ""
    return Revision.of_body(f"{body}{between}{added}", ref, said, author=more.provenance, complete=more.complete)


def is_same(ref: Ref, other: Ref) -> bool:
    """Return True if *other*, as the next version, would add nothing to *ref*, whoever writes it."""
    if ref.body != other.body or ref.complete != other.complete:
        return False
    known = {"lang": ref.language, "language": ref.language, **ref.attributes}
    said = {**other.attributes, **({"lang": other.language} if other.language else {})}
    # Whether a fence was kept is in the body.
    return all(known.get(name) == value for name, value in said.items() if name != "fence")


# Edits


def edited(entry: Ref, old: str, new: str, *, author: Provenance) -> Revision:
    """Return a ref in which *new* by *author* replaces the only *old*, or raise `InvalidParameter`."""
    handle, body = entry.versioned, entry.body.text
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
        # Nobody sees, or writes, the carriage returns of a content.
        old, new = (re.sub(r"\r?\n", "\r\n", text) for text in (old, new))
    places = list(islice(_places(body, old), _SHOWN + 1))
    if len(places) == 1:
        changed = f"{body[: places[0]]}{new}{body[places[0] + len(old) :]}"
        return Revision.of_body(changed, entry, entry.attributes, author=author, complete=entry.complete)
    raise _many(handle, entry.body, places) if places else _none(handle, entry.body, old)


def _places(text: str, wanted: str) -> Iterator[int]:
    """Go through the offsets at which a text stands in another, those that overlap included."""
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _many(handle: str, body: Content, places: list[int]) -> InvalidParameter:
    candidates = _lines(body, dict.fromkeys(body.text.count("\n", 0, place) + 1 for place in places[:_SHOWN]))
    times = f"{len(places)} times" if len(places) <= _SHOWN else f"more than {_SHOWN} times"
    return InvalidParameter(
        f"old stands {times} in {handle}, and must stand there once",
        parameter="old",
        handle=handle,
        candidates=candidates,
        hint="give more of the text around the one that you mean",
    )


def _none(handle: str, body: Content, old: str) -> InvalidParameter:
    if _NUMBERED.match(old):
        return InvalidParameter(
            "old begins with a line number and a tab, which read_fd writes and the text does not have",
            parameter="old",
            handle=handle,
            hint="leave the numbers out, in new as well",
        )
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:_SHOWN_CHARS]
    known: dict[str, int] = {}
    for number, line in enumerate(body.text.split("\n"), 1):
        known.setdefault(line.strip()[:_SHOWN_CHARS], number)
    # Comparing takes long: of a long text only the beginning is compared with what is nowhere as it stands.
    beginning = list(islice(known, _COMPARED))
    close = [wanted] if wanted in known else difflib.get_close_matches(wanted, beginning, n=_SHOWN, cutoff=0.5)
    return InvalidParameter(
        f"old does not stand in {handle}, character for character",
        parameter="old",
        handle=handle,
        candidates=_lines(body, [known[line] for line in close if wanted]),
        hint="copy it exactly, with its blanks and line breaks; read_fd shows the text",
    )


def _lines(body: Content, numbers: Iterable[int]) -> tuple[str, ...]:
    """Show lines of a content, by their numbers."""
    lines = body.text.split("\n")
    shown = {number: lines[number - 1].rstrip("\r") for number in numbers}
    cut = {number: line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…" for number, line in shown.items()}
    return tuple(f"line {number}: {line}" for number, line in cut.items())


def difference(before: Entry, after: Entry) -> str:
    """Return what changed from one body to another as a unified diff, "" where nothing did."""
    old, new = (entry.body.text.split("\n") for entry in (before, after))
    return "\n".join(difflib.unified_diff(old, new, before.versioned, after.versioned, lineterm=""))
