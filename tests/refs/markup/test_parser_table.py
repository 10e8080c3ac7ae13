"""The parser's results for each kind of tag, code and mistake."""

from __future__ import annotations

from row_helpers import every_row

from mama_structs.refs.markup.parser import (
    MAX_DEPTH,
    MAX_TAG_CHARS,
    Diagnostic,
    PlainText,
    RefEnd,
    RefParser,
    RefStart,
    RefText,
)
from mama_structs.refs.store.ref_collector import trim_line_breaks


def parse(text, size=None):
    parser = RefParser()
    size = size or len(text) or 1
    events = [event for start in range(0, len(text), size) for event in parser.feed(text[start : start + size])]
    return events + parser.close()


def found(events):
    """Return the refs in the order of their opening tags, the visible text, and the diagnostics."""
    refs, stack, shown, diagnostics = [], [], "", []
    for event in events:
        match event:
            case RefStart():
                refs.append([event, len(shown), None, None])
                stack.append(refs[-1])
            case RefEnd():
                stack.pop()[2:] = [len(shown), event.is_complete]
            case Diagnostic():
                diagnostics.append((event.kind, event.id, event.position))
            case PlainText() | RefText():
                shown += event.text
    return (
        [(one.id, trim_line_breaks(shown[start:end]), one.attributes, complete) for one, start, end, complete in refs],
        shown,
        diagnostics,
    )


def whole(ref_id, content, **attributes):
    return (ref_id, content, attributes, True)


def cut(ref_id, content, **attributes):
    return (ref_id, content, attributes, False)


A = [whole("a", "x")]
DEEP = '<ref id="a">' * MAX_DEPTH

