"""What SECURITY.md and the metadata of the package say."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
POLICY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_security_policy_has_no_address():
    """Reports go to the hosting platform: no URL and no mail address is made up."""
    assert [] == re.findall(r"\S*://\S*|\S+@\S+", POLICY)
    assert "private vulnerability report" in POLICY


def test_security_policy_names_tests_that_exist():
    """Each test and page that the policy names is in the repository."""
    named = re.findall(r"`((?:tests|docs)/\S+)`", POLICY)

    assert named
    assert [] == [name for name in named if not (ROOT / name).is_file()]


def test_metadata_names_the_contributors_as_authors():
    """The author of the package is its contributors."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert [{"name": "mama-structs contributors"}] == metadata["project"]["authors"]
