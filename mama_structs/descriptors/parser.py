"""Finding ``<ref id="…">…</ref>`` in a model's answer while it is being written."""

from __future__ import annotations

import re
from typing import Final

import attrs

from mama_structs.descriptors.code import (
    PLAIN_SPAN,
    Fence,
    Run,
    Span,
    Undecided,
    begins_line,
    line_beginning,
    matched_to,
)
from mama_structs.descriptors.events import Diagnostic, Event, RefEnd, RefStart, RefText, Text
from mama_structs.descriptors.tags import (
    MAX_TAG,
    TAG_BEGINS,
    TAG_MAY_BEGIN,
    ClosingTag,
    OpeningTag,
    Refused,
    read_tag,
)
from mama_structs.errors import InvalidArgument, SessionClosed

MAX_DEPTH: Final = 64
# A tag right behind a run of 1,000 backticks, of which one more would begin the closing run 1,000 characters on.
MAX_HELD: Final = 2_000

# Where a tag begins, and text that is outside refs and needs no second look, by whether the text ends here.
_BEHIND: Final = {True: TAG_BEGINS, False: TAG_MAY_BEGIN}
_TAG: Final = {final: re.compile(f"<(?={tag})") for final, tag in _BEHIND.items()}
_PLAIN: Final = {final: re.compile(f"(?:[^<`~]++|{PLAIN_SPAN}|<(?!{tag}))*+") for final, tag in _BEHIND.items()}

_WAIT: Final = -1


