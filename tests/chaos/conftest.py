"""A real ZooKeeper, as the coordination tests start it."""

from tests.integration.broker.coordination.conftest import zookeeper

__all__ = ["zookeeper"]
