"""The fleet of HeteroServe's paper, as policies see it."""

from __future__ import annotations

from dataclasses import replace

from policy_fakes import FakeInstance, fake_instance

from dispatcher.core.gpu_profiles import LLAMA_13B, gpu_profile

PAPER_FLEET = ("H100", "H100", "A100", "A100", "A100", "A100", "L40S", "L40S")


def engine(name: str, gpu: str | None = None, **fields: object) -> FakeInstance:
    """An engine that serves a 13B model on one GPU; `None`: nobody knows which."""
    instance = fake_instance(name, **{"seats": 256, **fields})
    if gpu is not None:
        known = gpu_profile(gpu)
        instance.spec = replace(
            instance.spec,
            gpu=known.name,
            capability=known.capability,
            weight_bytes=LLAMA_13B.weight_bytes,
            kv_bytes_per_token=LLAMA_13B.kv_bytes_per_token,
        )
    return instance


def paper_engines(**fields: object) -> list[FakeInstance]:
    """Two H100, four A100, two L40S."""
    return [
        engine(f"{gpu.lower()}-{number}", gpu, **fields) for number, gpu in enumerate(PAPER_FLEET)
    ]
