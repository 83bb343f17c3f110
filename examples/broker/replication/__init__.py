"""Partitions with their replicas, and the operations that wait for them.

cluster, settings       the nodes, and the settings of replication
leadership, metadata    the leader of one partition, the leaders of all
followers, partition    in-sync replicas and the high watermark: arithmetic
delayed_produce         a write that waits for the replicas
delayed_delete_records  a deletion that waits for the replicas
fetching                reads, and those that wait
parking                 parks an operation, or completes it if the purgatory is full
replica_manager         all partitions of a node
topic_manager           creates, changes and deletes topics
peers                   connections to other nodes, and the follower
"""
