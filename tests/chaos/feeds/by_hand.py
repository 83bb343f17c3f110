"""What a service loses without feeds: the same faults, on the shortest equal that is written by hand.

    python -m tests.chaos.feeds --by-hand --engine redis --seconds 60

It is the engine's plain publish and subscribe, as in ``tests.benchmarks.feed_worker``. It connects again when its
connection is lost. Connections are cut, the server is killed and the history trimmed, as in a run with a feed. An
event is lost if its publisher was told that it was accepted, and the subscriber never got it. A consumer of Kafka goes
on from its position while its process lives. So it loses only events that were trimmed, and does not notice.
"""

import asyncio
import contextlib
import logging
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.benchmarks.bench_feeds import publisher
from tests.benchmarks.feed_worker import SUBSCRIBERS
from tests.chaos.feeds.servers import SERVERS, STREAM
from tests.chaos.feeds.worker import lead_through
from tests.support.proxy import Proxy

#: Events per second, and the time between two faults.
RATE, CALM_S = 100, 2.0


async def subscribe(engine, address, applied):
    """Subscribe, and again whenever that fails."""
    while True:
        with contextlib.suppress(Exception):
            await SUBSCRIBERS[engine](address, STREAM, lambda _, value: applied.update([int(value)]), lambda: None)
        await asyncio.sleep(0.05)


async def publish(engine, address, give_up_s):
    """Publish numbers. Returns those that were accepted."""
    accepted, number = [], 0
    while time.monotonic() < give_up_s:
        with contextlib.suppress(Exception):
            async with publisher("by hand", engine, address, STREAM) as send:
                while time.monotonic() < give_up_s:
                    number += 1
                    await asyncio.wait_for(send("key", b"%d" % number), 2)
                    accepted.append(number)
                    await asyncio.sleep(1 / RATE)
        await asyncio.sleep(0.05)
    return accepted


def hurt(server, proxy, draw, give_up_s, deeds):
    """Cut connections of the subscriber, kill the server, or trim the history while nothing gets through."""
    while time.monotonic() < give_up_s - CALM_S:
        time.sleep(draw.uniform(0, CALM_S))
        name = draw.choices(["cut", "kill", "gap"], [5, 3, 3])[0]
        deeds[name] += 1
        if name == "cut":
            proxy.cut()
        elif name == "kill":
            server.kill()
            server.start()
        else:
            proxy.is_frozen = True
            time.sleep(draw.uniform(0, CALM_S))
            server.trim(0)
            proxy.is_frozen = False


async def play(engine, server, seconds, seed):
    """A run. Returns how many events were accepted, how many of them were lost and doubled, and the faults."""
    proxy = Proxy(server.port)
    if engine == "kafka":
        admin = AdminClient(
            {"bootstrap.servers": server.address(server.port), "log_level": 0}
        )  # kept: its request ends with it
        admin.create_topics([NewTopic(STREAM, 1, 1)])[STREAM].result(30)
        lead_through(server.port, proxy.port, asyncio.get_running_loop())
    applied, deeds = Counter(), Counter()
    give_up_s = time.monotonic() + seconds
    subscribed = asyncio.create_task(subscribe(engine, server.address(proxy.port), applied))
    await asyncio.sleep(1)
    hurting = asyncio.create_task(asyncio.to_thread(hurt, server, proxy, random.Random(seed), give_up_s, deeds))
    publishing = publish(engine, server.address(server.port), give_up_s)
    accepted = await asyncio.to_thread(asyncio.run, publishing)  # on a loop that is not led through the proxy
    await hurting
    await asyncio.sleep(CALM_S)
    subscribed.cancel()
    await asyncio.wait([subscribed])
    proxy.close()
    lost = sum(number not in applied for number in accepted)
    return len(accepted), lost, sum(times > 1 for times in applied.values()), deeds


def run(engine, seconds, seed):
    """Start a server and play."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="feed-by-hand-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "server").mkdir()
        server = SERVERS[engine](Path(folder) / "server")
        server.start()
        try:
            return asyncio.run(play(engine, server, seconds, seed))
        finally:
            server.remove()
