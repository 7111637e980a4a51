"""Which alpha is adopted, and what is asked of the replay."""

from __future__ import annotations

import math
import pickle

import pytest

from dispatcher.core.gpu_profiles import CostProfile
from dispatcher.core.types import InstanceId, InstanceSpec
from dispatcher.traces import TraceCall, TraceWorkflow
from dispatcher.tuning import (
    ALPHAS,
    AlphaScore,
    ReplayError,
    ReplayInstance,
    ReplayRequest,
    ReplayResult,
    TuningRules,
    choose,
    fitted_profile,
    tune_trace,
)
from predictors.linear_cost import LinearCost

PROFILE = CostProfile(2e-4, 0.05, 0.03, 3e-4, 4e-8)
SPEC = InstanceSpec(InstanceId("a"), frozenset({"m"}), profile=PROFILE)
FLEET = [ReplayInstance(SPEC, PROFILE, seats=8)]
TRACE = [
    TraceWorkflow(f"w{n}", "app", 5.0 + n, (TraceCall("c", "s", 10, 5),), slo_s=60.0)
    for n in range(30)
]


def result(*p95s_s: float) -> ReplayResult:
    return ReplayResult(tuple(AlphaScore(n / 10, p95_s) for n, p95_s in enumerate(p95s_s)))


@pytest.mark.parametrize(
    ("p95s_s", "present", "after", "why"),
    [
        ((10.0, 9.0, 8.0), 0.0, 0.2, "P95 8 s instead of 10 s"),
        ((10.0, 9.8, 9.75), 0.0, 0.0, "a gain of 2.5%, 3.0% are asked for"),
        ((10.0, 9.7, 9.75), 0.0, 0.1, "P95 9.7 s"),
        ((8.0, 9.0, 9.5), 0.0, 0.0, "no alpha does better than 0"),
        # ties: the nearest to the present one, then the lower
        ((5.0, 9.0, 5.0), 0.1, 0.0, "P95 5 s"),
        ((5.0, 5.0, 9.0), 0.2, 0.1, "P95 5 s"),
        ((5.0, 5.0, 5.0), 0.1, 0.1, "no alpha does better"),
        # a present alpha that nothing survives
        ((math.inf, 50.0, 60.0), 0.0, 0.1, "P95 50 s instead of inf s"),
        ((math.inf, math.inf), 0.1, 0.1, "no alpha does better"),
    ],
)
def test_the_least_p95_is_adopted_where_it_gains_enough(
    p95s_s: tuple[float, ...], present: float, after: float, why: str
) -> None:
    choice = choose(result(*p95s_s), present, 0.03)
    assert choice.after == after
    assert choice.adopted == (after != present)
    assert why in choice.why


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (result(1.0, math.nan), "P95 of nan s"),
        (result(1.0, 0.0), "P95 of 0.0 s"),
        (ReplayResult((AlphaScore(1.5, 1.0),)), "alpha 1.5"),
        (ReplayResult((AlphaScore(0.1, 1.0),)), "nothing of alpha 0.0"),
        (ReplayResult(()), "nothing of alpha 0.0"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(answer: ReplayResult, complaint: str) -> None:
    with pytest.raises(ReplayError, match=complaint):
        choose(answer, 0.0, 0.03)


def test_a_recorded_trace_is_tuned_on_at_once() -> None:
    asked: list[ReplayRequest] = []

    def replay(request: ReplayRequest) -> ReplayResult:
        asked.append(request)
        return ReplayResult(tuple(AlphaScore(a, 10.0 + (a - 0.6) ** 2) for a in request.alphas))

    choice = tune_trace(
        TRACE,
        FLEET,
        replay,
        policy="hexgen-flow",
        params={"alpha": "auto"},
        alpha=0.25,
        rules=TuningRules(max_calls=20, min_gain=0.001),
        seed=3,
    )
    assert (choice.before, choice.after) == (0.25, 0.6)
    (request,) = asked
    assert request.alphas == tuple(sorted({*ALPHAS, 0.25}))
    assert (len(request.trace), request.trace[0].arrival_s, request.seed) == (20, 0.0, 3)
    assert request.trace[0].workflow_id == "w10"


def test_nothing_cannot_be_tuned_on() -> None:
    def replay(request: ReplayRequest) -> ReplayResult:
        raise AssertionError

    with pytest.raises(ValueError, match="at least one"):
        tune_trace([], FLEET, replay, policy="p", params={})
    with pytest.raises(ValueError, match="at least one"):
        tune_trace(TRACE, [], replay, policy="p", params={})


def test_a_request_travels_to_another_process() -> None:
    request = ReplayRequest(tuple(TRACE), tuple(FLEET), "hexgen-flow", {"alpha": "auto"})
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.alphas == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def test_a_fitted_profile_is_read_from_the_cost_model_by_asking() -> None:
    costs = LinearCost()
    costs.add_instance(SPEC)
    found, known = fitted_profile(costs, SPEC.instance_id), costs.profile(SPEC.instance_id)
    for name in CostProfile.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-6), name
