"""
Execute the notebooks in ``docs/notebooks`` and the README's first code block.

Each runs in a fresh kernel, then again in the same kernel with every cell twice, then after an interrupt during work.
``python scripts/notebooks.py [NAME ...]`` stops at the first error.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode, read
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 60
# Cells that report their start, and then save until they are interrupted.
BUSY = {
    "without await": """
from mama_structs.sync import Session
with Session.open() as interrupted:
    print("begun", flush=True)
    while True:
        interrupted.memories.save_insight("busy")
""",
    "with await": """
from mama_structs import Session
async with Session.open() as interrupted:
    print("begun", flush=True)
    while True:
        await interrupted.memories.save_insight("busy")
""",
}


def front_page() -> NotebookNode:
    """Return the README's first code block as a notebook."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return new_notebook(cells=[new_code_cell(found[1])])


async def interrupted(client: NotebookClient, code: str) -> None:
    """Run a cell that never ends, and interrupt it after it has reported its start."""
    kernel, manager = client.kc, client.km
    message = kernel.execute(code, store_history=False)
    stopped = False
    while True:
        said = await asyncio.wait_for(kernel.get_iopub_msg(), SECONDS)
        if said["parent_header"].get("msg_id") != message:
            continue
        if said["msg_type"] == "stream" and "begun" in said["content"]["text"]:
            await manager.interrupt_kernel()
            stopped = True
        elif said["msg_type"] == "error" and not stopped:
            raise AssertionError("\n".join(said["content"]["traceback"]))
        elif said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            assert stopped
            return


async def tried(name: str, notebook: NotebookNode) -> None:
    """Run a notebook in one kernel: fresh, with every cell twice, and after each kind of interrupted cell."""
    with tempfile.TemporaryDirectory() as place:
        client = NotebookClient(notebook, kernel_name="python3", timeout=SECONDS)
        async with client.async_setup_kernel(cwd=place):
            for run in ("fresh", "again", *BUSY):
                if run in BUSY:
                    await interrupted(client, BUSY[run])
                for index, cell in enumerate(notebook.cells):
                    for _ in range(2 if run == "again" else 1):
                        await client.async_execute_cell(cell, index)
                        warned = [one.text for one in cell.get("outputs", []) if one.get("name") == "stderr"]
                        assert not warned, f"{name}, cell {index + 1}, {run}: {warned}"
    sys.stdout.write(f"{name}: fresh, again, and after an interrupt\n")


async def main(names: list[str]) -> None:
    """Run all notebooks, or the named ones."""
    chosen = [path for path in NOTEBOOKS if not names or path.stem in names]
    trials = [tried(path.name, read(path, as_version=4)) for path in chosen]
    await asyncio.gather(tried("README.md", front_page()), *trials)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
