"""Changes of memories: forms, confirmations and receipts. Only for servers with ``write=True``."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
from aiohttp import web

import mama_structs  # for annotations only; its submodules load lazily
from mama_structs.errors import InvalidArgument
from mama_structs.memory.graph.results import ErasureReport
from mama_structs.memory.types.model import Memory, is_id, parse_stored_evidence
from mama_structs.ui.form_receipts import FormReceipts, Receipt, make_form_id
from mama_structs.ui.memory_view import DeletionView, load_deletion, load_state
from mama_structs.ui.pages.memory import read_id
from mama_structs.ui.rendering import get_namespace, link_to, make_tag_lines, render, show_time_field
from mama_structs.ui.search_form import parse_time
from mama_structs.ui.workspace import WORKSPACE

_MAX_FORM_ID_CHARS: Final = 64
# Labels and names of the fields that a rejected form shows again.
_TEXT_FIELDS: Final = (
    ("Text", "content"),
    ("Reasoning", "reasoning"),
    ("Topic", "topic"),
    ("Tags", "tags"),
    ("Valid until", "valid_until"),
    ("Reason", "reason"),
)
_FIELD_WORDS: Final = {"content": "text", "valid_until": "validity"}
_HISTORY_NOTE: Final = (
    "the history of your browser, which may contain addresses with the id; an id begins with words of the text"
)


@attrs.frozen
class _FormIsStale(Exception):
    """The memory changed after the form was shown."""

    memory: Memory


@attrs.frozen(kw_only=True)
class _Form:
    """A sent form: its fields, and the memory that it changes."""

    fields: Mapping[str, str]
    namespace: str
    memories: mama_structs.MemoryStore
    receipts: FormReceipts

    @property
    def memory_id(self) -> str:
        return read_id(self.fields)

    def text(self, name: str) -> str:
        """Return a text field with line ends as in Unix, or an empty text if it is missing."""
        return _to_form_text(self.fields.get(name, ""))

    def optional_text(self, name: str) -> str | None:
        """Return a text field, or None if it is blank."""
        text = self.text(name)
        return text if text.strip() else None

    async def check_state(self) -> Memory:
        """Return the memory. Raise `_FormIsStale` if it is not as the form showed it."""
        memory, state = await load_state(self.memories, self.memory_id)
        if state != self.fields.get("state"):
            raise _FormIsStale(memory)
        return memory

    def make_receipt(self, title: str, *ids: str, **values: Any) -> Receipt:
        return Receipt(title=title, at=self.memories._shared.now, namespace=self.namespace, ids=ids, **values)


def list_routes(*, is_writable: bool) -> list[web.RouteDef]:
    """Return the routes of the changes, none for a read-only server."""
    if not is_writable:
        return []
    changes = {
        "update": update,
        "outcome": set_outcome,
        "supersede": supersede,
        "dismiss": dismiss,
        "delete": delete,
        "erase": erase,
    }
    return [
        web.get("/receipt", show_receipt),
        web.get("/memory/delete", confirm_delete),
        web.get("/memory/erase", confirm_erase),
        *(web.post(f"/memory/{name}", _handle(change)) for name, change in changes.items()),
    ]


def _handle(change: Callable[[_Form], Awaitable[Receipt]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a handler that makes the change of a form and leads to its receipt."""

    async def handle(request: web.Request) -> web.StreamResponse:
        fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        form_id, namespace = fields.get("form_id", ""), get_namespace(request)
        if not 0 < len(form_id) <= _MAX_FORM_ID_CHARS:
            raise InvalidArgument("the form has no form_id", hint="reload its page")
        workspace = request.app[WORKSPACE]
        memories = await workspace.open_memories(namespace)
        form = _Form(fields=fields, namespace=namespace, memories=memories, receipts=workspace.changes)
        try:
            await workspace.changes.run(form_id, lambda: change(form))
        except _FormIsStale as stale:
            written = [(label, form.text(name)) for label, name in _TEXT_FIELDS if form.text(name)]
            return await render(request, "changed.html", path="/", status=409, memory=stale.memory, written=written)
        raise web.HTTPSeeOther(link_to("/receipt", id=form_id, namespace=namespace))

    return handle


async def update(form: _Form) -> Receipt:
    """Correct the text, reasoning, topic, tags or validity of a memory."""
    memory = await form.check_state()
    tags = make_tag_lines(memory.tags)
    # A browser changes line ends and NUL, and shows a topic in one line. The user did not make these differences.
    shown = {
        "content": _to_form_text(memory.content),
        "topic": re.sub(r"[\r\n]", "", memory.topic or ""),
        "tags": "\n".join(tags),
        "valid_until": show_time_field(memory.valid_until),
    }
    if memory.reasoning is not None:
        shown["reasoning"] = _to_form_text(memory.reasoning)
    changes: dict[str, Any] = {
        name: form.text(name) for name, text in shown.items() if name in form.fields and form.text(name) != text
    }
    if not changes:
        raise InvalidArgument("nothing was changed, because the form contains the stored text")
    if "topic" in changes:
        changes["topic"] = form.optional_text("topic")
    if "tags" in changes:
        lines = (line.strip() for line in changes["tags"].split("\n"))
        changes["tags"] = [tags.get(line, line) for line in lines if line]
    if "valid_until" in changes:
        changes["valid_until"] = parse_time("valid until", form.optional_text("valid_until"))
    await form.memories.update(memory.id, **changes, change_reason=form.optional_text("reason"))
    names = ", ".join(_FIELD_WORDS.get(name, name) for name in changes)
    return form.make_receipt("The memory was corrected", memory.id, link_id=memory.id, facts=(("Changed", names),))


