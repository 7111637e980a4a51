"""Runs in the simulator: the same from the same, fair to all policies, whatever the processes."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from dispatcher.bench import run
from dispatcher.bench.fleets import fleet_named
from dispatcher.bench.policies import policies_named
from dispatcher.bench.run import Comparison, Setting, WorkerLostError, document, results_of
from dispatcher.bench.work import WARM_UP_SEED_AFTER, Work, prepared, trace_of, warm_up
from dispatcher.core.errors import BadParameterError, ConfigurationError, UnknownNameError
from dispatcher.traces import TraceCall, TraceWorkflow, write_trace

ROOT = Path(__file__).resolve().parents[2]
FLEET = fleet_named("A100,A6000", seats=4)
WORK = Work(scenario="chess-1", count=6)


def comparison(work=WORK, policies="vllm,hexgen-flow", rates=(0.2,), seeds=(0, 1), **more):
    return Comparison(work, (FLEET,), tuple(policies_named(policies)), rates, seeds, **more)


def recorded(path, *arrivals_s, output=5, model=None):
    calls = (TraceCall("a", "s", 50, output), TraceCall("b", "t", 60, output, parents=("a",)))
    trace = [
        TraceWorkflow(f"w{n}", "app", at, calls, model=model) for n, at in enumerate(arrivals_s)
    ]
    write_trace(path, trace)
    return path


def test_the_same_run_writes_the_same_file_in_any_number_of_processes():
    one = comparison(Work(scenario="chess-1", count=2), rates=(0.2, 0.4), seeds=(0,))
    told = []
    here = document(one, results_of(one.settings(), jobs=1, on_result=lambda: told.append(1)))
    apart = document(one, results_of(one.settings(), jobs=2))
    assert orjson.dumps(here) == orjson.dumps(apart)
    assert len(told) == 4
    assert [(r["policy"], r["rate"], r["seed"]) for r in here["results"]] == [
        (policy, rate, seed)
        for policy in ("vllm", "hexgen-flow")
        for rate in (0.2, 0.4)
        for seed in (0,)
    ]
    assert [(s["policy"], s["rate"], s["seeds"]) for s in here["summary"]] == [
        ("vllm", 0.2, 1),
        ("vllm", 0.4, 1),
        ("hexgen-flow", 0.2, 1),
        ("hexgen-flow", 0.4, 1),
    ]


def test_a_run_says_what_was_run():
    one = comparison(seeds=(3,), policies="wb-fcfs:alpha=0.5", warm=False)
    found = document(one, results_of(one.settings(), jobs=1))
    assert list(found)[:5] == ["scenario", "fleet", "version", "commit", "seeds"]
    assert (found["scenario"], found["fleet"], found["seeds"]) == ("chess-1", "A100,A6000", [3])
    configuration = found["configuration"]
    assert configuration["policies"] == {"wb-fcfs:alpha=0.5": {"name": "wb-fcfs", "alpha": 0.5}}
    assert configuration["work"]["slo_scale"] == 5.0
    assert configuration["fleets"][0]["seats"] == 4
    assert configuration["warm_up"].startswith("none")
    assert "seconds" not in found


def test_policies_meet_the_same_work():
    found = results_of(comparison(seeds=(0,)).settings(), jobs=1)
    assert found[0]["calls"] == found[1]["calls"]
    assert found[0]["latency_s"] != found[1]["latency_s"]
    assert all(one["failed"] == 0 and 0.0 < one["utilisation"] <= 1.0 for one in found)


def test_what_is_learned_beforehand_changes_what_a_policy_that_predicts_does():
    settings = [
        Setting(WORK, FLEET, policies_named("hexgen-flow")[0], 0.4, 0, warm=warm)
        for warm in (True, False)
    ]
    warm, cold = (run.result_of(setting) for setting in settings)
    assert warm != cold
    assert warm["calls"] == cold["calls"]


def test_the_earlier_trace_is_another_one_of_the_same_workload():
    earlier = warm_up(WORK, FLEET, 0.2, 7)
    assert earlier.trace == prepared(WORK, FLEET, 0.2, 7 + WARM_UP_SEED_AFTER).trace
    assert earlier.trace != prepared(WORK, FLEET, 0.2, 7).trace


def test_slos_are_times_alone_at_any_rate():
    slow, fast = (prepared(WORK, FLEET, rate, 0) for rate in (0.1, 1.0))
    assert slow.alone_s == fast.alone_s
    assert [w.slo_s for w in slow.trace] == [5.0 * slow.alone_s[w.workflow_id] for w in slow.trace]
    assert slow.trace[-1].arrival_s == pytest.approx(10 * fast.trace[-1].arrival_s)


def test_workflows_are_dealt_to_tenants_in_turn():
    work = Work(scenario="chess-1", count=4, tenants=(("tight", 2.0), ("loose", 8.0)))
    ready = prepared(work, FLEET, 0.2, 0)
    assert [w.tenant for w in ready.trace] == ["tight", "loose", "tight", "loose"]
    scales = [w.slo_s / ready.alone_s[w.workflow_id] for w in ready.trace]
    assert scales == pytest.approx([2.0, 8.0, 2.0, 8.0])
    found = results_of(comparison(work, "vllm", seeds=(0,)).settings(), jobs=1)[0]
    assert set(found["tenants"]) == {"tight", "loose"}


def test_workflows_that_have_the_tenants_asked_for_keep_them():
    tenants = (("interactive", 2.0), ("analytics", 8.0))
    plain = Work(scenario="two-tenants-mixed", count=12)
    drawn = [w.tenant for w in trace_of(plain, 1.0, 0)]
    assert drawn not in (["interactive", "analytics"] * 6, ["default"] * 12)
    kept = prepared(Work(scenario="two-tenants-mixed", count=12, tenants=tenants), FLEET, 1.0, 0)
    assert [w.tenant for w in kept.trace] == drawn
    scales = [w.slo_s / kept.alone_s[w.workflow_id] for w in kept.trace]
    assert scales == pytest.approx([dict(tenants)[name] for name in drawn])
    other = Work(scenario="two-tenants-mixed", count=2, tenants=(("default", 1.0), ("b", 2.0)))
    assert [w.tenant for w in trace_of(other, 1.0, 0)] == ["default", "b"]


def test_a_recorded_trace_is_played_as_it_was_or_at_another_rate(tmp_path):
    work = Work(trace=recorded(tmp_path / "t.jsonl", 5.0, 7.0, 15.0), count=None)
    assert [w.arrival_s for w in trace_of(work, None, 0)] == [5.0, 7.0, 15.0]
    assert [w.arrival_s for w in trace_of(work, 2.0, 0)] == pytest.approx([0.0, 0.2, 1.0])
    assert len(trace_of(Work(trace=work.trace, count=2), None, 0)) == 2
    found = results_of(comparison(work, "vllm", rates=(None,), seeds=(0,)).settings(), jobs=1)[0]
    assert (found["workflows"], found["rate"]) == (3, 0.2)


def test_a_recorded_trace_asks_the_model_that_the_fleet_serves(tmp_path):
    work = Work(trace=recorded(tmp_path / "t.jsonl", 0.0, 1.0, model="their-model"), count=None)
    found = results_of(comparison(work, "vllm", rates=(None,), seeds=(0,)).settings(), jobs=1)[0]
    assert (found["workflows"], found["failed"]) == (2, 0)


def test_a_recorded_trace_is_warmed_up_for_by_another_one_or_not_at_all(tmp_path):
    first = recorded(tmp_path / "a.jsonl", 0.0, 1.0)
    other = recorded(tmp_path / "b.jsonl", 0.0, 1.0, output=50)
    assert warm_up(Work(trace=first, count=None), FLEET, None, 0) is None
    warmed = Work(trace=first, count=None, warm_trace=other)
    assert warm_up(warmed, FLEET, None, 0).trace[0].calls[0].output_tokens == 50
    assert run.warm_up_told(Work(trace=first), warm=True).startswith("none")
    assert "b.jsonl" in run.warm_up_told(warmed, warm=True)


def _die(setting):
    os._exit(3)


def test_a_worker_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(run, "result_of", _die)
    with pytest.raises(WorkerLostError, match="a worker process ended"):
        results_of(comparison().settings(), jobs=2)


_WORKING = """
import sys
import threading
from dispatcher.bench.run import in_workers

