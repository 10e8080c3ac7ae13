"""The tools of a session."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

import attrs

from mama_structs._plain import to_jsonable
from mama_structs.errors import InvalidArgument, UnknownTool
from mama_structs.tools.tool import Tool, ToolAnnotations

_Default = TypeVar("_Default")
_MAX_NAMED: Final = 10


def hint_at(name: object, names: Sequence[str]) -> str:
    """
    Say which tools a model may have meant by a name that none has.

    Args:
        name: As it was given.
        names: Of the tools that there are.

    """
    near = difflib.get_close_matches(str(name), names, n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    rest = len(names) - _MAX_NAMED
    return f"there are: {', '.join(names[:_MAX_NAMED]) or 'none'}{f', and {rest} more' if rest > 0 else ''}"


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
        function: Callable[..., Awaitable[Any]] | Tool,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
    ) -> Tool:
        """
        Add a tool, or an async function as a tool, and return the tool.

        Args:
            function: A tool, or what `Tool.from_function` takes.
            name: As in `Tool.from_function`; what is given replaces what a tool came with.
            title: As above.
            description: As above.
            annotations: As above.

        Raises:
            InvalidArgument: The name is taken, or the function cannot be a tool; nothing was added.

        """
        if isinstance(function, Tool):
            given = {"name": name, "title": title, "description": description, "annotations": annotations}
            changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
            tool = attrs.evolve(function, **changes) if changes else function
        else:
            tool = Tool.from_function(
                function, name=name, title=title, description=description, annotations=annotations
            )
        if tool.name in self._tools:
            raise InvalidArgument(f"there already is a tool named {tool.name!r}", hint="pass another name=...")
        self._tools[tool.name] = tool
        return tool

    async def call(self, name: str, arguments: Mapping[str, Any], *, host: Mapping[str, Any] | None = None) -> Any:
        """
        Run a tool as a model asked for it, and return its result as JSON-able data.

        Args:
            name: The tool's.
            arguments: As the model gave them.
            host: Values for the tool's parameters ``ctx``, ``run_context`` and ``tool_context``.

        Raises:
            UnknownTool: No tool has this name.
            InvalidArgument: The arguments are not those of the tool; nothing ran.
            MamaStructsError: The tool ran, and its result has no JSON form.

        """
        tool = self[name]
        return to_jsonable(await tool.run(arguments, host=host))

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
