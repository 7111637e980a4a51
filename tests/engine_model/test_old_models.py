"""Models of papers that are old by now."""

from __future__ import annotations

import pytest

from dispatcher.core.gpu_profiles import gpu_profile, kv_capacity_tokens, model_profile
from dispatcher.gateway.fleet.engine import size_of


def test_gpt_j_is_known_by_name() -> None:
    shape = model_profile("GPT-J-6B")
    assert shape.kv_bytes_per_token == 458_752
    # 24 GB * 0.9 - 2 GB - 12.1 GB of weights
    assert kv_capacity_tokens(gpu_profile("RTX 4090"), shape) == pytest.approx(16_333, abs=1)


@pytest.mark.parametrize("served", ["mistral-7b", "Qwen3-4B", "qwen-0.5b"])
def test_small_models_of_today_are_not_taken_for_it(served: str) -> None:
    assert size_of((served,)) == "8b"
