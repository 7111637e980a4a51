"""Replays that a spawned process can find by their names."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

from dispatcher.tuning import AlphaScore, ReplayRequest, ReplayResult


def best_at_04(request: ReplayRequest) -> ReplayResult:
    """A valley at 0.4; the length of the trace shows in its depth."""
    depth_s = len(request.trace)
    return ReplayResult(
        tuple(AlphaScore(a, depth_s * (1.0 + (a - 0.4) ** 2), 0.9) for a in request.alphas)
    )


GATE = "TUNER_FAKES_GATE"
"""Names the FIFO at which a replay waits."""


def waits_at_the_gate(request: ReplayRequest) -> ReplayResult:
    """Ends when somebody writes into the FIFO."""
    Path(os.environ[GATE]).read_text()
    return best_at_04(request)


def flat(request: ReplayRequest) -> ReplayResult:
    return ReplayResult(tuple(AlphaScore(a, 5.0) for a in request.alphas))


def describes(request: ReplayRequest) -> ReplayResult:
    """Fails with what it was asked."""
    engines = [(str(i.spec.instance_id), i.seats, i.profile.tpot_base_s > 0) for i in request.fleet]
    calls = sorted(
        {(call.stage, call.prompt_tokens > 0) for w in request.trace for call in w.calls}
    )
    raise ValueError(f"{request.policy} {dict(request.params)} {engines} {calls} {os.nice(0)}")


def raises(request: ReplayRequest) -> ReplayResult:
    raise RuntimeError("no simulator today")


def not_a_curve(request: ReplayRequest) -> ReplayResult:
    return None  # type: ignore[return-value]


def dies(request: ReplayRequest) -> ReplayResult:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hangs(request: ReplayRequest) -> ReplayResult:
    threading.Event().wait()
    raise AssertionError


def twice(number: int) -> int:
    return 2 * number


def stuck(number: int) -> int:
    threading.Event().wait()
    return number


def gone(number: int) -> int:
    os._exit(number)


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and been waited for does not)."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def untold(number: int) -> object:
    return lambda: number


def leaves(number: int) -> int:
    sys.exit(3)


class Unread:
    """Can be put into bytes, and not be taken out of them."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("no number",)


def unread(number: int) -> Unread:
    return Unread()
