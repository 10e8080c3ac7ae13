"""The decorator that gives a tool its reference options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

import attrs

from mama_structs._async import find_session, no_session
from mama_structs._introspect import awaited, called_by, disguise, name_of
from mama_structs.errors import InvalidArgument
from mama_structs.references.options import Kind, ReferenceOptions, check_kind, check_primary
from mama_structs.references.resolver import Resolver

_log = logging.getLogger("mama_structs")

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Include = bool | Literal["primary", "all"]

# What a decorated tool takes beside its own parameters, in this order.
_ANNOTATIONS: Final[dict[str, Any]] = {
    "include_references": bool | Literal["primary", "all"],
    "reference_depth": int,
    "reference_types": Sequence[str] | None,
    "max_references": int,
    "max_references_per_entity": int,
}


class ReferencedTool(Protocol[P, R_co]):
    """
    A tool that `with_references` decorated; it is awaited, whether the tool's own function is async or not.

    It is called like the tool itself, with keywords for references beside the tool's own parameters.
    A call without them gives the tool's own result; one with them gives a dict where the result is a mapping.
    """

    __name__: str

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __call__(
        self,
        *args: Any,
        include_references: Literal[False],
        reference_depth: int = 1,
        reference_types: Sequence[str] | None = None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __call__(
        self,
        *args: Any,
        include_references: Include,
        reference_depth: int = 1,
        reference_types: Sequence[str] | None = None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R_co | dict[str, Any]]: ...

    # A tool whose own default asks for references takes the other options alone; one overload for each that is given,
    # since a ParamSpec allows no keywords beside its own.
    @overload
    def __call__(
        self,
        *args: Any,
        reference_depth: int,
        reference_types: Sequence[str] | None = None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R_co | dict[str, Any]]: ...
    @overload
    def __call__(
        self,
        *args: Any,
        reference_types: Sequence[str] | None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R_co | dict[str, Any]]: ...
    @overload
    def __call__(
        self, *args: Any, max_references: int, max_references_per_entity: int = 5, **kwargs: Any
    ) -> Coroutine[Any, Any, R_co | dict[str, Any]]: ...
    @overload
    def __call__(
        self, *args: Any, max_references_per_entity: int, **kwargs: Any
    ) -> Coroutine[Any, Any, R_co | dict[str, Any]]: ...

    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(
        self: ReferencedTool[Concatenate[S, Q], R], instance: S, owner: type[Any] | None = None, /
    ) -> ReferencedTool[Q, R]: ...


class _Referencing(Protocol):
    """`with_references` with its arguments given."""

    # An awaitable is a result, too: the first of the two counts.
    @overload
    def __call__(self, tool: Callable[P, Awaitable[R]], /) -> ReferencedTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> ReferencedTool[P, R]: ...


class ReferenceDecorator(Protocol):
    """`with_references`, bound to a session."""

    @overload
    def __call__(self, tool: Callable[P, Awaitable[R]], /) -> ReferencedTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> ReferencedTool[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        kind: Kind = "auto",
        primary: Collection[str] | None = None,
        subject: str | None = None,
        **defaults: Any,
    ) -> _Referencing: ...


def bound_to(resolver: Resolver) -> ReferenceDecorator:
    """Return `with_references` for one resolver."""

    def decorator(tool: Any = None, /, **options: Any) -> Any:
        decorate = with_references(resolver=resolver, **options)
        return decorate if tool is None else decorate(tool)

    return cast("ReferenceDecorator", decorator)


@overload
def with_references(tool: Callable[P, Awaitable[R]], /) -> ReferencedTool[P, R]: ...
@overload
def with_references(tool: Callable[P, R], /) -> ReferencedTool[P, R]: ...
@overload
def with_references(
    *,
    resolver: Resolver | None = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    **defaults: Any,
) -> _Referencing: ...


def with_references(
    tool: Callable[..., Any] | None = None,
    /,
    *,
    resolver: Resolver | None = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    **defaults: Any,
) -> Any:
    """
    Let a tool add, once each, what the ids in its result stand for.

    Works bare and with arguments, on functions, methods and callable objects; a plain one runs in a thread and is
    awaited.
    The decorated tool takes *include_references*, *reference_depth*, *reference_types*, *max_references* and
    *max_references_per_entity* beside its own parameters (see `ReferenceOptions`).
    Without *include_references* the tool's own object is returned, untouched.

    Args:
        tool: The tool.
        resolver: What resolves; by default that of the session entered in this context,
            else of the only open session of the process.
        kind: What the tool answers: ``"query"`` for one entity, ``"list"`` for an array of them,
            ``"auto"`` to see it from each payload.
        primary: Names of the fields that hold direct relations, instead of the scheme's.
        subject: The name of the tool's parameter that holds the id which the result is about.
        **defaults: This tool's default for any field of `ReferenceOptions`.

    Raises:
        InvalidArgument: The tool is a generator or no function, has a parameter of one of these names or none named
            *subject*, or a default breaks its rule.

    """
    if resolver is not None and not isinstance(resolver, Resolver):
        raise InvalidArgument(f"resolver must be a Resolver, got {resolver!r:.80}")
    check_kind(kind)
    fields = check_primary(primary)
    known = [field.name for field in attrs.fields(ReferenceOptions)]
    for name in defaults:
        if name not in known:
            raise InvalidArgument(
                f"with_references has no option {name!r}",
                hint=f"options: resolver, kind, primary, subject, {', '.join(known)}",
            )
    plan = _Decoration(resolver, kind, fields, subject, ReferenceOptions(**{"include_references": False, **defaults}))
    return plan.decorate if tool is None else plan.decorate(tool)


@attrs.frozen
class _Decoration:
    """How one decorated tool adds references."""

    resolver: Resolver | None
    kind: Kind
    primary: frozenset[str] | None
    subject: str | None
    options: ReferenceOptions

    def decorate(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        """Return *tool* with the reference options."""
        name = name_of(tool)
        function = awaited(tool, what="what with_references decorates")
        if getattr(tool, "answers_with_descriptors", False):
            raise InvalidArgument(
                f"{name} may answer with a descriptor, to which no references can be added",
                hint="put @with_descriptors above @with_references",
            )
        own = inspect.signature(called_by(tool))
        if self.subject is not None and self.subject not in own.parameters:
            raise InvalidArgument(f"subject={self.subject!r}: {name} has no such parameter")

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = {option: kwargs.pop(option) for option in _ANNOTATIONS if option in kwargs} if kwargs else {}
            asked = self._asked(given, name)
            if asked is None:
                return await function(*args, **kwargs)
            resolver, options = asked
            subject = self._subject(own, args, kwargs)
            result = await function(*args, **kwargs)
            try:
                return await resolver.enrich(result, options, subject=subject, kind=self.kind, primary=self.primary)
            except Exception:  # noqa: BLE001 - see below
                # The tool did its work, perhaps for money or for good: it is never lost for the sake of references.
                _log.exception("references could not be added to the result of %s, which is returned as it is", name)
                return result

        clash = [option for option in _ANNOTATIONS if option in own.parameters]
        if clash:
            hint = "rename it: with_references adds one of this name"
            raise InvalidArgument(f"{name} has a parameter {clash[0]!r} of its own", hint=hint)
        # The options stand before the tool's `**kwargs`.
        parameters = list(own.parameters.values())
        keyword, rest = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
        last = [parameters.pop()] if parameters and parameters[-1].kind is rest else []
        for option, hint in _ANNOTATIONS.items():
            default = getattr(self.options, option)
            parameters.append(inspect.Parameter(option, keyword, default=default, annotation=hint))
        disguise(wrapper, tool, own.replace(parameters=[*parameters, *last]))
        wrapper.__annotations__ |= _ANNOTATIONS
        return wrapper

    def _asked(self, given: dict[str, Any], name: str) -> tuple[Resolver, ReferenceOptions] | None:
        """Return who resolves what for one call, None where no references are asked for."""
        if not given and not self.options.wanted:
            return None
        if len(given) == 1 and given.get("include_references") is False:
            # What many a model says on every call: making options to find that out would take 5 microseconds.
            return None
        session = None if self.resolver is not None else find_session()
        resolver = self.resolver if session is None else session.resolver
        if resolver is not None and not resolver.settings.enabled:
            return None
        options = attrs.evolve(self.options, **given)
        if not options.wanted:
            return None
        if resolver is None:
            raise no_session(
                f"{name} asks for references", hint="@session.with_references or @with_references(resolver=resolver)"
            )
        resolver.ready(options)
        return resolver, options

    def _subject(self, own: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        if self.subject is None:
            return None
        try:
            bound = own.bind(*args, **kwargs)
        except TypeError:
            return None  # The call itself will say what is wrong with its arguments.
        bound.apply_defaults()
        value = bound.arguments.get(self.subject)
        return None if value is None else str(value)
