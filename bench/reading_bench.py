"""How fast captured bytes become boundaries, as a ratio to `json.loads` alone over the same payloads.

A chat stream, one token a chunk, one event a read, chunked HTTP framing included. The goal is 0.75, the limit 1.0.
Both are timed in turns on the CPU clock of this process, the median of the rounds' ratios is printed;
milliseconds are for orientation only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from phasemeter.metrics.boundaries import row_of
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.records.capture import Capture, ClockPair, Read
from phasemeter.records.request import PlannedRequest

WORDS = (
    " the", " sea", " is", "\n", " a", " vast", ",", " and", " \"quoted\"", " deep", ".", " It", "’s", " home", " to", " life",
    " 海", " that", " we", " know", " little", " about", "\n\n", " still",
)  # fmt: skip
SECOND = 10**9


def _vllm(text: str, number: int) -> str:
    head = '{"id":"chatcmpl-9b358767f89e4627","object":"chat.completion.chunk","created":1795962369,"model":"smollm2","choices":['
    delta = f'{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":null,"token_ids":null}}'
    return f"{head}{delta}]}}"


def _continuous(text: str, number: int) -> str:
    usage = f'"usage":{{"prompt_tokens":37,"total_tokens":{38 + number},"completion_tokens":{1 + number}}}'
    return f"{_vllm(text, number)[:-1]},{usage}}}"


def _logprobs(text: str, number: int) -> str:
    raw = ",".join(map(str, json.loads(text).encode()))
    token = f'"token":{text},"logprob":-{number % 7}.{12345678901234 + number},"bytes":[{raw}]'
    told = f'{{"content":[{{{token},"top_logprobs":[{{{token}}}]}}]}}'
    return _vllm(text, number).replace('"logprobs":null', f'"logprobs":{told}')


def _llamacpp(text: str, number: int) -> str:
    tail = '],"created":1795962589,"id":"chatcmpl-RBDmMp7tgzLnqhLYPEhluzRbtfwOE1nI","model":"smollm2",'
    tail += '"system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}'
    return f'{{"choices":[{{"finish_reason":null,"index":0,"delta":{{"content":{text}}}}}{tail}'


def _timed(text: str, number: int) -> str:
    timings = f'"timings":{{"cache_n":0,"prompt_n":37,"prompt_ms":101.2,"predicted_n":{number + 1},"predicted_ms":{11.3 * number:.3f},'
    timings += f'"predicted_per_token_ms":11.{number},"predicted_per_second":{88 + number / 100}}}'
    return f"{_llamacpp(text, number)[:-1]},{timings}}}"


def _openai(text: str, number: int) -> str:
    head = '{"id":"chatcmpl-Cx1","object":"chat.completion.chunk","created":1795962369,"model":"gpt-5","service_tier":"default",'
    head += '"system_fingerprint":null,"choices":[{"index":0,'
    return f'{head}"delta":{{"content":{text}}},"finish_reason":null}}],"usage":null,"obfuscation":"{"aB3xY9q0Lm"[: 1 + number % 9]}"}}'


def _sglang(text: str, number: int) -> str:
    head = '{"id":"83f1e2","object":"chat.completion.chunk","created":1795962369,"model":"qwen","choices":[{"index":0,"delta":{'
    delta = f'"role":null,"content":{text},"reasoning_content":null,"tool_calls":null}},"logprobs":null,"finish_reason":null,'
    return f'{head}{delta}"matched_stop":null}}],"usage":null}}'


SHAPES: dict[str, Callable[[str, int], str]] = {
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "sglang": _sglang,
    "vllm, usage on every chunk": _continuous,
    "vllm, top logprobs": _logprobs,
    "llamacpp, timings per token": _timed,
    "openai, obfuscation": _openai,
}


def payloads(tokens: int, shape: str) -> list[bytes]:
    """The JSON documents of one stream, as that server writes them."""
    write = SHAPES[shape]
    found = [write(json.dumps(WORDS[number % len(WORDS)], ensure_ascii=False), number) for number in range(tokens)]
    end = '{"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":37,'
    found.append(f'{end}"completion_tokens":{tokens},"total_tokens":{37 + tokens}}}}}')
    return [text.encode() for text in found]


def captures(streams: int, tokens: int, shape: str) -> list[tuple[PlannedRequest, Capture]]:
    """`streams` requests as the sender would have written them down, kernel stamps included."""
    documents = payloads(tokens, shape)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    made = []
    for stream in range(streams):
        start = SECOND + stream * 1_000_000
        reads = [Read(start + 1000, start + 500 + 10**18, head)]
        for number, document in enumerate([*documents, b"[DONE]"]):
            body = b"data: " + document + b"\n\n"
            at = start + (number + 1) * 20_000_000
            last = b"0\r\n\r\n" if document == b"[DONE]" else b""
            reads.append(Read(at + 40_000, at + 10**18, b"%x\r\n%b\r\n" % (len(body), body) + last))
        made.append(
            (
                PlannedRequest(request_id=str(stream), index=stream, output_tokens=tokens),
                Capture(
                    request_id=str(stream), due_ns=start - 10, send_start_ns=start, sent_ns=start + 10, reads=tuple(reads),
                    closed_ns=reads[-1].user_ns, close="complete",
                ),
            )
        )  # fmt: skip
    return made


def measure(shape: str, streams: int, tokens: int, rounds: int) -> tuple[float, float, float]:
    """(median ratio, our µs an event, json.loads µs an event)."""
    made = captures(streams, tokens, shape)
    documents = payloads(tokens, shape)
    pairs = [ClockPair(t, t + 10**18) for t in range(0, 12 * SECOND, SECOND // 10)]
    events = streams * len(documents)
    ratios, ours, theirs = [], [], []
    for _ in range(rounds):
        begun = time.process_time()
        for _stream in range(streams):
            for document in documents:
                json.loads(document)
        between = time.process_time()
        clock = ReceiveClock(pairs)
        rows = [row_of(planned, capture, clock) for planned, capture in made]
        done = time.process_time()
        assert all(row.outcome == "ok" and row.output_tokens == tokens for row in rows)
        assert clock.refused == 0
        ours.append((done - between) / events * 1e6)
        theirs.append((between - begun) / events * 1e6)
        ratios.append(ours[-1] / theirs[-1])
    return statistics.median(ratios), statistics.median(ours), statistics.median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for shape in SHAPES:
        ratio, ours, theirs = measure(shape, options.streams, options.tokens, options.rounds)
        print(
            f"reading {shape:28} {ratio:.2f}x json.loads (limit 1.0, goal 0.75)"
            f"  [{ours:.2f} µs against {theirs:.2f} µs an event]"
        )


if __name__ == "__main__":
    main()
