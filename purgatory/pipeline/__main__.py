"""`python -m purgatory.pipeline`, which is also what `spark-submit` is given."""

import sys

from purgatory.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
