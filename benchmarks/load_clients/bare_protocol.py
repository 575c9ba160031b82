"""The floor: a bare asyncio protocol that only counts chunks. A fifth argument ``uvloop`` swaps the event loop."""

import asyncio
import json
import sys
from collections import deque

base_url, concurrency, output_tokens, requests = sys.argv[1], *map(int, sys.argv[2:5])
host, port = base_url.removeprefix("http://").split(":")
work = deque(range(requests))
counts = [0]


def request_bytes(number):
    body = {"model": "mock", "prompt": [number, *range(31)], "max_tokens": output_tokens, "stream": True, "ignore_eos": True}
    body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True}
    encoded = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(encoded) + encoded
    )


class Counter(asyncio.Protocol):
    def __init__(self, finished):
        self.finished = finished

    def connection_made(self, transport):
        self.transport = transport
        self.next()

    def next(self):
        if not work:
            self.transport.close()
            self.finished.set_result(None)
            return
        self.transport.write(request_bytes(work.popleft()))

    def data_received(self, data):
        counts[0] += data.count(b"data: {")
        if data.endswith(b"0\r\n\r\n"):
            self.next()


async def main():
    loop = asyncio.get_running_loop()
    ends = [loop.create_future() for _ in range(concurrency)]
    for end in ends:
        await loop.create_connection(lambda end=end: Counter(end), host, int(port))
    await asyncio.gather(*ends)


if sys.argv[5:] == ["uvloop"]:
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
assert counts[0] >= requests * output_tokens, counts
