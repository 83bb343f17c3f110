import sys

import pytest


@pytest.fixture(autouse=True)
def impatient():
    """Switch threads every 10 µs, so that they meet where they rarely do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def all_threads_end(no_threads_left):
    """Nothing here leaves a thread behind."""
