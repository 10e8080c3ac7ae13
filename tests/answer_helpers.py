"""Reads what the ref tools answer, as strictly as it is written."""

import ast
import html
import re

import attrs

ATTRIBUTE = re.compile(r' (/?\w+)="([^"]*)"')
ELEMENT = re.compile(r'<(\w+)((?: \w+="[^"<]*")*)>(.*)</\1((?: end="[0-9a-f]{8}")?)>', re.DOTALL)
EMPTY = re.compile(r'<(\w+)((?: \w+="[^"<]*")*)/>')


@attrs.frozen
class Answer:
    """An element: its name, its attributes, and what stands between its tags."""

    name: str
    attributes: dict[str, str]
    text: str = ""

    def get(self, name):
        """Return an attribute's value, None where there is none."""
        return self.attributes.get(name)

    @property
    def next(self):
        """The arguments of the call that goes on, None at the end."""
        if (call := self.get("next")) is None:
            return None
        (expression,) = ast.parse(call).body
        return {word.arg: ast.literal_eval(word.value) for word in expression.value.keywords}


def attributes_in(text):
    """Read attributes."""
    return {name: html.unescape(value) for name, value in ATTRIBUTE.findall(text)}


def answer_in(xml):
    """Read one whole element."""
    if empty := EMPTY.fullmatch(xml):
        return Answer(empty[1], attributes_in(empty[2]))
    found = ELEMENT.fullmatch(xml)
    assert found, xml[:300]
    attributes = attributes_in(found[2])
    assert attributes_in(found[4]).get("end") == attributes.get("end")
    return Answer(found[1], attributes, found[3])


def message_in(xml):
    """Read the message in an answer."""
    return html.unescape(re.search(r"<message>(.*?)</message>", xml, re.DOTALL)[1])
