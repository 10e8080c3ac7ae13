"""Choice of the HNSW library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mama_structs
from mama_structs.memory.engines.local.views import hnsw_libraries
from mama_structs.memory.engines.local.views.hnsw import GraphError, HnswGraph
from mama_structs.memory.engines.local.views.hnsw_libraries import HnswlibIndex, VoyagerIndex, find_library


@pytest.fixture
def missing(monkeypatch):
    """Return a dict: the error that the import of a library raises. Others can be imported."""
    errors = {}

    def load(name):
        if name in errors:
            raise errors[name]

    monkeypatch.setattr(hnsw_libraries, "load_module", load)
    find_library.cache_clear()
    yield errors
    find_library.cache_clear()


def test_hnswlib_is_preferred_where_installed(missing):
    assert HnswlibIndex is find_library()


def test_voyager_is_used_without_hnswlib(missing, caplog):
    missing["hnswlib"] = ModuleNotFoundError()

    assert VoyagerIndex is find_library()
    assert "" == caplog.text


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_voyager_is_used_if_hnswlib_is_broken(missing, caplog, error):
    """A native module for another processor can raise any error. It is logged once."""
    missing["hnswlib"] = error("not for this processor")

    assert [VoyagerIndex, VoyagerIndex] == [find_library(), find_library()]
    assert 1 == caplog.text.count("hnswlib is installed, but cannot be imported")


def test_missing_libraries_are_logged_once(missing, caplog):
    """Without a library no graph can be created."""
    missing |= {"hnswlib": ModuleNotFoundError(), "voyager": ModuleNotFoundError()}

    assert [None, None] == [find_library(), find_library()]
    assert 1 == caplog.text.count("neither voyager nor hnswlib can be imported")
    with pytest.raises(GraphError, match="no HNSW library"):
        HnswGraph(8)


def test_name_of_library_is_valid_in_file_names(monkeypatch):
    monkeypatch.setattr(hnsw_libraries, "read_version", lambda library: "2.10.0rc1+Local.build-20261129")

    assert "voyager_2_10_0rc1_local_b" == hnsw_libraries.name_library(VoyagerIndex)


def test_version_of_library_that_is_not_installed_is_unknown():
    hnsw_libraries.read_version.cache_clear()

    assert "unknown" == hnsw_libraries.read_version("no-such-library")


def test_libraries_are_imported_lazily():
    """Importing the package's vector modules loads no native library."""
    code = "import sys, mama_structs.memory.engines.local.views.vector_index; print({'hnswlib', 'voyager'} & {*sys.modules})"
    environment = os.environ | {"PYTHONPATH": str(Path(mama_structs.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)

    assert "set()\n" == done.stdout
