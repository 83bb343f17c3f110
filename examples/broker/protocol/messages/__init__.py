"""Every message that this broker reads or writes, declared field by field, a module for each family of APIs.

    common    parts that several of them have
    header    what precedes every request, and ApiVersions
    records   Produce, Fetch, ListOffsets, DeleteRecords, InitProducerId
    topics    Metadata, CreateTopics, DeleteTopics, CreatePartitions
    configs   DescribeConfigs, AlterConfigs, IncrementalAlterConfigs
    offsets   OffsetCommit, OffsetFetch, OffsetDelete
    groups    FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, Describe-, List-, DeleteGroups

The order of a class's fields is their order on the wire; `since`, `only` and `array` say in which versions a
field is there (see `wire`). Only non-flexible versions are spoken. Which message belongs to which API stands
in `apis`.
"""
