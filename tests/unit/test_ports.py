"""The ports on which tests start servers."""

import itertools

from tests.support import served
from tests.support.programs import output_of


def test_two_processes_get_two_ports(monkeypatch):
    """A port on which no server listens yet is not given to another process, which would start one there."""
    program = """
        import itertools
        from tests.support import served
        served._next = itertools.count(77)
        print(served.free_port())
    """
    monkeypatch.setattr(served, "_next", itertools.count(77))
    ours = served.free_port()
    theirs, _ = output_of(program)

    assert ours != int(theirs)
