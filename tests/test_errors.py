"""Error classes: their hierarchy, attributes, pickling and copying."""

import copy
import inspect
import pickle
import re
from datetime import UTC, datetime

import pytest
from row_helpers import every_row

from mama_structs import errors
from mama_structs.errors import MamaStructsError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, MamaStructsError)
}

EXAMPLES = {
    "MamaStructsError": lambda: MamaStructsError("what", hint="do"),
    "InvalidArgument": lambda: errors.InvalidArgument("what", hint="do"),
    "InvalidSetting": lambda: errors.InvalidSetting("what", name="x", hint="do"),
    "NoSource": lambda: errors.NoSource("what", entity_id="c-1", hint="do"),
    "StructsError": lambda: errors.StructsError("what", hint="do"),
    "EntityNotFound": lambda: errors.EntityNotFound("1-1", hint="do"),
    "RateLimited": lambda: errors.RateLimited("what", retry_after=3.0, hint="do"),
    "StructsAPIError": lambda: errors.StructsAPIError("what", status=500, code=13, message="boom", hint="do"),
    "MalformedResponse": lambda: errors.MalformedResponse("what", path="$.Player", hint="do"),
    "ResponseTooLarge": lambda: errors.ResponseTooLarge(10, hint="do"),
    "StructsUnreachable": lambda: errors.StructsUnreachable("what", hint="do", host="node", port=1317),
    "QueryTimeout": lambda: errors.QueryTimeout("what", seconds=2.0, hint="do"),
    "UnknownNamespace": lambda: errors.UnknownNamespace("user:eve", hint="do"),
    "UnknownTool": lambda: errors.UnknownTool("fly", hint="do"),
    "MigrationError": lambda: errors.MigrationError("what", path="old.db", hint="do"),
    "StoreError": lambda: errors.StoreError("what", hint="do"),
    "StoreBusy": lambda: errors.StoreBusy("what", waited=1.5, hint="do"),
    "StoreMismatch": lambda: errors.StoreMismatch("what", namespace="default", ids=("decision_x",), hint="do"),
    "StoreFull": lambda: errors.StoreFull("what", hint="do"),
    "StoreDamaged": lambda: errors.StoreDamaged("what", file="cache.db", findings=("a page",), hint="do"),
    "StoreReadOnly": lambda: errors.StoreReadOnly("what", namespace="raids", role="raiders", hint="do"),
    "StoreUnreachable": lambda: errors.StoreUnreachable("what", hint="do"),
    "MemoryStoreError": lambda: errors.MemoryStoreError("what", hint="do"),
    "MemoryNotFound": lambda: errors.MemoryNotFound("decision_x", nearest=("decision_y",), hint="do"),
    "LinkNotFound": lambda: errors.LinkNotFound("link_x", hint="do"),
    "MemoryReadOnly": lambda: errors.MemoryReadOnly("decision_x", namespace="team:core", hint="do"),
    "EmbedderMismatch": lambda: errors.EmbedderMismatch("what", stored=("a", "1"), given=("b", "2"), hint="do"),
    "EmbeddingFailed": lambda: errors.EmbeddingFailed("what", hint="do"),
    "RerankingFailed": lambda: errors.RerankingFailed("what", hint="do"),
    "DescriptorError": lambda: errors.DescriptorError("what", handle="fd:1", hint="do"),
    "HandleNotFound": lambda: errors.HandleNotFound(
        "what", handle="fd:1", nearest=("fd:2",), deleted_at=datetime(2026, 1, 1, tzinfo=UTC), hint="do"
    ),
    "InvalidHandle": lambda: errors.InvalidHandle("what", handle="1", hint="do"),
    "InvalidRange": lambda: errors.InvalidRange("what", valid=(1, 3), handle="fd:1", hint="do"),
    "InvalidPage": lambda: errors.InvalidPage("what", valid=(1, 3), handle="fd:1", hint="do"),
    "InvalidParameter": lambda: errors.InvalidParameter("what", parameter="count", handle="fd:1", hint="do"),
    "HandleDamaged": lambda: errors.HandleDamaged("what", handle="fd:1", hint="do"),
    "QuotaExceeded": lambda: errors.QuotaExceeded("what", quota="max_bytes", used=1, limit=2, handle="fd:1", hint="do"),
    "SearchTimeout": lambda: errors.SearchTimeout("what", seconds=2.0, handle="fd:1", hint="do"),
    "ExportError": lambda: errors.ExportError("what", path="a", handle="fd:1", hint="do"),
    "ExportExists": lambda: errors.ExportExists("what", path="a", handle="fd:1", hint="do"),
    "ExportMissing": lambda: errors.ExportMissing("what", path="a", handle="fd:1", hint="do"),
    "PathDenied": lambda: errors.PathDenied("what", path="a", handle="fd:1", root="/root", hint="do"),
    "ExportDenied": lambda: errors.ExportDenied("what", path="a", handle="fd:1", hint="do"),
    "ExportDiskFull": lambda: errors.ExportDiskFull("what", path="a", handle="fd:1", hint="do"),
    "VersionConflict": lambda: errors.VersionConflict("what", labels=("a",), key="b", version=2, hint="do"),
    "NoSession": lambda: errors.NoSession("what", hint="do"),
    "SessionClosed": lambda: errors.SessionClosed("what", hint="do"),
    "WrongLoop": lambda: errors.WrongLoop("what", hint="do"),
}


