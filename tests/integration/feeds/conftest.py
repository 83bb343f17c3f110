import pytest

from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def proxy(server):
    """What connections to the module's server go through, so that they can be cut."""
    with Proxy(server.port) as proxy:
        yield proxy
