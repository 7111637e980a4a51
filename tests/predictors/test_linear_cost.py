from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.errors import UnknownInstanceError
from dispatcher.core.gpu_profiles import CostProfile, gpu_profile, model_profile, roofline_cost
from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import InstanceId, InstanceSpec
from predictors.linear_cost import LinearCost, LinearCostSettings

A = InstanceId("a")
TRUTH = CostProfile(2e-4, 0.05, 0.03, 8e-4, 1e-7)


def model(profile: CostProfile | None = None) -> LinearCost:
    cost = LinearCost()
    cost.add_instance(InstanceSpec(A, frozenset({"m"}), profile=profile))
    return cost


def attempt(
    rng: random.Random,
    truth: CostProfile = TRUTH,
    *,
    streamed: bool = True,
    noise: float = 0.1,
    collinear: bool = False,
    wait_s: float = 0.0,
) -> AttemptTiming:
    prompt, output = rng.randint(50, 6000), rng.randint(2, 600)
    running = rng.uniform(1, 24)
    resident = running * (3000.0 if collinear else rng.uniform(300, 6000))
    ttft_s = truth.prefill_s(prompt) * rng.lognormvariate(0, noise) + wait_s
    decode_s = truth.tpot_s(running, resident) * (output - 1) * rng.lognormvariate(0, noise)
    return AttemptTiming(
        A,
        prompt,
        0,
        output,
        ttft_s if streamed else None,
        decode_s if streamed else None,
        ttft_s + decode_s,
        running,
        resident,
    )


def worst_error(cost: LinearCost, truth: CostProfile = TRUTH) -> float:
    """Largest relative error over the range in which attempts were drawn."""
    errors = [abs(cost.prefill_s(A, u) / truth.prefill_s(u) - 1) for u in (100, 1000, 6000)]
    errors += [
        abs(cost.tpot_s(A, n, n * k) / truth.tpot_s(n, n * k) - 1)
        for n in (1, 8, 24)
        for k in (500, 3000, 6000)
    ]
    return max(errors)


def test_before_any_attempt_the_profile_speaks() -> None:
    profile = roofline_cost(gpu_profile("A100"), model_profile("8b"))
    cost = model(profile)
    assert cost.prefill_s(A, 1000) == pytest.approx(profile.prefill_s(1000), rel=0.05)
    assert cost.tpot_s(A, 16, 16_000) == pytest.approx(profile.tpot_s(16, 16_000), rel=0.05)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("start", [None, TRUTH.time_scale(20), TRUTH.time_scale(0.05)])
def test_converges_from_any_start(start: CostProfile | None, streamed: bool) -> None:
    cost, rng = model(start), random.Random(1)
    for _ in range(600):
        cost.learn(attempt(rng, streamed=streamed))
    assert worst_error(cost) < (0.15 if streamed else 0.35)


def test_one_attempt_corrects_a_generic_start() -> None:
    slow = TRUTH.time_scale(0.1)
    cost = model()
    timing = attempt(random.Random(2), slow, noise=0.0)
    cost.learn(timing)
    predicted_s = cost.prefill_s(A, timing.prompt_tokens) + (
        timing.output_tokens - 1
    ) * cost.tpot_s(A, timing.mean_running, timing.mean_resident_tokens)
    assert predicted_s == pytest.approx(timing.total_s, rel=0.3)


def test_collinear_load_does_no_harm() -> None:
    cost, rng = model(), random.Random(3)
    for _ in range(2000):
        cost.learn(attempt(rng, collinear=True))
    for n in (1, 8, 24):
        assert cost.tpot_s(A, n, 3000 * n) == pytest.approx(TRUTH.tpot_s(n, 3000 * n), rel=0.15)


def test_constant_load_leaves_the_rest_of_the_line_near_the_profile() -> None:
    cost, rng = model(TRUTH.time_scale(2)), random.Random(4)
    for _ in range(5000):
        decode_s = 99 * TRUTH.tpot_s(8, 8000) * rng.lognormvariate(0, 0.05)
        ttft_s = TRUTH.prefill_s(1000)
        cost.learn(AttemptTiming(A, 1000, 0, 100, ttft_s, decode_s, ttft_s + decode_s, 8, 8000))
    assert cost.tpot_s(A, 8, 8000) == pytest.approx(TRUTH.tpot_s(8, 8000), rel=0.03)
    assert cost.tpot_s(A, 1, 1000) == pytest.approx(TRUTH.tpot_s(1, 1000), rel=0.1)
    assert cost.prefill_s(A, 4000) == pytest.approx(TRUTH.prefill_s(4000), rel=0.1)


def test_outliers_hardly_move_it() -> None:
    cost, rng = model(TRUTH), random.Random(5)
    for _ in range(1000):
        cost.learn(attempt(rng, wait_s=30.0 if rng.random() < 0.1 else 0.0))
    assert worst_error(cost) < 0.25


def test_an_instance_that_changed_is_followed() -> None:
    cost, rng = model(TRUTH), random.Random(6)
    for _ in range(500):
        cost.learn(attempt(rng))
    slower = TRUTH.time_scale(1 / 3)
    for _ in range(60):
        cost.learn(attempt(rng, slower))
    assert worst_error(cost, slower) < 0.35


def test_cached_tokens_cost_nothing() -> None:
    cost = model(TRUTH)
    for _ in range(50):
        ttft_s = TRUTH.prefill_s(100)
        cost.learn(AttemptTiming(A, 5100, 5000, 1, ttft_s, 0.0, ttft_s, 1, 5100))
    assert cost.prefill_s(A, 100) == pytest.approx(TRUTH.prefill_s(100), rel=0.05)


