"""What several tests of the broker example need."""

import contextlib
from collections.abc import Iterator

import pytest

from examples.broker.protocol.errors import BrokerError, ErrorCode


@contextlib.contextmanager
def rejected(code: ErrorCode) -> Iterator[None]:
    """The block raises a ``BrokerError`` with this code."""
    with pytest.raises(BrokerError) as caught:
        yield
    assert code is caught.value.code
