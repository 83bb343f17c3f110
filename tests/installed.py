"""Whether what `import` finds is the installed library with its native edition: asked before a wheel is tested.

Run where the tests are and the packages' sources are not, as [tool.cibuildwheel] does.
"""

import sys
from pathlib import Path

import purgatory
import timer

HERE = Path(__file__).resolve().parents[1]

for package in (purgatory, timer):
    place = Path(package.__file__).resolve()
    if place.is_relative_to(HERE):
        sys.exit(f"{place} is the source beside the tests, not what was installed")
    if not package.COMPILED:
        sys.exit(f"{place} has no native edition")
print("installed, native:", Path(purgatory.__file__).parent)
