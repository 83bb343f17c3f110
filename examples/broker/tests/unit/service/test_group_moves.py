"""Groups that a node loads when it begins to coordinate them."""

from types import SimpleNamespace
from unittest.mock import AsyncMock

from examples.broker.service.cluster import group_moves
from examples.broker.storage.topics import OFFSETS_TOPIC

KEY = (OFFSETS_TOPIC, 3)


async def test_a_load_that_fails_is_repeated(monkeypatch):
    """The groups are there as soon as their records can be read."""
    monkeypatch.setattr(group_moves, "_RETRY_S", 0)
    failures = [OSError("no answer of the disk"), ValueError("a damaged record")]
    loaded = []

    def load(_key):
        yield
        if failures:
            raise failures.pop()
        return {"g": SimpleNamespace(offsets={("t", 0): 5})}

    coordinator = SimpleNamespace(
        store=SimpleNamespace(load=load), add_loaded=lambda *found: loaded.append(found), release=lambda _: None
    )
    tree = SimpleNamespace(ask=AsyncMock(return_value={"t": "id"}))
    moves = group_moves.GroupMoves(coordinator, tree, run_actions=lambda: None, turn_ms=1_000)
    moves.led(KEY)
    await moves._loading[KEY]
    assert {} == moves._loading
    ((key, groups, ids),) = loaded
    assert (KEY, {"g"}, {"t": "id"}) == (key, groups.keys(), ids)
