"""Creation of files in the formats of other memory programs, which need not be installed."""

from __future__ import annotations

import hashlib
import json
import lzma
import pickle
import sqlite3
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MEM0: Path = Path(__file__).parents[1] / "data" / "mem0"
"""Files of mem0 2.2.1, and the result of its `get_all` for one user; the tests describe how they were made."""
TRANSCRIPTS: Path = MEM0.parent / "claude_code" / "transcripts.tar.xz"
"""
Transcripts that versions 1.0.72, 2.0.47 and 2.1.332 of the Claude Code CLI wrote, with the answers of a scripted API.

The working directory was renamed, and the entries with the CLI's own prompts were deleted.
"""
CLAUDE_MEM: Path = MEM0.parent / "claude_mem" / "claude-mem.db.xz"
"""A database that the class SessionStore of claude-mem 13.25.3 wrote."""


def listing(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and the modification time of each file in a folder."""
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def mem0_home(folder: Path) -> Path:
    """Unpack the files of both default folders of mem0 into one folder."""
    points = folder / "qdrant" / "collection" / "mem0"
    points.mkdir(parents=True)
    for target in (points / "storage.sqlite", folder / "history.db"):
        target.write_bytes(lzma.decompress((MEM0 / f"{target.name}.xz").read_bytes()))
    return folder


class PointStruct:
    """Imitates a Qdrant point, which is a pydantic object."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getstate__(self) -> dict[str, Any]:
        return {"__dict__": self.fields, "__pydantic_extra__": None, "__pydantic_private__": None}


def points(file: Path, payloads: Iterable[tuple[str, Mapping[str, Any] | bytes]]) -> Path:
    """Write a collection in the format of Qdrant's local mode. A payload of bytes is stored unchanged."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE IF NOT EXISTS points (id TEXT PRIMARY KEY, point BLOB)")
        for number, (name, payload) in enumerate(payloads):
            point = PointStruct(id=name, vector=[0.5, 0.5], payload=payload)
            data = payload if isinstance(payload, bytes) else pickle.dumps(point)
            database.execute("INSERT INTO points VALUES (?, ?)", (f"{number} {name}", data))
    database.close()
    return file


def langgraph_store(
    file: Path, rows: Iterable[tuple[Any, ...]], *, indexed: Iterable[tuple[str, str, str]] = ()
) -> Path:
    """
    Write the database of a LangGraph SqliteStore.

    A row consists of prefix, key, value, and optionally creation time, expiry time and TTL in minutes.
    """
    with sqlite3.connect(file) as database:
        database.execute(
            "CREATE TABLE store (prefix text NOT NULL, key text NOT NULL, value text NOT NULL, created_at TIMESTAMP, "
            "updated_at TIMESTAMP, expires_at TIMESTAMP, ttl_minutes REAL, PRIMARY KEY (prefix, key))"
        )
        database.execute("CREATE TABLE store_vectors (prefix text, key text, field_name text, embedding BLOB)")
        for prefix, key, value, *times in rows:
            text = value if isinstance(value, str) else json.dumps(value)
            made, ends, minutes = [*times, None, None, None][:3]
            database.execute(
                "INSERT INTO store VALUES (?, ?, ?, ?, ?, ?, ?)", (prefix, key, text, made, made, ends, minutes)
            )
        database.executemany("INSERT INTO store_vectors VALUES (?, ?, ?, x'00')", indexed)
    database.close()
    return file


def graph(file: Path, *items: Any) -> Path:
    """Write the file of MCP's memory server. Strings are written as raw lines."""
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in items), encoding="utf-8")
    return file


def entity(name: Any, kind: Any = "person", *observations: Any) -> dict[str, Any]:
    """Build an entity in the format of MCP's memory server."""
    return {"type": "entity", "name": name, "entityType": kind, "observations": list(observations)}


def relation(from_name: Any, word: Any, to_name: Any) -> dict[str, Any]:
    """Return a relation of MCP's memory server."""
    return {"type": "relation", "from": from_name, "relationType": word, "to": to_name}


def claude_code_projects(folder: Path) -> Path:
    """Unpack the transcripts of three versions of Claude Code, each into a folder of projects."""
    with tarfile.open(TRANSCRIPTS) as archive:
        archive.extractall(folder, filter="data")
    return folder


def transcript(file: Path, *entries: Mapping[str, Any] | str) -> Path:
    """Write a transcript of Claude Code. A text is written as a line."""
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def message(role: str, content: Any, number: int, **fields: Any) -> dict[str, Any]:
    """Return a message as an entry of a transcript of Claude Code, sent in the minute *number* of an hour."""
    return {
        "type": role,
        "uuid": f"u{number}",
        "sessionId": "s1",
        "cwd": "/home/ada/shop",
        "timestamp": f"2026-03-02T09:{number:02}:00.000Z",
        "message": {"role": role, "content": content, **({"id": f"msg_{number}"} if role == "assistant" else {})},
        **fields,
    }


def claude_mem_database(folder: Path) -> Path:
    """Unpack a database of claude-mem."""
    file = folder / "claude-mem.db"
    file.write_bytes(lzma.decompress(CLAUDE_MEM.read_bytes()))
    return file
