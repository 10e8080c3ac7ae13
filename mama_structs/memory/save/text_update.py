"""Correction of a memory's text, which keeps the id and stores the former text."""

from __future__ import annotations

from datetime import datetime

import attrs

from mama_structs._internal import validation as _check
from mama_structs.errors import InvalidArgument
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.engine import Reader, Vectors, Writer
from mama_structs.memory.types.model import (
    ORIGINS,
    FormerText,
    FormerValue,
    Memory,
    Origin,
    RecordMetadata,
    least_trusted,
    reasoning_of,
    with_text,
)
from mama_structs.memory.types.requests import check_id
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.provenance import Provenance


@attrs.frozen(kw_only=True)
class Correction:
    """A requested change of a memory's text. If *content* or *reasoning* is None, it remains unchanged."""

    memory_id: str
    content: str | None
    reasoning: str | None
    reason: str | None
    origin: Origin
    trust: Origin
    at: datetime

    @classmethod
    def checked(
        cls,
        memory_id: object,
        content: object,
        reasoning: object,
        *,
        reason: object,
        origin: object,
        inserted: Provenance | None,
        at: datetime,
        max_chars: int,
    ) -> Correction:
        """
        Validate the arguments.

        *inserted* is the provenance of the texts that were inserted for handles.
        """
        if content is None and reasoning is None:
            raise InvalidArgument("content or reasoning must be given", hint="say what the memory is to say instead")
        author = Provenance.from_author("user" if origin is None else _check.check_choice("origin", origin, ORIGINS))
        author = author.merge_with(inserted)
        return cls(
            memory_id=check_id("id", memory_id),
            content=None if content is None else _check.check_text("content", content, max_chars=max_chars),
            reasoning=None
            if reasoning is None
            else _check.check_text("reasoning", reasoning, max_chars=max_chars, allow_empty=True),
            reason=None if reason is None else _check.check_text("reason", reason, max_chars=max_chars),
            origin=author.origin,
            trust=author.trust,
            at=at,
        )

    def made(self, reader: Reader) -> Memory:
        """Return the corrected memory. Its mentions are not updated yet."""
        (memory,) = reader.get([saving.require_node(reader, self.memory_id)])
        before = reasoning_of(memory)
        if self.reasoning is not None and before is None:
            raise InvalidArgument(f"reasoning is a decision's, and {self.memory_id!r:.200} is a {memory.type.value}")
        content = memory.content if self.content is None else self.content
        reasoning = before if self.reasoning is None else self.reasoning
        if (content, reasoning) == (memory.content, before):
            raise InvalidArgument(f"{self.memory_id!r:.200} says just that already: nothing was changed")
        # If the clock stepped back, use the latest known time, so that the former texts stay in order.
        at = max([self.at, memory.created_at, *(one.until for one in memory.former)])
        former = FormerText(content=memory.content, reasoning=before or "", until=at, reason=self.reason)
        changed = with_text(memory, content=content, reasoning=reasoning or "")
        if isinstance(own := memory.metadata, RecordMetadata):
            # The host may know the old version, so increment it and add the old value to the history.
            was = FormerValue(value=own.value, version=own.version, at=memory.updated_at, text=memory.content)
            own = attrs.evolve(own, version=own.version + 1, lengths=(), history=(*own.history, was))
            changed = attrs.evolve(changed, metadata=own)
        return attrs.evolve(
            changed,
            former=(*memory.former, former),
            updated_at=max(at, memory.updated_at),
            # Parts of the old text may remain, so the origin cannot become more trusted than before.
            origin=least_trusted((memory.origin, self.origin)),
        )

    def write(self, writer: Writer, prepared: Memory, vectors: Vectors) -> tuple[Memory, bool]:
        """
        Write the correction with the vectors and mentions of *prepared*.

        Returns the memory and True. If its text changed in the meantime, nothing is written, and the result is the new
        correction and False.
        """
        writer.expect(lambda ahead: ahead.find(self.memory_id))
        memory = self.made(writer)
        if embedded_text(memory) != embedded_text(prepared):
            return memory, False
        memory = attrs.evolve(memory, mentions=prepared.mentions)
        writer.put(memory, vectors=vectors)
        saving.lower_trust(writer, saving.require_node(writer, memory.id), self.trust)
        return writer.get([saving.require_node(writer, memory.id)])[0], True
