"""Consumer groups, and the operations that wait for them.

    settings            the limits
    state               the groups, their members and their records
    delayed_join        a rebalance that waits for the members
    delayed_sync        a generation that waits for its assignments
    delayed_heartbeat   a session that waits for the next heartbeat
    sessions            renews the session of a member
    commits             committed offsets
    admission           new, returning and static members
    coordinator         moves groups through their states
    compaction          bounds the log of the groups' records

No module here knows wire messages.
"""
