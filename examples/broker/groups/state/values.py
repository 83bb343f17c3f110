"""Requests of members and their answers, as values. The handlers convert wire messages into these and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.broker.protocol.errors import ErrorCode


@attrs.frozen
class Identity:
    """A member's identity in a request: its id, the generation that it knows, and its instance id."""

    member_id: str
    generation: int = -1
    instance_id: str | None = None


@attrs.frozen(kw_only=True)
class Join:
    """A client's request to join the next generation."""

    group_id: str
    member_id: str = ""
    """Empty for a client without an id."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocol_type: str
    protocols: Mapping[str, bytes]
    """The client's metadata for each of its protocols, the preferred protocol first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_known_id: bool = False
    """Whether a new client first gets its id, and must join again with it."""


@attrs.frozen
class JoinedMember:
    """A member in the answer to the leader."""

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
    """All members of the generation, in the leader's answer."""


@attrs.frozen
class Commit:
    """A committed offset, with the client's own text."""

    offset: int
    metadata: str | None = None
    leader_epoch: int = -1
    topic_id: str = ""
    """The id of the topic. Empty if an earlier version has stored the commit, whose topics had no ids."""
