"""Error messages that name the right call when a caller guesses an attribute, a keyword or an argument."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import attrs

ClassT = TypeVar("ClassT", bound=type)

_NUMBER_WORDS: Final = ("no", "one", "two", "three", "four")
_MAX_CLOSE_MATCHES: Final = 1
_OPERATOR_FAULTS: Final[Mapping[str, str]] = {
    "__iter__": "cannot be iterated",
    "__len__": "has no len()",
    "__call__": "cannot be called",
    **dict.fromkeys(("__enter__", "__exit__"), "needs async with"),
}
_MIN_RATIO: Final = 0.6
_MIN_PREFIXED_RATIO: Final = 0.85  # A name with a known prefix is a typing error only if almost all of it is equal.


@attrs.frozen(kw_only=True)
class CallHints:
    """
    The right calls for names that callers guess, often because another package uses them.

    Args:
        attributes: The right call by guessed attribute, such as ``{"add": "save(content)"}``.
        prefixes: The right call by prefix of guessed attributes, such as ``{"save_": "save(content)"}``. An attribute
            whose name is almost equal is preferred.
        keywords: The right arguments by guessed keyword, best first: a parameter, or any text. A text that begins with
            a parameter and ``=`` is used only for methods that have this parameter. So is each part before `` or ``.
        methods: Advice by method, added to the error if an argument is missing.
        unknown_keywords: Advice by method, added to the error if a keyword is unknown.
        constructor: Advice for callers of the class; empty if the class may be called.
        has_constructor: True if the class may be called and wrong arguments of the call are to get hints.
        operators: The right call by special method that the class does not have, such as ``{"__len__": "count()"}``.

    """

    attributes: Mapping[str, str] = attrs.field(factory=dict)
    prefixes: Mapping[str, str] = attrs.field(factory=dict)
    keywords: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    methods: Mapping[str, str] = attrs.field(factory=dict)
    unknown_keywords: Mapping[str, str] = attrs.field(factory=dict)
    constructor: str = ""
    has_constructor: bool = False
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
        if hints.constructor or hints.has_constructor:
            cls.__init__ = _wrap_constructor(cls.__init__, hints)  # type: ignore[misc]
        for operator, call in hints.operators.items():
            setattr(cls, operator, _make_operator(cls.__name__, operator, call))
        if "__len__" in hints.operators:
            cls.__bool__ = _return_true  # type: ignore[attr-defined]  # otherwise `bool` would call `__len__`
        if hints.attributes:
            cls.__getattr__ = functools.partialmethod(_raise_attribute_error, cls.__name__, hints)  # type: ignore[attr-defined]
        return cls

    return decorate


def is_hint(member: object) -> bool:
    """Return True for a special method that only raises an error with a hint."""
    return getattr(member, "is_call_hint", False)


def find_close_match(name: str, known: Iterable[str], *, min_ratio: float = _MIN_RATIO) -> str | None:
    """Return the name that is most similar to *name*, or None if none is similar."""
    import difflib  # noqa: PLC0415 - needed only for errors

    return next(iter(difflib.get_close_matches(name, list(known), n=_MAX_CLOSE_MATCHES, cutoff=min_ratio)), None)


def make_attribute_error(message: str, name: str) -> AttributeError:
    """
    Return an `AttributeError` to which tracebacks add no second suggestion.

    Python sets *obj* if the error has neither *name* nor *obj*, and then suggests a similar attribute of it.
    The attributes of None are all special methods, so Python suggests none of them.
    """
    return AttributeError(message, name=name, obj=None)


def with_sync_calls(error: AttributeError, rename: Callable[[str], str]) -> AttributeError:
    """Return an equal error whose hint names functions of `mama_structs.sync`. *rename* replaces the class name."""
    message = rename(str(error)).replace("mama_structs.admin.", "mama_structs.sync.admin.")
    return error if error.name is None or message == str(error) else make_attribute_error(message, error.name)


def make_module_getattr(module: str, hints: CallHints, known: Collection[str]) -> Callable[[str], NoReturn]:
    """
    Return ``__getattr__`` of a module. Its error names the right call for a guessed name.

    Define it where type checkers do not see it, or they would accept every name.
    """

    def raise_attribute_error(name: str) -> NoReturn:
        advice = "" if name.startswith("_") else _make_advice(name, known, hints)
        if not advice:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise make_attribute_error(f"{module} has no {name!r}.{advice}", name)

    return raise_attribute_error


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
            if hints.constructor:
                raise TypeError(f"{type(self).__name__}() is not called directly. {hints.constructor}") from error
            name = type(self).__name__
            raise TypeError(_describe_call_error(function, (self, *arguments), keywords, hints, name=name)) from error

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
    shows_class: bool = False,
    name: str | None = None,
) -> str | None:
    """Return a message for arguments that do not match the signature, or None if they match."""
    signature = inspect.signature(function)
    if _fits(signature, arguments, keywords):
        return None
    _, *parameters = signature.parameters.values()
    name = f"{name or (function.__qualname__ if shows_class else function.__name__)}()"
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
        sentences += [f"{name} has no {word!r}. {suggest_keyword(word, by_name, hints)}" for word in unknown]
        if unknown and not missing and excess <= 0:
            sentences += filter(None, [hints.unknown_keywords.get(function.__name__)])
    if excess > 0:
        needed = [one for one in only_by_name if one in missing]
        rest = [one for one in only_by_name if one not in needed and one not in keywords]
        named = needed + rest[: max(0, excess - len(needed))]
        advice = f" Give {', '.join(f'{one}=' for one in named)} by name." if named else ""
        if not by_position and len(only_by_name) > 1:
            advice = f" Give each by name: {', '.join(f'{one}=' for one in only_by_name)}."
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


def suggest_keyword(word: str, parameters: Sequence[str], hints: CallHints) -> str:
    """Return a sentence with the right argument for a keyword that a method does not have."""
    for candidate in hints.keywords.get(word, ()):
        names = [one.partition("=")[0] for one in candidate.split(" or ")]
        if all(name in parameters for name in names if name.isidentifier()):
            return f"Use {candidate}."
    close = find_close_match(word, parameters)
    if close is not None:
        return f"Did you mean {close}?"
    return f"It takes {', '.join(parameters)}." if parameters else "It takes no arguments."


def _raise_attribute_error(self: object, class_name: str, hints: CallHints, name: str) -> NoReturn:
    """
    Raise `AttributeError` for a missing attribute, with the right call if the name is a known guess.

    *class_name* is the name of the class with the hints, because a subclass may be private.
    """
    owner = type(self)
    # `hasattr` would also find names of the metaclass, such as `register` of abstract classes.
    if any(name in vars(one) for one in owner.__mro__):
        # A property raised AttributeError. Raise it again instead of reporting a missing attribute.
        object.__getattribute__(self, name)
    if name.startswith("_"):
        raise AttributeError(f"{class_name!r} object has no attribute {name!r}", name=name, obj=self)
    advice = _make_advice(name, [one for one in dir(owner) if not one.startswith("_")], hints)
    raise make_attribute_error(f"{class_name} has no {name!r}.{advice}", name)


def _make_advice(name: str, known: Iterable[str], hints: CallHints) -> str:
    """Return a sentence with the right call for a missing attribute, after a space, or an empty text."""
    call = hints.attributes.get(name)
    prefixed = next((hint for prefix, hint in hints.prefixes.items() if name.startswith(prefix)), None)
    min_ratio = _MIN_RATIO if prefixed is None else _MIN_PREFIXED_RATIO
    close = None if call else find_close_match(name, known, min_ratio=min_ratio)
    call = call or (None if close else prefixed)
    return f" Use {call}." if call else f" Did you mean {close!r}?" if close else ""


def _make_operator(class_name: str, operator: str, call: str) -> Callable[..., NoReturn]:
    """Return a special method that raises `TypeError` with the right call."""

    def raise_hint(*_: object, **__: object) -> NoReturn:
        raise TypeError(f"{class_name} {_OPERATOR_FAULTS[operator]}. Use {call}.")

    raise_hint.is_call_hint = True  # type: ignore[attr-defined]
    return raise_hint


def _return_true(_: object) -> bool:
    return True
