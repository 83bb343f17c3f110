"""A key is shown as one printable line, and two keys that differ never as the same."""

import enum
import string
from decimal import Decimal
from fractions import Fraction

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory._core.label import LONGEST, label


@attrs.frozen
class Partition:
    topic: str
    index: int


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("orders-3", "orders-3"),
        ("room:lobby/1", "room:lobby/1"),
        ("", "''"),
        (7, "7"),
        ("7", "'7'"),
        (None, "None"),
        (("orders", 3), "(orders, 3)"),
        (("orders",), "(orders,)"),
        (frozenset({"b", "a"}), "{a, b}"),
        (b"id", "b'id'"),
        ("<script>", "<script>"),
        ("two\nlines", r"'two\nlines'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        ("abc\u202edcba", r"'abc\u202edcba'"),
        ("naïve 東京", "naïve 東京"),
        (Partition("orders", 3), f"{__name__}:Partition(topic='orders', index=3)"),
    ],
)
def test_label(key, text):
    """Text stays as it is where nothing else is written so. Other keys are written so that one can read them."""
    assert text == label(key)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (1, 1 + 0j), (0.5, Fraction(1, 2)), (0.5, Decimal("0.5")), ("red", Colour.RED), (0.0, -0.0)],
)
def test_keys_that_are_equal_have_one_label(one, other):
    """The library takes equal keys for one, so a trace does, too."""
    assert one == other
    assert label(one) == label(other)


_words = st.text(st.sampled_from(string.ascii_letters[:3] + "1-'\\,() …\n\u202e"), max_size=4)
_keys = st.recursive(  # without what isn't a number, of which two are never equal and one is in a tuple
    st.one_of(_words, st.integers(-3, 3), st.floats(allow_nan=False), st.none(), st.binary(max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=2)),
    max_leaves=4,
)


@given(_keys, _keys)
def test_labels_are_equal_just_where_keys_are(one, other):
    """Whatever keys are made of, one label means one key and the other way around, and it is one printable line."""
    assert label(one).isprintable()
    assert (one == other) == (label(one) == label(other))


def test_long_key_is_cut_short():
    """A key of a megabyte is shown by its beginning, and a hash distinguishes it from similar ones."""
    text = label("k" * 1_000_000)
    assert LONGEST == len(text)
    assert text.startswith("kkkk")
    assert text != label("k" * 999_999)
    alike = ["x" * 200, "x" * 200 + "1", "x" * 200 + "2", ("x" * 200,), label("x" * 200)]
    assert len(alike) == len(set(map(label, alike)))


def test_key_that_cannot_be_written():
    """A key whose repr raises is named by its type, and distinguished from another."""

    class Shy:
        def __repr__(self):
            raise RuntimeError

    one, other = Shy(), Shy()
    assert "Shy" in label(one)
    assert label(one) != label(other)


def test_a_number_of_thousands_of_digits_has_a_label():
    """Python rejects to write out such a number in decimals. It has a label all the same."""
    number = 10**5_000
    assert LONGEST == len(label(number))
    assert 3 == len({label(number), label(number + 1), label(-number)})


def test_tuple_nested_too_deeply_has_a_label():
    """A tuple with more levels than the stack has room for can be a key, so it has a label."""
    key = ()
    for _ in range(5_000):
        key = (key,)

    assert label(key).startswith("builtins:tuple[")
