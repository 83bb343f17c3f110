"""Connections, request handlers, settings, and the node's part in a cluster.

    config         the settings of one process
    event_loop     uvloop or asyncio's own, and calls on it from other threads
    connection     frames in, responses out, in order and within limits
    reply          one response and its place in the order
    server         the listener, and the state that all connections share
    handlers       one method per API
    cluster        the node's membership
    observers      metrics, console, journal

The handlers turn wire messages into values. The packages before this one know values only.
"""
