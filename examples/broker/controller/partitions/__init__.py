"""Partitions and replicas, as the controller moves them from state to state.

states               the states, and the allowed moves
assignment           which nodes get the replicas of a new topic
elections            which replica leads: pure functions
requests             the requests to the other nodes that follow from one event
partition_machine    moves of partitions
replica_machine      moves of replicas
"""
