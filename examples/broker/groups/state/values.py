"""What members ask for and what they are told, as values: the handlers turn wire messages into these and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.protocol.errors import ErrorCode


@attrs.frozen
class Identity:
    """Who a member says that it is: its id, the generation that it knows, and the name that outlives its restarts."""

    member_id: str
    generation: int = -1
    instance_id: str | None = None


@attrs.frozen(kw_only=True)
class Join:
    """A client's wish to be in the next generation."""

    group_id: str
    member_id: str = ""
    """Empty for a client that has no id yet."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str
    protocols: Mapping[str, bytes]
    """What the client says under each protocol that it speaks, the one it likes best first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_known_id: bool = False
    """Whether a new client is told its id first, and must come again with it."""


@attrs.frozen
class JoinedMember:
    """A member as the leader of its generation is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@attrs.frozen
class Joined:
    """The answer to a join."""

    code: ErrorCode
    member_id: str
    generation: int = -1
    protocol: str = ""
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All of the generation, if it is the leader who is told."""


@attrs.frozen
class Commit:
    """How far a group has read a partition, with what its client wrote beside."""

    offset: int
    metadata: str | None = None
    leader_epoch: int = -1
    topic_id: str = ""
    """Of which of the topics that have had this name; empty where topics have no ids."""
