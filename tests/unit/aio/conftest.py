import functools

import pytest

from tests.support.loops import loop_factory, purgatory_on, run_on


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run an async function, on each kind of loop."""
    loop_factory(request.param)
    return functools.partial(run_on, request.param)


@pytest.fixture(params=["loop", "threads"])
def opened(request):
    """Make a purgatory, driven either way: ``async with opened() as purgatory``."""
    return functools.partial(purgatory_on, request.param)
