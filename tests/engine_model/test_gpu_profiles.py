"""Profiles against figures worked out by hand from the datasheets."""

from __future__ import annotations

import pytest

from dispatcher.core.gpu_profiles import (
    A100_80G,
    GPUS,
    LLAMA_8B,
    MODELS,
    ModelDoesNotFitError,
    UnknownProfileError,
    gpu_profile,
    kv_capacity_tokens,
    model_profile,
    roofline_cost,
)
from dispatcher.gateway.fleet.engine import size_of


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("A100", "A100-80G"),
        ("a100-80g", "A100-80G"),
        ("NVIDIA L40S", "L40S"),
        ("rtx a6000", "A6000"),
    ],
)
def test_gpus_are_found_by_name_and_alias(given: str, name: str):
    assert gpu_profile(given).name == name


def test_an_unknown_gpu_says_what_was_expected():
    with pytest.raises(UnknownProfileError, match=r"'B300'.*H100, A100-80G, A6000, L40, L40S"):
        gpu_profile("B300")


def test_an_unknown_model_says_what_was_expected():
    with pytest.raises(UnknownProfileError, match=r"'405b'.*8b.*13b.*70b"):
        model_profile("405b")


@pytest.mark.parametrize(
    ("size", "kv_bytes"), [("8b", 131_072), ("13b", 819_200), ("70b", 327_680)]
)
def test_kv_bytes_per_token(size: str, kv_bytes: int):
    assert model_profile(size).kv_bytes_per_token == kv_bytes


def test_kv_capacity_is_what_the_weights_leave():
    # 80 GB * 0.9 - 2 GB - 16.06 GB of weights, at 131,072 bytes a token
    assert kv_capacity_tokens(A100_80G, LLAMA_8B) == pytest.approx(411_500, rel=0.001)


def test_a_model_that_does_not_fit_asks_for_more_gpus():
    with pytest.raises(ModelDoesNotFitError, match="use more GPUs"):
        kv_capacity_tokens(A100_80G, model_profile("70b"))
    assert kv_capacity_tokens(A100_80G, model_profile("70b"), tp=4) > 100_000


@pytest.mark.parametrize("size", sorted(MODELS))
def test_faster_memory_means_faster_decode(size: str):
    def base_s(name: str) -> float:
        return roofline_cost(GPUS[name], MODELS[size]).tpot_base_s

    assert base_s("H100") < base_s("A100-80G") < base_s("L40") < base_s("A6000")


def test_more_compute_means_faster_prefill_at_equal_memory():
    l40, l40s = (roofline_cost(GPUS[name], LLAMA_8B) for name in ("L40", "L40S"))
    assert l40s.prefill_s_per_token == pytest.approx(l40.prefill_s_per_token / 2, rel=0.01)
    assert l40s.tpot_base_s == l40.tpot_base_s


def test_a_time_scale_divides_every_time():
    cost = roofline_cost(A100_80G, LLAMA_8B)
    fast = cost.time_scale(10)
    assert fast.prefill_s(1000) == pytest.approx(cost.prefill_s(1000) / 10)
    assert fast.tpot_s(8, 10_000) == pytest.approx(cost.tpot_s(8, 10_000) / 10)


@pytest.mark.parametrize("factor", [0, -1, float("nan")])
def test_a_time_scale_must_be_positive(factor: float):
    with pytest.raises(ValueError, match="above 0"):
        roofline_cost(A100_80G, LLAMA_8B).time_scale(factor)


def test_gpt_j_is_known_by_name() -> None:
    shape = model_profile("GPT-J-6B")
    assert shape.kv_bytes_per_token == 458_752
    # 24 GB * 0.9 - 2 GB - 12.1 GB of weights
    assert kv_capacity_tokens(gpu_profile("RTX 4090"), shape) == pytest.approx(16_333, abs=1)


@pytest.mark.parametrize("served", ["mistral-7b", "Qwen3-4B", "qwen-0.5b"])
def test_small_models_of_today_are_not_taken_for_gpt_j(served: str) -> None:
    assert size_of((served,)) == "8b"
