"""A small replicated log broker that real Kafka clients can talk to, built around purgatories.

It shows how the library is embedded in a service: what a request waits for becomes a `DelayedOperation` in a
module of its own (`delayed_*`), and the rest of the program only parks them and says when something changed.

Its rooms, in the order of their imports; a module knows its own room and those before it:

    protocol      what is on the wire and in a record batch
    storage       what is on disk
    replication   partitions and their replicas; writes, reads and deletions that wait
    groups        consumer groups; joins, syncs and sessions that wait
    service       connections, handlers, settings
    broker        one node put together; `__main__` runs one, or a cluster of them

`README.md` says in which order to read them.

Everything above the disk runs on one event loop's thread, delayed operations included: the timer's executor
hands what expired to the loop. So nothing here takes a lock, but where one is shared with an operation on
purpose.
"""
