"""Tools: functions with schemas for models, and the collection of a session's tools."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Self, TypeVar, overload

import attrs

from mama_structs._internal.event_loop import CallProgress, call_progress, is_model_call
from mama_structs._internal.hints import peer_names
from mama_structs._internal.hints.call_hints import with_call_hints
from mama_structs._internal.introspection import find_layers, get_definition_key, make_async
from mama_structs._internal.jsonable import JsonMixin, to_answer
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs.errors import InvalidArgument, MamaStructsError, UnknownTool, repr_short
from mama_structs.tools.docstrings import split_docstring
from mama_structs.tools.schema import JSONSchema, Signature, make_answer_schema
from mama_structs.tools.wire_names import WireNames, make_name_hint

MAX_NAME_CHARS = 64
NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)?")
_Default = TypeVar("_Default")
WORD_START_PATTERN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class ErrorText(str):
    """A text that describes an error to the model. *type* is the type of the error."""

    __slots__ = ("type",)

    def __new__(cls, text: str, error_type: str) -> Self:
        """Create the text with the type of its error."""
        made = super().__new__(cls, text)
        made.type = error_type
        return made

    type: str


@attrs.frozen(kw_only=True)
class ToolAnnotations(JsonMixin):
    """
    Effects of a tool, for hosts that ask the user before they run it.

    The defaults are the least safe, as in MCP.

    Args:
        read_only: The tool changes nothing.
        destructive: The tool may remove or overwrite something. Default: not *read_only*.
        idempotent: Repeating a call with the same arguments has no further effect. Default: *read_only*.
        open_world: The tool reaches beyond the session, such as the network.

    """

    read_only: bool = False
    destructive: bool = attrs.field(default=attrs.Factory(lambda self: not self.read_only, takes_self=True))
    idempotent: bool = attrs.field(default=attrs.Factory(lambda self: self.read_only, takes_self=True))
    open_world: bool = True

    def __attrs_post_init__(self) -> None:
        """Reject contradictory values."""
        if self.read_only and self.destructive:
            raise InvalidArgument("a tool that is read_only cannot be destructive", hint="leave one of them out")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise InvalidArgument(
            f"a tool's name must be at most {MAX_NAME_CHARS} letters, digits, _ and -, in two parts with / at most, "
            f"got {repr_short(name)}",
            hint="pass name=..., such as save/decision",
        )


def _check_type(_tool: object, field: attrs.Attribute[Any], value: object) -> None:
    kind, word = (ToolAnnotations, "a ToolAnnotations") if field.name == "annotations" else (str, "a text")
    if not isinstance(value, kind):
        raise InvalidArgument(f"{field.name} must be {word}, got {type(value).__name__}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Tool:
    """
    A function as a tool for a model, created by `from_function`.

    Args:
        name: Name for models, such as ``save/decision``; at most 64 characters.
        title: Display name for people.
        description: What the tool does, and when to use it.
        input_schema: JSON Schema (2020-12) of the arguments. Shared: copy it before changing it.
        output_schema: JSON Schema of the answer, which may be truncated. None if the result is not an object, its type
            is unknown, or no schema also covers truncated results. Shared, too.
        annotations: Behaviour of the tool.
        function: The function to run.
        signature: Validates the arguments.
        on_error: Returns the answer for an error instead of raising it, for tools whose errors are read by models.
        wrapped: Whether `Session.call` may turn a large result into a descriptor.
        handles: Arguments that accept a ``ref:`` or ``fd:`` itself: `Session.call` replaces ``{"$ref": "ref:x"}`` in
            them by the handle instead of the text.
        resolves_handles: Whether handles and ``{{ref:x}}`` in text arguments are replaced by their texts. Set it to
            False for tools that accept handles, or search for words.
        deprecated: Whether it is a tool of v1.0; a host's own tool may have the same name.

    """

    name: str = attrs.field(validator=lambda _self, _field, name: _check_name(name))
    title: str = attrs.field(validator=_check_type)
    description: str = attrs.field(validator=_check_type)
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = attrs.field(converter=make_answer_schema)
    annotations: ToolAnnotations = attrs.field(validator=_check_type)
    function: Callable[..., Awaitable[Any]]
    _signature: Signature
    _on_error: Callable[[MamaStructsError, Mapping[str, Any]], Any] | None = None
    _wrapped: bool = True
    handles: frozenset[str] = frozenset()
    resolves_handles: bool = True
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
        Create a tool from a function, bound method, `functools.partial` or callable object.

        A function that is not async runs in a new thread, where the session's own objects cannot be used.

        Signature and type hints define the schema. The metadata in ``Annotated`` adds bounds and descriptions: a text,
        ``msgspec.Meta``, ``pydantic.Field``, or an object of annotated-types.
        Parameters named ``ctx``, ``run_context`` and ``tool_context``, and arguments bound by a partial, belong to the
        host: models neither see nor set them.

        Args:
            function: The function to run.
            name: Default: the function's name, or its class's in snake_case.
            title: Default: the function's attribute ``tool_title``, or derived from the name.
            description: Default: the docstring without the descriptions of the parameters, which go to the schema. They
                may be in the style of Google, NumPy or Sphinx.
            annotations: Behaviour of the tool; by default it may change anything.

        Raises:
            InvalidArgument: *function* is a generator or not callable, JSON Schema cannot describe a parameter, or the
                metadata of a parameter is not understood.

        """
        run = make_async(function)
        layers = find_layers(function)
        # A callable object is described by its class: its method is only named `__call__`.
        innermost = layers[0] if layers[-1].name == "__call__" else layers[-1]
        text, about_parameters = split_docstring(innermost.docstring)
        name = _make_default_name(innermost.name) if name is None else name
        _check_name(name)
        signature = Signature.from_function(function, descriptions=about_parameters)
        return cls(
            name=name,
            title=(innermost.title or _make_default_title(name)) if title is None else title,
            description=text if description is None else description,
            input_schema=signature.input_schema(),
            output_schema=signature.output_schema(),
            annotations=ToolAnnotations() if annotations is None else annotations,
            function=run,
            signature=signature,
        )

    async def __call__(self, /, **arguments: Any) -> Any:
        """
        Validate the arguments, run the function, and return its result unchanged.

        This is a call by the host: the limits that a decorator sets for models apply in `run` only.

        Raises:
            InvalidArgument: Arguments are missing, unknown or of a wrong type; the message names each, and nothing ran.

        """
        host = {name: arguments.pop(name) for name in self._signature.host_parameters if name in arguments}
        return await self._run(arguments, host)

    async def run(self, arguments: Mapping[str, Any], *, host: Mapping[str, Any] | None = None) -> Any:
        """
        Run the tool with the arguments of a model and the parameter values of the host.

        Args:
            arguments: The model's arguments, which cannot set parameters of the host.
            host: The host's values for the parameters ``ctx``, ``run_context`` and ``tool_context``.

        Raises:
            InvalidArgument: As for a call.

        """
        token = is_model_call.set(True)
        try:
            return await self._run(arguments, host or {})
        finally:
            is_model_call.reset(token)

    async def _run(self, arguments: Mapping[str, Any], host: Mapping[str, Any]) -> Any:
        progress = (call_progress.get() or CallProgress()).enter()
        try:
            load = measure_input(arguments)
            checked = await run_inline_or_in_thread(load, self._signature.check, arguments, tool=self.name)
            own = self._signature.check_host(host, tool=self.name)
            progress.start(self.function)
            result = await self.function(**checked, **own)
        except MamaStructsError as error:
            if self._on_error is None:
                raise
            return self._on_error(error, arguments)
        progress.finish()
        return result

    def __repr__(self) -> str:
        """Return the tool's name and the names of its parameters."""
        return f"<Tool {self.name}({', '.join(self._signature.parameters)})>"


