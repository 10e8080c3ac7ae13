"""Decorator that adds reference options to a tool."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, Self, TypeAlias, TypeVar, cast, overload

import attrs

from mama_structs._internal.control_flow import is_framework_result
from mama_structs._internal.event_loop import (
    answer_room,
    call_progress,
    find_session,
    has_open_sessions,
    is_model_call,
    make_no_session_error,
)
from mama_structs._internal.introspection import (
    AddedParameters,
    copy_metadata,
    get_callable_name,
    get_called_function,
    make_async,
)
from mama_structs._internal.offload import measure_input, run_inline_or_in_thread
from mama_structs._internal.telemetry import format_error
from mama_structs.errors import InvalidArgument, repr_short
from mama_structs.references.options import (
    ALL_PARAMETERS,
    DEFAULT_PARAMETERS,
    Kind,
    ReferenceOptions,
    check_kind,
    check_primary,
    make_reference_parameters,
)
from mama_structs.references.resolver import Resolver, add_empty_section
from mama_structs.references.section_truncation import AnswerRoom

# Role of a decorated function in error messages.
DECORATED_ROLE: Final = "the function decorated by with_references"
_log = logging.getLogger("mama_structs")

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")
E = TypeVar("E")
R_co = TypeVar("R_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)

_SOURCES_HINT: Final = (
    "entities come from sources: "
    "Session.open(sources=[Source.from_function('customer', fetch, fields=['customer_id'])])"
)
_NO_SESSION_NOTE: Final = "no id was looked up: no session is open, so there is no source of entities"

IncludeReferences = bool | Literal["primary", "all"]


class ReferencedTool(Protocol[P, R_co, E_co]):
    """
    A tool decorated with `with_references`.

    It accepts the tool's own arguments and the keywords for references.
    A call without these keywords returns the tool's own result (*R_co*). A call with them returns a dict if the result
    is a mapping (*E_co*). Both are awaitable, unless `mama_structs.sync.with_references` decorated a plain function.
    """

    __name__: str

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
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
    ) -> R_co: ...
    @overload
    def __call__(
        self,
        *args: Any,
        include_references: IncludeReferences,
        reference_depth: int = 1,
        reference_types: Sequence[str] | None = None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> E_co: ...

    # One overload per option, because ParamSpec cannot be extended by keyword parameters.
    # Each option may be passed without include_references, because the tool may include references by default.
    @overload
    def __call__(
        self,
        *args: Any,
        reference_depth: int,
        reference_types: Sequence[str] | None = None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> E_co: ...
    @overload
    def __call__(
        self,
        *args: Any,
        reference_types: Sequence[str] | None,
        max_references: int = 50,
        max_references_per_entity: int = 5,
        **kwargs: Any,
    ) -> E_co: ...
    @overload
    def __call__(self, *args: Any, max_references: int, max_references_per_entity: int = 5, **kwargs: Any) -> E_co: ...
    @overload
    def __call__(self, *args: Any, max_references_per_entity: int, **kwargs: Any) -> E_co: ...

    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(
        self: ReferencedTool[Concatenate[S, Q], R, E], instance: S, owner: type[Any] | None = None, /
    ) -> ReferencedTool[Q, R, E]: ...


AsyncTool: TypeAlias = ReferencedTool[P, Coroutine[Any, Any, R], Coroutine[Any, Any, R | dict[str, Any]]]
"""A tool that must be awaited; `with_references` returns it for async and plain functions."""
PlainTool: TypeAlias = ReferencedTool[P, R, R | dict[str, Any]]
"""A tool that returns its result; `mama_structs.sync.with_references` returns it for plain functions."""


class _ConfiguredDecorator(Protocol):
    """Decorator that `with_references` returns when it is called with options."""

    # An awaitable also matches the second overload, so this overload must come first.
    @overload
    def __call__(self, tool: Callable[P, Awaitable[R]], /) -> AsyncTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> AsyncTool[P, R]: ...


class ReferenceDecorator(Protocol):
    """`with_references`, bound to a session."""

    @overload
    def __call__(self, tool: Callable[P, Awaitable[R]], /) -> AsyncTool[P, R]: ...
    @overload
    def __call__(self, tool: Callable[P, R], /) -> AsyncTool[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        kind: Kind = "auto",
        primary: Collection[str] | None = None,
        subject: str | None = None,
        **defaults: Any,
    ) -> _ConfiguredDecorator: ...


def make_decorator(
    resolver: Resolver,
    default_options: ReferenceOptions | None = None,
    *,
    allowed_types: Collection[str] | None = None,
    decorator_class: type[ToolDecorator] | None = None,
) -> ReferenceDecorator:
    """
    Return `with_references` for one resolver.

    *default_options* sets the tools' defaults, *allowed_types* the allowed type names. *decorator_class* replaces
    `ToolDecorator`.
    """

    def decorator(tool: Any = None, /, **options: Any) -> Any:
        decorate = make_tool_decorator(
            decorator_class, resolver=resolver, base=default_options, types=allowed_types, **options
        ).decorate
        return decorate if tool is None else decorate(tool)

    return cast("ReferenceDecorator", decorator)


@overload
def with_references(tool: Callable[P, Awaitable[R]], /) -> AsyncTool[P, R]: ...
@overload
def with_references(tool: Callable[P, R], /) -> AsyncTool[P, R]: ...
@overload
def with_references(
    *,
    resolver: Resolver | None = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    **defaults: Any,
) -> _ConfiguredDecorator: ...


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
    Add the entities for the ids in a tool's result to that result.

    Works with and without arguments, on functions, methods and callable objects. A synchronous tool runs in a thread;
    the decorated tool is always awaited. In code without an event loop, use `mama_structs.sync.with_references`.
    The decorated tool takes *include_references*, *reference_types*, *reference_depth*, *max_references* and
    *max_references_per_entity* in addition to its own parameters (see `ReferenceOptions`). Its signature shows the
    first three, or the parameters selected by ``settings.references``.
    Without *include_references* the tool's own object is returned unchanged. If no session is open, a call that asks
    for references gets none, a note under ``references_meta``, and one warning in the log.
    A model calls through `Session.call`, an adapter or MCP. It gets no more references than the tool's
    *max_references*, *max_references_per_entity*, *max_depth* and *allowed_types* permit. A call in Python may request
    more.

    Args:
        tool: The tool.
        resolver: Fetches the entities; by default the resolver of the session entered in this context, else of
            the only open session of the process. A call that asks for references raises `NoSession` if several
            sessions are open and none was entered.
        kind: The kind of result: ``"query"`` for one entity, ``"list"`` for an array of them,
            ``"auto"`` to detect it for each payload.
        primary: Names of the fields that contain direct relations, instead of the scheme's.
        subject: The name of the tool's parameter with the id of the result's entity.
        **defaults: This tool's default for any field of `ReferenceOptions`.

    Raises:
        InvalidArgument: The tool is a generator or not a function, has a parameter of one of these names or none named
            *subject*, or a default is invalid.

    """
    decorate = make_tool_decorator(resolver=resolver, kind=kind, primary=primary, subject=subject, **defaults).decorate
    return decorate if tool is None else decorate(tool)


