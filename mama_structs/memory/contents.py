"""
Evidence that is kept: what a handle stood for when a memory was saved lives on with the memories that name it.

Such an item of `Memory.evidence` holds both, ``ref:plan@2#sha256:<64 hexadecimal digits>``: where the text came from,
and the hash under which the store keeps it, once, for as long as any memory names it.
Every other item, an id, an address or any words, is plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

import attrs

from mama_structs import _check
from mama_structs._async import in_own_thread
from mama_structs.errors import InvalidArgument

FindContent = Callable[[str], tuple[str, str] | None]
"""Gives the versioned handle and the text of what a handle stands for, None for what is no handle."""

LARGEST: Final = 2**25
"""Bytes of UTF-8 of a kept text at the most: however it is escaped, a line of an export holds it."""

# Of no other scheme: an address with such a fragment is plain evidence.
_KEPT: Final = re.compile(r"((?:ref|fd):[^\s#]{1,200})#sha256:([0-9a-f]{64})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Below this a thread costs more than the hashing.
_LONG: Final = 2**20


@attrs.frozen
class KeptItem:
    """An item of evidence whose text is kept."""

    source: str
    digest: str

    def __str__(self) -> str:
        return f"{self.source}#sha256:{self.digest}"


@attrs.frozen
class HandleText:
    """What a handle stands for."""

    source: str
    text: str = attrs.field(repr=False)


def nothing(_item: str) -> None:
    """Know no handle; a `FindContent`."""


def parse_kept(item: str) -> KeptItem | None:
    """Return what an item of evidence names that is kept, None for a plain one."""
    found = _KEPT.fullmatch(item)
    return None if found is None else KeptItem(found[1], found[2])


def digests_in(evidence: Iterable[str]) -> tuple[str, ...]:
    """Return the hashes of the kept texts that evidence names, each once."""
    return tuple(dict.fromkeys(kept.digest for kept in map(parse_kept, evidence) if kept is not None))


def digest_of(text: str) -> str:
    """Return the hash under which a text is kept."""
    return sha256(text.encode()).hexdigest()


def is_digest(text: str) -> bool:
    """Tell whether a text has the form of such a hash."""
    return _DIGEST.fullmatch(text) is not None


def find_all(evidence: Sequence[str], find_content: FindContent, *, most: int) -> tuple[str | HandleText, ...]:
    """Return evidence with what its handles stand for in their places."""
    return tuple(_found(position, item, find_content, min(most, LARGEST)) for position, item in enumerate(evidence))


def _found(position: int, item: str, find_content: FindContent, most: int) -> str | HandleText:
    found = None if parse_kept(item) is not None else find_content(item)
    if found is None:
        return item
    source, text = found
    if parse_kept(str(KeptItem(source, "0" * 64))) is None:
        raise ValueError("find_content gave a source that is no handle")
    name = f"evidence[{position}]"
    size = len(_check.encodable(name, text, whose=" of its text"))
    if size > most:
        more = ", or raise settings.memory.max_evidence" if most < LARGEST else ""
        raise InvalidArgument(
            f"{name} must stand for at most {most} bytes of text, got {size}",
            hint=f"mark the part that matters as a ref of its own{more}",
        )
    return HandleText(source, text)


async def kept(found: Sequence[Sequence[str | HandleText]]) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Return evidence as memories have it, from what `find_all` gave for each, and the texts in it by their hash."""
    texts = {item.text for items in found for item in items if isinstance(item, HandleText)}

    def work() -> dict[str, str]:
        return {text: digest_of(text) for text in texts}

    digests = await in_own_thread(work) if sum(map(len, texts)) > _LONG else work()
    evidence = [
        tuple(
            str(KeptItem(item.source, digests[item.text])) if isinstance(item, HandleText) else item for item in items
        )
        for items in found
    ]
    return evidence, {digest: text for text, digest in digests.items()}
