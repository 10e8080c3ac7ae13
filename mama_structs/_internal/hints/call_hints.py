"""Error messages that name the right call when a caller guesses an attribute, a keyword or an argument."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

import attrs

ClassT = TypeVar("ClassT", bound=type)

_NUMBER_WORDS: Final = ("no", "one", "two", "three", "four")
_MAX_CLOSE_MATCHES: Final = 1


@attrs.frozen(kw_only=True)
class CallHints:
    """
    The right calls for names that callers guess, often because another package uses them.

    Args:
        attributes: The right call by guessed attribute, such as ``{"add": "save(content)"}``.
        keywords: The right arguments by guessed keyword, best first: a parameter, or any text. A text that begins with
            a parameter and ``=`` is used only for methods that have this parameter.
        methods: Advice by method, added to the error if an argument is missing.
        constructor: Advice for callers of the class; empty if the class may be called.
        operators: The right call by special method that the class does not have, such as ``{"__len__": "count()"}``.

    """

    attributes: Mapping[str, str] = attrs.field(factory=dict)
    keywords: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    methods: Mapping[str, str] = attrs.field(factory=dict)
    constructor: str = ""
    operators: Mapping[str, str] = attrs.field(factory=dict)


def with_call_hints(hints: CallHints) -> Callable[[ClassT], ClassT]:
    """
    Return a class decorator that adds *hints* to the errors of wrong calls.

    It wraps the public methods that the class itself defines. Type checkers see the class unchanged. A call that
    succeeds costs one more frame; signatures are inspected only after a `TypeError`.
    """

    def decorate(cls: ClassT) -> ClassT:
        for name, member in list(vars(cls).items()):
            if not name.startswith("_") and (wrapped := _wrap_member(member, hints)) is not None:
                setattr(cls, name, wrapped)
        if hints.constructor:
            cls.__init__ = _wrap_constructor(cls.__init__, hints)  # type: ignore[misc]
        for operator, call in hints.operators.items():
            setattr(cls, operator, _make_operator(operator, call))
        if "__len__" in hints.operators:
            cls.__bool__ = _return_true  # type: ignore[attr-defined]  # otherwise `bool` would call `__len__`
        if hints.attributes:
            cls.__getattr__ = functools.partialmethod(_raise_attribute_error, hints)  # type: ignore[attr-defined]
        return cls

    return decorate


def is_hint(member: object) -> bool:
    """Return True for a special method that only raises an error with a hint."""
    return getattr(member, "is_call_hint", False)


def find_close_match(name: str, known: Iterable[str]) -> str | None:
    """Return the name that is most similar to *name*, or None if none is similar."""
    import difflib  # noqa: PLC0415 - needed only for errors

    return next(iter(difflib.get_close_matches(name, list(known), n=_MAX_CLOSE_MATCHES)), None)


def _wrap_member(member: Any, hints: CallHints) -> Any:
    """Return a public method wrapped with hints, or None for a member that is not a method."""
    if isinstance(member, classmethod):
        return classmethod(_wrap_function(member.__func__, hints, shows_class=True))
    return _wrap_function(member, hints) if inspect.isfunction(member) else None


def _wrap_function(function: Callable[..., Any], hints: CallHints, *, shows_class: bool = False) -> Callable[..., Any]:
    def call(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            message = _describe_call_error(function, arguments, keywords, hints, shows_class=shows_class)
            if message is None:
                raise
            raise TypeError(message) from error

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*arguments: Any, **keywords: Any) -> Any:
            # The call returns a coroutine without running it, so a TypeError here is about the arguments.
            return await call(arguments, keywords)

        return wrapper
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def iterate(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(call(arguments, keywords)) as items:
                async for item in items:
                    yield item

        return iterate

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        return call(arguments, keywords)

    return run


def _wrap_constructor(function: Callable[..., None], hints: CallHints) -> Callable[..., None]:
    @functools.wraps(function)
    def construct(self: object, *arguments: Any, **keywords: Any) -> None:
        try:
            function(self, *arguments, **keywords)
        except TypeError as error:
            if _fits(inspect.signature(function), (self, *arguments), keywords):
                raise
            raise TypeError(f"{type(self).__name__}() is not called directly. {hints.constructor}") from error

    return construct


def _fits(signature: inspect.Signature, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        return False
    return True


def _describe_call_error(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    hints: CallHints,
    *,
    shows_class: bool,
) -> str | None:
    """Return a message for arguments that do not match the signature, or None if they match."""
    signature = inspect.signature(function)
    if _fits(signature, arguments, keywords):
        return None
    _, *parameters = signature.parameters.values()
    name = f"{function.__qualname__ if shows_class else function.__name__}()"
    kinds = {kind: [one.name for one in parameters if one.kind is kind] for kind in inspect._ParameterKind}
    by_position = kinds[inspect.Parameter.POSITIONAL_ONLY] + kinds[inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_name = kinds[inspect.Parameter.POSITIONAL_OR_KEYWORD] + kinds[inspect.Parameter.KEYWORD_ONLY]
    only_by_name = kinds[inspect.Parameter.KEYWORD_ONLY]
    given = by_position[: len(arguments) - 1]
    excess = 0 if kinds[inspect.Parameter.VAR_POSITIONAL] else len(arguments) - 1 - len(by_position)
    missing = [
        one.name
        for one in parameters
        if one.default is one.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and one.name not in given
        and one.name not in keywords
    ]
    sentences = []
    if not kinds[inspect.Parameter.VAR_KEYWORD]:
        unknown = [word for word in keywords if word not in by_name]
        sentences += [f"{name} has no {word!r}. {_suggest_keyword(word, by_name, hints)}" for word in unknown]
    if excess > 0:
        needed = [one for one in only_by_name if one in missing]
        rest = [one for one in only_by_name if one not in needed and one not in keywords]
        named = needed + rest[: max(0, excess - len(needed))]
        advice = f" Give {', '.join(f'{one}=' for one in named)} by name." if named else ""
        sentences.append(f"{name} takes {_count_arguments(by_position)}.{advice}")
    elif missing:
        needs = " and ".join(f"{one}=" if one in only_by_name else one for one in missing)
        advice = hints.methods.get(function.__name__, "")
        sentences.append(f"{name} needs {needs}.{advice and f' {advice}'}")
    sentences += [f"{name} got {word} twice." for word in keywords if word in given]
    return " ".join(sentences)


def _count_arguments(names: list[str]) -> str:
    count = len(names)
    number = _NUMBER_WORDS[count] if count < len(_NUMBER_WORDS) else str(count)
    noun = "argument" if count < 2 else "arguments"  # noqa: PLR2004 - plural
    return f"{number} positional {noun}{', ' if names else ''}{' and '.join(names)}"


def _suggest_keyword(word: str, parameters: list[str], hints: CallHints) -> str:
    """Return a sentence with the right argument for a keyword that a method does not have."""
    for candidate in hints.keywords.get(word, ()):
        first = candidate.partition("=")[0]
        if not first.isidentifier() or first in parameters:
            return f"Use {candidate}."
    close = find_close_match(word, parameters)
    if close is not None:
        return f"Did you mean {close}?"
    return f"It takes {', '.join(parameters)}." if parameters else "It takes no arguments."


def _raise_attribute_error(self: object, hints: CallHints, name: str) -> NoReturn:
    """Raise `AttributeError` for a missing attribute, with the right call if the name is a known guess."""
    owner = type(self)
    if hasattr(owner, name):
        # A property raised AttributeError. Raise it again instead of reporting a missing attribute.
        object.__getattribute__(self, name)
    if name.startswith("_"):
        raise AttributeError(f"{owner.__name__!r} object has no attribute {name!r}", name=name, obj=self)
    call = hints.attributes.get(name)
    close = None if call else find_close_match(name, (one for one in dir(owner) if not one.startswith("_")))
    advice = f" Use {call}." if call else f" Did you mean {close!r}?" if close else ""
    raise AttributeError(f"{owner.__name__} has no {name!r}.{advice}")


def _make_operator(operator: str, call: str) -> Callable[..., NoReturn]:
    """Return a special method that raises `TypeError` with the right call."""

    def raise_hint(self: object) -> NoReturn:
        verb = {"__iter__": "cannot be iterated", "__len__": "has no len()"}[operator]
        raise TypeError(f"{type(self).__name__} {verb}. Use {call}.")

    raise_hint.is_call_hint = True  # type: ignore[attr-defined]
    return raise_hint


def _return_true(_: object) -> bool:
    return True
