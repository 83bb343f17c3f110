"""The controller: the one node that elects leaders, and how it is elected itself.

tree          the nodes of the tree, fenced writes, candidacy
context       the controller's copy of the tree
partitions    elections, in-sync replicas, requests to the other nodes
events        the queue and its one thread
duties        one method per event, for one term
nodes, deletion, reassignment    events with more than one step
delayed_topics    requests of clients that wait for the controller
controller    one term after another
"""
