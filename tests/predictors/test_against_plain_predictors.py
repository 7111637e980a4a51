"""The fast predictors compute to the last bit what the plain ones do."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_predictors import PlainFit, PlainQuantiles

from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import CallId, CallSpec, InstanceId, InstanceSpec, WorkflowId
from predictors.linear_cost import LinearCost, LinearCostSettings
from predictors.rolling_quantiles import RollingQuantiles, RollingQuantilesSettings

A = InstanceId("a")
TRUTH = CostProfile(2e-4, 0.05, 0.03, 8e-4, 1e-7)
LOADS = (0.0, -0.0, 1, 7.5, 64, 3_000.0, 1e7, 1e12, 10**400, -1, math.nan, math.inf, -math.inf)


def both_costs(profile: CostProfile | None) -> tuple[LinearCost, PlainFit]:
    cost = LinearCost()
    cost.add_instance(InstanceSpec(A, frozenset({"m"}), profile=profile))
    cost.learn(AttemptTiming(A, 1, 0, 1, 0.01, None, 0.01, 1.0, 1.0))
    (entry,) = cost.dump().values()
    assert isinstance(entry, dict)
    known = LinearCostSettings()
    trust = known.generic_samples if profile is None else known.profile_samples
    plain = PlainFit(entry["start"], trust)
    plain.learn(AttemptTiming(A, 1, 0, 1, 0.01, None, 0.01, 1.0, 1.0))
    return cost, plain


def assert_costs_agree(cost: LinearCost, plain: PlainFit) -> None:
    assert cost.dump() == {"a": plain.dump()}
    assert cost.profile(A) == plain.profile
    for load in LOADS:
        assert cost.prefill_s(A, load) == plain.prefill_s(load)
        for resident in LOADS:
            assert cost.tpot_s(A, load, resident) == plain.tpot_s(load, resident)


def drawn(rng: random.Random, streamed: bool, slower: float) -> AttemptTiming:
    prompt, output = rng.randint(1, 6000), rng.randint(1, 600)
    running = rng.uniform(0, 24)
    resident = running * rng.uniform(300, 6000)
    ttft_s = TRUTH.prefill_s(prompt) * rng.lognormvariate(0, 0.3) * slower
    decode_s = TRUTH.tpot_s(running, resident) * (output - 1) * rng.lognormvariate(0, 0.3) * slower
    times = (ttft_s, decode_s) if streamed else (None, None)
    return AttemptTiming(
        A, prompt, rng.randint(0, prompt), output, *times, ttft_s + decode_s, running, resident
    )


KINDS: dict[str, Callable[[int], bool]] = {
    "all streamed": lambda _: True,
    "none streamed": lambda _: False,
    "mixed": lambda at: at % 3 > 0,
    # the two phases are fitted apart at first, and then together
    "streamed at first": lambda at: at < 300,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("profile", [None, TRUTH, TRUTH.time_scale(30)])
def test_a_fit_is_the_plain_one(profile: CostProfile | None, kind: str) -> None:
    (cost, plain), rng = both_costs(profile), random.Random(1)
    for at in range(600):
        # It slows down on the way, so that old evidence is discounted.
        timing = drawn(rng, KINDS[kind](at), 1.0 if at < 400 else 4.0)
        cost.learn(timing)
        plain.learn(timing)
        if at == 350:
            state = json.loads(json.dumps(cost.dump()))
            cost = LinearCost()
            cost.load(state)
            cost.add_instance(InstanceSpec(A, frozenset({"m"})))
        if at % 50 == 0:
            assert_costs_agree(cost, plain)
    assert_costs_agree(cost, plain)


SECONDS = st.one_of(st.floats(), st.floats(1e-9, 1e6), st.floats(0.01, 10.0))
TOKENS = st.one_of(st.integers(0, 5_000), st.integers(0, 10**400))
TIMINGS = st.builds(
    AttemptTiming,
    st.just(A),
    TOKENS,
    TOKENS,
    TOKENS,
    st.one_of(st.none(), SECONDS),
    st.one_of(st.none(), SECONDS),
    SECONDS,
    st.one_of(st.floats(), st.floats(1, 64)),
    st.one_of(st.floats(), st.floats(0, 1e6)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TIMINGS, max_size=30))
def test_a_fit_is_the_plain_one_whatever_it_is_taught(timings: list[AttemptTiming]) -> None:
    cost, plain = both_costs(None)
    for timing in timings:
        cost.learn(timing)
        plain.learn(timing)
    assert_costs_agree(cost, plain)


def test_a_matrix_that_is_not_symmetric_is_refused() -> None:
    cost, _ = both_costs(None)
    state = json.loads(json.dumps(cost.dump()))
    state["a"]["ridge"]["gram"][0][1] += 1.0
    with pytest.raises(ValueError, match="symmetric"):
        cost.load(state)


def call(rng: random.Random, applications: int, stages: int) -> CallSpec:
    return CallSpec(
        CallId("c"),
        WorkflowId("w"),
        f"m{rng.randrange(2)}",
        100,
        application=f"a{rng.randrange(applications)}",
        stage=None if rng.random() < 0.1 else f"s{rng.randrange(stages)}",
        max_tokens=rng.choice((None, None, None, 1, 90, 90, 250)),
        features=rng.choice(({}, {}, {"min_tokens": 60.0}, {"other": 1.0})),
    )


@pytest.mark.parametrize(
    ("window", "max_keys", "min_samples", "applications", "stages"),
    [
        (128, 4_000, 5, 2, 3),
        (16, 4_000, 5, 1, 2),  # more particular windows speak for long, then the others again
        (5, 9, 2, 4, 3),
        (1, 1, 1, 2, 2),
        (3, 40, 4, 2, 2),  # no window ever knows enough
    ],
)
def test_quantiles_are_the_plain_ones(
    window: int, max_keys: int, min_samples: int, applications: int, stages: int
) -> None:
    known = RollingQuantilesSettings(
        window=window, max_keys=max_keys, min_samples=min_samples, error_memory=100.0
    )
    fast, plain, rng = RollingQuantiles(known), PlainQuantiles(known), random.Random(2)
    for at in range(3_000):
        spec = call(rng, applications, stages)
        if rng.random() < 0.3:
            # one that only a wider window can answer
            asked = replace(spec, application="new", max_tokens=None)
            assert fast.predict(asked) == plain.predict(asked)
        if rng.random() < 0.1:
            for max_tokens in (90, 120, 90, None):
                asked = replace(spec, max_tokens=max_tokens)
                assert fast.predict(asked) == plain.predict(asked)
        if rng.random() < 0.7:
            assert fast.predict(spec) == plain.predict(spec)
        tokens = max(1, round(rng.lognormvariate(0, 0.7) * 100))
        fast.learn(spec, tokens)
        plain.learn(spec, tokens)
        if at % 500 == 0:
            assert fast.dump() == plain.dump()
    assert fast.stats() == plain.stats()
    assert fast.dump() == plain.dump()


def test_a_window_that_nobody_asked_for_long_answers_like_the_plain_one() -> None:
    known = RollingQuantilesSettings(window=20)
    fast, plain, rng = RollingQuantiles(known), PlainQuantiles(known), random.Random(3)
    spec = CallSpec(CallId("c"), WorkflowId("w"), "m", 100, stage="s")
    unknown = CallSpec(CallId("c"), WorkflowId("w"), "other", 100)
    for silent in (19, 20, 21, 22, 100):
        for _ in range(silent):
            tokens = rng.randint(1, 500)
            fast.learn(spec, tokens)
            plain.learn(spec, tokens)
        assert fast.predict(unknown) == plain.predict(unknown)
        assert fast.predict(unknown).source == "rolling:global"
