"""Spans, metrics and logs follow the OpenTelemetry conventions and contain no user content."""

from __future__ import annotations

import collections
import json
import logging
import subprocess
import sys

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mama_structs import HashEmbedder, Session, with_references
from mama_structs.adapters.shared.tool_results import answer_tool_call
from mama_structs.errors import MemoryNotFound
from mama_structs.settings import Settings, TelemetrySettings
from mama_structs.testing import FakeSource

CANARY = "xyzzy"
WORDS = f"the {CANARY} holds"


class ExportedTelemetry:
    """The data that the OpenTelemetry exporters receive."""

    def __init__(self, monkeypatch):
        self.spans = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracers, meters = TracerProvider(), MeterProvider([self.reader])
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)

    def of(self, name):
        return [dict(span.attributes) for span in self.spans.get_finished_spans() if span.name == name]

    @property
    def names(self):
        return {span.name for span in self.spans.get_finished_spans()}

    @property
    def text(self):
        spans = [span.to_json() for span in self.spans.get_finished_spans()]
        return "\n".join([*spans, self.reader.get_metrics_data().to_json()])

    @property
    def points(self):
        (resource,) = json.loads(self.reader.get_metrics_data().to_json())["resource_metrics"]
        (scope,) = resource["scope_metrics"]
        counts = collections.Counter()
        for metric in scope["metrics"]:
            for point in metric["data"]["data_points"]:
                counts[metric["name"], point["attributes"]["gen_ai.operation.name"]] += point["count"]
        return counts


@pytest.fixture
def told(monkeypatch):
    return ExportedTelemetry(monkeypatch)


@pytest.fixture
async def session():
    source = FakeSource({"2-1": {"id": "2-1", "name": WORDS}})
    async with Session.open(structs=source, embedder=HashEmbedder(), conversation="talk") as session:
        yield session


async def live(session):
    """Run many operations of a session with secret words in all texts, ignoring errors of tools."""

    @session.tools.add
    @with_references
    async def look(what: str) -> dict[str, str]:
        """Look something up."""
        return {"planetId": "2-1", "fleetId": "1-1", what: what}

    @session.tools.add
    async def fail(what: str) -> str:
        """Raise an error."""
        raise RuntimeError(what)

    made = await session.call("save/decision", {"topic": CANARY, "decision": WORDS, "reasoning": WORDS})
    await session.call("look", {"what": WORDS, "include_references": True})
    await session.memories.save_many([{"type": "context", "content": f"{WORDS} {n}"} for n in range(3)])
    await session.memories.search(WORDS)
    await session.recall(f"what of {WORDS}?")
    await session.memories.set_outcome(made["id"], "FAILED", reason=WORDS)
    await session.memories.delete(made["id"])
    await answer_tool_call(session, "fail", {"what": WORDS})
    await answer_tool_call(session, f"no_{CANARY}", {"what": WORDS})
    await answer_tool_call(session, "look", {CANARY: WORDS})
    await session.observe(f'<ref id="a">{WORDS}</ref> and <ref id="a b">{WORDS}')
    session.tools_for(WORDS)


async def test_operations_are_recorded_with_conventional_names(session, told):
    """Tools, memories, retrieval and embeddings have spans. A histogram contains the durations."""
    await live(session)
    tools = [f"execute_tool {name}" for name in ("save/decision", "look", "fail")]
    memories = ["create_memory", "search_memory", "update_memory", "delete_memory"]

    assert {*tools, *memories, "retrieval default", "retrieval structs", "embeddings hash-384"} <= told.names
    assert {
        "gen_ai.operation.name": "execute_tool", "gen_ai.provider.name": "mama_structs", "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function", "gen_ai.conversation.id": "talk",
    } in told.of("execute_tool look")  # fmt: skip
    saved = {"gen_ai.operation.name": "create_memory", "gen_ai.provider.name": "mama_structs"}
    assert {**saved, "gen_ai.memory.store.id": "default", "gen_ai.memory.record.count": 3} in told.of("create_memory")
    assert [4] == [one["gen_ai.memory.record.count"] for one in told.of("search_memory")][:1]
    assert {"hash-384"} == {one["gen_ai.request.model"] for one in told.of("embeddings hash-384")}
    assert 4 == told.points["gen_ai.execute_tool.duration", "execute_tool"]
    assert 2 <= told.points["gen_ai.client.operation.duration", "search_memory"]


async def test_operation_of_tool_is_child_of_tool_span(session, told):
    await session.call("save/insight", {"content": WORDS})
    spans = {span.name: span for span in told.spans.get_finished_spans()}

    assert spans["execute_tool save/insight"].context.span_id == spans["create_memory"].parent.span_id


async def test_traces_are_recorded_without_metrics_module(session, told, monkeypatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
    await session.memories.save_context(WORDS)

    assert "create_memory" in told.names


async def test_failed_span_contains_only_type_of_error(session, told):
    await live(session)
    with pytest.raises(MemoryNotFound):
        await session.memories.delete("decision_none_1_00000000")
    failed = {span.name: span for span in told.spans.get_finished_spans() if not span.status.is_ok}

    assert "RuntimeError" == failed["execute_tool fail"].attributes["error.type"]
    assert "not_found" == failed["delete_memory"].attributes["error.type"]
    assert [] == [span.events for span in failed.values() if span.events or span.status.description]


async def test_spans_metrics_and_logs_contain_no_content(session, told, caplog):
    with caplog.at_level(logging.DEBUG, logger="mama_structs"):
        await live(session)

    assert told.spans.get_finished_spans()
    assert CANARY not in told.text
    assert caplog.records
    assert CANARY not in caplog.text


SAVING = """
import asyncio, sys
from mama_structs import HashEmbedder, Session
from mama_structs.settings import Settings, TelemetrySettings

async def main(**options):
    async with Session.open(embedder=HashEmbedder(), **options) as session:
        await session.memories.save_context("the shield holds")
        await session.memories.search("shield")

asyncio.run(main())
print(any("opentelemetry" in name for name in sys.modules))
asyncio.run(main(settings=Settings(telemetry=TelemetrySettings(enabled=True))))
print("opentelemetry.trace" in sys.modules, "opentelemetry.sdk" in sys.modules)
"""


def test_opentelemetry_is_imported_only_when_enabled():
    done = subprocess.run([sys.executable, "-c", SAVING], capture_output=True, text=True, timeout=600, check=True)

    assert ["False", "True False"] == done.stdout.splitlines()


def test_missing_opentelemetry_error_names_the_extra(monkeypatch):
    """The error is raised before the session opens anything."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)

    with pytest.raises(ImportError, match=r"mama-structs\[otel\]"):
        Session.open(settings=Settings(telemetry=TelemetrySettings(enabled=True)))


# Statistics of a session


async def test_session_stats_are_a_table_and_json(session):
    await live(session)
    figures = session.stats()
    lines = repr(figures).splitlines()

    assert "memories namespace" in lines[0]
    assert [figures["memories"]["types"]["context"]] == [
        int(line.split()[-1]) for line in lines if line.startswith("memories types context ")
    ]
    assert 1 == len({len(line) - len(line.split("  ")[-1].lstrip()) for line in lines})
    assert not any(line.endswith((" 0", " 0.0", " {}")) for line in lines)
    assert figures == json.loads(json.dumps(figures))
    assert CANARY not in repr(figures)
