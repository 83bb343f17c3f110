"""A key is shown as one printable line, whatever a client put into it."""

import pytest

from purgatory.console._label import LONGEST, label


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("orders-3", "orders-3"),
        ("", ""),
        (7, "7"),
        (("orders", 3), "('orders', 3)"),
        ("<script>", "<script>"),
        ("two\nlines", "two\\nlines"),
        ("\x1b[2J", "\\x1b[2J"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("naïve 東京", "naïve 東京"),
    ],
)
def test_label(key, text):
    """Text stays as it is, other keys are written by repr, and what isn't printable is escaped."""
    assert text == label(key)


def test_long_key_is_cut_short():
    """A key of a megabyte is shown by its beginning."""
    text = label("k" * 1_000_000)

    assert LONGEST == len(text)
    assert text.endswith("…")


def test_key_that_cannot_be_written():
    """A key whose repr raises is named by its type."""

    class Shy:
        def __repr__(self):
            raise RuntimeError

    assert "Shy" in label(Shy())
