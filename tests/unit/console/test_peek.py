"""The bounded look: right about the leaders, honest about what it saw, and no more expensive with more keys."""

import gc
import weakref

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.console import _peek
from purgatory.console._peek import Peek
from tests.support import park, park_many


@pytest.fixture
def fetch(mock_timer):
    with DelayedOperationPurgatory("fetch", timer=mock_timer) as purgatory:
        yield purgatory


@pytest.fixture
def look(fetch, mock_timer):
    """Look at ``fetch``, each time further along its keys."""
    peek = Peek(fetch)
    return lambda: peek.look(mock_timer.now_ns())


@pytest.fixture
def few_keys(monkeypatch):
    """A look walks 100 keys."""
    monkeypatch.setattr(_peek, "KEYS_PER_LOOK", 100)


def test_hottest_keys_come_first(fetch, look):
    park(fetch, "cold")
    park_many(fetch, 5, "hot")
    seen = look()
    assert (("hot", 5), ("cold", 1)) == seen.hottest
    assert 2 == seen.keys == seen.visited


def test_oldest_operations_come_first(fetch, look, mock_timer):
    park(fetch, "first")
    mock_timer.advance_clock(1000)
    park(fetch, "second")
    first, second = look().oldest
    assert ("first", "Waiting", 1000, 59_000, 2) == (first.key, first.type, first.age_ms, first.left_ms, first.checks)
    assert ("second", 0) == (second.key, second.age_ms)


def test_few_keys_show_more_than_one_operation_each(fetch, look):
    park_many(fetch, 5)
    assert 5 == len(look().oldest)


def test_finished_operations_are_not_shown(fetch, look):
    """Its entry may still be in the list of watchers."""
    done, _ = park_many(fetch, 2)
    done.force_complete()
    assert 1 == len(look().oldest)


def test_look_is_bounded(fetch, look, few_keys):
    """With many keys a look walks a part and says so. Look after look it comes round, and finds the leader."""
    for number in range(2000):
        park(fetch, number)
    park_many(fetch, 3, "hot")
    looks = [look() for _ in range(25)]

    assert all(100 <= seen.visited < 200 for seen in looks)
    assert 2001 == looks[0].keys
    assert ("hot", 3) == looks[-1].hottest[0]


def test_leader_is_not_forgotten(fetch, look, mock_timer, few_keys):
    """Once found, the hottest and the oldest stay in view while the look walks elsewhere, and are measured again."""
    park_many(fetch, 3, "hot")
    mock_timer.advance_clock(5)
    for number in range(2000):
        park(fetch, number)
    for _ in range(25):
        look()
    park(fetch, "hot")

    for _ in range(5):
        seen = look()
        assert ("hot", 4) == seen.hottest[0]
        assert "hot" == seen.oldest[0].key


def test_nothing_is_kept_alive():
    passing = DelayedOperationPurgatory("passing", timer_enabled=False)
    peek, operation = Peek(passing), park(passing)
    peek.look(0)
    operation.force_complete()
    passing.purge()
    gone = weakref.ref(operation), weakref.ref(passing)
    del operation, passing
    gc.collect()

    assert [None, None] == [reference() for reference in gone]
    assert 0 == peek.look(0).keys


@pytest.mark.parametrize("key", ["orders-3", 7, ("orders", 3), "two\nlines", "k" * 500, "<script>"])
def test_key_is_found_by_its_label(fetch, key):
    park(fetch, key)
    assert key == Peek(fetch).find(_peek.label(key))


def test_unknown_label_finds_nothing(fetch):
    assert Peek(fetch).find("nobody") is None
