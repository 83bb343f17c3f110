"""Clients that are neither Python nor librdkafka: kafkajs, and no-kafka, which speaks what 0.9's clients spoke."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "node"
INSTALLED = Path(__file__).parents[4] / "var" / "node"


@pytest.fixture(scope="session")
def node():
    """Run one of the scripts with arguments and give what it prints, line by line, as JSON, or start it."""
    trouble = "Node is not installed: apt-get install nodejs npm"
    if shutil.which("node") and shutil.which("npm"):
        trouble = _install()
    if trouble:
        if os.environ.get("CI") == "true":
            pytest.fail(trouble)
        pytest.skip(trouble)

    def start(script, *arguments):
        return subprocess.Popen(
            ["node", SCRIPTS / script, *arguments],
            env={**os.environ, "NODE_PATH": str(INSTALLED / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(script, *arguments, timeout=300):
        process = start(script, *arguments)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        assert 0 == process.returncode, output
        return [json.loads(line) for line in output.splitlines()]

    run.start = start
    return run


def _install():
    """Have the clients under var/. Say what is in the way of that."""
    wanted = (SCRIPTS / "package.json").read_text()
    present = INSTALLED / "package.json"
    if present.is_file() and present.read_text() == wanted and (INSTALLED / "done").exists():
        return None
    INSTALLED.mkdir(parents=True, exist_ok=True)
    present.write_text(wanted)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--omit=optional", "--ignore-scripts"]
    done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return f"npm could not install kafkajs and no-kafka: {done.stderr[-300:]}"
    (INSTALLED / "done").touch()
    return None


def test_kafkajs_reads_what_it_wrote(node, broker, topic4):
    """kafkajs produces with acks=all, gzipped and with headers, and its group consumes the very same."""
    (told,) = node("kafkajs_round_trip.js", broker.bootstrap, topic4)
    assert sorted(told["sent"]) == sorted(told["received"])
    assert {"from": "kafkajs"} == told["headers"]


def test_kafkajs_administers(node, broker, topic):
    """kafkajs makes a topic, grows it, shows its settings and offsets, and deletes group and topic."""
    (told,) = node("kafkajs_admin.js", broker.bootstrap, topic)
    assert {
        "created": True,
        "partitions": 3,
        "segment": "100000",
        "refused": "INVALID_CONFIG",
        "offsets": ["2", "0", "0"],
        "groupDeleted": True,
        "gone": True,
    } == told


def test_kafkajs_members_share_and_hand_over(node, broker, topic4):
    """Two members of kafkajs divide the partitions. When one leaves, the other has all of them."""
    first = node.start("kafkajs_member.js", broker.bootstrap, topic4, "")
    second = node.start("kafkajs_member.js", broker.bootstrap, topic4, "")

    def share_of(process, count):
        while len(share := json.loads(process.stdout.readline())) != count:
            pass
        return share

    try:
        assert [0, 1, 2, 3] == sorted(share_of(first, 2) + share_of(second, 2))
        second.stdin.close()
        assert [0, 1, 2, 3] == share_of(first, 4)
        first.stdin.close()
        assert [0, 0] == [process.wait(60) for process in (first, second)]
    finally:
        for process in (first, second):
            process.kill()
            process.stdout.close()
            process.wait(10)


def test_no_kafka_reads_what_it_wrote(node, broker, topic4):
    """A client of 0.9's day, with Produce, Fetch and message format 0, reads what it wrote, and commits."""
    (told,) = node("no_kafka_round_trip.js", broker.bootstrap, topic4)
    assert sorted(told["sent"]) == sorted(told["received"])
    assert 5 == told["committed"]
