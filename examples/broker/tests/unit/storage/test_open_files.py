"""The limit of open files."""

import resource

from examples.broker.storage.open_files import most_partitions, raise_limit


def test_the_limit_is_raised():
    """A node uses as many open files as the system lets it, and half of them for partitions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert 256 == most_partitions()
        raise_limit()
        assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
