"""Partitions with their replicas, and what waits for them.

    cluster, settings       the nodes, and how replication behaves
    fetch_clock, followers  where followers are, and when they last were at the leader's end
    partition               in-sync replicas and the high watermark: arithmetic
    delayed_produce         a write that waits for the replicas
    fetch_sessions          what a fetch wants, remembered from one request to the next
    delayed_fetch           a read that waits for bytes
    fetches                 reads and parks: the sessions, and the fetches that wait
    delayed_delete_records  a deletion that waits for the replicas
    parking                 what there is no room for is answered at once
    replica_manager         all partitions of a node: who leads them, writes, and where the checks come from
    topic_manager           topics: made, grown, changed and deleted
    incremental_fetch       a follower's side of a fetch session
    follower                keeps this node's replicas equal to the leader's

Knows nothing of groups, and of clients only that they want answers.
"""
