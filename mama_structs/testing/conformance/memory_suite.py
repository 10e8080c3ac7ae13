"""
Conformance kit for memory stores. It checks that acknowledged data is not lost and that deleted data is not returned.

A small class, a `StoreDriver`, describes the store under test.
A subclass of `MemoryStoreSuite` with this class as its driver is a test suite for pytest; ``python -m
mama_structs.testing.conformance.memory_suite module:Class`` runs the same checks without pytest, and prints a table.

Each check opens the store in separate processes, and kills some of them.
A check for a capability that the store lacks is skipped and reported with the reason.
Needs a POSIX system.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

import attrs

from mama_structs.errors import InvalidArgument
from mama_structs.testing.conformance.checks import CAPABILITIES, CHECKS, Capability, Check, ConformanceRun
from mama_structs.testing.conformance.process import StoreFailed, load_driver, make_driver_spec

__all__ = ["Capability", "CheckResult", "MemoryStoreSuite", "StoreDriver", "main"]

_REQUIRED_METHODS: Final = ("open", "save", "get", "all", "search", "close")
_METHOD_CAPABILITIES: Final = {"delete": "deleting", "replace": "replacing"}


class StoreDriver(Protocol):
    """
    Interface between this kit and a store; any class with these methods is accepted.

    The kit calls the class without arguments, in a separate process that opens one store.
    Each method may be synchronous or async. Any exception counts as a rejection.
    Other processes import the class, so it must be defined at module level.
    """

    lacks: ClassVar[Mapping[Capability, str]] = {}
    """
    Capabilities that the store lacks, each with the reason. Checks that need one of them are excused.

    ``"deleting"``, ``"replacing"``, ``"durability"`` (the store writes nothing to a disk), ``"full_disk"`` (its files
    are elsewhere), ``"two_writers"``, ``"isolation"``, ``"scoped_ids"`` (an id identifies a memory in any namespace),
    ``"forgetting"``, ``"time_travel"``, ``"filters"``.
    """

    def open(self, location: str, /) -> Awaitable[None] | None:
        """
        Open the store at a path that may not exist yet.

        A suite may override `MemoryStoreSuite.location` to pass something else, such as a server's address.

        Args:
            location: The location of the store.

        Returns:
            None, or an awaitable.

        """

    def save(
        self,
        namespace: str,
        id: str,  # noqa: A002 - the usual name
        text: str,
        metadata: Mapping[str, str],
        /,
    ) -> Awaitable[str | None] | str | None:
        """
        Save a text. Return when the store has acknowledged it.

        Args:
            namespace: The namespace of the text: any short string without a dot.
            id: An id that is not yet used in this namespace.
            text: One line of words.
            metadata: Two entries: ``topic`` is any word, and ``kind`` is ``"context"`` or ``"decision"``.

        Returns:
            The store's own id, or None if it uses the given *id*.

        """

    def get(self, namespace: str, id: str, /) -> Awaitable[str | None] | str | None:  # noqa: A002 - as above
        """
        Return the text of the memory with this id, or None if there is no such memory.

        Args:
            namespace: The namespace of the memory.
            id: The id of the memory.

        """

    def all(self, namespace: str, /) -> Awaitable[Iterable[tuple[str, str]]] | Iterable[tuple[str, str]]:
        """Return the ids and texts of all memories of a namespace."""

    def search(
        self,
        namespace: str,
        query: str,
        /,
        *,
        limit: int,
        where: Mapping[str, str] = {},
        as_of: datetime | None = None,
    ) -> Awaitable[Iterable[tuple[str, str]]] | Iterable[tuple[str, str]]:
        """
        Return the ids and texts of the hits, best first.

        Args:
            namespace: The namespace to search.
            query: Words separated by spaces.
            limit: Maximum number of hits.
            where: Metadata values that each hit must have. Passed only for a filtered search.
            as_of: A past time in UTC: search the memories as they were then. Passed only for a search of the past.

        """

    def replace(self, namespace: str, id: str, text: str, /) -> Awaitable[None] | None:  # noqa: A002 - as above
        """
        Replace the text of the memory with this id. Required unless `lacks` contains ``"replacing"``.

        Args:
            namespace: The namespace of the memory.
            id: The id of the memory.
            text: The text.

        Returns:
            None, or an awaitable.

        """

    def delete(self, namespace: str, id: str, /) -> Awaitable[None] | None:  # noqa: A002 - as above
        """
        Delete the memory with this id. Required unless `lacks` contains ``"deleting"``.

        If the store has a separate call for permanent erasure, the driver may add a method ``forget`` with the same
        arguments.

        Args:
            namespace: The namespace of the memory.
            id: The id of the memory.

        Returns:
            None, or an awaitable.

        """

    def close(self) -> Awaitable[None] | None:
        """
        Close the store.

        Returns:
            None, or an awaitable.

        """


@attrs.frozen
class CheckResult:
    """
    Result of a check.

    Args:
        name: The name of the check.
        sentence: The property that the check verifies.
        outcome: ``"passed"``, ``"failed"`` or ``"excused"``.
        findings: The problems, one line each, without texts of memories.
        reason: The reason for ``"excused"``: the capability that the store lacks.
        seed: The random seed. The same seed repeats the check, except for the timing of processes.

    """

    name: str
    sentence: str
    outcome: Literal["passed", "failed", "excused"]
    findings: tuple[str, ...] = ()
    reason: str | None = None
    seed: int = 0

    def __str__(self) -> str:
        lines = [f"{self.outcome:<7}  {self.sentence}", *(f"         {one}" for one in self.findings)]
        return "\n".join([*lines, *([] if self.reason is None else [f"         {self.reason}"])])


class MemoryStoreSuite:
    """
    The checks as pytest tests.

    Subclass it with a name that begins with ``Test``, and set *driver*.
    Each test opens the store below its own ``tmp_path``, and fails with one line per problem. It is skipped, with
    the reason, if the store lacks a needed capability.

    Raises:
        InvalidArgument: The driver has missing methods, or an unknown capability in *lacks*.

    """

    driver: ClassVar[type | str] = ""
    """The `StoreDriver` class, or ``module:Class``, or ``path/to/file.py:Class``."""
    rounds: ClassVar[int] = 4
    """The number of times that a writing process is killed."""
    seed: ClassVar[int | None] = None
    """The random seed. The same seed repeats the plan of a check; None chooses a new seed for each check."""

    def location(self, tmp_path: Path) -> str:
        """Return the argument for the driver's ``open``. By default, it is a path that does not exist yet."""
        return str(tmp_path / "store")

    def result_of(self, name: str, place: Path, *, prefix: str = "") -> CheckResult:
        """
        Run a check, and return its result.

        Args:
            name: The name of the check, which is the name of its test without ``test_``.
            place: An existing directory in which the check creates its files.
            prefix: The prefix of all namespaces; needed if several checks share a store.

        Raises:
            InvalidArgument: No check has this name.

        """
        if name not in CHECKS:
            raise InvalidArgument(f"name must be one of {', '.join(CHECKS)}, got {name!r:.80}")
        check, lacks = CHECKS[name], _check_driver(self.driver)
        seed = random.randrange(2**32) if self.seed is None else self.seed  # noqa: S311 - not used for security
        reason = check.find_excuse(lacks)
        if reason is not None:
            return CheckResult(name, check.sentence, "excused", reason=reason, seed=seed)
        trial = ConformanceRun(
            make_driver_spec(self.driver), self.location(place), place, seed, self.rounds, lacks, prefix
        )
        try:
            check.run(trial)
        except StoreFailed as failed:
            trial.add_finding(str(failed))
        outcome: Literal["passed", "failed"] = "failed" if trial.findings else "passed"
        return CheckResult(name, check.sentence, outcome, tuple(trial.findings), seed=seed)


