"""Snapshot tests that detect accidental changes to names, descriptions, schemas and annotations of built-in tools."""

import json
from pathlib import Path

import attrs

from mama_structs import HashEmbedder, Session
from mama_structs.settings import Settings, ToolSettings

CATALOGUE = Path(__file__).parents[1] / "data" / "tool_catalogue.json"


async def test_catalogue_of_a_session_is_unchanged():
    """
    Prompts, hosts and cached schemas depend on each byte of the built-in tools.

    After an intended change, write `shown` to the file.
    """
    settings = Settings(tools=ToolSettings(forget=True, deprecated=True))
    async with Session.open(embedder=HashEmbedder(), settings=settings) as session:
        catalogue = [
            {
                "name": tool.name,
                "title": tool.title,
                "description": tool.description,
                "input_schema": tool.input_schema,
                "output_schema": tool.output_schema,
                "annotations": attrs.asdict(tool.annotations),
            }
            for tool in session.tools.values()
        ]
    shown = json.dumps(catalogue, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    assert CATALOGUE.read_text("utf-8") == shown
