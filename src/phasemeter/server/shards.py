"""Tensor- and pipeline-parallel ranks of one engine: each may export the counts of the batch that they share.

Lives here: which series repeat another. Must not live here: which labels there are (engines.py), adding up (prometheus.py).
SGLang exports the series of every rank when asked to, each with the same requests in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from phasemeter.server.engines import SHARD_LABELS
from phasemeter.server.exposition import Labels


def repeated(family: Iterable[Labels]) -> set[Labels]:
    """The label sets that differ from another in a shard's rank alone: they count the same requests once more."""
    firsts: dict[Labels, Labels] = {}
    for labels in family:
        bare = tuple(pair for pair in labels if pair[0] not in SHARD_LABELS)
        firsts[bare] = min(labels, firsts.get(bare, labels), key=_ranks)
    return set(family) - set(firsts.values())


def _ranks(labels: Labels) -> list[tuple[str, int, str]]:
    return [(name, len(value), value) for name, value in labels if name in SHARD_LABELS]
