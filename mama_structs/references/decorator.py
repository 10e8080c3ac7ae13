"""The decorator that gives a tool its reference options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

import attrs

from mama_structs._internal.control_flow import is_framework_result
from mama_structs._internal.event_loop import call_progress, find_session, from_model, no_session
from mama_structs._internal.introspection import AddedParameters, awaited, called_by, disguise, name_of
from mama_structs._internal.telemetry import raised
from mama_structs.errors import InvalidArgument, shown
from mama_structs.references.options import (
    ACCEPTED,
    SHOWN,
    Kind,
    ReferenceOptions,
    check_kind,
    check_primary,
    reference_parameters,
)
from mama_structs.references.resolver import Resolver

_log = logging.getLogger("mama_structs")

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Include = bool | Literal["primary", "all"]


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


def bound_to(
    resolver: Resolver, base: ReferenceOptions | None = None, *, types: Collection[str] | None = None
) -> ReferenceDecorator:
    """Return `with_references` for one resolver, for tools with *base* as defaults that may name only these *types*."""

    def decorator(tool: Any = None, /, **options: Any) -> Any:
        decorate = _decoration(resolver=resolver, base=base, types=types, **options).decorate
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
    Add to a tool's result what each id in it stands for.

    Works bare and with arguments, on functions, methods and callable objects; a plain one runs in a thread and is
    awaited.
    The decorated tool takes *include_references*, *reference_types*, *reference_depth*, *max_references* and
    *max_references_per_entity* beside its own parameters (see `ReferenceOptions`); its signature shows the first three,
    or what ``settings.references`` says.
    Without *include_references* the tool's own object is returned, untouched.
    A model, which calls through `Session.call`, an adapter or MCP, gets no more references than the tool's own
    *max_references*, *max_references_per_entity*, *max_depth* and *allowed_types* permit. A call in Python may ask for
    more.

    Args:
        tool: The tool.
        resolver: Fetches what ids stand for; by default the resolver of the session entered in this context, else of
            the only open session of the process.
        kind: What the tool answers: ``"query"`` for one entity, ``"list"`` for an array of them,
            ``"auto"`` to see it from each payload.
        primary: Names of the fields that hold direct relations, instead of the scheme's.
        subject: The name of the tool's parameter that holds the id which the result is about.
        **defaults: This tool's default for any field of `ReferenceOptions`.

    Raises:
        InvalidArgument: The tool is a generator or no function, has a parameter of one of these names or none named
            *subject*, or a default breaks its rule.

    """
    decorate = _decoration(resolver=resolver, kind=kind, primary=primary, subject=subject, **defaults).decorate
    return decorate if tool is None else decorate(tool)


def _decoration(
    *,
    resolver: Resolver | None = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    base: ReferenceOptions | None = None,
    types: Collection[str] | None = None,
    **defaults: Any,
) -> _Decoration:
    if resolver is not None and not isinstance(resolver, Resolver):
        raise InvalidArgument(f"resolver must be a Resolver, got {shown(resolver)}")
    check_kind(kind)
    fields = check_primary(primary)
    known = [field.name for field in attrs.fields(ReferenceOptions)]
    for name in defaults:
        if name not in known:
            raise InvalidArgument(
                f"with_references has no option {name!r}",
                hint=f"options: resolver, kind, primary, subject, {', '.join(known)}",
            )
    return _Decoration(resolver, kind, fields, subject, _as_defaults(base, defaults), defaults, types)


def _as_defaults(base: ReferenceOptions | None, defaults: Mapping[str, Any]) -> ReferenceOptions:
    """Return a tool's options; where nobody said whether it adds references, its caller is the one to ask."""
    options = (base or ReferenceOptions()).changed(defaults)
    return attrs.evolve(options, include_references=False) if options.include_references is None else options


