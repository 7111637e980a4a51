"""Small engines and requests for tests."""

from __future__ import annotations

from dispatcher.core.gpu_profiles import A100_80G, LLAMA_8B
from dispatcher.engine_model import EngineConfig, EngineModel, EngineRequest, Roofline, StepResult

TIMING = Roofline(A100_80G, LLAMA_8B)
SWAP_S_PER_TOKEN = 0.001


def make_engine(**overrides: object) -> EngineModel:
    settings: dict[str, object] = {
        "num_blocks": 16,
        "max_model_len": 48,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "swap_s_per_token": SWAP_S_PER_TOKEN,
    }
    return EngineModel(EngineConfig(TIMING, **(settings | overrides)))  # type: ignore[arg-type]


def make_request(
    name: str,
    prompt: int = 4,
    output: int = 1,
    *,
    priority: int = 0,
    arrival_s: float = 0.0,
    hashes: tuple[int, ...] = (),
    session: str | None = None,
) -> EngineRequest:
    return EngineRequest(
        name,
        prompt_tokens=prompt,
        output_tokens=output,
        priority=priority,
        arrival_s=arrival_s,
        block_hashes=hashes,
        session=session,
    )


def names(requests: list[EngineRequest]) -> list[str]:
    return [request.request_id for request in requests]


def step(engine: EngineModel, now_s: float = 0.0) -> StepResult:
    result = engine.step(now_s)
    engine.validate()
    return result


def serve(engine: EngineModel, request: EngineRequest, now_s: float = 0.0) -> EngineRequest:
    """Let a request come and everything end."""
    engine.add(request)
    for _ in range(1000):
        if not engine.has_work:
            return request
        step(engine, now_s)
    raise AssertionError("the engine does not come to an end")