def make_tool_decorator(
    decorator_class: type[ToolDecorator] | None = None,
    *,
    resolver: Resolver | None = None,
    kind: Kind = "auto",
    primary: Collection[str] | None = None,
    subject: str | None = None,
    base: ReferenceOptions | None = None,
    types: Collection[str] | None = None,
    **defaults: Any,
) -> ToolDecorator:
    """Validate the arguments of `with_references`, and return its decorator, of *decorator_class* if it is passed."""
    if resolver is not None and not isinstance(resolver, Resolver):
        raise InvalidArgument(f"resolver must be a Resolver, got {repr_short(resolver)}")
    check_kind(kind)
    fields = check_primary(primary)
    known = [field.name for field in attrs.fields(ReferenceOptions)]
    for name in defaults:
        if name not in known:
            raise InvalidArgument(
                f"with_references has no option {name!r}",
                hint=f"options: resolver, kind, primary, subject, {', '.join(known)}; {_SOURCES_HINT}",
            )
    made = decorator_class or ToolDecorator
    return made(resolver, kind, fields, subject, _merge_defaults(base, defaults), defaults, types)


def _check_is_not_mapping(tool: object) -> None:
    """Raise a helpful error for a mapping of sources, which is a common guess."""
    if isinstance(tool, Mapping):
        raise InvalidArgument(f"with_references decorates a function, got {repr_short(tool)}", hint=_SOURCES_HINT)


