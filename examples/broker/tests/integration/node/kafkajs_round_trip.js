// Produce with acks=all, gzip and headers; consume as a group; print what was sent and what was received.
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const [, , bootstrap, topic] = process.argv;
const COUNT = 40;

async function main() {
  const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.ERROR });
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const sent = [];
  for (let number = 0; number < COUNT; number++) {
    sent.push(`value-${number}`);
    await producer.send({
      topic,
      acks: -1,
      compression: number % 2 ? CompressionTypes.GZIP : CompressionTypes.None,
      messages: [{ partition: number % 4, value: `value-${number}`, headers: { from: "kafkajs" } }],
    });
  }
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: topic, sessionTimeout: 30000, heartbeatInterval: 300 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const received = [];
  let headers = {};
  await new Promise((resolve) =>
    consumer.run({
      eachMessage: async ({ message }) => {
        received.push(message.value.toString());
        headers = { from: message.headers.from.toString() };
        if (received.length >= COUNT) resolve();
      },
    }),
  );
  await consumer.disconnect();
  console.log(JSON.stringify({ sent, received, headers }));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
