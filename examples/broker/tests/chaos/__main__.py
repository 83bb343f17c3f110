"""Kill, stop and resume the nodes of a cluster under load, by seed, and check that nothing promised was broken.

    make chaos SECONDS=300
    python -m examples.broker.tests.chaos --seconds 60 --seed 7 --disks

The nemesis draws what it does next from the seed: kill -9 a node, stop it (SIGSTOP), ask it to stop (SIGTERM), any node
or the controller or the leader of a partition. Start or resume what is down. Wait. At most two of the three nodes are
down at a time. With ``--disks``, each node's data lies on a small file system of its own, and the nemesis fills these
and frees them, too, but no third one while two nodes are down or full. The effect of a seed depends on the machine's
timing as well, so a seed that failed may need a few runs.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from examples.broker.tests.chaos.disks import SmallDisk, why_not
from examples.broker.tests.chaos.history import History, client
from examples.broker.tests.integration.conftest import Cluster

SESSION_MS = 2_000
MEGABYTES = 512


class Nemesis:
    """Hurts a cluster, and makes it well again."""

    def __init__(self, cluster, seed, say=print, disks=None):
        self._cluster = cluster
        self._disks = disks or {}
        self._full = set()
        self._random = random.Random(seed)
        self._say = say
        self._down = {}
        self.deeds = 0

    def _targets(self):
        well = [number for number in self._cluster.nodes if number not in self._down]
        kind = self._random.choice(["any", "controller", "leader"])
        if kind == "controller":
            found = [n for n in well if re.findall(r"elected controller", self._cluster.nodes[n].log)]
            well = found[-1:] or well
        elif kind == "leader":
            found = self._leader()
            well = [found] if found in well else well
        return kind, self._random.choice(well)

    def _leader(self):
        try:
            admin = AdminClient(client(self._cluster.bootstrap))
            return admin.list_topics(timeout=3).topics["once"].partitions[0].leader
        except (KafkaException, KeyError):
            return None

    def step(self):
        """Do one thing."""
        if self._disks and self._random.random() < 0.3:
            self._fill_or_free(self._random.choice(sorted(self._disks)))
        elif self._down and (len(self._down) == 2 or self._random.random() < 0.5):
            self._heal(self._random.choice(sorted(self._down)))
        else:
            kind, number = self._targets()
            self._hurt(number, self._random.choice(["kill", "kill", "pause", "stop"]), kind)
        time.sleep(self._random.choice([0.1, 0.5, 1.0, 2.5, 3.5]))

    def _fill_or_free(self, number):
        full = number in self._full
        if not full and len({number, *self._full, *self._down}) > 2:
            return
        self.deeds += not full
        self._say(f"{'free' if full else 'fill'} the disk of node {number}")
        self._disks[number].free() if full else self._disks[number].fill()
        self._full ^= {number}

    def _hurt(self, number, how, kind):
        self.deeds += 1
        self._say(f"{how} node {number} ({kind})")
        getattr(self._cluster.nodes[number], how)()
        self._down[number] = how

    def _heal(self, number):
        how = self._down.pop(number)
        self._say(f"{'resume' if how == 'pause' else 'start'} node {number}")
        node = self._cluster.nodes[number]
        node.resume() if how == "pause" else node.start()

    def heal(self):
        """Make all well."""
        for number in sorted(self._full):
            self._fill_or_free(number)
        for number in sorted(self._down):
            self._heal(number)


def run(folder, seconds, seed, coordination="", say=print, *, disks=False):
    """Run once. Give what was found, and some figures."""
    small = {number: SmallDisk(folder / f"node-{number}", MEGABYTES) for number in (1, 2, 3)} if disks else {}
    try:
        return _run(folder, seconds, seed, coordination, say, small)
    finally:
        for disk in small.values():
            disk.unmount()


def _run(folder, seconds, seed, coordination, say, disks):
    options = ["--session-ms", str(SESSION_MS), "--lag-ms", "3000", "--leader-rebalance-ms", "1000"]
    options += ["--coordination", coordination] if coordination else []
    cluster = Cluster(folder, 3, options).start()
    nemesis = Nemesis(cluster, seed, say, disks)
    try:
        with History(cluster) as history:
            deadline = time.monotonic() + seconds
            time.sleep(1)
            while time.monotonic() < deadline:
                nemesis.step()
            nemesis.heal()
            history.wait_until_well()
        complaints = history.complaints()
    finally:
        nemesis.heal()
        cluster.stop()
    figures = (
        f"{history.acknowledged:,} records acknowledged, {sum(each.failed for each in history.producers):,} refused, "
        f"{history.member.received:,} received, {history.member.commits:,} commits, {nemesis.deeds} deeds"
    )
    return complaints, figures


def main():
    parser = argparse.ArgumentParser(
        prog="python -m examples.broker.tests.chaos", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (60)")
    parser.add_argument("--seed", type=int, help="what the nemesis draws from (a new one)")
    parser.add_argument("--coordination", default="", help="zk://host:port/chroot, else the embedded store")
    parser.add_argument("--disks", action="store_true", help="fill the disks of nodes, too (root, by tmpfs)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and data")
    options = parser.parse_args()
    if options.disks and why_not():
        print(f"chaos: skipped, {why_not()}")
        return 0
    seed = random.SystemRandom().randrange(1 << 24) if options.seed is None else options.seed
    print(f"chaos: seed {seed}, {options.seconds:g} s", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    began = time.monotonic()
    complaints, figures = run(
        folder,
        options.seconds,
        seed,
        options.coordination,
        lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True),
        disks=options.disks,
    )
    print(f"chaos: {figures}")
    for complaint in complaints:
        print(f"chaos: BROKEN: {complaint}")
    if complaints or options.keep:
        print(f"chaos: what the nodes said and kept is in {folder}")
    else:
        shutil.rmtree(folder)
        print("chaos: nothing that was promised was broken")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
