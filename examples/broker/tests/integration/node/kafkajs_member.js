// A member of a group: prints its partitions after every rebalance, and leaves when its standard input is closed.
const { Kafka, logLevel } = require("kafkajs");

const [, , bootstrap, topic] = process.argv;

async function main() {
  const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.NOTHING });
  const consumer = kafka.consumer({ groupId: topic, sessionTimeout: 30000, heartbeatInterval: 300 });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
    console.log(JSON.stringify((payload.memberAssignment[topic] || []).sort())),
  );
  await consumer.connect();
  await consumer.subscribe({ topic });
  await consumer.run({ eachMessage: async () => {} });
  process.stdin.resume();
  await new Promise((resolve) => process.stdin.on("end", resolve));
  await consumer.disconnect();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