@contextlib.contextmanager
def rename_arguments_in_errors(**tool_names: str) -> Iterator[None]:
    """Raise the errors of a method with the argument names of the tool that calls it. Keys are the method's names."""
    try:
        yield
    except InvalidArgument as error:
        message = str(error.args[0])
        # The messages begin with the name of the argument.
        name = next((name for name in tool_names if re.match(rf"{name}\b", message)), None)
        if name is None:
            raise
        renamed = InvalidArgument(f"{tool_names[name]}{message.removeprefix(name)}", hint=error.hint)
        raise renamed from error


def bind_template(
    template: Tool, *, on_error: Callable[[MamaStructsError, Mapping[str, Any]], Any] | None = None, **values: object
) -> Tool:
    """
    Copy a template tool and bind its function to other values.

    The copies share their schemas.
    """
    assert isinstance(template.function, functools.partial)  # noqa: S101 - templates are created from partials
    own = {name: values[name] for name in template.function.keywords}
    made = copy.copy(template)
    # Do not use `attrs.evolve`: it would compute the answer schema again for each tool of each session.
    object.__setattr__(made, "function", functools.partial(template.function.func, **own))
    if on_error is not None:
        object.__setattr__(made, "_on_error", on_error)
    return made


def hide_parameters(schema: JSONSchema, names: AbstractSet[str]) -> JSONSchema:
    """Return a schema without some optional parameters. A call may still pass them."""
    return {**schema, "properties": {name: one for name, one in schema["properties"].items() if name not in names}}


def join_lines(text: str) -> str:
    """Return a text without line breaks, which cost tokens in each request."""
    return " ".join(text.split())


