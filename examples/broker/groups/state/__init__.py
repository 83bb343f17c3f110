"""The groups of a node, without the waiting.

values          requests of members and answers to them
group           members and states
store           groups and offsets as records of an internal topic
live_records    the latest record of each key
known_groups    the groups that this node coordinates
"""
