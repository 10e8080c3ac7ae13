"""`RefParser` agrees with a slow reference parser that reads the complete text."""

from __future__ import annotations

import itertools
import re
import unicodedata

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mama_structs.errors import InvalidArgument, MamaStructsError, SessionClosed
from mama_structs.refs.markup.parser import (
    MAX_BUFFERED_CHARS,
    Diagnostic,
    PlainText,
    RefEnd,
    RefParser,
    RefStart,
    RefText,
    decode_json_text,
)
from mama_structs.refs.store.ref_collector import trim_line_breaks
from mama_structs.testing.strategies import chunkings, ref_documents, ref_ids

WHITE = " \t\n\r\f"
THINK = re.compile("<think(?:ing)?>", re.IGNORECASE | re.ASCII)
END_OF_THOUGHTS = re.compile("(?<!`)</think(?:ing)?>", re.IGNORECASE | re.ASCII)


class SlowParser:
    """A slow reference implementation. `RefParser` must produce the same events."""

    def __init__(self, text, *, in_thoughts=False):
        self.text = text
        self.events = []
        self.open = []
        self.suppressed = 0
        self.in_thoughts = in_thoughts

    def text_at(self, index):
        kind = RefText if self.open else PlainText
        if self.events and type(self.events[-1]) is kind:
            self.events[-1] = kind(self.events[-1].text + self.text[index])
        else:
            self.events.append(kind(self.text[index]))

    def take(self, start, end):
        for index in range(start, end):
            self.text_at(index)
        return end

    def say(self, kind, ref_id, index):
        self.events.append((kind, ref_id, index + 1))

    def parse(self, at=0, *, reported=True):
        while at < len(self.text):
            if self.text[at] in "`~" and not self.open:
                at = self.run(at)
            elif (
                not (self.open or self.in_thoughts)
                and (think := THINK.match(self.text, at))
                and re.search(r"(?:^|[\r\n]) {0,3}\Z", self.text[:at])
            ):
                at = self.thoughts(at, think.end())
            elif self.is_json() and self.text[at] == "\\" and self.text[at + 1 : at + 2] not in ("<", "\n", "\r", ""):
                at = self.take(at, at + 2)
            elif self.is_json() and self.text[at] == '"' and self.text[at + 1 : at + 2] in ("", *WHITE, *",:]}"):
                self.end_refs()
                at = self.take(at, at + 1)
            elif self.is_json() and self.text[at] in '"\n\r':
                # This is no JSON string.
                self.open = [(ref_id, index, False) for ref_id, index, _ in self.open]
            elif self.text[at] == "<":
                at = self.tag(at)
            else:
                at = self.take(at, at + 1)
        self.end_refs(reported=reported)
        return self.events

    def is_json(self):
        return bool(self.open) and self.open[-1][2]

    def end_refs(self, *, reported=True):
        self.suppressed = 0
        while self.open:
            ref_id, index, is_json = self.open.pop()
            if reported:
                self.say("unclosed", ref_id, index)
            self.events.append(RefEnd(ref_id, is_complete=False, is_json=is_json))

    def thoughts(self, at, end):
        self.take(at, end)
        closing = END_OF_THOUGHTS.search(self.text, end)
        if closing is None:
            self.in_thoughts = True
            return end
        inner = SlowParser(self.text[: closing.start()], in_thoughts=True).parse(end, reported=False)
        if inner and type(inner[0]) is PlainText:
            self.events[-1] = PlainText(self.events[-1].text + inner.pop(0).text)
        self.events += inner
        if any(not isinstance(event, PlainText | RefText) for event in inner):
            self.say("in_thoughts", None, at)
        return self.take(closing.start(), closing.end())

    # Parsing of tags

    def tag(self, at):  # noqa: PLR0911 - one for each rule
        what, ref_id, attributes, empty, end = self.read_tag(at, len(self.text))
        if what == "no tag" or (self.text[at + 1 : at + 2] == "\\" and not self.is_json()):
            return self.take(at, at + 1)
        if what in {"malformed", "too_long", "missing_id", "invalid_id"}:
            self.say(what, ref_id, at)
            return self.take(at, at + 1)
        if what == "close":
            if self.suppressed:
                self.suppressed -= 1
                return self.take(at, end)
            if not self.open:
                self.say("stray_close", None, at)
                return self.take(at, end)
            ref_id, _, is_json = self.open.pop()
            self.events.append(RefEnd(ref_id, is_complete=True, is_json=is_json))
            return end
        is_json = self.is_json() if self.kind is None else self.kind
        if self.open and is_json != self.is_json():
            if is_json:
                self.say("malformed", None, at)
            return self.take(at, at + 1)
        if len(self.open) >= 64:
            self.say("too_deep", ref_id, at)
            if not empty:
                self.suppressed += 1
            return self.take(at, end)
        if self.open:
            self.say("nested", ref_id, at)
        self.events.append(RefStart(ref_id, attributes))
        if empty:
            self.events.append(RefEnd(ref_id, is_complete=True, is_json=is_json))
        else:
            self.open.append((ref_id, at, is_json))
        return end

    def read_tag(self, at, end):
        """Parse the tag at an index, and return its id, its attributes, whether it is self-closing, and its end."""
        text = self.text[at:end]
        if text[1:3] == "\\/":
            what, *rest, behind = self.read_tag_in(text[0] + text[2:], 0, escape=1)
            return what, *rest, behind and at + behind + 1
        return self.read_tag_in(text, at)

    def read_tag_in(self, text, at, *, escape=0):  # noqa: PLR0911 - one for each rule
        self.kind = None
        kinds = set()
        name = "</ref" if text[1:2] == "/" else "<ref"
        nothing = None, {}, False, 0
        if text[: len(name)].lower() != name or text[len(name) : len(name) + 1] not in [*WHITE, "/", ">"]:
            return "no tag", *nothing
        index, state, key, quote, value = len(name), "between", "", "", ""
        attributes = []
        while True:
            if index == 512 - escape:
                return "too_long", *nothing
            if index == len(text):
                return "malformed", *nothing
            character = text[index]
            index += 1
            if state == "json":
                if character == "\\" and text[index : index + 1] == '"':
                    if index + 1 > 512 - escape:
                        return "too_long", *nothing
                    index += 1
                    attributes.append((key, decode_json_text(value)))
                    kinds.add(True)
                    state = "between"
                elif character == '"':
                    return "malformed", *nothing
                elif character == "\\":
                    if index in (512 - escape, len(text)):
                        return "too_long" if index == 512 - escape else "malformed", *nothing
                    value += text[index - 1 : index + 1]
                    index += 1
                else:
                    value += character
            elif state == "quoted":
                if character == quote:
                    kinds |= {False} if quote == '"' else set()
                    attributes.append((key, value))
                    state = "between"
                else:
                    value += character
            elif state == "slash":
                if character != ">":
                    return "malformed", *nothing
                break
            elif state == "equals":
                if character in "\"'":
                    state, quote, value = "quoted", character, ""
                elif character == "\\":
                    if index == 512:
                        return "too_long", *nothing
                    if text[index : index + 1] != '"':
                        return "malformed", *nothing
                    state, index, value = "json", index + 1, ""
                elif character not in WHITE:
                    return "malformed", *nothing
            elif character in "\"'<" or (name == "</ref" and character not in WHITE and character != ">"):
                return "malformed", *nothing
            elif character in (">", "/", *WHITE):
                if state == "name":
                    state = "named"
                if character in ">/" and state == "named":
                    attributes.append((key, ""))
                    state = "between"
                if character == ">":
                    break
                if character == "/":
                    state = "slash"
            elif character == "=":
                if state not in {"name", "named"}:
                    return "malformed", *nothing
                state = "equals"
            elif state == "name":
                key += character
            else:
                if state == "named":
                    attributes.append((key, ""))
                state, key = "name", character
        if name == "</ref":
            return "close", None, {}, False, at + index
        if len(kinds) > 1:
            return "malformed", *nothing
        self.kind = next(iter(kinds), None)
        found = {}
        for key, value in attributes:
            if key.lower() not in found:
                found[key.lower()] = value
        if "id" not in found:
            return "missing_id", *nothing
        ref_id = found.pop("id")
        ref_id, said = unicodedata.normalize("NFC", ref_id), ref_id
        if not re.fullmatch(r"[^\W_][\w.-]{0,63}", ref_id):
            return "invalid_id", said, {}, False, 0
        return "open", ref_id, found, state == "slash", at + index

    # Parsing of code blocks and code spans

    def run(self, at):
        character = self.text[at]
        end = self.run_end(at)
        length = end - at
        if length > 1000:
            return self.take(at, end)
        line_end = end + len(re.split(r"[\r\n]", self.text[end:])[0])
        indent = at
        while indent > 0 and self.text[indent - 1] == " ":
            indent -= 1
        begins = at - indent <= 3 and (indent == 0 or self.text[indent - 1] in "\r\n")
        near = self.text[end : min(line_end, end + 1001)]
        if begins and length >= 3 and (character == "~" or "`" not in near):
            return self.fence(at, end, length)
        if character == "~":
            return self.take(at, end)
        index = end
        while index < line_end and index - end <= 1000:
            if self.text[index] == "`":
                if self.run_end(index) - index == length:
                    self.take(at, end)
                    self.code(end, index)
                    return self.take(index, index + length)
                index = self.run_end(index)
            else:
                index += 1
        return self.take(at, end)

    def run_end(self, at):
        end = at
        while end < len(self.text) and self.text[end] == self.text[at]:
            end += 1
        return end

    def fence(self, at, end, length):
        character = self.text[at]
        self.take(at, end)
        lines = re.split(r"[\r\n]", self.text[end:])
        start = end
        for number, line in enumerate(lines):
            stripped = line.lstrip(" ")
            blank = stripped.lstrip(character)
            run = len(stripped) - len(blank)
            if number and len(line) - len(stripped) <= 3 and run >= length and not blank.strip(" \t"):
                return self.take(start, start + len(line))
            self.code(start, start + len(line))
            start += len(line)
            if number < len(lines) - 1:
                start = self.take(start, start + 1)
        return start

    def code(self, start, end):
        while start < end:
            what, ref_id, _, _, behind = self.read_tag(start, end)
            if what == "open":
                self.say("in_code", ref_id, start)
                start = self.take(start, behind)
            else:
                start = self.take(start, start + 1)


