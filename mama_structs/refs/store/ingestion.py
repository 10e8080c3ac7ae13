"""Storage of the refs in a model's answer. An answer that was already stored is detected."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from mama_structs.errors import InvalidArgument, QuotaExceeded
from mama_structs.provenance import Provenance
from mama_structs.refs.markup.fences import find_fenced_blocks
from mama_structs.refs.markup.parser import (
    IN_CODE_REASON,
    IN_THOUGHTS_REASON,
    MENTIONED_REASON,
    Diagnostic,
    DiagnosticKind,
)
from mama_structs.refs.store.editing import Revision, is_append_requested
from mama_structs.refs.store.entries import Entries, Ref
from mama_structs.refs.store.ref_collector import CollectedRefs, ObservedMessage, find_mentions

_MAX_ANSWERS: Final = 8
# Why refs with these diagnostics are not stored, for errors about a missing ref.
_REASONS: Final = {"in_code": IN_CODE_REASON, "in_thoughts": IN_THOUGHTS_REASON}


@attrs.define(eq=False)
class RecentAnswers:
    """
    Recent answers with refs, so that an answer that is both streamed and observed is stored only once.

    Either may come first: an adapter may observe a message before the host closes the stream.
    """

    messages: int = 0  # number of messages added so far
    _streamed: deque[tuple[CollectedRefs, ObservedMessage]] = attrs.field(factory=lambda: deque(maxlen=_MAX_ANSWERS))
    _observed: deque[tuple[int, CollectedRefs, ObservedMessage]] = attrs.field(
        factory=lambda: deque(maxlen=_MAX_ANSWERS)
    )

    def copy(self) -> RecentAnswers:
        """Return an independent copy."""
        return RecentAnswers(self.messages, self._streamed.copy(), self._observed.copy())

    def fork(self) -> RecentAnswers:
        """
        Return a copy for a forked store.

        It omits observed messages, because the open streams belong to the original store.
        """
        return RecentAnswers(streamed=self._streamed.copy())

    def add_streamed(self, collected: CollectedRefs, ingested: ObservedMessage) -> None:
        """Remember an answer whose final message may still be observed."""
        if collected.marked:
            self._streamed.append((collected, ingested))

    def add_message(self, collected: CollectedRefs, ingested: ObservedMessage) -> None:
        """Remember a message whose stream may still be open."""
        if collected.marked:
            self.messages += 1
            self._observed.append((self.messages, collected, ingested))

    def take_streamed(self, collected: CollectedRefs) -> ObservedMessage | None:
        """Remove the streamed answer with the same text as a message, and return its result, or None."""
        for at, (streamed, ingested) in enumerate(self._streamed):
            if collected == streamed:
                del self._streamed[at]
                return ingested
        return None

    def take_message(self, collected: CollectedRefs, *, since: int) -> ObservedMessage | None:
        """
        Remove the message with the same text as a stream, and return its result, or None.

        Only messages added after the first *since* messages are considered.
        """
        for at, (number, observed, ingested) in enumerate(self._observed):
            if number > since and collected == observed:
                del self._observed[at]
                return ingested
        return None


def ingest_refs(
    collected: CollectedRefs, *, entries: Entries, store: Callable[[str, Revision], Ref]
) -> ObservedMessage:
    """
    Store the refs of one message, and record the reasons for refs that were not stored.

    Args:
        collected: The message.
        entries: The entries of the store.
        store: Stores the next version of a ref, or returns the newest one if it is equal.

    """
    stored: dict[int, Ref] = {}
    said = list(collected.diagnostics)
    for marked in collected.marked:
        report = functools.partial(Diagnostic, id=marked.id, position=marked.position)
        before = entries.newest_ref(marked.id)
        text, author = collected.content(marked), Provenance.from_author("model")
        revision = Revision(text, marked.attributes, marked.complete, provenance=author)
        if before is None and is_append_requested(marked.attributes):
            message = f"there was no ref:{marked.id} to append to, so this is its first part"
            said.append(report("nothing_to_append", message=message))
        try:
            ref = stored[marked.position] = store(marked.id, revision)
        except (QuotaExceeded, InvalidArgument) as error:
            why: DiagnosticKind = "quota_exceeded" if isinstance(error, QuotaExceeded) else "invalid_text"
            said.append(report(why, message=f"not stored: {error}"))
            entries.record_missing(marked.id, f"it was not stored: {error}")
            continue
        goes_on = before is not None and not before.is_complete and is_append_requested(marked.attributes)
        text = ref.text if goes_on else revision.text
        if marked.complete and any(not block.closed for block in find_fenced_blocks(text)):
            message = (
                f"ref {marked.id!r} closes inside a code fence that is open: close the fence before </ref>,"
                " since a fence that ends behind it hides what follows"
            )
            said.append(report("open_fence", message=message))
        if ref is not before and ref.version > 1:
            older = f"; {before.versioned_handle} is the one before" if before else ""
            said.append(report("new_version", message=f"ref:{ref.id} is now version {ref.version}{older}"))
    for diagnostic in collected.diagnostics:
        reason = _REASONS.get(diagnostic.kind)
        if reason is not None and diagnostic.id is not None:
            entries.record_missing(diagnostic.id, reason)
    for ref_id in find_mentions(collected.text):
        # A model that sees mentions in its history may write a new ref in this form. The ref then has no text.
        if entries.newest_ref(ref_id) is None:
            entries.record_missing(ref_id, MENTIONED_REASON)
    said.sort(key=lambda diagnostic: diagnostic.position)
    return ObservedMessage(
        refs=tuple(stored.values()),
        diagnostics=tuple(said),
        text=collected.text,
        visible_text=collected.visible,
        compact_text=collected.compact(stored),
    )
