"""The door: how a command begins, and how an error leaves the program.

Lives here: exit codes. Must not live here: any work, or an import that takes time: Ctrl-C is answered from the first line on.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

from phasemeter import lazy
from phasemeter.errors import PhasemeterError
from phasemeter.report import unread
from phasemeter.report.plain import plain

INTERRUPTED = 130
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # of a write that a disk or a quota ends


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code is the answer. One line a mistake, never a traceback for a user's fault."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        answer = lazy.load("phasemeter.cli.app").answer(words)
        unread.flush()
    except PhasemeterError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print("phasemeter: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left (`| head`)
        unread.dropped()
        return 0
    except OSError as trouble:
        if trouble.filename is None and trouble.errno not in FULL:
            raise
        where = trouble.filename or "what was being written"
        say(f"{where}: {trouble.strerror}")
        if trouble.filename is None:  # it may have been our output: what is left of it can't be said either
            unread.dropped()
        return 2
    return answer if isinstance(answer, int) else 0


def say(words: str) -> None:
    """A mistake in one line on standard error, whatever the name of a file or a server's words hold."""
    print(f"phasemeter: {plain(words)}".replace("\n", "\\n"), file=sys.stderr)


def main() -> None:
    """The console script."""
    answering_early(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    sys.exit(run())


def answering_early(ours: bool) -> None:
    """Load the command line with Ctrl-C answered as ever, in one line: an interrupted import would tell of itself. `ours`: it
    is not ignored, as it is behind `nohup` and `&`."""
    if not ours:
        return

    def leave(*_: object) -> None:
        os.write(2, b"phasemeter: interrupted\n")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    lazy.load("phasemeter.cli.app")
    signal.signal(signal.SIGINT, signal.default_int_handler)
