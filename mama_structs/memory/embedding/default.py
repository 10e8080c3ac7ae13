"""Which embedder is used where none is given."""

from __future__ import annotations

import logging
import threading
from typing import Final

from mama_structs.memory.embedding.hashed import HashEmbedder
from mama_structs.memory.embedding.protocol import Embedder
from mama_structs.memory.embedding.universal import UniversalSentenceEmbedder, is_installed

_logger: Final = logging.getLogger("mama_structs")
_lock = threading.Lock()
_was_said = False


def default_embedder() -> Embedder:
    """
    Return the sentence encoder of the extra ``semantic``, or a `HashEmbedder` where that is not installed.

    The second is announced once in a process, as a warning of the logger ``mama_structs``.
    """
    if is_installed():
        return UniversalSentenceEmbedder()
    global _was_said
    with _lock:
        was_said, _was_said = _was_said, True
    if not was_said:
        _logger.warning(
            "no sentence encoder is installed: memories are compared by their words, not by their meaning "
            "(pip install 'mama-structs[semantic]', or give an embedder)"
        )
    return HashEmbedder()
