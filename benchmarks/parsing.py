"""
The cost of parsing refs, compared with a regular expression and html.parser.

Inputs are parsed as a whole and in chunks. Some inputs are hostile.
"""

from __future__ import annotations

import gc
import re
import time
from html.parser import HTMLParser
from typing import Any

from _common import arguments, compared, report, take_turns

from mama_structs import RefParser

# The pattern that the earlier system applied to the complete answer of a model.
EXPRESSION = re.compile(r'<ref\s+id="([^"]+)"[^>]*>(.*?)</ref>', re.DOTALL)
LIMIT = 2.0  # Maximum seconds for one text, because the time of a rival may be quadratic in the length.
CHUNK = 65_536

PROSE = """Some prose about guilds and planets, with `inline code` here and there, as models write it, then a < b and more.
* a list item with **bold** words, [a link](https://example.org/page) and `another_name` in it
  and more of the text, which goes on for a while without anything special at all, as most text does

"""
ANSWER = (
    PROSE * 5
    + f'<ref id="plan" type="text">\nThe plan is to build a shield first.\n{PROSE * 2}</ref>\n\n```python\n'
    + "    energy = capacity(planet) < 3\n" * 10
    + "```\n\n"
)

# Functions that return a hostile text of about *size* characters.
HOSTILE = {
    "unclosed refs": lambda size: "".join(f'<ref id="a{n}">x' for n in range(size // 15)),
    "tags cut off": lambda size: '<ref id="a' * (size // 10),
    "<": lambda size: "<" * size,
    "<ref ": lambda size: "<ref " * (size // 5),
    "<ref and quotes": lambda size: """<ref "<ref '""" * (size // 12),
    "values that take in tags": lambda size: """<ref a='<ref b=\"""" * (size // 16),
    "one run of backticks": lambda size: "`" * size,
    "backticks and spaces": lambda size: "` " * (size // 2),
    "runs of growing length": lambda size: "x".join("`" * n for n in range(1, int((2 * size) ** 0.5))),
    "runs that meet no other": lambda size: "x".join("`" * (n % 44 + 1) for n in range(size // 24)),
    "tags in unclosed code": lambda size: '` <ref id="a"/>\n' * (size // 16),
    "a fence full of tags": lambda size: "```\n" + "<ref " * (size // 5),
    "stray closing tags": lambda size: "</ref>" * (size // 6),
}


def answer(size: int) -> str:
    return ANSWER * (size // len(ANSWER) + 1)


def parse(text: str, size: int | None = None) -> None:
    """Parse a text in chunks of *size* characters, and discard the events."""
    parser = RefParser()
    if size is None:
        parser.feed(text)
    else:
        for start in range(0, len(text), size):
            parser.feed(text[start : start + size])
    parser.close()


class RefsOfHtml(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((tag, None))

    def handle_data(self, data: str) -> None:
        self.found.append(("", data))


def parse_html(text: str, size: int | None = None) -> None:
    parser = RefsOfHtml()
    if size is None:
        parser.feed(text)
    else:
        for start in range(0, len(text), size):
            parser.feed(text[start : start + size])
    parser.close()


def parse_expression(text: str) -> None:
    EXPRESSION.findall(text)


def prose(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Compare the throughput in MB/s on a typical answer of a model, and the times with the regular expression."""
    text = answer(size)
    seconds = take_turns(
        {
            "one regular expression, whole": lambda: parse_expression(text),
            "html.parser, whole": lambda: parse_html(text),
            "html.parser, 7 characters": lambda: parse_html(text, 7),
            "RefParser, whole": lambda: parse(text),
            "RefParser, 7 characters": lambda: parse(text, 7),
            "RefParser, 1 character": lambda: parse(text, 1),
        },
        rounds,
    )
    figures = compared(seconds, "one regular expression, whole")
    for own in figures.values():
        own["characters"] = len(text)
        own["mb_per_second"] = len(text) / own["min"] / 1e6
    return figures


def _best(run: Any, text: str, rounds: int) -> float:
    return min(take_turns({"": lambda: run(text)}, rounds)[""])


def _rival(run: Any, make: Any, size: int) -> dict[str, float]:
    """Time a rival on texts that grow by a factor of ten, until a larger text could exceed the time limit."""
    figures: dict[str, float] = {}
    length = min(size, 1_000)
    while True:
        text = make(length)
        started = time.perf_counter()
        run(text)
        took = time.perf_counter() - started
        figures = {"characters": len(text), "seconds": took, "mb_per_second": len(text) / took / 1e6}
        if length >= size or took * 100 > LIMIT:
            return figures
        length = min(size, length * 10)


def hostile(size: int, rounds: int) -> dict[str, dict[str, Any]]:
    """
    Time each hostile text at full size, at a tenth of the size, and at a tenth in chunks of one character.

    The rivals are timed as well, within their time limit.
    Garbage collection is off meanwhile, because it would traverse all stored events repeatedly.
    """
    figures = {}
    gc.disable()
    for name, make in HOSTILE.items():
        short, long = make(size // 10), make(size)
        seconds = [_best(lambda text: parse(text, CHUNK), text, rounds) for text in (short, long)]
        chunked = _best(lambda text: parse(text, 1), short, 1)
        figures[name] = {
            "characters": len(long),
            "seconds": seconds[1],
            "mb_per_second": len(long) / seconds[1] / 1e6,
            "ten_times_as_much": seconds[1] / seconds[0] * len(short) * 10 / len(long),
            "one_character_mb_per_second": len(short) / chunked / 1e6,
            "one regular expression": _rival(parse_expression, make, size),
            "html.parser": _rival(parse_html, make, size),
        }
    gc.enable()
    return figures


def main() -> None:
    options = arguments(__doc__ or "")
    size, rounds = (4_000, 1) if options.quick else (1_000_000, 9)
    usual = prose(size, rounds)
    hard = hostile(size, min(rounds, 5))
    rows = [
        ["an answer", name, f"{own['mb_per_second']:.2f}", f"{own['characters']:,}", f"{own['min_ratio']:.2f}", ""]
        for name, own in usual.items()
    ]
    for name, own in hard.items():
        times = f"{own['ten_times_as_much']:.1f}"
        rows.append([name, "RefParser, 64 Ki", f"{own['mb_per_second']:.2f}", f"{own['characters']:,}", "", times])
        rows.append([name, "RefParser, 1 character", f"{own['one_character_mb_per_second']:.2f}", "", "", ""])
        for rival in ("one regular expression", "html.parser"):
            its = own[rival]
            ratio = f"{its['mb_per_second'] / own['mb_per_second']:.2f}"
            rows.append([name, rival, f"{its['mb_per_second']:.2f}", f"{its['characters']:,}", ratio, ""])
    report(
        "parsing",
        f"Answers and hostile texts of {size / 1e6:g} million characters; MB are millions of characters a second.\n"
        "64 Ki: in chunks of 65,536 characters, the events dropped.\n"
        "Time ratio: for an answer, of the time for the same text, to the regular expression's; for hostile texts, of our\n"
        "time for a character to the rival's (rivals stop at the length that would take them too long).\n"
        "x10: how much longer ten times as much takes.\n"
        "Targets: whole at least 50 MB/s, 7 characters at least 2 MB/s, x10 at most 12.",
        ("text", "what", "MB/s", "characters", "time ratio", "x10"),
        rows,
        figures={"answer": usual, "hostile": hard},
        folder=options.results,
    )


if __name__ == "__main__":
    main()
