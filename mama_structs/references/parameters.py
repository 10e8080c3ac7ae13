"""What a tool takes beside its own parameters, so that a caller can ask for references, in words for models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final, Literal, Self

from mama_structs.references.options import ReferenceOptions

# Taken in every call, shown or not, in this order.
ACCEPTED: Final = (
    "include_references",
    "reference_types",
    "reference_depth",
    "max_references",
    "max_references_per_entity",
)
# What a model needs; of the others it makes no good use, and each costs every request.
SHOWN: Final = ACCEPTED[:3]


class Described(str):
    """A parameter's description, as frameworks look for it beside the type: a text, or what a schema says of itself."""

    __slots__ = ("bounds",)
    bounds: dict[str, int]

    def __new__(cls, text: str, **bounds: int) -> Self:
        """Return the text, with the least (*ge*) and the most (*le*) that a number may be."""
        made = super().__new__(cls, text)
        made.bounds = bounds
        return made

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Let Pydantic check the bounds."""
        return {**handler(source), **self.bounds}

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Let Pydantic show the description."""
        return {**handler(core), "description": str(self)}


def reference_parameters(options: ReferenceOptions, types: Collection[str] | None) -> dict[str, inspect.Parameter]:
    """Return the parameters by name, typed, bounded and described; *types* are all that there are, None for open."""
    kind: Any = Literal[tuple(types)] if types else str
    hints = {
        "include_references": _described(bool | Literal["primary", "all"], "Add what ids name"),
        "reference_types": _described(Sequence[kind] | None, "Only these"),
        "reference_depth": _described(Literal[0, 1, 2], "2: theirs too"),
        "max_references": _described(int, "References at most", ge=0),
        "max_references_per_entity": _described(int, "References of each entity at most", ge=0),
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {
        name: inspect.Parameter(name, keyword, default=getattr(options, name), annotation=hint)
        for name, hint in hints.items()
    }


def _described(kind: Any, text: str, **bounds: Any) -> Any:
    # Once a tool is decorated, a tool is made of it: what reads its types is loaded a little earlier.
    import msgspec  # noqa: PLC0415

    return Annotated[kind, msgspec.Meta(description=text, **bounds), Described(text, **bounds)]
