"""The purgatory past one machine, between two Kafka topics: trace rows come out of one, answers go into the other.

source     a topic as a Spark source, in Python: for where the jar of Spark's own can't be had
__main__   the query between the two
"""
