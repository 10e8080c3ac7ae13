"""Failed references: kinds of failures, and the failure messages for the model."""

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
from mama_structs.references.results import (
    Failure,
    make_deadline_failure,
    make_timeout_failure,
    make_unknown_id_failure,
    to_failure,
)


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
def test_failure_has_kind_and_message_for_each_error(error, kind, text):
    """Only a not-found has the message "Entity not found". The cause is kept."""
    failed = to_failure(error)

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
def test_failure_message_hides_secrets(text, shown):
    """Other text, such as paths and mail addresses, is kept."""
    assert f"RuntimeError: {shown}" == to_failure(RuntimeError(text)).error
    assert shown == to_failure(StructsUnreachable(text)).error


def test_secrets_are_removed_before_message_is_truncated():
    failed = to_failure(RuntimeError("x" * 160 + " http://user:" + "s3cret" * 20 + "@node/"))

    assert "s3cret" not in failed.error


def test_long_message_is_truncated_to_200_characters():
    failed = to_failure(RuntimeError("x" * 10**6))

    assert 200 == len(failed.error)
    assert failed.error.endswith("x…")
    assert 200 == len(to_failure(MamaStructsError("y" * 200)).error)
    assert "…" not in to_failure(MamaStructsError("y" * 200)).error


def test_failure_of_error_with_failing_str_has_its_class_name():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    assert Failure("source_error", "Odd") == to_failure(Odd())


def test_timeout_deadline_and_unknown_id_have_distinct_messages():
    assert Failure("timeout", "No answer within 2 s") == make_timeout_failure(2.0)
    assert Failure("deadline", "No answer before the deadline of 0.5 s for all references") == make_deadline_failure(
        0.5
    )
    assert Failure("unsupported", "No source answers for ids such as '99-1'") == make_unknown_id_failure("99-1")
    assert len(make_unknown_id_failure("x" * 10**6).error) < 200


def test_failures_are_equal_without_their_causes():
    first, second = to_failure(ValueError("x")), to_failure(ValueError("x"))

    assert first == second
    assert "cause" not in repr(first)
