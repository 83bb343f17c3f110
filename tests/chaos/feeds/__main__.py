"""Break the server, the network and the workers of a feed, by seed, and check that nothing promised was broken.

    make feed-faults SECONDS=600
    make feed-faults SECONDS=60 ARGS=--by-hand
    python -m tests.chaos.feeds --engine redis --seconds 60 --seed 7

Three workers follow a feed and poll 300 keys each. All of them publish, and so does a fourth process. ``nemesis`` lists
the faults, ``checker`` what is checked. The effect of a seed depends on the machine's timing as well, so a seed that
failed may need a few runs.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.feeds import by_hand
from tests.chaos.feeds.run import COLUMNS, Run
from tests.chaos.feeds.servers import SERVERS


def run_one(engine, options, seed):
    """One engine. Whether nothing was broken."""
    print(f"{engine}: seed {seed}, {options.seconds:g} s", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"feed-faults-{engine}-"))
    folder.chmod(0o755)
    began = time.monotonic()

    def say(text):
        if options.verbose:
            print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    report = Run(engine, folder, options.seconds, seed, options.rate, say).play()
    print(f"{engine}: {report}")
    print(f"{engine}: {dict(report.deeds)}")
    print(f"| engine | {' | '.join(COLUMNS)} |\n{report.row()}")
    for complaint in report.complaints[:20]:
        print(f"{engine}: BROKEN: {complaint}")
    if report.complaints or options.keep:
        print(f"{engine}: {len(report.complaints)} complaints; the files are in {folder}")
    else:
        shutil.rmtree(folder)
        print(f"{engine}: 0 lost, 0 doubled, 0 out of order, 0 polls missed their event", flush=True)
    return not report.complaints


def run_by_hand(engine, options, seed):
    """One engine without a feed. What it loses is what it is run for."""
    accepted, lost, doubled, deeds = by_hand.run(engine, options.seconds, seed)
    print(
        f"{engine} by hand: {accepted:,} events accepted, {lost:,} lost, {doubled:,} doubled, {dict(deeds)}", flush=True
    )
    return True


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.feeds", description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=[*SERVERS, "all"], default="all", help="which server (all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long, per engine (60)")
    parser.add_argument("--seed", type=int, help="what the faults are drawn from (a new one)")
    parser.add_argument("--rate", type=float, default=40.0, help="events per second of each process (40)")
    parser.add_argument("--by-hand", action="store_true", help="the same without a feed, which loses events")
    parser.add_argument("--verbose", action="store_true", help="print each fault")
    parser.add_argument("--keep", action="store_true", help="keep the files of the run")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 24) if options.seed is None else options.seed
    engines = list(SERVERS) if options.engine == "all" else [options.engine]
    play = run_by_hand if options.by_hand else run_one
    results = [play(engine, options, seed) for engine in engines]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
