#!/usr/bin/env python
"""Stands for Apache's script of this name, as far as librdkafka's tests call it."""

import argparse

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

parser = argparse.ArgumentParser()
for flag in ("--create", "--alter", "--delete"):
    parser.add_argument(flag, action="store_true")
for name in ("--zookeeper", "--bootstrap-server", "--topic"):
    parser.add_argument(name)
parser.add_argument("--partitions", type=int, default=1)
parser.add_argument("--replication-factor", type=int, default=1)
parser.add_argument("--config", action="append", default=[])
options = parser.parse_args()
admin = AdminClient({"bootstrap.servers": options.zookeeper or options.bootstrap_server})
if options.create:
    config = dict(each.split("=", 1) for each in options.config)
    futures = admin.create_topics([NewTopic(options.topic, options.partitions, options.replication_factor, config=config)])
elif options.alter:
    futures = admin.create_partitions([NewPartitions(options.topic, options.partitions)])
else:
    futures = admin.delete_topics([options.topic])
futures[options.topic].result(20)
