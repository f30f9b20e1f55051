"""A worker whose patience with idle connections is 0.3 s instead of half a minute, for tests of long silences."""

import sys

from phasemeter.io import pool, worker_main

pool.IDLE_LIMIT_NS = 300_000_000

if __name__ == "__main__":
    sys.exit(worker_main.main())