# Each row has a text, its refs, the visible text (None if equal to the text), and the diagnostics.
ROWS = {
    # Basic cases.
    "an attribute behind the id": ('<ref id="a" type="code">x</ref>', [whole("a", "x", type="code")], "x", []),
    "an attribute before the id": ('<ref type="code" id="a">x</ref>', [whole("a", "x", type="code")], "x", []),
    "single quotes": ("<ref id='a'>x</ref>", A, "x", []),
    "no quotes": ("<ref id=a>x</ref>", [], None, [("malformed", None, 1), ("stray_close", None, 12)]),
    "spaces around =": ('<ref id = "a">x</ref>', A, "x", []),
    "capitals": ('<REF ID="a">x</Ref>', A, "x", []),
    "a line break before the id": ('<ref\nid="a">x</ref>', A, "x", []),
    "a closing tag with a space": ('<ref id="a">x</ref >', A, "x", []),
    "a closing tag with a line break": ('<ref id="a">x</ref\r\n>', A, "x", []),
    "an empty id": ('<ref id="">x</ref>', [], None, [("invalid_id", "", 1), ("stray_close", None, 13)]),
    "an id without value": ("<ref id>x", [], None, [("invalid_id", "", 1)]),
    "an id with a space": ('<ref id="a b">x', [], None, [("invalid_id", "a b", 1)]),
    "an id with a slash": ('<ref id="a/b">x', [], None, [("invalid_id", "a/b", 1)]),
    "an id that is a path": ('<ref id="../../etc/passwd">x', [], None, [("invalid_id", "../../etc/passwd", 1)]),
    "an id with a line break": ('<ref id="a\n">x', [], None, [("invalid_id", "a\n", 1)]),
    "an attribute without a value": ('<ref id="a" append>x</ref>', [whole("a", "x", append="")], "x", []),
    "an id of another script": ('<ref id="한글-1">x</ref>', [whole("한글-1", "x")], "x", []),
    "an id that is decomposed": ('<ref id="e\u0301">x</ref>', [whole("\u00e9", "x")], "x", []),
    "an id with a filler": ('<ref id="\u3164">x', [], None, [("invalid_id", "\u3164", 1)]),
    "a mention": ('See <ref id="a" lines="3"/>.', [], None, []),
    "a mention in a ref": ('<ref id="a"><ref lines="3" id="b"/></ref>', [whole("a", '<ref lines="3" id="b"/>')], '<ref lines="3" id="b"/>', []),
    "a mention in code": ('`<ref id="a" lines="3"/>`', [], None, []),
    "lines in an opening tag": ('<ref id="a" lines="3">x</ref>', [whole("a", "x", lines="3")], "x", []),
    "> in an attribute": ('<ref id="a" note="1>2">x</ref>', [whole("a", "x", note="1>2")], "x", []),
    "unclosed": ('1 <ref id="a">\nx\ny\n', [cut("a", "x\ny")], "1 \nx\ny\n", [("unclosed", "a", 3)]),
    "unclosed before a complete one": (
        '<ref id="a">1<ref id="b">2</ref>3',
        [cut("a", "123"), whole("b", "2")],
        "123",
        [("nested", "b", 14), ("unclosed", "a", 1)],
    ),
    "self-closing": ('<ref id="a"/> … <ref id="b">y</ref>', [whole("a", ""), whole("b", "y")], " … y", []),
    "self-closing with a space": ('<ref id="a" />x', [whole("a", "")], "x", []),
    "no id": ("<ref>no id</ref>", [], None, [("missing_id", None, 1), ("stray_close", None, 11)]),
    "no id but attributes": ('<ref type="code">x', [], None, [("missing_id", None, 1)]),
    "a closing tag in content": (
        '<ref id="a">print("</ref>")</ref>',
        [whole("a", 'print("')],
        'print("")</ref>',
        [("stray_close", None, 28)],
    ),
    "an escaped tag in content": ('<ref id="a">&lt;/ref></ref>', [whole("a", "&lt;/ref>")], "&lt;/ref>", []),
    "nested": (
        '<ref id="outer">A<ref id="inner">B</ref>C</ref>D',
        [whole("outer", "ABC"), whole("inner", "B")],
        "ABCD",
        [("nested", "inner", 18)],
    ),
    "adjacent": (
        '<ref id="a">x</ref><ref id="b">y</ref><ref id="c">z</ref>',
        [whole("a", "x"), whole("b", "y"), whole("c", "z")],
        "xyz",
        [],
    ),
    "in a fence": ('```\n<ref id="a">x</ref>\n```\n', [], None, [("in_code", "a", 5)]),
    "in inline code": ('see `<ref id="a">x</ref>` there', [], None, [("in_code", "a", 6)]),
    "a fence inside": ('<ref id="a">\n```py\nx\n```\n</ref>', [whole("a", "```py\nx\n```")], "\n```py\nx\n```\n", []),
    "a fence around a closing tag inside": ('<ref id="a">\n```\n</ref>\n', [whole("a", "```")], "\n```\n\n", []),
    "entities": ('<ref id="a" t="&quot;">&lt;&amp;</ref>', [whole("a", "&lt;&amp;", t="&quot;")], "&lt;&amp;", []),
    "white space in content": ('<ref id="a">\n\n x \n\n</ref>', [whole("a", "\n x \n")], "\n\n x \n\n", []),
    "CRLF in content": ('<ref id="a">\r\nx\r\n</ref>', [whole("a", "x")], "\r\nx\r\n", []),
    "lone CR in content": ('<ref id="a">\rx\r</ref>', [whole("a", "x")], "\rx\r", []),
    "empty content": ('<ref id="a"></ref>', [whole("a", "")], "", []),
    "one line break as content": ('<ref id="a">\n</ref>', [whole("a", "")], "\n", []),
    "another tag": ('<refs id="a">x</refs>', [], None, []),
    "the same id twice": ('<ref id="a">x</ref><ref id="a">y</ref>', [whole("a", "x"), whole("a", "y")], "xy", []),
    # Cases with unusual tags.
    "look-alikes": (
        '<reference id="a"> <ref\u00a0id="a"> <ref\vid="a"> <ref-x> <ref=""> <ref"> < ref id="a"> </refs> </ref-> </ ref>',
        [],
        None,
        [],
    ),
    "cut off after its name": ("x <ref", [], None, []),
    "cut off before its name is whole": ("x </re", [], None, []),
    "cut off behind its name": ("x <ref ", [], None, [("malformed", None, 3)]),
    "cut off in a value": ('x <ref id="a', [], None, [("malformed", None, 3)]),
    "cut off before >": ('x <ref id="a"', [], None, [("malformed", None, 3)]),
    "a closing tag cut off": ('<ref id="a">x</ref', [cut("a", "x</ref")], "x</ref", [("unclosed", "a", 1)]),
    "no space between attributes": ('<ref type="t"id="a">x</ref>', [whole("a", "x", type="t")], "x", []),
    "attributes without a value": ('<ref id="a" x y = "1" z/>', [whole("a", "", x="", y="1", z="")], "", []),
    "a repeated attribute": ('<ref id="a" ID="b" x="1" X="2"/>', [whole("a", "", x="1")], "", []),
    "quotes in quotes": ("""<ref id="a" x='"' y="'"/>""", [whole("a", "", x='"', y="'")], "", []),
    "tags in quotes": ("""<ref id="a" x='<ref id="b">' y="</ref>"/>""", [whole("a", "", x='<ref id="b">', y="</ref>")], "", []),
    "backticks in quotes": ('<ref id="a" x="`">y</ref>`', [whole("a", "y", x="`")], "y`", []),
    "odd names": ('<ref id="a" É@1:x.y-z="1"/>', [whole("a", "", **{"é@1:x.y-z": "1"})], "", []),
    "< outside quotes": ('<ref <ref id="a">x</ref>', A, "<ref x", [("malformed", None, 1)]),
    "a quote that takes in the next tag": (
        '<ref x="<ref id="a">x</ref>',
        A,
        '<ref x="x',
        [("malformed", None, 1)],
    ),
    "/ before a space": ('<ref id="a"/ >', [], None, [("malformed", None, 1)]),
    "/ among attributes": ('<ref/id="a">', [], None, [("malformed", None, 1)]),
    "two /": ('<ref id="a"//>', [], None, [("malformed", None, 1)]),
    "= without a name": ('<ref ="a">', [], None, [("malformed", None, 1)]),
    "= without a value": ("<ref id= >", [], None, [("malformed", None, 1)]),
    "two =": ('<ref id=="a">', [], None, [("malformed", None, 1)]),
    "a quote without a name": ('<ref "a">', [], None, [("malformed", None, 1)]),
    "a closing tag with an id": (
        '<ref id="a">x</ref id="a">y</ref>',
        [whole("a", 'x</ref id="a">y')],
        'x</ref id="a">y',
        [("malformed", None, 14)],
    ),
    "a closing tag that closes itself": ("</ref/>", [], None, [("malformed", None, 1)]),
    "the longest id": (f'<ref id="{"a" * 64}"/>', [whole("a" * 64, "")], "", []),
    "an id too long": (f'<ref id="{"a" * 65}"/>', [], None, [("invalid_id", "a" * 65, 1)]),
    "the longest tag": (f'<ref id="a" x="{"y" * (MAX_TAG_CHARS - 17)}">x</ref>', [whole("a", "x", x="y" * (MAX_TAG_CHARS - 17))], "x", []),
    "a tag too long": (f'<ref id="a" x="{"y" * (MAX_TAG_CHARS - 16)}">x', [], None, [("too_long", None, 1)]),
    "the longest closing tag": (f'<ref id="a">x</ref{" " * (MAX_TAG_CHARS - 6)}>', A, "x", []),
    "a closing tag too long": (f"x</ref{' ' * (MAX_TAG_CHARS - 5)}>", [], None, [("too_long", None, 2)]),
    "a tag in one that is too long": (
        f'<ref x="{"y" * 600}<ref id="a">x</ref>',
        A,
        f'<ref x="{"y" * 600}x',
        [("too_long", None, 1)],
    ),
    "an invalid tag inside does not pair": (
        '<ref id="a">x<ref id="?">y</ref>z</ref>',
        [whole("a", 'x<ref id="?">y')],
        'x<ref id="?">yz</ref>',
        [("invalid_id", "?", 14), ("stray_close", None, 34)],
    ),
    "a stray closing tag": ("x</ref>y", [], None, [("stray_close", None, 2)]),
    "the deepest": (f"{DEEP}x{'</ref>' * MAX_DEPTH}", [whole("a", "x")] * 64, "x", [("nested", "a", 12 * n + 1) for n in range(1, 64)]),
    "too deep": (
        f'{DEEP}<ref id="b">x</ref><ref id="c"/>y{"</ref>" * MAX_DEPTH}</ref>',
        [whole("a", '<ref id="b">x</ref><ref id="c"/>y')] * 64,
        '<ref id="b">x</ref><ref id="c"/>y</ref>',
        [
            *[("nested", "a", 12 * n + 1) for n in range(1, 64)],
            ("too_deep", "b", 12 * 64 + 1),
            ("too_deep", "c", 12 * 64 + 20),
            ("stray_close", None, 12 * 64 + 34 + 6 * 64),
        ],
    ),
    "unclosed, the innermost first": (
        '<ref id="a">x<ref id="b">y',
        [cut("a", "xy"), cut("b", "y")],
        "xy",
        [("nested", "b", 14), ("unclosed", "b", 14), ("unclosed", "a", 1)],
    ),
    # Cases with code fences.
    "a fence of tildes": ('~~~ `a` ~~~\n<ref id="a">\n~~~', [], None, [("in_code", "a", 13)]),
    "a fence after three spaces": ('x\n   ```\n<ref id="a">', [], None, [("in_code", "a", 10)]),
    "no fence after four spaces": ('x\n    ```\n<ref id="a">x</ref>', A, "x\n    ```\nx", []),
    "no fence after a tab": ('\t```\n<ref id="a">x</ref>', A, "\t```\nx", []),
    "a fence after a lone CR": ('x\r```\r<ref id="a">', [], None, [("in_code", "a", 7)]),
    "a fence with mixed line ends": ('```\r\n<ref id="b">\n~\r```\r<ref id="a">x</ref>', A, '```\r\n<ref id="b">\n~\r```\rx', [("in_code", "b", 6)]),
    "a tag over two lines with CR in a fence": ('```\r<ref\rid="a">\r', [], None, []),
    "no fence of two": ('``\n~~\n<ref id="a">x</ref>', A, "``\n~~\nx", []),
    "no fence behind a tag": (
        '<ref id="b">\n</ref>```\n<ref id="a">x</ref>',
        [whole("b", ""), *A],
        "\n```\nx",
        [],
    ),
    "no fence behind text of a ref": ('<ref id="b"/>~~~\n<ref id="a">x</ref>', [whole("b", ""), *A], "~~~\nx", []),
    "a fence unclosed": ('```\n<ref id="a">x</ref>\n``\n~~~\n', [], None, [("in_code", "a", 5)]),
    "a tag on the fence's line": ('```<ref id="a">\n', [], None, [("in_code", "a", 4)]),
    "a tag over two lines in a fence": ('```\n<ref\nid="a">\n', [], None, []),
    "invalid tags in code": ('`<ref>` `</ref>` `<ref id=a>` `<ref id="">`', [], None, []),
    "closed by a longer run": ('```\n`````\n<ref id="a">x</ref>', A, "```\n`````\nx", []),
    "closed with white space": ('```\n  ``` \t\r\n<ref id="a">x</ref>', A, "```\n  ``` \t\r\nx", []),
    "not closed by a shorter run": ('````\n```\n<ref id="a">', [], None, [("in_code", "a", 10)]),
    "not closed by the other character": ('```\n~~~\n<ref id="a">', [], None, [("in_code", "a", 9)]),
    "not closed with text behind": ('```\n``` x\n<ref id="a">', [], None, [("in_code", "a", 11)]),
    "not closed after four spaces": ('```\n    ```\n<ref id="a">', [], None, [("in_code", "a", 13)]),
    "not closed on its own line": ('~~~ ~~~\n<ref id="a">', [], None, [("in_code", "a", 9)]),
    "a fence behind a fence": ('```\n```\n```\n<ref id="a">', [], None, [("in_code", "a", 13)]),
    "backticks on the fence's line": ('```a``` <ref id="a">x</ref>', A, "```a``` x", []),
    "a backtick on the fence's line": ('```a` \n<ref id="a">x</ref>', A, "```a` \nx", []),
    "a backtick 1,000 characters on": (f'```{"x" * 1000}`\n<ref id="a">x</ref>', A, f"```{'x' * 1000}`\nx", []),
    "a backtick 1,001 characters on": (f'```{"x" * 1001}`\n<ref id="a">', [], None, [("in_code", "a", 1007)]),
    "the longest fence": (f'{"~" * 1000}\n<ref id="a">', [], None, [("in_code", "a", 1002)]),
    "a run too long for a fence": (f'{"~" * 1001}\n<ref id="a">x</ref>', A, f"{'~' * 1001}\nx", []),
    "closed by a run of any length": (f'~~~\n{"~" * 1001}\n<ref id="a">x</ref>', A, f"~~~\n{'~' * 1001}\nx", []),
    # Cases with code spans.
    "a span of three": ('x ```<ref id="a"> `` ` ``` <ref id="b"/>', [whole("b", "")], 'x ```<ref id="a"> `` ` ``` ', [("in_code", "a", 6)]),
    "a span that is not closed": ('x ` <ref id="a">x</ref>', A, "x ` x", []),
    "a span does not cross lines": ('x ` \n<ref id="a">x</ref>`', A, "x ` \nx`", []),
    "a span does not cross a lone CR": ('x ` \r<ref id="a">x</ref>`', A, "x ` \rx`", []),
    "a span that meets other runs": ('x ` `` <ref id="a">x</ref>', A, "x ` `` x", []),
    "a failed run may be followed by a span": ('x `` `<ref id="a">`', [], None, [("in_code", "a", 7)]),
    "a span closes inside a tag": ('x `<ref id="`">', [], None, []),
    "a tag in a tag's value in code": ("""`<ref id="a" x='<ref id="b">'>`""", [], None, [("in_code", "a", 2)]),
    "a span of 1,000 characters": (f'`<ref id="a">{"x" * 988}`', [], None, [("in_code", "a", 2)]),
    "a span of 1,001 characters": (f'`<ref id="a">{"x" * 989}`', [cut("a", "x" * 989 + "`")], "`" + "x" * 989 + "`", [("unclosed", "a", 2)]),
    "a run too long for a span": (f'{"`" * 1001}<ref id="a">x</ref>{"`" * 1001}', A, "`" * 1001 + "x" + "`" * 1001, []),
    "a span that ends inside a ref": ('a ` b <ref id="a">`x`</ref>', [], None, [("in_code", "a", 7), ("stray_close", None, 22)]),
    "backticks inside": ('<ref id="a">`x</ref>`<ref id="b">y</ref>`', [whole("a", "`x")], '`x`<ref id="b">y</ref>`', [("in_code", "b", 22)]),
    # Cases with thoughts.
    "in thoughts": ('<think>\n<ref id="b">y</ref>\n</think>\n<ref id="a">x</ref>', [whole("b", "y"), *A], "<think>\ny\n</think>\nx", [("in_thoughts", None, 1)]),
    "no refs in thoughts": ('<think>y</think><ref id="a">x</ref>', A, "<think>y</think>x", []),
    "thoughts on a line": ('x\n  <Thinking><ref id="a"/></THINKING>', [whole("a", "")], "x\n  <Thinking></THINKING>", [("in_thoughts", None, 5)]),
    "a word behind text is no thought": ('x <think>\n<ref id="a">x</ref></think>', A, "x <think>\nx</think>", []),
    "an end in backticks": ('<think>`</think>` <ref id="b">y</ref></think><ref id="a">x</ref>', [whole("b", "y"), *A], "<think>`</think>` y</think>x", [("in_thoughts", None, 1)]),
    "a ref that is open at the end of thoughts": ('<think><ref id="b">y</think><ref id="a">x</ref>', [cut("b", "y"), *A], "<think>y</think>x", [("in_thoughts", None, 1)]),
    "a fence that is open at the end of thoughts": ('<think>\n```\n</think>\n<ref id="a">x</ref>', A, "<think>\n```\n</think>\nx", []),
    "thoughts without an end": ('<think>y\n<ref id="a">x</ref>', A, "<think>y\nx", []),
    "thoughts in thoughts": ('<think>y<think>z</think><ref id="a">x</ref>', A, "<think>y<think>z</think>x", []),
    "a word in a span is no thought": ('`<think>` <ref id="a">x</ref></think>', A, "`<think>` x</think>", []),
    "a word in a fence is no thought": ('```\n<think>\n```\n<ref id="a">x</ref></think>', A, "```\n<think>\n```\nx</think>", []),
    "a word in a ref is no thought": ('<ref id="a"><think></ref></think>', [whole("a", "<think>")], "<think></think>", []),
    "a similar word": ('<thinker><ref id="a">x</ref></think>', A, "<thinker>x</think>", []),
    # Cases in JSON strings.
    "in a JSON string": (r'{"a": "<ref id=\"a\" T=\"\u00e9\">x\n\"</ref>"}', [whole("a", r'x\n\"', t="é")], r'{"a": "x\n\""}', []),
    "an escaped tag before a line": ('<ref id=\\"a\\">\ns = "\\n"\n</ref>', [whole("a", 's = "\\n"')], '\ns = "\\n"\n', []),
    "an escaped tag in a line": (r'<ref id=\"a\">f("\n") </ref>', [whole("a", r'f("\n") ')], r'f("\n") ', []),
    "an escaped closing tag": (r'"<ref id=\"a\">x<\/ref>"', A, '"x"', []),
    "an escaped closing tag outside of JSON": (r'<ref id="a">x<\/ref></ref>', [whole("a", r"x<\/ref>")], r"x<\/ref>", []),
    "a JSON string that ends": (r'"<ref id=\"b\">y" <ref id="a">x</ref>', [cut("b", "y"), *A], '"y" x', [("unclosed", "b", 2)]),
    "nested in a JSON string": (r"""<ref id=\"b\">y<ref id='a'>x</ref></ref>""", [whole("b", "yx"), *A], "yx", [("nested", "a", 16)]),
    "a JSON tag in a plain ref": (r'<ref id="a">x<ref id=\"b\"></ref>', [whole("a", r'x<ref id=\"b\">')], r'x<ref id=\"b\">', [("malformed", None, 14)]),
    "both kinds of quotes": (r'<ref id=\"a\" t="x">', [], None, [("malformed", None, 1)]),
    # Cases without markup, or with unusual characters.
    "nothing": ("", [], None, []),
    "plain text": ("a < b > c & d", [], None, []),
    "lone surrogates": ('\ud800<ref id="a">\udfff</ref>', [whole("a", "\udfff")], "\ud800\udfff", []),
    "NUL": ('\x00<ref id="a">\x00</ref>', [whole("a", "\x00")], "\x00\x00", []),
}  # fmt: skip