def joined(events):
    """Join adjacent texts, and remove the messages of diagnostics, which other tests check."""
    result = []
    for event in events:
        if isinstance(event, PlainText | RefText) and result and type(result[-1]) is type(event):
            result[-1] = type(event)(result[-1].text + event.text)
        elif isinstance(event, Diagnostic):
            result.append((event.kind, event.id, event.position))
        else:
            result.append(event)
    return result


def parse(chunks):
    parser = RefParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


def visible(events):
    return "".join(event.text for event in events if isinstance(event, PlainText | RefText))


PARTS = [
    "<ref", "</ref", "<", ">", "/", "/>", "=", '"', "'", "id", "ID=", ' id="a"', " id='b'", " id=c", '<ref id="d">',
    "<ref id='e'/>", '<Ref type="x" ID = "f" >', "</ref>", "</REF\n>", "<ref>", '<ref id="../x">', "<refs>", "<reference",
    "<think>", "</think>", "<Thinking>", "</thinking>", "<think", "ing>", '<ref id=\\"j\\">', '<ref id=\\"k\\" t=\\"\\u00e9\\\\\\">', "<\\/ref>", "\\", '\\"',
    "&lt;ref", "`", "``", "```", "````", "~~~", "~~~~", "~", "\n", "\n", "\n", " ", "   ", "    ", "\t", "\r\n", "\r", "\f",
    "\u00a0", "\v", "x", "y`z", "é", "\U0001f600", "\ud800", "\x00", "<r", "<re", "</", "</r",
    "`" * 64, "x" * 60, " " * 500, "x" * 506, "x" * 999, "`" * 999, "~" * 999, "`" * 1001,
]  # fmt: skip
texts = st.lists(st.sampled_from(PARTS) | st.text("<>/='\"`~ \n\r\\refidx", max_size=6), max_size=30).map("".join)
# This property covers the whole parser, so it gets more examples than the others.
often = settings(max_examples=max(500, settings.default.max_examples))
cut_texts = texts.flatmap(lambda text: st.tuples(st.just(text), chunkings(text)))


