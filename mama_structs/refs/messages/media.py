"""Detection of images, audio and files in tool results, in the formats of all providers."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

_MEDIA_KINDS: Final = ("image", "audio", "file")
_DEFAULT_MIME_TYPE: Final = "application/octet-stream"
_KIND_ALIASES: Final[Mapping[str, str]] = {"image_url": "image", "input_image": "image", "input_audio": "audio"}
_MIME_TYPE_ALIASES: Final[Mapping[str, str]] = {"image/jpg": "image/jpeg"}
_DATA_URL: Final = re.compile(r"data:(?P<mime_type>[\w.+-]+/[\w.+-]+)[^,]*?;base64,", re.ASCII)
# Magic bytes of each type; a dot matches any byte.
_MAGIC_BYTES: Final[Mapping[str, re.Pattern[bytes]]] = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "audio/wav": re.compile(rb"RIFF....WAVE", re.DOTALL),
    "audio/ogg": re.compile(rb"OggS"),
    "audio/flac": re.compile(rb"fLaC"),
    "application/pdf": re.compile(rb"%PDF-"),
    "audio/mpeg": re.compile(rb"ID3|\xff[\xf2\xf3\xfb]"),
}


@attrs.frozen
class Media:
    """
    An image, audio or file: its kind, its MIME type, and base64 data or a URL.

    The MIME type is None for a URL whose type the block does not state.
    """

    kind: str
    mime_type: str | None = None
    data: str | None = attrs.field(default=None, repr=False)
    url: str | None = attrs.field(default=None, repr=False)

    @property
    def data_url(self) -> str:
        """The URL, or a data URL that contains the data."""
        return self.url or f"data:{self.mime_type};base64,{self.data}"

    @property
    def content(self) -> bytes | None:
        """The decoded bytes, or None if there is only a URL or the data is not valid base64."""
        try:
            return None if self.data is None else base64.b64decode(self.data, validate=True)
        except ValueError:
            return None


def parse_media(block: object) -> Media | None:
    """Return the image, audio or file of a content block of any provider, or None."""
    if not isinstance(block, Mapping):
        return None
    said = block.get("kind") if block.get("kind") == "binary" else block.get("type")
    kind = _KIND_ALIASES.get(said, said) if isinstance(said, str) else None
    mime_type = _first_text(block, "mimeType", "mime_type", "media_type")
    if kind == "binary" and mime_type:
        kind = _media_kind(mime_type)
    if kind not in _MEDIA_KINDS:
        return None
    inner = block.get("source", block.get(f"{kind}_url", block.get("input_audio")))
    place = inner if isinstance(inner, Mapping) else block
    sound = _first_text(place, "format")
    mime_type = _first_text(place, "mimeType", "mime_type", "media_type") or mime_type or (sound and f"{kind}/{sound}")
    # Read a URL only from provider-specific fields, because a mapping with `type` and `url` may be ordinary data.
    url = inner if isinstance(inner, str) else _first_text(inner, "url") if isinstance(inner, Mapping) else None
    found = _DATA_URL.match(url) if url else None
    if url and found is None:
        return Media(kind, mime_type, url=url)
    data = url[found.end() :] if url and found else _first_text(place, "data", "base64")
    mime_type = found["mime_type"] if found else mime_type
    return Media(kind, _MIME_TYPE_ALIASES.get(mime_type, mime_type), data=data) if data and mime_type else None


def to_content_blocks(result: Any) -> Any:
    """
    Convert bytes in a tool's result, alone or in a list, to texts if they are UTF-8, and else to content blocks.

    Other results are returned unchanged.
    """
    if isinstance(result, bytes | bytearray | memoryview):
        converted = _convert_bytes(bytes(result))
        return converted if isinstance(converted, str) else [converted]
    if type(result) not in {list, tuple} or not any(isinstance(one, bytes | bytearray | memoryview) for one in result):
        return result
    items = [_convert_bytes(bytes(one)) if isinstance(one, bytes | bytearray | memoryview) else one for one in result]
    if all(type(new) is str or new is old for new, old in zip(items, result, strict=True)):
        return items
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in items]


def _convert_bytes(content: bytes) -> str | dict[str, str]:
    mime_type = next((name for name, begins in _MAGIC_BYTES.items() if begins.match(content)), None)
    if mime_type is None:
        try:
            # No text file contains NUL.
            if b"\0" not in content:
                return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
        mime_type = _DEFAULT_MIME_TYPE
    return {"type": _media_kind(mime_type), "data": base64.b64encode(content).decode("ascii"), "mimeType": mime_type}


def _media_kind(mime_type: str) -> str:
    kind = mime_type.partition("/")[0]
    return kind if kind in _MEDIA_KINDS else "file"


def _first_text(block: Mapping[str, Any], *names: str) -> str | None:
    return next((value for name in names if isinstance(value := block.get(name), str) and value), None)
