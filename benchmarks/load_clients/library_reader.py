"""A plain reader on a library: fifth argument ``aiohttp-json``,
``aiohttp-orjson-uvloop``, ``httpx``. Times, parses, counts each chunk.
"""

import asyncio
import json
import time

from measured import base_url, completion_body, concurrency, extra, measure

kind = extra[0]
loads = json.loads
if "orjson" in kind:
    import orjson

    loads = orjson.loads


class Seen:
    def __init__(self):
        self.times = []
        self.counts = []

    def take(self, line):
        if line.startswith(b"data: {"):
            self.times.append(time.monotonic_ns())
            self.counts.append(
                sum(len(choice["token_ids"]) for choice in loads(line[6:])["choices"])
            )


async def aiohttp_user(session, seen, number, tokens):
    async with session.post(
        base_url + "/v1/completions", json=completion_body(number, tokens)
    ) as response:
        async for line in response.content:
            seen.take(line)


async def httpx_user(session, seen, number, tokens):
    async with session.stream(
        "POST", base_url + "/v1/completions", json=completion_body(number, tokens)
    ) as response:
        async for line in response.aiter_lines():
            seen.take(line.encode())


async def play(tokens):
    seen = Seen()
    if kind == "httpx":
        import httpx

        user = httpx_user
        opened = httpx.AsyncClient(
            timeout=None,  # noqa: S113
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
    else:
        import aiohttp

        user = aiohttp_user
        opened = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    async with opened as session:
        await asyncio.gather(
            *(user(session, seen, number, tokens) for number in range(concurrency))
        )
    assert sum(seen.counts) == concurrency * tokens, sum(seen.counts)


if "uvloop" in kind:
    import uvloop

    measure(lambda tokens: uvloop.run(play(tokens)))
else:
    measure(lambda tokens: asyncio.run(play(tokens)))
