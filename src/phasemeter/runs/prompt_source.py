"""What each planned request says: a generated prompt, a row of a person's file, or a conversation's turn; and its body as bytes.

Lives here: the choice of text for a planned request. Must not live here: making text (workload/prompts) or fields (bodies).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import FileError
from phasemeter.records.request import PlannedRequest
from phasemeter.workload.bodies import BodyOptions, Content, body
from phasemeter.workload.conversations import next_messages
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.prompt_files import FilePrompt, read_prompts
from phasemeter.workload.prompts import PromptOptions, Tokenizer, prompt_for

GENERATED = "generated, unique"


def read_prompt_file(path: str, unasked: list[int] | None = None) -> list[FilePrompt]:
    """The prompts of a JSONL, JSON or text file; `unasked` takes the lines of conversations without a user.

    Raises FileError with the file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise FileError(f"{path}: can't be read: {getattr(wrong, 'strerror', None) or wrong}") from wrong
    return read_prompts(text, path, unasked)


class PromptSource(msgspec.Struct, frozen=True, kw_only=True):
    """Bodies for planned requests. `rows`: a person's prompts, taken in turn (again from the first when they run out)."""

    options: PromptOptions
    body_options: BodyOptions
    lengths: LengthModel = LengthModel()
    tokenizer: Tokenizer | None = None
    rows: Sequence[FilePrompt] = ()

    def row_of(self, planned: PlannedRequest) -> FilePrompt | None:
        """The file's row that a request is made from: all turns of conversation `c7` are from row 7."""
        if not self.rows:
            return None
        number = (planned.conversation or "")[1:]
        at = int(number) if number.isdigit() else planned.index
        if planned.phase == "warmup" and planned.due_offset_ns is None:
            at = -1 - at  # from the end: what is measured first must not be in a prefix cache already
        return self.rows[at % len(self.rows)]

    def content(self, planned: PlannedRequest) -> Content:
        """What the request says, history apart."""
        row = self.row_of(planned)
        if row is not None:
            return Content(messages=row.messages, text=row.text, token_ids=row.token_ids)
        prompt = prompt_for(planned, self.options, self.lengths, self.tokenizer)
        return Content(text=prompt.text, token_ids=prompt.token_ids)

    def serialised(self, planned: PlannedRequest) -> bytes:
        """The body as it is sent."""
        return self._encoded(planned, self.content(planned))

    def following(self, planned: PlannedRequest, sent: bytes, answer: str) -> bytes | None:
        """The body of a later turn: what was sent before, the real answer, what the user says next. None: no more to say."""
        row = self.row_of(planned)
        if row is None:
            said = self.content(planned).text
        else:
            said = row.later_user_texts[planned.turn - 1] if planned.turn <= len(row.later_user_texts) else None
        if said is None:
            return None
        messages = next_messages(history_of(msgspec.json.decode(sent)), answer, said)
        return self._encoded(planned, Content(messages=tuple(messages)))

    def answered(self, planned: PlannedRequest, message: PlannedRequest, sent: bytes, answer: str) -> bytes:
        """The body of a session's next row: what was sent before, the real answer, a new message as long as `message` asks."""
        said = self.content(message).text or ""
        messages = next_messages(history_of(msgspec.json.decode(sent)), answer, said)
        return self._encoded(planned, Content(messages=tuple(messages)))

    def _encoded(self, planned: PlannedRequest, content: Content) -> bytes:
        row = self.row_of(planned)
        return msgspec.json.encode(body(planned, content, self.body_options, row.extra if row else {}))

    def asked(self, planned: Iterable[PlannedRequest]) -> Iterator[PlannedRequest]:
        """The plan with what a file's rows ask of their own: an output length, how many turns there are to play."""
        for request in planned:
            row = self.row_of(request)
            if row is None:
                yield request
                continue
            turns = min(request.turns, 1 + len(row.later_user_texts))
            length = row.output_tokens or request.output_tokens
            yield msgspec.structs.replace(request, output_tokens=length, turns=turns)

    def words(self) -> str:
        """For the manifest: where prompts come from and whether they share anything."""
        if self.rows:
            return f"{len(self.rows)} from a file"
        return "generated, token ids" if self.options.token_ids else GENERATED

    def identity(self, workload: Any, files: Iterable[Path] = ()) -> str:
        """A short identity of the prompt set: SHA-256, 16 hex digits, over the rows of a person's file, or over what generated
        prompts are made from (seed, lengths, sharing, a trace's bytes). The salt that makes each run's text new is left out."""
        digest = hashlib.sha256(msgspec.msgpack.encode(workload))
        for row in self.rows:
            digest.update(msgspec.msgpack.encode(row))
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def history_of(sent: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a chat request's body, in any of the APIs that have them."""
    told = sent.get("messages", sent.get("input"))
    if isinstance(told, str):
        return [{"role": "user", "content": told}]
    system = sent.get("system", sent.get("instructions"))
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *(told or [])]