@often
@given(text=texts)
@example(text="<ref i")
@example(text="```\r   ```\t \r")
def test_parser_events_match_reference(text):
    """All events, in order, equal those of the reference parser."""
    assert SlowParser(text).parse() == joined(parse([text]))


@often
@given(cut=cut_texts)
def test_parser_events_are_independent_of_chunks(cut):
    """Any split into chunks gives the same events, once adjacent texts are joined."""
    text, chunks = cut

    assert joined(parse([text])) == joined(parse(chunks))


@given(text=texts)
def test_parser_events_are_independent_of_single_character_chunks(text):
    """Chunks of one character give the same events."""
    assert joined(parse([text])) == joined(parse(text))


@pytest.mark.once
@pytest.mark.parametrize("first", ["```", "~~~", "\n", " ", "`", '<ref id="a">', "</ref>", "x"])
def test_parser_matches_reference_for_all_short_code_texts(first):
    """Covers every order of fences, spans, spaces, line breaks and tags. Longer texts are tested nightly."""
    count = 5 if settings.default.max_examples >= 1_000 else 4
    for rest in itertools.product(["`", "~~~", "\n", " ", '<ref id="a">', "x"], repeat=count):
        text = first + "".join(rest)
        expected = SlowParser(text).parse()

        assert expected == joined(parse([text])), text
        assert expected == joined(parse(text)), text


