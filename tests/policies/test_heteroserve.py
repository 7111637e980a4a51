"""HeteroServe's routing: handicaps, gates, bins, and the rivals that it is compared with."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from core_world import World
from hetero_fleet import engine, paper_engines
from hypothesis import given
from hypothesis import strategies as st
from policy_fakes import PREFILL_S_PER_TOKEN, fake_call, fake_fleet

from dispatcher import catalog
from dispatcher.core import events as ev
from dispatcher.core.coordinator import Limits
from dispatcher.core.errors import BadParameterError
from dispatcher.core.gpu_profiles import Capability
from dispatcher.core.types import EngineGauges, Slo
from dispatcher.registry import PolicyServices
from policies.capability_score import EXPONENTS, WINDOW_CALLS, PromptWindow, kappa
from policies.context_footprints import ContextFootprints
from policies.weighted_choice import WeightedChoice

CALL = fake_call("c", prompt_tokens=400)


def build(name="heteroserve", /, **params):
    return catalog.build_policy(name, params, PolicyServices(random.Random(0)))


def route(policy, engines, call=CALL, now_s=0.0):
    return policy.routing.route(call, engines, fake_fleet(*engines), now_s)


def handicap(gauge, best, other, unit):
    """How much longer the best engine's queue gets before the other has the call, to the unit."""
    policy = build(form="paper") if gauge == "queued" else build(latency_test="none")
    ahead = 0.0
    while True:
        setattr(best, gauge, ahead if gauge != "queued" else int(ahead))
        if route(policy, [best, other]) != best.spec.instance_id:
            return ahead
        ahead += unit


# --- the paper's form ---


@pytest.mark.parametrize(("gpu", "behind"), [("A100", 9.9), ("L40S", 15.4)])
def test_an_engine_starts_so_many_calls_behind_an_h100(gpu, behind):
    found = handicap("queued", engine("h", "H100"), engine("o", gpu), 1)
    assert found == math.ceil(behind)
    h100, other = (engine("x", name).spec.capability for name in ("H100", gpu))
    weights = EXPONENTS["medium"]
    exact = 32 / 2.0 * math.log(kappa(h100, weights) / kappa(other, weights))
    assert abs(exact - behind) < 0.2


