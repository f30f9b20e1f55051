"""The bytes of an answer, as the OpenAI API has them.

Lives here: documents, events, chunk framing. Must not live here: when anything is written (emulator_stream), what was asked (emulator_api).
An answer's tokens are words of four letters, one a token: any client can count them, and every chunk of one token is equally long.
"""

from __future__ import annotations

import json
from typing import Any

from phasemeter.io.emulator_api import Ask

_WORDS = """
able acid aged also area army away baby back ball band bank base bath bear beat
been beer bell belt best bill bird blow blue boat body bomb bond bone book boom
born boss both bowl bulk burn bush busy call calm came camp card care case cash
cast cell chat chip city club coal coat code cold come cook cool cope copy core
"""
TOKENS = tuple(f" {word}".encode() for word in _WORDS.split())
WORDS = tuple(word.decode() for word in TOKENS)
END = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
LOGPROB = -0.5  # of each token; the k-th alternative's is that less k
_MARK = "\x00"
_MARK_JSON = b"\\u0000"


def usage(ask: Ask, output_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """`output_tokens` of all choices together; `cached_tokens` None: the server has no prefix cache to tell of."""
    prompt_tokens, reasoning = len(ask.prompt), ask.faults.reasoning_tokens * ask.n
    told: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
    if reasoning:
        told["completion_tokens_details"] = {"reasoning_tokens": min(reasoning, output_tokens)}
    if cached_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return told


def frame(payload: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _word(token: int) -> str:
    return WORDS[token & 63]


def chat_logprobs(start: int, count: int, most: int) -> dict[str, Any]:
    """`logprobs` of a chat choice for tokens `start` … `start + count − 1`, each with `most` alternatives."""

    def one(token: int, rank: int) -> dict[str, Any]:
        word = _word(token)
        return {"token": word, "logprob": LOGPROB - rank, "bytes": list(word.encode())}

    at = range(start, start + count)
    return {"content": [one(i, 0) | {"top_logprobs": [one(i + k, k) for k in range(most)]} for i in at]}


def text_logprobs(start: int, count: int, most: int) -> dict[str, Any]:
    """The same as completions have it: parallel lists."""
    at = range(start, start + count)
    return {
        "text_offset": [len(WORDS[0]) * i for i in at],
        "token_logprobs": [LOGPROB] * count,
        "tokens": [_word(i) for i in at],
        "top_logprobs": [{_word(i + k): LOGPROB - k for k in range(max(1, most))} for i in at],
    }


class Writer:
    """The bytes of one stream. A token's chunk is three pieces put together: nothing is encoded while a step goes out.

    With logprobs or usage in every chunk each chunk is a document of its own; `prepared` says whether it is the other way.
    """

    def __init__(self, ask: Ask, response_id: str, created: int) -> None:
        self.ask = ask
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self.about = {"id": response_id, "object": kind, "created": created, "model": ask.model}
        self.prepared = ask.logprobs is None and not ask.continuous_usage
        self.content = [self._halves("content", choice) for choice in range(ask.n)]
        self.reasoning = [self._halves("reasoning_content", choice) for choice in range(ask.n)]
        framed = [frame(before + TOKENS[0] + after).split(TOKENS[0]) for before, after in self.content]
        self.framed = [(before, after) for before, after in framed]
        self.role = self._role() if ask.chat else b""

    def _halves(self, field: str, choice: int) -> tuple[bytes, bytes]:
        before, _, after = event(self._chunk(choice, field, _MARK, None, None)).partition(_MARK_JSON)
        return before, after

    def _chunk(self, choice: int, field: str, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {field: text}} if self.ask.chat else {"text": text}
        return self.about | {"choices": [{"index": choice, **said, "logprobs": logprobs, "finish_reason": finish}]}

    def _role(self) -> bytes:
        """The chunks that only name the assistant; completions have none."""
        said = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        usage_now = {"usage": usage(self.ask, 0)} if self.ask.continuous_usage else {}
        return b"".join(
            frame(event(self.about | {"choices": [{"index": choice, **said}]} | usage_now))
            for choice in range(self.ask.n)
        )

    def one(self, token: int) -> bytes:
        """A chunk a choice with this token, where chunks are prepared and nothing is reasoned."""
        word = TOKENS[token & 63]
        if self.ask.n == 1:
            before, after = self.framed[0]
            return before + word + after
        return b"".join(before + word + after for before, after in self.framed)

    def tokens(self, start: int, count: int, finish: str | None = None) -> bytes:
        """Chunks with tokens `start` … `start + count − 1` (split where reasoning ends) of every choice, the last with `finish`."""
        thinking = max(0, min(count, self.ask.faults.reasoning_tokens - start))
        parts = [("reasoning_content", start, thinking), ("content", start + thinking, count - thinking)]
        parts = [part for part in parts if part[2]]
        return b"".join(
            frame(self._event(choice, *part, finish if part is parts[-1] else None))
            for choice in range(self.ask.n)
            for part in parts
        )

    def _event(self, choice: int, field: str, first: int, many: int, finish: str | None) -> bytes:
        if not self.prepared:
            return self._document(choice, field, first, many, finish)
        before, after = (self.content if field == "content" else self.reasoning)[choice]
        if finish is not None:
            after = after.replace(b'"finish_reason":null', b'"finish_reason":"%b"' % finish.encode())
        return before + b"".join(TOKENS[i & 63] for i in range(first, first + many)) + after

    def _document(self, choice: int, field: str, first: int, many: int, finish: str | None) -> bytes:
        ask = self.ask
        logprobs = None
        if ask.logprobs is not None and field == "content":
            logprobs = (chat_logprobs if ask.chat else text_logprobs)(first, many, ask.logprobs)
        text = "".join(_word(i) for i in range(first, first + many))
        document = self._chunk(choice, field, text, finish, logprobs)
        if ask.continuous_usage:  # each chunk tells of its own choice
            document["usage"] = usage(ask, first + many)
        return event(document)

    def end(self, output_tokens: int, metrics: dict[str, float] | None, cached_tokens: int | None) -> bytes:
        """What follows the last tokens: usage (with `metrics` beside it) where it was asked for, and the end."""
        if not self.ask.include_usage:
            return _ENDING
        told = usage(self.ask, output_tokens * self.ask.n, cached_tokens)
        timed = {"metrics": metrics} if metrics and self.ask.n == 1 else {}
        return frame(event(self.about | {"choices": [], "usage": told} | timed)) + _ENDING

    def error(self, message: str) -> bytes:
        """An error inside the stream, then its end."""
        document = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
        return frame(event(document)) + _ENDING

    def whole(
        self, output_tokens: int, finish: str, metrics: dict[str, float] | None, cached_tokens: int | None
    ) -> bytes:
        """The answer to a request that didn't ask for a stream."""
        ask = self.ask
        thinking = min(ask.faults.reasoning_tokens, output_tokens)
        words = [_word(i) for i in range(output_tokens)]
        said: dict[str, Any] = {"text": "".join(words[thinking:])}
        if ask.chat:
            said = {"message": {"role": "assistant", "content": "".join(words[thinking:])}}
            if thinking:
                said["message"]["reasoning_content"] = "".join(words[:thinking])
        logprobs = None
        if ask.logprobs is not None:
            logprobs = (chat_logprobs if ask.chat else text_logprobs)(thinking, output_tokens - thinking, ask.logprobs)
        choices = [{"index": i, **said, "logprobs": logprobs, "finish_reason": finish} for i in range(ask.n)]
        kind = "chat.completion" if ask.chat else "text_completion"
        told = usage(ask, output_tokens * ask.n, cached_tokens)
        timed = {"metrics": metrics} if metrics and ask.n == 1 else {}
        return json.dumps(self.about | {"object": kind, "choices": choices, "usage": told} | timed).encode()


_ENDING = frame(END) + LAST_CHUNK
