"""Truncation of tool results to a budget, with handles for the omitted parts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from mama_structs._internal.budget import Budget
from mama_structs._internal.jsonable import to_json_text, to_json_text_in_chunks, to_jsonable
from mama_structs.errors import InvalidArgument, MamaStructsError, QuotaExceeded
from mama_structs.refs.messages.media import parse_media
from mama_structs.refs.messages.provider_messages import block_text, is_block_list, merge_text_blocks
from mama_structs.refs.store.entries import Descriptor
from mama_structs.refs.store.text import Content, PastedText, Preview, make_preview, split_pasted
from mama_structs.refs.store.truncation import (
    ROOT_POINTER,
    HandlesByName,
    LazyTexts,
    OwnShare,
    Schema,
    TextPlan,
    TruncationPlan,
    choose_plan,
    parse_json_container,
    plan_data,
    truncate_text,
)

_log = logging.getLogger("mama_structs")

OwnShareFactory = Callable[[Mapping[str, Any]], OwnShare | None]

# Ratio of the visible part of a text that shows its beginning. The remainder shows its end.
_HEAD_RATIO: Final = 3 / 4
# Minimum number of characters for a text block in a list: its tags, and a short excerpt of both ends.
_MIN_BLOCK_CHARS: Final = 800
# Assumed size of data that cannot be serialized.
_UNKNOWN_SIZE_CHARS: Final = 2**31
_NOT_STORED_NOTE: Final = "\n[the rest was not kept]"
_MAX_SOURCE_CHARS: Final = 80


@attrs.frozen(kw_only=True)
class DescriptorSink:
    """Functions that number, create, store and render the descriptors of omitted parts."""

    next_number: Callable[[], int]
    check_room: Callable[..., None]
    describe: Callable[[int, Content, str], Descriptor]
    keep: Callable[[Descriptor], None]
    show: Callable[[Descriptor, Preview], str]


@attrs.frozen(kw_only=True)
class ResultTruncation:
    """Truncates one result to a budget, and stores the omitted parts."""

    shelf: DescriptorSink
    budget: Budget
    source: str
    schema: Schema | None = None
    own_share: OwnShareFactory | None = None
    # Number of characters for the result without its references; see `plan_data`.
    payload_chars: int | None = None
    # If False, nothing is stored, and omitted parts are lost.
    keeps: bool = True
    _contents: dict[str, Content | None] = attrs.field(factory=dict, init=False)

    def truncate(self, result: Any) -> Any:
        """Return the result unchanged, or truncated to the budget."""
        if isinstance(result, str):
            return result if self.budget.fits(result) else self.truncate_text(result)
        if result is None or isinstance(result, float | bytes | bytearray | memoryview):
            return result
        try:
            # Serialize directly first, so that a short result needs no conversion, even if its keys are not strings.
            written = _to_json(result)
            fits = written is not None and self.budget.fits(written)
            data = result if fits else to_jsonable(result)
        except MamaStructsError:
            # The result cannot be represented as JSON, so it can be neither measured nor truncated.
            return result
        if written is None:
            written = _to_json(data)
            fits = written is not None and self.budget.fits(written)
        return self._truncate_data(data, written, result, fits=fits)

    def _truncate_data(self, data: Any, written: str | None, result: Any, *, fits: bool) -> Any:
        """
        Return *result* if it fits, else a truncated form.

        *data* is the result as plain data, and *written* is the same as JSON text.
        """
        if is_content_list(data):
            return self._truncate_blocks(data, result)
        if parse_media(data):
            return result
        own = self.own_share(data) if self.own_share and isinstance(data, dict) else None
        if fits and not (own and (own.has_too_many_ids or self._must_shorten_payload(own))):
            return result
        if not isinstance(data, dict | list):
            return self.truncate_text(str(data) if written is None else written)
        chars = _UNKNOWN_SIZE_CHARS if written is None else len(written)
        return self._store_parts(self._choose_plan(functools.partial(self._plan, data, own), chars))

    def _plan(self, data: Any, own: OwnShare | None, room: int) -> TruncationPlan:
        return plan_data(
            data, room, width=self._handle_width, schema=self.schema, own=own, payload_chars=self.payload_chars
        )

    def _must_shorten_payload(self, own: OwnShare) -> bool:
        """Return True if the references of the answer belong to a part of the payload only."""
        return self.payload_chars is not None and len(to_json_text(own.without_references)) > self.payload_chars

    @property
    def _handle_width(self) -> int:
        return compute_handle_width(self.shelf.next_number(), self.budget)

    # Texts

    def truncate_text(self, text: str) -> str:
        """Return the text truncated to the budget."""
        if (data := parse_json_container(text)) is not None:
            return str(self._store_parts(self._choose_plan(functools.partial(self._plan_json, text, data), len(text))))
        if self.source != "user_input":
            return self.truncate_plain_text(text)
        limit = self.budget.limit
        parts = split_pasted(text, descriptor_chars=limit)
        if 2 * self.budget.size(parts.before + parts.after) > limit:
            parts = PastedText("", text, "")
        around = Budget(limit, size=lambda shown: self.budget.size(f"{parts.before}{shown}{parts.after}"))
        return f"{parts.before}{attrs.evolve(self, budget=around).truncate_plain_text(parts.pasted)}{parts.after}"

    def truncate_plain_text(self, text: str) -> str:
        """Return the beginning and end of a text. If the rest is stored, they are rendered as ``<fd_result>``."""
        return str(self._store_parts(self._choose_plan(functools.partial(self._plan_text, text), len(text))))

    def _plan_json(self, text: str, data: Any, room: int) -> TextPlan:
        plan = plan_data(data, room, width=self._handle_width)
        # The handle of a JSON object stores the original text unchanged. The handle of a list stores one row per line.
        texts = dict(plan.texts)
        if isinstance(data, dict) and ROOT_POINTER in texts:
            texts[ROOT_POINTER] = functools.partial(str, text)
        return TextPlan(lambda handles: to_json_text(plan.to_answer(handles)), texts)

    def _plan_text(self, text: str, room: int) -> TextPlan:
        def render(handles: HandlesByName) -> str:
            if ROOT_POINTER not in handles:
                return (
                    f"{truncate_text(text, room - len(_NOT_STORED_NOTE))[0]}{_NOT_STORED_NOTE}"
                    if room > len(_NOT_STORED_NOTE)
                    else ""
                )
            number, content = int(handles[ROOT_POINTER].removeprefix("fd:")), self._render_content(ROOT_POINTER, str)
            if room <= 0 or content is None:
                return f'<fd_result fd="{handles[ROOT_POINTER]}"/>'
            head = int(room * _HEAD_RATIO)
            shown = make_preview(content, head=head, tail=room - head)
            return self.shelf.show(self.shelf.describe(number, content, self.source), shown)

        return TextPlan(render, {ROOT_POINTER: functools.partial(str, text)})

    # Content blocks

    def _truncate_blocks(self, blocks: list[dict[str, Any]], result: Any) -> Any:
        """Truncate the texts of blocks, the longest first. Images and audio do not count toward the budget."""
        spoken = [block for block in blocks if not parse_media(block)]
        if self._fits(spoken):
            return result
        # If the blocks do not fit because there are many short texts, merge adjacent texts and try again.
        for shown in (blocks, merge_text_blocks(blocks)):
            shares = self._share_budget([block for block in shown if not parse_media(block)])
            if shares is None:
                continue
            given = iter(shares)
            made = [block if parse_media(block) else self._truncate_block(block, next(given)) for block in shown]
            if self._fits([block for block in made if not parse_media(block)]):
                return made
        # There are still too many blocks, so merge all texts into the first block.
        said = "\n".join(text if (text := block_text(block)) is not None else to_json_text(block) for block in spoken)
        whole = Budget(self.budget.limit, size=lambda text: self.budget.size(to_json_text([_text_block(text)])))
        one = _text_block(attrs.evolve(self, budget=whole).truncate_text(said))
        return [one, *(block for block in blocks if parse_media(block))]

    def _fits(self, blocks: Sequence[Mapping[str, Any]]) -> bool:
        written = _to_json(blocks)
        return written is not None and self.budget.fits(written)

    def _share_budget(self, blocks: Sequence[dict[str, Any]]) -> list[int] | None:
        """Return the budget share of each block, or None if the blocks do not fit even with their minimum sizes."""
        sizes = [self.budget.size(to_json_text(block)) + 1 for block in blocks]
        least = [
            min(size, _MIN_BLOCK_CHARS) if block_text(one) else size for size, one in zip(sizes, blocks, strict=True)
        ]
        # If tokens are counted, the size of all blocks together may slightly exceed the sum of their sizes.
        spare = (self.budget.limit if self.budget.size is len else int(self.budget.limit * 0.95)) - sum(least) - 2
        if spare < 0:
            return None
        shares = dict.fromkeys(range(len(blocks)), 0)
        order = sorted(shares, key=lambda number: sizes[number] - least[number])
        for left, number in zip(range(len(order), 0, -1), order, strict=True):
            more = min(sizes[number] - least[number], spare // left)
            shares[number], spare = least[number] + more, spare - more
        return list(shares.values())

    def _truncate_block(self, block: dict[str, Any], share: int) -> dict[str, Any]:
        text = block_text(block)
        within = Budget(share - 1, size=lambda shown: self.budget.size(to_json_text({**block, "text": shown})))
        return block if text is None else {**block, "text": attrs.evolve(self, budget=within).truncate(text)}

    # Handles

    def _choose_plan(self, plan: Callable[[int], TruncationPlan], chars: int) -> TruncationPlan:
        return choose_plan(plan, self._assign_handles, self.budget, chars=chars)

    def _assign_handles(self, texts: LazyTexts) -> dict[str, str]:
        """Return handles for those texts that fit in the quota. The texts are stored later, under these handles."""
        handles: dict[str, str] = {}
        chosen: list[Content] = []
        for name, text in texts.items() if self.keeps else ():
            content = self._render_content(name, text)
            if content is None:
                continue
            try:
                self.shelf.check_room(*chosen, content)
            except QuotaExceeded:
                continue
            handles[name] = f"fd:{self.shelf.next_number() + len(chosen)}"
            chosen.append(content)
        return handles

    def _render_content(self, name: str, text: Callable[[], str]) -> Content | None:
        """Return the content to store under a handle, or None if it cannot be serialized. Renders it only once."""
        if name not in self._contents:
            try:
                self._contents[name] = _make_content(text())
            except (TypeError, ValueError, RecursionError):
                self._contents[name] = None
        return self._contents[name]

    def _store_parts(self, plan: TruncationPlan) -> Any:
        """Store the omitted parts of a plan, and return the truncated answer with their handles."""
        handles = self._assign_handles(plan.texts)
        if self.keeps and len(handles) < len(plan.texts):
            _log.warning("of a shortened result %d of %d parts are kept", len(handles), len(plan.texts))
        for name, handle in handles.items():
            content = self._contents[name]
            if content is not None:
                number = int(handle.removeprefix("fd:"))
                self.shelf.keep(self.shelf.describe(number, content, _part_source(self.source, name)))
        return plan.to_answer(handles)


def is_content_list(data: Any) -> bool:
    """Return True for a list of content blocks, such as texts and images, which is not a list of rows."""
    return is_block_list(data) or (isinstance(data, list) and bool(data) and all(map(parse_media, data)))


def compute_handle_width(next_number: int, budget: Budget) -> int:
    """Return the maximum number of characters of the handles of one answer."""
    return len(f"fd:{10 * (next_number + budget.limit)}")


def _to_json(value: Any) -> str | None:
    try:
        return to_json_text_in_chunks(value)
    except (TypeError, ValueError, RecursionError):
        return None


def _make_content(text: str) -> Content:
    try:
        return Content.from_text(text)
    except InvalidArgument:
        # Replace lone surrogates, which no file and no request can contain, because UTF-8 cannot encode them.
        return Content.from_text(text.encode("utf-8", "replace").decode())


def _part_source(source: str, name: str) -> str:
    return f"{source} {name}" if name and name.isprintable() and len(name) <= _MAX_SOURCE_CHARS else source


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
