"""Windows: when they close, what is in them, what later ones are held against."""

from __future__ import annotations

import pytest

from dispatcher.traces import TraceCall, TraceWorkflow
from dispatcher.traces.assembly import Assembled
from dispatcher.tuning import Monitor, TuningRules, from_zero, latest

RULES = TuningRules(window_s=100.0, min_workflows=20, max_window_s=1000.0)


def workflow(number: int, arrival_s: float = 0.0, calls: int = 1) -> TraceWorkflow:
    made = tuple(TraceCall(f"c{n}", "s", 10, 5) for n in range(calls))
    return TraceWorkflow(f"w{number}", "app", arrival_s, made)


def ended(number: int, latency_s: float | None = 1.0, **more: float) -> Assembled:
    return Assembled(workflow(number, **more), latency_s)


def test_a_window_closes_when_it_is_due_and_full_and_the_next_begins() -> None:
    monitor = Monitor(RULES, 0.0)
    assert monitor.due_s == 100.0
    assert monitor.collecting
    for number in range(20):
        monitor.add(ended(number, latency_s=1.0 + number, arrival_s=3.0 * number + 7.0), 50.0)
    assert monitor.open_workflows() == 20
    window = monitor.close(100.0)
    assert window is not None
    assert (window.number, window.span_s, window.calls) == (1, 100.0, 20)
    assert window.latencies_s == tuple(1.0 + number for number in range(20))
    assert [one.arrival_s for one in window.trace][:2] == [7.0, 10.0]
    assert (monitor.due_s, monitor.open_workflows()) == (200.0, 0)
    assert monitor.close(200.0) is None


def test_a_window_with_too_little_goes_on_until_it_has_enough() -> None:
    monitor = Monitor(RULES, 0.0)
    for number in range(12):
        monitor.add(ended(number), 60.0)
    assert monitor.close(100.0) is None
    assert monitor.due_s == 200.0
    for number in range(8):
        monitor.add(ended(20 + number), 160.0)
    window = monitor.close(200.0)
    assert window is not None
    assert len(window.latencies_s) == 20
    assert window.span_s == 200.0


def test_workflows_that_did_not_end_well_are_replayed_but_not_compared() -> None:
    monitor = Monitor(RULES, 0.0)
    for number in range(25):
        monitor.add(ended(number, latency_s=None if number < 5 else 2.0), 10.0)
    window = monitor.close(100.0)
    assert window is not None
    assert (len(window.latencies_s), len(window.trace)) == (20, 25)
    for number in range(25):
        monitor.add(ended(number, latency_s=None if number < 6 else 2.0), 110.0)
    assert monitor.close(200.0) is None


def test_what_ended_too_long_ago_is_forgotten() -> None:
    monitor = Monitor(RULES, 0.0)
    for number in range(19):
        monitor.add(ended(number), 10.0)
    now_s = 0.0
    while now_s < 1000.0:
        now_s = monitor.due_s
        assert monitor.close(now_s) is None
    monitor.add(ended(99), now_s + 20.0)
    assert monitor.open_workflows() == 1
    assert monitor.close(now_s + 100.0) is None
    assert monitor.opened_s >= now_s + 100.0 - 1000.0


def test_calls_are_bounded_and_the_latest_workflows_stay() -> None:
    rules = TuningRules(min_workflows=2, max_calls=10)
    monitor = Monitor(rules, 0.0)
    for number in range(100):
        monitor.add(ended(number, calls=3, arrival_s=float(number)), float(number))
        assert monitor.kept_calls <= 20
    window = monitor.close(100.0)
    assert window is not None
    assert [one.workflow_id for one in window.trace] == ["w97", "w98", "w99"]
    # latencies take no room: a window of long workflows has as many as any other
    assert len(window.latencies_s) == 100
    assert monitor.close(1000.0 + 200.0) is None
    assert monitor.kept_calls == 0


def test_one_workflow_longer_than_all_that_is_replayed_still_is() -> None:
    monitor = Monitor(TuningRules(min_workflows=2, max_calls=10), 0.0)
    for number in range(3):
        monitor.add(ended(number, calls=50), 5.0)
    window = monitor.close(100.0)
    assert window is not None
    assert ([one.workflow_id for one in window.trace], len(window.latencies_s)) == (["w2"], 3)


def test_the_reference_is_the_window_of_the_last_tune_until_the_policy_changes() -> None:
    rules = TuningRules(min_workflows=2)
    monitor = Monitor(rules, 0.0)
    for latency_s in (1.0, 2.0):
        monitor.add(ended(1, latency_s=latency_s), 5.0)
    first = monitor.close(100.0)
    assert first is not None
    monitor.tuned(first)
    for latency_s in (3.0, 4.0):
        monitor.add(ended(1, latency_s=latency_s), 105.0)
    second = monitor.close(200.0)
    assert second is not None
    assert monitor.reference is not None
    assert monitor.reference.latencies_s == (1.0, 2.0)
    assert monitor.reference.trace == ()
    monitor.restart(250.0)
    assert monitor.collecting
    assert (monitor.due_s, monitor.open_workflows()) == (350.0, 0)


@pytest.mark.parametrize(
    ("ended_at_s", "found", "span_s"),
    [
        # enough within the last window's length
        ([950.0] * 3 + [100.0] * 5, 3, 100.0),
        # not enough there: as far back as it takes
        ([990.0, 700.0, 400.0, 50.0], 3, 600.0),
        # not enough at all: everything, and the caller sees how little it is
        ([990.0, 30.0], 2, 970.0),
    ],
)
def test_a_tune_that_is_asked_for_takes_what_ended_of_late(
    ended_at_s: list[float], found: int, span_s: float
) -> None:
    monitor = Monitor(TuningRules(min_workflows=3), 0.0)
    for number, at_s in enumerate(sorted(ended_at_s)):
        monitor.add(ended(number), at_s)
    before = (monitor.due_s, monitor.open_workflows())
    window = monitor.recent(1000.0)
    assert (len(window.latencies_s), window.span_s) == (found, span_s)
    assert (monitor.due_s, monitor.open_workflows()) == before


def test_one_workflow_too_large_is_still_replayed() -> None:
    (kept,) = latest([workflow(1), workflow(2, calls=50)], 10)
    assert kept.workflow_id == "w2"
    assert latest([], 10) == ()


def test_a_replay_begins_with_the_first_arrival() -> None:
    ended = [workflow(2, arrival_s=9.5), workflow(1, arrival_s=7.0)]
    assert [(w.workflow_id, w.arrival_s) for w in from_zero(ended)] == [("w1", 0.0), ("w2", 2.5)]
    assert from_zero([]) == ()