def _check_driver(driver: type | str) -> dict[str, str]:
    """
    Return the capabilities that a driver's store lacks, with the reasons.

    Raise `InvalidArgument` for an invalid driver.
    """
    kind = load_driver(driver) if isinstance(driver, str) else driver
    lacks = dict(getattr(kind, "lacks", {}))
    for capability, reason in lacks.items():
        if capability not in CAPABILITIES:
            raise InvalidArgument(f"lacks must name one of {', '.join(CAPABILITIES)}, got {capability!r:.80}")
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidArgument(f"lacks[{capability!r}] must be the reason, got {reason!r:.80}")
    needed = [
        *_REQUIRED_METHODS,
        *(name for name, capability in _METHOD_CAPABILITIES.items() if capability not in lacks),
    ]
    if missing := [name for name in needed if not callable(getattr(kind, name, None))]:
        raise InvalidArgument(
            f"the driver {kind.__name__} has no {', '.join(missing)}",
            hint="see mama_structs.testing.conformance.memory_suite.StoreDriver",
        )
    return lacks


def _make_test(check: Check) -> Callable[[MemoryStoreSuite, Path], None]:
    def test(self: MemoryStoreSuite, tmp_path: Path) -> None:
        import pytest  # noqa: PLC0415 - the command does not need pytest

        result = self.result_of(check.name, tmp_path)
        if result.outcome == "excused":
            pytest.skip(f"excused: {result.reason}")
        if result.outcome == "failed":
            pytest.fail(
                "\n".join([f"not so: {result.sentence}", *result.findings, f"seed {result.seed}"]), pytrace=False
            )

    test.__name__ = f"test_{check.name}"
    test.__qualname__ = f"MemoryStoreSuite.test_{check.name}"
    test.__doc__ = f"{check.sentence}."
    return test


