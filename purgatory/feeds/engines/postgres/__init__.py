"""The engine for PostgreSQL: a table holds the events, and notifications bring copies of them to the workers.

Read in this order: ``_tables`` (the two tables and each statement), ``_payload`` (what is notified), ``_link`` (a
connection), ``_publisher``, ``_direct`` (a connection that reads on), ``_reader``, and ``_feed``, which is what a user
holds.
"""

from purgatory.feeds.engines.postgres._feed import PostgresFeed

__all__ = ["PostgresFeed"]
