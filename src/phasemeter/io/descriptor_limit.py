"""How many connections this process may open, asked before the run.

Lives here: the soft limit, raised towards the hard one, and the refusal that names what is needed.
"""

from __future__ import annotations

from phasemeter import lazy
from phasemeter.errors import ClientResourceError

MARGIN = 64  # files, pipes, connections being replaced


def require(connections: int) -> int | None:
    """Make room for `connections` at once; the soft limit after that (None: this system has no such limit).

    Raises ClientResourceError naming the number needed when the hard limit is too low.
    """
    resource = lazy.load_optional("resource")
    if resource is None:
        return None
    needed = connections + MARGIN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft != hard:
        try:
            wanted = hard if hard != unlimited else max(soft, needed, 1 << 16)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # the soft limit stays; whether it is enough is looked at next
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != unlimited and soft < needed:
        raise ClientResourceError(
            f"{connections} connections need {needed} file descriptors and this machine allows {soft} (ulimit -n {soft}): "
            f"raise it with `ulimit -n {needed}` or ask for less (--concurrency, --processes)"
        )
    return int(soft)
