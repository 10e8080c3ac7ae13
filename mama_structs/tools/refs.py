"""The five tools through which a model uses refs and descriptors; what goes wrong is an answer, too."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from mama_structs.descriptors import render
from mama_structs.descriptors.entries import Ref, parse_handle
from mama_structs.descriptors.store import RefStore
from mama_structs.errors import DescriptorError, InvalidArgument, InvalidHandle, InvalidParameter, MamaStructsError
from mama_structs.tools.tool import ErrorText, Tool, ToolAnnotations, bound


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
    Read pages, lines or characters of a large text or of a marked part of an answer. All are counted from 1.

    Use it to read on where a preview ends, or to look at the lines around a match.
    Don't use it to find something: search_fd does that.

    Args:
        fd: fd:<number>, ref:<id>, or ref:<id>@<version>
        mode: What start and count count
        start: The first page, line or character
        count: How many
        page: Short for mode="page", start=page, count=1
        read_all: Read everything, whatever the others say
        extract_to_new_fd: Keep what was read as a new fd, and answer with its number in place of the text

    """
    if page is not None:
        if mode != "page" or start != 1 or count != 1 or read_all:
            raise InvalidParameter(
                "page stands alone: it is short for mode='page', start=page, count=1", parameter="page", handle=fd
            )
        start = page
    excerpt = store.read(fd, mode=mode, start=start, count=count, read_all=read_all)
    if not extract_to_new_fd:
        return render.fd_content(excerpt)
    return render.fd_extraction(excerpt, store.extract(fd, mode=mode, start=start, count=count, read_all=read_all))


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
    Write a large text or a marked part of an answer to a file, without repeating it.

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
    return render.fd_file_result(result)


async def list_refs(*, category: Literal["code", "data", "text"] | None = None, store: RefStore) -> str:
    """
    List what was marked with <ref id="...">: id, time, lines, characters and version of each.

    Args:
        category: Only refs of this category

    """
    return render.ref_list(store.list(category=category))


async def get_ref(ref_id: str, *, store: RefStore) -> str:
    """
    Return the whole of a marked part of an answer.

    Use it for short parts. Don't use it for long ones: read_fd reads them by pages and lines.

    Args:
        ref_id: The id, with @<version> for an earlier version

    """
    entry = store.get(ref_id)
    if not isinstance(entry, Ref):
        raise InvalidHandle(f"{ref_id} is no ref", handle=ref_id, hint="use read_fd")
    return render.ref_content(entry)


async def search_fd(
    fd: str, query: str, *, regex: bool = False, context: int = 0, limit: int = 20, store: RefStore
) -> str:
    """
    Find a text or a regular expression in a large text or a marked part of an answer.

    Use it before reading many pages; each match says its line and character, for read_fd.

    Args:
        fd: fd:<number>, ref:<id>, or ref:<id>@<version>
        query: What to find; upper and lower case differ
        regex: Whether query is a regular expression
        context: Lines around each match to show
        limit: Matches to show at most

    """
    return render.fd_matches(await store.search(fd, query, regex=regex, context=context, limit=limit))


# The arguments of these tools that are handles.
HANDLES: Final = frozenset({"fd", "ref_id"})

_READS: Final = ToolAnnotations(read_only=True, open_world=False)
_WRITES: Final = ToolAnnotations(open_world=False)
# Reading can make a new fd, which takes room and nothing else.
_READS_AND_KEEPS: Final = ToolAnnotations(destructive=False, open_world=False)
_TOOLS: Final = (
    (read_fd, "Read a text", _READS_AND_KEEPS),
    (fd_to_file, "Write a text to a file", _WRITES),
    (list_refs, "List marked parts", _READS),
    (get_ref, "Get a marked part", _READS),
    (search_fd, "Search a text", _READS),
)


def ref_tools(store: RefStore) -> list[Tool]:
    """Return the tools for one store, none where it is switched off; stores share their schemas."""
    if not store.settings.enabled:
        return []
    # Where the host names no directory, no model writes a file.
    templates = [one for one in _templates() if store.files is not None or one.name != "fd_to_file"]
    return [bound(template, store=store) for template in templates]


@functools.cache
def _templates() -> tuple[Tool, ...]:
    return tuple(
        attrs.evolve(
            Tool.from_function(functools.partial(function, store=RefStore()), title=title, annotations=annotations),
            on_error=_answer,
            wrapped=False,
            handles=HANDLES,
        )
        for function, title, annotations in _TOOLS
    )


def _answer(error: MamaStructsError, arguments: Mapping[str, Any]) -> ErrorText:
    """Show an error as a model sees it; what no model can mend is raised."""
    if not isinstance(error, DescriptorError | InvalidArgument):
        raise error
    given = arguments.get("fd", arguments.get("ref_id")) if isinstance(arguments, Mapping) else None
    handle = given if isinstance(given, str) else None
    if type(error) is InvalidArgument:
        error = InvalidParameter(error.args[0], parameter="arguments", handle=handle, hint=error.hint)
    try:
        handle = str(parse_handle(handle)) if handle is not None else None
    except InvalidHandle as invalid:
        handle = invalid.handle
    return ErrorText(render.fd_error(error, handle=handle), error.type)
