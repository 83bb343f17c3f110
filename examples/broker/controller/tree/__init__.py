"""The controller's part of the tree.

layout        paths and contents of the nodes
writer        writes that fail once there is a newer controller
candidacy     how a node becomes the controller
"""
