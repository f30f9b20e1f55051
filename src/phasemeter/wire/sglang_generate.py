"""SGLang's own `/generate`: text so far (or, by an option of the server, only what is new) and `meta_info` per event.

Lives here: where an event holds its output. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phasemeter.wire.events import CONTENT, Choice, Reading, error_text, finish_of, reported_error, usage_of, whole


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One event, or the whole answer: they have the same shape."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.known = reading.known or "meta_info" in obj
    choice = reading.choice(obj.get("index"))
    text, meta = obj.get("text"), obj.get("meta_info")
    if isinstance(text, str):
        _take(reading, choice, _event(obj, text, read))
    if text is None and obj.get("output_ids") and isinstance(meta, dict):  # a server that does not detokenise
        told = whole(meta.get("completion_tokens")) or 0
        if told > (choice.usage_now or 0):
            reading.output(choice, CONTENT, "", read)
    if not isinstance(meta, dict):
        return
    reading.identify(meta)
    reading.keep_timings(obj)
    reading.count(usage_of(meta), read, choice)
    finish = meta.get("finish_reason")
    if isinstance(finish, dict):
        choice.finish_reason = str(finish.get("type") or "stop")
        if choice.finish_reason == "abort":
            reading.fail("finish_reason_error", error_text(finish))
    else:
        choice.finish_reason = finish_of(finish) or choice.finish_reason


class _Event(NamedTuple):
    text: str
    read: int
    tokens: int | None  # completion tokens so far
    ids: int | None  # how many token ids came with it
    stopped: bool  # its last token may be one that has no text


class _Texts:
    """One choice's events with text, until it is sure whether each holds all text so far or only what is new.

    Text so far begins with all that came before, and grows. Increments may look so too (" a", " and"; "ha", "ha"), so the first
    events are kept, and read again when a later one decides. At once decides text that does not begin with the former, or as many
    token ids as completion tokens. Fewer ids decide nothing: in some versions they came in increments beside text that grew
    (`stream_output`, tokenizer_manager.py).
    """

    def __init__(self) -> None:
        self.kept: list[_Event] = []
        self.before = ""
        self.grown = self.repeated = 0
        self.grows: bool | None = None  # None: not sure

    def likely(self) -> bool:
        """Whether the text grows, as far as is known: repeats alone are increments."""
        return self.grows if self.grows is not None else self.grown > 0 or not self.repeated

    def weigh(self, event: _Event) -> None:
        """What this event, with text, says about it."""
        if self.kept:
            former = self.kept[-1]
            step = None if event.tokens is None or former.tokens is None else event.tokens - former.tokens
            if not event.text.startswith(former.text):
                self.grows = False
            elif event.ids is not None and event.ids == event.tokens and event.ids != step:
                self.grows = True
            elif len(event.text) > len(former.text):
                self.grown += 1
                self.grows = True if self.grown >= SURE else None
            elif not event.stopped and step != 0:
                self.repeated += 1
        self.kept.append(event)


SURE = 6  # texts in a row that each begin with the whole former one, and go on


def _event(obj: dict[str, Any], text: str, read: int) -> _Event:
    meta, ids = obj.get("meta_info"), obj.get("output_ids")
    meta = meta if isinstance(meta, dict) else {}
    finish = meta.get("finish_reason")
    return _Event(
        text=text, read=read, tokens=whole(meta.get("completion_tokens")),
        ids=len(ids) if isinstance(ids, list) else None, stopped=isinstance(finish, dict) and finish.get("type") != "length",
    )  # fmt: skip


def _take(reading: Reading, choice: Choice, event: _Event) -> None:
    """Puts down what is new in the event; where it shows that earlier ones were misread, they are read again."""
    if not event.text:
        return
    texts: _Texts = reading.memory.setdefault(f"text {choice.index}", _Texts())
    if texts.grows is None:
        was_likely = texts.likely()
        texts.weigh(event)
        if texts.likely() != was_likely:
            _again(choice, texts)
    _put(reading, choice, texts, event)
    if texts.grows is not None:
        texts.kept = []


def _put(reading: Reading, choice: Choice, texts: _Texts, event: _Event) -> None:
    new = _new(texts, event)
    if new:
        reading.output(choice, CONTENT, new, event.read)


def _new(texts: _Texts, event: _Event) -> str:
    if not texts.likely():
        return event.text
    before, texts.before = texts.before, event.text
    return event.text.removeprefix(before)


def _again(choice: Choice, texts: _Texts) -> None:
    """All events but the last, read the other way."""
    texts.before = ""
    told = [(new, event) for event in texts.kept[:-1] if (new := _new(texts, event))]
    choice.reads, choice.texts = [event.read for _, event in told], [new for new, _ in told]
    choice.cumulative = {at: event.tokens for at, (_, event) in enumerate(told) if event.tokens}
