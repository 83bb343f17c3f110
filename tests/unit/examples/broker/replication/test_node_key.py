"""The proof that a connection is a node's."""

import pytest

from examples.broker.replication.peers.node_key import NodeKey

CHALLENGE = b"c" * 32


def test_a_node_accepts_the_proof_of_another_one():
    one, two = NodeKey(1, b"secret"), NodeKey(2, b"secret")
    assert two.accepts(one.proof(CHALLENGE, 2), CHALLENGE, 1)


@pytest.mark.parametrize(
    ("origin", "target", "challenge", "secret"),
    [
        (1, 2, CHALLENGE, b"guessed"),
        (1, 2, b"d" * 32, b"secret"),
        (1, 3, CHALLENGE, b"secret"),
        (3, 2, CHALLENGE, b"secret"),
        (1, 2, b"", b"secret"),
    ],
    ids=["other secret", "other challenge", "meant for another node", "of another node", "no challenge"],
)
def test_any_other_proof_is_rejected(origin, target, challenge, secret):
    proof = NodeKey(origin, secret).proof(challenge, target)
    asked = b"" if not challenge else CHALLENGE
    assert not NodeKey(2, b"secret").accepts(proof, asked, 1)


def test_a_node_without_a_secret_accepts_nothing():
    assert not NodeKey(2).accepts(NodeKey(1).proof(CHALLENGE, 2), CHALLENGE, 1)
