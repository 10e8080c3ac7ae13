"""Run tests of the HNSW graph with both libraries."""

import pytest

from mama_structs.memory.engines.local.views import hnsw
from mama_structs.memory.engines.local.views.hnsw_libraries import LIBRARIES

# Code for a child process, so that it uses the library of the test.
CODE_OF_CHILD = {"hnswlib": "", "voyager": "import sys\nsys.modules['hnswlib'] = None\n"}


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.library)
def library(request, monkeypatch):
    """Use one library for all graphs. Return its name."""
    pytest.importorskip(request.param.library, reason=f"{request.param.library} is not installed")
    monkeypatch.setattr(hnsw, "find_library", lambda: request.param)
    return request.param.library


@pytest.fixture
def child_code(library):
    """Return the first lines of a child process that uses the same library as the test."""
    return CODE_OF_CHILD[library]
