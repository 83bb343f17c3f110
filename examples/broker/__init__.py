"""A small replicated log broker that real Kafka clients can talk to, built around purgatories.

It shows how the library is embedded in a service: what a request waits for becomes a `DelayedOperation` in a
module of its own (`delayed_produce`, `delayed_fetch`, `delayed_delete_records`, `delayed_join`,
`delayed_sync`, `delayed_heartbeat`), and the rest of the program only parks them and says when something
changed.

Read from the outside in, or start at a delayed operation and follow its imports:

    server      connections: frames in, responses out, in order and within limits
    handlers    one method per API
    replica_manager, partition, follower      replication and the high watermark
    coordinator, group, sessions, offsets     consumer groups
    delayed_*   what waits
    log, segment, records, message_set, producers      what is kept on disk
    messages, wire, errors                    the protocol

Everything above the disk runs on one event loop's thread, delayed operations included: the timer's executor
hands what expired to the loop. So nothing here takes a lock, but where one is shared with an operation on
purpose.
"""
