"""Figures of small plays against hand-computed ones."""

import math

import orjson
import pytest

from dispatcher.bench.report import distribution, figures, percentile, plain, spread
from dispatcher.core.types import Outcome
from dispatcher.traces import Played, PlayedCall, PlayedInstance, PlayedWorkflow


def done(name, arrival_s, ended_s, *, ok=True, tenant="default"):
    return PlayedWorkflow(name, "app", tenant, arrival_s, ended_s, None, ok)


def call(name, instance, stage, *, sent_s=0.0, ended_s=1.0, first_s=None, output=1, ok=True):
    outcome = Outcome.OK if ok else Outcome.ENGINE_ERROR
    return PlayedCall(
        name, "c", stage, instance, outcome, sent_s, ended_s, 10, output, first_token_s=first_s
    )


ALONE_S = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 1.0}


def played(workflows, calls=(), makespan_s=10.0, instances=None):
    return Played(workflows, list(calls), makespan_s, instances or {})


def test_figures_of_four_workflows():
    found = figures(
        played(
            [
                done("a", 0.0, 2.0),  # latency 2, ratio 2
                done("b", 1.0, 4.0),  # 3, 1.5
                done("c", 2.0, 10.0),  # 8, 2
                done("d", 3.0, 4.0, ok=False),
            ]
        ),
        ALONE_S,
        slo_scale=1.5,
        scales=(1.0, 1.5, 2.0),
    )
    assert (found["workflows"], found["failed"]) == (4, 1)
    assert found["latency_s"] == {
        "p50": 3.0,
        "p95": pytest.approx(7.5),
        "p99": pytest.approx(7.9),
        "mean": pytest.approx(13 / 3),
    }
    assert found["slo_attainment"] == {"1": 0.0, "1.5": 0.25, "2": 0.75}
    assert found["slo_scale_at_95"] is None  # one in four failed
    assert found["slo_met"] == 0.25
    assert found["throughput_per_s"] == 0.3
    assert found["goodput_per_s"] == 0.1
    assert found["utilisation"] is None
    assert "tenants" not in found


def test_streams_have_ttft_and_tpot():
    calls = [
        call("a", "e", "s", sent_s=1.0, first_s=1.5, ended_s=3.5, output=5),
        call("b", "e", "s", sent_s=1.0, first_s=2.5, ended_s=2.5, output=1),
        call("c", "e", "s"),
        call("d", "e", "s", sent_s=1.0, first_s=9.0, ended_s=9.5, output=9, ok=False),
    ]
    found = figures(played([done("a", 0.0, 1.0)], calls), ALONE_S, slo_scale=5.0)
    assert found["ttft_s"]["mean"] == 1.0
    assert found["ttft_s"]["p50"] == 1.0
    assert found["tpot_s"] == {"p50": 0.5, "p95": 0.5, "p99": 0.5, "mean": 0.5}
    silent = figures(played([done("a", 0.0, 1.0)]), ALONE_S, slo_scale=5.0)
    assert silent["ttft_s"] == {"p50": None, "p95": None, "p99": None, "mean": None}


def test_utilisation_is_seat_seconds_over_seats_and_makespan():
    instances = {
        "x": PlayedInstance(seat_s=30.0, seats=4, prefix_queries_tokens=300, prefix_hits_tokens=30),
        "y": PlayedInstance(seat_s=12.0, seats=4, prefix_queries_tokens=100),
    }
    found = figures(
        played([done("a", 0.0, 1.0)], makespan_s=10.0, instances=instances), ALONE_S, slo_scale=5.0
    )
    assert found["utilisation"] == 42 / 80
    assert found["prefix_hit_rate"] == 0.075


def test_placement_counts_the_stages_of_each_instance():
    calls = [
        call("a", "y", "plan"),
        call("a", "x", "plan"),
        call("a", "x", "check"),
        call("b", "x", "plan"),
        call("b", None, "plan", ok=False),
    ]
    found = figures(played([done("a", 0.0, 1.0)], calls), ALONE_S, slo_scale=5.0)
    assert found["placement"] == {"x": {"check": 1, "plan": 2}, "y": {"plan": 1}}


def test_tenants_are_scored_apart_at_their_own_scales():
    workflows = [
        done("a", 0.0, 2.0, tenant="tight"),  # ratio 2
        done("b", 0.0, 8.0, tenant="loose"),  # 4
        done("c", 0.0, 4.0, tenant="tight"),  # 1
    ]
    found = figures(
        played(workflows),
        ALONE_S,
        slo_scale=99.0,
        tenant_scales={"tight": 1.0, "loose": 4.0},
        scales=(1.0, 2.0),
    )
    assert found["slo_met"] == pytest.approx(2 / 3)
    assert found["tenants"]["tight"]["slo_attainment"] == {"1": 0.5, "2": 1.0}
    assert found["tenants"]["tight"]["slo_scale_at_95"] == 2.0
    assert found["tenants"]["loose"]["slo_attainment"] == {"1": 0.0, "2": 0.0}
    assert found["tenants"]["loose"]["workflows"] == 1


def test_percentiles_lie_between_neighbours():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([10.0, 20.0], 0.95) == 19.5
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))
    assert all(math.isnan(value) for value in distribution([]).values())


def test_the_spread_over_seeds():
    def one(latency_s, failed):
        workflows = [done("a", 0.0, latency_s), done("b", 0.0, 1.0, ok=not failed)]
        return figures(played(workflows), ALONE_S, slo_scale=5.0, scales=(3.0,))

    found = spread([one(2.0, False), one(4.0, False)])
    assert found["latency_p99_s"]["mean"] == pytest.approx((1.99 + 3.97) / 2)
    assert found["slo_scale_at_95"] == {
        "mean": 3.0,
        "min": 2.0,
        "max": 4.0,
        "sd": pytest.approx(math.sqrt(2.0)),
    }
    assert found["slo_attainment"] == {"3": 0.75}
    assert spread([one(2.0, False)])["slo_scale_at_95"]["sd"] == 0.0
    assert spread([one(2.0, False), one(2.0, True)])["slo_scale_at_95"] is None


def test_what_is_no_number_becomes_null_and_digits_are_bounded():
    assert plain({"a": [math.nan, math.inf, 1 / 3], "b": (1, "x", None)}) == {
        "a": [None, None, 0.333333333],
        "b": [1, "x", None],
    }
    orjson.dumps(plain({"a": 1e300}))