def _make_default_name(name: str) -> str:
    return WORD_START_PATTERN.sub("_", name).lower() if name[:1].isupper() else name


def _make_default_title(name: str) -> str:
    words = name.replace("/", " ").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


@with_call_hints(peer_names.TOOL_SET)
class ToolSet(Mapping[str, Tool]):
    """
    The tools of a session, in the order in which they were added. Keys are tool names.

    Args:
        hidden: Returns the names of further tools that can be called, but are not offered to models.

    >>> len(ToolSet())
    0

    """

    def __init__(self, *, hidden: Callable[[], tuple[str, ...]] = tuple) -> None:
        self._tools: dict[str, Tool] = {}
        self._hidden = hidden
        # Increased with each added, replaced or removed tool.
        self._version = 0
        self._subscribers: dict[object, Callable[[], object]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in order."""
        return tuple(self._tools)

    @property
    def wire_names(self) -> WireNames:
        """The mapping between tool names and wire names, which every provider accepts."""
        return WireNames._from_names(self, hidden=self._hidden())

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
        Add a tool and return it. A function is converted to a tool.

        Adding the same function again, such as by rerunning a notebook cell, replaces the first one. Functions are the
        same if they are the same object, or have the same qualified name at the top level of the same module.

        Args:
            function: A tool, or an argument for `Tool.from_function`.
            name: As in `Tool.from_function`; overrides the value of a tool.
            title: As above.
            description: As above.
            annotations: As above.
            replace: Whether to replace any other tool with this name.

        Raises:
            InvalidArgument: Another tool has this name, or the function cannot be a tool; nothing was added.

        """
        if isinstance(function, Tool):
            overrides = {"name": name, "title": title, "description": description, "annotations": annotations}
            changes: dict[str, Any] = {key: value for key, value in overrides.items() if value is not None}
            tool = attrs.evolve(function, **changes) if changes else function
        else:
            tool = Tool.from_function(
                function, name=name, title=title, description=description, annotations=annotations
            )
        existing = self._tools.get(tool.name)
        if (
            existing is not None
            and not replace
            and get_definition_key(existing.function) != get_definition_key(tool.function)
        ):
            raise InvalidArgument(
                f"there already is a tool named {tool.name!r}", hint="pass another name=..., or replace=True"
            )
        self._tools[tool.name] = tool
        self._notify()
        return tool

    def remove(self, name: str) -> Tool:
        """
        Remove a tool and return it. Later calls fail, even if a model still has it in its list.

        Args:
            name: The name of the tool.

        Raises:
            UnknownTool: No tool has this name.

        """
        removed = self._tools.pop(self[name].name)
        self._notify()
        return removed

    def _subscribe(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call *callback* after each added, replaced or removed tool. Return a function that ends this."""
        key = object()
        self._subscribers[key] = callback
        return lambda: self._subscribers.pop(key, None)

    def _notify(self) -> None:
        self._version += 1
        for subscriber in tuple(self._subscribers.values()):
            subscriber()

    async def call(self, name: str, arguments: Mapping[str, Any], *, host: Mapping[str, Any] | None = None) -> Any:
        """
        Run a tool with a model's arguments, and return its result as JSON data.

        Each part of the result without a JSON form is replaced by a text that says that the tool has run.

        Args:
            name: Name of the tool.
            arguments: The model's arguments.
            host: Values for the tool's parameters ``ctx``, ``run_context`` and ``tool_context``.

        Raises:
            UnknownTool: No tool has this name.
            InvalidArgument: The arguments are invalid; nothing ran.

        """
        result = await self[name].run(arguments, host=host)
        if isinstance(result, ErrorText):
            return result
        return await run_inline_or_in_thread(measure_input(result), to_answer, result)

    def __getitem__(self, name: str) -> Tool:
        """Return the tool with this name, or raise `UnknownTool` with similar names."""
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(name, hint=make_name_hint(name, self.names)) from None

    def __contains__(self, name: object) -> bool:
        """Return True if a tool has this name."""
        return name in self._tools

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in order."""
        return iter(self._tools)

    def __len__(self) -> int:
        """Return the number of tools."""
        return len(self._tools)

    # `Mapping.get` catches KeyError only, but `UnknownTool` is no KeyError. So `get` is overridden.
    @overload
    def get(self, name: str, /) -> Tool | None: ...
    @overload
    def get(self, name: str, /, default: Tool | _Default) -> Tool | _Default: ...
    def get(self, name: str, /, default: object = None) -> object:
        """Return the tool, or *default* if no tool has this name."""
        return self._tools.get(name, default)

    def __repr__(self) -> str:
        """Return the tools' names."""
        return f"ToolSet({', '.join(self._tools)})"
