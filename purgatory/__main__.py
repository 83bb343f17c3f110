"""``python -m purgatory``: the same as the command ``purgatory``."""

import sys

from purgatory._cli import main

if __name__ == "__main__":
    sys.exit(main())