@attrs.frozen
class _Decoration:
    """How one decorated tool adds references."""

    resolver: Resolver | None
    kind: Kind
    primary: frozenset[str] | None
    subject: str | None
    options: ReferenceOptions
    # What the decorator itself was given, for a tool that is bound to no session.
    given: Mapping[str, Any]
    types: Collection[str] | None

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
            given: dict[str, Any] = {name: kwargs.pop(name) for name in ACCEPTED if name in kwargs} if kwargs else {}
            asked = self._asked(given, name)
            if (progress := call_progress.get()) is not None:
                progress.start(function)
            if asked is None and not from_model.get():
                return await function(*args, **kwargs)
            # What the tool's own code asks other tools for is the host's.
            token = from_model.set(False)
            try:
                if asked is None:
                    return await function(*args, **kwargs)
                subject = self._subject(asked.resolver, own, args, kwargs)
                result = await function(*args, **kwargs)
                if is_framework_result(result):
                    return result
                try:
                    return await self._enriched(result, asked, subject)
                except Exception as error:  # noqa: BLE001 - see below
                    # The tool did its work, perhaps for money or for good: it is never lost for the sake of references.
                    _log.error("references could not be added to the result of %s: %s", name, raised(error))
                    return result
            finally:
                from_model.reset(token)

        clash = [option for option in ACCEPTED if option in own.parameters]
        if clash:
            hint = "rename it: with_references adds one of this name"
            raise InvalidArgument(f"{name} has a parameter {clash[0]!r} of its own", hint=hint)
        # The options stand before the tool's `**kwargs`.
        parameters = list(own.parameters.values())
        last = [parameters.pop()] if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        added = self.added()
        shown = [added.accepted[option] for option in added.shown]
        disguise(wrapper, tool, own.replace(parameters=[*parameters, *shown, *last]))
        wrapper.__annotations__ |= {parameter.name: parameter.annotation for parameter in shown}
        wrapper.added_parameters = self.added  # type: ignore[attr-defined]
        wrapper.records_start = wrapper  # type: ignore[attr-defined]
        return wrapper

    def added(self) -> AddedParameters:
        """Return what the tool takes beside its own parameters, and what a model is shown of it."""
        resolver, options = self._who()
        types = self.types if resolver is None or self.types is not None else resolver.types
        accepted = reference_parameters(options, types)
        if resolver is not None and not resolver.settings.enabled:
            return AddedParameters(accepted, ())
        every = resolver is not None and resolver.settings.parameters == "all"
        return AddedParameters(accepted, ACCEPTED if every else SHOWN)

    def _who(self) -> tuple[Resolver | None, ReferenceOptions]:
        """Return who resolves, and the tool's options, upon those of the session where it is bound to no resolver."""
        session = find_session() if self.resolver is None else None
        if session is None:
            return self.resolver, self.options
        base = session.references
        return session.resolver, self.options if base is None else _as_defaults(base, self.given)

    def _asked(self, given: dict[str, Any], name: str) -> _Asked | None:
        """Return who resolves what for one call, None where no references are asked for."""
        if len(given) == 1 and given.get("include_references") is False:
            # What many a model says on every call: making options to find that out would take 5 microseconds.
            return None
        resolver, defaults = self._who()
        if not given and not defaults.wanted:
            return None
        if resolver is not None and not resolver.settings.enabled:
            return None
        options, ceilings = defaults.held(given) if from_model.get() else (defaults.changed(given), {})
        if not options.wanted:
            return None
        if resolver is None:
            raise no_session(
                f"{name} asks for references", hint="@session.with_references or @with_references(resolver=resolver)"
            )
        resolver.ready(options)
        return _Asked(resolver, options, ceilings)

    async def _enriched(self, result: Any, asked: _Asked, subject: str | None) -> Any:
        return await asked.resolver.enrich(
            result, asked.options, subject=subject, kind=self.kind, primary=self.primary, ceilings=asked.ceilings
        )

    def _subject(
        self, resolver: Resolver, own: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        if self.subject is None:
            return None
        try:
            bound = own.bind(*args, **kwargs)
        except TypeError:
            return None  # The call itself will say what is wrong with its arguments.
        bound.apply_defaults()
        value = bound.arguments.get(self.subject)
        return None if value is None else resolver.key(self.subject, value)


@attrs.frozen
class _Asked:
    """What one call asks of whom, and the ceilings that it met."""

    resolver: Resolver
    options: ReferenceOptions
    ceilings: Mapping[str, Any]
