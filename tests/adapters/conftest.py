"""Records the results of the tests of framework behaviours."""

from __future__ import annotations

from behaviour_table import create_recorder


def pytest_configure(config):
    """Register the recorder, if the environment asks to write the table."""
    if recorder := create_recorder():
        config.pluginmanager.register(recorder)


def pytest_collection_modifyitems(items):
    """Add the cells of each test to its reports."""
    for item in items:
        for mark in item.iter_markers("behaviour"):
            item.user_properties.append(("behaviour", (mark.kwargs["row"], mark.kwargs["framework"])))
