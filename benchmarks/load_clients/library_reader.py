"""A plain reader on a library: fifth argument ``aiohttp-json``, ``aiohttp-orjson-uvloop``, ``httpx``. Times, parses and counts each chunk."""

import asyncio
import json
import sys
import time
from collections import deque

base_url, concurrency, output_tokens, requests = sys.argv[1], *map(int, sys.argv[2:5])
kind = sys.argv[5]
work = deque(range(requests))
counts = []
times = []
if "orjson" in kind:
    import orjson

    loads = orjson.loads
else:
    loads = json.loads


def body(number):
    return {
        "model": "mock",
        "prompt": [number, *range(31)],
        "max_tokens": output_tokens,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }


def take(line):
    if line.startswith(b"data: {"):
        times.append(time.monotonic_ns())
        counts.append(sum(len(choice["token_ids"]) for choice in loads(line[6:])["choices"]))


async def aiohttp_user(session):
    while work:
        number = work.popleft()
        async with session.post(base_url + "/v1/completions", json=body(number)) as response:
            async for line in response.content:
                take(line)


async def httpx_user(session):
    while work:
        number = work.popleft()
        async with session.stream("POST", base_url + "/v1/completions", json=body(number)) as response:
            async for line in response.aiter_lines():
                take(line.encode())


async def main():
    if kind == "httpx":
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits) as session:  # noqa: S113
            await asyncio.gather(*(httpx_user(session) for _ in range(concurrency)))
    else:
        import aiohttp

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(aiohttp_user(session) for _ in range(concurrency)))


if "uvloop" in kind:
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
assert sum(counts) == requests * output_tokens, sum(counts)
