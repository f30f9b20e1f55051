"""Words of others on a terminal: what a server, a file or a name says is shown, and moves no cursor and rings no bell.

Lives here: one function and its reach over a document. Must not live here: HTML (html/markup.py escapes for itself).
"""

from __future__ import annotations

from typing import Any

# control characters but tab and newline, as their code; letters that turn the reading order round
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_SHOWN |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_SHOWN |= dict.fromkeys(range(55296, 57344), "�")


def plain(text: str) -> str:
    """`text` with every control character written out: an escape sequence of another's becomes the letters `\\x1b[2J`."""
    return text.translate(_SHOWN)


def plain_tree(found: Any) -> Any:
    """The same for every text in plain data, keys included."""
    if isinstance(found, str):
        return plain(found)
    if isinstance(found, dict):
        return {plain(key) if isinstance(key, str) else key: plain_tree(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain_tree(value) for value in found]
    return found
