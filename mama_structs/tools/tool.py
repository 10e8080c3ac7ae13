"""Tools: functions with what a model has to know about them, and the tools of a session by name."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Self, TypeVar, overload

import attrs

from mama_structs._internal.event_loop import CallProgress, call_progress, from_model
from mama_structs._internal.introspection import awaited, layers_of, written_as
from mama_structs._internal.jsonable import to_answer
from mama_structs._internal.offload import measure, run_inline_or_in_thread
from mama_structs.errors import InvalidArgument, MamaStructsError, UnknownTool, shown
from mama_structs.tools.schema import Signature, split_docstring, widened
from mama_structs.tools.wire_names import hint_at

MAX_NAME_LENGTH = 64
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)?")
_Default = TypeVar("_Default")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class ErrorText(str):
    """A tool's answer that says what went wrong; *type* is the error's."""

    __slots__ = ("type",)

    def __new__(cls, text: str, error_type: str) -> Self:
        """Return the text with the error's type."""
        made = super().__new__(cls, text)
        made.type = error_type
        return made

    type: str


@attrs.frozen(kw_only=True)
class ToolAnnotations:
    """
    How a tool behaves, for hosts that ask before they run one; by default it may change anything, as in MCP.

    Args:
        read_only: It changes nothing.
        destructive: It may remove or overwrite something. By default, whatever is not *read_only*.
        idempotent: Running it again with the same arguments changes nothing more. By default, what is *read_only*.
        open_world: It reaches beyond the session, to the network for one.

    """

    read_only: bool = False
    destructive: bool = attrs.field(default=attrs.Factory(lambda self: not self.read_only, takes_self=True))
    idempotent: bool = attrs.field(default=attrs.Factory(lambda self: self.read_only, takes_self=True))
    open_world: bool = True

    def __attrs_post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.read_only and self.destructive:
            raise InvalidArgument("a tool that is read_only cannot be destructive", hint="leave one of them out")


def _refuse_bad_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise InvalidArgument(
            f"a tool's name must be at most {MAX_NAME_LENGTH} letters, digits, _ and -, in two parts with / at most, "
            f"got {shown(name)}",
            hint="pass name=..., such as save/decision",
        )


