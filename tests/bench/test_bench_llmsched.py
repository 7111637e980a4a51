"""LLMSched's experiments, in short: every claim is measured, from the plays it names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from paper_documents import check_drawn, claims_by_id, document_of

from dispatcher.bench.papers import PAPERS
from dispatcher.bench.papers.llmsched import EXPERIMENT, experiments, play
from dispatcher.bench.papers.llmsched.cases import (
    ENGINES,
    LOAD,
    LONG_RUN,
    LONG_RUN_SEED,
    MIXES,
    Case,
    Contender,
)
from dispatcher.bench.papers.llmsched.overhead import overhead_of
from dispatcher.bench.papers.llmsched.play import score
from dispatcher.core.types import Outcome
from dispatcher.traces import (
    Played,
    PlayedCall,
    PlayedInstance,
    PlayedWorkflow,
    TraceCall,
    TraceWorkflow,
)

JOBS = 8
"""Of a play."""
MAIN = experiments.MAIN_CASES
GRID = {
    point: one
    for point, one in experiments.GRID.items()
    if point[0] in {0.0, 0.2} and point[1] in {0.1, 0.5}
}


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, object]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MAIN_CASES", "RATE_CASES", "COUNT_CASES"):
            cases = getattr(experiments, name)
            shorter = tuple(replace(one, jobs=JOBS + n) for n, one in enumerate(cases))
            patch.setattr(experiments, name, shorter)
        patch.setattr(experiments, "MIXED", experiments.MAIN_CASES[0])
        patch.setattr(experiments, "GRID_CASE", replace(experiments.GRID_CASE, jobs=JOBS))
        patch.setattr(experiments, "GRID", GRID)
        patch.setattr(experiments, "EPSILONS", (0.0, 0.2))
        patch.setattr(experiments, "RATIOS", (0.1, 0.5))
        patch.setattr(play, "WARM_UP_PER_APPLICATION", 22)
        found = document_of(EXPERIMENT, seeds=(0, 1))
        found["cases"] = experiments.MAIN_CASES
        yield found


def test_every_claim_of_the_evaluation_has_a_measurement(document) -> None:
    claims = claims_by_id(document)
    for mix in MIXES:
        assert {f"cut-{mix}", f"overhead-{mix}", f"no-network-{mix}"} <= claims.keys()
        assert {f"no-uncertainty-{mix}", f"floor-fcfs-fair-{mix}", f"rate-{mix}"} <= claims.keys()
        for policy in ("fcfs-jobs", "fair", "sjf-jobs", "argus", "carbyne"):
            assert f"cut-{mix}-{policy}" in claims
    assert {"floor-best-mixed", "floor-best-chain-like", "epsilon", "ratio"} <= claims.keys()
    assert {"jobs", "variant-gittins", "variant-by-time", "variant-paper"} <= claims.keys()
    for claim in claims.values():
        assert claim["note"], claim["id"]
        assert claim["measured"] is not None, claim["id"]


def test_what_is_saved_follows_from_paired_plays(document) -> None:
    plays = {(one["case"], one["contender"]): one for one in document["plays"]}
    case = document["cases"][0]
    ours, theirs = (plays[case.key, name]["by_seed"] for name in ("llmsched", "fcfs-jobs"))
    saved = [1.0 - a / b for a, b in zip(ours, theirs, strict=True)]
    measured = claims_by_id(document)["cut-mixed-fcfs-jobs"]["measured"]
    assert measured == pytest.approx(sum(saved) / len(saved), abs=1e-3)
    without = plays[case.key, "llmsched, no network"]["by_seed"]
    more = [b / a - 1.0 for a, b in zip(ours, without, strict=True)]
    measured = claims_by_id(document)["no-network-mixed"]["measured"]
    assert measured == pytest.approx(sum(more) / len(more), abs=1e-3)


def test_ranges_are_over_all_baselines_and_floors_over_the_worst(document) -> None:
    cuts = [
        claims_by_id(document)[f"cut-chain-like-{one.policy}"]["measured"]
        for one in experiments.BASELINES
    ]
    assert claims_by_id(document)["cut-chain-like"]["measured"] == [min(cuts), max(cuts)]
    floor = claims_by_id(document)["floor-best-chain-like"]
    assert floor["measured"] == min(cuts)
    assert floor["met"] is (min(cuts) >= 0.0)


def test_pictures_are_drawn_from_the_document_alone(document, tmp_path) -> None:
    check_drawn(EXPERIMENT, document, tmp_path, 3)


def test_it_is_found_by_its_name_with_three_seeds() -> None:
    assert PAPERS["llmsched"]() is EXPERIMENT
    assert EXPERIMENT.seeds == (0, 1, 2)
    assert [case.mix for case in MAIN] == list(MIXES)
    assert {(case.jobs, case.rate_per_s) for case in MAIN} == {(300, 0.9)}


@pytest.mark.parametrize("mix", MIXES)
def test_engines_stay_whatever_comes(mix: str) -> None:
    case = Case(mix)
    assert len(case.fleet.hardware) >= 2
    assert replace(case, rate_per_s=1.2).fleet == case.fleet


def test_engines_are_as_busy_as_is_said_of_them(monkeypatch) -> None:
    monkeypatch.setattr(play, "WARM_UP_PER_APPLICATION", 22)
    told = ENGINES["planning"].load
    found = play.figures_of((Case("planning", jobs=LONG_RUN), experiments.FCFS, LONG_RUN_SEED))
    assert found["busy"] == pytest.approx(told, abs=0.01)
    assert told == pytest.approx(LOAD, abs=0.05)


def test_every_contender_meets_the_same_jobs_and_the_same_seed_the_same_figures(
    monkeypatch,
) -> None:
    monkeypatch.setattr(play, "WARM_UP_PER_APPLICATION", 22)
    case = Case("planning", jobs=20)
    seen = [play.play(case, Contender(name, name), 1)[0] for name in ("fair", "fcfs-jobs")]
    assert seen[0] == seen[1] == case.trace(1) != case.trace(2)
    task = (case, experiments.LLMSCHED, 1)
    assert play.figures_of(task) == play.figures_of(task)


def test_application_models_have_been_learned_before() -> None:
    models = play.learned_before("planning", 40).workflows["stage_models"]
    assert set(models) == {"task-automation", "llm-compiler"}
    for model in models.values():
        assert model["source"] == "declared"
        assert model["model"]["method"] == "bayes"


def test_overhead_counts_calls_that_were_found(monkeypatch) -> None:
    monkeypatch.setattr(play, "WARM_UP_PER_APPLICATION", 22)
    case = Case("planning", jobs=10)
    found = overhead_of(case, experiments.LLMSCHED)
    assert found.invocations >= sum(len(job.calls) for job in case.trace(0))
    assert found.mean_ms > 0.0


def test_figures_of_a_play_that_is_known() -> None:
    calls = (TraceCall("c", "s", 10, 10),)
    trace = [TraceWorkflow("w0", "a", 0.0, calls), TraceWorkflow("w1", "b", 8.0, calls)]
    played = Played(
        [
            PlayedWorkflow("w0", "a", "default", 0.0, 4.0, None, ok=True),
            PlayedWorkflow("w1", "b", "default", 8.0, 20.0, None, ok=True),
        ],
        [_call("w0", 0.0, 1.0, 4.0), _call("w1", 8.0, 2.0, 20.0)],
        20.0,
        {"one": PlayedInstance(seats=1, busy_s=0.0, seat_s=0.0)},
    )
    found = score(trace, played)
    assert found["jct_s"] == 8.0
    assert found["applications"] == {"a": 4.0, "b": 12.0}
    assert found["busy"] == pytest.approx(3.0 / 8.0)
    assert found["utilisation"] == pytest.approx((3.0 + 10.0) / 20.0)


def _call(workflow_id: str, sent_s: float, queue_s: float, ended_s: float) -> PlayedCall:
    return PlayedCall(
        workflow_id=workflow_id,
        call_id="c",
        stage="s",
        instance="one",
        outcome=Outcome.OK,
        sent_s=sent_s,
        ended_s=ended_s,
        prompt_tokens=10,
        output_tokens=10,
        cached_tokens=0,
        first_token_s=None,
        queue_s=queue_s,
        attempts=1,
    )
