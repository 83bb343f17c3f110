"""A feed over a Redis stream, on one server, behind Sentinel, or in a cluster.

An event is one entry of the stream. The entry's id is ``epoch-offset``: Redis orders ids by their two numbers, so the
order of the stream is the order of positions. A script publishes, so that no other command runs
between these steps:

    find the last id of the stream, or take the time in milliseconds as a new epoch
    for each event:  if its id is known and leads to its event, answer the position that is kept for it
                     otherwise append it as epoch-(offset + 1), with the mark of the event before it, and keep its id

A reader asks with ``XREAD`` for the entries after its position. The first of them says whose successor it is. If that
is the event which the reader has applied, the history goes on from it. When it connects, and after each second without
an event, it also checks that the stream still has that event, that epoch and its own end. So it notices a stream that
was emptied, a server that lost its memory or the end of its file, and a failover to a replica that had not received the
last events.

**What Redis does not promise.** It accepts an event before it has written it to the disk (``appendfsync``) or has sent
it to a replica (``replicas=``). After a crash or failover such an event may be lost. Every follower that has applied it
then sees a gap. A follower that has not sees none.

Read ``_entries``, ``_servers``, ``_connection``, ``_publisher``, ``_answers`` and ``_reader``.
"""

from purgatory.feeds.engines.redis._feed import RedisFeed

__all__ = ["RedisFeed"]
