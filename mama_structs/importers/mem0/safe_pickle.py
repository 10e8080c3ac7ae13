"""
Safe reader of pickles: it does not unpickle, so it imports, creates and calls nothing that a pickle names.

By default mem0 stores its memories in a local Qdrant folder. Qdrant writes points as pickles, and unpickling runs any
code that a file names. This interpreter executes only the instructions that build plain data. It represents an object
by a `PickledObject` with its name, arguments and state, and rejects every other instruction.

Each collection becomes a list, or a dictionary whose keys are texts. Other values are never hashed or compared: hashing
a deeply nested tuple crashes Python, and integers can be chosen so that their hashes collide.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

MAX_BYTES: Final = 2**26
"""The maximum size of a pickle, and of all texts in its plain data together."""
MAX_DEPTH: Final = 50
"""The maximum nesting depth of plain data."""
MAX_PARTS: Final = 1_000_000
"""The maximum number of instructions, and of values in the plain data: a pickle can reuse a part arbitrarily often."""
_MAX_MEMO_INDEX: Final = MAX_PARTS
# More than MAX_DEPTH, because the payload of a point is nested in the object, its state and its attributes.
_MAX_BUILT_DEPTH: Final = MAX_DEPTH + 10
_MAX_NAME_LENGTH: Final = 1_000
_MAX_INTEGER_BITS: Final = 4_096
TOO_DEEP_ERROR: Final = f"it is nested more than {MAX_DEPTH} deep"
TOO_MANY_PARTS_ERROR: Final = f"it has more than {MAX_PARTS:,} parts"
INVALID_PICKLE_ERROR: Final = "it is no whole pickle"
NESTED_CHANGE_ERROR: Final = "it puts a collection into one that is itself part of another, as a cycle does"


class PickledList(list[Any]):
    """A list, tuple or set in a pickle."""

    __slots__ = ("depth", "is_nested")

    def __init__(self) -> None:
        super().__init__()
        self.depth: int = 1
        self.is_nested: bool = False


class PickledDict(dict[str, Any]):
    """A dictionary in a pickle."""

    __slots__ = ("depth", "is_nested")

    def __init__(self) -> None:
        super().__init__()
        self.depth: int = 1
        self.is_nested: bool = False


@attrs.define(eq=False, repr=False)
class PickledObject:
    """An object that unpickling would create: the name of its callable, the arguments, and the state."""

    name: str
    arguments: Any = ()
    state: Any = None
    depth: int = 1
    is_nested: bool = False

    def field(self, name: str) -> Any:
        """Return an attribute of the object, or None."""
        # Pydantic stores the attributes under the key `__dict__` of the pickled state.
        state = self.state if isinstance(self.state, Mapping) else {}
        inner = state.get("__dict__", state)
        return inner.get(name) if isinstance(inner, Mapping) else None


class _Mark:
    """A marker on the stack. The items of the collection that is being built follow it."""

    __slots__ = ()


_MARK: Final = _Mark()


def read_pickle(data: bytes) -> Any:
    """
    Return the content of a pickle, with a `PickledObject` for each object in it.

    Tuples and sets become lists. Sizes, instructions, depth and memo indexes are checked before a value is built.

    Raises:
        ValueError: It is not a pickle, exceeds a limit, or contains more than plain data and objects.

    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    machine = PickleMachine()
    instructions = pickletools.genops(data)
    for _ in range(MAX_PARTS):
        try:
            # An excessive length cannot exhaust memory, because pickletools slices the existing data.
            opcode, argument, _position = next(instructions)
        except (ValueError, LookupError, ArithmeticError, StopIteration, Warning):
            # Suppress the error of pickletools, because its message contains data of the pickle.
            raise ValueError(INVALID_PICKLE_ERROR) from None
        try:
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(INVALID_PICKLE_ERROR) from error
    raise ValueError(TOO_MANY_PARTS_ERROR)


def to_jsonable_data(value: Any) -> Any:
    """
    Return the content of a pickle as JSON-able data.

    Raises:
        ValueError: It exceeds a limit, or contains more than JSON can represent.

    """
    return PlainConverter().convert(value, 0)


@attrs.define
class PlainConverter:
    """Converts pickled values to JSON-able data, and limits the number of values and characters."""

    parts: int = 0
    characters: int = 0

    def convert(self, value: Any, depth: int) -> Any:
        """Return a value as JSON-able data. Raise `ValueError` if it is not JSON or exceeds a limit."""
        self.parts += 1
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP_ERROR)
        if self.parts > MAX_PARTS:
            raise ValueError(TOO_MANY_PARTS_ERROR)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, PickledList):
            return [self.convert(item, depth + 1) for item in value]
        if isinstance(value, PickledDict):
            return {self.text(key): self.convert(item, depth + 1) for key, item in value.items()}
        raise ValueError("it holds something that is no JSON")

    def text(self, value: str) -> str:
        """Return a text, and count its characters. Raise `ValueError` if the total exceeds the limit."""
        self.characters += len(value)
        if self.characters > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} characters")
        return value


