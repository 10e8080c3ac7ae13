"""The import error of an adapter without its framework says what to install."""

from __future__ import annotations

import importlib
import re
import sys

import pytest


@pytest.mark.parametrize(
    ("adapter", "framework", "extra"),
    [
        ("agent_framework.providers", "agent_framework", "agent-framework"),
        ("anthropic.memory_backend", "anthropic", "anthropic"),
        ("openai_agents.session", "agents", "openai-agents"),
    ],
)
def test_missing_framework_names_the_extra(monkeypatch, adapter, framework, extra):
    """The error contains a pip command, and no partially imported module remains."""
    module = f"mama_structs.adapters.{adapter}"
    for name in [framework, *(name for name in sys.modules if name.startswith(f"{framework}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, module, raising=False)

    with pytest.raises(ImportError, match=re.escape(f"pip install 'mama-structs[{extra}]'")):
        importlib.import_module(module)
    assert module not in sys.modules
