"""A server whose every write is due at an instant of its own making: what two clients see of it differs by the clients alone.

Its chat stream has all that tools treat differently: a role chunk well before the first text, an empty content chunk, a finish
reason and a usage each some time after the last text. Prints its port; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from itertools import count

TOKENS, EMPTY_AFTER = 24, 9
ROLE_S, FIRST_S, GAP_S, FINISH_S, USAGE_S = 0.060, 0.090, 0.020, 0.015, 0.040
WORD = " sea"


def events(number: int) -> list[tuple[float, object]]:
    """(seconds after the request's last byte, document) of the number-th answer; every third is slower."""
    slow = 1 + 0.2 * (number % 3)

    def choice(**fields: object) -> dict[str, object]:
        return {"id": f"paced-{number}", "model": "tiny", "choices": [{"index": 0, "finish_reason": None, **fields}]}

    last_s = FIRST_S + GAP_S * slow * (TOKENS - 1)
    found: list[tuple[float, object]] = [(ROLE_S, choice(delta={"role": "assistant", "content": ""}))]
    found += [(FIRST_S + GAP_S * slow * token, choice(delta={"content": WORD})) for token in range(TOKENS)]
    found.append((FIRST_S + GAP_S * slow * (EMPTY_AFTER + 0.5), choice(delta={"content": ""})))
    found.append((last_s + FINISH_S, choice(delta={}, finish_reason="length")))
    usage = {"prompt_tokens": 8, "completion_tokens": TOKENS, "total_tokens": 8 + TOKENS}
    found.append((last_s + USAGE_S, {"id": f"paced-{number}", "choices": [], "usage": usage}))
    return sorted(found, key=lambda pair: pair[0])


async def main() -> None:
    numbers = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = head.partition("content-length:")[2].split("\r\n")[0].strip()
                body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
                if "messages" not in body:
                    listed = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(listed)
                    )
                    writer.write(listed)
                    continue
                await stream(writer, next(numbers))
        writer.close()

    async def stream(writer: asyncio.StreamWriter, number: int) -> None:
        begun = asyncio.get_running_loop().time()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for due_s, document in events(number):
            await asyncio.sleep(max(0.0, begun + due_s - asyncio.get_running_loop().time()))
            text = b"data: " + json.dumps(document).encode() + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(text), text))
        end = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
