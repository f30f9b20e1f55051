"""A worker that fails once it is to begin, in a way that nobody foresaw."""

import sys
from typing import Any

from phasemeter.io import worker_main


def fail(*words: Any, **named: Any) -> Any:
    raise RuntimeError("the dog ate it")


worker_main.Header = fail  # type: ignore[misc, assignment]

if __name__ == "__main__":
    sys.exit(worker_main.main())
