"""Every check of a play fails on a play that is broken in just that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from simulated_work import fleet_of, work

from dispatcher.core.types import Outcome
from dispatcher.simulator import simulate
from dispatcher.simulator.checks import check_played
from dispatcher.traces import Played, PlayedCall

TRACE = work(10)
FLEET = fleet_of("A100", seats=2)
PLAYED = simulate(TRACE, FLEET, policy="vllm").played


def with_first(**changes: object) -> Played:
    calls: Sequence[PlayedCall] = PLAYED.calls
    return replace(PLAYED, calls=[replace(calls[0], **changes), *calls[1:]])


def with_one_later(call: PlayedCall) -> Played:
    """A call that follows others was sent before they had ended."""
    child = next(c for c in PLAYED.calls if c.call_id == "choose")
    early = replace(child, sent_s=child.sent_s - 5.0)
    return replace(PLAYED, calls=[early if c is child else c for c in PLAYED.calls])


BROKEN: dict[str, tuple[Callable[[], Played], str]] = {
    "a call twice": (lambda: replace(PLAYED, calls=[*PLAYED.calls, PLAYED.calls[0]]), "twice"),
    "a call lost": (lambda: replace(PLAYED, calls=PLAYED.calls[1:]), "went well without"),
    "a call made up": (lambda: with_first(call_id="nobody"), "made up"),
    "a workflow lost": (lambda: replace(PLAYED, workflows=PLAYED.workflows[1:]), "workflows"),
    "other tokens": (lambda: with_first(output_tokens=1), "the trace has"),
    "an outcome hidden": (lambda: with_first(outcome=Outcome.CANCELLED), "its outcome"),
    "before its parents": (lambda: with_one_later(PLAYED.calls[0]), "before"),
    "moments": (lambda: with_first(ended_s=0.0), "out of order"),
    "seats": (
        lambda: replace(PLAYED, calls=[replace(c, queue_s=0.0) for c in PLAYED.calls]),
        "on 2 seats",
    ),
}


def test_a_play_that_is_possible_passes() -> None:
    assert check_played(TRACE, PLAYED, FLEET) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_play_that_is_not_does_not(name: str) -> None:
    broken, said = BROKEN[name]
    assert any(said in problem for problem in check_played(TRACE, broken(), FLEET))
