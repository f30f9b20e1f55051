"""How many words make how many tokens: assumed at first, corrected from what the server counted.

Lives here: the line `prompt_tokens = template_overhead + tokens_per_word · words`, and its fit. Must not live here: making the text
(prompts.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

TEMPLATE_MAX_TOKENS = 128  # a chat template's own text; a larger constant is called a mismatch


class LengthModel(msgspec.Struct, frozen=True, kw_only=True):
    """Words for a wanted number of the server's prompt tokens."""

    tokens_per_word: float = 1.0
    template_overhead: int = 0
    pairs: int = 0  # how many measured requests stand behind it; 0: assumed

    def words_for(self, tokens: int, *, template: bool = True) -> int:
        """Words that give `tokens` (with the template's own tokens counted in, unless `template` is False); at least 1."""
        inside = tokens - self.template_overhead if template else tokens
        return max(1, round(inside / self.tokens_per_word))


def _line(pairs: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """(slope, constant) of the least-squares line through (x, y); None when all x are one."""
    n = len(pairs)
    mean_x, mean_y = sum(x for x, _ in pairs) / n, sum(y for _, y in pairs) / n
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    if not spread:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    return slope, mean_y - slope * mean_x


def fit_length_model(pairs: Sequence[tuple[int, int]]) -> LengthModel:
    """The model behind (words sent, prompt_tokens that the server counted) pairs of warm-up requests.

    Two lengths or more give slope and constant. One length can't tell them apart: a surplus of up to 128 tokens over a
    word a token is taken for the template, anything else for the slope; either way that length comes out right.
    """
    usable = [(words, tokens) for words, tokens in pairs if words > 0 and tokens > 0]
    if not usable:
        return LengthModel()
    line = _line(usable)
    if line is not None and line[0] > 0.1 and line[1] >= -1:
        return LengthModel(tokens_per_word=line[0], template_overhead=max(0, round(line[1])), pairs=len(usable))
    words, tokens = (sum(p[i] for p in usable) / len(usable) for i in (0, 1))
    surplus = tokens - words
    if 0 <= surplus <= min(TEMPLATE_MAX_TOKENS, tokens / 2):
        return LengthModel(template_overhead=round(surplus), pairs=len(usable))
    return LengthModel(tokens_per_word=tokens / words, pairs=len(usable))
