"""What a reranker is: it says how well texts answer a question, having read both together. Loads no numpy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.introspection import is_async_callable
from mama_structs.errors import InvalidArgument

_CHARS: Final = 4_000  # As many as the 512 tokens of most cross-encoders can hold, and twice that.
_BATCH: Final = 64


@runtime_checkable
class Reranker(Protocol):
    """
    Says how well texts answer a question, having read both together.

    It may also have ``max_chars``: how much of a text it reads (4,000), so that it is given no more;
    and ``batch_size``: how many texts it takes well at once (64).
    """

    @property
    def name(self) -> str:
        """What it is called, in messages and figures."""

    def rerank(self, query: str, texts: Sequence[str]) -> Iterable[float] | Awaitable[Iterable[float]]:
        """
        Return a number for each text, or something to await that gives them.

        Args:
            query: The question, as it was asked.
            texts: What may answer it, none of them empty.

        Returns:
            An array or a list of finite numbers, of shape (texts,), higher for what answers better; their order counts.

        """


@attrs.define(kw_only=True)
class CallableReranker:
    """A reranker made of a callable; see `as_reranker`."""

    function: Callable[..., Any] = attrs.field(repr=False)
    name: str
    max_chars: int = _CHARS
    batch_size: int = _BATCH

    def __attrs_post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgument(f"fn must be callable, got a {type(self.function).__name__}")
        check_reranker(self)

    @property
    def is_async(self) -> bool:
        """Whether the callable is to be called in the event loop."""
        return is_async_callable(self.function)

    def rerank(self, query: str, texts: Sequence[str]) -> Iterable[float] | Awaitable[Iterable[float]]:
        """Call the callable with the question and a list of the texts."""
        given: Iterable[float] | Awaitable[Iterable[float]] = self.function(query, list(texts))
        return given


def as_reranker(
    fn: Callable[..., Any], *, name: str, max_chars: int = _CHARS, batch_size: int = _BATCH
) -> CallableReranker:
    """
    Make a reranker of a callable.

    Args:
        fn: Takes the question and a list of texts, and returns as many numbers, higher for what answers better:
            an array, a list, or something to await.
            What is not async runs in a thread of its own, one call at a time.
        name: What it is called, in messages and figures.
        max_chars: How much of a text it reads; of a longer one it gets the beginning.
        batch_size: How many texts one call gets at the most.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """
    return CallableReranker(function=fn, name=name, max_chars=max_chars, batch_size=batch_size)


def check_reranker(reranker: object) -> None:
    """Refuse what cannot rerank; None is no reranker."""
    if reranker is None:
        return
    if not isinstance(reranker, Reranker):
        raise InvalidArgument(
            f"reranker must have name and rerank(), got {type(reranker).__name__}",
            hint="as_reranker(fn, name=...) makes one of a function",
        )
    if not isinstance(reranker.name, str) or not reranker.name:
        raise _check.refused("name", "must be text that is not empty", reranker.name)
    _check.whole("max_chars", max_chars_of(reranker), 1, mark=",")
    _check.whole("batch_size", batch_size_of(reranker), 1, mark=",")


def max_chars_of(reranker: Reranker) -> int:
    """Return how much of a text it reads."""
    return getattr(reranker, "max_chars", _CHARS)


def batch_size_of(reranker: Reranker) -> int:
    """Return how many texts it is given at once."""
    return getattr(reranker, "batch_size", _BATCH)