def _refuse_other(_tool: object, field: attrs.Attribute[Any], value: object) -> None:
    kind, word = (ToolAnnotations, "a ToolAnnotations") if field.name == "annotations" else (str, "a text")
    if not isinstance(value, kind):
        raise InvalidArgument(f"{field.name} must be {word}, got {type(value).__name__}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Tool:
    """
    A function as a tool for a model; `from_function` makes one.

    Args:
        name: As models call it, such as ``save/decision``; at most 64 characters.
        title: The name for people.
        description: What it does, when to use it and when not.
        input_schema: JSON Schema (2020-12) of the arguments. Shared: copy it before changing it.
        output_schema: JSON Schema of the answer, shortened or not; None where the result is no object, nothing is
            known about it, or what was given says more than a shortened result could keep. Shared, too.
        annotations: How it behaves.
        function: What runs.
        signature: What checks the arguments.
        on_error: What the tool answers in place of raising, for tools whose errors are results that a model reads.
        wrapped: Whether `Session.call` may turn a large result into a descriptor.
        handles: The arguments that take a ``ref:`` or ``fd:`` itself: for these `Session.call` puts the handle, and
            not the text, in place of ``{"$ref": "ref:x"}``.
        resolve: Whether an argument that is a handle, or has ``{{ref:x}}`` in it, is replaced by the text that it
            stands for. Set it to False for tools that take handles, or search for words.
        deprecated: Whether it is one of v1.0, whose names a host's own tool may have, too.

    """

    name: str = attrs.field(validator=lambda _self, _field, name: _refuse_bad_name(name))
    title: str = attrs.field(validator=_refuse_other)
    description: str = attrs.field(validator=_refuse_other)
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = attrs.field(converter=widened)
    annotations: ToolAnnotations = attrs.field(validator=_refuse_other)
    function: Callable[..., Awaitable[Any]]
    signature: Signature
    on_error: Callable[[MamaStructsError, Mapping[str, Any]], Any] | None = None
    wrapped: bool = True
    handles: frozenset[str] = frozenset()
    resolve: bool = True
    deprecated: bool = False

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
    ) -> Tool:
        """
        Make a tool of a function, bound method, `functools.partial` or object with a ``__call__``.

        What is not async runs in a thread of its own, where the session's own objects refuse to be used.

        Signature and type hints say what is accepted; ``Annotated[..., msgspec.Meta(...)]`` adds bounds.
        Parameters named ``ctx``, ``run_context`` and ``tool_context`` belong to the host, and so does what a partial
        has bound: models neither see nor set them.

        Args:
            function: What the tool runs.
            name: By default the function's name, or its class's in snake_case.
            title: By default the function's attribute ``tool_title``, or made from the name.
            description: By default the docstring without its ``Args:`` section, which describes the parameters.
            annotations: How the tool behaves; by default it may change anything.

        Raises:
            InvalidArgument: It is a generator or no function, or a parameter cannot be offered to a model.

        """
        run = awaited(function)
        layers = layers_of(function)
        # A callable object's decorator says the name of its class, and the method inside only that it is called.
        innermost = layers[0] if layers[-1].name == "__call__" else layers[-1]
        text, about_parameters = split_docstring(innermost.docstring)
        name = _default_name(innermost.name) if name is None else name
        _refuse_bad_name(name)
        signature = Signature.of(function, descriptions=about_parameters)
        return cls(
            name=name,
            title=(innermost.title or _default_title(name)) if title is None else title,
            description=text if description is None else description,
            input_schema=signature.input_schema(),
            output_schema=signature.output_schema(),
            annotations=ToolAnnotations() if annotations is None else annotations,
            function=run,
            signature=signature,
        )

    async def __call__(self, /, **arguments: Any) -> Any:
        """
        Check the arguments, run the function, and return its result untouched.

        A host's own call: what a decorator holds models to does not hold for it, as it does in `run`.

        Raises:
            InvalidArgument: Arguments are missing, unknown or of a wrong type; the message names each, and nothing ran.

        """
        host = {name: arguments.pop(name) for name in self.signature.host if name in arguments}
        return await self._run(arguments, host)

    async def run(self, arguments: Mapping[str, Any], *, host: Mapping[str, Any] | None = None) -> Any:
        """
        Run the tool with a model's *arguments* and the *host*'s own.

        Args:
            arguments: From the model: nothing in here can stand in for a parameter of the host.
            host: From the host: values for the parameters ``ctx``, ``run_context`` and ``tool_context``.

        Raises:
            InvalidArgument: As for a call.

        """
        asked = from_model.set(True)
        try:
            return await self._run(arguments, host or {})
        finally:
            from_model.reset(asked)

    async def _run(self, arguments: Mapping[str, Any], host: Mapping[str, Any]) -> Any:
        progress = (call_progress.get() or CallProgress()).enter()
        try:
            load = measure(arguments)
            checked = await run_inline_or_in_thread(load, self.signature.check, arguments, tool=self.name)
            own = self.signature.check_host(host, tool=self.name)
            progress.start(self.function)
            result = await self.function(**checked, **own)
        except MamaStructsError as error:
            if self.on_error is None:
                raise
            return self.on_error(error, arguments)
        progress.finish()
        return result

    def __repr__(self) -> str:
        """Show name and parameters."""
        return f"<Tool {self.name}({', '.join(self.signature.parameters)})>"


def bound(
    template: Tool, *, on_error: Callable[[MamaStructsError, Mapping[str, Any]], Any] | None = None, **values: object
) -> Tool:
    """Return a tool of a partial with these values for what it has set, as far as it has, and with the same schemas."""
    assert isinstance(template.function, functools.partial)  # noqa: S101 - that is what templates are made of
    own = {name: values[name] for name in template.function.keywords}
    made = copy.copy(template)
    # `attrs.evolve` would make the schema of answers anew, for every tool of every session and fork.
    object.__setattr__(made, "function", functools.partial(template.function.func, **own))
    if on_error is not None:
        object.__setattr__(made, "on_error", on_error)
    return made


