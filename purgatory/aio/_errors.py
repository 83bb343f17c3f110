"""The errors of an asyncio loop that is missing, or another one."""

from __future__ import annotations

from purgatory import PurgatoryError


class WrongLoop(PurgatoryError, RuntimeError):
    """The purgatory or timer ``name`` of one event loop was used on another loop."""

    def __init__(self, name: str, what_to_do: str) -> None:
        super().__init__(f"{name!r} belongs to another event loop; {what_to_do}")
        self.name = name


class NoRunningLoop(PurgatoryError, RuntimeError):
    """An ``AsyncPurgatory`` of this ``name`` was used where no asyncio loop runs."""

    def __init__(self, name: str, what_to_do: str) -> None:
        super().__init__(f"purgatory {name!r} needs a running asyncio loop; {what_to_do}")
        self.name = name
