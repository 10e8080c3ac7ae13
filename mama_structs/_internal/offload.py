"""
Offloading of large inputs: measure an input, and process it in a thread if it would block the event loop too long.

The async methods of this package process a small input in the event loop and a large one in a thread.
Synchronous methods reject a large input, see `check_sync_size`.
A thread shares the interpreter lock. Pure Python work releases the lock every 5 ms, but a call into C may hold it until
it returns. Work in a thread must therefore not pass a large object to a single C call (see
`jsonable.to_json_text_in_chunks`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import attrs

from mama_structs._internal.event_loop import run_in_own_thread
from mama_structs.errors import InvalidArgument

P = ParamSpec("P")
T = TypeVar("T")

MAX_INLINE_CHARS: Final = 50_000
"""Characters and bytes that an async method processes in the event loop."""
MAX_INLINE_ITEMS: Final = 500
"""Items of containers that an async method processes in the event loop."""
MAX_SYNC_CHARS: Final = 1_000_000
"""Characters and bytes that a synchronous method accepts."""
MAX_SYNC_REFS: Final = 1_000
"""Refs that a synchronous method accepts in one message."""
MAX_SYNC_ITEMS: Final = 10_000
"""Items of containers that a synchronous method accepts."""

SCALAR_TYPES: Final = frozenset({int, float, bool, complex, type(None)})
TEXT_TYPES: Final = (str, bytes, bytearray, memoryview)
COLLECTION_TYPES: Final = (list, tuple, set, frozenset)


@attrs.frozen
class InputSize:
    """Size of an input: the characters and bytes of its texts, and the items of its containers."""

    chars: int = 0
    items: int = 0

    @property
    def is_inline(self) -> bool:
        """True if the input is small enough to be processed in the event loop."""
        return self.chars <= MAX_INLINE_CHARS and self.items <= MAX_INLINE_ITEMS


def measure_input(*values: object, max_chars: int = MAX_INLINE_CHARS, max_items: int = MAX_INLINE_ITEMS) -> InputSize:
    """
    Return the size of *values*. Stop counting when a limit is exceeded.

    The limits bound the cost: a container with more items than the remaining limit is not entered.
    """
    chars, items = 0, 0
    stack: list[Any] = [*values]
    while stack and chars <= max_chars and items <= max_items:
        value = stack.pop()
        if type(value) in SCALAR_TYPES:
            continue
        if isinstance(value, TEXT_TYPES):
            chars += len(value)
            continue
        members = _get_members(value)
        items += len(members)
        if items <= max_items:
            stack += members
    return InputSize(chars, items)


def _get_members(value: Any) -> list[Any] | tuple[Any, ...]:  # noqa: PLR0911 - one return for each kind of object
    """Return the members of an object, or an empty list for an unknown type."""
    kind = type(value)
    if kind is list or kind is tuple:
        members: list[Any] | tuple[Any, ...] = value
        return members
    try:
        if isinstance(value, Mapping):
            return [*value, *value.values()]
        if isinstance(value, COLLECTION_TYPES):
            return [*value]
        if attrs.has(kind):
            return [getattr(value, field.name, None) for field in attrs.fields(kind)]
        if dataclasses.is_dataclass(kind):
            return [getattr(value, field.name, None) for field in dataclasses.fields(kind)]
        if (names := getattr(kind, "__struct_fields__", None)) is not None:
            return [getattr(value, name, None) for name in names]
        return [*vars(value).values()] if hasattr(value, "__dict__") else range(len(value))  # type: ignore[return-value]
    except Exception:  # noqa: BLE001 - a host's class may raise any exception; the work itself reports its error
        return ()


async def run_inline_or_in_thread(size: InputSize, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Run *function* in the event loop if *size* is small, otherwise in a thread.

    The function must not use an object that belongs to the event loop, or change an object that other code reads.
    A cancelled caller waits for the end of the thread, so that no work continues afterwards.
    """
    if size.is_inline:
        return function(*args, **kwargs)
    return await run_in_own_thread(partial(function, *args, **kwargs))


def check_sync_size(name: str, input_size: InputSize, *, hint: str) -> None:
    """
    Raise `InvalidArgument` if an input is too large for a synchronous method.

    *hint* names the async method to use instead.
    """
    for unit, size, limit in (
        ("characters", input_size.chars, MAX_SYNC_CHARS),
        ("items", input_size.items, MAX_SYNC_ITEMS),
    ):
        if size > limit:
            raise InvalidArgument(
                f"{name} must have at most {limit:,} {unit} in a synchronous call, got {size:,} or more", hint=hint
            )