@every_row("name", ROWS)
@every_row("size", [None, 1, 7])
def test_parser_result_matches_table(name, size):
    """Refs, visible text and diagnostics match the row, for any chunk size."""
    text, refs, visible, diagnostics = ROWS[name]

    assert (refs, text if visible is None else visible, diagnostics) == found(parse(text, size))


def test_parser_events_are_ordered():
    """A diagnostic precedes its subject, and texts are in their original places."""
    text = '1</ref>2<ref id="a">3<ref id="b"/>4<ref>5'

    assert [
        PlainText("1"), "stray_close", PlainText("</ref>2"), RefStart("a", {}), RefText("3"), "nested", RefStart("b", {}),
        RefEnd("b", is_complete=True), RefText("4"), "missing_id", RefText("<ref>5"), "unclosed", RefEnd("a", is_complete=False),
    ] == [event.kind if isinstance(event, Diagnostic) else event for event in parse(text)]  # fmt: skip


def test_parser_does_not_close_fence_at_its_opening_line():
    """The split of the text into chunks has no effect."""
    parser = RefParser()
    events = [*parser.feed("~~~ "), *parser.feed('\n<ref id="a">'), *parser.close()]

    assert ["in_code"] == [event.kind for event in events if isinstance(event, Diagnostic)]


