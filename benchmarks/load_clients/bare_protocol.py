"""The floor: a bare asyncio protocol that only counts chunks. A fifth argument
``uvloop`` swaps the event loop.
"""

import asyncio
import json

from measured import completion_body, concurrency, extra, host, measure, port

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length:"
    b" %d\r\n\r\n"
)


class Counter(asyncio.Protocol):
    def __init__(self, request, finished):
        self.request = request
        self.finished = finished
        self.count = 0

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data):
        self.count += data.count(b"data: {")
        if data.endswith(b"0\r\n\r\n"):
            self.transport.close()
            self.finished.set_result(self.count)


async def play(tokens):
    loop = asyncio.get_running_loop()
    ends = [loop.create_future() for _ in range(concurrency)]
    for number, end in enumerate(ends):
        body = json.dumps(completion_body(number, tokens)).encode()
        request = HEAD % len(body) + body
        await loop.create_connection(
            lambda request=request, end=end: Counter(request, end), host, int(port)
        )
    counts = await asyncio.gather(*ends)
    assert min(counts) >= tokens, counts


if extra == ["uvloop"]:
    import uvloop

    measure(lambda tokens: uvloop.run(play(tokens)))
else:
    measure(lambda tokens: asyncio.run(play(tokens)))
