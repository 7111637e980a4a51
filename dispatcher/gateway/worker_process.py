"""The worker's side of a pipe: what runs in the process that `dispatcher.gateway.worker` starts.

A process of its own interpreter imports nothing of the gateway, only what its jobs name. It ends
by itself as soon as the other side has gone, also in the midst of a job: nobody waits for it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from typing import BinaryIO

HEAD = struct.Struct(">QQ")
"""Before each message: the job's number, and how many bytes follow."""


class _Answers:
    """Writes answers, one whole message at a time."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        self._one_at_a_time = threading.Lock()

    def send(self, number: int, fine: bool, result: object) -> None:
        try:
            body = pickle.dumps((fine, result))
        except Exception as error:  # noqa: BLE001 - told to the gateway, which writes it down
            body = pickle.dumps((False, f"its result cannot travel: {error!r}"))
        with self._one_at_a_time, contextlib.suppress(OSError):
            self._pipe.sendall(HEAD.pack(number, len(body)) + body)


def _work(number: int, job: bytes, answers: _Answers) -> None:
    try:
        function, argument = pickle.loads(job)  # noqa: S301 - from the process that started this
        result = function(argument)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told to the gateway
        answers.send(number, False, f"{type(error).__name__}: {error}")
    else:
        answers.send(number, True, result)


def _next_job(pipe: BinaryIO) -> tuple[int, bytes] | None:
    """The next message; `None` once the other side has gone."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    number, size = HEAD.unpack(head)
    body = pipe.read(size)
    return None if len(body) < size else (number, body)


def serve(pipe: socket.socket) -> None:
    """Take jobs until the other side has gone, each in a thread: it bounds how many there are."""
    answers = _Answers(pipe)
    with pipe.makefile("rb") as jobs:
        while (job := _next_job(jobs)) is not None:
            number, body = job
            threading.Thread(target=_work, args=(number, body, answers), daemon=True).start()


def main() -> None:
    """The process. Arguments: the pipe's descriptor, and by how much it stands back for others."""
    descriptor, nice = int(sys.argv[1]), int(sys.argv[2])
    # Ctrl-C reaches the whole group, and is the gateway's to act upon
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(nice)
    with contextlib.suppress(OSError):
        serve(socket.socket(fileno=descriptor))
    # a job that is at work would be waited for otherwise
    os._exit(0)