def _default_name(name: str) -> str:
    return _WORD_START.sub("_", name).lower() if name[:1].isupper() else name


def _default_title(name: str) -> str:
    words = name.replace("/", " ").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


class ToolSet(Mapping[str, Tool]):
    """
    The tools of a session by name, in the order in which they were added.

    >>> len(ToolSet())
    0
    """

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in order."""
        return tuple(self._tools)

    def add(
        self,
        function: Callable[..., Any] | Tool,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        replace: bool = False,
    ) -> Tool:
        """
        Add a tool, or a function as a tool, and return the tool.

        The same function again, as from a cell of a notebook that runs again, takes the place of the first: the same
        object, or one of the same qualified name at the top of the same module.

        Args:
            function: A tool, or what `Tool.from_function` takes.
            name: As in `Tool.from_function`; what is given replaces what a tool came with.
            title: As above.
            description: As above.
            annotations: As above.
            replace: Whether it takes the place of any other tool of its name.

        Raises:
            InvalidArgument: The name is taken by something else, or the function cannot be a tool; nothing was added.

        """
        if isinstance(function, Tool):
            given = {"name": name, "title": title, "description": description, "annotations": annotations}
            changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
            tool = attrs.evolve(function, **changes) if changes else function
        else:
            tool = Tool.from_function(
                function, name=name, title=title, description=description, annotations=annotations
            )
        known = self._tools.get(tool.name)
        if known is not None and not replace and written_as(known.function) != written_as(tool.function):
            raise InvalidArgument(
                f"there already is a tool named {tool.name!r}", hint="pass another name=..., or replace=True"
            )
        self._tools[tool.name] = tool
        return tool

    def remove(self, name: str) -> Tool:
        """
        Remove a tool and return it; older lists of tools still name it, but cannot run it.

        Raises:
            UnknownTool: No tool has this name.

        """
        return self._tools.pop(self[name].name)

    async def call(self, name: str, arguments: Mapping[str, Any], *, host: Mapping[str, Any] | None = None) -> Any:
        """
        Run a tool as a model asked for it, and return its result as JSON-able data.

        A text takes the place of each part of the result that has no JSON form, and says that the tool has run.

        Args:
            name: The tool's.
            arguments: As the model gave them.
            host: Values for the tool's parameters ``ctx``, ``run_context`` and ``tool_context``.

        Raises:
            UnknownTool: No tool has this name.
            InvalidArgument: The arguments are not those of the tool; nothing ran.

        """
        result = await self[name].run(arguments, host=host)
        if isinstance(result, ErrorText):
            return result
        return await run_inline_or_in_thread(measure(result), to_answer, result)

    def __getitem__(self, name: str) -> Tool:
        """Return the tool of this name, or raise `UnknownTool` with the nearest names."""
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(name, hint=hint_at(name, self.names)) from None

    def __contains__(self, name: object) -> bool:
        """Tell whether a tool has this name."""
        return name in self._tools

    def __iter__(self) -> Iterator[str]:
        """Go through the names, in order."""
        return iter(self._tools)

    def __len__(self) -> int:
        """Count the tools."""
        return len(self._tools)

    # `Mapping.get` would let `UnknownTool` through, which is no KeyError.
    @overload
    def get(self, name: str, /) -> Tool | None: ...
    @overload
    def get(self, name: str, /, default: Tool | _Default) -> Tool | _Default: ...
    def get(self, name: str, /, default: object = None) -> object:
        """Return the tool, or *default* where no tool has this name."""
        return self._tools.get(name, default)

    def __repr__(self) -> str:
        """Show the tools' names."""
        return f"ToolSet({', '.join(self._tools)})"
