"""Writing a file behind the sender's back: the disk may take milliseconds, a send that is due can't.

Lives here: one thread a file that appends whole blocks in order. Must not live here: what a block holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

MOST_PENDING_BYTES = 64 << 20


class Behind:
    """`put` returns at once; `append` (which raises OSError on a full disk) runs in the thread, block after block.

    After a failure nothing more is written, and `put` and `close` raise it.
    """

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._failure: OSError | None = None
        self._pending_bytes = 0
        self._room = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def put(self, block: bytes) -> None:
        """Hand over a block; waits only when 64 MB are pending. Raises the OSError of an earlier block."""
        if self._failure is not None:
            raise self._failure
        with self._room:
            self._room.wait_for(lambda: self._pending_bytes < MOST_PENDING_BYTES)
            self._pending_bytes += len(block)
        self._queue.put(block)

    def close(self) -> None:
        """All that was handed over is in the file when this returns. Raises OSError when it could not be."""
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (block := self._queue.get()) is not None:
            if self._failure is None:
                try:
                    self._append(block)
                except OSError as error:
                    self._failure = error
            with self._room:
                self._pending_bytes -= len(block)
                self._room.notify()
