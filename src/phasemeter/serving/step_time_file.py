"""A fitted step time in a file of its own: what `phasemeter calibrate` writes, and a plan names as `step_time: {file: model.yaml}`.

Lives here: the file's form and one clear line for each mistake. Must not live here: files (the caller hands over the text), the
fit (studies/calibrate), what the lines mean (step_time.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from phasemeter.errors import FileError
from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.workload.plain_yaml import read_yaml


class StepTimeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`linear` is the step time. `outside_s` (what a request spends outside the engine on its way to the first token) and
    `calibration` (where the lines come from, their intervals and errors) are for people and for tools: a plan doesn't read them."""

    phasemeter: int = 1
    linear: LinearCoefficients
    outside_s: float | None = None
    calibration: dict[str, Any] = {}


def parse_step_time(text: str, name: str) -> StepTimeFile:
    """The file in `text`; `name` is what an error calls it. Raises FileError: one line with the path of what is wrong."""
    value = read_yaml(text, name)
    try:
        file = msgspec.convert(value, StepTimeFile)
    except msgspec.ValidationError as error:
        raise FileError(
            f"{name}: {error}: a step time has the key `linear`, as `phasemeter calibrate -o` writes"
        ) from error
    if file.phasemeter != 1:
        raise FileError(f"{name}: `phasemeter`: {file.phasemeter}: the version of this file's form, which is 1")
    return file
