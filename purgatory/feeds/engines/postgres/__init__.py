"""The engine for PostgreSQL: a table holds the events, and ``LISTEN`` wakes the workers.

Read in this order: ``_tables`` (the two tables and each statement), ``_link`` (a connection), ``_publisher``,
``_reader``, and ``_feed``, which is what a user holds.
"""

from purgatory.feeds.engines.postgres._feed import PostgresFeed

__all__ = ["PostgresFeed"]
