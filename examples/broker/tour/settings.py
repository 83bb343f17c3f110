"""How long the load lasts, when a leader is killed, how much is sent."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["Settings"]


def _positive(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be more than 0, got {value}")


@attrs.frozen(kw_only=True)
class Settings:
    """Checked when made. A write times out well before a dead node is given up, so that both are seen."""

    seconds: float = attrs.field(default=12.0, validator=_positive)
    """How long the load lasts."""
    rate: float = attrs.field(default=300.0, validator=_positive)
    """Records a second."""
    stop_at: float = attrs.field(validator=_positive)
    """When a leader is killed."""
    resume_at: float = attrs.field(validator=_positive)
    """When it is started again."""
    timeout_ms: int = attrs.field(default=1_000, validator=_positive)
    """How long a write waits for the replicas."""
    session_ms: int = attrs.field(default=2_500, validator=_positive)
    """A node that is silent for longer is dead to the others."""
    partitions: int = attrs.field(default=6, validator=_positive)
    producers: int = attrs.field(default=4, validator=_positive)
    """An idempotent producer has five requests to a node under way at most."""
    consumers: int = attrs.field(default=3, validator=_positive)

    @stop_at.default
    def _a_quarter(self) -> float:
        return self.seconds * 0.25

    @resume_at.default
    def _two_thirds(self) -> float:
        return self.seconds * 0.6

    def __attrs_post_init__(self) -> None:
        if not self.stop_at < self.resume_at < self.seconds:
            raise ValueError(
                f"the leader must be killed before it is started again, and that before the end: "
                f"{self.stop_at:g} s, {self.resume_at:g} s, {self.seconds:g} s"
            )
