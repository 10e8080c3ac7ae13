"""Tools with which a model uses refs and descriptors. Errors are returned as answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from mama_structs._internal.offload import measure_input
from mama_structs.errors import (
    DescriptorError,
    InvalidArgument,
    InvalidHandle,
    InvalidParameter,
    InvalidRange,
    MamaStructsError,
)
from mama_structs.refs.store.entries import Ref
from mama_structs.refs.store.ref_store import RefStore
from mama_structs.refs.store.render import Rendering, newest_first
from mama_structs.refs.store.text import format_number
from mama_structs.refs.store.text_search import MAX_CONTEXT_LINES, MAX_MATCHES
from mama_structs.tools.tool import ErrorText, Tool, ToolAnnotations, bind_template


async def read_fd(
    fd: str,
    *,
    mode: Literal["page", "line", "char"] = "page",
    start: int = 1,
    count: int = 1,
    page: int | None = None,
    read_all: bool = False,
    extract_to_new_fd: bool = False,
    store: RefStore,
) -> str:
    """
    Read pages, numbered lines or characters of a kept text, counted from 1.

    Use it to read on where an answer ends: its "next" is the call. Don't use it to find something: search_fd does.

    Args:
        fd: fd:1, ref:x, or ref:x@1 for a version
        mode: What start and count count
        start: The first
        count: How many
        page: Short for start=page in mode page
        read_all: As much as an answer holds
        extract_to_new_fd: Keep that part as a new fd in place of showing it

    """
    if page is not None:
        if mode != "page" or start != 1 or count != 1 or read_all:
            raise InvalidParameter(
                "page stands alone: it is short for mode='page', start=page, count=1", parameter="page", handle=fd
            )
        start = page
    excerpt = store.read(fd, mode=mode, start=start, count=count, read_all=read_all)
    if not extract_to_new_fd:
        return store._rendering.render_content(excerpt)
    load = measure_input(excerpt.text)
    made = await store._change(
        load, lambda refs: refs.extract(fd, mode=mode, start=start, count=count, read_all=read_all)
    )
    return store._rendering.render_extraction(excerpt, made)


async def fd_to_file(
    fd: str,
    file_path: str,
    *,
    mode: Literal["write", "append", "insert"] = "write",
    insert_at: int | None = None,
    create: bool = True,
    exist_ok: bool = True,
    parents: bool = False,
    store: RefStore,
) -> str:
    """
    Write a kept text to a file, without repeating it.

    Use it to save code or data exactly as it is. Don't use it for files outside of the directory for files.

    Args:
        fd: fd:<number>, ref:<id>, or ref:<id>@<version>
        file_path: Where to, relative to the directory for files
        mode: write replaces the file, append adds to its end, insert adds whole lines before line insert_at
        insert_at: For mode="insert": the line, counted from 1, before which the text goes
        create: Whether a missing file may be made
        exist_ok: Whether an existing file may be changed
        parents: Whether missing directories may be made

    """
    result = await store.to_file(
        fd, file_path, mode=mode, insert_at=insert_at, create=create, exist_ok=exist_ok, parents=parents, by_model=True
    )
    return store._rendering.render_file_result(result)


async def list_refs(*, category: Literal["code", "data", "text"] | None = None, start: int = 1, store: RefStore) -> str:
    """
    List what was marked with <ref id="...">, the newest first, with time, size and version.

    Args:
        category: Only these
        start: From which one on

    """
    refs = store.list(category=category)
    last = max(1, len(refs))
    if not 1 <= start <= last:
        raise InvalidRange(f"the list has no ref {format_number(start)}", valid=(1, last))
    return store._rendering.render_refs(newest_first(refs), start=start, category=category)


async def get_ref(ref_id: str, *, store: RefStore) -> str:
    """
    Return a marked part of an answer.

    Use it for a short part. Don't use it for a long one: read_fd reads pages and lines.

    Args:
        ref_id: The id, or x@1 for a version

    """
    entry = store.get(ref_id)
    if not isinstance(entry, Ref):
        raise InvalidHandle(f"{ref_id} is no ref", handle=ref_id, hint="use read_fd")
    return store._rendering.render_ref(entry, store.read(entry.versioned_handle, read_all=True))


async def search_fd(
    fd: str,
    query: str,
    *,
    regex: bool = False,
    case_sensitive: bool = False,
    context: int = 0,
    limit: int = 20,
    start: int = 1,
    store: RefStore,
) -> str:
    """
    Find a text or regular expression in a kept text.

    Use it before reading many pages. Don't use it to see the whole: read_fd does.

    Args:
        fd: fd:1, ref:x, or ref:x@1 for a version
        query: What to find
        regex: Whether query is a pattern
        case_sensitive: Whether case counts in a text
        context: Lines around each match, 20 at most
        limit: Matches at most
        start: The character to search from

    """
    result = await store.search(
        fd,
        query,
        regex=regex,
        case_sensitive=case_sensitive,
        start=start,
        context=min(context, MAX_CONTEXT_LINES),
        limit=min(limit, MAX_MATCHES),
    )
    return store._rendering.render_matches(result)


async def edit_ref(ref_id: str, old: str, new: str, *, store: RefStore) -> str:
    """
    Change a marked part: old becomes new, in a new version.

    Use it for a small change. Don't use it to write most of it anew: mark it again, or put_ref.

    Args:
        ref_id: The id
        old: What stands there once, exactly, without line numbers
        new: What is to stand there

    """
    entry = store.get(ref_id)
    # Measure the stored text, too, because an edit reads all of it.
    load = measure_input(old, new, entry.content.text)
    return store._rendering.render_stored(
        await store._change(load, lambda refs: refs.edit(ref_id, old, new, origin="model"))
    )


async def put_ref(ref_id: str, text: str, *, store: RefStore) -> str:
    """
    Store a text under an id.

    Use it for text that holds </ref>. Don't use it for what you can mark in your answer.

    Args:
        ref_id: The id
        text: All of it

    """
    return store._rendering.render_stored(
        await store._change(measure_input(text), lambda refs: refs.put(ref_id, text, origin="model"))
    )


# Names of arguments whose values are handles.
HANDLE_ARGUMENTS: Final = frozenset({"fd", "ref_id"})

READ_ONLY_ANNOTATIONS: Final = ToolAnnotations(read_only=True, open_world=False)
WRITING_ANNOTATIONS: Final = ToolAnnotations(open_world=False)
# Annotations of tools that only add a descriptor or a version.
ADDING_ANNOTATIONS: Final = ToolAnnotations(destructive=False, open_world=False)
TOOL_DEFINITIONS: Final = (
    (read_fd, "Read a text", ADDING_ANNOTATIONS),
    (fd_to_file, "Write a text to a file", WRITING_ANNOTATIONS),
    (list_refs, "List marked parts", READ_ONLY_ANNOTATIONS),
    (get_ref, "Get a marked part", READ_ONLY_ANNOTATIONS),
    (search_fd, "Search a text", READ_ONLY_ANNOTATIONS),
    (edit_ref, "Edit a marked part", ADDING_ANNOTATIONS),
    (put_ref, "Store a text", ADDING_ANNOTATIONS),
)


def make_ref_tools(store: RefStore) -> list[Tool]:
    """
    Create the tools for a store, or none if refs are disabled.

    The tools of all stores share schemas.
    """
    if not store.settings.enabled:
        return []
    answer = functools.partial(_render_error, rendering=store._rendering)
    # Models may write files only if the host has passed a directory for them.
    templates = [one for one in _get_templates() if store.files_root is not None or one.name != "fd_to_file"]
    return [bind_template(template, on_error=answer, store=store) for template in templates]


@functools.cache
def _get_templates() -> tuple[Tool, ...]:
    return tuple(
        attrs.evolve(
            Tool.from_function(functools.partial(function, store=RefStore()), title=title, annotations=annotations),
            wrapped=False,
            resolves_handles=False,
            handles=HANDLE_ARGUMENTS,
        )
        for function, title, annotations in TOOL_DEFINITIONS
    )


def _render_error(error: MamaStructsError, arguments: Mapping[str, Any], *, rendering: Rendering) -> ErrorText:
    """Render an error as an answer for a model. Raise errors that the model cannot fix."""
    if not isinstance(error, DescriptorError | InvalidArgument):
        raise error
    given = arguments.get("fd", arguments.get("ref_id")) if isinstance(arguments, Mapping) else None
    handle = given if isinstance(given, str) else None
    if type(error) is InvalidArgument:
        error = InvalidParameter(error.args[0], parameter="arguments", handle=handle, hint=error.hint)
    return ErrorText(rendering.render_error(error, handle=handle), error.type)
