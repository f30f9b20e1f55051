"""What can go wrong, and whose fault it was.

Lives here: the exceptions of the whole project. Must not live here: messages (they belong where the fault is known).

Every message is one line that says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class PhasemeterError(Exception):
    """Anything this project raises on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class UserError(PhasemeterError):
    """A mistake in an option, a contract, a plan or a path: found before anything was sent."""

    exit_code = 2


class FileError(UserError):
    """A file that isn't what it should be. The message starts with the file's name and, where known, its line or path."""


class ServerError(PhasemeterError):
    """The server answered, and what it said is the problem. The message carries the server's own words."""


class NetworkError(PhasemeterError):
    """Nothing usable came over the wire: refused, unreachable, reset, timed out, TLS."""


class ClientResourceError(UserError):
    """This machine's limits don't allow what was asked (file descriptors, ports, disk)."""


class InternalError(PhasemeterError):
    """Our own fault: an invariant of ours does not hold."""


class Undefined(PhasemeterError):
    """A metric has no value for this request or run. Absent is not zero: `reason` becomes the `reason` beside the null."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# what readers of JSON raise for a text that is none: msgspec's and json's errors, and those of UTF-8, are ValueErrors; brackets in
# brackets, thousands deep, end Python's stack
NOT_JSON = (ValueError, RecursionError)