for _one in CHECKS.values():
    setattr(MemoryStoreSuite, f"test_{_one.name}", _make_test(_one))


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks of a store, print the results, and return 0 if none failed."""
    parser = argparse.ArgumentParser(
        "python -m mama_structs.testing.conformance.memory_suite", description=(__doc__ or "").strip().split("\n")[0]
    )
    parser.add_argument(
        "driver", nargs="?", default="mama_structs.testing.conformance.session_driver:SessionDriver",
        help="module:Class or file.py:Class (ours: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--location", help="a server's address; checks then share what is there (a directory each)")
    parser.add_argument("--only", nargs="+", choices=[*CHECKS], default=[*CHECKS], metavar="CHECK", help="some checks")
    parser.add_argument("--rounds", type=int, default=MemoryStoreSuite.rounds, help="kills (%(default)s)")
    parser.add_argument("--seed", type=int, help="repeats the plan of a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    given = parser.parse_args(argv)
    seed = random.randrange(2**32) if given.seed is None else given.seed  # noqa: S311 - not used for security
    members: dict[str, Any] = {"driver": given.driver, "rounds": given.rounds, "seed": seed}
    if given.location is not None:
        members["location"] = lambda _self, _place: given.location
    suite: MemoryStoreSuite = type("CommandSuite", (MemoryStoreSuite,), members)()
    results = []
    _print_line(f"seed {seed}")
    for name in given.only:
        with tempfile.TemporaryDirectory(prefix="mama-structs-suite-", ignore_cleanup_errors=True) as place:
            prefix = "" if given.location is None else f"{uuid.uuid4().hex[:8]}-{name}-"
            results.append(suite.result_of(name, Path(place), prefix=prefix))
        _print_line(str(results[-1]))
    counts = {word: sum(one.outcome == word for one in results) for word in ("passed", "failed", "excused")}
    _print_line(", ".join(f"{count} {word}" for word, count in counts.items()))
    if given.json is not None:
        given.json.write_text(json.dumps([attrs.asdict(one) for one in results], indent=1), encoding="utf-8")
    return 1 if counts["failed"] else 0


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