def hold(pipe):
    with open(pipe, "w") as told:
        told.write("here ")
        told.flush()
        threading.Event().wait(30.0)
        told.write("survived ")

if __name__ == "__main__":
    in_workers(hold, sys.argv[1:] * 2, jobs=2)
"""


def test_workers_end_with_the_process_that_started_them(tmp_path):
    script, pipe = tmp_path / "working.py", tmp_path / "pipe"
    script.write_text(_WORKING)
    os.mkfifo(pipe)
    began = subprocess.Popen(
        [sys.executable, str(script), str(pipe)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        with pipe.open() as told:
            said = ""
            while said.count("here") < 2 and (more := told.read(5)):
                said += more
            began.kill()
            said += told.read()  # until nobody holds its other end
    finally:
        began.kill()
        began.wait()
    assert said.split() == ["here", "here"]


def test_what_a_worker_cannot_do_is_told_as_it_is_here(tmp_path):
    huge = Work(trace=recorded(tmp_path / "t.jsonl", 0.0, 1.0), count=None)
    write_trace(huge.trace, [TraceWorkflow("w", "app", 0.0, (TraceCall("a", "s", 900_000, 1),))])
    for jobs in (1, 2):
        with pytest.raises(ConfigurationError, match="longer than the context"):
            results_of(comparison(huge, rates=(None,)).settings(), jobs=jobs)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Work, "a scenario or a trace"),
        (lambda: Work(scenario="chess-1", trace="x"), "not both"),
        (
            lambda: Work(scenario="chess-9"),
            "no such scenario: 'chess-9'; expected one of .*chess-1",
        ),
        (lambda: Work(scenario="chess-1", arrivals="never"), "no such arrivals: 'never'"),
        (lambda: Work(scenario="chess-1", count=0), "at least 1 workflow"),
        (lambda: Work(scenario="chess-1", count=None), "needs a count"),
        (lambda: Work(scenario="chess-1", slo_scale=0.0), "SLO scale: expected more than 0"),
        (lambda: trace_of(WORK, 0.0, 0), "rate: expected workflows per second"),
        (lambda: policies_named("vllm,vllm"), "expected different names"),
        (lambda: policies_named(" , "), "expected different names"),
        (lambda: policies_named("hexgen-flow:alpha"), "expected NAME:PARAMETER=VALUE"),
    ],
)
def test_what_cannot_be_run_is_told(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_policies_take_parameters():
    (choice,) = policies_named("hexgen-flow:alpha=0.2:scope=workflow:shed_doomed=true")
    assert dict(choice.params) == {"alpha": 0.2, "scope": "workflow", "shed_doomed": True}
    with pytest.raises(UnknownNameError):
        policies_named("no-such-policy")
    with pytest.raises(BadParameterError):
        policies_named("hexgen-flow:alpha=7")


def test_one_arrival_has_no_rate(tmp_path):
    work = Work(trace=recorded(tmp_path / "t.jsonl", 5.0), count=None)
    with pytest.raises(ConfigurationError, match="cannot be brought to 2"):
        trace_of(work, 2.0, 0)
    found = results_of(comparison(work, "vllm", rates=(None,), seeds=(0,)).settings(), jobs=1)[0]
    assert found["rate"] is None
