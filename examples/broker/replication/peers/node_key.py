"""How a node proves to another node that it belongs to the cluster.

All nodes read one secret from the coordination tree. It is never sent over a connection:

    node 1 -> node 2     a handshake without a proof
    node 2 -> node 1     a challenge: 32 random bytes, for one try
    node 1 -> node 2     HMAC-SHA256(secret, challenge + "1>2")
    node 2               computes the same, and from now on treats this connection as node 1's

Both ids are part of the proof. A program that listens on the port of a stopped node cannot pass it on to a third node.
The connection is not encrypted afterwards. Anyone who can change its packets can take it over.
"""

from __future__ import annotations

import hmac

import attrs


@attrs.define
class NodeKey:
    """This node's id, and the cluster's secret once it is known."""

    node_id: int
    secret: bytes = attrs.field(default=b"", repr=False)

    def proof(self, challenge: bytes, target: int) -> bytes:
        """Return a proof for the node ``target``."""
        return self._digest(challenge, self.node_id, target)

    def accepts(self, proof: bytes, challenge: bytes, origin: int) -> bool:
        """Whether a proof is from the node ``origin``."""
        known = bool(self.secret and challenge)
        return known and hmac.compare_digest(proof, self._digest(challenge, origin, self.node_id))

    def _digest(self, challenge: bytes, origin: int, target: int) -> bytes:
        return hmac.digest(self.secret, challenge + b"%d>%d" % (origin, target), "sha256")
