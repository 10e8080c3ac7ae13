"""Why a reference failed, in words for an agent."""

import pytest

from mama_structs.errors import (
    EntityNotFound,
    InvalidArgument,
    MalformedResponse,
    MamaStructsError,
    QueryTimeout,
    RateLimited,
    ResponseTooLarge,
    SessionClosed,
    StructsAPIError,
    StructsError,
    StructsUnreachable,
)
from mama_structs.references.results import Failure, failure_of, past_deadline, timed_out, unknown_id


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (EntityNotFound("1-1"), "not_found", "Entity not found"),
        (EntityNotFound("1-1", hint="look elsewhere"), "not_found", "Entity not found"),
        (RateLimited("slow down", retry_after=3.0), "rate_limited", "Rate limited: ask again in 3 s"),
        (RateLimited("slow down"), "rate_limited", "slow down"),
        (MalformedResponse("no id", path="$.Player"), "malformed", "$.Player: no id"),
        (ResponseTooLarge(5), "too_large", "the answer is larger than 5 bytes"),
        (StructsUnreachable("refused"), "unreachable", "refused"),
        (StructsAPIError("boom", status=500, code=13), "api_error", "boom"),
        (QueryTimeout("no answer", seconds=2), "timeout", "no answer"),
        (TimeoutError(), "timeout", "TimeoutError"),
        (TimeoutError("late"), "timeout", "TimeoutError: late"),
        (StructsError("other"), "source_error", "other"),
        (SessionClosed("closed", hint="open"), "source_error", "closed"),
        (MamaStructsError("x"), "source_error", "x"),
        (InvalidArgument("bad"), "source_error", "bad"),
        (LookupError("1-1"), "source_error", "LookupError: 1-1"),
        (KeyError("x"), "source_error", "KeyError: 'x'"),
        (ConnectionError("refused"), "source_error", "ConnectionError: refused"),
        (RuntimeError(), "source_error", "RuntimeError"),
        (ValueError("two\n  lines\tand\x0btabs "), "source_error", "ValueError: two lines and tabs"),
        (ExceptionGroup("two", [ValueError("x"), KeyError("y")]), "source_error", "ExceptionGroup: two (2 sub-exceptions)"),
    ],
)  # fmt: skip
def test_each_error_has_a_kind_and_says_what_happened(error, kind, text):
    """Only a not-found says "Entity not found"; everything else says what it was, and keeps its cause."""
    failed = failure_of(error)

    assert (kind, text) == (failed.kind, failed.error)
    assert error is failed.cause
    assert (failed.error == "Entity not found") is isinstance(error, EntityNotFound)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://user:secret@node:1317/x", "at http://***@node:1317/x"),
        ("https://secret@node", "https://***@node"),
        ("http://user:se@cr@et@node/x", "http://***@node/x"),
        ("http://a:b@c http://d:e@f", "http://***@c http://***@f"),
        ("http://node/users/me@example.org?a=b@c", "http://node/users/me@example.org?***"),
        ("http://node?api_key=SECRET of x", "http://node?*** of x"),
        ("Authorization: Bearer SECRET", "***"),
        ("api_key=SECRET, retry", "*** retry"),
        ("password SECRET is wrong", "*** is wrong"),
        ("a token was expected", "a *** expected"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_no_secret_of_a_url_is_shown(text, shown):
    """Names and passwords in addresses do not reach the agent, and nothing else is lost."""
    assert f"RuntimeError: {shown}" == failure_of(RuntimeError(text)).error
    assert shown == failure_of(StructsUnreachable(text)).error


def test_a_secret_is_not_cut_open_by_the_length():
    """The text is shortened after secrets are gone, so no part of one is left at the end."""
    failed = failure_of(RuntimeError("x" * 160 + " http://user:" + "s3cret" * 20 + "@node/"))

    assert "s3cret" not in failed.error


def test_long_texts_are_cut_and_say_so():
    """An agent gets 200 characters at the most."""
    failed = failure_of(RuntimeError("x" * 10**6))

    assert 200 == len(failed.error)
    assert failed.error.endswith("x…")
    assert 200 == len(failure_of(MamaStructsError("y" * 200)).error)
    assert "…" not in failure_of(MamaStructsError("y" * 200)).error


def test_an_error_that_cannot_describe_itself_is_named():
    """A host's exception whose text fails is shown by its class."""

    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    assert Failure("source_error", "Odd") == failure_of(Odd())


def test_failures_of_time_say_which_time():
    """A query's timeout, the call's deadline and an unknown id are told apart."""
    assert Failure("timeout", "No answer within 2 s") == timed_out(2.0)
    assert Failure("deadline", "No answer before the deadline of 0.5 s for all references") == past_deadline(0.5)
    assert Failure("unsupported", "No source answers for ids such as '99-1'") == unknown_id("99-1")
    assert len(unknown_id("x" * 10**6).error) < 200


def test_failures_are_compared_by_what_they_say():
    """Two failures of one kind and text are equal, whatever caused them; the cause is not shown."""
    first, second = failure_of(ValueError("x")), failure_of(ValueError("x"))

    assert first == second
    assert "cause" not in repr(first)
