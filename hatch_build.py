"""Metadata of the built package that depends on the address of the repository: the README's links and the URLs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The end of a link, or an image, in Markdown whose target is a path in the repository. A link can contain an image.
RELATIVE_LINK = re.compile(r"(?P<image>!\[[^\[\]]*)?\]\((?![a-z]+:|#)(?P<path>[^)\s]+)")


class RepositoryHook(MetadataHookInterface):
    """
    Set the readme and the project URLs from ``repository`` in the section of this hook in pyproject.toml.

    Without an address, the readme is unchanged and the package has no URLs. scripts/release.py then rejects a release.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the two dynamic fields."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = str(self.config.get("repository", "")).rstrip("/")
        if repository:
            tag = f"v{metadata['version']}"
            text = make_links_absolute(text, repository, tag)
            metadata["urls"] = make_urls(repository, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def make_links_absolute(text: str, repository: str, tag: str) -> str:
    """
    Return the Markdown text with links to the files of a release in the repository.

    A package index shows the README without the repository, so relative links and images are broken there. GitHub
    and GitLab serve ``/blob/TAG/PATH`` as a page and ``/raw/TAG/PATH`` as a file.
    """

    def absolute(found: re.Match[str]) -> str:
        view = "raw" if found["image"] else "blob"
        return f"{found['image'] or ''}]({repository}/{view}/{tag}/{found['path']}"

    return RELATIVE_LINK.sub(absolute, text)


def make_urls(repository: str, tag: str) -> dict[str, str]:
    """Return the project URLs, with the labels that package indexes recognize."""
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Security": f"{repository}/blob/{tag}/SECURITY.md",
    }
