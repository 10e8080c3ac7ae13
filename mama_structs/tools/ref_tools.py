"""Tools with which a model uses refs and descriptors. Errors are returned as answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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
from mama_structs.refs.store.render import Rendering
from mama_structs.refs.store.text import format_number
from mama_structs.refs.store.text_search import MAX_CONTEXT_LINES, MAX_MATCHES
from mama_structs.tools.tool import ErrorText, Tool, ToolAnnotations, bind_template, hide_parameters, join_lines


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
    Read a part of a stored text: count pages, lines or characters from number start.

    Use it to go on where an answer ends (its next is the call), not to find something (search_fd).

    Args:
        fd: fd:1, ref:x or ref:x@1
        read_all: As much as fits in an answer
        extract_to_new_fd: Store it, don't show it

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
    Write a stored text to a file without repeating it.

    Use it to save code or data exactly, not for files outside of the directory for files.

    Args:
        fd: fd:1, ref:x or ref:x@1
        file_path: Relative to the directory for files
        mode: write replaces the file, append adds to its end, insert adds lines before line insert_at
        insert_at: For mode insert: a line, counted from 1
        create: Whether a missing file may be created
        exist_ok: Whether an existing file may be changed
        parents: Whether missing directories may be created

    """
    result = await store.to_file(
        fd, file_path, mode=mode, insert_at=insert_at, create=create, exist_ok=exist_ok, parents=parents, by_model=True
    )
    return store._rendering.render_file_result(result)


async def list_refs(*, category: Literal["code", "data", "text"] | None = None, start: int = 1, store: RefStore) -> str:
    """List all refs, oldest first."""
    refs = store.list(category=category)
    last = max(1, len(refs))
    if not 1 <= start <= last:
        raise InvalidRange(f"the list has no ref {format_number(start)}", valid=(1, last))
    times = store._list_creation_times()
    return store._rendering.render_refs(refs, start=start, category=category, creation_times=times)


async def get_ref(ref_id: str, *, store: RefStore) -> str:
    """
    Return the text of a ref.

    Use it for a short one, not for a long one (read_fd).

    Args:
        ref_id: x or x@1

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
    Find a text or regular expression in a stored text.

    Use it before reading many pages, not to read on (read_fd).

    Args:
        fd: fd:1, ref:x or ref:x@1
        context: Lines around a match
        start: Character position

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
    Replace a piece of a ref, as a new version.

    Use it for a small change, not to rewrite most of it (put_ref).

    Args:
        old: Occurs once; no line numbers

    """
    entry = store.get(ref_id)
    # Measure the stored text, too, because an edit reads all of it.
    load = measure_input(old, new, entry.content.text)
    return store._rendering.render_stored(
        await store._change(load, lambda refs: refs.edit(ref_id, old, new, origin="model"))
    )


async def put_ref(ref_id: str, text: str, *, store: RefStore) -> str:
    """
    Store a text as a ref.

    Use it for text that contains </ref>, not for text in your answer: mark it there.
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
TOOL_NAMES: Final = frozenset(function.__name__ for function, _, _ in TOOL_DEFINITIONS)


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
    return tuple(_make_template(*definition) for definition in TOOL_DEFINITIONS)


def _make_template(function: Callable[..., Any], title: str, annotations: ToolAnnotations) -> Tool:
    tool = Tool.from_function(functools.partial(function, store=RefStore()), title=title, annotations=annotations)
    return attrs.evolve(
        tool,
        description=join_lines(tool.description),
        # Omit `page`, a duplicate of `start`.
        input_schema=hide_parameters(tool.input_schema, {"page"}),
        wrapped=False,
        resolves_handles=False,
        handles=HANDLE_ARGUMENTS,
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
