"""The names of arguments as a model wrote them."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

_UNSTYLED: Final = re.compile(r"[\s_-]+")


def renamed(given: Mapping[Any, Any], names: Collection[str]) -> dict[Any, Any]:
    """
    Return what was given by name with the right names for those that differ in case, ``_`` and ``-`` only.

    Nulls under names that nothing has are left out.

    Args:
        given: As a model gave it.
        names: The right names.

    """
    by_style: dict[str, list[str]] = {}
    for name in names:
        by_style.setdefault(_unstyled(name), []).append(name)
    meant: dict[Any, str] = {}
    for key in given:
        found = by_style.get(_unstyled(key), []) if isinstance(key, str) and key not in names else []
        if len(found) == 1 and found[0] not in given:
            meant[key] = found[0]
    times = Counter(meant.values())
    right = {}
    for key, value in given.items():
        if key in meant and times[meant[key]] == 1:
            right[meant[key]] = value
        elif key in names or value is not None or not isinstance(key, str):
            right[key] = value
    return right


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the name that one most likely stands for, None where none is near."""
    by_style = {_unstyled(one): one for one in names}
    near = difflib.get_close_matches(_unstyled(str(name)), by_style, n=1)
    return by_style[near[0]] if near else None


def _unstyled(name: str) -> str:
    return _UNSTYLED.sub("", name).casefold()
