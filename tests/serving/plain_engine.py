"""A scheduler in its plainest form, token by token: whole prompts first, then all decodes. For tests of what stands around engines."""

from __future__ import annotations

from collections.abc import Callable

from phasemeter.errors import UserError
from phasemeter.serving.events import Admitted, Event, Finished, Prefilled, Pull, Tokens, Truth
from phasemeter.serving.sequence import Request

StepNs = Callable[[int, int, int], int]  # (decodes, sum of contexts, new prompt tokens) -> ns


class PlainEngine:
    """`role`: whole | prefill | decode. KV in tokens; a request is refused when it could never fit."""

    def __init__(self, step_ns: StepNs, kv_tokens: int = 10**9, *, most: int = 10**9, role: str = "whole") -> None:
        self.step_ns, self.kv_tokens, self.most, self.role = step_ns, kv_tokens, most, role
        self.waiting: list[Request] = []
        self.running: dict[str, Request] = {}
        self.made: dict[str, int] = {}
        self.marks: dict[str, tuple[int, int]] = {}  # (prefill start, first token)
        self.kv: dict[str, int] = {}
        self.coming: dict[str, Request] = {}  # their KV is under way
        self.now_ns = 0
        self.step: tuple[int, int, list[Request], list[str]] | None = None  # start, end, prefills, decodes

    def check(self, request: Request) -> None:
        if request.prompt_tokens + request.output_tokens > self.kv_tokens:
            raise UserError(f"request {request.request_id} is longer than the KV pool of {self.kv_tokens} tokens")

    def submit(self, now_ns: int, request: Request) -> None:
        self.check(request)
        self.waiting.append(request)
        self.made[request.request_id] = 0
        self._start(now_ns)

    def offer(self, now_ns: int, request: Request) -> None:
        self.waiting.append(request)
        self.made[request.request_id] = 1
        self.now_ns = max(self.now_ns, now_ns) if self.step is None else self.now_ns

    def _free(self) -> int:
        return self.kv_tokens - sum(self.kv.values())

    def _start(self, now_ns: int) -> None:
        if self.step is not None:
            return
        self.now_ns = max(self.now_ns, now_ns)
        prefills: list[Request] = []
        while self.waiting and len(self.running) + len(prefills) < self.most and self.role != "decode":
            head = self.waiting[0]
            if head.prompt_tokens + head.output_tokens > self._free() or (prefills and self.role == "prefill"):
                break
            prefills.append(self.waiting.pop(0))
            self.kv[head.request_id] = head.prompt_tokens + head.output_tokens
        decodes = [] if prefills else list(self.running)
        if not prefills and not decodes:
            return
        contexts = sum(self.running[one].prompt_tokens + self.made[one] for one in decodes)
        took = self.step_ns(len(decodes), contexts, sum(one.prompt_tokens for one in prefills))
        self.step = (self.now_ns, self.now_ns + took, prefills, decodes)

    def due_ns(self) -> int | None:
        if self.step is not None:
            return self.step[1]
        pullable = self.role == "decode" and self.waiting and self._fits(self.waiting[0])
        return self.now_ns if pullable else None

    def _fits(self, request: Request) -> bool:
        return request.prompt_tokens + request.output_tokens <= self._free()

    def advance(self, now_ns: int) -> list[Event]:
        events: list[Event] = []
        while (due := self.due_ns()) is not None and due <= now_ns:
            if self.step is not None:
                events += self._end(*self.step)
            if self.role == "decode":
                events += self._pulls(max(due, self.now_ns))
            self._start(self.now_ns)
        return events

    def _pulls(self, now_ns: int) -> list[Event]:
        events: list[Event] = []
        while self.waiting and self._fits(self.waiting[0]):
            head = self.waiting.pop(0)
            self.kv[head.request_id] = head.prompt_tokens + head.output_tokens
            self.marks[head.request_id] = (now_ns, now_ns)
            self.coming[head.request_id] = head
            events.append(Pull(now_ns, head.request_id, head.prompt_tokens))
        return events

    def delivered(self, now_ns: int, request_id: str) -> None:
        self.running[request_id] = self.coming.pop(request_id)
        self._start(now_ns)

    def release(self, now_ns: int, request_id: str) -> None:
        del self.kv[request_id]
        self._start(now_ns)

    def abort(self, now_ns: int, request_id: str) -> bool:
        return False  # nobody leaves

    def load(self) -> tuple[int, int, float]:
        prefilling = len(self.step[2]) if self.step else 0
        return len(self.running) + prefilling, len(self.waiting), sum(self.kv.values()) / self.kv_tokens

    def _end(self, start: int, end: int, prefills: list[Request], decodes: list[str]) -> list[Event]:
        self.step, self.now_ns = None, end
        events: list[Event] = [Admitted(start, one.request_id) for one in prefills]
        first = tuple(one.request_id for one in prefills)
        events.append(Tokens(start, end, first, tuple(decodes)))
        for one in prefills:
            self.marks[one.request_id] = (start, end)
            self.running[one.request_id] = one
        for request_id in (*first, *decodes):
            self.made[request_id] += 1
            if self.role == "prefill" and self.running[request_id].output_tokens > 1:
                request = self.running.pop(request_id)
                events.append(Prefilled(end, request_id, self._truth(request, end)))
            elif self.made[request_id] == self.running[request_id].output_tokens:
                request = self.running.pop(request_id)
                del self.kv[request_id]
                events.append(Finished(end, request_id, self._truth(request, end)))
        return events

    def _truth(self, request: Request, end: int) -> Truth:
        began, first = self.marks[request.request_id]
        arrival = request.arrival_ns
        return Truth(
            request.request_id, request.prompt_tokens, request.output_tokens, 1, 0, arrival, arrival, began, first, first,
            end, 0, 0, 0, 0, (),
        )  # fmt: skip


def fixed(prefill_ns: int, decode_ns: int) -> StepNs:
    return lambda decodes, contexts, new: prefill_ns if new else decode_ns


def request(number: int, arrival_ns: int, prompt: int = 100, output: int = 10) -> Request:
    return Request(request_id=f"r{number}", prompt_tokens=prompt, output_tokens=output, arrival_ns=arrival_ns)
