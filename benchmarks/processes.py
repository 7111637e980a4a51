"""Processes under measurement: started, waited for, asked, weighed, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

HEADWAY = str(Path(sys.executable).with_name("headway"))
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_LIMIT_S = 90.0


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str], *, log: Path, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """A process for as long as the block lasts; gives its id. Its output goes to `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **(environment or {})}
        )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url: str, log: Path) -> None:
    """Return once a GET is answered with 200.

    Raises:
        TimeoutError: It never was; says what the process has written.
    """
    until_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{url} never answered:\n{log.read_text(errors='replace')[-2000:]}")


def fetch(url: str, body: object = None) -> bytes:
    """GET, or PUT a JSON body.

    Raises:
        urllib.error.URLError: No answer, or one that tells of an error.
    """
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        method="GET" if body is None else "PUT",
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    members, at = [pid], 0
    while at < len(members):
        for task in Path(f"/proc/{members[at]}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                members += [int(child) for child in task.read_text().split()]
        at += 1
    return members


def cpu_s(pid: int) -> float:
    """CPU time that a process family has used so far, seconds."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Memory of a process family, 10^6 bytes."""
    kib = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    kib += int(line.split()[1])
    return kib * 1024 / 1e6
