"""
A conformance kit for memory stores, whoever made them: what was acknowledged is kept, and what was deleted is gone.

A store is described by a small class, a `StoreDriver`.
A subclass of `MemoryStoreSuite` that names it is a suite of tests for pytest; ``python -m
mama_structs.testing.conformance.memory_suite module:Class`` runs the same without pytest, and prints a table.

Each check opens the store in processes of its own, and kills some of them.
What a store says that it lacks is excused, with its reason, and shown so.
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
from mama_structs.testing.conformance.checks import CAPABILITIES, CHECKS, Capability, Check, Trial
from mama_structs.testing.conformance.process import StoreFailed, load, spec_of

__all__ = ["Capability", "CheckResult", "MemoryStoreSuite", "StoreDriver", "main"]

_NEEDED: Final = ("open", "save", "get", "all", "search", "close")
_WITH: Final = {"delete": "deleting", "replace": "replacing"}


class StoreDriver(Protocol):
    """
    What the kit asks of a store; a class of any kind that has these methods will do.

    It is made without arguments, in a process of its own, which opens one store and ends.
    Each method may be plain or async. Whatever it raises counts as a refusal.
    Other processes import the class, so it stands at the top of a module.
    """

    lacks: ClassVar[Mapping[Capability, str]] = {}
    """
    What the store cannot do, each with the reason: its checks are excused.

    ``"deleting"``, ``"replacing"``, ``"durability"`` (it keeps nothing on a disk), ``"full_disk"`` (its files are
    elsewhere), ``"two_writers"``, ``"isolation"``, ``"scoped_ids"`` (an id is enough, of whatever namespace),
    ``"forgetting"``, ``"time_travel"``, ``"filters"``.
    """

    def open(self, location: str, /) -> Awaitable[None] | None:
        """Open the store at a path, where there may be none yet, or at whatever the suite's `location` gives."""

    def save(
        self,
        namespace: str,
        id: str,  # noqa: A002 - the usual name
        text: str,
        metadata: Mapping[str, str],
        /,
    ) -> Awaitable[str | None] | str | None:
        """
        Save a text, and return when it is acknowledged.

        Args:
            namespace: Whose it is: any short text without a dot.
            id: The id for it; it was never used in this namespace.
            text: One line of words.
            metadata: ``topic``, any word, and ``kind``, which is ``"context"`` or ``"decision"``.

        Returns:
            The id by which the store knows it, where that is its own; None for the one that was given.

        """

    def get(self, namespace: str, id: str, /) -> Awaitable[str | None] | str | None:  # noqa: A002 - as above
        """Return the text of an id, None where there is none."""

    def all(self, namespace: str, /) -> Awaitable[Iterable[tuple[str, str]]] | Iterable[tuple[str, str]]:
        """Return the id and the text of all that a namespace has."""

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
        Return the id and the text of what is found, best first.

        Args:
            namespace: Where to search.
            query: Some words.
            limit: Hits at the most.
            where: What the metadata must be, each as given; not passed where there is none.
            as_of: The time (in UTC) as of which to search; not passed where it is now.

        """

    def replace(self, namespace: str, id: str, text: str, /) -> Awaitable[None] | None:  # noqa: A002 - as above
        """Give an id another text; needed unless the store lacks ``"replacing"``."""

    def delete(self, namespace: str, id: str, /) -> Awaitable[None] | None:  # noqa: A002 - as above
        """
        Delete an id; needed unless the store lacks ``"deleting"``.

        A driver may have ``forget``, with the same arguments, for a store that deletes for good by another call.
        """

    def close(self) -> Awaitable[None] | None:
        """Close the store."""


@attrs.frozen
class CheckResult:
    """
    What became of a check.

    Args:
        name: The check's.
        sentence: What it shows where it passes.
        outcome: ``"passed"``, ``"failed"`` or ``"excused"``.
        findings: What is wrong, a line each; it holds no text of a memory.
        reason: Why it is excused.
        seed: Repeats it, as far as processes run alike.

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
    The checks as tests of pytest: a subclass whose name begins with ``Test`` names a *driver*.

    Each test opens the store below its own ``tmp_path``, fails with what is wrong, a line each, and is skipped, with
    the reason, where the store says that it lacks something.

    Raises:
        InvalidArgument: The driver has not what it needs, or lacks what is no capability.

    """

    driver: ClassVar[type | str] = ""
    """The `StoreDriver`'s class, or ``module:Class``, or ``path/to/file.py:Class``."""
    rounds: ClassVar[int] = 4
    """How often a writing process is killed."""
    seed: ClassVar[int | None] = None
    """Repeats the plan of a run; None for another one each time."""

    def location(self, tmp_path: Path) -> str:
        """Return what a driver's ``open`` is given: a path at which there is nothing, unless a subclass says else."""
        return str(tmp_path / "store")

    def result_of(self, name: str, place: Path, *, prefix: str = "") -> CheckResult:
        """
        Run a check, and return what became of it.

        Args:
            name: The name of its test, without ``test_``.
            place: A directory for what the check writes, which is the caller's.
            prefix: The beginning of all namespaces, where checks share a store.

        """
        if name not in CHECKS:
            raise InvalidArgument(f"name must be one of {', '.join(CHECKS)}, got {name!r:.80}")
        check, lacks = CHECKS[name], _lacks(self.driver)
        seed = random.randrange(2**32) if self.seed is None else self.seed  # noqa: S311 - not used for security
        reason = check.excuse(lacks)
        if reason is not None:
            return CheckResult(name, check.sentence, "excused", reason=reason, seed=seed)
        trial = Trial(spec_of(self.driver), self.location(place), place, seed, self.rounds, lacks, prefix)
        try:
            check.run(trial)
        except StoreFailed as failed:
            trial.note(str(failed))
        outcome: Literal["passed", "failed"] = "failed" if trial.findings else "passed"
        return CheckResult(name, check.sentence, outcome, tuple(trial.findings), seed=seed)


