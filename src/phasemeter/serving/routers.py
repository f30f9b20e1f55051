"""Which replica a request goes to. A router sees what a gateway can: its own counts and the request, no output length.

Lives here: the routers, each a function. Must not live here: replicas' state (cluster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phasemeter.serving.sequence import Request

# (outstanding requests of each replica, how many were routed before, the request) -> index of a replica
Router = Callable[[Sequence[int], int, Request], int]

AFFINITY_SLACK = 4  # a replica may be this many requests busier than the idlest before affinity gives way


def round_robin(outstanding: Sequence[int], routed: int, request: Request) -> int:
    return routed % len(outstanding)


def shortest_queue(outstanding: Sequence[int], routed: int, request: Request) -> int:
    """Fewest outstanding requests; the first of equals."""
    return min(range(len(outstanding)), key=outstanding.__getitem__)


def prefix_affinity(outstanding: Sequence[int], routed: int, request: Request) -> int:
    """The replica that a prompt's first block hashes to, unless it is far busier than the idlest; no blocks: shortest queue."""
    if not request.block_hashes:
        return shortest_queue(outstanding, routed, request)
    home = request.block_hashes[0] % len(outstanding)
    if outstanding[home] > 2 * min(outstanding) + AFFINITY_SLACK:
        return shortest_queue(outstanding, routed, request)
    return home


ROUTERS: dict[str, Router] = {
    "round_robin": round_robin,
    "shortest_queue": shortest_queue,
    "prefix_affinity": prefix_affinity,
}
