"""SECURITY.md and the package's metadata agree."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
POLICY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_security_policy_has_no_address():
    """Reports go to the hosting platform."""
    assert [] == re.findall(r"\S*://\S*|\S+@\S+", POLICY)
    assert "private vulnerability report" in POLICY


def test_security_policy_names_tests_that_exist():
    named = re.findall(r"`((?:tests|docs)/\S+)`", POLICY)

    assert named
    assert [] == [name for name in named if not (ROOT / name).is_file()]


def test_metadata_names_the_contributors_as_authors():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert [{"name": "mama-structs contributors"}] == metadata["project"]["authors"]
