"""What of an answer is only its prompt again: a run that asked for `echo` has each request's own body on record.

Lives here: finding that prompt. Must not live here: taking it off the text (wire/).
"""

from __future__ import annotations

from phasemeter.io.run_directory import RunDirectory
from phasemeter.records.manifest import Manifest
from phasemeter.records.request import PlannedRequest
from phasemeter.wire.stream import parse

API = "openai.completions"


class Echoes:
    """The prompts that a run's answers begin with; none where echo wasn't asked for, or the bodies were dropped."""

    def __init__(self, directory: RunDirectory, manifest: Manifest) -> None:
        self._directory = directory
        self._asked = bool(((manifest.body or {}).get("extra") or {}).get("echo"))

    def of(self, planned: PlannedRequest) -> str | None:
        """The text that was asked to be echoed; None for token ids: what text they are is the server's secret."""
        if not self._asked or planned.api != API:
            return None
        body = parse(self._directory.request_body(planned.request_id) or b"")
        prompt = body.get("prompt") if isinstance(body, dict) else None
        return prompt if isinstance(prompt, str) else None
