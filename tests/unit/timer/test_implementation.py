"""Which implementation is loaded."""

import os

import pytest

from timer._implementation import reject_if_stale


@pytest.mark.parametrize("source", ["_core.c", "_core.h", "_core/core.c", "_core/core.h"])
def test_module_that_is_older_than_its_sources_is_rejected(tmp_path, source):
    """A module from older sources may lack what the Python code calls. The error says what to do.

    A wheel holds no C files, so there is nothing to compare with.
    """
    built, source = tmp_path / "_native.so", tmp_path / source
    source.parent.mkdir(exist_ok=True)
    built.write_text("")
    reject_if_stale(str(built))
    for place in (built, source):
        place.write_text("")
        os.utime(place, (1_000, 1_000))
    reject_if_stale(str(built))
    os.utime(source, (1_001, 1_001))
    with pytest.raises(ImportError, match=r"older than .*core.*; run `make native`"):
        reject_if_stale(str(built))