def _merge_defaults(base: ReferenceOptions | None, defaults: Mapping[str, Any]) -> ReferenceOptions:
    """
    Return the options of a tool: *base* with the changes in *defaults*.

    Unless *defaults* enable references, the caller of the tool must request them.
    """
    options = (base or ReferenceOptions())._changed(defaults)
    return attrs.evolve(options, include_references=False) if options.include_references is None else options


@attrs.frozen
class ToolDecorator:
    """Decorator for one tool, with the tool's reference settings."""

    resolver: Resolver | None
    kind: Kind
    primary: frozenset[str] | None
    subject: str | None
    options: ReferenceOptions
    # Arguments of `with_references`, used if the tool is not bound to a session.
    decorator_arguments: Mapping[str, Any]
    types: Collection[str] | None
    # Names of tools whose missing session was already logged.
    warned_tools: set[str] = attrs.field(factory=set, init=False)

    def decorate(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        """Return *tool* with the reference options."""
        _check_is_not_mapping(tool)
        name = get_callable_name(tool)
        function = self._make_awaitable(tool)
        if getattr(tool, "answers_with_descriptors", False):
            raise InvalidArgument(
                f"{name} may answer with a descriptor, to which no references can be added",
                hint="put @with_descriptors above @with_references",
            )
        own = inspect.signature(get_called_function(tool))
        self._check_parameters(own.parameters, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            given: dict[str, Any] = (
                {name: kwargs.pop(name) for name in ALL_PARAMETERS if name in kwargs} if kwargs else {}
            )
            asked = await self._prepare_request(given, name, tool)
            if (progress := call_progress.get()) is not None:
                progress.start(function)
            if asked is None and not is_model_call.get():
                return await function(*args, **kwargs)
            # Tools called by this tool's own code count as host calls, not as model calls.
            token = is_model_call.set(False)
            try:
                if asked is None:
                    return await function(*args, **kwargs)
                subject = self._find_subject_id(asked.resolver, own, args, kwargs)
                result = await function(*args, **kwargs)
                if is_framework_result(result):
                    return result
                try:
                    return await self._enrich(result, asked, subject, tool)
                except Exception as error:  # noqa: BLE001 - see the comment below
                    # The tool may have had side effects, so return its result even if references cannot be added.
                    _log.error("references could not be added to the result of %s: %s", name, format_error(error))
                    return result
            finally:
                is_model_call.reset(token)

        wrapper: Any = self._make_wrapper(run, tool)
        # Parameters after the tool's `**kwargs` would be invalid.
        parameters = list(own.parameters.values())
        last = [parameters.pop()] if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        added = self.get_added_parameters()
        shown = [added.accepted[option] for option in added.visible_names]
        copy_metadata(wrapper, tool, own.replace(parameters=[*parameters, *shown, *last]))
        wrapper.__annotations__ |= {parameter.name: parameter.annotation for parameter in shown}
        wrapper.added_parameters = self.get_added_parameters
        wrapper.records_start = wrapper
        return cast("Callable[..., Any]", wrapper)

    def _check_parameters(self, parameters: Collection[str], name: str) -> None:
        """Raise `InvalidArgument` if the tool lacks *subject* or already has a parameter of the decorator."""
        if self.subject is not None and self.subject not in parameters:
            raise InvalidArgument(f"subject={self.subject!r}: {name} has no such parameter")
        clash = [option for option in ALL_PARAMETERS if option in parameters]
        if clash:
            hint = "rename it: with_references adds one of this name"
            raise InvalidArgument(f"{name} already has a parameter {clash[0]!r}", hint=hint)

    def _make_awaitable(self, tool: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return an async function that runs the tool."""
        return make_async(tool, role=DECORATED_ROLE)

    def _make_wrapper(self, run: Callable[..., Awaitable[Any]], tool: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the decorated tool, which runs *run*."""
        return run

    def get_added_parameters(self) -> AddedParameters:
        """Return the parameters added to the tool, and the names of the parameters that the model sees."""
        resolver, options = self._get_resolver_and_options()
        types = self.types if resolver is None or self.types is not None else resolver.types
        accepted = make_reference_parameters(options, types)
        if resolver is not None and not resolver.settings.enabled:
            return AddedParameters(accepted, ())
        every = resolver is not None and resolver.settings.parameters == "all"
        return AddedParameters(accepted, ALL_PARAMETERS if every else DEFAULT_PARAMETERS)

    def _get_resolver_and_options(self) -> tuple[Resolver | None, ReferenceOptions]:
        """
        Return the resolver and the tool's options.

        Without a resolver, both come from the current session.
        """
        session = find_session() if self.resolver is None else None
        if session is None:
            return self.resolver, self.options
        base = session.reference_options
        return session.resolver, self.options if base is None else _merge_defaults(base, self.decorator_arguments)

    async def _prepare_request(
        self, reference_arguments: dict[str, Any], name: str, tool: Callable[..., Any]
    ) -> ReferenceRequest | None:
        """
        Return the resolver and options of one call of *tool*, or None if it requests no references.

        Errors of the request are raised before the tool runs.
        """
        if len(reference_arguments) == 1 and reference_arguments.get("include_references") is False:
            # Fast path: models often pass this argument, and creating the options takes 5 microseconds.
            return None
        resolver, defaults = self._get_resolver_and_options()
        if not reference_arguments and not defaults._has_references:
            return None
        if resolver is not None and not resolver.settings.enabled:
            return None
        options, ceilings = (
            defaults._held(reference_arguments) if is_model_call.get() else (defaults._changed(reference_arguments), {})
        )
        if not options._has_references:
            return None
        if resolver is None:
            error = make_no_session_error(
                f"{name} asks for references", hint="@session.with_references or @with_references(resolver=resolver)"
            )
            if has_open_sessions():
                raise error
            if name not in self.warned_tools:
                self.warned_tools.add(name)
                _log.warning("%s", error)
        request = ReferenceRequest(resolver, options, ceilings, answer_room.get() if is_model_call.get() else None)
        await self._check_ready(request, tool)
        return request

    async def _check_ready(self, asked: ReferenceRequest, tool: Callable[..., Any]) -> None:  # noqa: ARG002
        """Raise the errors of a request before *tool* runs."""
        if asked.resolver is not None:
            asked.resolver._ready(asked.options)

    async def _enrich(
        self,
        result: Any,
        asked: ReferenceRequest,
        subject: str | None,
        tool: Callable[..., Any],  # noqa: ARG002
    ) -> Any:
        """Return the result of *tool* with references."""
        if asked.resolver is None:
            return await run_inline_or_in_thread(measure_input(result), add_empty_section, result, _NO_SESSION_NOTE)
        return await asked.resolver._enrich(
            result,
            asked.options,
            subject=subject,
            kind=self.kind,
            primary=self.primary,
            ceilings=asked.ceilings,
            room=asked.room,
        )

    def _find_subject_id(
        self, resolver: Resolver | None, own: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        if self.subject is None or resolver is None:
            return None
        try:
            bound = own.bind(*args, **kwargs)
        except TypeError:
            return None  # Ignore invalid arguments here, because the call itself raises a better error for them.
        bound.apply_defaults()
        value = bound.arguments.get(self.subject)
        return None if value is None else resolver._key(self.subject, value)


@attrs.frozen
class ReferenceRequest:
    """
    Resolver and options of one call, and the ceilings that reduced its options.

    Without a resolver, the result gets an empty section of references.
    """

    resolver: Resolver | None
    options: ReferenceOptions
    ceilings: Mapping[str, Any]
    # Room of the answer to a model's call; None for a call by the host.
    room: AnswerRoom | None = None