@attrs.define
class PickleMachine:
    """Interpreter of pickle instructions, with a stack and a memo."""

    stack: list[Any] = attrs.field(factory=list)
    memo: dict[int, Any] = attrs.field(factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Execute one instruction. Raise `ValueError` for an instruction that plain data does not need."""
        if name in PUSH_OPCODES:
            if isinstance(argument, int) and argument.bit_length() > _MAX_INTEGER_BITS:
                raise ValueError(f"it has an integer of more than {_MAX_INTEGER_BITS:,} bits")
            self.stack.append(argument)
        elif name in CREATE_OPCODES:
            self.stack.append(CREATE_OPCODES[name]())
        elif name in OPCODE_HANDLERS:
            OPCODE_HANDLERS[name](self, argument)
        elif name not in IGNORED_OPCODES:
            raise ValueError(f"it has the instruction {name}, which plain data does not need")

    def pop_to_mark(self) -> list[Any]:
        """Pop the values above the topmost mark, and the mark, and return the values."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError(INVALID_PICKLE_ERROR)
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def put(self, number: int | None) -> None:
        """Store the top of the stack in the memo, at the next free index if *number* is None."""
        index = len(self.memo) if number is None else number
        if not 0 <= index <= _MAX_MEMO_INDEX:
            raise ValueError(f"it has a memo index above {_MAX_MEMO_INDEX:,}")
        self.memo[index] = self.stack[-1]

    def nest(self, outer: PickledList | PickledDict | PickledObject, inner: list[Any]) -> None:
        """Update the depth of *outer* before *inner* is added to it. Raise `ValueError` if the nesting is too deep."""
        parts = [one for one in inner if isinstance(one, PickledList | PickledDict | PickledObject)]
        # Reject the change if *outer* is already part of a collection, whose depth would otherwise be outdated.
        if parts and outer.is_nested:
            raise ValueError(NESTED_CHANGE_ERROR)
        depth = max([outer.depth, *(one.depth + 1 for one in parts)])
        if depth > _MAX_BUILT_DEPTH:
            raise ValueError(TOO_DEEP_ERROR)
        outer.depth = depth
        for one in parts:
            one.is_nested = True

    def fill(self, items: list[Any]) -> None:
        """Add alternating keys and values to the dictionary on top of the stack."""
        entries = self.stack[-1]
        # Ignore the items of a dict-like object, because only its attributes are used.
        if not isinstance(entries, PickledDict):
            return
        if len(items) % 2:
            raise ValueError(INVALID_PICKLE_ERROR)
        if not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("it is no JSON: a key of a dictionary is not a text")
        self.nest(entries, items[1::2])
        entries.update(zip(items[::2], items[1::2], strict=True))

    def mapping(self) -> None:
        """Create a dictionary from the keys and values above the mark."""
        items = self.pop_to_mark()
        self.stack.append(PickledDict())
        self.fill(items)

    def extend(self, items: list[Any]) -> None:
        """Append items to the list or set on top of the stack."""
        several = self.stack[-1]
        if isinstance(several, PickledList):
            self.nest(several, items)
            several.extend(items)

    def collect(self, items: list[Any]) -> None:
        """Push a list of the items."""
        self.stack.append(PickledList())
        self.extend(items)

    def make_list_of_top(self, count: int) -> None:
        """Replace the topmost *count* values of the stack with a list of them."""
        if len(self.stack) < count:
            raise ValueError(INVALID_PICKLE_ERROR)
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        self.collect(items)

    def call(self) -> None:
        """Replace a callable and its arguments on the stack with the object that the call would return."""
        arguments, called = self.stack.pop(), self.stack.pop()
        if not isinstance(called, PickledObject):
            raise TypeError(INVALID_PICKLE_ERROR)
        made = PickledObject(called.name)
        self.nest(made, [arguments])
        made.arguments = arguments
        self.stack.append(made)

    def build(self) -> None:
        """Pop a value, and set it as the state of the object below it."""
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, PickledObject):
            raise TypeError(INVALID_PICKLE_ERROR)
        self.nest(made, [state])
        made.state = state

    def name(self, module: Any, name: Any) -> None:
        """Push a `PickledObject` for the given name in a module."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError(INVALID_PICKLE_ERROR)
        if len(module) + len(name) > _MAX_NAME_LENGTH:
            raise ValueError(f"it names an object with more than {_MAX_NAME_LENGTH:,} characters")
        self.stack.append(PickledObject(f"{module}.{name}"))


IGNORED_OPCODES: Final = frozenset({"PROTO", "FRAME"})
PUSH_OPCODES: Final = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8",
    }
)  # fmt: skip
CREATE_OPCODES: Final[Mapping[str, Callable[[], Any]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": PickledDict,
    "EMPTY_LIST": PickledList,
    "EMPTY_TUPLE": PickledList,
    "EMPTY_SET": PickledList,
    "MARK": lambda: _MARK,
}
OPCODE_HANDLERS: Final[Mapping[str, Callable[[PickleMachine, Any], object]]] = {
    "MEMOIZE": lambda machine, _: machine.put(None),
    "PUT": lambda machine, number: machine.put(number),
    "BINPUT": lambda machine, number: machine.put(number),
    "LONG_BINPUT": lambda machine, number: machine.put(number),
    "GET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "BINGET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "LONG_BINGET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "SETITEM": lambda machine, _: machine.fill([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.fill(machine.pop_to_mark()),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_to_mark()),
    "ADDITEMS": lambda machine, _: machine.extend(machine.pop_to_mark()),
    "TUPLE": lambda machine, _: machine.collect(machine.pop_to_mark()),
    "LIST": lambda machine, _: machine.collect(machine.pop_to_mark()),
    "DICT": lambda machine, _: machine.mapping(),
    "FROZENSET": lambda machine, _: machine.collect(machine.pop_to_mark()),
    "TUPLE1": lambda machine, _: machine.make_list_of_top(1),
    "TUPLE2": lambda machine, _: machine.make_list_of_top(2),
    "TUPLE3": lambda machine, _: machine.make_list_of_top(3),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.pop_to_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "GLOBAL": lambda machine, name: machine.name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(machine.stack.pop(-2), machine.stack.pop()),
    "NEWOBJ": lambda machine, _: machine.call(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}
