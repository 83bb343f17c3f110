"""Every message that this broker reads or writes, declared field by field, one module per family of APIs.

    common      the base of all messages, and parts that several share
    header      the header of every request, and ApiVersions
    records     Produce, Fetch, ListOffsets, DeleteRecords, InitProducerId
    topics      Metadata, CreateTopics, DeleteTopics, CreatePartitions
    configs     DescribeConfigs, AlterConfigs, IncrementalAlterConfigs
    offsets     OffsetCommit, OffsetFetch, OffsetDelete
    groups      FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, Describe-, List-, DeleteGroups
    controller  requests between nodes, ElectLeaders, OffsetForLeaderEpoch

The order of a class's fields is their order on the wire. ``since``, ``only`` and ``array`` say in which versions a
field exists (see ``wire``). Only non-flexible versions are supported. ``apis`` maps APIs to messages.
"""
