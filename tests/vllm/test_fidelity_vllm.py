"""The simulator foretells what real engines do: one trace, live and simulated, same latencies.

The engines' times are fitted to other traces, played right before and right after the one that is
compared: all see the machine as it is. How busy it is with other work is measured; where that was
different while the trace was compared, or the engines were not as fast before as after (a virtual
machine's cores slow down without a sign), nothing can be told, and it goes on with another play.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import httpx
import pytest
from drive import eventually
from engines import Engine
from fidelity import Calibrated, Live, Stage, calibrated, cores_of_their_own, latencies
from gateway_process import Gateway

from dispatcher.simulator.workloads import ARRIVALS, WORKLOADS, make_trace, scaled
from dispatcher.traces import TraceWorkflow

#: By which share P50 and P95 of the workflows' latencies may differ.
TOLERANCE = 0.15
#: Of seats, live.
LEAST_UTILISATION = 0.7
#: Other work may take so much more or less of the machine than while the engines were measured.
STEADY = 0.05
#: The trace before and the one after, each taken for itself, may foretell latencies so far apart.
AGREED = 0.08
#: Until the machine was steady over three of them.
MOST_PLAYS = 6

POLICY, PARAMS = "hexgen-flow", {"alpha": 0.0}
SEATS = 4
WORKFLOWS = 40
RATE_PER_S = 3.0
SLO_S = 30.0
#: CHESS prompts reach 12,300 tokens, its answers 1,000; the engines' context is 2,048.
PROMPT_SHARE, OUTPUT_SHARE = 0.1, 0.25
MOST_TOKENS = 1900


def trace_of(seed: int) -> list[TraceWorkflow]:
    """Text-to-SQL in lengths that the engines can take."""
    drawn = make_trace(
        WORKLOADS["chess-1"],
        ARRIVALS["poisson"],
        rate_per_s=RATE_PER_S,
        seed=seed,
        count=WORKFLOWS,
    )
    fitting = scaled(
        drawn, prompt=PROMPT_SHARE, output=OUTPUT_SHARE, max_context_tokens=MOST_TOKENS
    )
    return [replace(workflow, slo_s=SLO_S) for workflow in fitting]


@pytest.mark.timeout(600)
async def test_simulated_latencies_are_the_live_ones(
    engine_pair: tuple[Engine, Engine],
    start_gateway: Callable[..., Gateway],
    http: httpx.AsyncClient,
) -> None:
    engines = dict(zip(("fast", "slow"), engine_pair, strict=True))
    settings = {
        "policy": {"name": POLICY, "params": PARAMS},
        # as the simulated scheduler does; a forest would take time from two cores, too
        "predictors": {"lengths": "rolling-quantiles"},
    }
    gateway = start_gateway(engines=engines, seats=SEATS, settings=settings)
    plays: list[Live] = []
    with cores_of_their_own(*engine_pair, gateway):
        async with Stage(engines, gateway, http) as stage:
            for seed in range(MOST_PLAYS):
                plays.append(await stage.play(trace_of(seed)))
                await eventually(lambda: gateway.is_empty(http), "the gateway is empty")
                if steady(plays[-3:]):
                    found = await compared(plays, engines)
                    if found.disagreed <= AGREED:
                        break
            else:
                shares = ", ".join(f"{play.others_share:.0%}" for play in plays)
                pytest.skip(
                    f"this machine was never steady over three plays: other work took {shares}"
                )
    sys.stdout.write(f"\n{found.told()}\n")
    assert found.utilisation >= LEAST_UTILISATION
    assert found.simulated_s == pytest.approx(found.live_s, rel=TOLERANCE)


def steady(plays: Sequence[Live]) -> bool:
    """Whether other work took about as much while the middle one was played as around it."""
    if len(plays) < 3:
        return False
    before, compared, after = (play.others_share for play in plays)
    return abs(0.5 * (before + after) - compared) <= STEADY


@dataclass(frozen=True)
class Comparison:
    """One trace, live and simulated: P50 and P95 of its workflows' latencies."""

    live_s: tuple[float, float]
    simulated_s: tuple[float, float]
    disagreed: float
    """How far apart the traces before and after foretell it, each for itself."""
    utilisation: float
    others_shares: tuple[float, ...]
    """Of the machine, used by other work: before, while compared, after."""
    model: Calibrated

    def told(self) -> str:
        """In words, for people."""
        lines = [
            f"utilisation {self.utilisation:.2f}, outside of the gateway"
            f" {1000 * self.model.client_s:.1f} ms a call, other work took"
            f" {', '.join(f'{share:.0%}' for share in self.others_shares)} of the machine,"
            f" before and after foretell it {self.disagreed:.1%} apart"
        ]
        for name, live_s, simulated_s in zip(
            ("P50", "P95"), self.live_s, self.simulated_s, strict=True
        ):
            error = simulated_s / live_s - 1.0
            lines.append(
                f"{name}: live {live_s:.2f} s, simulated {simulated_s:.2f} s, {error:+.1%}"
            )
        lines += [f"{name}: {times}" for name, times in self.model.times.items()]
        return "\n".join(lines)


async def compared(plays: Sequence[Live], engines: dict[str, Engine]) -> Comparison:
    """The last play but one, by what those around it tell of the engines.

    The scheduler has learned from the same traces, in the simulator as in the gateway.
    """
    before, wanted, after = plays[-3:]
    model = await calibrated([before, after], engines)
    traces = [play.trace for play in plays[:-1]]
    simulated = model.simulated(traces, policy=POLICY, params=PARAMS).played
    early_s, late_s = [
        latencies(one.simulated(traces, policy=POLICY, params=PARAMS).played)
        for one in [await calibrated([play], engines) for play in (before, after)]
    ]
    assert all(workflow.ok for workflow in (*wanted.played.workflows, *simulated.workflows))
    return Comparison(
        live_s=latencies(wanted.played),
        simulated_s=latencies(simulated),
        disagreed=max(abs(late / early - 1.0) for early, late in zip(early_s, late_s, strict=True)),
        utilisation=wanted.utilisation(SEATS),
        others_shares=tuple(play.others_share for play in (before, wanted, after)),
        model=model,
    )
