import os
import sys

import pytest

#: How often each test is done. ``python -m tests.concurrency`` asks for more.
ROUNDS = int(os.environ.get("RACES_ROUNDS", "1"))


def pytest_generate_tests(metafunc):
    """Repeat every test, each time under a name of its own."""
    if ROUNDS > 1:
        metafunc.fixturenames.append("again")
        metafunc.parametrize("again", range(ROUNDS), ids=[f"round{number}" for number in range(ROUNDS)])


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
