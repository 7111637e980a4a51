"""Service density of calls: what each class gains, who shares, who is put last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_fakes import (
    CountingFleet,
    FakeInstance,
    fake_call,
    fake_fleet,
    fake_instance,
    taken_in_order,
)

from dispatcher.core.service_gain import CODE_WEIGHTS
from dispatcher.core.types import CallClass, LengthEstimate, Slo
from policies.density_queue import HEADS_AT_ONCE, SIBLINGS_AT_ONCE
from policies.lsdf import SIBLINGS, Lsdf, times

# 0.5 ms per prompt token, 20 ms per output token: a call of 200 + 100 tokens takes 0.1 + 2 s
PREFILL_S, DECODE_S = 0.1, 2.0
REM_S = PREFILL_S + DECODE_S


@pytest.fixture
def here() -> FakeInstance:
    return fake_instance("here")


def scored(ordering, call, here, *others, now_s=0.0):
    found, remaining_s = ordering.score(call, here, fake_fleet(here, calls=others), now_s)
    return found.value, remaining_s


def throughput(name="t", sequence=1, **fields):
    return fake_call(name, sequence, call_class=CallClass.THROUGHPUT, **fields)


def collective(name, sequence=1, workflow="w", **fields):
    return fake_call(name, sequence, workflow=workflow, call_class=CallClass.COLLECTIVE, **fields)


def chat(name="c", sequence=1, ttft_s=2.0, tpot_s=0.1, **fields):
    slo = Slo(ttft_s=ttft_s, tpot_s=tpot_s)
    return fake_call(name, sequence, call_class=CallClass.LATENCY, slo=slo, **fields)


def order(ordering, calls, here, now_s=0.0, seat=""):
    """The order in which a queue gives the calls out."""
    queue = ordering.queue(here, fake_fleet(here, calls=calls))
    for call in calls:
        queue.push(call, now_s)
    return taken_in_order(queue, seat, now_s)


# --- freshness ------------------------------------------------------------------------------------


def aged(here, *calls, now_s):
    """Who is taken from a queue that has had no round since its calls came at 0."""
    queue = Lsdf().queue(here, fake_fleet(here, calls=calls))
    for call in calls:
        queue.push(call, 0.0)
    return queue.select("", now_s).spec.call_id


def test_who_has_become_late_since_the_last_round_is_not_taken_for_the_densest(here):
    late = throughput("late", 1, deadline_s=10.0, prompt_tokens=300)
    patient = throughput("patient", 2, deadline_s=1e6)
    assert aged(here, late, patient, now_s=1.0) == "late"
    assert aged(here, late, patient, now_s=40.0) == "patient"


def test_siblings_that_have_become_late_together_stand_back_together(here):
    late = [
        collective(f"late {n}", n, stage_deadline_s=10.0, prompt_tokens=900)
        for n in range(2 * HEADS_AT_ONCE)
    ]
    patient = throughput("patient", 99, deadline_s=1e6, prompt_tokens=1_000)
    assert aged(here, *late, patient, now_s=1.0).startswith("late")
    assert aged(here, *late, patient, now_s=400.0) == "patient"


def test_a_selection_looks_at_a_few_calls_however_many_are_late(here):
    scored = []

    class Counting(Lsdf):
        def key(self, call, instance, fleet, now_s):
            scored.append(call.spec.call_id)
            return super().key(call, instance, fleet, now_s)

    calls = [throughput(f"late {n}", n, deadline_s=10.0) for n in range(100)]
    queue = Counting().queue(here, fake_fleet(here, calls=calls))
    for call in calls:
        queue.push(call, 0.0)
    scored.clear()
    assert queue.select("", 500.0).spec.call_id == "late 0", "of equals the first"
    assert scored == [f"late {n}" for n in range(HEADS_AT_ONCE)]


# --- gain by class --------------------------------------------------------------------------------


def test_throughput_gains_all_its_tokens_by_its_end(here):
    value, remaining_s = scored(Lsdf(), throughput(deadline_s=30.0), here)
    assert remaining_s == pytest.approx(REM_S)
    assert value == pytest.approx((200 + 2 * 100) / REM_S)


def test_a_whole_answer_that_comes_late_gains_less_by_how_late_it_is(here):
    value, _ = scored(Lsdf(), throughput(deadline_s=30.0), here, now_s=60.0 - REM_S)
    assert value == pytest.approx(0.5 * 400 / REM_S)
    value, _ = scored(Lsdf(penalty=2.0), throughput(deadline_s=30.0), here, now_s=60.0 - REM_S)
    assert value == pytest.approx(0.25 * 400 / REM_S)


def test_a_deadline_that_its_client_has_moved_since_it_came_is_the_one_that_counts(here):
    call = throughput(deadline_s=30.0)
    call.budget = replace(call.budget, deadline_s=15.0)
    value, _ = scored(Lsdf(), call, here, now_s=60.0 - REM_S)
    assert value == pytest.approx(0.25 * 400 / REM_S)


def test_before_its_first_token_a_stream_gains_its_prompt_by_ttft_and_its_output_by_its_end(here):
    # 3.9 s waited: a first token after 4 s of 2, an end after 6 s of 2 + 0.1 * 100
    value, _ = scored(Lsdf(), chat(), here, now_s=3.9)
    assert value == pytest.approx((200 * 0.5 + 200 * 1.0) / REM_S)


def test_after_its_first_token_a_stream_gains_what_is_left_of_its_output(here):
    call = chat(output_tokens=100.0)
    call.generated_tokens = 40
    ordering, fleet = Lsdf(), fake_fleet(here)
    found, remaining_s = ordering.score(call, here, fleet, 3.0, running_tokens=40.0)
    assert remaining_s == pytest.approx(60 * 0.02)
    assert found.value == pytest.approx(2 * 60 / (60 * 0.02))
    # what it has gained already counts where it is asked for
    found, _ = Lsdf(accrued=True).score(call, here, fleet, 3.0, running_tokens=40.0)
    assert found.value == pytest.approx((2 * 60 + 200 + 2 * 40) / (60 * 0.02))


def test_a_stream_without_a_ttft_slo_has_its_timeline_begin_with_its_first_token(here):
    value, _ = scored(Lsdf(), chat(ttft_s=None, tpot_s=0.03), here, now_s=500.0)
    assert value == pytest.approx(400 / REM_S)
    value, _ = scored(Lsdf(), chat(ttft_s=None, tpot_s=0.01), here, now_s=0.0)
    assert value == pytest.approx((200 + 200 * (0.1 + 1.0) / 2.1) / REM_S)


def test_a_stream_without_a_tpot_slo_gains_its_output_whenever_it_ends(here):
    value, _ = scored(Lsdf(), chat(tpot_s=None), here, now_s=3.9)
    assert value == pytest.approx((200 * 0.5 + 200) / REM_S)


def test_a_stream_without_either_is_measured_by_its_deadline(here):
    call = chat(ttft_s=None, tpot_s=None, deadline_s=30.0)
    value, _ = scored(Lsdf(), call, here, now_s=60.0 - REM_S)
    assert value == pytest.approx(0.5 * 400 / REM_S)


def test_the_upper_bound_of_the_length_counts(here):
    call = throughput(deadline_s=1000.0)
    call.length = LengthEstimate(100.0, ((0.5, 90.0), (0.9, 160.0), (0.95, 200.0)))
    assert scored(Lsdf(), call, here)[1] == pytest.approx(0.1 + 200 * 0.02)
    assert scored(Lsdf(quantile=0.9), call, here)[1] == pytest.approx(0.1 + 160 * 0.02)
    assert scored(Lsdf(quantile=0.925), call, here)[1] == pytest.approx(0.1 + 180 * 0.02)
    assert scored(Lsdf(quantile=None), call, here)[1] == pytest.approx(0.1 + 100 * 0.02)


def test_several_sequences_gain_side_by_side(here):
    call = throughput(seats=3)
    assert scored(Lsdf(), call, here)[0] == pytest.approx((200 + 2 * 300) / REM_S)
    assert scored(Lsdf(weights=CODE_WEIGHTS), call, here)[0] == pytest.approx(2600 / REM_S)


# --- siblings -------------------------------------------------------------------------------------


def test_siblings_share_their_summed_gain_over_the_longest_of_them(here):
    short, long = collective("short"), collective("long", output_tokens=300.0)
    other_stage = collective("later", output_tokens=900.0)
    object.__setattr__(other_stage.placement, "stage", "1")
    alone = collective("alone", workflow="other")
    everyone = (short, long, other_stage, alone)
    longest_s = 0.1 + 300 * 0.02
    shared = (2 * 200 + 2 * (100 + 300)) / longest_s
    for call, own_s in ((short, REM_S), (long, longest_s)):
        value, remaining_s = scored(Lsdf(), call, here, *everyone)
        assert (value, remaining_s) == pytest.approx((shared, own_s))
    assert scored(Lsdf(), alone, here, *everyone)[0] == pytest.approx(400 / REM_S)


def test_a_sibling_that_has_tokens_takes_no_prefill_again(here):
    waiting, running = collective("waiting"), collective("running", output_tokens=300.0)
    running.generated_tokens = 100
    value, _ = scored(Lsdf(), waiting, here, waiting, running)
    assert value == pytest.approx((2 * 200 + 2 * (100 + 300)) / (200 * 0.02))


def test_among_siblings_the_longest_goes_first(here):
    calls = [
        collective("short", 1),
        collective("long", 2, output_tokens=300.0),
        collective("as long", 3, output_tokens=300.0),
        collective("keen", 4, client_priority=-1),
    ]
    assert order(Lsdf(), calls, here) == ["keen", "long", "as long", "short"]


def test_a_sibling_that_arrives_changes_the_density_of_those_that_wait(here):
    first, second = collective("first", 1), collective("second", 2)
    rival = throughput("rival", 3, prompt_tokens=300, output_tokens=100.0)
    fleet = fake_fleet(here, calls=[first, rival])
    queue = Lsdf().queue(here, fleet)
    for call in (first, rival):
        queue.push(call, 0.0)
    assert queue.select("", 0.0) is rival
    fleet.calls[second.spec.call_id] = second
    queue.push(second, 0.0)
    assert queue.select("", 0.0) is first


def test_a_wide_stage_costs_a_bounded_number_of_looks(here):
    calls = [collective(f"c{number}", number) for number in range(300)]
    fleet = CountingFleet({here.spec.instance_id: here}, {c.spec.call_id: c for c in calls})
    ordering = Lsdf()
    queue = ordering.queue(here, fleet)
    for call in calls:
        queue.push(call, 0.0)
    again = collective("c0", 0)
    queue.remove(again.spec.call_id)
    fleet.asked = 0
    queue.push(again, 1.0)
    assert fleet.asked <= 3 * SIBLINGS
    queue.remove(again.spec.call_id)
    keys = []
    queue.rekey = lambda call_id, now_s: keys.append(call_id)
    queue.push(again, 1.0)
    assert 0 < len(keys) <= SIBLINGS_AT_ONCE


def test_a_sibling_that_runs_has_less_before_it(here):
    running, waiting = collective("running", output_tokens=300.0), collective("waiting", 2)
    running.generated_tokens = 290
    value, _ = scored(Lsdf(), waiting, here, running, waiting)
    assert value == pytest.approx((400 + 200 + 2 * 300) / REM_S)


def test_a_collective_call_is_due_by_its_stage_or_by_its_workflow(here):
    # started at 0; its stage must end at 10 and its workflow at 30, and it would end at 20
    call = collective("c", stage_deadline_s=10.0, deadline_s=30.0)
    value, _ = scored(Lsdf(), call, here, now_s=20.0 - REM_S)
    assert value == pytest.approx(0.5 * 400 / REM_S)
    value, _ = scored(Lsdf(scope="workflow"), call, here, now_s=20.0 - REM_S)
    assert value == pytest.approx(400 / REM_S)


# --- order ----------------------------------------------------------------------------------------


def test_the_densest_goes_first_and_best_effort_last_in_order_of_arrival(here):
    calls = [
        fake_call("old", 1, arrived_s=1.0, call_class=CallClass.BEST_EFFORT, prompt_tokens=9000),
        throughput("thin", 2, arrived_s=1.0, prompt_tokens=10, output_tokens=500.0),
        throughput("dense", 3, arrived_s=1.0, prompt_tokens=3000),
        fake_call("older", 4, arrived_s=0.5, call_class=CallClass.BEST_EFFORT),
    ]
    assert order(Lsdf(), calls, here, now_s=2.0) == ["dense", "thin", "older", "old"]


def test_by_slack_who_is_doomed_comes_after_all_who_are_not(here):
    calls = [
        throughput("doomed", 1, deadline_s=REM_S - 0.1, prompt_tokens=199),
        throughput("relaxed", 2, deadline_s=60.0),
        throughput("pressed", 3, deadline_s=4.0),
    ]
    assert order(Lsdf(reading="slack"), calls, here) == ["pressed", "relaxed", "doomed"]
    assert order(Lsdf(), calls, here)[2] == "doomed"
    assert order(Lsdf(reading="printed"), calls, here) == ["doomed", "pressed", "relaxed"]


def test_rescoring_finds_who_has_become_late(here):
    # in a window all go by what they were in their round
    ordering = Lsdf(window=1)
    calls = [
        throughput("soon lost", 1, deadline_s=3.0, prompt_tokens=300),
        throughput("in time", 2, deadline_s=500.0),
    ]
    queue = ordering.queue(here, fake_fleet(here, calls=calls))
    for call in calls:
        queue.push(call, 0.0)
    assert queue.select("", 20.0) is calls[0]
    while queue.rescore(20.0, 512):
        pass
    assert queue.select("", 20.0) is calls[1]


def test_equal_densities_go_by_the_clients_priority_then_arrival(here):
    calls = [
        throughput("first", 1),
        throughput("second", 2),
        throughput("keen", 3, client_priority=-5),
    ]
    assert order(Lsdf(), calls, here) == ["keen", "first", "second"]


# --- engines --------------------------------------------------------------------------------------


def test_the_engine_is_told_the_latest_start(here):
    ordering, fleet = Lsdf(), fake_fleet(here)
    start_s = ordering.latest_start_s(throughput(deadline_s=30.0), here, fleet, 1.0)
    assert start_s == pytest.approx(30.0 - REM_S)
    stage = collective("c", stage_deadline_s=10.0, deadline_s=30.0)
    assert ordering.latest_start_s(stage, here, fleet, 1.0) == pytest.approx(10.0 - REM_S)
    by_workflow = Lsdf(scope="workflow").latest_start_s(stage, here, fleet, 1.0)
    assert by_workflow == pytest.approx(30.0 - REM_S)
    stream = chat(arrived_s=5.0)
    assert ordering.latest_start_s(stream, here, fleet, 6.0) == pytest.approx(7.0 - PREFILL_S)
    only_pace = chat(ttft_s=None)
    start_s = ordering.latest_start_s(only_pace, here, fleet, 6.0)
    assert start_s == pytest.approx(6.0 + PREFILL_S + 0.1 * 100 - REM_S)
    best_effort = fake_call("b", call_class=CallClass.BEST_EFFORT)
    assert ordering.latest_start_s(best_effort, here, fleet, 6.0) > 1000.0


def test_a_held_call_takes_the_mean_of_where_it_may_go(here):
    slow = fake_instance("slow", slowness=3.0)
    call = throughput()
    held = times(call, None, fake_fleet(here, slow))
    assert held == pytest.approx((2 * PREFILL_S, 2 * 0.02))
    assert times(call, slow, fake_fleet(here, slow)) == pytest.approx((3 * PREFILL_S, 3 * 0.02))
    prompts = throughput(prompts=4)
    assert times(prompts, here, fake_fleet(here)).prefill_s == pytest.approx(4 * PREFILL_S)
