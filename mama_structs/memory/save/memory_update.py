"""Changes of a memory's text, topic, tags or validity. The memory keeps its id and its previous texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.validation import UNSET, Unset
from mama_structs.errors import InvalidArgument
from mama_structs.memory.save import save_plan as saving
from mama_structs.memory.types.engine import Reader, Vectors, Writer
from mama_structs.memory.types.model import (
    ORIGINS,
    Memory,
    MemoryType,
    Origin,
    PreviousText,
    PreviousValue,
    RecordMetadata,
    least_trusted,
    with_text,
)
from mama_structs.memory.types.requests import check_memory, check_tags, check_topic
from mama_structs.memory.types.text_analysis import embedded_text
from mama_structs.provenance import Provenance


@attrs.frozen(kw_only=True)
class MemoryUpdate:
    """A requested change of a memory. Fields that are `UNSET` remain unchanged, and so does a content of None."""

    memory_id: str
    content: str | None
    reasoning: str | Unset
    topic: str | Unset | None
    tags: tuple[str, ...] | Unset
    valid_until: datetime | Unset | None
    change_reason: str | None
    origin: Origin
    trust: Origin
    at: datetime

    @classmethod
    def checked(
        cls,
        memory: object,
        content: object,
        changes: Mapping[str, object],
        *,
        change_reason: object,
        origin: object,
        inserted: Iterable[Provenance | None],
        at: datetime,
        max_chars: int,
    ) -> MemoryUpdate:
        """
        Validate the arguments.

        *changes* has the keys ``reasoning``, ``topic``, ``tags`` and ``valid_until``. *inserted* is the provenance of
        the texts that were inserted for handles.
        """
        if content is None and all(value is UNSET for value in changes.values()):
            names = "content, reasoning, topic, tags or valid_until"
            raise InvalidArgument(f"update() needs {names}", hint="update(memory, 'the new text')")
        author = Provenance.from_author("user" if origin is None else _check.check_choice("origin", origin, ORIGINS))
        author = author.merge_with(*inserted)
        reasoning, topic, tags = (changes[name] for name in ("reasoning", "topic", "tags"))
        ends: Any = changes["valid_until"]
        return cls(
            memory_id=check_memory("memory", memory),
            content=None if content is None else _check.check_text("content", content, max_chars=max_chars),
            reasoning=reasoning
            if reasoning is UNSET
            else _check.check_text("reasoning", reasoning, max_chars=max_chars, allow_empty=True),
            topic=topic if topic is UNSET or topic is None else check_topic(topic),
            tags=tags if tags is UNSET else () if tags is None else check_tags("tags", tags),
            valid_until=ends
            if ends is UNSET or ends is None
            else _check.check_time("valid_until", ends, now=at, in_future=True),
            change_reason=None
            if change_reason is None
            else _check.check_text("change_reason", change_reason, max_chars=max_chars),
            origin=author.origin,
            trust=author.trust,
            at=at,
        )

    def apply(self, reader: Reader) -> Memory:
        """Return the changed memory. Its mentions are not updated yet."""
        (memory,) = reader.get([saving.require_node(reader, self.memory_id)])
        changed = self._change_fields(self._change_text(memory))
        if changed == memory:
            # The tool evolve/correct shows this wording to models, so it must not change.
            is_text_only = self.topic is self.tags is self.valid_until is UNSET
            known = "says just that already" if is_text_only else "has these values already"
            raise InvalidArgument(f"{self.memory_id!r:.200} {known}: nothing was changed")
        return attrs.evolve(
            changed,
            updated_at=max(self._time(memory), memory.updated_at),
            # Parts of the old text may remain, so the origin cannot become more trusted than before.
            origin=least_trusted((memory.origin, self.origin)),
        )

    def _time(self, memory: Memory) -> datetime:
        # If the clock stepped back, use the latest known time, so that the previous texts stay in order.
        return max([self.at, memory.created_at, *(one.until for one in memory.previous_texts)])

    def _change_text(self, memory: Memory) -> Memory:
        """Return the memory with the new content and reasoning, and with the old ones in its previous texts."""
        before = memory.reasoning
        if self.reasoning is not UNSET and before is None:
            raise InvalidArgument(f"reasoning is a decision's, and {self.memory_id!r:.200} is a {memory.type.value}")
        content = memory.content if self.content is None else self.content
        reasoning = before if self.reasoning is UNSET else self.reasoning
        if (content, reasoning) == (memory.content, before):
            return memory
        at = self._time(memory)
        previous = PreviousText(content=memory.content, reasoning=before or "", until=at, reason=self.change_reason)
        changed = with_text(memory, content=content, reasoning=reasoning or "")
        if isinstance(own := memory.metadata, RecordMetadata):
            # The host may know the old version, so increment it and add the old value to the history.
            was = PreviousValue(value=own.value, version=own.version, at=memory.updated_at, text=memory.content)
            own = attrs.evolve(own, version=own.version + 1, text_lengths=(), history=(*own.history, was))
            changed = attrs.evolve(changed, metadata=own)
        return attrs.evolve(changed, previous_texts=(*memory.previous_texts, previous))

    def _change_fields(self, memory: Memory) -> Memory:
        """Return the memory with the new topic, tags and validity."""
        if self.topic is not UNSET:
            if self.topic is None and memory.type is MemoryType.DECISION:
                raise InvalidArgument("topic must not be None for a decision", hint="leave it out to keep the topic")
            memory = attrs.evolve(memory, topic=self.topic)
        if self.tags is not UNSET:
            if isinstance(memory.metadata, RecordMetadata):
                raise InvalidArgument(f"a record has no tags, and {self.memory_id!r:.200} is a record")
            memory = attrs.evolve(memory, metadata=attrs.evolve(memory.metadata, tags=self.tags))
        if self.valid_until is not UNSET:
            memory = attrs.evolve(memory, valid_until=self.valid_until)
        return memory

    def write(self, writer: Writer, prepared: Memory, vectors: Vectors) -> tuple[Memory, bool]:
        """
        Write the change with the vectors and mentions of *prepared*.

        Returns the memory and True. If its text changed in the meantime, nothing is written, and the result is the new
        state and False.
        """
        writer.expect(lambda ahead: ahead.find(self.memory_id))
        memory = self.apply(writer)
        if embedded_text(memory) != embedded_text(prepared):
            return memory, False
        memory = attrs.evolve(memory, mentions=prepared.mentions)
        writer.put(memory, vectors=vectors)
        saving.lower_trust(writer, saving.require_node(writer, memory.id), self.trust)
        return writer.get([saving.require_node(writer, memory.id)])[0], True
