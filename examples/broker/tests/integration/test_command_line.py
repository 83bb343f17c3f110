"""``python -m examples.broker``: starting a cluster, stopping it in every way, and mistakes in its arguments."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples.broker.controller.tree import layout
from examples.broker.coordination.embedded import EmbeddedStore
from examples.broker.coordination.store import Create
from tests.support.programs import ended

ROOT = Path(__file__).parents[4]


def command(*arguments):
    return [sys.executable, "-m", "examples.broker", *map(str, arguments)]


def is_running(pid):
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def cluster(tmp_path):
    """Three nodes started by one command: the process, their ports and their pids."""
    process = subprocess.Popen(
        command("--replicas", 3, "--port", 0, "--data", tmp_path),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lines = [process.stdout.readline() for _ in range(4)]
    (first,) = [line for line in lines if line.startswith("cluster:")]
    ports, pids = zip(*[map(int, pair) for pair in re.findall(r":(\d+)\(pid (\d+)\)", first)], strict=True)
    yield process, ports, pids
    if process.poll() is None:
        process.kill()
    process.wait(60)
    process.stdout.close()


def test_a_cluster_starts_and_stops_by_one_command(cluster, kcat, eventually):
    """One command starts all nodes, and ends with all of them at SIGTERM, with exit code 0."""
    process, ports, pids = cluster

    def listed():  # the last node to register is soon known to the others
        return re.findall(r"at 127.0.0.1:(\d+)", kcat("-b", f"127.0.0.1:{ports[2]}", "-L").decode())

    eventually(lambda: [str(port) for port in ports] == listed())
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(60)
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("given", [subprocess.DEVNULL, subprocess.PIPE], ids=["nothing", "a pipe that ends"])
def test_a_node_outlives_its_input(tmp_path, free_ports, given):
    """A node of several runs until it gets a signal, whether a service manager starts it, with nothing for its standard
    input, or a hand, with a pipe that ends.
    """
    ports = ",".join(map(str, free_ports(2)))
    process = subprocess.Popen(
        command("--node-id", 1, "--ports", ports, "--data", tmp_path),
        cwd=ROOT,
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout.readline().startswith("node 1 listens")
        if process.stdin is not None:
            process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        process.wait(60)
    assert 0 == process.returncode


def test_a_machine_with_the_id_of_another_node_ends(tmp_path, free_ports):
    """It says why in one line, and leaves what the other machine has in the tree."""
    other = EmbeddedStore(tmp_path / "coordination.sqlite", session_ms=60_000)
    other.start()
    layout.make_roots(other)
    registration = layout.BrokerInfo(1, "two.example", 9092, "life 1", "another folder").write()
    offline = f"{layout.OFFLINE}/1"
    other.multi([Create(f"{layout.IDS}/1", registration, ephemeral=True), Create(offline, ephemeral=True)])

    ports = ",".join(map(str, free_ports(2)))
    done = ended(*command("--node-id", 1, "--ports", ports, "--data", tmp_path, "--log-level", "error"), seconds=90)

    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("error: node 1 is registered with another data folder: give each node its own id")
    assert 1 == done.stderr.count("\n")
    assert registration == other.get(f"{layout.IDS}/1").data
    assert b"" == other.get(offline).data
    other.close()


def test_a_cluster_stops_with_a_node_that_is_stopped(cluster):
    """A node that was stopped (SIGSTOP) is resumed to end in an orderly way, with the others."""
    process, _, pids = cluster
    os.kill(pids[1], signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(60)
    assert not any(is_running(pid) for pid in pids)


STUBBORN = """
import sys
from examples.broker.supervisor import Supervisor
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
sys.exit(Supervisor({1: [sys.executable, "-c", child]}).run(lambda pids: print(*pids, flush=True)))
"""


def test_a_second_signal_kills(eventually):
    """A process that doesn't stop when it is asked is killed by a second signal at once, and the output says so."""
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with process:
        pid, up = sorted(process.stdout.readline() for _ in range(2))  # of two processes, in either order
        assert "up\n" == up
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        # Again and again: two signals that come before it looks are one. After 30 s it would kill without a second one.
        eventually(lambda: process.terminate() or process.poll() is not None, timeout=25, every=0.5)
        assert 1 == process.returncode
    assert not is_running(int(pid))


def test_nodes_end_with_the_process_that_started_them(cluster, eventually):
    """When the starting process is killed, its nodes see their input closed and end by themselves."""
    process, _, pids = cluster
    process.kill()
    eventually(lambda: not any(is_running(pid) for pid in pids))


def test_a_node_that_dies_is_started_again(cluster, kcat, eventually):
    """When a node is killed, the cluster serves on, and the node is back some time later, under another pid."""
    process, ports, pids = cluster
    os.kill(pids[0], signal.SIGKILL)
    kcat("-b", f"127.0.0.1:{ports[1]}", "-P", "-t", "t", "-X", "acks=all", stdin=b"x", timeout=90)

    def is_back():
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", ports[0])) == 0

    eventually(is_back)
    assert None is process.poll()
    process.send_signal(signal.SIGTERM)
    assert 0 == process.wait(60)