def test_joining_again_keeps_what_was_learned_but_not_a_start_without_evidence() -> None:
    cost = model()
    profile = TRUTH
    cost.add_instance(InstanceSpec(A, frozenset({"m"}), profile=profile))
    assert cost.prefill_s(A, 1000) == pytest.approx(profile.prefill_s(1000), rel=0.05)
    cost.learn(attempt(random.Random(7)))
    learned_s = cost.prefill_s(A, 1000)
    cost.add_instance(InstanceSpec(A, frozenset({"m"})))
    assert cost.prefill_s(A, 1000) == learned_s


def fleet(size: int, max_departed: int) -> LinearCost:
    cost = LinearCost(LinearCostSettings(max_departed=max_departed))
    for number in range(size):
        instance_id = InstanceId(f"i{number}")
        cost.add_instance(InstanceSpec(instance_id, frozenset({"m"})))
        cost.learn(replace(attempt(random.Random(number)), instance_id=instance_id))
    return cost


def test_no_instance_of_the_fleet_is_ever_forgotten() -> None:
    cost = fleet(30, max_departed=3)
    learned_s = [cost.prefill_s(InstanceId(f"i{number}"), 1000) for number in range(30)]
    for number in range(100):
        cost.add_instance(InstanceSpec(InstanceId(f"new{number}"), frozenset({"m"})))
    cost.load(fleet(60, max_departed=100).dump())
    assert [cost.prefill_s(InstanceId(f"i{number}"), 1000) for number in range(30)] == learned_s
    assert cost.departed == 3


def test_what_a_departed_instance_taught_is_kept_within_a_bound() -> None:
    cost = fleet(5, max_departed=3)
    learned_s = [cost.prefill_s(InstanceId(f"i{number}"), 1000) for number in range(5)]
    for number in range(5):
        cost.remove_instance(InstanceId(f"i{number}"))
    with pytest.raises(UnknownInstanceError, match="i4"):
        cost.prefill_s(InstanceId("i4"), 1000)
    assert cost.stats() == {}
    assert list(cost.dump()) == ["i2", "i3", "i4"]
    for number in range(5):
        cost.add_instance(InstanceSpec(InstanceId(f"i{number}"), frozenset({"m"})))
    again_s = [cost.prefill_s(InstanceId(f"i{number}"), 1000) for number in range(5)]
    assert again_s[2:] == learned_s[2:]
    assert all(now_s != then_s for now_s, then_s in zip(again_s[:2], learned_s[:2], strict=True))
    assert cost.departed == 0


def test_what_is_loaded_waits_for_the_instance_to_join() -> None:
    saved, cost = fleet(2, max_departed=5), LinearCost()
    cost.load(json.loads(json.dumps(saved.dump())))
    assert cost.stats() == {}
    cost.add_instance(InstanceSpec(InstanceId("i1"), frozenset({"m"})))
    assert cost.prefill_s(InstanceId("i1"), 1000) == saved.prefill_s(InstanceId("i1"), 1000)


def test_stats_name_the_coefficients_with_their_units() -> None:
    stats = model(TRUTH).stats()["a"]
    assert isinstance(stats, dict)
    assert list(stats["coefficients"]) == [
        "prefill_s_per_token",
        "prefill_fixed_s",
        "tpot_base_s",
        "tpot_per_running_s",
        "tpot_per_kv_token_s",
    ]
    assert stats["coefficients"]["prefill_fixed_s"] == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("flaw", [math.nan, math.inf, None, -1.0, "1"])
@pytest.mark.parametrize("where", ["start", "coefficients", "gram"])
def test_a_state_with_a_flaw_changes_nothing(where: str, flaw: object) -> None:
    cost = model()
    cost.learn(attempt(random.Random(8)))
    before = cost.dump()
    state = json.loads(json.dumps(before))
    entry = state["a"]
    if where == "start":
        entry["start"][2] = flaw
    elif where == "coefficients":
        entry["ridge"]["coefficients"][2] = flaw
    else:
        entry["ridge"]["gram"][2][2] = flaw
    with pytest.raises(ValueError, match="expected"):
        cost.load(state)
    assert cost.dump() == before


def test_an_instance_that_never_joined_is_an_error() -> None:
    cost = LinearCost()
    with pytest.raises(UnknownInstanceError):
        cost.prefill_s(A, 1)
    with pytest.raises(UnknownInstanceError):
        cost.tpot_s(A, 1, 1)
    with pytest.raises(UnknownInstanceError):
        cost.learn(attempt(random.Random(0)))
    with pytest.raises(UnknownInstanceError):
        cost.remove_instance(A)


SECONDS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-9, 1e6), st.just(0.0)
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            AttemptTiming,
            st.just(A),
            st.integers(0, 10**400),
            st.integers(0, 10**6),
            st.integers(0, 10**400),
            st.one_of(st.none(), SECONDS),
            st.one_of(st.none(), SECONDS),
            SECONDS,
            st.floats(),
            st.floats(),
        ),
        max_size=60,
    ),
    st.sampled_from([0.0, 1e300, math.inf, math.nan]),
)
def test_whatever_it_is_taught_times_stay_positive_and_finite(
    timings: list[AttemptTiming], start: float
) -> None:
    cost = model(CostProfile(start, start, start, start, start))
    for timing in timings:
        cost.learn(timing)
    json.dumps([cost.dump(), cost.stats()], allow_nan=False)
    again = LinearCost()
    again.load(cost.dump())
    for tokens in (0.0, 1e6, math.nan, math.inf, -math.inf):
        assert 0 < cost.prefill_s(A, tokens) <= 1e5
        assert 0 < cost.tpot_s(A, tokens, tokens) <= 1e5
    assert cost.tpot_s(A, 64, 1e6) >= cost.tpot_s(A, 1, 0)
