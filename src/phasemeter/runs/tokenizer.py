"""A tokenizer from a local file or folder, for counting an answer's whole text.

Lives here: loading it. Must not live here: a default (a wrong tokenizer is worse than none) or any download.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phasemeter.errors import FileError
from phasemeter.lazy import load_extra


class LocalTokenizer:
    """Counts tokens without special ones. `name` is the path it came from."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """How many tokens the text is, as a whole, without special tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Its tokens' ids, without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text that these ids spell."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def load_tokenizer(path: Path) -> LocalTokenizer:
    """The tokenizer in a `tokenizer.json`, or in the folder that holds one.

    Raises FileError where there is none, UserError where the extra `tokenizers` is not installed; what the library raises
    for a file that it can't read is a bare Exception (cli/tokenizer_option turns it into one line).
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise FileError(
            f"{path}: no tokenizer: give a tokenizer.json or the folder that holds it (nothing is downloaded)"
        )
    library = load_extra("tokenizers", "tokenizers")
    return LocalTokenizer(str(path), library.Tokenizer.from_file(str(file)))