def run_in_vain(*arguments):
    done = ended(*command(*arguments), seconds=90)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replicas", 0), "--replicas must be 1 or more"),
        (("--min-isr", 2), "min_isr must be 1 to 1, the number of nodes, got 2"),
        (("--first-id", 1_000_000), "'first_id' must be <= 900000"),
        (("--lag-ms", 0), "'lag_ms' must be >= 1"),
        (("--ports", "1,x"), "invalid literal"),
        (("--node-id", 4, "--ports", "1,2"), "node_id must be 1 to 2, got 4"),
        (("--fsync", "sometimes"), "invalid choice"),
        (("--host", "0.0.0.0"), "advertised_host must be reachable"),
        (("--port", 70_000), "a port must be 0 to 65535, got 70000"),
        (("--port", -1), "a port must be 0 to 65535, got -1"),
        (("--replicas", 3, "--port", 65_535), "a port must be 0 to 65535, got 65536"),
        (("--replicas", 3, "--port", 0, "--metrics-port", 65_535), "a port must be 0 to 65535, got 65536"),
        (("--ports", "9092,70000", "--node-id", 1), "a port must be 0 to 65535, got 70000"),
        (
            ("--replicas", 3, "--node-id", 1, "--ports", "1,2"),
            "--ports must name 3 ports, as many as --replicas, got 2",
        ),
        (("--node-id", 0, "--ports", "1,2"), "node_id must be 1 to 2, got 0"),
        (("--coordination", "zookeeper.example:2181/orders"), "must be like zk://host:2181/chroot"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, message):
    """An impossible argument is rejected with the reason, and exit code 2."""
    status, said = run_in_vain("--data", tmp_path, *arguments)
    assert (2, True) == (status, message in said), said


def test_a_port_that_is_taken_is_an_error(tmp_path):
    """A port in use is an error message, not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = run_in_vain("--data", tmp_path, "--port", taken.getsockname()[1])
    assert (1, True) == (status, "error:" in said)


def test_a_data_folder_has_one_node(tmp_path, start_cluster, kcat, topic):
    """A second node on the data folder of another is rejected. Records that the first acknowledged are there after a
    kill -9.
    """
    cluster = start_cluster()
    values = [f"{number}\n".encode() for number in range(20)]
    for value in values[:10]:
        kcat("-b", cluster.bootstrap, "-P", "-t", topic, stdin=value)

    code, said = run_in_vain("--data", cluster.folder, "--port", 0)
    assert (1, True) == (code, f"data folder {cluster.folder} is in use" in said), said

    for value in values[10:]:
        kcat("-b", cluster.bootstrap, "-P", "-t", topic, stdin=value)
    cluster.leader.kill()
    cluster.leader.start()
    assert b"".join(values) == kcat("-b", cluster.bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q")


def test_a_data_folder_has_one_cluster(tmp_path, cluster):
    """A second cluster on the data folder of another is rejected, and so is a single one of its nodes."""
    code, said = run_in_vain("--data", tmp_path, "--replicas", 3, "--port", 0)
    assert (1, True) == (code, f"data folder {tmp_path} is in use" in said), said

    code, said = run_in_vain("--data", tmp_path, "--node-id", 2, "--ports", "0,0,0")
    assert (1, True) == (code, f"data folder {tmp_path / 'node-2'} is in use" in said), said


@pytest.mark.parametrize("replicas", [1, 3])
def test_node_ids_can_start_at_0(tmp_path, free_ports, kcat, eventually, replicas):
    """With --first-id 0 the nodes are 0, 1 and so on. Each may lead, and node 0 may be the controller."""
    ports = free_ports(replicas)
    arguments = ["--first-id", 0, "--ports", ",".join(map(str, ports)), "--data", tmp_path, "--min-isr", replicas]
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    lines = [process.stdout.readline() for _ in range(replicas + (replicas > 1))]
    assert any(line.startswith("node 0 listens") for line in lines)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def nodes():
        listing = kcat("-b", bootstrap, "-L").decode()
        return sorted(re.findall(r"broker (\d+) at", listing)), len(re.findall(r"\(controller\)", listing))

    try:
        eventually(lambda: nodes() == ([str(node) for node in range(replicas)], 1))
        for number in range(replicas):  # topics are spread over the nodes
            kcat("-b", bootstrap, "-P", "-t", f"t-{number}", "-X", "acks=all", stdin=b"x", timeout=90)
            assert b"x" == kcat("-b", bootstrap, "-C", "-t", f"t-{number}", "-e", "-q", timeout=90).strip()
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert 0 == process.returncode
