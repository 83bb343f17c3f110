"""The proof that a connection is a node's."""

import pytest

from examples.broker.replication.peers.node_key import NodeKey

CHALLENGE = b"c" * 32


@pytest.mark.parametrize(
    ("origin", "target", "challenge", "secret", "is_accepted"),
    [
        pytest.param(1, 2, CHALLENGE, b"secret", True, id="of the node"),
        pytest.param(1, 2, CHALLENGE, b"guessed", False, id="other secret"),
        pytest.param(1, 2, b"d" * 32, b"secret", False, id="other challenge"),
        pytest.param(1, 3, CHALLENGE, b"secret", False, id="meant for another node"),
        pytest.param(3, 2, CHALLENGE, b"secret", False, id="of another node"),
        pytest.param(1, 2, b"", b"secret", False, id="no challenge"),
    ],
)
def test_a_node_accepts_the_proof_of_another_one(origin, target, challenge, secret, is_accepted):
    """Nothing else is accepted, and without a secret nothing at all."""
    proof = NodeKey(origin, secret).proof(challenge, target)
    assert is_accepted == NodeKey(2, b"secret").accepts(proof, challenge and CHALLENGE, 1)
    assert not NodeKey(2).accepts(NodeKey(1).proof(CHALLENGE, 2), CHALLENGE, 1)
