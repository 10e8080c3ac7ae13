"""The reranker protocol: scores texts against a query. Does not import numpy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from mama_structs._internal import validation as _check
from mama_structs._internal.introspection import is_async_callable
from mama_structs.errors import InvalidArgument

_DEFAULT_MAX_CHARS: Final = 4_000  # about twice the length of the 512 tokens that most cross-encoders read
_DEFAULT_BATCH_SIZE: Final = 64


@runtime_checkable
class Reranker(Protocol):
    """
    Scores how well each text answers a query, by reading both together.

    Optional attributes: ``max_chars``, the number of characters that it reads of each text (default 4,000), and
    ``batch_size``, the number of texts per call (default 64). Longer texts are truncated before the call.
    """

    @property
    def name(self) -> str:
        """Name for messages and statistics."""

    def rerank(self, query: str, texts: Sequence[str]) -> Iterable[float] | Awaitable[Iterable[float]]:
        """
        Return a score for each text, or an awaitable of the scores.

        Args:
            query: The query as given.
            texts: The candidate texts, none of them empty.

        Returns:
            An array or list of finite numbers, of shape (texts,), higher for better answers. Only their order is used.

        """


@attrs.define(kw_only=True)
class CallableReranker:
    """A reranker that wraps a callable; see `as_reranker`."""

    function: Callable[..., Any] = attrs.field(repr=False)
    name: str
    max_chars: int = _DEFAULT_MAX_CHARS
    batch_size: int = _DEFAULT_BATCH_SIZE

    def __attrs_post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgument(f"fn must be callable, got a {type(self.function).__name__}")
        check_reranker(self)

    @property
    def is_async(self) -> bool:
        """True if the callable must be called in the event loop."""
        return is_async_callable(self.function)

    def rerank(self, query: str, texts: Sequence[str]) -> Iterable[float] | Awaitable[Iterable[float]]:
        """Call the callable with the query and a list of the texts."""
        given: Iterable[float] | Awaitable[Iterable[float]] = self.function(query, list(texts))
        return given


def as_reranker(
    fn: Callable[..., Any], *, name: str, max_chars: int = _DEFAULT_MAX_CHARS, batch_size: int = _DEFAULT_BATCH_SIZE
) -> CallableReranker:
    """
    Make a reranker from a callable.

    Args:
        fn: Takes the query and a list of texts, and returns a score for each text, higher for better answers: an array,
            a list or an awaitable. A callable that is not async runs in its own thread, one call at a time.
        name: Name for messages and statistics.
        max_chars: Number of characters of a text that it reads. Longer texts are truncated.
        batch_size: Maximum number of texts per call.

    Raises:
        InvalidArgument: An argument is invalid.

    """
    return CallableReranker(function=fn, name=name, max_chars=max_chars, batch_size=batch_size)


def check_reranker(reranker: object) -> None:
    """Raise `InvalidArgument` unless the reranker is valid or None."""
    if reranker is None:
        return
    if not isinstance(reranker, Reranker):
        raise InvalidArgument(
            f"reranker must have name and rerank(), got {type(reranker).__name__}",
            hint="as_reranker(fn, name=...) makes one of a function",
        )
    if not isinstance(reranker.name, str) or not reranker.name:
        raise _check.invalid_argument("name", "must be text that is not empty", reranker.name)
    _check.check_integer("max_chars", get_max_chars(reranker), 1, separator=",")
    _check.check_integer("batch_size", get_batch_size(reranker), 1, separator=",")


def get_max_chars(reranker: Reranker) -> int:
    """Return the maximum number of characters that the reranker reads of each text."""
    return getattr(reranker, "max_chars", _DEFAULT_MAX_CHARS)


def get_batch_size(reranker: Reranker) -> int:
    """Return the maximum number of texts that the reranker accepts per call."""
    return getattr(reranker, "batch_size", _DEFAULT_BATCH_SIZE)
