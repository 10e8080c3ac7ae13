"""
Answers of the ready-made tools: their length, their content, and the number of calls to read the rest.

It also runs on older versions of the package, which did not truncate answers by their structure.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Sequence
from typing import Any

from _common import arguments, report

from mama_structs import Session, Settings
from mama_structs.settings import DescriptorSettings
from mama_structs.testing import FakeNode

PLAYERS = 120
LIMIT = 8_000
KINDS = ("player", "planet", "guild", "struct", "fleet", "reactor", "substation", "provider", "agreement", "allocation")
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "references": {"include_references": True},
    "depth 2": {"include_references": True, "reference_depth": 2},
}
# Arguments of the call that the demo's agent makes.
DEMO = {"pagination_limit": 16, "include_references": True, "reference_types": ["guild", "planet", "fleet"]}
SECTION, META, SHORTENED = "references", "references_meta", "shortened"
# The maximum number of references that a tool's answer lists.
MOST_IDS = 20
UNTRUNCATED_SETTINGS = Settings(descriptors=DescriptorSettings(enabled=False))
INNER = re.compile(r"<fd_content[^>]*>(.*)</fd_content[^>]*>", re.DOTALL)
CHECKS = ("within", "json", "keys", "lines", "joined")


def text_of(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


class Reader:
    """Reads the content behind a handle page by page, as a model does, and counts the calls."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.calls = 1

    async def text(self, handle: str) -> str:
        parts: list[str] = []
        pages = self.session.refs.get(handle).pages
        for page in range(1, pages + 1):
            said = await self.session.call("read_fd", {"fd": handle, "page": page})
            self.calls += 1
            inner = INNER.search(said)
            raw = self.session.refs.read(handle, start=page).text
            # The text between the tags may be HTML-escaped.
            if inner is None or raw.strip("\n") not in (inner[1].strip("\n"), html.unescape(inner[1]).strip("\n")):
                raise AssertionError(said[:200])
            parts.append(raw)
        return "".join(parts)

    async def payload(self, answer: Any) -> tuple[Any, bool]:
        """Reassemble the complete result from an answer and its handles. Also return True if all rows are JSON."""
        if isinstance(answer, str):
            found = re.search(r'<fd_result fd="(fd:[0-9]+)"', answer)
            return json.loads(await self.text(found[1]) if found else answer), False
        rest = dict(answer)
        cuts = rest.pop(SHORTENED, {})
        parse = True
        for pointer, cut in cuts.items():
            if pointer:
                name, value = pointer.removeprefix("/"), await self.text(cut["fd"])
                rest[name] = [json.loads(line) for line in value.split("\n")]
                number = min(cut["shown"] + 1, cut["of"])
                line = self.session.refs.read(cut["fd"], mode="line", start=number).text
                parse = parse and json.loads(line) == rest[name][number - 1]
        meta = dict(rest.get(META, {}))
        if less := meta.pop(SHORTENED, None):
            entries = [json.loads(line) for line in (await self.text(less["fd"])).split("\n")]
            rest[SECTION] = {entry["id"]: entry for entry in entries}
        if handle := meta.pop("omitted_fd", None):
            meta["omitted_ids"] = [json.loads(line) for line in (await self.text(handle)).split("\n")]
        return {key: value for key, value in (rest | {META: meta}).items() if key != META or meta}, parse


def is_same_result(joined: dict[str, Any], payload: dict[str, Any]) -> bool:
    """Return True if the rows are complete, and the references, which belong to the shown rows only, are equal."""
    added = (SECTION, META)
    rows, expected = [{key: value for key, value in one.items() if key not in added} for one in (joined, payload)]
    found = payload.get(SECTION, {})
    return rows == expected and all(found.get(key, entry) == entry for key, entry in joined.get(SECTION, {}).items())


def seen_in(answer: Any, found: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the references whose id and type are visible in an answer."""
    if isinstance(answer, str):
        text = html.unescape(answer)
        places = {key: re.search(rf'"{key}":\s*{{\s*"reference_type": "', text) for key in found}
        return {key: text[place.start() :] for key, place in places.items() if place}
    shown = {key: text_of(entry) for key, entry in answer.get(SECTION, {}).items()}
    return {key: text for key, text in shown.items() if key in found and found[key]["reference_type"] in text[:60]}


async def measure(node: Any, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, and return the figures of its answer."""
    plain = {key: value for key, value in asked.items() if not key.startswith(("include_", "reference_"))}
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:
        payload = await session.call(name, asked)
        keys = set(await session.call(name, plain))
    async with Session.open(structs=node.url) as session:
        answer = await session.call(name, asked)
        reader = Reader(session)
        joined, lines = await reader.payload(answer)
    found = payload.get(SECTION, {})
    seen = seen_in(answer, found)
    text = text_of(answer)
    try:
        is_json = isinstance(json.loads(text), dict)
    except ValueError:
        is_json = False
    return {
        "characters": len(text),
        "found": len(found),
        "visible": len(seen),
        "named": sum(str(found[key].get("name") or "") in text for key, text in seen.items()),
        "calls": reader.calls,
        "within": len(text) <= LIMIT,
        "json": is_json,
        "keys": is_json and keys <= set(answer) <= keys | {SHORTENED, SECTION, META},
        "lines": lines,
        "joined": is_same_result(joined, payload),
    }


async def first_id(node: Any, kind: str) -> str:
    """Return the id of the entity in a list whose text is longest."""
    async with Session.open(structs=node.url, settings=UNTRUNCATED_SETTINGS) as session:
        page = await session.call(f"structs_list_{kind}s", {"pagination_limit": 20})
    rows = next(value for value in page.values() if isinstance(value, list))
    return str(max(rows, key=lambda row: len(text_of(row)))["id"])


async def run(*, players: int = PLAYERS, kinds: Sequence[str] = KINDS) -> dict[str, dict[str, Any]]:
    """Measure every ready-made tool in every mode, and the demo's call."""
    done: dict[str, dict[str, Any]] = {}
    async with FakeNode.world(seed=1, players=players) as node:
        for kind in kinds:
            entity = {f"{kind}_id": await first_id(node, kind)}
            for mode, options in MODES.items():
                name, plural = f"structs_query_{kind}", f"structs_list_{kind}s"
                done[f"{name}, {mode}"] = await measure(node, name, entity | options)
                done[f"{plural}, {mode}"] = await measure(node, plural, options)
        done["the demo's call"] = await measure(node, "structs_list_players", DEMO)
    return done


def main() -> None:
    options = arguments(__doc__ or "")
    done = asyncio.run(run(players=12, kinds=KINDS[:2]) if options.quick else run())
    rows = [
        [
            name,
            f"{one['characters']:,}",
            f"{one['visible']}/{one['found']}",
            str(one["named"]),
            str(one["calls"]),
            *("yes" if one[check] else "NO" for check in CHECKS),
        ]
        for name, one in done.items()
    ]
    total = {key: sum(one[key] for one in done.values()) for key in next(iter(done.values()))}
    counted = [f"{total[check]}/{len(done)}" for check in CHECKS]
    figures = [f"{total['characters']:,}", f"{total['visible']}/{total['found']}", f"{total['named']}"]
    rows.append(["all", *figures, str(total["calls"]), *counted])
    header = ["call", "characters", "visible", "named", "calls", *CHECKS]
    title = f"What a model reads of the ready-made tools, of {LIMIT:,} characters at the most"
    report("answers", title, header, rows, figures=done, folder=options.results, words=1)


if __name__ == "__main__":
    main()