@given(cut=cut_texts)
def test_parser_text_events_are_not_empty_or_adjacent(cut):
    """No text event is empty, and one feed does not return two adjacent ones."""
    parser = RefParser()

    for events in [*map(parser.feed, cut[1]), parser.close()]:
        assert all(event.text for event in events if isinstance(event, PlainText | RefText))
        assert all(type(a) is not type(b) for a, b in itertools.pairwise(events) if isinstance(a, PlainText | RefText))


@given(cut=cut_texts)
def test_parser_buffer_is_bounded(cut):
    """After each feed, at most a bounded rest of the text is buffered."""
    parser = RefParser()
    given_away = 0

    for chunk in cut[1]:
        events = parser.feed(chunk)
        given_away += len(visible(events))
        tags = sum(isinstance(event, RefStart | RefEnd) for event in events)
        given_away += 512 * tags
        assert parser.position - given_away <= MAX_BUFFERED_CHARS
        assert len(parser._buffered) <= MAX_BUFFERED_CHARS
        assert len(parser._context) <= MAX_BUFFERED_CHARS


def test_parser_buffer_reaches_its_bound():
    """A tag after 1,000 backticks is undecided until a run 1,000 characters later ends."""
    tag = '<ref id="a">'
    parser = RefParser()
    parser.feed("`" * 1000)
    events = parser.feed(tag + "x" * (1000 - len(tag)) + "`" * 1000)

    assert [] == events
    assert MAX_BUFFERED_CHARS == len(parser._buffered)
    assert [RefStart("a", {})] == parser.feed("`")[:1]
    assert "" == parser._buffered


@given(text=texts.map(lambda text: text.replace("<", "")), data=st.data())
def test_parser_emits_text_without_tags_immediately(text, data):
    """Text without "<" is never buffered or changed, even in code."""
    parser = RefParser()
    for chunk in data.draw(chunkings(text)):
        assert chunk == visible(parser.feed(chunk))

    assert [] == parser.close()


@often
@given(cut=cut_texts)
def test_parser_loses_only_tags_of_refs(cut):
    """Inserting each ref's tags into the visible text restores the original."""
    text, chunks = cut
    at, tag = 0, ""
    for event in parse(chunks):
        if isinstance(event, PlainText | RefText):
            assert text.startswith(event.text, at)
            at += len(event.text)
        elif isinstance(event, RefStart):
            assert event.position == at + 1
            tag = re.compile(r"""<ref(?:"[^"]*"|'[^']*'|[^"'<>])*>""", re.IGNORECASE).match(text, at).group()
            assert len(tag) <= 512
            at += len(tag)
        elif isinstance(event, RefEnd) and event.is_complete:
            # A self-closing tag ends its ref without a closing tag.
            closing = re.compile(r"</ref[ \t\n\r\f]*>", re.IGNORECASE).match(text, at)
            at += 0 if tag.endswith("/>") else len(closing.group())
            tag = ""

    assert len(text) == at


@often
@given(content=texts | st.text(), ref_id=ref_ids(), line_break=st.sampled_from(["\n", "\r\n"]), data=st.data())
def test_parser_restores_any_content(content, ref_id, line_break, data):
    """Any content without ref tags, on lines of its own, is the content of the ref."""
    assume(not re.search("</?ref", content, re.IGNORECASE))
    text = f'<ref id="{ref_id}">{line_break}{content}{line_break}</ref>'

    events = joined(parse(data.draw(chunkings(text))))

    assert [RefStart(ref_id, {}), RefEnd(ref_id, is_complete=True)] == [events[0], events[-1]]
    assert [] == [event for event in events[1:-1] if not isinstance(event, RefText)]
    assert content == trim_line_breaks(visible(events))


