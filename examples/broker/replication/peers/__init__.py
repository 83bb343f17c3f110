"""What a node asks of other nodes.

node_key             how a node proves that it belongs to the cluster
link                 a connection, one request at a time
incremental_fetch    a follower's side of a fetch session
follower             keeps the replicas of this node equal to their leaders
"""
