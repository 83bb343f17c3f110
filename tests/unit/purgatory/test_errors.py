"""Errors: one class per mistake, under PurgatoryError and the built-in it refines, with the offending value."""

import pytest

from purgatory import (
    AlreadyParked,
    InvalidOperation,
    InvalidSetting,
    InvalidTenant,
    NoKeys,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    UnhashableKey,
    WatchKeysType,
)


@pytest.mark.parametrize(
    ("error", "builtin", "attributes", "says"),
    [
        (PurgatoryClosed("p"), RuntimeError, {"name": "p"}, "answer the client yourself"),
        (PurgatoryFull("p", 5), RuntimeError, {"name": "p", "limit": 5, "tenant": None}, "answer 'busy'"),
        (PurgatoryFull("p", 5, "a", "no"), RuntimeError, {"limit": 5, "tenant": "a"}, "no place for tenant 'a': no"),
        (InvalidTenant(3, "no"), TypeError, {"operation": 3}, "the tenant of a int can't be told: no"),
        (AlreadyParked("op"), RuntimeError, {"operation": "op"}, "make a new one"),
        (NoKeys(), ValueError, {}, "give at least one key"),
        (WatchKeysType("k"), TypeError, {"watch_keys": "k"}, r"write [key]"),
        (UnhashableKey([1]), TypeError, {"key": [1]}, "use a tuple"),
        (InvalidOperation(5, "it is no operation"), TypeError, {"operation": 5}, "it is no operation"),
        (InvalidSetting("shards", 0, "more"), ValueError, {"setting": "shards", "value": 0}, "shards must be more"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_carries_its_value_and_says_what_to_do(error, builtin, attributes, says):
    """An error refines a built-in, keeps what was given, and says what to do about it."""
    assert isinstance(error, PurgatoryError)
    assert isinstance(error, builtin)
    assert attributes == {name: getattr(error, name) for name in attributes}
    assert says in str(error)
