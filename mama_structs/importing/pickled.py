"""
What a pickle says, read without unpickling: nothing is imported, made or called.

Qdrant in a folder, where mem0 keeps its memories by default, writes points as pickles, and unpickling runs whatever
a file says. Here each instruction is followed as far as it builds plain data. An object becomes an `Opaque` that holds
its name and its parts, and everything else is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

_MAX_SIZE: Final = 2**26
_MAX_DEPTH: Final = 50
# Parts of one value: a pickle may name one part again and again, and would be endless when it is written out.
_MAX_PARTS: Final = 1_000_000


@attrs.define(eq=False)
class Opaque:
    """An object that a pickle would make: the name of what makes it, what that is called with, and its state."""

    name: str
    arguments: Any = ()
    state: Any = None

    def field(self, name: str) -> Any:
        """Return an attribute of the object, None where it has no such one."""
        # Pydantic keeps the attributes themselves in an entry of its state.
        state = self.state if isinstance(self.state, Mapping) else {}
        inner = state.get("__dict__", state)
        return inner.get(name) if isinstance(inner, Mapping) else None


class _Mark:
    """Where the items of a collection begin on the stack."""


_MARK: Final = _Mark()


def read_pickle(data: bytes) -> Any:
    """
    Return what a pickle says, with an `Opaque` for each object in it.

    Raises:
        ValueError: It is no pickle, or says more than plain data and objects.

    """
    if len(data) > _MAX_SIZE:
        raise ValueError("it is too long")
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except ValueError:
        raise
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is no whole pickle") from error
    raise ValueError("it is no whole pickle")


def plain(value: Any) -> Any:
    """Return JSON-able data that says what a value read from a pickle says; what is no such data is a ValueError."""
    return _Plain().of(value, 0)


@attrs.define
class _Plain:
    parts: int = 0

    def of(self, value: Any, depth: int) -> Any:
        self.parts += 1
        if depth > _MAX_DEPTH or self.parts > _MAX_PARTS:
            raise ValueError("it is nested too deeply, or holds too much")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: self.of(item, depth + 1) for key, item in value.items()}
        raise ValueError("it holds something that is no JSON")


@attrs.define
class _Machine:
    """The stack and the memory of one pickle, whose instructions are followed one by one."""

    stack: list[Any] = attrs.field(factory=list)
    memo: dict[int, Any] = attrs.field(factory=dict)

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _MADE:
            self.stack.append(_MADE[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in _IGNORED:
            raise ValueError(f"it has the instruction {name}, which plain data does not need")

    def since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("it is no whole pickle")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def put(self, number: int | None) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]

    def fill(self, items: list[Any]) -> None:
        """Put keys and values into the mapping on top."""
        mapping = self.stack[-1]
        # The entries of an object that is a mapping, and of which only its fields are asked for.
        if isinstance(mapping, dict):
            mapping.update(zip(items[::2], items[1::2], strict=True))

    def mapping(self) -> None:
        """Make a mapping of the keys and values since the mark."""
        items = self.since_mark()
        self.stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def extend(self, items: list[Any]) -> None:
        """Put items into the list or set on top."""
        several = self.stack[-1]
        if isinstance(several, list):
            several.extend(items)
        elif isinstance(several, set):
            several.update(items)

    def call(self) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        self.stack.append(Opaque(called.name, arguments))

    def build(self) -> None:
        state = self.stack.pop()
        self.stack[-1].state = state

    def named(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Opaque(f"{module}.{name}"))

    def replace(self, count: int, make: Callable[[list[Any]], Any]) -> None:
        """Put in the place of the topmost items what is made of them."""
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        self.stack.append(make(items))


_IGNORED: Final = frozenset({"PROTO", "FRAME"})
_PUSHED: Final = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8",
    }
)  # fmt: skip
_MADE: Final[Mapping[str, Callable[[], Any]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "MARK": lambda: _MARK,
}
_STEPS: Final[Mapping[str, Callable[[_Machine, Any], object]]] = {
    "MEMOIZE": lambda machine, _: machine.put(None),
    "PUT": lambda machine, number: machine.put(number),
    "BINPUT": lambda machine, number: machine.put(number),
    "LONG_BINPUT": lambda machine, number: machine.put(number),
    "GET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "BINGET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "LONG_BINGET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "SETITEM": lambda machine, _: machine.fill([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.fill(machine.since_mark()),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.extend(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "LIST": lambda machine, _: machine.stack.append(machine.since_mark()),
    "DICT": lambda machine, _: machine.mapping(),
    "FROZENSET": lambda machine, _: machine.stack.append(frozenset(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.replace(1, tuple),
    "TUPLE2": lambda machine, _: machine.replace(2, tuple),
    "TUPLE3": lambda machine, _: machine.replace(3, tuple),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.since_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GLOBAL": lambda machine, name: machine.stack.append(Opaque(name.replace(" ", "."))),
    "STACK_GLOBAL": lambda machine, _: machine.named(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}
