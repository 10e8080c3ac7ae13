"""Measurement of the work of single event loop callbacks, independent of the machine's speed."""

import asyncio
import contextlib
import sys
import threading

from mama_structs._internal import jsonable as _plain
from mama_structs.refs.markup import parser
from mama_structs.refs.store import text


class LoopMeter:
    """
    Maximum number of calls and bytes of a single callback, that is, of the code between two suspensions.

    Attributes:
        calls: Calls of Python and C functions.
        bytes: Characters of texts that were parsed, hashed or written as JSON.

    """

    def __init__(self):
        self.calls = self.bytes = 0
        self._calls = self._bytes = 0
        self._thread = threading.get_ident()

    def count(self, _frame, event, _argument):
        self._calls += event in {"call", "c_call"}

    def take(self, size):
        if threading.get_ident() == self._thread:
            self._bytes += size

    def run(self, handle, run):
        self._calls = self._bytes = 0
        sys.setprofile(self.count)
        try:
            run(handle)
        finally:
            self.end()

    def end(self):
        sys.setprofile(None)
        self.calls, self.bytes = max(self.calls, self._calls), max(self.bytes, self._bytes)
        self._calls = self._bytes = 0


@contextlib.contextmanager
def metered(monkeypatch):
    """Measure every callback of this thread's event loop."""
    meter = LoopMeter()
    with monkeypatch.context() as patch:
        run = asyncio.Handle._run
        patch.setattr(asyncio.Handle, "_run", lambda handle: meter.run(handle, run))
        of, feed, written = text.Content.from_text.__func__, parser.RefParser.feed, _plain.to_json_text

        def take_text(cls, content):
            meter.take(len(content) if isinstance(content, str) else 0)
            return of(cls, content)

        def take_chunk(self, chunk):
            meter.take(len(chunk))
            return feed(self, chunk)

        def take_json(data):
            made = written(data)
            meter.take(len(made))
            return made

        patch.setattr(text.Content, "from_text", classmethod(take_text))
        patch.setattr(parser.RefParser, "feed", take_chunk)
        for module in list(sys.modules.values()):
            if getattr(module, "to_json_text", None) is written:
                patch.setattr(module, "to_json_text", take_json)
        try:
            yield meter
        finally:
            # The current callback has not ended, so do not measure the rest of it.
            meter.end()
