"""The option `--tokenizer PATH`, for every verb that has it.

Lives here: one line for whatever a tokenizer file can do wrong. Must not live here: loading (runs/tokenizer).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phasemeter.errors import FileError, PhasemeterError
from phasemeter.lazy import load


def tokenizer_at(path: Path | None) -> Any:
    """The tokenizer at `path`, None for none. Raises FileError: the library itself raises bare Exceptions."""
    if path is None:
        return None
    try:
        return load("phasemeter.runs.tokenizer").load_tokenizer(path)
    except PhasemeterError:
        raise
    except Exception as error:
        raise FileError(f"{path}: no tokenizer that `tokenizers` can read: {error}") from error
