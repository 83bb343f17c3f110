"""Running coroutines in tests: on either loop, over either driver of the purgatory, and never forever."""

import asyncio
import contextlib
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.aio import AsyncOperation, AsyncPurgatory

Answer = TypeVar("Answer")

#: How long a test's coroutine may take.
PATIENCE_S = 60.0


class Async(AsyncOperation):
    """Completes when ``ready`` is set. ``history`` names the coroutine hooks, which let the loop run in between."""

    def __init__(
        self, delay_ms: int = 60_000, *, ready: bool = False, complete: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        super().__init__(delay_ms)
        self.ready = ready
        self.history: list[str] = []
        self.doing = complete

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    async def on_complete(self) -> None:
        self.history.append("complete begins")
        await asyncio.sleep(0)
        if self.doing is not None:
            await self.doing()
        self.history.append("complete ends")

    async def on_expiration(self) -> None:
        await asyncio.sleep(0)
        self.history.append("expire")


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes an event loop of that kind. Skips the test where uvloop or eager tasks can't be had."""
    if name == "asyncio":
        return None
    if name == "eager":
        if sys.version_info < (3, 12):
            pytest.skip("eager tasks need Python 3.12")
        return _eager_loop
    if importlib.util.find_spec("uvloop") is None and os.environ.get("CI") != "true":
        pytest.skip("uvloop is not installed")
    import uvloop  # noqa: PLC0415  # it need not be there

    return uvloop.new_event_loop


def _eager_loop() -> asyncio.AbstractEventLoop:
    """A loop whose tasks begin to run when they are made, inside the code that makes them."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # mypy looks at 3.11
    return loop


def run_on(name: str, function: Callable[..., Awaitable[Answer]], *args: Any) -> Answer:
    """What ``await function(*args)`` gives, on a loop of that kind."""

    async def bounded() -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            return await function(*args)

    with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
        return runner.run(bounded())


@pytest.fixture(params=["asyncio", "uvloop", "eager"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run an async function, on each kind of loop."""
    loop_factory(request.param)
    return functools.partial(run_on, request.param)


@pytest.fixture(params=["loop", "threads"])
def opened(request: pytest.FixtureRequest, run: object) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """Make a purgatory, driven either way: ``async with opened() as purgatory``."""
    return functools.partial(purgatory_on, request.param)


@pytest.fixture
def purgatory(opened: Callable[[], Any]) -> Any:
    """A purgatory, driven either way. A test that is a coroutine gets it open. Some folders have another one."""
    return opened()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, by ``run`` if it has that fixture. What ``async with`` opens is open."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or pyfuncitem.get_closest_marker("anyio"):
        return None
    test: Any = pyfuncitem.obj
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def opened_test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await test(**given)

    run_it: Any = pyfuncitem.funcargs.get("run", functools.partial(run_on, "asyncio"))
    run_it(opened_test)
    return True


@contextlib.asynccontextmanager
async def purgatory_on(driver: str, **settings: Any) -> AsyncIterator[AsyncPurgatory[Any]]:
    """A purgatory on this loop, or over a thread-based one."""
    slices = {"slice_size": settings.pop("slice_size")} if "slice_size" in settings else {}
    if driver == "loop":
        async with AsyncPurgatory("test", **settings, **slices) as purgatory:
            yield purgatory
        return
    core = DelayedOperationPurgatory("test", **settings)
    try:
        async with AsyncPurgatory.over(core, **slices) as purgatory:
            yield purgatory
    finally:
        await asyncio.to_thread(core.shutdown)


async def parked(
    purgatory: AsyncPurgatory[Any], *operations: DelayedOperation, keys: Iterable[Any] = ("k",)
) -> list[asyncio.Task[Outcome]]:
    """Tasks that await the operations, all of them parked."""
    tasks = [asyncio.create_task(purgatory.park(operation, list(keys))) for operation in operations]
    await until(lambda: all(operation.keys for operation in operations))
    return tasks


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(PATIENCE_S / 2):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.001)