@given(
    cut=ref_documents().flatmap(lambda document: st.tuples(st.just(document), chunkings(document.text))),
)
def test_parser_finds_planted_refs(cut):
    """Exactly the refs inserted into a document are found, with their contents."""
    document, chunks = cut
    refs, open_refs, shown = [], [], ""
    for event in parse(chunks):
        if isinstance(event, RefStart):
            refs.append([event.id, event.attributes, len(shown), None, None])
            open_refs.append(refs[-1])
        elif isinstance(event, RefEnd):
            open_refs.pop()[3:] = [len(shown), event.is_complete]
        elif isinstance(event, PlainText | RefText):
            shown += event.text

    assert document.visible == shown
    assert [(ref.id, ref.attributes, ref.content, ref.complete) for ref in document.refs] == [
        (ref_id, attributes, trim_line_breaks(shown[start:end]), complete)
        for ref_id, attributes, start, end, complete in refs
    ]


@given(cut=cut_texts)
def test_parser_positions_are_those_of_tags(cut):
    """The position of each diagnostic and ref is that of a "<", counted from 1."""
    text, chunks = cut
    whole = parse([text])
    events = parse(chunks)

    places = [event.position for event in events if isinstance(event, Diagnostic | RefStart)]
    assert all("<" == text[place - 1] for place in places)
    assert places == [event.position for event in whole if isinstance(event, Diagnostic | RefStart)]
    assert [event.message for event in whole if isinstance(event, Diagnostic)] == [
        event.message for event in events if isinstance(event, Diagnostic)
    ]


@given(cut=cut_texts)
def test_parser_closes_every_ref(cut):
    """Starts and ends are nested, and a diagnostic precedes each incomplete end."""
    events = parse(cut[1])
    open_ids = []
    for before, event in itertools.pairwise([None, *events]):
        if isinstance(event, RefStart):
            open_ids.append(event.id)
        elif isinstance(event, RefEnd):
            assert open_ids.pop() == event.id
            assert event.is_complete == (not (isinstance(before, Diagnostic) and "unclosed" == before.kind))
        elif isinstance(event, PlainText | RefText):
            assert isinstance(event, RefText) == bool(open_ids)

    assert [] == open_ids


def test_parser_emits_text_as_soon_as_possible():
    """Text that cannot be a tag is returned with the chunk that shows this."""
    parser = RefParser()

    assert [PlainText("a ")] == parser.feed("a <re")
    assert [PlainText("<rex")] == parser.feed("x")
    assert [PlainText("`one ")] == parser.feed("`one ")
    assert [PlainText("two <b>")] == parser.feed("two <b>")
    assert [PlainText("\n")] == parser.feed("\n<ref id='a'")
    assert [RefStart("a", {}), RefText("x")] == parser.feed(">x</")
    assert [RefEnd("a", is_complete=True)] == parser.feed("ref>")


def test_parser_buffers_tag_after_backtick_until_line_end():
    """Only then it is known whether the tag is in code; the text before it is returned."""
    parser = RefParser()

    assert [PlainText("see `x ")] == parser.feed('see `x <ref id="a">y')
    assert [RefStart("a", {}), RefText("y\n")] == parser.feed("\n")


def test_parser_position_counts_fed_characters():
    """Buffered characters count, too."""
    parser = RefParser()
    parser.feed("ab<re")
    parser.feed("")
    parser.feed("\U0001f600")

    assert 6 == parser.position


def test_parser_returns_no_events_for_empty_text():
    """Empty chunks have no events."""
    parser = RefParser()

    assert [] == parser.feed("")
    assert [] == parser.close()


@pytest.mark.parametrize("chunk", [b"<ref", None, 1, ["a"]])
def test_parser_rejects_chunk_that_is_not_text(chunk):
    """The parser remains usable."""
    parser = RefParser()

    with pytest.raises(InvalidArgument, match="chunk must be str, got"):
        parser.feed(chunk)
    assert [PlainText("a")] == parser.feed("a")


def test_parser_feed_raises_after_close():
    """The error has a hint; closing again is idempotent."""
    parser = RefParser()
    parser.feed('<ref id="a">')

    assert ["unclosed", False] == [getattr(event, "kind", None) or event.is_complete for event in parser.close()]
    assert [] == parser.close()
    with pytest.raises(SessionClosed, match="closed") as caught:
        parser.feed("x")
    assert isinstance(caught.value, MamaStructsError)
    assert "new RefParser" in caught.value.hint


@given(first=texts, second=texts)
def test_parsers_are_independent(first, second):
    """Text that one parser reads does not affect another one."""
    one, other = RefParser(), RefParser()
    one_events, other_events = [], []
    for a, b in itertools.zip_longest(first, second, fillvalue=""):
        one_events += one.feed(a)
        other_events += other.feed(b)

    assert joined(parse([first])) == joined(one_events + one.close())
    assert joined(parse([second])) == joined(other_events + other.close())
