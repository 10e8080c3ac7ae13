"""Strict parser for the answers of the ref tools."""

import ast
import html
import re

import attrs

ATTRIBUTE = re.compile(r' (/?\w+)="([^"]*)"')
ELEMENT = re.compile(r'<(\w+)((?: \w+="[^"<]*")*)>(.*)</\1((?: end="[0-9a-f]{8}")?)>', re.DOTALL)
EMPTY = re.compile(r'<(\w+)((?: \w+="[^"<]*")*)/>')


@attrs.frozen
class Answer:
    """An XML element: its name, its attributes, and the text between its tags."""

    name: str
    attributes: dict[str, str]
    text: str = ""

    def get(self, name):
        """Return the value of an attribute, or None."""
        return self.attributes.get(name)

    @property
    def next(self):
        """The arguments of the call that returns the next part of the answer, or None if this is the last part."""
        if (call := self.get("next")) is None:
            return None
        (expression,) = ast.parse(call).body
        return {word.arg: ast.literal_eval(word.value) for word in expression.value.keywords}


def attributes_in(text):
    """Parse the attributes of a tag."""
    return {name: html.unescape(value) for name, value in ATTRIBUTE.findall(text)}


def answer_in(xml):
    """Parse one complete element."""
    if empty := EMPTY.fullmatch(xml):
        return Answer(empty[1], attributes_in(empty[2]))
    found = ELEMENT.fullmatch(xml)
    assert found, xml[:300]
    attributes = attributes_in(found[2])
    assert attributes_in(found[4]).get("end") == attributes.get("end")
    text = found[3]
    if found[1] == "ref_content":
        # The content is between line breaks.
        assert text[:1] == text[-1:] == "\n" != text
        text = text[1:-1]
    return Answer(found[1], attributes, text)


def message_in(xml):
    """Return the message in an answer."""
    return html.unescape(re.search(r"<message>(.*?)</message>", xml, re.DOTALL)[1])
