"""Ended calls become the workflows of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.core.types import CallClass, CallId, CallSpec, Outcome, Slo, WorkflowId
from dispatcher.core.workflow_types import CallRecord, Placement, WorkflowRecord
from dispatcher.traces import TraceWorkflow, read_trace, write_trace
from dispatcher.traces.assembly import PARENTS_MAX, Assembled, Assembler

EPOCH_S = 1000.0


@dataclass
class Work:
    """Calls of one workflow, told to an assembler in the order in which they end."""

    assembler: Assembler = field(default_factory=lambda: Assembler(epoch_s=EPOCH_S))
    workflow_id: str = "wf"
    started_s: float = EPOCH_S
    calls: int = 0
    last_s: float = 0.0

    def call(
        self,
        arrived_s: float,
        ended_s: float,
        stage: str = "s",
        tokens: int = 50,
        asks_for: str | None = None,
        **spec: object,
    ) -> None:
        """Times count from the epoch; its answer asks for a tool."""
        self.calls += 1
        self.started_s = EPOCH_S + arrived_s if self.calls == 1 else self.started_s
        self.last_s = EPOCH_S + ended_s
        workflow_id = WorkflowId(self.workflow_id)
        asked = replace(
            CallSpec(CallId(f"secret-{self.calls}"), workflow_id, "m", 100, application="app"),
            **spec,  # type: ignore[arg-type]
        )
        placed = Placement(workflow_id, "app", stage, 0, self.started_s, self.started_s + 60.0)
        record = CallRecord(
            call_id=asked.call_id,
            placement=placed,
            tenant="analytics",
            model="m",
            outcome=Outcome.OK if tokens else Outcome.REJECTED,
            instance_id=None,
            arrived_s=EPOCH_S + arrived_s,
            dispatched_s=None,
            first_token_s=None,
            ended_s=EPOCH_S + ended_s,
            prompt_tokens=100 * asked.prompts,
            cached_tokens=0,
            output_tokens=tokens,
            attempts=1,
            predicted_output_tokens=1.0,
            predicted_compute_s=None,
            urgency_s=None,
            budget=None,
            call_class=asked.call_class,
            slo=asked.slo,
            streaming=asked.streaming,
            token_lag_s=None,
            tool=asks_for,
        )
        self.assembler.call_ended(asked, record)

    def end(
        self, outcome: Outcome = Outcome.OK, started_s: float | None = None
    ) -> Assembled | None:
        return self.assembler.workflow_ended(
            WorkflowRecord(
                WorkflowId(self.workflow_id),
                "app",
                "analytics",
                self.started_s if started_s is None else started_s,
                self.last_s,
                self.started_s + 60.0,
                self.calls,
                1,
                outcome,
            )
        )


def trace_of(work: Work) -> TraceWorkflow:
    ended = work.end()
    assert ended is not None
    return ended.trace


def shape(trace: TraceWorkflow) -> list[tuple[str, tuple[str, ...], float]]:
    return [(call.stage, call.parents, call.gap_s) for call in trace.calls]


def test_a_call_follows_what_had_ended_when_it_arrived() -> None:
    work = Work()
    work.call(5.0, 7.0, "link")
    work.call(7.5, 9.0, "write")
    work.call(7.5, 10.0, "write")
    work.call(12.0, 14.0, "check")
    trace = trace_of(work)
    assert shape(trace) == [
        ("link", (), 0.0),
        ("write", ("c1",), 0.5),
        ("write", ("c1",), 0.5),
        ("check", ("c2", "c3"), 2.0),
    ]
    assert (trace.workflow_id, trace.arrival_s, trace.slo_s) == ("w1", 5.0, 60.0)
    assert (trace.application, trace.tenant, trace.model) == ("app", "analytics", "m")


def test_a_call_that_had_not_ended_is_no_parent_and_the_frontier_stays_until_it_is_followed() -> (
    None
):
    work = Work()
    work.call(0.0, 1.0, "a")
    # one long call runs beside two that follow each other
    work.call(2.0, 3.0, "c")
    work.call(4.0, 5.0, "d")
    work.call(1.5, 6.0, "b")
    work.call(7.0, 8.0, "e")
    assert shape(trace_of(work)) == [
        ("a", (), 0.0),
        ("b", ("c1",), 0.5),
        ("c", ("c1",), 1.0),
        ("d", ("c3",), 1.0),
        ("e", ("c4", "c2"), 1.0),
    ]


def test_a_call_that_arrives_as_another_ends_follows_it() -> None:
    work = Work()
    work.call(0.0, 2.0, "a")
    work.call(2.0, 2.0, "b")
    work.call(2.0, 4.0, "c")
    assert shape(trace_of(work)) == [("a", (), 0.0), ("b", ("c1",), 0.0), ("c", ("c2",), 0.0)]


def test_what_put_out_nothing_is_left_out_and_its_time_is_a_gap() -> None:
    work = Work()
    work.call(0.0, 0.5, "a", tokens=0)
    work.call(3.0, 4.0, "a")
    trace = trace_of(work)
    assert shape(trace) == [("a", (), 3.0)]
    assert trace.arrival_s == 0.0
    nothing = Work()
    nothing.call(0.0, 0.5, tokens=0)
    assert nothing.end() is None


def test_a_call_of_several_sequences_is_as_many_calls_side_by_side() -> None:
    work = Work()
    work.call(0.0, 1.0, tokens=40, seats=4, prompts=2)
    work.call(2.0, 3.0)
    first, *others = (trace := trace_of(work)).calls
    assert [call.call_id for call in trace.calls] == ["c1.1", "c1.2", "c1.3", "c1.4", "c2"]
    assert (first.prompt_tokens, first.output_tokens) == (100, 10)
    assert others[-1].parents == ("c1.1", "c1.2", "c1.3", "c1.4")


def test_a_gap_is_of_the_tool_that_the_call_names_else_of_the_one_that_was_asked_for() -> None:
    work = Work()
    work.call(0.0, 1.0, asks_for="search")
    work.call(3.0, 4.0, asks_for="read")
    work.call(3.0, 5.0, asks_for="")
    work.call(6.0, 7.0, asks_for="read", tool="sql")
    work.call(8.0, 9.0, tool="edit")
    work.call(9.5, 10.0)
    calls = trace_of(work).calls
    assert [call.tool for call in calls] == [None, "search", "search", "sql", "edit", None]
    work.call(0.0, 1.0, asks_for="search")
    work.call(0.0, 2.0, asks_for="read")
    work.call(0.0, 3.0, asks_for="")
    work.call(6.0, 7.0)
    assert [call.tool for call in trace_of(work).calls] == [None, None, None, "read"]


def test_everything_a_trace_may_tell_is_told_and_no_id_of_a_client() -> None:
    work = Work(workflow_id="session-of-somebody")
    slo = Slo(None, 0.5, 0.05)
    work.call(0.0, 1.0, tool="sql", streaming=True, call_class=CallClass.LATENCY, slo=slo)
    trace = trace_of(work)
    (call,) = trace.calls
    assert (call.tool, call.streaming, call.call_class) == ("sql", True, CallClass.LATENCY)
    assert (call.slo_ttft_s, call.slo_tpot_s) == (0.5, 0.05)
    assert "secret" not in repr(trace)
    assert "somebody" not in repr(trace)


@pytest.mark.parametrize(
    ("outcome", "started_s", "latency_s"),
    [
        (Outcome.OK, None, 4.0),
        (Outcome.CANCELLED, None, None),
        (Outcome.ENGINE_ERROR, None, None),
        # seen from its middle on: its latency is not this trace's
        (Outcome.OK, EPOCH_S - 50.0, None),
    ],
)
def test_latency_counts_where_a_workflow_ended_well_and_was_seen_whole(
    outcome: Outcome, started_s: float | None, latency_s: float | None
) -> None:
    work = Work()
    work.call(1.0, 5.0)
    ended = work.end(outcome, started_s)
    assert ended is not None
    assert ended.latency_s == latency_s
    assert ended.trace.arrival_s == 1.0


def test_workflows_that_go_on_can_be_told_at_the_end() -> None:
    assembler = Assembler(epoch_s=EPOCH_S)
    one, two = Work(assembler, "one"), Work(assembler, "two")
    one.call(0.0, 1.0)
    two.call(0.5, 2.0)
    two.call(3.0, 4.0)
    assert assembler.pending_calls == 3
    assert [len(trace.calls) for trace in assembler.flush()] == [1, 2]
    assert assembler.pending_calls == 0
    assert one.end() is None


def test_too_long_a_workflow_is_left_out_whole() -> None:
    assembler = Assembler(epoch_s=EPOCH_S, calls_per_workflow=3)
    work = Work(assembler)
    for number in range(6):
        work.call(number, number + 0.5)
    assert (assembler.left_out, assembler.pending_calls) == (1, 0)
    assert work.end() is None
    # its name is free again
    work.call(10.0, 11.0)
    assert work.end() is not None


def test_sequences_count_towards_what_is_too_long() -> None:
    assembler = Assembler(epoch_s=EPOCH_S, calls_per_workflow=7)
    for calls, left_out in ((1, 0), (2, 1)):
        work = Work(assembler, f"of {calls}")
        for number in range(calls):
            work.call(number, number + 0.5, seats=4)
        assert (work.end() is None, assembler.left_out) == (left_out > 0, left_out)
        assert assembler.pending_calls == 0


def test_where_too_much_goes_on_the_oldest_is_left_out() -> None:
    assembler = Assembler(epoch_s=EPOCH_S, calls_pending=4)
    old, young = Work(assembler, "old"), Work(assembler, "young")
    for number in range(3):
        old.call(number, number + 0.5)
        young.call(number, number + 0.6)
    assert assembler.left_out == 1
    assert old.end() is None
    assert young.end() is not None
    assert assembler.pending_calls == 0


def test_wide_stages_have_bounded_parents() -> None:
    work = Work()
    for number in range(PARENTS_MAX + 50):
        work.call(0.0, 1.0 + number)
    work.call(1000.0, 1001.0)
    last = trace_of(work).calls[-1]
    assert len(last.parents) == PARENTS_MAX
    assert last.parents[-1] == f"c{PARENTS_MAX + 50}"
    assert last.gap_s == pytest.approx(1000.0 - (PARENTS_MAX + 50))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 50), st.integers(0, 3), st.integers(1, 4)),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_happened_can_be_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[float, float, int, int]]
) -> None:
    work = Work(started_s=EPOCH_S)
    for arrived_s, took_s, tokens, seats in sorted(calls, key=lambda call: call[0] + call[1]):
        work.call(arrived_s, arrived_s + took_s, tokens=tokens, seats=seats)
    ended = work.end()
    assert (ended is None) == (not any(tokens for *_, tokens, _ in calls))
    if ended is None:
        return
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(path, [ended.trace])
    (again,) = read_trace(path)
    assert again == ended.trace
