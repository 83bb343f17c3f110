"""A node's membership in a cluster.

membership      connects the parts
instructions    requests from the controller
channels        requests to other nodes, if this node is the controller
tree_client     reads and writes of the tree, on a thread of their own
topics          topics in the tree, and the requests that wait for them
former_topics   topics of earlier versions, brought into the tree
group_moves     groups that arrive and leave with a leadership
metrics         the controller's metrics
"""
