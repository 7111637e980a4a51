"""Whether a play can be true, judged from the trace and what became of it alone.

Shares nothing with the coordinator's own books, so that a defect there shows here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatcher.core.types import Outcome
from dispatcher.simulator.fleet import SimulatedEngine
from dispatcher.traces import Played, PlayedCall, Trace, TraceCall

_ROUNDING_S = 1e-6
_SAID_AT_MOST = 20


def check_played(trace: Trace, played: Played, fleet: Sequence[SimulatedEngine] = ()) -> list[str]:
    """Return what is impossible in a play, at most the first twenty; empty: nothing.

    Conservation: every workflow once; every call of one that went well once, with the trace's own
    lengths. Causality: no call is sent before its parents have ended and its gap is over, nor ends
    before it was sent. Seats: at no moment does an engine of fixed seats hold more calls.

    Args:
        trace: What was to be played.
        played: What became of it.
        fleet: The engines; without them seats are not checked.
    """
    problems = [*_conservation(trace, played), *_causality(trace, played)]
    seats = {
        engine.instance_id: engine.spec.seats for engine in fleet if engine.spec.seats is not None
    }
    problems += _seats({str(name): count for name, count in seats.items()}, played.calls)
    return problems[:_SAID_AT_MOST]


def _by_workflow(played: Played) -> dict[str, dict[str, PlayedCall]]:
    found: dict[str, dict[str, PlayedCall]] = {}
    for call in played.calls:
        found.setdefault(call.workflow_id, {})[call.call_id] = call
    return found


def _conservation(trace: Trace, played: Played) -> list[str]:
    problems = []
    if len(played.calls) != sum(len(calls) for calls in _by_workflow(played).values()):
        problems.append("a call was played twice")
    names = [workflow.workflow_id for workflow in trace]
    if [workflow.workflow_id for workflow in played.workflows] != names:
        problems.append("the workflows played are not those of the trace, in its order")
        return problems
    calls = _by_workflow(played)
    for workflow, outcome in zip(trace, played.workflows, strict=True):
        own = calls.get(workflow.workflow_id, {})
        wanted = {call.call_id: call for call in workflow.calls}
        name = workflow.workflow_id
        if not own.keys() <= wanted.keys():
            problems.append(f"workflow {name}: calls were made up")
        elif outcome.ok and own.keys() != wanted.keys():
            problems.append(f"workflow {name}: went well without {sorted(wanted - own.keys())}")
        elif outcome.ok != all(call.outcome is Outcome.OK for call in own.values()):
            problems.append(f"workflow {name}: its outcome is not that of its calls")
        else:
            problems += _lengths(name, wanted, own)
    return problems


def _lengths(
    name: str, wanted: Mapping[str, TraceCall], own: Mapping[str, PlayedCall]
) -> list[str]:
    problems = []
    for call_id, call in own.items():
        truth = wanted[call_id]
        tokens = (call.prompt_tokens, call.output_tokens)
        if call.outcome is Outcome.OK and tokens != (truth.prompt_tokens, truth.output_tokens):
            problems.append(
                f"call {name}/{call_id}: {tokens} tokens; the trace has"
                f" {(truth.prompt_tokens, truth.output_tokens)}"
            )
    return problems


def _causality(trace: Trace, played: Played) -> list[str]:
    problems = []
    calls = _by_workflow(played)
    for workflow in trace:
        own = calls.get(workflow.workflow_id, {})
        for call in workflow.calls:
            made = own.get(call.call_id)
            if made is None:
                continue
            ended_s = [own[parent].ended_s for parent in call.parents if parent in own]
            name = f"call {workflow.workflow_id}/{call.call_id}"
            if len(ended_s) < len(call.parents):
                problems.append(f"{name}: sent without its parents")
            earliest_s = max(ended_s, default=workflow.arrival_s) + call.gap_s
            if made.sent_s < earliest_s - _ROUNDING_S:
                problems.append(f"{name}: sent at {made.sent_s}, before {earliest_s}")
            begun_s = made.sent_s + (made.queue_s or 0.0)
            first_s = begun_s if made.first_token_s is None else made.first_token_s
            if not made.sent_s <= begun_s <= first_s + _ROUNDING_S <= made.ended_s + _ROUNDING_S:
                problems.append(f"{name}: its moments are out of order")
    return problems


def _seats(seats: Mapping[str, int], calls: Sequence[PlayedCall]) -> list[str]:
    """Calls that went well at once count: of others it is not told when they left their seats."""
    moments: dict[str, list[tuple[float, int]]] = {name: [] for name in seats}
    for call in calls:
        at_once = call.outcome is Outcome.OK and call.attempts == 1
        if at_once and call.instance in moments and call.queue_s is not None:
            moments[call.instance].append((call.sent_s + call.queue_s + _ROUNDING_S, 1))
            moments[call.instance].append((call.ended_s, -1))
    problems = []
    for name, changes in moments.items():
        held = 0
        for at_s, change in sorted(changes):
            held += change
            if held > seats[name]:
                problems.append(f"engine {name}: {held} calls on {seats[name]} seats at {at_s}")
                break
    return problems
