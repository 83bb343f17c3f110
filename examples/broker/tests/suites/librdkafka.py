"""Run librdkafka's own test suite against the broker example, and count what passes.

    python -m examples.broker.tests.suites.librdkafka [--folder var/suites] [--only 0054 0081]

The sources come from Debian (``apt-get source librdkafka``), and are built in the folder. That takes gcc and the
headers of OpenSSL and zlib. The tests run one by one in quick mode against one node, about fifteen minutes in all.
The tests that are left out need something that the broker does not have: see ``LEFT_OUT``.

One line of the sources is changed before they are built. ``DescribeConsumerGroups`` of 0081 sets a session of 5 s,
waits for 6 s, and expects that its members are gone. But the helper that makes its consumers sets the session to 6 s.
So the test races with the end of the sessions, and any broker that is some milliseconds late fails it.
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
SOURCES = """Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
LEFT_OUT = {
    "transactions": ("0098", "0103", "0129"),
    "ACLs": ("0109", "0115", "0119"),
    "compaction": ("0077",),
    "replicas in racks": ("0101",),
    "a test that never ends": ("8000",),
}
ADMIN = [
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeConfigs",
    "DeleteRecords",
    "DeleteGroups",
    "DescribeConsumerGroups",
    "DeleteConsumerGroupOffsets",
    "AlterConsumerGroupOffsets",
    "unclean_destroy",
]
"""The parts of 0081, but for ACLs, settings of nodes (AlterConfigs) and listings of flexible versions."""
PATIENCE_S = 240
TOO_SHORT, LONG_ENOUGH = "rd_sleep(6);", "rd_sleep(8);"


def fetch_and_build(folder):
    """Give the folder of the built tests."""
    found = sorted(folder.glob("librdkafka-*/tests"))
    if found and (found[-1] / "test-runner").exists():
        return found[-1]
    for name in ("parts", "lists/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "parts" / "debian.sources").write_text(SOURCES)
    places = {"sourcelist": "/dev/null", "sourceparts": folder / "parts"}
    options = [f"-oDir::Etc::{key}={value}" for key, value in places.items()]
    options += [f"-oDir::State::lists={folder / 'lists'}", "-oAPT::Sandbox::User=root"]
    subprocess.run(["apt-get", *options, "update", "-qq"], check=True)
    subprocess.run(["apt-get", *options, "source", "-qq", "--download-only", "librdkafka"], cwd=folder, check=True)
    (archive,) = folder.glob("librdkafka_*.orig.tar.gz")
    shutil.unpack_archive(archive, folder)
    tests = next(folder.glob("librdkafka-*/tests"))
    racing = tests / "0081-admin.c"
    source = racing.read_text()
    assert 1 == source.count(TOO_SHORT)
    racing.write_text(source.replace(TOO_SHORT, LONG_ENOUGH))
    subprocess.run(["./configure", "--disable-sasl", "--disable-gssapi"], cwd=tests.parent, check=True)
    subprocess.run(["make", "-s", "libs"], cwd=tests.parent, check=True)
    subprocess.run(["make", "-s", "build"], cwd=tests, check=True)
    return tests


def run(tests, port, number, part=""):
    """Run one test, or a part of it. Give its outcome."""
    environment = {
        **os.environ,
        "TESTS": number,
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "TEST_KAFKA_VERSION": "2.4.0",
        "RDKAFKA_TEST_CONF": str(tests / "purgatory.conf"),
        "KAFKA_PATH": str(Path(__file__).parent),
        "ZK_ADDRESS": f"127.0.0.1:{port}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **({"SUBTESTS": part} if part else {}),
    }
    log = tests / f"purgatory-{number}{part}.log"
    with log.open("wb") as out:
        try:
            command = ["./test-runner", "-Q", "-p1"]
            subprocess.run(command, cwd=tests, env=environment, stdout=out, stderr=out, timeout=PATIENCE_S)  # noqa: PLW1510
        except subprocess.TimeoutExpired:
            return "FAILED"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    outcomes = re.findall(rf"^\| {number}_\w+ +\| +(PASSED|FAILED|SKIPPED)", plain, re.MULTILINE)
    return next((each for each in ("FAILED", "PASSED", "SKIPPED") if each in outcomes), "FAILED")


def main():
    """Run the suite. The exit code shows whether something failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "suites", help="where it is built (var/suites)")
    parser.add_argument("--only", nargs="*", help="the numbers of some tests (all)")
    options = parser.parse_args()
    tests = fetch_and_build(options.folder.resolve())
    left_out = {number for numbers in LEFT_OUT.values() for number in numbers}
    numbers = sorted({path.name[:4] for path in tests.glob("[0-9]*-*.o")} - left_out)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tests / "purgatory.conf").write_text(f"bootstrap.servers=127.0.0.1:{port}\ntest.topic.random=true\n")
    shutil.rmtree(options.folder / "data", ignore_errors=True)
    command = ["--port", str(port), "--data", str(options.folder / "data"), "--partitions", "4", "--log-level", "error"]
    node = subprocess.Popen([sys.executable, "-m", "examples.broker", *command], cwd=ROOT, stdout=subprocess.PIPE)
    outcomes = {}
    try:
        if not node.stdout.readline():
            sys.exit("the broker did not start")
        for number in options.only or numbers:
            for part in ADMIN if number == "0081" else [""]:
                outcomes[number + part] = run(tests, port, number, part)
                print(number, part, outcomes[number + part], flush=True)
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait(30)
    found = list(outcomes.values())
    print({outcome: found.count(outcome) for outcome in sorted(set(found))}, "left out:", LEFT_OUT)
    return "FAILED" in found


if __name__ == "__main__":
    sys.exit(main())
