"""The settings of topics: their names, their values, and whether they have an effect.

- Some work. A client can set them when it creates a topic, and change them later.
- Some have one possible value here (``FACTS``). That value is accepted, any other is rejected.
- Some are harmless. They are stored and shown, but have no effect. The log says so.
- All others are rejected. A client that sets one relies on its effect, such as compaction.

Pure functions. They may be called from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = "max.message.bytes"
MIN_ISR = "min.insync.replicas"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"
UNCLEAN_ELECTION = "unclean.leader.election.enable"

FACTS = {"cleanup.policy": "delete"}
"""Settings with one possible value."""
_WHY = {"cleanup.policy": ": this broker does not compact topics of clients"}

WITHOUT_EFFECT = {
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "index.interval.bytes": "4096",
    "message.downconversion.enable": "true",
    "message.format.version": "2.4-IV1",
    "message.timestamp.difference.max.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "9223372036854775807",
    "preallocate": "false",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
}
"""Settings without effect, with the value that is shown if none is set."""

_MOST_32, _MOST_64 = 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF
_NUMBERS = {
    MAX_BYTES: (1, _MOST_32),
    MIN_ISR: (1, _MOST_32),
    RETENTION_BYTES: (-1, _MOST_64),
    RETENTION_MS: (-1, _MOST_64),
    SEGMENT_BYTES: (1, _MOST_32),
    SEGMENT_MS: (1, _MOST_64),
}
_CHOICES = {UNCLEAN_ELECTION: ("true", "false"), TIMESTAMP_TYPE: ("CreateTime", LOG_APPEND_TIME)}


def check_known(name: str) -> None:
    """Reject an unknown setting with INVALID_CONFIG."""
    if name not in (*_NUMBERS, *_CHOICES, *FACTS, *WITHOUT_EFFECT):
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} is not a setting of this broker")


def check_settings(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Return the settings to store, in their canonical form. Raises INVALID_CONFIG.

    >>> check_settings({"min.insync.replicas": " 02", "cleanup.policy": "delete"})
    {'min.insync.replicas': '2'}
    """
    plain = {name: _plain(name, (value or "").strip()) for name, value in settings.items()}
    return {name: value for name, value in plain.items() if name not in FACTS}


def _plain(name: str, text: str) -> str:
    check_known(name)
    if name in WITHOUT_EFFECT:
        return text
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        digits = text.removeprefix("-")
        if digits.isdecimal() and digits.isascii() and least <= int(text) <= most:
            return str(int(text))
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} must be {least} to {most}, got {text!r}")
    choices = _CHOICES.get(name) or (FACTS[name],)
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    why = _WHY.get(name, "")
    raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} must be {' or '.join(choices)}, got {text!r}{why}")
