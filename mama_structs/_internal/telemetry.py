"""
OpenTelemetry spans and metrics, and tracebacks for logs. They never contain texts of users or models.

Names are those of OpenTelemetry's conventions for generative AI (``semantic-conventions-genai``, all still in
development): ``execute_tool``, ``search_memory``, ``create_memory``, ``retrieval``, ``embeddings`` and so on.
OpenTelemetry is not imported here: nothing is recorded unless the host, or its settings, have loaded it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final

from mama_structs.errors import MamaStructsError

SCOPE_NAME: Final = "mama_structs"
TOOL_OPERATION: Final = "execute_tool"
# Bucket boundaries in seconds. The OpenTelemetry conventions begin at 10 ms, but most operations here are shorter.
BUCKET_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip


def load_opentelemetry() -> None:
    """
    Load OpenTelemetry for a host whose settings enable it.

    Raises:
        ImportError: It is not installed.

    """
    try:
        importlib.import_module("opentelemetry.trace")
        importlib.import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ImportError(
            "TelemetrySettings(enabled=True) needs OpenTelemetry: pip install 'mama-structs[otel]'"
        ) from error


@functools.lru_cache(maxsize=2)
def _get_instruments(tracers: Any, meters: Any) -> tuple[Any, Any, Any]:
    """Return the tracer, the duration histogram of tools, and the duration histogram of all other operations."""
    meter = meters.get_meter(SCOPE_NAME)
    names = ("gen_ai.execute_tool.duration", "gen_ai.client.operation.duration")
    tools, others = (
        meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=BUCKET_SECONDS) for name in names
    )
    return tracers.get_tracer(SCOPE_NAME), tools, others


@contextlib.contextmanager
def instrument(operation: str, name: str = "", /, **about: str | int) -> Iterator[dict[str, str | int]]:
    """
    Record the block as a span and in a duration histogram. If it fails, also record the type of the error.

    Args:
        operation: Name of the operation in the conventions.
        name: Appended to the span's name. For tools, it is also an attribute of the metric.
        about: Attributes of the span only, with ``__`` for each full stop and without ``gen_ai.``.

    Yields:
        A dict for further attributes of the span.

    """
    trace = sys.modules.get("opentelemetry.trace")
    found: dict[str, str | int] = {}
    if trace is None:
        yield found
        return
    # The same package provides metrics, but a host that uses only traces may not have loaded them.
    metrics = importlib.import_module("opentelemetry.metrics")
    tracer, tools, others = _get_instruments(trace.get_tracer_provider(), metrics.get_meter_provider())
    labels: dict[str, Any] = {"gen_ai.operation.name": operation, "gen_ai.provider.name": SCOPE_NAME}
    if operation == TOOL_OPERATION:
        labels |= {"gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    started = time.perf_counter()
    # Record only the type of an error, because its text and the traceback may contain user content.
    with tracer.start_as_current_span(
        f"{operation} {name}".rstrip(), attributes=labels, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield found
        except BaseException as error:
            found["error__type"] = error.type if isinstance(error, MamaStructsError) else type(error).__qualname__
            raise
        finally:
            if failure := found.pop("error__type", None):
                labels["error.type"] = failure
                span.set_attribute("error.type", failure)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
            for key, value in (about | found).items():
                span.set_attribute(f"gen_ai.{key.replace('__', '.')}", value)
            (tools if operation == TOOL_OPERATION else others).record(time.perf_counter() - started, labels)


def format_error(error: BaseException) -> str:
    """Return the traceback and the type of an error. Omit its text, which may contain user content."""
    return "".join(["\n", *traceback.format_tb(error.__traceback__), type(error).__qualname__])