def test_ref_start_has_position_of_tag():
    """Positions count from 1 over the complete text; astral characters count once."""
    starts = [event for event in parse('\U0001f600<ref id="a">\n<ref id="b"/>', 1) if isinstance(event, RefStart)]

    assert [2, 15] == [start.position for start in starts]


DIAGNOSTIC_MESSAGES = {
    "malformed": ("<ref id=a>", 'write <ref id="name">, with every value in quotes'),
    "malformed closing": ("</ref a>", "write </ref>"),
    "unfinished": ('<ref id="a"', "the text ended inside this tag"),
    "too_long": (f'<ref id="{"a" * 600}">', "at most 512 characters"),
    "missing_id": ("<ref>", 'no id and was left as text: write <ref id="name">'),
    "invalid_id": ('<ref id="a b">', "'a b' is no id, so this tag was left as text: an id is 1 to 64"),
    "stray_close": ("</ref>", "no ref is open here"),
    "in_code": ('`<ref id="a">`', "'a' is in code"),
    "nested": ('<ref id="a"><ref id="b"/></ref>', "'b' is inside ref 'a'"),
    "too_deep": (DEEP + '<ref id="b"/>' + "</ref>" * MAX_DEPTH, "64 deep"),
    "unclosed": ('<ref id="a">', "'a' was not closed with </ref>"),
}  # fmt: skip


@every_row("name", DIAGNOSTIC_MESSAGES)
def test_diagnostic_message_names_ref_and_rule(name):
    """The message is an instruction for a model."""
    text, words = DIAGNOSTIC_MESSAGES[name]

    assert words in [event for event in parse(text) if isinstance(event, Diagnostic)][-1].message


def test_diagnostic_message_truncates_long_id():
    """The message is short for any id."""
    (diagnostic,) = (event for event in parse(f'<ref id="{"a" * 500}">') if isinstance(event, Diagnostic))

    assert "a" * 500 == diagnostic.id
    assert 300 > len(diagnostic.message)


def test_is_note_is_true_only_for_nested():
    """All other kinds of the parser report a problem."""
    said = [event for text, _ in DIAGNOSTIC_MESSAGES.values() for event in parse(text) if isinstance(event, Diagnostic)]

    assert {"nested"} == {event.kind for event in said if event.is_note}
    assert 9 == len({event.kind for event in said})
