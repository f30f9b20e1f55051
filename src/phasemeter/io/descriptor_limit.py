"""How many connections this process may open, asked before the run.

Lives here: the soft limit, raised towards the hard one, the refusal that names what is needed, and room in the kernel's table.
"""

from __future__ import annotations

import os

from phasemeter import lazy
from phasemeter.errors import ClientResourceError

MARGIN = 64  # files, pipes, connections being replaced
LEAST_TABLE = 4096


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


def spread_table(connections: int) -> None:
    """Have the kernel's table of descriptors grown for `connections` beforehand: it doesn't shrink.

    Once a process has threads, Linux lets it wait for a grace period at each doubling (`expand_fdtable`, fs/file.c: 7 to
    12 ms seen), in the middle of whatever opened the 65th, 257th or 513th connection.
    """
    fcntl, resource = lazy.load_optional("fcntl"), lazy.load_optional("resource")
    if fcntl is None or resource is None:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(LEAST_TABLE, 2 * connections + MARGIN)
    if soft != resource.RLIM_INFINITY:
        highest = min(highest, soft - 1)
    os.close(fcntl.fcntl(0, fcntl.F_DUPFD, highest))
