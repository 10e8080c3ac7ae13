"""Entry point of ``mama-structs``. Imports are lazy, because a hook must start fast."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    Args:
        arguments: The arguments after the command's name; by default those of this process.

    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["hook"] and not {"-h", "--help"} & {*given}:
        from mama_structs.cli.hook import answer_hook  # noqa: PLC0415 - imported lazily, because a hook must start fast

        return answer_hook(given[1:])
    try:
        from mama_structs.cli.command_table import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        # The exit code that shells report for SIGINT.
        return 130
    return run(given)
