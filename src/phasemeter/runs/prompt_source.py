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
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.prompt_files import FilePrompt, read_prompts
from phasemeter.workload.prompts import PromptOptions, Tokenizer, prompt_for


def read_prompt_file(path: str) -> list[FilePrompt]:
    """The prompts of a JSONL, JSON or text file.

    Raises FileError with the file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise FileError(f"{path}: can't be read: {wrong}") from wrong
    return read_prompts(text, path)


class PromptSource(msgspec.Struct, frozen=True, kw_only=True):
    """Bodies for planned requests. `rows`: a person's prompts, taken in turn (again from the first when they run out)."""

    options: PromptOptions
    body_options: BodyOptions
    lengths: LengthModel = LengthModel()
    tokenizer: Tokenizer | None = None
    rows: Sequence[FilePrompt] = ()

    def content(self, planned: PlannedRequest) -> tuple[Content, dict[str, Any]]:
        """What the request says, and fields of its own."""
        if self.rows:
            row = self.rows[planned.index % len(self.rows)]
            return Content(messages=row.messages, text=row.text, token_ids=row.token_ids), dict(row.extra)
        prompt = prompt_for(planned, self.options, self.lengths, self.tokenizer)
        return Content(text=prompt.text, token_ids=prompt.token_ids), {}

    def user_text(self, planned: PlannedRequest) -> str | None:
        """What a conversation's user says in `planned`'s turn; None: no more."""
        if self.rows and planned.turn:
            later = self.rows[_first_index(planned) % len(self.rows)].later_user_texts
            return later[planned.turn - 1] if planned.turn <= len(later) else None
        content, _ = self.content(planned)
        return content.text

    def serialised(self, planned: PlannedRequest) -> bytes:
        """The body as it is sent."""
        content, own = self.content(planned)
        return msgspec.json.encode(body(planned, content, self.body_options, own))

    def asked(self, planned: Iterable[PlannedRequest]) -> Iterator[PlannedRequest]:
        """The plan with what a file's rows ask of their own (an output length)."""
        for request in planned:
            own = self.rows[request.index % len(self.rows)].output_tokens if self.rows else None
            yield request if own is None else msgspec.structs.replace(request, output_tokens=own)

    def words(self) -> str:
        """For the manifest: where prompts come from and whether they share anything."""
        if self.rows:
            return f"{len(self.rows)} from a file"
        return "generated, token ids" if self.options.token_ids else "generated, unique"


def _first_index(planned: PlannedRequest) -> int:
    """A conversation's number is in its name: `c7`."""
    name = planned.conversation or ""
    return int(name[1:]) if name[1:].isdigit() else planned.index


def hash_of(bodies: Iterable[bytes]) -> str:
    """A short identity of a prompt set: SHA-256 over the bodies in order, 16 hex digits."""
    digest = hashlib.sha256()
    for one in bodies:
        digest.update(len(one).to_bytes(8, "little") + one)
    return digest.hexdigest()[:16]
