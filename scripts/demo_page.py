"""
Write the output of ``mama-structs demo`` (80 columns) into ``docs/demo.md``.

``python scripts/demo_page.py`` writes the page. A test compares the page with the current output of the demo.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from mama_structs.cli.demo import render_story, run_demo
from mama_structs.cli.demo_memory import run_two_days

TARGET = Path(__file__).parents[1] / "docs" / "demo.md"
WIDTH = 80
_BLOCK = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


async def printed() -> str:
    """Return the output of the demo."""
    return render_story(await run_two_days(), await run_demo(), width=WIDTH)


def read_page_output() -> str:
    """Return the demo output in the existing page."""
    return _BLOCK.findall(TARGET.read_text(encoding="utf-8"))[0]


if __name__ == "__main__":
    told = f"{asyncio.run(printed())}\n"
    TARGET.write_text(_BLOCK.sub(lambda _: told, TARGET.read_text(encoding="utf-8")), encoding="utf-8")
