"""The leaders and in-sync replicas of partitions.

assignment    which nodes get the replicas of a new topic
elections     which replica leads: pure functions
leaders       elections and changes of in-sync replicas, as writes to the tree
requests      the requests to the other nodes that follow from one event
"""