async def set_outcome(form: _Form) -> Receipt:
    """Set the outcome of a decision."""
    memory = await form.check_state()
    outcome: Any = form.text("outcome")
    await form.memories.set_outcome(memory.id, outcome, reason=form.optional_text("reason"))
    return form.make_receipt("The outcome was set", memory.id, link_id=memory.id)


async def supersede(form: _Form) -> Receipt:
    """Replace a decision with a new one."""
    memory = await form.check_state()
    reasoning = form.optional_text("reasoning")
    if reasoning is None:
        raise InvalidArgument("the new decision has no reasoning", hint="say why it replaces the old one")
    newer = await form.memories.supersede(memory.id, form.text("content"), reasoning=reasoning)
    return form.make_receipt("The decision was replaced", memory.id, newer.id, link_id=newer.id)


async def dismiss(form: _Form) -> Receipt:
    """Dismiss the conflict of two memories."""
    newer, older = form.text("newer"), form.text("older")
    await form.memories.dismiss_conflict(newer, older)
    return form.make_receipt("The conflict was dismissed", newer, older, link_id=form.memory_id)


async def delete(form: _Form) -> Receipt:
    """Delete a memory."""
    memory = await form.check_state()
    going = await load_deletion(form.memories, memory.id)
    await form.memories.delete(memory.id)
    ids = (memory.id, *(reason.id for reason in going.reasons))
    return form.make_receipt("The memory was deleted", *ids, counts=tuple(_list_deleted(going)))


async def erase(form: _Form) -> Receipt:
    """Erase a memory permanently."""
    memory = await form.check_state()
    going = await load_deletion(form.memories, memory.id)
    report = await form.memories.erase(memory.id)
    form.receipts.forget(one.id for one in (memory, *going.reasons))
    return form.make_receipt(
        "The memory was erased",
        facts=tuple(("End of an erased id", _shorten_id(one.id)) for one in (memory, *going.reasons)),
        counts=tuple(_list_erased(report)),
        pending=report.pending,
        out_of_scope=(*report.out_of_scope, _HISTORY_NOTE),
    )


async def confirm_delete(request: web.Request) -> web.Response:
    """Show what a deletion would delete."""
    return await _confirm(request, "delete")


async def confirm_erase(request: web.Request) -> web.Response:
    """Show what an erasure would delete."""
    return await _confirm(request, "erase")


async def _confirm(request: web.Request, action: str) -> web.Response:
    memories = await request.app[WORKSPACE].open_memories(get_namespace(request))
    memory, state = await load_state(memories, read_id(request.query))
    going = await load_deletion(memories, memory.id)
    # A dry run of an erasure searches all memories for the id, so the confirmation of a deletion does without.
    report = await memories.erase(memory.id, dry_run=True) if action == "erase" else None
    return await render(
        request,
        "confirm.html",
        path="/",
        action=action,
        memory=memory,
        state=state,
        form_id=make_form_id(),
        counts=_list_deleted(going) if report is None else _list_erased(report),
        cited=[one.source for one in map(parse_stored_evidence, memory.evidence) if one is not None],
        reasons=going.reasons,
        pending=report.pending if report else (),
        out_of_scope=(*report.out_of_scope, _HISTORY_NOTE) if report else (),
    )


async def show_receipt(request: web.Request) -> web.Response:
    """Show the receipt of a change."""
    receipt = request.app[WORKSPACE].changes.find(request.query.get("id", ""))
    if receipt is None:
        message, hint = "This receipt no longer exists.", "Receipts are kept until the server stops."
        return await render(
            request, "error.html", path="/", status=404, title="No such receipt", message=message, hint=hint
        )
    return await render(request, "receipt.html", path="/", receipt=receipt)


def _list_deleted(going: DeletionView) -> list[tuple[str, str]]:
    """Return names and numbers of the deleted data."""
    return [
        ("Memory", "1"),
        ("Reasons of its outcomes", f"{len(going.reasons):,}"),
        ("Links to other memories", f"{going.link_count:,}"),
        ("Stored evidence texts that no other memory cites", f"{going.evidence_count:,}"),
    ]


def _list_erased(report: ErasureReport) -> list[tuple[str, str]]:
    """Return names and numbers of the erased data."""
    counts = [(f"Memories of the type {kind}", number) for kind, number in sorted(report.memories.items())]
    counts += [
        ("Links to other memories", report.links),
        ("Stored evidence texts that no other memory cites", report.evidence_texts),
        ("Versions of marked texts and large outputs with these texts", report.refs),
        ("Other memories from which its id is removed", report.updated_memories),
    ]
    return [(label, f"{number:,}") for label, number in counts]


def _to_form_text(text: str) -> str:
    """Return a text as a browser sends it in a form, but with line ends as in Unix."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _shorten_id(memory_id: str) -> str:
    """Return the end of an id, which contains no word of the text."""
    return "_".join(memory_id.rsplit("_", 2)[1:]) if is_id(memory_id) else "not shown, because it may contain words"
