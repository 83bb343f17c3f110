"""The settings of a topic: what each is called, what it may be, and which of them are facts here.

A setting that means something can be changed, when the topic is made and later. Others that clients know by name
describe what this broker does in any case; asking for exactly that is fine, asking for anything else is refused, as
are settings that nobody here heeds: who sets one believes that it has an effect.

Pure functions; call them from anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.broker.protocol.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FACTS", "MAX_BYTES", "MIN_ISR", "SEGMENT_BYTES", "UNCLEAN_ELECTION", "check_known", "check_settings"]

MAX_BYTES = "max.message.bytes"
MIN_ISR = "min.insync.replicas"
SEGMENT_BYTES = "segment.bytes"
UNCLEAN_ELECTION = "unclean.leader.election.enable"

FACTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""What can't be otherwise here: batches are kept as they came, until somebody deletes them."""

_NUMBERS = (MAX_BYTES, MIN_ISR, SEGMENT_BYTES)
_FLAGS = (UNCLEAN_ELECTION,)
_MOST = 0x7FFFFFFF


def check_known(name: str) -> None:
    """Refuse the name of a setting that there isn't, to be taken back as well as to be set.

    Raises:
        BrokerError: INVALID_CONFIG.
    """
    if name not in (*_NUMBERS, *_FLAGS, *FACTS):
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} means nothing here")


def check_settings(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Give the settings that say something, in their plain form.

    >>> check_settings({"min.insync.replicas": " 02", "retention.ms": "-1"})
    {'min.insync.replicas': '2'}

    Raises:
        BrokerError: INVALID_CONFIG, with what is wrong.
    """
    plain = {}
    for name, value in settings.items():
        check_known(name)
        text = (value or "").strip()
        if name in _NUMBERS:
            if not (text.isdecimal() and text.isascii() and 1 <= int(text) <= _MOST):
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name}={value!r}: 1 to {_MOST}")
            plain[name] = str(int(text))
        elif name in _FLAGS:
            if text.lower() not in ("true", "false"):
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name}={value!r}: true or false")
            plain[name] = text.lower()
        elif text != FACTS[name]:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} is always {FACTS[name]} here")
    return plain
