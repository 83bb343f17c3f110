"""One method per API, by family: from the request to the values that the broker works with, and back.

`topics` is for a node alone, `cluster_topics` for a node of a cluster. `nodes` has the requests between nodes.
"""
