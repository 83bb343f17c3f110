"""Marks of tests that need a certain interpreter."""

import sys

import pytest

#: For tests of what PyPy does not have: reference counts, allocated blocks, subinterpreters, floats with an identity,
#: and an interrupt that strikes only between two steps of Python code.
cpython_only = pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs what CPython alone has")

#: Whether one thread at a time runs Python. A free-threaded build may run without that.
HAS_GLOBAL_LOCK = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
