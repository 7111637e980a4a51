"""Engines of a simulation that take as long as was measured."""

from __future__ import annotations

import pytest

from dispatcher.config.profiles import (
    AdmissionProfile,
    DecodeProfile,
    EngineProfile,
    PrefillProfile,
)
from dispatcher.core.errors import ConfigurationError
from dispatcher.simulator import simulate
from dispatcher.simulator.measured import DEFAULT_SEATS, measured_engine
from dispatcher.traces import TraceCall, TraceWorkflow

DECODE = DecodeProfile(base_s=0.01, per_running_s=0.001, per_kv_token_s=1e-6)
PREFILL = PrefillProfile(per_token_s=3e-4, fixed_s=0.05)
ADMISSION = AdmissionProfile(per_prompt_token_s=2e-4, fixed_s=0.004, request_s=0.02)


def profile_of(**more: object) -> EngineProfile:
    known = {"prefill": PREFILL, "decode": DECODE, "max_model_len": 2048, "seats": 4, **more}
    return EngineProfile.model_validate(known)


def alone_s(profile: EngineProfile, prompt: int, output: int) -> float:
    """What one call takes on that engine, idle."""
    trace = [TraceWorkflow("w", "app", 0.0, (TraceCall("c", "stage", prompt, output),))]
    fleet = [measured_engine("a", profile)]
    return simulate(trace, fleet, policy="vllm").played.workflows[0].latency_s


def test_a_call_alone_takes_what_the_sections_say() -> None:
    profile = profile_of(admission=ADMISSION)
    first_s = 0.02 + 0.01 + 0.001 + 100e-6 + 0.004 + 100 * 2e-4
    assert alone_s(profile, 100, 1) == pytest.approx(first_s)
    # nine more tokens, with 101 to 109 in the cache
    assert alone_s(profile, 100, 10) == pytest.approx(first_s + 9 * 0.011 + 9 * 105e-6)


def test_without_admissions_the_time_to_the_first_token_is_that_of_the_prefill() -> None:
    took_s = alone_s(profile_of(), 200, 1)
    assert took_s == pytest.approx(profile_of().cost.prefill_s(200), rel=0.01)


def test_the_scheduler_starts_from_the_profile() -> None:
    engine = measured_engine("a", profile_of(model="tiny", kv_capacity_tokens=8192))
    assert engine.spec.profile == profile_of().cost
    assert (engine.spec.seats, engine.config.max_num_seqs) == (4, 4)
    assert engine.spec.models == {"tiny"}
    assert engine.config.kv_capacity_tokens == engine.spec.kv_capacity_tokens == 8192


def test_seats_may_be_said_or_left_to_the_scheduler() -> None:
    assert measured_engine("a", profile_of(), seats=2).config.max_num_seqs == 2
    open_ended = measured_engine("a", profile_of(seats=None))
    assert open_ended.spec.seats is None
    assert open_ended.config.max_num_seqs == DEFAULT_SEATS


@pytest.mark.parametrize(
    ("more", "said"),
    [({"max_model_len": None}, "max_model_len"), ({"kv_capacity_tokens": 1024}, "does not fit")],
)
def test_a_profile_that_no_engine_can_have_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a: .*{said}"):
        measured_engine("a", profile_of(**more))
