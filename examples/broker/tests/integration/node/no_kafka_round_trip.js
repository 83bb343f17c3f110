// Produce and consume with the requests and the message format of 0.9's day, and commit; prints what came of it.
const Kafka = require("no-kafka");

const [, , bootstrap, topic] = process.argv;
const COUNT = 20;
const quiet = { logLevel: 1 };

async function main() {
  const producer = new Kafka.Producer({ connectionString: bootstrap, requiredAcks: -1, logger: quiet });
  await producer.init();
  const sent = [];
  for (let number = 0; number < COUNT; number++) {
    sent.push(`value-${number}`);
    await producer.send({ topic, partition: number % 4, message: { value: `value-${number}` } });
  }
  await producer.end();

  const consumer = new Kafka.GroupConsumer({
    connectionString: bootstrap,
    groupId: topic,
    startingOffset: Kafka.EARLIEST_OFFSET,
    sessionTimeout: 30000,
    heartbeatTimeout: 300,
    idleTimeout: 50,
    logger: quiet,
  });
  const received = [];
  let done;
  const all = new Promise((resolve) => { done = resolve; });
  const handler = async (messages, name, partition) => {
    for (const { offset, message } of messages) {
      received.push(message.value.toString());
      await consumer.commitOffset({ topic: name, partition, offset });
    }
    if (received.length >= COUNT) done();
  };
  await consumer.init([{ subscriptions: [topic], handler }]);
  await all;
  const [{ offset }] = await consumer.fetchOffset([{ topic, partition: 0 }]);
  await consumer.end();
  console.log(JSON.stringify({ sent, received, committed: offset + 0 }));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
