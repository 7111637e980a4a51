"""Small made-up work for simulations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dispatcher.engine_model import EngineConfig, EngineModel, EngineRequest, StepResult
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


def stepped(
    config: EngineConfig, trace: Sequence[TraceWorkflow]
) -> Iterator[tuple[float, StepResult]]:
    """Workflows of one call on an engine that is stepped; when each iteration ends, and its result.

    Requests are named as their workflows.
    """
    model, now_s = EngineModel(config), 0.0
    coming = list(trace)
    while coming or model.has_work:
        if not model.has_work:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            workflow = coming.pop(0)
            call = workflow.calls[0]
            model.add(
                EngineRequest(
                    workflow.workflow_id,
                    prompt_tokens=call.prompt_tokens,
                    output_tokens=call.output_tokens,
                    arrival_s=workflow.arrival_s,
                )
            )
        result = model.step(now_s)
        now_s += result.duration_s
        yield now_s, result