@given(
    st.lists(
        st.tuples(
            st.builds(Capability, st.floats(10, 2e3), st.floats(10, 500), st.floats(0.1, 10)),
            st.integers(0, 40),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_papers_form_is_the_shortest_queue_with_handicaps(fleet):
    engines = []
    for number, (capability, queued) in enumerate(fleet):
        one = engine(f"i{number}", queued=queued)
        one.spec = replace(one.spec, capability=capability)
        engines.append(one)
    chosen = route(build(form="paper"), engines)
    handicaps = [32 / 2.0 * math.log(kappa(c, EXPONENTS["medium"])) for c, _ in fleet]
    scores = {
        e.spec.instance_id: e.queued - h
        for e, h in zip(engines, handicaps, strict=True)
        if e.queued < 32
    }
    if not scores:
        assert chosen is None
    else:
        assert scores[chosen] <= min(scores.values()) + 1e-6


def test_calls_waiting_inside_the_engine_count_running_ones_do_not():
    h100, a100 = engine("h", "H100"), engine("a", "A100")
    for number in range(50):
        h100.start(fake_call(f"r{number}"))
    policy = build(form="paper")
    assert route(policy, [h100, a100]) == "h"
    h100.gauges = EngineGauges(running=50, waiting=10)
    assert route(policy, [h100, a100]) == "a"


def test_at_q_max_the_gate_is_hard_and_where_all_are_full_the_call_is_held():
    h100, l40s = engine("h", "H100", queued=32), engine("l", "L40S", queued=31)
    policy = build(form="paper")
    assert route(policy, [h100, l40s]) == "l"
    l40s.queued = 32
    assert route(policy, [h100, l40s]) is None


# --- the settled form ---


def test_handicaps_are_seconds_of_wait():
    found = handicap("prefill_ahead_s", engine("h", "H100"), engine("a", "A100"), 1e-5)
    h100, a100 = (engine("x", gpu).spec.capability for gpu in ("H100", "A100"))
    weights = EXPONENTS["medium"]
    expected = 0.5 / 24.0 * math.log(kappa(h100, weights) / kappa(a100, weights))
    assert found == pytest.approx(expected, 0.01)


def test_the_paper_s_dampening_is_kept_where_it_is_the_paper_s_feedback():
    h100, a100 = engine("h", "H100", queued=9), engine("a", "A100")
    for params in ({"feedback": "requests"}, {"feedback": "requests", "dampening": 2.0}):
        assert route(build(**params), [h100, a100]) == "h"
    assert route(build(feedback="requests", dampening=24.0), [h100, a100]) == "a"


def test_one_long_prompt_weighs_more_than_many_short_ones():
    """What the paper's form is blind to."""
    long_ahead = engine("long", "H100", queued=1, prefill_ahead_s=0.45)
    short_ahead = engine("short", "H100", queued=5, prefill_ahead_s=0.05)
    assert route(build(form="paper"), [long_ahead, short_ahead]) == "long"
    assert route(build(), [long_ahead, short_ahead]) == "short"


def test_an_engine_without_a_free_seat_is_as_far_as_its_next_end():
    full = engine("full", "H100", seats=2, backlog_s=0.8)
    for number in range(2):
        full.start(fake_call(f"r{number}"))
    free = engine("free", "H100", prefill_ahead_s=0.3)
    assert route(build(), [full, free]) == "free"  # 0.4 s until one of two has ended
    full.backlog_s = 0.4
    assert route(build(), [full, free]) == "full"


def test_memory_that_is_full_is_no_room_whatever_seats_there_are():
    full = engine("full", "L40S", seats=256, backlog_s=0.01)
    full.start(fake_call("huge", prompt_tokens=21_000))
    other = engine("other", "L40S", prefill_ahead_s=0.1)
    # the backlog is told as if 256 seats were busy
    assert route(build(), [full, other]) == "other"


def test_memory_in_use_counts_before_it_is_full():
    """An A100 has its turn from an H100 on that is ln(kappa / kappa) / 8 fuller, 7.6 %."""
    for tokens, chosen in ((3_900, "h"), (4_600, "a")):  # of 56,112
        h100, a100 = engine("h", "H100"), engine("a", "A100")
        h100.start(fake_call("r", prompt_tokens=tokens))
        assert route(build(), [h100, a100]) == chosen
        assert route(build(memory=0.0), [h100, a100]) == "h"
        assert route(build(form="paper"), [h100, a100]) == "h"


def test_where_nobody_knows_what_an_engine_holds_its_seats_count():
    full, idle = engine("full", seats=4), engine("idle", seats=4)
    full.start(fake_call("r"))
    assert route(build(), [full, idle]) == "idle"
    assert route(build(memory=0.0), [full, idle]) == "full"


def test_where_all_are_full_the_call_is_held():
    engines = paper_engines(prefill_ahead_s=0.5)
    assert route(build(), engines) is None
    patient = fake_call("p", prompt_tokens=400, slo=Slo(ttft_s=2.0))
    assert route(build(), engines, patient) == "h100-0"
    assert route(build(slo_ttft_s=0.6), engines) == "h100-0"


@pytest.mark.parametrize("test", ["bin", "call"])
def test_engines_that_would_be_in_time_go_first(test):
    tokens = 600
    own_s = tokens * PREFILL_S_PER_TOKEN
    late = engine("late", "H100", prefill_ahead_s=0.5 - own_s + 0.01)
    timely = engine("timely", "L40S", prefill_ahead_s=0.0)
    call = fake_call("c", prompt_tokens=tokens)
    assert route(build(latency_test="none", dampening=0.0), [late, timely], call) == "late"
    assert route(build(latency_test=test, dampening=0.0), [late, timely], call) == "timely"


def test_no_bin_is_tied_to_engines_where_none_is_in_time():
    call = fake_call("c", prompt_tokens=4000)  # 2 s anywhere
    assert route(build(), [engine("l", "L40S"), engine("h", "H100")], call) == "h"


def test_the_latency_test_asks_for_the_bin_where_enough_have_ended():
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy(
        "heteroserve", {"dampening": 0.0, "latency_test": "bin"}, services
    )
    footprints = services.observer(ContextFootprints)
    for _ in range(128):
        footprints.add(2000, 10)
    near = engine("near", "H100", prefill_ahead_s=0.1)
    idle = engine("idle", "L40S", slowness=0.4)
    call = fake_call("c", prompt_tokens=520)
    # its own 0.26 s would be in time at both, the bin's p90, 1 s, at neither but 0.4 s at the idle
    assert route(policy, [near, idle], call) == "idle"


def test_eq_4_keeps_bins_from_engines_that_hold_too_little():
    small, large = engine("small", "H100"), engine("large", "L40S")
    small.spec = replace(small.spec, kv_capacity_tokens=1_000)
    call = fake_call("c", prompt_tokens=1_500)
    policy = build(latency_test="none")
    assert route(policy, [small, large], call) == "large"
    large.prefill_ahead_s = 9.0
    assert route(policy, [small, large], call) is None  # it waits for the one that holds it
    assert route(policy, [small], call) == "small"  # nobody does


def test_without_feedback_everything_goes_to_the_best_engine():
    engines = paper_engines(queued=100, prefill_ahead_s=9.0)
    assert {route(build(feedback="none", form=form), engines) for form in ("paper", "settled")} == {
        "h100-0"
    }


def test_the_regime_weighs_the_next_call():
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("heteroserve", {"latency_test": "none"}, services)
    window = services.observer(PromptWindow)
    h100 = engine("h", "H100", prefill_ahead_s=0.0145)
    a100 = engine("a", "A100")
    assert route(policy, [h100, a100]) == "a"
    for _ in range(2 * WINDOW_CALLS):
        window.add(64)
    assert route(policy, [h100, a100]) == "h"  # compute counts for more now


def test_engines_nobody_knows_are_balanced_by_their_waits():
    one, two = engine("one", prefill_ahead_s=0.2), engine("two", prefill_ahead_s=0.1)
    assert route(build(), [one, two]) == "two"
    assert route(build(form="paper"), [one, two]) == "one"


# --- snapshots ---


@pytest.mark.parametrize(("name", "params"), [("heteroserve", {}), ("latency-aware", {})])
def test_instant_counters_spread_what_a_snapshot_herds(name, params):
    def picks(counters):
        policy = build(name, counters=counters, **params)
        engines = [engine(f"i{n}", "A100") for n in range(3)]
        chosen = []
        for _ in range(3):
            chosen.append(route(policy, engines, now_s=0.01 * len(chosen)))
            next(e for e in engines if e.spec.instance_id == chosen[-1]).prefill_ahead_s += 0.1
        return chosen

    assert picks("instant") == ["i0", "i1", "i2"]
    assert picks("snapshot") == ["i0", "i0", "i0"]


def test_a_snapshot_is_taken_anew_each_epoch():
    policy = build(counters="snapshot", epoch_s=0.1)
    engines = [engine("a", "A100"), engine("b", "A100")]
    assert route(policy, engines, now_s=5.0) == "a"
    engines[0].prefill_ahead_s = 0.2
    assert [route(policy, engines, now_s=now_s) for now_s in (5.05, 5.11)] == ["a", "b"]


# --- modes ---


def test_turns_give_each_engine_its_share_without_bunching():
    weights = [math.log(w) for w in (5.0, 1.0, 1.0)]
    turns = WeightedChoice("wrr", random.Random(0))
    drawn = [turns.pick(["a", "b", "c"], weights) for _ in range(14)]
    assert drawn == ["a", "a", "b", "a", "c", "a", "a"] * 2


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6), st.integers(1, 300))
def test_turns_are_never_more_than_one_off(weights, draws):
    ids = [f"i{n}" for n in range(len(weights))]
    logs = [math.log(w) for w in weights]
    turns = WeightedChoice("wrr", random.Random(0))
    drawn = Counter(turns.pick(ids, logs) for _ in range(draws))
    for name, weight in zip(ids, weights, strict=True):
        assert abs(drawn[name] - draws * weight / sum(weights)) <= len(weights) - 1 + 1e-6


def test_draws_are_in_proportion():
    choice = WeightedChoice("sample", random.Random(3))
    drawn = Counter(choice.pick(["a", "b"], [math.log(3.0), 0.0]) for _ in range(4000))
    assert 0.71 < drawn["a"] / 4000 < 0.79


@pytest.mark.parametrize("mode", ["argmax", "sample", "wrr"])
def test_every_mode_keeps_to_the_gate(mode):
    engines = [engine("full", "H100", prefill_ahead_s=0.6), engine("open", "L40S")]
    policy = build(mode=mode)
    assert {route(policy, engines) for _ in range(50)} == {"open"}


# --- baselines ---


def test_latency_aware_takes_the_least_wait_and_own_prefill():
    fast = engine("fast", "H100", prefill_ahead_s=0.15)
    slow = engine("slow", "L40S", slowness=2.0)
    policy = build("latency-aware")
    assert route(policy, [fast, slow], fake_call("c", prompt_tokens=280)) == "slow"
    assert route(policy, [fast, slow], fake_call("c", prompt_tokens=400)) == "fast"


@pytest.mark.parametrize(
    ("name", "prompt", "figure"),
    [
        ("capacity-proportional", 100, "hbm_gb"),
        ("capacity-proportional", 3000, "hbm_gb"),
        ("length-oracle", 512, "tb_per_s"),
        ("length-oracle", 513, "tflops"),
    ],
)
def test_static_baselines_draw_in_proportion(name, prompt, figure):
    engines = paper_engines(queued=99)  # which they do not look at
    policy, call = build(name), fake_call("c", prompt_tokens=prompt)
    drawn = Counter(route(policy, engines, call) for _ in range(4000))
    total = sum(getattr(e.spec.capability, figure) for e in engines)
    for one in engines:
        share = getattr(one.spec.capability, figure) / total
        assert abs(drawn[one.spec.instance_id] / 4000 - share) < 0.03


def test_a_draw_among_unknown_engines_is_even():
    policy = build("capacity-proportional")
    engines = [engine("a"), engine("b")]
    drawn = Counter(route(policy, engines) for _ in range(1000))
    assert 400 < drawn["a"] < 600


# --- parameters ---


def test_the_form_stands_behind_what_is_not_said():
    paper, settled = build(form="paper"), build()
    assert type(paper.ordering).__name__ == "Fcfs"
    assert type(settled.ordering).__name__ == "ShortestPrefill"
    assert type(build(form="paper", order="shortest-first").ordering) is type(settled.ordering)
    assert type(build(order="fcfs").ordering) is type(paper.ordering)


@pytest.mark.parametrize("bins", ["256,512,2048", [256, 512, 2048], "", []])
def test_bins_are_a_list_or_text(bins):
    assert build(bins=bins).params["bins"] == bins


@pytest.mark.parametrize("bins", ["512,256", [512, 512], "some", [0], ","])
def test_bad_bins_are_refused(bins):
    with pytest.raises(BadParameterError):
        build(bins=bins)


@pytest.mark.parametrize("test", ["call", "bin"])
@pytest.mark.parametrize(
    ("others", "feedback"),
    [
        ({"feedback": "requests"}, "requests"),
        ({"feedback": "none"}, "none"),
        ({"form": "paper"}, "requests"),
    ],
)
def test_whether_in_time_is_not_asked_of_feedback_that_tells_no_seconds(test, others, feedback):
    with pytest.raises(BadParameterError, match=f"latency_test {test}.*feedback {feedback}"):
        build(latency_test=test, **others)
    build(latency_test="none", **others)
    build(**others)
    assert build(form="paper", feedback="backlog", latency_test=test).params["latency_test"] == test


# --- in a coordinator ---


def world_of(policy_params, *instances, **limits):
    services = PolicyServices(random.Random(0))
    policy = catalog.build_policy("heteroserve", policy_params, services)
    world = World(policy, limits=Limits(**limits), observers=catalog.observers(services))
    for name, seats in instances:
        world.up(name, seats=seats)
    return world


def test_held_calls_go_when_an_engine_frees():
    # prefill of 600 tokens takes 0.6 s: more than the SLO, so that a second is held
    world = world_of({}, ("i", 1))
    world.arrive("a", prompt_tokens=600)
    world.arrive("b", prompt_tokens=100)
    assert world.coordinator.placing.held == 1
    world.post(ev.FirstToken(world.attempt_of("a")), 0.6)
    world.end("a", after_s=0.2)
    assert world.in_flight() == ["b"]


def test_held_calls_are_looked_at_each_epoch():
    world = world_of({}, ("i", 4))
    world.arrive("a", prompt_tokens=900)
    world.arrive("b", prompt_tokens=100)
    assert world.in_flight() == ["a"]
    world.post(ev.FirstToken(world.attempt_of("a")), 0.9)  # no seat frees by that
    world.post(ev.Tick(), 0.1)
    assert world.in_flight() == ["a", "b"]


def test_held_calls_go_shortest_first_and_the_late_last():
    world = world_of({}, ("i", 1))
    world.arrive("running", prompt_tokens=600)
    for name, tokens in (("late", 50), ("long", 400), ("short", 60)):
        world.arrive(name, prompt_tokens=tokens)
        if name == "late":
            world.post(ev.Tick(), 1.0)
    order = []
    while world.out:
        order.append(world.in_flight()[0])
        world.post(ev.FirstToken(world.attempt_of(order[-1])))
        world.end(order[-1])
    assert order == ["running", "short", "long", "late"]


@pytest.mark.parametrize("streaming", [True, False])
def test_prefill_of_what_shows_nothing_passes_with_time(streaming):
    world = world_of({}, ("i", 8))
    for name in "abcd":
        world.arrive(name, prompt_tokens=200, streaming=streaming)  # 0.2 s each
    assert world.in_flight() == ["a", "b", "c"]
    world.post(ev.Tick(), 0.3)
    assert ("d" in world.in_flight()) is not streaming
    world.post(ev.FirstToken(world.attempt_of("a")))
    world.post(ev.Tick(), 0.1)
    assert "d" in world.in_flight()


def test_a_coordinator_keeps_its_books_under_any_traffic():
    rng = random.Random(5)
    world = world_of({"slo_ttft_s": 0.3}, ("i", 4), ("j", 2))
    for number in range(250):
        action = rng.random()
        if action < 0.45 or not world.out:
            tokens = rng.choice((20, 300, 2000))
            world.arrive(f"c{number}", prompt_tokens=tokens, streaming=rng.random() < 0.5)
        elif action < 0.65:
            world.post(ev.FirstToken(rng.choice(list(world.out))), 0.02)
        elif action < 0.85:
            world.end(rng.choice(world.in_flight()), after_s=0.05)
        else:
            world.post(ev.Tick(), 0.1)
    while world.out:
        world.end(world.in_flight()[0], after_s=0.5)
    assert not world.waiting_clients
