"""Batch sizes by memory: Eqs. 4 and 6, and what is never let through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hetero_fleet import engine, paper_engines
from hypothesis import given
from hypothesis import strategies as st
from policy_fakes import fake_call, fake_fleet

from dispatcher.core import events as ev
from dispatcher.core.errors import BadParameterError
from dispatcher.core.ports import Admit
from dispatcher.core.types import PLAIN_SEAT, AttemptId, InstanceId, Outcome, Usage
from policies.batch_limits import BatchAdmission, BatchLimits, FleetSpecs, token_limit
from policies.context_footprints import KEPT, LEAST_CALLS, ContextFootprints
from policies.length_bins import LengthBins

H100_TOKENS = int((0.9 * 80e9 - 26_031_728_640) // 819_200)
L40S_TOKENS = int((0.9 * 48e9 - 26_031_728_640) // 819_200)


def specs_of(*engines):
    specs = FleetSpecs()
    specs.observe(ev.InstanceUp(engines[0].spec), fake_fleet(*engines), 0.0)
    return specs


def footprints_of(*calls):
    footprints = ContextFootprints()
    for prompt, output in calls:
        footprints.add(prompt, output)
    return footprints


# --- limits ---


def test_eq_6_is_a_limit_in_tokens():
    assert (H100_TOKENS, L40S_TOKENS) == (56_113, 20_957)
    limits = {e.spec.instance_id: token_limit(e.spec) for e in paper_engines()}
    assert limits["h100-0"] == limits["a100-2"] == H100_TOKENS
    assert limits["l40s-6"] == L40S_TOKENS


def test_no_limit_passes_what_the_engine_says_it_holds():
    spec = engine("i", "H100").spec
    assert token_limit(replace(spec, kv_capacity_tokens=9_000)) == 9_000
    assert token_limit(replace(spec, kv_capacity_tokens=90_000)) == H100_TOKENS


def test_what_is_unknown_limits_nothing_but_what_the_engine_says():
    spec = engine("i").spec
    assert token_limit(spec) is None
    assert token_limit(replace(spec, kv_capacity_tokens=9_000)) == 9_000


def test_figures_that_the_engine_gives_the_lie_to_count_for_nothing():
    spec = engine("i", "L40S").spec
    too_large = replace(spec, weight_bytes=140 * 10**9)  # and yet it runs
    assert token_limit(too_large) is None
    assert token_limit(replace(too_large, kv_capacity_tokens=9_000)) == 9_000
    assert token_limit(replace(spec, kv_capacity_tokens=50_000)) == 50_000
    assert token_limit(replace(spec, kv_capacity_tokens=40_000), delta=0.1) == L40S_TOKENS


def test_more_memory_left_free_is_less_in_flight():
    spec = replace(engine("i", "H100").spec, kv_capacity_tokens=53_000)
    assert [token_limit(spec, delta) for delta in (0.1, 0.2)] == [53_000, 46_347]


def test_one_batch_size_for_all_is_that_of_the_weakest():
    engines = paper_engines()
    limits = BatchLimits(specs_of(*engines), "weakest")
    assert {limits.tokens(e.spec) for e in engines} == {L40S_TOKENS}


def test_batches_in_proportion_to_memory():
    engines = paper_engines()
    limits = BatchLimits(specs_of(*engines), "proportional")
    found = {e.spec.instance_id: limits.tokens(e.spec) for e in engines}
    assert found["l40s-7"] == L40S_TOKENS
    assert found["h100-1"] == found["a100-5"] == int(L40S_TOKENS * 80 / 48)


def test_limits_follow_the_fleet():
    h100, l40s = engine("h", "H100"), engine("l", "L40S")
    specs = specs_of(h100, l40s)
    limits = BatchLimits(specs, "weakest")
    assert limits.tokens(h100.spec) == L40S_TOKENS
    specs.observe(ev.Tick(), fake_fleet(h100), 0.0)  # the other has left since
    assert limits.tokens(h100.spec) == H100_TOKENS
    smaller = replace(h100.spec, kv_capacity_tokens=500)
    h100.spec = smaller
    specs.observe(ev.InstanceUp(smaller), fake_fleet(h100), 0.0)
    assert limits.tokens(smaller) == 500


# --- admission ---


def test_tokens_become_calls_by_their_mean_length():
    footprints = footprints_of(*[(900, 100)] * 20)
    admission = BatchAdmission(BatchLimits(FleetSpecs()), footprints, "both")
    assert admission.seats(engine("h", "H100")) == 56
    assert admission.seats(engine("l", "L40S")) == 20
    assert admission.seats(engine("few", "H100", seats=8)) == 8
    assert admission.seats(engine("?")) == 256


def test_before_enough_calls_have_ended_tokens_alone_limit():
    admission = BatchAdmission(BatchLimits(FleetSpecs()), ContextFootprints(), "both")
    assert admission.seats(engine("l", "L40S")) == 256


def test_each_engine_counts_by_the_calls_that_it_served():
    footprints, fleet = ContextFootprints(), fake_fleet(engine("h", "H100"), engine("a", "A100"))
    for number in range(40):
        at, prompt = ("h", 1900) if number % 2 else ("a", 400)
        attempt = AttemptId(number)
        footprints.observe(ev.Dispatched(fake_call("c"), attempt, InstanceId(at)), fleet, 0.0)
        ended = ev.AttemptEnded(attempt, Outcome.OK, Usage(prompt, 100))
        footprints.observe(ended, fleet, 0.0)
    assert footprints.mean_tokens("h") == pytest.approx(2000.0)
    assert footprints.mean_tokens("a") == pytest.approx(500.0)
    assert footprints.mean_tokens("new") == pytest.approx(1250.0)
    admission = BatchAdmission(BatchLimits(FleetSpecs()), footprints, "requests")
    assert admission.seats(engine("a", "A100")) == 112


@pytest.mark.parametrize("unit", ["both", "tokens", "requests", "none"])
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.floats(1, 2000), st.integers(1, 3)), max_size=60),
    st.integers(50, 30_000),
    st.integers(1, 16),
)
def test_admission_never_passes_its_limits(unit, sizes, kv_tokens, seats):
    footprints = footprints_of(*[(300, 100)] * 20)
    instance = engine("i", seats=seats)
    instance.spec = replace(instance.spec, kv_capacity_tokens=kv_tokens)
    admission = BatchAdmission(BatchLimits(FleetSpecs()), footprints, unit)
    for number, (prompt, output, sequences) in enumerate(sizes):
        call = fake_call(f"c{number}", prompt_tokens=prompt, output_tokens=output, seats=sequences)
        if not admission.open_seats(instance, 0.0):
            continue
        if isinstance(admission.admit(call, PLAIN_SEAT, instance, 0.0), Admit):
            alone = not instance.in_flight
            before = instance.in_flight_tokens
            instance.start(call)
            if not alone:
                assert instance.seats_in_use <= admission.seats(instance) <= seats
                if unit in ("both", "tokens"):
                    assert before + prompt + output * sequences <= kv_tokens


def test_an_empty_engine_takes_what_is_too_large_for_it():
    instance = engine("l", "L40S")
    admission = BatchAdmission(BatchLimits(FleetSpecs()), ContextFootprints())
    huge = fake_call("huge", prompt_tokens=50_000)
    assert isinstance(admission.admit(huge, PLAIN_SEAT, instance, 0.0), Admit)
    instance.start(huge)
    assert admission.open_seats(instance, 0.0) == ()


# --- footprints ---


def test_footprints_are_what_engines_counted():
    footprints = ContextFootprints()
    ended, fleet = ev.AttemptEnded(AttemptId(1), Outcome.OK, Usage(400, 100)), fake_fleet()
    for _ in range(LEAST_CALLS):
        assert footprints.mean_tokens("any") is None
        footprints.observe(ended, fleet, 0.0)
        footprints.observe(replace(ended, outcome=Outcome.ENGINE_ERROR), fleet, 0.0)
        footprints.observe(replace(ended, usage=None), fleet, 0.0)
    assert footprints.mean_tokens("any") == 500.0
    assert footprints.ended == LEAST_CALLS


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=60))
def test_the_mean_is_that_of_the_latest(calls):
    footprints = footprints_of(*calls, *[(10, 10)] * KEPT)
    assert len(footprints.latest) == KEPT
    assert footprints.mean_tokens("any") == 20.0


# --- bins ---


def test_bins_tell_the_90th_percentile_of_their_calls():
    calls = [(tokens, 100) for tokens in range(100, 1100)][-KEPT:]
    bins = LengthBins([256, 512, 2048], footprints_of(*calls))
    prompt, context = bins.p90_tokens(fake_call("c", prompt_tokens=600))
    within = sorted(p for p, _ in calls if 512 < p <= 2048)
    assert prompt == within[int(0.9 * (len(within) - 1))]
    assert context == prompt + 100


def test_a_bin_of_few_calls_is_told_by_the_call_itself():
    bins = LengthBins([256, 512, 2048], footprints_of(*[(600, 100)] * KEPT))
    assert bins.p90_tokens(fake_call("c", prompt_tokens=90, output_tokens=50.0)) == (90.0, 140.0)


def test_no_edges_make_one_bin():
    bins = LengthBins([], ContextFootprints())
    assert bins.of(1) == bins.of(10**6) == 0


@pytest.mark.parametrize("edges", [[0, 5], [512, 256], [256, 256]])
def test_edges_ascend(edges):
    with pytest.raises(BadParameterError, match="ascending"):
        LengthBins(edges, ContextFootprints())


def test_an_instance_that_no_event_told_of_is_judged_by_itself():
    limits = BatchLimits(specs_of(engine("h", "H100")), "own")
    stranger = replace(engine("l", "L40S").spec, instance_id=InstanceId("stranger"))
    assert limits.tokens(stranger) == L40S_TOKENS
