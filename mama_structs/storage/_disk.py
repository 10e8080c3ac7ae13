"""What one row is on disk: an ASCII key, and bytes sealed with a checksum."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NoReturn

import attrs
import diskcache  # type: ignore[import-untyped]  # it ships no types

from mama_structs.errors import InvalidArgument

# Far below the largest value that SQLite takes, so that a sealed row always fits.
LARGEST_VALUE: Final = 2**29
LONGEST_KEY: Final = 1024

_MAGIC: Final = b"ms1\0"
_DIGEST: Final = 16
_HEAD: Final = len(_MAGIC) + _DIGEST
RAW: Final = diskcache.core.MODE_RAW
"""What the column `mode` says of bytes in the row itself."""


@attrs.frozen
class Damaged:
    """
    What is read instead of a value that is not what was stored.

    Args:
        reason: What is wrong, for people.

    """

    reason: str


class ForeignRow(Exception):
    """A row that this package did not write; it was not decoded."""


def check_key(key: object) -> str:
    """
    Return *key* if it may be a row's key.

    Raises:
        InvalidArgument: It is no ASCII str, or empty, too long or with NUL.

    """
    if type(key) is not str:
        raise InvalidArgument(f"a key must be a str, got {type(key).__name__}")
    if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or "\0" in key:
        raise InvalidArgument(
            f"a key must be 1 to {LONGEST_KEY} ASCII characters without NUL, got {len(key)} characters"
        )
    return key


def check_value(value: object) -> bytes:
    """
    Return *value* if a row can hold it.

    Raises:
        InvalidArgument: It is not bytes, or larger than `LARGEST_VALUE`.

    """
    if type(value) is not bytes:
        raise InvalidArgument(f"a value must be bytes, got {type(value).__name__}")
    if len(value) > LARGEST_VALUE:
        raise InvalidArgument(f"a value must be at most {LARGEST_VALUE} bytes, got {len(value)}")
    return value


def seal(key: str, value: bytes) -> bytes:
    """Return *value* as it is written: a mark, a checksum over key and value, and the value."""
    return b"".join((_MAGIC, _checksum(key, memoryview(value)), value))


def unseal(key: str, stored: object) -> bytes | Damaged:
    """Return the value that was sealed for *key*, or what is wrong with what is there."""
    if type(stored) is not bytes:
        return Damaged(f"the row holds {type(stored).__name__} instead of bytes")
    if not stored.startswith(_MAGIC) or len(stored) < _HEAD:
        return Damaged("the row has no valid beginning")
    value = memoryview(stored)[_HEAD:]
    if _checksum(key, value) != stored[len(_MAGIC) : _HEAD]:
        return Damaged("the checksum does not match")
    return bytes(value)


def _checksum(key: str, value: memoryview) -> bytes:
    # Keys hold no NUL, so the two cannot run into each other; with the key in it, swapped rows are noticed.
    digest = blake2b(key.encode("ascii") + b"\0", digest_size=_DIGEST, person=b"mama-structs-row")
    digest.update(value)
    return digest.digest()


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # the base class has no types
    """
    Stores bytes under ASCII keys, inline, and decodes nothing else.

    The base class unpickles what a row says is pickled, which would run a planted row's code.
    The arguments are those of the base class; what a file's settings say of them does not count.
    """

    def __init__(self, directory: str, **_settings: object) -> None:
        super().__init__(directory, min_file_size=2**62, pickle_protocol=0)

    def put(self, key: object) -> tuple[str, bool]:
        """Return the columns of a key."""
        return check_key(key), True

    def get(self, key: object, raw: object) -> str:
        """
        Return the key in a row.

        Raises:
            ForeignRow: It is not one of ours.

        """
        if raw != 1 or type(key) is not str or not key.isascii():
            raise ForeignRow("a key that this package did not write")
        return key

    def store(self, value: object, read: object, key: object = None) -> tuple[int, int, None, bytes]:  # noqa: ARG002 - the base class's signature
        """Return the columns of a value."""
        if type(value) is not bytes:
            raise InvalidArgument(f"only bytes are stored, got {type(value).__name__}")
        return 0, RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: object) -> bytes:
        """
        Return the bytes in a row.

        Raises:
            ForeignRow: It holds anything else: a number, text, a file's name or a pickle.

        """
        if read or mode != RAW or filename is not None or type(value) is not bytes:
            raise ForeignRow(foreign_value(mode, filename, value))
        return value

    def filename(self, key: object = None, value: object = None) -> NoReturn:  # noqa: ARG002 - as above
        """Refuse: no row of ours has a file."""
        raise ForeignRow("a value in a file of its own")

    def remove(self, file_path: object) -> None:
        """Leave a file alone that a foreign row names: its name is not to be trusted."""


def foreign_value(mode: object, filename: object, value: object) -> str:
    """Say in which way a value is not one of ours."""
    if filename is not None:
        return "the row names a file"
    if mode != RAW:
        return "the row is pickled" if mode == diskcache.core.MODE_PICKLE else f"the row has the mode {mode!r:.20}"
    return f"the row holds {type(value).__name__} instead of bytes"


def is_own(mode: Any, filename: Any, value: Any) -> bool:
    """Tell whether the columns of a value are such as `BytesDisk` writes."""
    return mode == RAW and filename is None and type(value) is bytes
