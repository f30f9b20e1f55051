"""A worker on a system without epoll, kernel stamps, `resource` or `recvmsg_into`, as far as this one can pretend."""

import select
import socket
import sys

sys.modules["resource"] = None  # type: ignore[assignment]
sys.platform = "darwin"
del select.epoll


class Plain(socket.socket):
    def __getattribute__(self, name: str) -> object:
        if name in {"recvmsg", "recvmsg_into"}:
            raise AttributeError(name)
        return super().__getattribute__(name)


socket.socket = Plain  # type: ignore[misc]

from phasemeter.io import connection, readiness, worker_main  # noqa: E402  # what they find when imported is what is tested

if __name__ == "__main__":
    if readiness.HAVE_EPOLL or connection.stamps_available() is not None:
        sys.exit("this is no plain system")
    sys.exit(worker_main.main())
