"""What a caller of ``Feed.follow`` decides, checked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Literal

import attrs

from purgatory import InvalidSetting
from purgatory._core.errors import checked_int

if TYPE_CHECKING:
    from typing import TypeAlias

    from purgatory.feeds._values import Event, Position

    Apply: TypeAlias = Callable[[Event], Iterable[Hashable]]
    #: With ``history=`` it takes the position where the worker begins.
    Reload: TypeAlias = Callable[..., Position | Awaitable[Position | None] | None]


@attrs.frozen
class Settings:
    """The arguments of ``Feed.follow``."""

    apply: Apply
    reload: Reload | None
    on_error: Literal["skip", "stop"]
    start_timeout_ms: int
    slice_size: int
    history: int = 0

    def __attrs_post_init__(self) -> None:
        if not callable(self.apply) or inspect.iscoroutinefunction(self.apply):
            raise InvalidSetting("apply", self.apply, "a plain function that takes an event")
        if self.reload is not None and not callable(self.reload):
            raise InvalidSetting("reload", self.reload, "a function, or None")
        if self.on_error not in {"skip", "stop"}:
            raise InvalidSetting("on_error", self.on_error, "'skip' or 'stop'")
        checked_int("start_timeout_ms", self.start_timeout_ms, 0)
        checked_int("slice_size", self.slice_size, 1)
        checked_int("history", self.history, 0)
