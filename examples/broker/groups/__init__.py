"""Consumer groups, and what waits for them.

    settings            the limits
    values              what members ask for and are told
    group               members and states: what follows from them alone
    delayed_join        a rebalance that waits for the members
    delayed_sync        a generation that waits for its assignments
    delayed_heartbeat   a session that waits for a sign of life
    sessions            renewing a member's session
    store               groups and offsets as records of an internal topic
    known_groups        the groups of this node: found, made, loaded, forgotten
    commits             what groups have committed
    admission           who becomes a member
    coordinator         moves groups through their states

Knows nothing of wire messages: values come in, and values go out.
"""
