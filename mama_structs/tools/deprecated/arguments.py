"""Arguments by the names that v1.0 gave them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from mama_structs.errors import InvalidArgument


@contextlib.contextmanager
def named(**names: str) -> Iterator[None]:
    """
    Let errors name an argument as the tool does, and not as what the tool calls.

    Args:
        names: The tool's name for each of the others.

    Raises:
        InvalidArgument: As within, but for the name.

    """
    try:
        yield
    except InvalidArgument as error:
        message = str(error.args[0])
        for own, shown in names.items():
            # Each message begins with the argument that it is about.
            if re.match(rf"{own}\b", message):
                raise InvalidArgument(f"{shown}{message.removeprefix(own)}", hint=error.hint) from error
        raise
