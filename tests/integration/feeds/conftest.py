import pytest

from purgatory.testing.feeds import Faults
from tests.support.proxy import Proxy


class ServerFaults(Faults):
    """A server of the tests' own is killed and started again."""

    def __init__(self, server):
        self.server = server

    def stop(self):
        self.server.kill()

    def start(self):
        self.server.start()


@pytest.fixture(scope="module")
def server(request):
    """The module's own server, which its ``SERVER`` starts and stops."""
    with request.module.SERVER() as started:
        yield started


@pytest.fixture(scope="module")
def proxy(server):
    """What connections to the module's server go through, so that they can be cut."""
    with Proxy(server.port) as proxy:
        yield proxy
