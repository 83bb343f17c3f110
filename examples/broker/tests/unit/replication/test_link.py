"""A connection from one node to another."""

import asyncio

import pytest

from examples.broker.replication.peers import link


def test_a_machine_that_does_not_answer_is_given_up(monkeypatch):
    async def open_connection(*_, **__):
        await asyncio.Event().wait()

    async def main():
        async with link.Link("host", 1, "name", 1 << 20):
            pytest.fail("connected")

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr(link, "_CONNECT_S", 0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(main())
