"""What must not stay on disk: text where `--no-text` asked for that, and a key that a server echoed.

Lives here: overwriting it, in steps that the next `report` finishes when we are killed in between. Must not live here: which
strings of an answer are text (blank.py), or a metric.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from phasemeter.io.capture_copy import rewrite
from phasemeter.io.run_directory import WARMUP, RunDirectory
from phasemeter.lazy import load, load_optional
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.blank import blanked
from phasemeter.runs.settings import Settings

DROPPING, DROPPED = "dropping", "dropped"  # what a manifest's `text` says
RUNNING = ".running"
SHORTEST_SECRET = 6
OWN_WORDS = (
    "transport",
    "connect_failed",
    "timeout_",
    "client_resource",
)  # failures told in the system's words, not a server's
FILLER_KEPT = bytes(range(33)) + b'{}[]":,\x7f'

# ---- whose run it is


@contextmanager
def live(path: Path) -> Iterator[None]:
    """Marks a run as being measured; the mark goes with the process, however that ends."""
    fcntl = load_optional("fcntl")
    fd = os.open(path / RUNNING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        (path / RUNNING).unlink(missing_ok=True)
        os.close(fd)


def is_live(path: Path) -> bool:
    """Whether somebody is measuring into `path` right now."""
    fcntl = load_optional("fcntl")
    try:
        fd = os.open(path / RUNNING, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return fcntl is None


# ---- text


def parts_of(path: Path) -> list[RunDirectory]:
    """The run and its warm-up, as far as they have a capture."""
    return [part for part in (RunDirectory(path), RunDirectory(path / WARMUP)) if part.capture.is_dir()]


def drop_text(path: Path) -> None:
    """Overwrite what was asked and answered, times and sizes kept; done twice it changes nothing.

    Raises OSError (full disk): the manifest then still says that there is text to drop.
    """
    for part in parts_of(path):
        part.drop_bodies()
        for file in sorted(part.capture.glob("worker-*.capture")):
            rewrite(file, blanked_reads)
    for left in (path / "evidence").glob(".spans-*"):  # what was being written when a measurer was killed
        left.unlink()
    for file in sorted((path / "evidence").glob("spans-*")):
        replace_file(file, load("phasemeter.runs.blank_spans").blanked_spans(file.read_bytes(), str(file)))
    directory = RunDirectory(path)
    directory.write_manifest(msgspec.structs.replace(directory.read_manifest(), text=DROPPED))


def replace_file(path: Path, data: bytes) -> None:
    """The file whole as before, or whole anew."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.replace(path)


def without_words(row: RequestRow) -> RequestRow:
    """A row without a server's own words: an error answer may quote the prompt."""
    if row.failure_text is None or (row.failure or "").startswith(OWN_WORDS):
        return row
    kept = row.failure_text.partition(":")[0] if row.failure == "http_error" else None
    return msgspec.structs.replace(row, failure_text=kept)


def blanked_reads(reads: Sequence[bytes]) -> list[bytes]:
    """One answer's reads, each as long as before, head and framing kept, the text in its body overwritten."""
    whole = bytearray(b"".join(reads))
    spans, coded = body_spans(bytes(whole))
    body = b"".join(bytes(whole[start:end]) for start, end in spans)
    told = b"x" * len(body) if coded else _overwritten(body)
    at = 0
    for start, end in spans:
        whole[start:end] = told[at : at + end - start]
        at += end - start
    cut, at = [], 0
    for read in reads:
        cut.append(bytes(whole[at : at + len(read)]))
        at += len(read)
    return cut


def _overwritten(body: bytes) -> bytes:
    """Events, JSON lines and JSON have their strings overwritten; in any other body every letter is somebody's word."""
    head = body.lstrip()
    if head[:1] in (b"{", b"[") or head.startswith((b"data", b"event", b":", b"id", b"retry")):
        return blanked(body)
    return bytes(letter if letter in FILLER_KEPT else 0x78 for letter in body)


def body_spans(whole: bytes) -> tuple[list[tuple[int, int]], bool]:
    """(where a raw HTTP answer's body stands, whether it is compressed). RFC 9112, sections 6 and 7.1; a torn end is fine."""
    at = 0
    while whole.startswith(b"HTTP/", at):
        end = whole.find(b"\r\n\r\n", at)
        if end < 0:
            return [], False
        head = whole[at:end].lower()
        at = end + 4
        if not head.split(b" ", 2)[1:2][0].startswith(b"1"):  # an interim answer's head has another one behind it
            break
    else:
        return ([(at, len(whole))] if at else []), False
    coded = any(line.startswith(b"content-encoding:") and b"identity" not in line for line in head.split(b"\r\n"))
    chunked = any(line.startswith(b"transfer-encoding:") and b"chunked" in line for line in head.split(b"\r\n"))
    return (_chunks(whole, at) if chunked else [(at, len(whole))]), coded


def _chunks(whole: bytes, at: int) -> list[tuple[int, int]]:
    spans = []
    while (line_end := whole.find(b"\r\n", at)) >= 0:
        size = whole[at:line_end].partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            break
        if not length:
            break
        start = line_end + 2
        spans.append((start, min(start + length, len(whole))))
        at = start + length + 2
    return spans


# ---- secrets


def secrets_of(settings: Settings) -> list[bytes]:
    """What may never be found in a file: keys, passwords, and the values of headers that carry them."""
    found = {settings.endpoint.password or ""}
    for name, value in settings.target.secret_headers:
        if any(word in name.lower() for word in ("auth", "key", "token", "secret", "cookie", "password")):
            found |= {value, value.rpartition(" ")[2]}
    if settings.target.proxy is not None and settings.target.proxy.authorization:
        found.add(settings.target.proxy.authorization.rpartition(" ")[2])
    return sorted((one.encode() for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True)


def forget_secrets(path: Path, secrets: Sequence[bytes]) -> None:
    """Overwrite with `*` each secret that a server sent back and the capture therefore holds. Sizes stay."""
    for file in sorted(path.rglob("*")) if secrets else ():
        if file.is_file():
            _forget(file, secrets)


def _forget(file: Path, secrets: Sequence[bytes]) -> None:
    longest = max(map(len, secrets))
    with file.open("r+b") as stream:
        at, kept = 0, b""
        while piece := stream.read(1 << 22):
            piece = kept + piece
            for secret in secrets:
                where = piece.find(secret)
                while where >= 0:
                    after = stream.tell()
                    stream.seek(at + where)
                    stream.write(b"*" * len(secret))
                    stream.seek(after)
                    where = piece.find(secret, where + len(secret))
            kept = piece[-longest:]
            at += len(piece) - len(kept)


def hidden(words: str, secrets: Sequence[bytes]) -> str:
    """A server's words for a person, without what it echoed of a secret."""
    for secret in secrets:
        words = words.replace(secret.decode(), "***")
    return words