def _lacks(driver: type | str) -> dict[str, str]:
    """Return what a store lacks; a driver that cannot be used is refused."""
    kind = load(driver) if isinstance(driver, str) else driver
    lacks = dict(getattr(kind, "lacks", {}))
    for capability, reason in lacks.items():
        if capability not in CAPABILITIES:
            raise InvalidArgument(f"lacks must name one of {', '.join(CAPABILITIES)}, got {capability!r:.80}")
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidArgument(f"lacks[{capability!r}] must be the reason, got {reason!r:.80}")
    needed = [*_NEEDED, *(name for name, capability in _WITH.items() if capability not in lacks)]
    if missing := [name for name in needed if not callable(getattr(kind, name, None))]:
        raise InvalidArgument(
            f"the driver {kind.__name__} has no {', '.join(missing)}",
            hint="see mama_structs.testing.conformance.memory_suite.StoreDriver",
        )
    return lacks


def _test_of(check: Check) -> Callable[[MemoryStoreSuite, Path], None]:
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
    setattr(MemoryStoreSuite, f"test_{_one.name}", _test_of(_one))


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks of a store, print what became of each, and return 0 where none failed."""
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
    _say(f"seed {seed}")
    for name in given.only:
        with tempfile.TemporaryDirectory(prefix="mama-structs-suite-", ignore_cleanup_errors=True) as place:
            prefix = "" if given.location is None else f"{uuid.uuid4().hex[:8]}-{name}-"
            results.append(suite.result_of(name, Path(place), prefix=prefix))
        _say(str(results[-1]))
    counts = {word: sum(one.outcome == word for one in results) for word in ("passed", "failed", "excused")}
    _say(", ".join(f"{count} {word}" for word, count in counts.items()))
    if given.json is not None:
        given.json.write_text(json.dumps([attrs.asdict(one) for one in results], indent=1), encoding="utf-8")
    return 1 if counts["failed"] else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