@attrs.define(eq=False, repr=False)
class RefParser:
    """
    Reads text in pieces of any size and says at once what is known of it.

    However a text is cut, the events are the same, in the same order, once neighbouring `Text` and neighbouring
    `RefText` events are joined. Time is linear; no more than 2,000 characters of text are ever held back, and only from
    a possible tag on that is not finished yet or may be inside inline code.

    * Joined, the texts of all `Text` and `RefText` events are the text without the tags of its refs, byte for byte.
      Text is `RefText` while a ref is open. Line breaks at the ends of a ref's content are not trimmed here.
    * What a tag looks like is said in `mama_structs.descriptors.tags`, what code is in `mama_structs.descriptors.code`.
      A tag that breaks a rule is text and gives a `Diagnostic`; scanning goes on right behind its ``<``, and its
      closing tag closes whatever else is open.
    * In code outside every ref nothing is a tag; a valid opening tag there (in a fence: on one line) gives
      ``in_code``. Whether a line begins is judged on the raw text. Inside a ref nothing but tags counts.
    * Refs may be nested, 64 deep. An opening tag below that is text (``too_deep``), and so is its closing tag.
    * ``<ref id="a"/>`` begins and ends a ref.
    * A closing tag where no ref is open is text (``stray_close``).
    * A ref that is open at the end is closed there, the innermost first, with ``complete=False`` (``unclosed``).

    A `Diagnostic` comes right before what it is about: the tag's text, its `RefStart`, or, for ``unclosed``, its
    `RefEnd`.
    """

    _position: int = attrs.field(default=0, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    # Ids and positions of the refs that are open, the outermost first.
    _open: list[tuple[str, int]] = attrs.field(factory=list, init=False)
    # Opening tags that were too deep and whose closing tags did not come yet.
    _too_deep: int = attrs.field(default=0, init=False)
    # The code that is open, or may be; None in plain text and inside refs.
    _code: Run | Span | Fence | None = attrs.field(default=None, init=False)
    # The end of the text so far: what was already given away but must be seen again, and what was not.
    _before: str = attrs.field(default="\n", init=False)  # The start of the text is the start of a line.
    _held: str = attrs.field(default="", init=False)
    # While scanning: these two and the chunk, the index from which on it was not given away, and what was found.
    _text: str = attrs.field(default="", init=False)
    _mark: int = attrs.field(default=0, init=False)
    _events: list[Event] = attrs.field(factory=list, init=False)

    @property
    def position(self) -> int:
        """How many characters were fed."""
        return self._position

    def feed(self, chunk: str) -> list[Event]:
        """
        Read more of the text.

        Args:
            chunk: Any number of characters.

        Returns:
            What is known now and was not before.

        Raises:
            InvalidArgument: The chunk is no text.
            SessionClosed: The parser was closed.

        """
        if not isinstance(chunk, str):
            raise InvalidArgument(
                f"chunk must be str, got {type(chunk).__name__}", hint="decode bytes as a whole first"
            )
        if self._closed:
            raise SessionClosed("this parser was closed", hint="make a new RefParser for each text")
        if not chunk:
            return []
        self._position += len(chunk)
        # Most chunks of a stream are a few characters in which nothing begins or ends.
        if not self._held and "<" not in chunk:
            if self._open:
                return [RefText(chunk)]
            if self._code is None:
                if "`" not in chunk and "~" not in chunk:
                    if self._before or "\n" in chunk:
                        self._before = line_beginning(self._before + chunk)
                    return [Text(chunk)]
            elif not self._before and type(self._code) is Fence and "\n" not in chunk:
                return [Text(chunk)]
        return self._scan(chunk, final=False)

    def close(self) -> list[Event]:
        """
        End the text.

        Returns:
            What was held back, and the ends of the refs that are open; nothing when the parser was closed before.

        """
        if self._closed:
            return []
        self._closed = True
        events = self._scan("", final=True)
        while self._open:
            ref_id, position = self._open.pop()
            message = f"ref {ref_id!r} was not closed with </ref>: it goes to the end of the text, and is incomplete"
            events += (
                Diagnostic("unclosed", ref_id, position, message),
                RefEnd(ref_id, complete=False, position=self._position + 1),
            )
        return events

    def _scan(self, chunk: str, *, final: bool) -> list[Event]:
        """Read as far as the text goes or can be decided."""
        self._text = self._before + self._held + chunk
        self._mark = len(self._before)
        at = 0
        while at != _WAIT:
            code = self._code
            if self._open:
                at = self._inside(at, final=final)
            elif code is None:
                at = self._plain(at, final=final)
            elif isinstance(code, Run):
                at = self._run(code, at, final=final)
            elif isinstance(code, Span):
                at = self._span(code, at, final=final)
            else:
                at = self._fence(code, at, final=final)
        events = self._events
        self._text, self._events = "", []
        return events

    # Each of the following reads on from an index in its state, and returns the index from which the next one, in the
    # state that then is, reads on: `_WAIT` when there is nothing more to read.

    def _plain(self, at: int, *, final: bool) -> int:
        at = matched_to(_PLAIN[final], self._text, at)
        if at == len(self._text):
            return self._wait(before=line_beginning(self._text))
        character = self._text[at]
        if character == "<":
            return self._tag(at, final=final)
        self._code = Run(character, begins_line(self._text, at))
        return at

    def _inside(self, at: int, *, final: bool) -> int:
        match = _TAG[final].search(self._text, at)
        return self._wait() if match is None else self._tag(match.start(), final=final)

    def _run(self, run: Run, at: int, *, final: bool) -> int:
        at = run.count(self._text, at)
        if at == len(self._text) and not final:
            return self._wait()
        self._code = run.opens()
        return at

    def _span(self, span: Span, at: int, *, final: bool) -> int:
        end = span.end(self._text, at, final=final)
        if end is Undecided.WAIT:
            # Whatever comes, it is text up to the first tag.
            match = _TAG[final].search(self._text, max(at, self._mark))
            self._emit(len(self._text) if match is None else match.start())
            return self._wait(before=self._text[at : self._mark], held=self._mark)
        if isinstance(end, int):
            self._code = None
            self._tags_in_code(at, end, final=True)
            return end + span.length
        self._code = Fence("`", span.length) if end is Undecided.FENCE else None
        return at

    def _fence(self, fence: Fence, at: int, *, final: bool) -> int:
        end = fence.end(self._text, at)
        if end >= 0:
            self._code = None
            self._tags_in_code(at, end, final=True)
            return end
        held = self._tags_in_code(at, len(self._text), final=final)
        if held != _WAIT:
            return self._wait(held=held)
        return self._wait(before=fence.line_so_far(self._text, at))

    def _tag(self, at: int, *, final: bool) -> int:
        tag = read_tag(self._text, at, len(self._text), final=final)
        if tag is None:
            return self._wait(held=at)
        if isinstance(tag, Refused):
            self._report(tag, at)
            return at + 1
        if isinstance(tag, OpeningTag):
            self._opening(tag, at)
        else:
            self._closing(tag, at)
        return tag.end

    def _opening(self, tag: OpeningTag, at: int) -> None:
        if len(self._open) == MAX_DEPTH:
            message = f"ref {tag.id!r} was left as text, with its closing tag: refs may be nested {MAX_DEPTH} deep"
            self._report(Refused("too_deep", tag.id, message), at)
            self._too_deep += not tag.empty
            return
        self._emit(at)
        if self._open:
            outer = self._open[-1][0]
            message = f"ref {tag.id!r} is inside ref {outer!r}: both hold the text of the inner one"
            self._report(Refused("nested", tag.id, message), at)
        self._events.append(RefStart(tag.id, tag.attributes, position=self._place(at)))
        if tag.empty:
            self._events.append(RefEnd(tag.id, complete=True, position=self._place(tag.end)))
        else:
            self._open.append((tag.id, self._place(at)))
        self._mark = tag.end

    def _closing(self, tag: ClosingTag, at: int) -> None:
        if self._too_deep:
            self._too_deep -= 1
        elif self._open:
            self._emit(at)
            self._events.append(RefEnd(self._open.pop()[0], complete=True, position=self._place(tag.end)))
            self._mark = tag.end
        else:
            message = "no ref is open here, so this closing tag was left as text: write &lt;/ref> to show one"
            self._report(Refused("stray_close", None, message), at)

    def _tags_in_code(self, start: int, end: int, *, final: bool) -> int:
        """Report the opening tags in code; return the index of one that is not finished, or `_WAIT` without one."""
        text = self._text
        at = max(start, self._mark)
        while match := _TAG[final].search(text, at, end):
            at = match.start()
            line = text.find("\n", at, min(end, at + MAX_TAG))
            tag = read_tag(text, at, end if line < 0 else line, final=final or line >= 0)
            if tag is None:
                return at
            if isinstance(tag, OpeningTag):
                message = f"ref {tag.id!r} is in code, where tags are text: to store a ref write its tag elsewhere"
                self._report(Refused("in_code", tag.id, message), at)
                at = tag.end
            else:
                at += 1
        return _WAIT

    def _report(self, what: Refused, at: int) -> None:
        self._emit(at)
        self._events.append(Diagnostic(what.kind, what.id, self._place(at), what.message))

    def _emit(self, end: int) -> None:
        """Give away the text before an index."""
        if end > self._mark:
            text = self._text[self._mark : end]
            self._events.append(RefText(text) if self._open else Text(text))
            self._mark = end

    def _wait(self, *, before: str = "", held: int | None = None) -> int:
        """Give away the text before *held*, all of it by default, and keep what must be seen with the next chunk."""
        self._emit(len(self._text) if held is None else held)
        self._before = before
        self._held = "" if held is None else self._text[held:]
        return _WAIT

    def _place(self, at: int) -> int:
        """Return the position, from 1, of an index in what was not given away yet."""
        return self._position - len(self._text) + at + 1
