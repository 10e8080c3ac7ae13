"""Helpers shared by the services for Google ADK; needs the extra ``google-adk``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mama_structs.errors import InvalidArgument

try:
    from google.adk.errors.input_validation_error import InputValidationError
    from google.genai import types
    from pydantic_core import PydanticSerializationError
except ImportError as _missing:
    raise ImportError(
        "the Google ADK adapters need the Agent Development Kit: pip install 'mama-structs[google-adk]'"
    ) from _missing

HOST_LABEL: Final = "google-adk"


def hash_name(name: str) -> str:
    """Return a hash of fixed length that replaces a name of any length."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]


def extract_text(content: types.Content, separator: str = " ") -> str:
    """Return the text of a message without reasoning. The parts are joined with *separator*."""
    return separator.join(part.text for part in content.parts or () if part.text and not part.thought).strip()


@contextmanager
def convert_errors() -> Iterator[None]:
    """Convert errors about invalid records to ADK's `InputValidationError`."""
    try:
        yield
    except (InvalidArgument, PydanticSerializationError) as error:
        raise InputValidationError(str(error)) from error
