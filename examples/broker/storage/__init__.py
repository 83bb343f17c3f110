"""What is on disk: the logs of partitions, and what the node remembers besides.

    segment      one file of a log, and the index of its batches
    log          the segments of one partition
    producers    which batches of idempotent producers are in the log already
    topic_settings      what each setting of a topic is called, and what it may be
    topics       the topics, producer ids, and how far each log had come
    replica_folders     the folder of each replica, and of which topic it is
    folder_lock  one process a data folder
    disk         whether the disk takes writes

Knows of one node and its folder only; of replicas, groups and clients nothing.
"""
