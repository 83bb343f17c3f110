// What an administrator does: make, grow, describe, delete; prints what came of it.
const { ConfigResourceTypes, Kafka, logLevel } = require("kafkajs");

const [, , bootstrap, topic] = process.argv;

async function main() {
  const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.NOTHING });
  const admin = kafka.admin();
  await admin.connect();
  const told = {};
  told.created = await admin.createTopics({
    waitForLeaders: true,
    topics: [{ topic, configEntries: [{ name: "segment.bytes", value: "100000" }] }],
  });
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
  told.partitions = metadata.topics[0].partitions.length;
  const described = await admin.describeConfigs({
    includeSynonyms: true,
    resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
  });
  told.segment = described.resources[0].configEntries.find((entry) => entry.configName === "segment.bytes").configValue;
  try {
    await admin.alterConfigs({
      resources: [
        { type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name: "cleanup.policy", value: "compact" }] },
      ],
    });
  } catch (error) {
    told.refused = (error.cause || error).type || error.type;
  }
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: [{ partition: 0, value: "a" }, { partition: 0, value: "b" }] });
  await producer.disconnect();
  const offsets = await admin.fetchTopicOffsets(topic);
  told.offsets = offsets.sort((a, b) => a.partition - b.partition).map((entry) => entry.offset);
  await admin.setOffsets({ groupId: topic, topic, partitions: [{ partition: 0, offset: "1" }] });
  const deleted = await admin.deleteGroups([topic]);
  told.groupDeleted = deleted[0].errorCode === 0 || deleted[0].errorCode === undefined;
  await admin.deleteTopics({ topics: [topic] });
  told.gone = !(await admin.listTopics()).includes(topic);
  await admin.disconnect();
  console.log(JSON.stringify(told));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
