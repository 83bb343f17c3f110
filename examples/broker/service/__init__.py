"""What clients meet: connections, handlers, settings, and ways to look in.

    config       the settings of one process
    event_loop   what a node runs on
    connection   frames in, responses out, in order and within limits
    server       the listener, and what all connections share
    *_handlers   one method per API: wire messages into values, and back
    membership   a node's part in a cluster; instructions: what a controller tells it
    group_moves  groups that come and go with their partitions
    look_in      metrics, console, journal

What a client may do to the broker ends here: below are values only.
"""
