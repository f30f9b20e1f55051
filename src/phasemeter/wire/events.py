"""What a stream has said so far, as columns: the state that each API's reader writes into.

Lives here: output events per choice, usage, finish reasons, the error found, raw timings. Must not live here: the words of
an API (one module each), times (an event knows its read's number), whether the request succeeded (outcome).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

CONTENT: Final = "content"
REASONING: Final = "reasoning"
TOOL: Final = "tool"
REFUSAL: Final = "refusal"

# Where engines put their own times, kept as received: what they mean is server/'s business
TIMING_KEYS = frozenset({
    "timings", "metrics", "meta_info", "nvext", "time_info", "perf_metrics", "stats", "usage_breakdown",
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration",
    "prompt_eval_cached_count",
})  # fmt: skip
MOST_TOKENS = 10**15  # more is no count
CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
FINE = {
    "200",
    "ok",
    "success",
    "succeeded",
    "completed",
    "complete",
    "done",
    "finished",
    "stop",
}  # codes that report no error
THOUGHT = ("reasoning_tokens", "thinking_tokens")
WORDS = 400  # how much of a server's own words is kept


class Told(NamedTuple):
    """What an event with one piece of text says beside it: tokens (logprobs, token ids), and whether it counts (usage)."""

    tokens: int = 0
    counts: bool = False


class Usage:
    """Token counts as the server gave them; None where it gave none. Zero counts as not yet given.

    `apart`: the total shows that reasoning is no part of the completion tokens.
    """

    __slots__ = ("apart", "cached_tokens", "completion_tokens", "prompt_tokens", "reasoning_tokens")

    def __init__(
        self,
        prompt: int | None = None,
        completion: int | None = None,
        reasoning: int | None = None,
        cached: int | None = None,
    ) -> None:
        self.prompt_tokens = prompt
        self.completion_tokens = completion
        self.reasoning_tokens = reasoning
        self.cached_tokens = cached
        self.apart = False

    @property
    def generated(self) -> int | None:
        """Completion tokens with reasoning inside, wherever the server counts it."""
        apart = self.reasoning_tokens if self.apart else None
        return self.completion_tokens if apart is None else (self.completion_tokens or 0) + apart


class Choice:
    """One choice's output events. Event i came in read `reads[i]` with `texts[i]`; `runs` says from which event on a
    channel holds; an event with several channels is spelt out in `mixed`."""

    __slots__ = (
        "cumulative", "finish_reason", "index", "last_event", "logprob_tokens", "mixed", "reads", "runs", "silent_tokens",
        "texts", "token_counts", "tools", "usage_before", "usage_now",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.reads: list[int] = []
        self.texts: list[str] = []
        self.runs: list[tuple[int, str]] = []
        self.mixed: dict[int, list[tuple[str, str]]] = {}
        self.tools: dict[int, list[str]] = {}
        self.token_counts: dict[int, int] = {}  # event: tokens told with it (logprobs, token ids)
        self.logprob_tokens: int | None = None  # all of them
        self.silent_tokens = 0  # told with no text, waiting for the next event with some
        self.cumulative: dict[int, int] = {}  # event: this choice's completion tokens up to and with it
        self.usage_before: int | None = None  # completion tokens told before the first output event
        self.usage_now: int | None = None
        self.finish_reason: str | None = None
        self.last_event = -1

    def channel_at(self, event: int) -> str:
        """The channel of one output event; of several in one, output outside reasoning wins."""
        if event in self.mixed:
            kinds = [channel for channel, _ in self.mixed[event]]
            return next((kind for kind in kinds if kind != REASONING), REASONING)
        found = CONTENT
        for start, channel in self.runs:
            if start > event:
                break
            found = channel
        return found

    def has(self, channel: str) -> bool:
        """Whether any output came on that channel."""
        if any(run == channel for _, run in self.runs):
            return True
        return any(name == channel for parts in self.mixed.values() for name, _ in parts)

    def text_of(self, channel: str) -> str:
        """All text of one channel; tool calls one after another in their own order, each name before its arguments."""
        if channel == TOOL:
            return mended("".join("".join(parts) for _, parts in sorted(self.tools.items())))
        if not self.runs:
            return ""
        parts: list[str] = []
        ends = [*(start for start, _ in self.runs[1:]), len(self.texts)]
        for (start, kind), end in zip(self.runs, ends, strict=True):
            if kind == channel:
                parts.extend(self.texts[start:end])
            elif kind == "":
                parts.extend(text for event in range(start, end) for name, text in self.mixed[event] if name == channel)
        return mended("".join(parts))


def mended(text: str) -> str:
    """Surrogate pairs that two chunks shared put together again; a half that stays alone becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def strict(value: Any) -> Any:
    """A JSON value that every writer of JSON takes: no half surrogates, no whole numbers beyond 64 bits."""
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, dict):
        return {mended(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [strict(inner) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


class Reading:
    """What one response has said. Written by the readers of the APIs, read by `exchange`."""

    def __init__(self, stream: bool, echo: str | None = None) -> None:
        self.stream = stream
        self.echo: dict[int, str] = {}  # per choice, what of an echoed prompt is still to come
        self.echo_prompt = echo
        self.choices: dict[int, Choice] = {}
        self.usage: Usage | None = None
        self.usage_read: int | None = None
        self.usage_alone = False  # the last usage stood in a chunk that belongs to no choice
        self.first_usage_read: int | None = None  # the first read of a choice's own chunk whose usage counts a token
        self.usage_told = 0  # how many times a usage with tokens was told
        self.usage_steps: list[int] = []
        self.error: tuple[str, str] | None = None
        self.warnings: set[str] = set()
        self.terminal_read: int | None = None  # where the API's own end mark stood
        self.done_read: int | None = None  # [DONE]
        self.needs_done = False  # the API ends its streams with [DONE] after the finish reason
        self.timings: dict[str, Any] = {}
        self.response_id: str | None = None
        self.model: str | None = None
        self.data_events = 0
        self.known = False  # whether any document looked like one of this API
        self.unreadable = 0
        self.first_chunk_read: int | None = None
        self.silent_reads: list[int] = []  # chunks with a choice whose text is empty, without a role
        self.bare_reads: list[int] = []  # chunks with a choice but no text at all: a role, a finish reason
        self.reasoning_field: str | None = None
        self.sealed = False  # reasoning went by that only its author can read
        self.summarised = False  # what came of the reasoning is a summary: none of the tokens counted
        self.complaint: str | None = (
            None  # the words of the last event, where it was no answer but looked like an error
        )
        self.plain: tuple[tuple[str | int, ...], int, str] | None = None  # see `template`
        self.told = Told()
        self.memory: dict[str, Any] = {}  # what an API's reader has to remember between events

    def choice(self, index: Any) -> Choice:
        """The choice of that index (0 where a server gives none)."""
        number = index if isinstance(index, int) and not isinstance(index, bool) else 0
        found = self.choices.get(number)
        if found is None:
            found = self.choices[number] = Choice(number)
        return found

    def output(self, choice: Choice, channel: str, text: str, read: int, tool: int = 0) -> None:
        """Adds generated text. Text of several channels in one chunk is one output event of its choice."""
        if channel == TOOL:
            choice.tools.setdefault(tool, []).append(text)
        if choice.last_event == self.data_events and choice.reads:
            event = len(choice.reads) - 1
            if event not in choice.mixed:
                choice.mixed[event] = [(choice.channel_at(event), choice.texts[event])]
                self._start_run(choice, event, "")
            choice.mixed[event].append((channel, text))
            choice.texts[event] += text
            self.plain = None
            return
        choice.last_event = self.data_events
        if not choice.runs or choice.runs[-1][1] != channel:
            choice.runs.append((len(choice.reads), channel))
        if not choice.reads:
            choice.usage_before = choice.usage_now
        choice.reads.append(read)
        choice.texts.append(text)

    @staticmethod
    def _start_run(choice: Choice, event: int, channel: str) -> None:
        if choice.runs and choice.runs[-1][0] == event:
            choice.runs.pop()
        choice.runs.append((event, channel))

    def tokens(self, choice: Choice, count: int) -> None:
        """`count` tokens were told with this event (logprobs or token ids), whether or not it had text."""
        choice.logprob_tokens = (choice.logprob_tokens or 0) + count
        if choice.last_event == self.data_events and choice.reads:
            event = len(choice.reads) - 1
            choice.token_counts[event] = (
                choice.token_counts.get(event, 0) + count + (choice.silent_tokens if event else 0)
            )
            choice.silent_tokens = 0
        else:
            choice.silent_tokens += count

    def count(self, usage: Usage | None, read: int, choice: Choice | None) -> None:
        """Takes a usage object: the last one with counts wins, field by field; on a choice's own chunk it is its count so far."""
        if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
            return
        self.merge(usage)
        if not usage.completion_tokens:
            return
        self.usage_read = read
        self.usage_alone = choice is None
        self.usage_told += 1
        if choice is not None:
            if self.first_usage_read is None:
                self.first_usage_read = read
            self.usage_steps.append(usage.completion_tokens)
            choice.usage_now = usage.completion_tokens
            if choice.last_event == self.data_events and choice.reads:
                choice.cumulative[len(choice.reads) - 1] = usage.completion_tokens

    def merge(self, usage: Usage) -> None:
        """The last told wins, field by field."""
        known = self.usage
        if known is None:
            self.usage = usage
            return
        known.prompt_tokens = usage.prompt_tokens or known.prompt_tokens
        known.completion_tokens = usage.completion_tokens or known.completion_tokens
        known.reasoning_tokens = known.reasoning_tokens if usage.reasoning_tokens is None else usage.reasoning_tokens
        known.cached_tokens = known.cached_tokens if usage.cached_tokens is None else usage.cached_tokens
        known.apart = usage.apart

    def silent(self, read: int) -> None:
        """A chunk with a choice but neither role nor text: some tools stamp these as tokens."""
        self.silent_reads.append(read)

    def fail(self, kind: str, text: str) -> None:
        """The server reported an error; the first one counts."""
        if self.error is None:
            self.error = (kind, text[:WORDS])

    def end(self, read: int) -> None:
        """The API's own end mark."""
        if self.terminal_read is None:
            self.terminal_read = read

    def keep_timings(self, obj: dict[str, Any]) -> None:
        """Keeps the engine's own times as received."""
        for key in obj:
            if key in TIMING_KEYS and obj[key] is not None:
                self.timings[key] = obj[key]

    def identify(self, obj: dict[str, Any]) -> None:
        """Keeps the first response id and model name."""
        if self.response_id is None and isinstance(obj.get("id"), str) and obj["id"]:
            self.response_id = obj["id"]
        if self.model is None and isinstance(obj.get("model"), str) and obj["model"]:
            self.model = obj["model"]


def whole(value: Any) -> int | None:
    """A count as servers write it: a whole number of 0 or more, 5.0 allowed; anything else is no count."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS or value != int(value):
        return None
    return int(value)


def _first(source: dict[str, Any], *names: str) -> int | None:
    for name in names:
        if name in source:
            found = whole(source[name])
            if found is not None:
                return found
    return None


def usage_of(value: Any) -> Usage | None:
    """A usage object under either family of names (prompt/completion, input/output); None for anything else."""
    if not isinstance(value, dict):
        return None
    prompt_details = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    output_details = value.get("completion_tokens_details") or value.get("output_tokens_details")
    details = output_details if isinstance(output_details, dict) else value
    inputs = prompt_details if isinstance(prompt_details, dict) else value
    reasoning = _first(details, *THOUGHT)
    cached = _first(inputs, *CACHED)
    usage = Usage(
        _first(value, "prompt_tokens", "input_tokens"),
        _first(value, "completion_tokens", "output_tokens"),
        _first(value, *THOUGHT) if reasoning is None and details is not value else reasoning,
        _first(value, *CACHED) if cached is None and inputs is not value else cached,
    )
    usage.apart = _counted_apart(usage, _first(value, "total_tokens"))
    return usage


def _counted_apart(usage: Usage, total: int | None) -> bool:
    """Whether reasoning stands beside the completion tokens instead of in them: xAI's and Gemini's totals show it."""
    if not usage.reasoning_tokens or usage.prompt_tokens is None or total is None:
        return False
    return total == usage.prompt_tokens + (usage.completion_tokens or 0) + usage.reasoning_tokens


def finish_of(value: Any) -> str | None:
    """A finish reason; None where there is none, also where a server writes that as text (DashScope's "null")."""
    return str(value) if value and value not in ("null", "None") else None


def error_text(error: Any) -> str:
    """The server's own words in an error value of any JSON type."""
    if isinstance(error, dict):
        for key in ("message", "detail", "error", "msg", "error_msg", "status_msg", "errors", "type", "code"):
            if error.get(key):
                return error_text(error[key])
    if isinstance(error, list) and error:
        return error_text(error[0])
    return str(error)[:WORDS]


def complaint(obj: dict[str, Any]) -> str | None:
    """The words of a document that is no answer but a complaint: `detail` (FastAPI), or a message with a code beside it."""
    if "choices" in obj or "usage" in obj:
        return None
    words = obj.get("detail") or obj.get("message") or obj.get("msg")
    codes = [obj[key] for key in ("code", "status", "status_code", "error_code", "error_type") if obj.get(key)]
    coded = obj.get("detail") or any(str(code).lower() not in FINE for code in codes)
    return error_text(obj) if coded and words and not isinstance(obj.get("message"), dict) else None


def complaining(text: str) -> str | None:
    """The same of a text that is no JSON: a lone word like `END` is none, two or an error are."""
    return text[:WORDS] if len(text.split()) > 1 or "error" in text.lower() else None


def reported_error(obj: dict[str, Any], name: bytes = b"") -> str | None:
    """The words of an error under HTTP 200, None where there is none: any truthy `error` of any type, an error event."""
    if obj.get("error"):
        return error_text(obj["error"])
    extra = obj.get("x_groq")
    if isinstance(extra, dict) and extra.get("error"):
        return error_text(extra["error"])
    base = obj.get("base_resp")  # MiniMax: 0 is success
    if isinstance(base, dict) and base.get("status_code"):
        return error_text(base)
    if (obj.get("error_code") and obj.get("error_msg")) or (obj.get("success") is False and obj.get("errors")):
        return error_text(obj)  # Baidu, Cloudflare
    if name == b"error" or obj.get("type") == "error" or obj.get("object") == "error":
        return error_text(obj)
    return None
