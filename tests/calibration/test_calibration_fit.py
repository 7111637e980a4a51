"""From traces to measurements, and from those to coefficients, without any I/O."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.calibration.fit import (
    TooFewSamplesError,
    fit_admission,
    fit_decode,
    fit_prefill,
    fit_times,
    non_negative_least_squares,
)
from dispatcher.calibration.samples import (
    AdmissionSample,
    DecodeSample,
    PrefillSample,
    Samples,
    StreamTrace,
    admission_sample,
    decode_sample,
    overlapping,
)
from dispatcher.config.profiles import DecodeProfile
from dispatcher.core.gpu_profiles import CostProfile

LOADS = [(n, n * context) for n in (1, 2, 4, 8) for context in (100, 800, 1500)]
LENGTHS = [24, 100, 400, 1600] * 3
COEFFICIENT = st.floats(1e-6, 1e-2)


def decodes(cost: CostProfile) -> list[DecodeSample]:
    return [DecodeSample(n, float(kv), cost.tpot_s(n, kv)) for n, kv in LOADS]


def prefills(cost: CostProfile) -> list[PrefillSample]:
    return [PrefillSample(u, cost.prefill_s(u)) for u in LENGTHS]


def stream(
    first_s: float, gap_s: float, tokens: int, sent_s: float = 0.0, prompt: int = 100
) -> StreamTrace:
    points = tuple((first_s + gap_s * k, k + 1) for k in range(tokens))
    return StreamTrace(sent_s, prompt, 0, points)


# --- coefficients ---


@given(a=COEFFICIENT, b=COEFFICIENT, c=COEFFICIENT, d=COEFFICIENT, e=st.floats(1e-9, 1e-5))
def test_what_is_linear_is_found_exactly(a: float, b: float, c: float, d: float, e: float) -> None:
    truth = CostProfile(a, b, c, d, e)
    found = fit_times(Samples(prefills(truth), decodes(truth))).cost
    for u in (10, 1000):
        assert found.prefill_s(u) == pytest.approx(truth.prefill_s(u), rel=1e-4)
    for n, kv in ((1, 50), (16, 30_000)):
        assert found.tpot_s(n, kv) == pytest.approx(truth.tpot_s(n, kv), rel=1e-4)


def test_a_fit_says_how_far_off_it_is() -> None:
    truth = CostProfile(1e-4, 0.02, 0.01, 1e-3, 1e-6)
    exact = fit_prefill(prefills(truth)).fit
    assert exact is not None
    assert exact.samples == len(LENGTHS)
    assert exact.relative_p95 < 1e-6
    draw = random.Random(1)
    noisy = [
        PrefillSample(s.uncached_tokens, s.ttft_s * draw.choice((0.9, 1.1)))
        for s in prefills(truth)
    ]
    fit = fit_prefill(noisy).fit
    assert fit is not None
    assert 0.05 < fit.relative_rms <= fit.relative_p95 < 0.2


@pytest.mark.parametrize("factor", [0.001, 0.2, 5.0, 50.0])
def test_a_hiccup_does_not_bend_the_fit(factor: float) -> None:
    truth = CostProfile(1e-4, 0.02, 0.01, 1e-3, 1e-6)
    samples = decodes(truth) * 3
    draw = random.Random(2)
    samples = [
        DecodeSample(s.running, s.kv_tokens, s.tpot_s * draw.uniform(0.98, 1.02)) for s in samples
    ]
    for index in (0, 17, 30):
        sample = samples[index]
        samples[index] = DecodeSample(sample.running, sample.kv_tokens, sample.tpot_s * factor)
    found = fit_decode(samples)
    cost = CostProfile(0, 0, found.base_s, found.per_running_s, found.per_kv_token_s)
    for n, kv in LOADS:
        assert cost.tpot_s(n, kv) == pytest.approx(truth.tpot_s(n, kv), rel=0.08)


def test_noise_that_is_even_in_ratio_does_not_make_an_engine_look_fast() -> None:
    truth = CostProfile(1e-4, 0.02, 0.01, 1e-3, 1e-6)
    samples = [
        DecodeSample(s.running, s.kv_tokens, s.tpot_s * factor)
        for s in decodes(truth)
        for factor in (1 / 1.5, 1.0, 1.5)
    ]
    found = fit_decode(samples)
    cost = CostProfile(0, 0, found.base_s, found.per_running_s, found.per_kv_token_s)
    assert cost.tpot_s(4, 3200) == pytest.approx(truth.tpot_s(4, 3200), rel=0.1)


def test_a_load_that_never_varied_still_predicts_itself() -> None:
    found = fit_decode([DecodeSample(2, 500.0, 0.01)] * 4)
    cost = CostProfile(0, 0, found.base_s, found.per_running_s, found.per_kv_token_s)
    assert cost.tpot_s(2, 500) == pytest.approx(0.01)


def test_what_a_prompt_adds_to_an_iteration_is_told_from_what_is_around_it() -> None:
    decode = DecodeProfile(base_s=0.01, per_running_s=1e-3, per_kv_token_s=1e-6)
    per_token, fixed, request = 5e-5, 2e-3, 8e-3

    def own_s(tokens: int) -> float:
        return 1e-3 + 1e-6 * tokens + per_token * tokens + fixed

    stalls = [AdmissionSample(3, u, own_s(u)) for u in (30, 200, 900)]
    alone = [PrefillSample(u, request + 0.01 + own_s(u)) for u in LENGTHS]
    found = fit_admission(stalls, alone, decode)
    assert found is not None
    assert found.per_prompt_token_s == pytest.approx(per_token)
    assert found.fixed_s == pytest.approx(fixed)
    assert found.request_s == pytest.approx(request)


def test_without_calls_among_others_nothing_is_said_of_them() -> None:
    decode = DecodeProfile(base_s=0.01, per_running_s=1e-3, per_kv_token_s=1e-6)
    assert fit_admission([], [PrefillSample(10, 0.1)], decode) is None


def test_too_little_is_said_rather_than_fitted() -> None:
    with pytest.raises(TooFewSamplesError, match="2 prefills measured"):
        fit_prefill([PrefillSample(10, 0.1), PrefillSample(20, 0.1)])
    with pytest.raises(TooFewSamplesError, match="of two lengths"):
        fit_prefill([PrefillSample(10, 0.1)] * 5)
    with pytest.raises(TooFewSamplesError, match="1 loads measured"):
        fit_decode([DecodeSample(1, 10.0, 0.1)])


@given(
    st.lists(
        st.tuples(st.floats(0, 1e3), st.floats(0, 10), st.floats(1, 1), st.floats(-5, 5)),
        min_size=1,
        max_size=12,
    )
)
def test_no_step_from_the_least_squares_makes_them_less(
    data: list[tuple[float, float, float, float]],
) -> None:
    """The Karush-Kuhn-Tucker conditions, which only the minimum satisfies."""
    rows, targets = [row[:3] for row in data], [row[3] for row in data]
    found = non_negative_least_squares(rows, targets, [1.0] * len(rows))
    left = [
        sum(c * x for c, x in zip(found, row, strict=True)) - target
        for row, target in zip(rows, targets, strict=True)
    ]
    for j, coefficient in enumerate(found):
        slope = sum(row[j] * error for row, error in zip(rows, left, strict=True))
        scale = sum(abs(row[j]) * (abs(t) + 1) for row, t in zip(rows, targets, strict=True))
        assert coefficient >= 0
        assert slope >= -1e-4 * (scale + 1)
        if coefficient > 0:
            assert abs(slope) <= 1e-4 * (scale + 1)


# --- measurements ---


def test_calls_are_measured_while_all_of_them_decode() -> None:
    traces = [stream(1.0, 0.02, 100), stream(1.5, 0.02, 100)]
    sample = decode_sample(traces)
    assert sample is not None
    assert sample.running == 2
    assert sample.tpot_s == pytest.approx(0.02)
    # from 1.5 to 2.98: the first made its 26th to its 100th token, the second its 1st to its 75th
    assert sample.kv_tokens == pytest.approx(200 + (26 + 100) / 2 + (1 + 75) / 2, abs=1.1)


def test_a_call_that_waited_for_a_seat_is_left_out() -> None:
    traces = [stream(1.0, 0.02, 50), stream(1.1, 0.02, 50), stream(2.2, 0.02, 50)]
    assert len(overlapping(traces)) == 2
    sample = decode_sample(traces)
    assert sample is not None
    assert sample.running == 2


def test_tokens_that_were_held_back_tell_nothing() -> None:
    burst = StreamTrace(0.0, 100, 0, ((1.0, 1), (1.0001, 30), (1.0002, 400)))
    assert decode_sample([burst]) is None
    assert decode_sample([burst, stream(0.9, 0.02, 50)]) is None


def test_several_tokens_may_come_at_once() -> None:
    points = tuple((1.0 + 0.1 * k, 1 + 5 * k) for k in range(10))
    sample = decode_sample([StreamTrace(0.0, 10, 0, points)])
    assert sample is not None
    assert sample.tpot_s == pytest.approx(0.02)


def test_a_visitor_stalls_those_who_decode() -> None:
    # 10 ms a token, but for the one at 1.0 s, which takes 60 ms
    points = [(0.01 * k, k) for k in range(1, 100)] + [(1.05 + 0.01 * k, 100 + k) for k in range(9)]
    visitor = StreamTrace(0.985, 500, 100, ((1.051, 1),))
    sample = admission_sample([points, points], visitor, 0.01)
    assert sample is not None
    assert (sample.running, sample.uncached_tokens) == (2, 400)
    assert sample.stall_s == pytest.approx(0.05, abs=1e-6)


def test_a_visitor_of_nobody_stalls_nobody() -> None:
    visitor = StreamTrace(0.5, 500, 0, ((0.6, 1),))
    assert admission_sample([], visitor, 0.01) is None
    assert admission_sample([[(0.1, 1), (0.2, 2)]], visitor, 0.01) is None
