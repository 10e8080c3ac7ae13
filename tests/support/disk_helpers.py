"""A small file system that tests fill."""

from __future__ import annotations

import contextlib
import subprocess

import pytest


class SmallDisk:
    """A mounted file system in memory. Its *path* is the directory where it is mounted."""

    def __init__(self, path):
        self.path = path
        self._ballast = path / "ballast"

    @classmethod
    @contextlib.contextmanager
    def mount(cls, path, *, size):
        """Mount a disk of *size* bytes in the new directory *path*. Skip the test if the user cannot mount."""
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this user cannot mount a small file system")
        try:
            yield cls(path)
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)

    def fill(self):
        """Write to a file until the disk is full."""
        with self._ballast.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(4096)):
                pass

    def free(self):
        """Delete the file that `fill` wrote."""
        self._ballast.unlink()
