"""What the routing policies decide, in small fleets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_fakes import fake_call, fake_fleet, fake_instance

from dispatcher.core.errors import BadParameterError
from policies.least_backlog import LeastBacklog
from policies.round_robin import RoundRobin
from policies.workload_balance import WorkloadBalance

CALL = fake_call("c", prompt_tokens=200, output_tokens=95.0)
"""2 s at slowness 1."""


def route(routing, fleet, candidates=None, call=CALL):
    chosen_from = list(fleet.instances.values()) if candidates is None else candidates
    return routing.route(call, chosen_from, fleet, 0.0)


# --- round robin ---


def test_round_robin_goes_round():
    fleet = fake_fleet(*(fake_instance(name) for name in "abc"))
    turns = RoundRobin()
    assert [route(turns, fleet) for _ in range(7)] == list("abcabca")


def test_round_robin_over_two_models_starves_no_instance():
    a, b, c, d = (fake_instance(name) for name in "abcd")
    fleet, turns = fake_fleet(a, b, c, d), RoundRobin()
    served = [route(turns, fleet, candidates) for _ in range(4) for candidates in ([a, b], [c, d])]
    assert served == list("acbdacbd")


def test_round_robin_skips_who_is_away_and_takes_them_back():
    a, b, c = (fake_instance(name) for name in "abc")
    fleet, turns = fake_fleet(a, b, c), RoundRobin()
    assert [route(turns, fleet, [a, c]) for _ in range(4)] == list("acac")
    assert [route(turns, fleet) for _ in range(4)] == list("bacb")


@given(st.integers(1, 8), st.integers(1, 40))
def test_round_robin_shares_evenly(instances, calls):
    fleet, turns = fake_fleet(*(fake_instance(f"i{n}") for n in range(instances))), RoundRobin()
    served = [route(turns, fleet) for _ in range(calls)]
    counts = [served.count(name) for name in fleet.instances]
    assert max(counts) - min(counts) <= 1


# --- workload balance ---


def fleet_of(**instances):
    """name=(slowness, backlog in seconds)."""
    return fake_fleet(
        *(
            fake_instance(name, slowness=slowness, backlog_s=backlog_s)
            for name, (slowness, backlog_s) in instances.items()
        )
    )


@pytest.mark.parametrize("mode", ["settled", "paper"])
def test_alpha_zero_is_least_backlog(mode):
    fleet = fleet_of(fast=(1.0, 9.0), slow=(5.0, 3.0), slower=(9.0, 4.0))
    assert route(WorkloadBalance(alpha=0.0, mode=mode), fleet) == "slow"


@pytest.mark.parametrize("mode", ["settled", "paper"])
def test_alpha_one_is_fastest_even_among_idle(mode):
    fleet = fleet_of(slow=(5.0, 0.0), fast=(1.0, 99.0), middle=(2.0, 0.0))
    assert route(WorkloadBalance(alpha=1.0, mode=mode), fleet) == "fast"


def test_the_settled_score_is_the_formula():
    # t_comp 2 and 6 s, mean 4 s; backlogs 6 and 1 s
    fleet = fleet_of(fast=(1.0, 6.0), slow=(3.0, 1.0))
    fast_gain = 1.0 / (1.0 + 6.0 / 4.0)
    slow_gain = 1.0 / (1.0 + 1.0 / 4.0)
    # (1 - a) * (slow_gain - fast_gain) = a * (6 - 2) / 4 where the two are level
    level = (slow_gain - fast_gain) / (slow_gain - fast_gain + 1.0)
    assert route(WorkloadBalance(alpha=level - 0.01), fleet) == "slow"
    assert route(WorkloadBalance(alpha=level + 0.01), fleet) == "fast"


def test_a_long_call_weighs_speed_more_than_a_short_one():
    # usual: 2 s on the fast one; the backlog is worth less to a call that runs long
    fleet = fleet_of(fast=(1.0, 12.0), slow=(3.0, 0.0))
    routing = WorkloadBalance(alpha=0.2)
    for number in range(50):
        route(
            routing, fleet, call=fake_call(f"usual-{number}", prompt_tokens=200, output_tokens=95.0)
        )
    assert (
        route(routing, fleet, call=fake_call("short", prompt_tokens=20, output_tokens=9.5))
        == "slow"
    )
    assert (
        route(routing, fleet, call=fake_call("long", prompt_tokens=1000, output_tokens=475.0))
        == "fast"
    )


def test_idle_instances_tie_to_the_faster_then_to_the_id():
    fleet = fleet_of(z=(2.0, 0.0), y=(1.0, 0.0), x=(1.0, 0.0))
    assert route(WorkloadBalance(), fleet) == "x"
    assert route(WorkloadBalance(mode="paper", alpha=0.9), fleet) == "x"


def test_as_printed_any_idle_instance_beats_all_busy_ones():
    fleet = fleet_of(fast=(1.0, 0.001), slow=(50.0, 0.0))
    assert route(WorkloadBalance(mode="paper", alpha=0.99), fleet) == "slow"
    assert route(WorkloadBalance(mode="settled", alpha=0.99), fleet) == "fast"


def test_as_printed_beta_weighs_the_queue():
    fleet = fleet_of(fast=(1.0, 10.0), slow=(3.0, 5.0))
    assert route(WorkloadBalance(mode="paper", alpha=0.5, beta=1.0), fleet) == "fast"
    assert route(WorkloadBalance(mode="paper", alpha=0.5, beta=100.0), fleet) == "slow"


@given(
    st.floats(0.0, 1.0),
    st.floats(0.01, 100.0),
    st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.0, 1e6)), min_size=1, max_size=5),
)
def test_settled_choices_do_not_depend_on_the_unit_of_time(alpha, unit, figures):
    names = "abcde"
    one = fleet_of(**dict(zip(names, figures, strict=False)))
    other = fleet_of(**{n: (s * unit, w * unit) for n, (s, w) in zip(names, figures, strict=False)})
    chosen = route(WorkloadBalance(alpha=alpha), one)
    rescaled = route(WorkloadBalance(alpha=alpha), other)
    if chosen != rescaled:  # level within rounding
        scores = {}
        mean_s = one.mean_compute_s(CALL)
        for name in (chosen, rescaled):
            instance = one.instances[name]
            own_s = one.compute_s(CALL, instance)
            gain = 1.0 / (1.0 + instance.backlog_s / mean_s)
            scores[name] = (1.0 - alpha) * gain - alpha * own_s / mean_s
        assert math.isclose(scores[chosen], scores[rescaled], rel_tol=1e-9, abs_tol=1e-9)


def test_the_authors_code_starts_at_its_base_and_never_forgets():
    base, other = fake_instance("base"), fake_instance("other")
    fleet, routing = fake_fleet(base, other), WorkloadBalance(mode="repo", alpha=0.0)
    # the base has 2 s; the other goes from 0 to 2 s; level: the first wins; then the other again
    assert [route(routing, fleet) for _ in range(4)] == ["base", "other", "base", "other"]


def test_the_authors_code_counts_half_the_work_of_slow_gpus():
    fleet = fake_fleet(fake_instance("base", gpu="A100"), fake_instance("slow", gpu="A6000"))
    routing = WorkloadBalance(mode="repo", alpha=0.0)
    served = [route(routing, fleet) for _ in range(300)]
    assert served.count("slow") == pytest.approx(200, abs=2)


def test_alpha_is_tuned_while_running():
    fleet = fleet_of(fast=(1.0, 50.0), slow=(3.0, 0.0))
    routing = WorkloadBalance()
    assert route(routing, fleet) == "slow"
    assert routing.tune("alpha", 1.0)
    assert route(routing, fleet) == "fast"
    assert not routing.tune("beta", 1.0)


@pytest.mark.parametrize("alpha", [-0.01, 1.01, math.nan])
def test_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(BadParameterError, match="alpha"):
        WorkloadBalance(alpha=alpha)
    routing = WorkloadBalance(alpha=0.5)
    with pytest.raises(BadParameterError, match="alpha"):
        routing.tune("alpha", alpha)
    assert routing.alpha == 0.5


@pytest.mark.parametrize("beta", [0.0, -1.0, math.inf, math.nan])
def test_beta_out_of_range_is_refused(beta):
    with pytest.raises(BadParameterError, match="beta"):
        WorkloadBalance(beta=beta)


# --- least backlog ---


def test_least_backlog_counts_its_own_time_too():
    fleet = fleet_of(idle_but_slow=(3.0, 0.0), busy_but_fast=(1.0, 3.0))
    assert route(LeastBacklog(), fleet) == "busy_but_fast"
    fleet = fleet_of(idle_but_slow=(3.0, 0.0), busy_but_fast=(1.0, 5.0))
    assert route(LeastBacklog(), fleet) == "idle_but_slow"


def test_least_backlog_ties_go_to_the_faster_then_to_the_id():
    # all done after 6 s
    fleet = fleet_of(slow=(3.0, 0.0), fast=(1.0, 4.0), also_fast=(1.0, 4.0))
    assert route(LeastBacklog(), fleet) == "also_fast"


def test_least_backlog_binds_late_unless_told():
    assert LeastBacklog().late_binding
    assert not LeastBacklog(late_binding=False).late_binding
