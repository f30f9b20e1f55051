"""The shape of most tools: aiohttp, a line at a time, JSON on the spot. `python bench/aiohttp_client.py PORT STREAMS TOKENS`
prints its CPU seconds and its number of events."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp


async def one(session: aiohttp.ClientSession, url: str, tokens: int) -> int:
    stamps: list[float] = []
    body = {"model": "truth", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}]}
    async with session.post(url, json=body) as response:
        async for line in response.content:
            text = line.strip().decode()
            if not text.startswith("data: ") or text == "data: [DONE]":
                continue
            event = json.loads(text[6:])
            if event["choices"][0]["delta"].get("content"):
                stamps.append(time.perf_counter())
    return len(stamps)


async def run(port: int, streams: int, tokens: int) -> int:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        return sum(await asyncio.gather(*(one(session, url, tokens) for _ in range(streams))))


def main() -> None:
    events = asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    print(time.process_time(), events)


if __name__ == "__main__":
    main()
