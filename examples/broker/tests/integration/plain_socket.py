"""A client without a library: it sends requests whether or not they are answered."""

import socket
import struct

from examples.broker.protocol.apis import APIS, ApiKey
from examples.broker.protocol.errors import ErrorCode
from examples.broker.protocol.messages import records
from examples.broker.protocol.messages.header import RequestHeader
from examples.broker.protocol.records import build
from examples.broker.protocol.wire import decode, encode


class Socket:
    def __init__(self, address):
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=30)

    def send(self, key, version, request):
        body = b"".join([*encode(RequestHeader(key, version, 1, "plain"), 0), *encode(request, version)])
        self.sock.sendall(struct.pack(">i", len(body)) + body)

    def produce(self, topic, value, acks):
        parts = [records.ProducePartition(0, build([(None, value)], timestamps=[1]))]
        self.send(ApiKey.PRODUCE, 7, records.ProduceRequest(None, acks, 20_000, [records.ProduceTopic(topic, parts)]))

    def answer(self, key, version):
        (size,) = struct.unpack(">i", self._take(4))
        return decode(APIS[key].response, version, self._take(size), 4)

    def _take(self, size):
        data = self.sock.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError
        return data

    def ask(self, key, version, request):
        """Send a request, and give its answer. Raises OSError if there is none."""
        self.send(key, version, request)
        return self.answer(key, version)

    def acknowledged(self, topic, value, acks):
        self.produce(topic, value, acks)
        (answered,) = self.answer(ApiKey.PRODUCE, 7).topics
        return answered.partitions[0].error_code == ErrorCode.NONE

    def rest(self):
        """Everything that arrives until the connection is closed."""
        data = b""
        try:
            while piece := self.sock.recv(65_536):
                data += piece
        except ConnectionResetError:
            pass
        finally:
            self.sock.close()
        return data
