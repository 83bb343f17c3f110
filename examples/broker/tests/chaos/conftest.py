"""A real ZooKeeper, as the coordination tests start it."""

from examples.broker.tests.integration.coordination.conftest import zookeeper

__all__ = ["zookeeper"]
