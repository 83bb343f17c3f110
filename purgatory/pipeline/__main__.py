"""``python -m purgatory.pipeline``, which ``spark-submit`` is given: the same as ``purgatory pipeline``."""

import sys

from purgatory._cli import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
