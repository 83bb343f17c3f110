"""The room of the controller: the one node that decides who leads what, and how it comes to be that one.

Reading order: `layout` (what is in the tree), `states` (which moves are allowed), `elections` (who leads: pure
functions), `context` (what the controller knows), `writer` (its fenced writes), `partition_machine` and
`replica_machine` (moves with their effects), `requests` (what it tells the others), `events` (its one thread),
`candidacy` (how it is elected), `duties` (an event each), `deletion` and `reassignment` (the two that take several
steps), `controller` (its life).
"""
