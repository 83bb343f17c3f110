"""The files of one node.

    segment          one file of a log, and the index of its batches
    log              the segments of one partition
    producers        recent batches of idempotent producers
    leader_epochs    where each leader's records begin
    topic_settings   names and values of the settings of topics
    topics           topics, producer ids, checkpoints
    replica_folders  the folder of each replica, and the topic that it belongs to
    folder_lock      one process per data folder
    disk             whether the disk accepts writes, and when they are forced to it

No module here knows of other nodes, groups or clients.
"""
