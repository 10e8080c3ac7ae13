import base64

from hypothesis import example, given
from hypothesis import strategies as st

from mama_structs.testing import World
from mama_structs.testing.node.routes import PageRequest, compute_body, match_route, paginate

WORLD = World.generate(seed=2, players=30)


def pages(path, query):
    """Yield each page of a list, following ``next_key``."""
    while True:
        page = compute_body(WORLD, match_route(path), query, height=1)
        yield page
        if page["pagination"]["next_key"] is None:
            return
        query = query | {"pagination.key": page["pagination"]["next_key"]}


@given(limit=st.integers(1, 120), name=st.sampled_from(["player", "struct", "struct_type", "infusion", "guild"]))
def test_joined_pages_are_all_rows_in_byte_order(limit, name):
    """All pages except the last are full, for any page size."""
    answers = list(pages(f"/structs/{name}", {"pagination.limit": str(limit)}))
    key = next(iter(answers[0]))

    assert WORLD.rows(name) == [row for page in answers for row in page[key]]
    assert {limit} >= {len(page[key]) for page in answers[:-1]}


@given(limit=st.integers(1, 50))
def test_reversed_pages_are_all_rows_in_reverse_order(limit):
    answers = pages("/structs/player", {"pagination.limit": str(limit), "pagination.reverse": "true"})

    assert WORLD.rows("player")[::-1] == [row for page in answers for row in page["Player"]]


KEYS = st.lists(st.binary(min_size=1, max_size=3), unique=True).map(sorted)


@given(keys=KEYS, offset=st.integers(0, 12), limit=st.integers(0, 12), reverse=st.booleans(), count=st.booleans())
@example(keys=[b"a"], offset=0, limit=2**64 - 1, reverse=False, count=False)
def test_offset_skips_rows(keys, offset, limit, reverse, count):
    """The total is counted if requested, or without a limit."""
    page = paginate(keys, PageRequest(offset=offset, limit=limit, reverse=reverse, count_total=count))
    rows = (keys[::-1] if reverse else keys)[offset:]
    size = limit or 100

    assert rows[:size] == [keys[number] for number in page.row_numbers]
    assert (rows[size] if len(rows) > size else None) == page.next_key
    assert (len(keys) if count or not limit else 0) == page.total


@given(keys=KEYS, key=st.binary(min_size=1, max_size=3), reverse=st.booleans())
def test_page_may_start_at_any_key(keys, key, reverse):
    """
    The key need not exist.

    Forward pages start at the next key; in reverse order that key is the first.
    """
    page = paginate(keys, PageRequest(key=key, limit=100, reverse=reverse))
    rest = [one for one in keys if one >= key]
    expected = rest
    if reverse:
        expected = [one for one in keys if one < key or one == (rest or [None])[0]][::-1]

    assert expected == [keys[number] for number in page.row_numbers]


def test_page_key_accepts_both_base64_alphabets():
    """The gateway also accepts the URL-safe alphabet."""
    key = b"\xfb\xff\xfe"

    assert key == PageRequest.from_query({"pagination.key": base64.b64encode(key).decode()}).key
    assert key == PageRequest.from_query({"pagination.key": base64.urlsafe_b64encode(key).decode()}).key
