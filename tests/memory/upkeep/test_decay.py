"""Decay of link strength, and selection of the links to prune."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import plain_link, plain_memory

from mama_structs.memory.types.model import (
    CREATORS,
    DECAY_RATES_PER_DAY,
    LinkType,
    from_milliseconds,
    to_milliseconds,
)
from mama_structs.memory.upkeep.maintenance import is_prunable, prunable_mask
from mama_structs.settings import MemorySettings
from mama_structs.testing.plain_engine import PlainReader

NOW = from_milliseconds(1_790_000_000_000)
DAY = timedelta(days=1)

links = st.builds(
    plain_link,
    st.just("b"),
    st.just("a"),
    link_id=st.integers(0, 10**9).map(str),
    type=st.sampled_from(LinkType),
    confidence=st.floats(0, 1),
    created_by=st.sampled_from(CREATORS),
    at=st.integers(-(10**11), 10**9).map(lambda ms: NOW + timedelta(milliseconds=ms)),
)


def table_of(several):
    reader = PlainReader()
    for name in ("a", "b"):
        reader.put(plain_memory(name))
    for link in several:
        reader.put_link(link)
    return reader.links(np.array([0]), "both")


@pytest.mark.parametrize(
    ("link_type", "rate"),
    [
        (LinkType.EVOLUTION, 0.0),
        (LinkType.IMPLEMENTATION, 0.02),
        (LinkType.TEMPORAL, 0.1),
    ],
)
def test_automatic_links_decay_by_rate_of_type(link_type, rate):
    """After ten days, an automatic link has decayed by ten times its type's rate, as an exponent."""
    link = plain_link("b", "a", type=link_type, confidence=0.8, created_by="system", at=NOW - 10 * DAY)

    assert 0.8 * math.exp(-10 * rate) == pytest.approx(link.strength(NOW))
    assert 0.8 * math.exp(-10 * rate) == pytest.approx(link.strength(NOW))


def test_decay_matches_known_values():
    """An association of 0.4 decays to 0.2 in 13.9 days, a temporal link of 0.5 in 9.2 days."""
    association = plain_link("b", "a", confidence=0.4, at=NOW - 13.863 * DAY)
    temporal = plain_link("b", "a", type=LinkType.TEMPORAL, confidence=0.5, at=NOW - 9.163 * DAY)

    assert 0.2 == pytest.approx(association.strength(NOW), abs=1e-5)
    assert 0.2 == pytest.approx(temporal.strength(NOW), abs=1e-5)


@pytest.mark.parametrize("creator", ["user", "llm"])
@pytest.mark.parametrize("link_type", LinkType)
def test_explicit_links_do_not_decay(creator, link_type):
    """Links of users and models keep their strength for ten years."""
    link = plain_link("b", "a", type=link_type, confidence=0.8, created_by=creator, at=NOW - 3650 * DAY)

    assert 0.8 == link.strength(NOW)


def test_every_link_type_has_a_decay_rate():
    """The table of rates contains every link type."""
    assert set(LinkType) == set(DECAY_RATES_PER_DAY)


@given(link=links)
def test_link_from_future_has_full_strength(link):
    """A clock that was set back neither strengthens nor weakens a link."""
    assert link.confidence == link.strength(link.created_at - timedelta(hours=1))


@given(several=st.lists(links, max_size=8, unique_by=lambda link: link.id))
def test_vectorised_strengths_equal_link_strengths(several):
    """The vectorised computation equals that of single links."""
    faded = table_of(several).decayed_confidences(to_milliseconds(NOW))

    assert np.float32 == faded.dtype
    assert [link.strength(NOW) for link in several] == pytest.approx(faded.tolist(), abs=1e-6)


@given(several=st.lists(links, max_size=8, unique_by=lambda link: link.id), below=st.sampled_from([0.0, 0.2, 0.7, 1.0]))
def test_vectorised_pruning_equals_link_pruning(several, below):
    """The vectorised selection equals that of single links, and contains no explicit link."""
    settings = MemorySettings(prune_below=below)
    picked = prunable_mask(table_of(several), to_milliseconds(NOW), settings).tolist()

    assert [is_prunable(link, NOW, settings) for link in several] == picked
    assert not any(link.created_by != "system" for link, gone in zip(several, picked, strict=True) if gone)


@pytest.mark.parametrize(
    ("keywords", "gone"),
    [
        ({"confidence": 0.19}, True),
        ({"confidence": 0.2}, False),
        ({"confidence": 0.19, "created_by": "user"}, False),
        ({"confidence": 0.19, "created_by": "llm"}, False),
        ({"type": LinkType.TEMPORAL, "at": NOW - 30 * DAY}, False),
        ({"type": LinkType.TEMPORAL, "at": NOW - 30 * DAY - timedelta(milliseconds=1)}, True),
        ({"type": LinkType.TEMPORAL, "at": NOW - 31 * DAY, "created_by": "llm"}, False),
        ({"type": LinkType.ASSOCIATION, "at": NOW - 3650 * DAY}, False),
        ({"type": LinkType.TEMPORAL, "at": NOW + 31 * DAY}, False),
    ],
)
def test_prune_selects_weak_and_old_automatic_links(keywords, gone):
    """Automatic links with a confidence below 0.2 and temporal links older than 30 days are pruned."""
    link = plain_link("b", "a", **{"at": NOW, **keywords})
    table = table_of([link])

    assert gone == is_prunable(link, NOW, MemorySettings())
    assert [gone] == prunable_mask(table, to_milliseconds(NOW), MemorySettings()).tolist()


@pytest.mark.parametrize("confidence", [0.1, 0.3, 0.7, 0.9])
def test_prune_keeps_link_at_threshold(confidence):
    """Single precision does not move a link below the threshold that it equals."""
    table = table_of([plain_link("b", "a", confidence=confidence, at=NOW)])

    assert [False] == prunable_mask(table, to_milliseconds(NOW), MemorySettings(prune_below=confidence)).tolist()
