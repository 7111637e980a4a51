"""What the scheduler is told of an engine's hardware and model: by GPU type, or as configured."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dispatcher.config import EngineSettings
from dispatcher.core.gpu_profiles import H100, L40S, LLAMA_13B, Capability
from dispatcher.core.types import InstanceSpec
from dispatcher.gateway.fleet.engine import Engine, Served
from dispatcher.gateway.upstream import EnginePool

URL = "http://127.0.0.1:9"
FIGURES = {"tflops": 400.0, "hbm_gb": 64.0, "tb_per_s": 1.6}


def told(model: str = "m", time_scale: float = 1.0, **settings: Any) -> InstanceSpec:
    pool = EnginePool(URL, connect_timeout_s=1.0, head_timeout_s=None)
    engine = Engine(EngineSettings(id="e", url=URL, **settings), pool, time_scale)
    engine.served = Served((model,), 4096)
    return engine.spec()


def test_a_known_gpu_and_a_named_size_tell_all() -> None:
    spec = told("llama-2-13b-chat", gpu="L40S")
    assert spec.capability == L40S.capability
    assert spec.weight_bytes == LLAMA_13B.weight_bytes
    assert spec.kv_bytes_per_token == 819_200


def test_of_an_unknown_engine_nothing_is_made_up() -> None:
    spec = told("some-model")
    assert (spec.capability, spec.weight_bytes, spec.kv_bytes_per_token) == (None, None, None)
    assert told("some-model", gpu="H100").weight_bytes is None


def test_several_gpus_count_together() -> None:
    assert told(gpu="H100", tp=2).capability == H100.capability.times(2)
    assert told(capability=FIGURES, tp=2).capability == Capability(800.0, 128.0, 3.2)


def test_what_is_configured_wins() -> None:
    spec = told(
        "llama-2-13b", gpu="H100", capability=FIGURES, weight_gb=30.5, kv_bytes_per_token=65_536
    )
    assert spec.capability == Capability(400.0, 64.0, 1.6)
    assert (spec.weight_bytes, spec.kv_bytes_per_token) == (30_500_000_000, 65_536)


def test_an_emulated_engine_computes_faster_and_holds_as_much() -> None:
    spec = told(time_scale=10.0, capability=FIGURES)
    assert spec.capability == Capability(4000.0, 64.0, 16.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"tflops": 400.0, "hbm_gb": 64.0},
        {**FIGURES, "hbm_gb": 0},
        {**FIGURES, "tflops": True},
        {**FIGURES, "tb_per_s": float("nan")},
        {**FIGURES, "watts": 700},
    ],
)
def test_a_capability_is_whole_and_above_0(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="capability"):
        EngineSettings(id="e", url=URL, capability=bad)
