"""What a finished call was worth, and whether it was in time, in hand-checked numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.service_gain import (
    CODE_WEIGHTS,
    LEAST_DEGRADATION,
    degradation,
    service_gain,
    slo_met,
    stream_degradation,
)
from dispatcher.core.types import CallClass, Slo

TOKENS = {"prompt_tokens": 200.0, "output_tokens": 50.0}
CHAT = Slo(ttft_s=2.0, tpot_s=0.1)


@pytest.mark.parametrize(
    ("slo_s", "took_s", "penalty", "expected"),
    [
        (20.0, 5.0, 1.0, 1.0),
        (20.0, 20.0, 1.0, 1.0),
        (20.0, 80.0, 1.0, 0.25),
        (20.0, 80.0, 2.0, 0.0625),
        (20.0, 80.0, 1000.0, LEAST_DEGRADATION),
        (0.0, 1.0, 1.0, LEAST_DEGRADATION),
        (-3.0, 1.0, 1.0, LEAST_DEGRADATION),
        (5.0, 0.0, 1.0, 1.0),
    ],
)
def test_degradation_is_divisive_and_clamped(slo_s, took_s, penalty, expected):
    assert degradation(slo_s, took_s, penalty) == pytest.approx(expected)


@given(st.floats(0.001, 1e4), st.floats(0.001, 1e4), st.floats(0.001, 1e4), st.floats(0.1, 50.0))
def test_later_is_never_worth_more(slo_s, took_s, more_s, penalty):
    early, late = degradation(slo_s, took_s, penalty), degradation(slo_s, took_s + more_s, penalty)
    assert LEAST_DEGRADATION <= late <= early <= 1.0


@pytest.mark.parametrize("call_class", [CallClass.THROUGHPUT, CallClass.COLLECTIVE])
def test_whole_answers_are_scaled_by_how_late_the_end_is(call_class):
    slo = Slo(end_to_end_s=20.0, ttft_s=0.001, tpot_s=0.001)
    assert service_gain(call_class, slo, latency_s=20.0, **TOKENS) == 300.0
    assert service_gain(call_class, slo, latency_s=40.0, **TOKENS) == 150.0
    assert slo_met(call_class, slo, latency_s=20.0, output_tokens=50) is True
    assert slo_met(call_class, slo, latency_s=20.1, output_tokens=50) is False


def test_a_collective_call_is_measured_by_its_workflows_end():
    slo = Slo(end_to_end_s=20.0)
    late = {"latency_s": 1.0, "workflow_s": 40.0}
    assert service_gain(CallClass.COLLECTIVE, slo, **late, **TOKENS) == 150.0
    assert slo_met(CallClass.COLLECTIVE, slo, output_tokens=50, **late) is False


def test_the_codes_weights_count_output_eight_times():
    slo = Slo(end_to_end_s=20.0)
    gain = service_gain(CallClass.THROUGHPUT, slo, latency_s=1.0, weights=CODE_WEIGHTS, **TOKENS)
    assert gain == 200.0 + 8.0 * 50.0


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_s=1.0)])
@pytest.mark.parametrize("call_class", [CallClass.THROUGHPUT, CallClass.COLLECTIVE])
def test_without_an_slo_of_its_class_all_is_gained_and_nothing_was_promised(call_class, slo):
    assert service_gain(call_class, slo, latency_s=1e6, **TOKENS) == 300.0
    assert slo_met(call_class, slo, latency_s=1e6, output_tokens=50) is None


def test_best_effort_is_worth_its_tokens_whenever_it_ends():
    slo = Slo(end_to_end_s=1.0, ttft_s=1.0, tpot_s=1.0)
    assert service_gain(CallClass.BEST_EFFORT, slo, latency_s=1e6, **TOKENS) == 300.0
    assert slo_met(CallClass.BEST_EFFORT, slo, latency_s=1e6, output_tokens=50) is None


def test_a_late_first_token_costs_the_prompt_and_only_those_tokens_that_lag():
    # due at 2.0, 2.1, ...; came at 4.0, 4.05, ...: the stream catches up at token 40
    gain = service_gain(
        CallClass.LATENCY, CHAT, ttft_s=4.0, latency_s=4.0 + 100 * 0.05,
        prompt_tokens=200, output_tokens=101,
    )  # fmt: skip
    exact = 200 * 0.5 + 2 * sum(min(1.0, (2.0 + 0.1 * k) / (4.0 + 0.05 * k)) for k in range(101))
    assert gain == pytest.approx(exact, rel=0.01)
    assert 100 + 2 * 50 < gain < 300 + 2 * 50


def test_a_stream_that_never_lagged_loses_nothing_and_one_that_did_is_late():
    ended = {"ttft_s": 1.0, "latency_s": 60.0}
    assert service_gain(CallClass.LATENCY, CHAT, token_lag_s=-0.1, **ended, **TOKENS) == 300.0
    kept = {"latency_s": 60.0, "output_tokens": 50, "ttft_s": 1.0}
    assert slo_met(CallClass.LATENCY, CHAT, token_lag_s=-0.1, **kept) is True
    assert slo_met(CallClass.LATENCY, CHAT, token_lag_s=0.1, **kept) is False
    assert slo_met(CallClass.LATENCY, CHAT, **kept) is False


def test_no_token_is_taken_to_be_later_than_the_worst_delay():
    shares = [
        stream_degradation(CHAT, output_tokens=50, ttft_s=1.0, latency_s=60.0, token_lag_s=lag)
        for lag in (0.5, 5.0, None)
    ]
    assert 1.0 > shares[0] > shares[1] > shares[2]


def test_an_answer_that_comes_whole_has_its_first_token_at_its_end():
    gain = service_gain(CallClass.LATENCY, CHAT, latency_s=4.0, **TOKENS)
    exact = 200 * 0.5 + 2 * sum(min(1.0, (2.0 + 0.1 * k) / 4.0) for k in range(50))
    assert gain == pytest.approx(exact, rel=0.01)
    assert slo_met(CallClass.LATENCY, CHAT, latency_s=4.0, output_tokens=50) is False


def test_a_part_of_the_timeline_may_be_missing():
    only_first, only_pace = Slo(ttft_s=2.0), Slo(tpot_s=0.1)
    slow = {"ttft_s": 1.0, "latency_s": 100.0}
    assert service_gain(CallClass.LATENCY, only_first, **slow, **TOKENS) == 300.0
    assert slo_met(CallClass.LATENCY, only_first, output_tokens=50, **slow) is True
    waited = {"ttft_s": 90.0, "latency_s": 94.0}
    assert service_gain(CallClass.LATENCY, only_pace, **waited, **TOKENS) == 300.0
    assert slo_met(CallClass.LATENCY, only_pace, output_tokens=50, **waited) is True
    assert slo_met(CallClass.LATENCY, only_pace, output_tokens=50, **slow) is False
    # nothing to measure a stream by: its end decides, where a deadline was asked for
    assert slo_met(CallClass.LATENCY, Slo(end_to_end_s=50.0), output_tokens=50, **slow) is False
    assert slo_met(CallClass.LATENCY, Slo(), output_tokens=50, **slow) is None


@given(
    st.sampled_from(CallClass), st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.floats(0.1, 1e3),
    st.integers(0, 4000), st.one_of(st.none(), st.floats(-10.0, 1e3)),
)  # fmt: skip
def test_gain_lies_between_next_to_nothing_and_all(call_class, wait_s, stream_s, penalty, n, lag):
    slo = Slo(end_to_end_s=20.0, ttft_s=2.0, tpot_s=0.1)
    gain = service_gain(
        call_class, slo, prompt_tokens=100, output_tokens=n, ttft_s=wait_s,
        latency_s=wait_s + stream_s, token_lag_s=lag, penalty=penalty,
    )  # fmt: skip
    full = 100.0 + 2.0 * n
    assert math.isfinite(gain)
    assert LEAST_DEGRADATION * full <= gain * (1 + 1e-9)
    assert gain <= full * (1 + 1e-9)


def test_tokens_of_sequences_side_by_side_are_due_in_each_of_them():
    # 100 tokens each are due within 2 + 9.9 s; all 400 one after another would be within 41.9 s
    late = {"output_tokens": 400, "latency_s": 20.0, "ttft_s": 1.0}
    one = {"output_tokens": 100, "latency_s": 20.0, "ttft_s": 1.0}
    assert slo_met(CallClass.LATENCY, CHAT, **late, sequences=4) is False
    assert slo_met(CallClass.LATENCY, CHAT, **{**late, "latency_s": 11.9}, sequences=4) is True
    share = stream_degradation(CHAT, **one)
    assert stream_degradation(CHAT, **late, sequences=4) == pytest.approx(share)
    gain = service_gain(CallClass.LATENCY, CHAT, prompt_tokens=200, **late, sequences=4)
    assert gain == pytest.approx(200 + 2 * 400 * share)
