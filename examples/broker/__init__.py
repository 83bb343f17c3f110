"""A small replicated log broker for unmodified Kafka clients, built around purgatories.

It shows how a service embeds the library. Each reason to wait is a ``DelayedOperation`` in a module of its own
(``delayed_*``). The rest of the program parks these operations, and calls a check after each event.

The packages, in the order of their imports. A module imports only from its own package and from those before it:

    coordination  the tree that all nodes share
    protocol      messages and record batches
    storage       the files of one node
    replication   partitions and their replicas; produces, fetches and deletions wait here
    groups        consumer groups; joins, syncs and sessions wait here
    controller    the node that elects leaders
    service       connections, request handlers, settings
    broker        one node; ``__main__`` runs one node or a cluster

``README.md`` suggests an order for reading.

All code above the storage runs on the thread of one event loop. The timer's executor hands expired operations to the
loop. So there are no locks, except where an operation shares one on purpose.
"""
