"""Simulations in which things go wrong end, and tell of every workflow once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulated_work import fleet_of, work

from dispatcher import catalog
from dispatcher.core.coordinator import Limits
from dispatcher.core.errors import ConfigurationError
from dispatcher.core.types import AttemptId, Outcome
from dispatcher.simulator import Fault, FaultKind, simulate
from dispatcher.simulator.checks import check_played
from dispatcher.simulator.engines import Attempt, EnginePlayer
from dispatcher.simulator.kernel import Kernel
from dispatcher.traces import TraceCall, TraceWorkflow


def workflow(number: int, *calls: TraceCall, at_s: float = 0.0) -> TraceWorkflow:
    return TraceWorkflow(f"w{number}", "app", at_s, calls)


def call(name: str, output_tokens: int, *parents: str, streaming: bool = False) -> TraceCall:
    return TraceCall(name, "s", 100, output_tokens, parents, streaming=streaming)


@pytest.mark.parametrize("seats", [4, None])
def test_calls_side_by_side_that_are_turned_away_at_once_end_their_workflow_once(
    seats: int | None,
) -> None:
    refused = replace(workflow(0, call("a", 5), call("b", 5)), model="unknown")
    trace = [refused, workflow(1, call("a", 300)), workflow(2, call("a", 300), at_s=50.0)]
    fleet = fleet_of("A100", seats=seats)
    played = simulate(trace, fleet, policy="vllm").played
    assert check_played(trace, played, fleet) == []
    assert [one.ok for one in played.workflows] == [False, True, True]
    alone = simulate(trace[:1], fleet, policy="vllm").played
    assert [one.outcome for one in alone.calls] == [Outcome.REJECTED]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_engine_may_die_at_any_moment_of_an_iteration(streaming: bool) -> None:
    trace = [workflow(n, call("a", 3 + n, streaming=streaming), at_s=0.01 * n) for n in range(4)]
    fleet = fleet_of("A100", "A100")
    for moment in range(1, 60):
        faults = [Fault(0.003 * moment, "a100-0", FaultKind.DOWN)]
        played = simulate(trace, fleet, policy="vllm", faults=faults).played
        assert check_played(trace, played, fleet) == []
        late = [c for c in played.calls if c.instance == "a100-0" and c.ended_s > faults[0].at_s]
        assert late == []


@pytest.mark.parametrize("seats", [2, None])
@pytest.mark.parametrize("streaming", [False, True])
def test_who_waits_for_engines_that_never_come_back_leaves(
    seats: int | None, streaming: bool
) -> None:
    trace = [workflow(n, call("a", 400, streaming=streaming), at_s=0.01 * n) for n in range(120)]
    fleet = fleet_of("A100", seats=seats)
    dies = Fault(1.5, "a100-0", FaultKind.DOWN)
    played = simulate(trace, fleet, policy="hexgen-flow", faults=[dies]).played
    assert check_played(trace, played, fleet) == []
    assert {(one.ok, one.ended_s) for one in played.workflows} == {(False, 1.5)}
    lasting = [dies, Fault(4.0, "a100-0", FaultKind.UP)]
    again = simulate(trace, fleet, policy="hexgen-flow", faults=lasting).played
    assert check_played(trace, again, fleet) == []
    served = {one.outcome for one in again.calls if one.ended_s > 4.0}
    assert served == {Outcome.OK}


def test_faults_of_no_engine_and_impossible_ones_are_named() -> None:
    for fault in (
        Fault(1.0, "nobody", FaultKind.DOWN),
        Fault(-1.0, "a100-0", FaultKind.UP),
        Fault(1.0, "a100-0", FaultKind.SLOW, 0.0),
    ):
        with pytest.raises(ConfigurationError, match=r"Fault\("):
            simulate(work(1), fleet_of("A100"), policy="vllm", faults=[fault])


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        ([workflow(0, call("a", 1), at_s=2.0), workflow(1, call("a", 1))], "w1 arrives before w0"),
        ([workflow(0, call("a", 1)), workflow(0, call("a", 1), at_s=9.0)], "two workflows are"),
        ([workflow(0, call("a", 1), TraceCall("long", "s", 10**7, 1))], "w0, call long: a prompt"),
    ],
)
def test_traces_that_cannot_be_played_are_named(trace: list[TraceWorkflow], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        simulate(trace, fleet_of("A100"), policy="vllm")


def test_workflows_that_were_not_told_to_be_over_are_no_experience() -> None:
    trace = [workflow(0, call("a", 20), call("b", 20, "a"), call("c", 20, "a"))]
    learned = simulate(trace, fleet_of("A100"), policy="hexgen-flow").learned
    assert learned.workflows["live"] == []


def player_of() -> tuple[Kernel, EnginePlayer]:
    kernel = Kernel()
    (engine,) = fleet_of("A100", max_num_seqs=1)
    return kernel, EnginePlayer(
        engine.config, kernel, on_first_token=lambda _: None, on_end=lambda _: None
    )


def attempt(number: int, output_tokens: int) -> Attempt:
    return Attempt(
        AttemptId(number),
        prompt_tokens=100,
        output_tokens=output_tokens,
        arrival_s=0.0,
        priority=0,
        block_hashes=(),
        streaming=False,
    )


def test_a_request_that_waits_inside_its_engine_has_no_tokens() -> None:
    kernel, player = player_of()
    runs, waits = attempt(1, 200), attempt(2, 200)
    player.add(runs)
    player.add(waits)
    said: list[tuple[int, int]] = []
    kernel.at(1.0, lambda: said.append((player.generated(runs), player.generated(waits))))
    kernel.run()
    ((of_running, of_waiting),) = said
    assert of_running > 20
    assert of_waiting == 0


def test_an_engine_that_slows_down_in_the_last_iteration_of_a_run_keeps_its_tokens() -> None:
    kernel, player = player_of()
    only = attempt(1, 100)
    player.add(only)
    kernel.run()
    alone_s = kernel.now_s
    kernel, player = player_of()
    only = attempt(1, 100)
    player.add(only)
    kernel.at(alone_s - 0.004, player.slow_down, 10.0)
    kernel.at(alone_s - 0.002, player.abort, attempt(2, 10))
    kernel.run()
    assert only.generated == 100
    assert kernel.now_s == pytest.approx(alone_s)
    assert player.busy_s == pytest.approx(alone_s)


def test_a_call_that_waits_after_its_only_attempt_holds_no_seat() -> None:
    trace = [
        workflow(0, call("a", 400)),
        *(workflow(n, call("a", 100), at_s=2.0) for n in range(1, 4)),
    ]
    fleet = fleet_of("A100", seats=1)
    faults = [Fault(1.0, "a100-0", FaultKind.DOWN), Fault(1.9, "a100-0", FaultKind.UP)]
    played = simulate(trace, fleet, policy="vllm", faults=faults).played
    # it has lost its seat in the midst of the calls that follow, whatever became of it
    lost = [replace(c, ended_s=1000.0, attempts=1) for c in played.calls if c.workflow_id == "w0"]
    given_up = [replace(c, outcome=Outcome.REJECTED, queue_s=0.0) for c in lost]
    others = [c for c in played.calls if c.workflow_id != "w0"]
    workflows = [replace(w, ok=w.workflow_id != "w0") for w in played.workflows]
    told = replace(played, calls=[*given_up, *others], workflows=workflows)
    assert check_played(trace, told, fleet) == []


@pytest.mark.parametrize("seed", range(60))
def test_whatever_goes_wrong_all_workflows_are_told_once(seed: int) -> None:
    rng = random.Random(seed)
    gpus = rng.choice([("A100",), ("A100", "L40")])
    tight = {"num_blocks": 120, "max_model_len": 7000} if rng.random() < 0.3 else {}
    fleet = fleet_of(*gpus, seats=rng.choice([1, 4, None]), **tight)
    faults = [
        Fault(
            rng.uniform(0.0, 20.0),
            rng.choice(fleet).instance_id,
            rng.choice(list(FaultKind)),
            rng.choice([0.5, 3.0, 10.0]),
        )
        for _ in range(rng.randint(0, 6))
    ]
    trace = work(
        rng.randint(1, 20),
        rate_per_s=rng.choice([1.0, 5.0, 50.0]),
        seed=seed,
        streaming=rng.random() < 0.5,
    )
    played = simulate(
        trace,
        fleet,
        policy=rng.choice(list(catalog.policy_entries())),
        faults=faults,
        limits=rng.choice([None, Limits(max_calls=5, max_wait_s=10.0)]),
    ).played
    assert check_played(trace, played, fleet) == []
    for instance in played.instances.values():
        assert instance.busy_s >= 0.0
