"""A server that answers every PutItem at once, so that only the client's work is measured.

``python -m bench.answering_server`` prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
import zlib

_BODY = (
    b'{"ConsumedCapacity":{"TableName":"bench","CapacityUnits":1.0,"Table":{"CapacityUnits":1.0}}}'
)
_ANSWER = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\n"
    b"Content-Length: %d\r\n"
    b"x-amzn-RequestId: 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123\r\n"
    b"x-amz-crc32: %d\r\n\r\n" % (len(_BODY), zlib.crc32(_BODY))
) + _BODY


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (head_end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:head_end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            request_end = head_end + 4 + length
            if len(self._received) < request_end:
                return
            self._received = self._received[request_end:]
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(_ANSWER)


async def main() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    server = await loop.create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