# Errors for missing objects share a type, because models need not distinguish them.
SAME_WORD = {"not_found": ["EntityNotFound", "HandleNotFound", "MemoryNotFound", "LinkNotFound"]}


def drawn_tree():
    """Parse the error tree in the module's docstring: name, parent, builtin base, type and attributes."""
    tree, path = {}, []
    for line in errors.__doc__.splitlines():
        drawn = re.fullmatch(r"    ([│ ├└─]*)(\w+)(?: \((\w+)\))? +(\w+)(.*)", line)
        if drawn is None or drawn[2] not in CLASSES:
            continue
        depth = len(drawn[1]) // 3
        path = [*path[:depth], drawn[2]]
        attributes = re.findall(r"\.(\w+)", drawn[5].split("such as")[0])
        tree[drawn[2]] = (path[-2] if depth else None, drawn[3], drawn[4], attributes)
    return tree


TREE = drawn_tree()


def test_docstring_tree_contains_every_error():
    """The test has an example of each."""
    assert sorted(CLASSES) == sorted(TREE)
    assert sorted(CLASSES) == sorted(EXAMPLES)


@every_row("name", TREE)
def test_error_has_bases_and_attributes_of_docstring_tree(name):
    parent, builtin, _, attributes = TREE[name]
    bases = [base.__name__ for base in CLASSES[name].__bases__]
    error = EXAMPLES[name]()

    assert [base for base in (parent or "Exception", builtin) if base] == bases
    assert all(getattr(error, attribute) is not None for attribute in attributes)
    assert isinstance(error, MamaStructsError)


@every_row("name", TREE)
def test_error_type_is_unique_snake_case_word_of_docstring_tree(name):
    *_, word, _ = TREE[name]

    assert word == vars(CLASSES[name])["type"] == EXAMPLES[name]().type
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", word)
    assert SAME_WORD.get(word, [name]) == [other for other, found in CLASSES.items() if found.type == word]


def test_error_subclass_of_host_inherits_type():
    assert "source_error" == HostError("x", []).type


def same(first, second):
    return (type(first), str(first), first.args, vars(first)) == (type(second), str(second), second.args, vars(second))


@every_row("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@every_row("name", EXAMPLES)
def test_every_error_can_be_pickled(name, protocol):
    error = EXAMPLES[name]()
    error.add_note("seen twice")
    again = pickle.loads(pickle.dumps(error, protocol))

    assert same(error, again)
    assert ["seen twice"] == again.__notes__


@every_row("name", EXAMPLES)
def test_every_error_can_be_copied(name):
    error = EXAMPLES[name]()
    copies = [copy.copy(error), copy.deepcopy(error), copy.copy(copy.copy(error))]
    copies[0].hint = "another"

    assert all(same(error, one) for one in copies[1:])
    assert "do" == error.hint


def test_error_subclass_with_own_arguments_can_be_pickled():
    again = pickle.loads(pickle.dumps(HostError("x", [1, 2])))

    assert ([1, 2], "x of 2") == (again.parts, str(again))


class HostError(errors.StructsError):
    def __init__(self, what, parts):
        super().__init__(f"{what} of {len(parts)}")
        self.parts = parts


@every_row("name", EXAMPLES)
def test_str_appends_hint_in_brackets(name):
    error = EXAMPLES[name]()
    text = str(error)
    error.hint = None

    assert f"{error} (do)" == text
    assert "None" not in str(error)
    assert "do" == EXAMPLES[name]().hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("EntityNotFound", "no entity has the id 1-1 (do)"),
        ("MalformedResponse", "$.Player: what (do)"),
        ("ResponseTooLarge", "the answer is larger than 10 bytes (do)"),
        ("UnknownTool", "there is no tool named 'fly' (do)"),
        ("StoreReadOnly", "what (do)"),
        ("StoreUnreachable", "what (do)"),
        ("QueryTimeout", "what (do)"),
    ],
)
def test_message_names_the_offending_value(name, text):
    assert text == str(EXAMPLES[name]())


def test_optional_attributes_have_defaults():
    error = errors.StructsAPIError("x", status=500)

    assert None is errors.RateLimited("x").retry_after
    assert (500, None, None) == (error.status, error.code, error.message)
    assert "$" == errors.MalformedResponse("x").path
    assert None is MamaStructsError("x").hint
