"""The plugin of pytest that an installation of purgatory brings: the fixture ``purgatories``.

pytest imports this module in every run, wherever the library is installed. So it stands outside the package, which is
imported only for a test that takes the fixture. :mod:`purgatory.testing` describes the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from purgatory.testing import Purgatories

__all__ = ["purgatories"]


@pytest.fixture
def purgatories() -> Iterator[Purgatories]:
    """Purgatories on a clock moved by hand. At the end of the test no operation may still wait in them."""
    from purgatory.testing import Purgatories  # noqa: PLC0415  # see the module's docstring

    with Purgatories() as made:
        yield made
