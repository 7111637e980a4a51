"""Small made-up work for simulations."""

from __future__ import annotations

import random

from dispatcher.simulator import SimulatedEngine, simulated_engine
from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow

GPUS = ("A100", "A100", "L40", "A6000")


def fleet_of(*gpus: str, seats: int | None = 4, **launch: object) -> list[SimulatedEngine]:
    return [
        simulated_engine(f"{gpu.lower()}-{number}", gpu, seats=seats, **launch)  # type: ignore[arg-type]
        for number, gpu in enumerate(gpus or GPUS)
    ]


def fan(
    number: int, arrival_s: float, rng: random.Random, *, streaming: bool = False
) -> TraceWorkflow:
    """One call, three side by side with a tool before them, one in the end."""

    def call(name: str, stage: str, parents: tuple[str, ...], gap_s: float = 0.0) -> TraceCall:
        prompt = rng.randint(300, 3000)
        return TraceCall(
            name,
            stage,
            prompt,
            rng.randint(1, 300),
            parents,
            gap_s=gap_s,
            tool="sqlite" if gap_s else None,
            prefix=(PrefixPart(f"schema-{number % 3}", 256),),
            streaming=streaming,
        )

    drafts = tuple(f"draft-{n}" for n in range(3))
    return TraceWorkflow(
        f"w{number}",
        "fan",
        arrival_s,
        (
            call("plan", "plan", ()),
            *(call(name, "draft", ("plan",), gap_s=rng.random()) for name in drafts),
            call("choose", "choose", drafts),
        ),
        slo_s=60.0,
    )


def work(
    count: int, *, rate_per_s: float = 2.0, seed: int = 0, streaming: bool = False
) -> list[TraceWorkflow]:
    rng = random.Random(seed)
    now_s, trace = 0.0, []
    for number in range(count):
        now_s += rng.expovariate(rate_per_s)
        trace.append(fan(number, now_s, rng, streaming=streaming))
    return trace
