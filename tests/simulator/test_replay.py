"""The tuner's replay: a curve over alpha from plain data."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from simulated_work import fleet_of, work

from dispatcher.core.errors import BadParameterError
from dispatcher.core.types import CallId, CallSpec, WorkflowId
from dispatcher.simulator.replay import StageLengths, replay
from dispatcher.tuning import ReplayInstance, ReplayRequest


def request_of(**changes: object) -> ReplayRequest:
    fleet = tuple(
        ReplayInstance(engine.spec, engine.spec.profile, 4)
        for engine in fleet_of()
        if engine.spec.profile is not None
    )
    request = ReplayRequest(tuple(work(40)), fleet, "hexgen-flow", {}, alphas=(0.0, 0.5, 1.0))
    return replace(request, **changes)  # type: ignore[arg-type]


def test_each_alpha_has_a_score_and_the_same_request_the_same_curve() -> None:
    request = request_of()
    result = replay(pickle.loads(pickle.dumps(request)))
    assert [score.alpha for score in result.curve] == [0.0, 0.5, 1.0]
    assert len({score.p95_s for score in result.curve}) > 1
    for score in result.curve:
        # every workflow has an SLO of 60 s
        assert score.p95_slo_ratio == pytest.approx(score.p95_s / 60.0)
        assert score.slo_attainment is not None
    assert replay(request) == result


def test_without_slos_there_is_only_latency() -> None:
    trace = [*work(19), replace(work(20)[19], slo_s=None)]
    (score,) = replay(request_of(trace=tuple(trace), alphas=(0.2,))).curve
    assert score.p95_slo_ratio is None
    assert score.slo_attainment is not None


def test_what_caches_spare_makes_it_faster() -> None:
    cold, warm = (
        replay(
            request_of(
                fleet=tuple(replace(i, cached_share=share) for i in request_of().fleet),
                alphas=(0.0,),
            )
        )
        for share in (0.0, 0.9)
    )
    assert warm.curve[0].p95_s < cold.curve[0].p95_s


def test_a_policy_without_alpha_is_refused() -> None:
    with pytest.raises(BadParameterError, match="alpha"):
        replay(request_of(policy="vllm"))


def test_lengths_are_those_of_the_stage_not_of_the_call() -> None:
    trace = work(10)
    lengths = StageLengths(trace)
    drafts = [c.output_tokens for w in trace for c in w.calls if c.stage == "draft"]
    spec = CallSpec(CallId("c"), WorkflowId("w"), "m", 100, application="fan", stage="draft")
    assert lengths.predict(spec).expected_tokens == pytest.approx(sum(drafts) / len(drafts))
    stranger = replace(spec, stage="unheard-of")
    every = [c.output_tokens for w in trace for c in w.calls]
    assert lengths.predict(stranger).expected_tokens == pytest.approx(sum(every) / len(every))
