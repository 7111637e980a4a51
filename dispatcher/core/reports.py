"""What the coordinator says of itself, JSON-ready, for the admin API. Reads, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from dispatcher.core.call import Attempt, Call
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.instance import Instance
from dispatcher.core.types import CallId, CallSpec
from dispatcher.core.workflow_types import Quote, WorkflowDeclaration

LISTED_CALLS_MAX = 1000
"""Waiting calls listed per queue."""


def queues(coordinator: Coordinator, now_s: float) -> Mapping[str, object]:
    """Per instance what waits and what is in flight; what is held centrally; what moves."""
    placing = coordinator.placing
    held = [call for queue in placing.lanes.values() for call in queue]
    return {
        "policy": coordinator.policy.name,
        "waiting": len(placing),
        "moving": len(placing.moving),
        "held": _listed(coordinator, [coordinator.calls[c.spec.call_id] for c in held], now_s),
        "instances": {
            instance.instance_id: _instance(coordinator, instance, now_s)
            for instance in coordinator.fleet
        },
    }


def cache_state(coordinator: Coordinator, instance: Instance, now_s: float) -> dict[str, object]:
    """What an instance's KV cache holds, as far as the coordinator knows; JSON-ready.

    `token_room` is what the policy allows, where it limits tokens. `prompt_tokens` are of the calls
    that ended well there: what of them the engine found cached, and how much was expected to be.
    """
    sessions = coordinator.fleet.sessions
    room = coordinator.policy.admission.token_room(instance, now_s)
    return {
        "in_flight_tokens": instance.in_flight_tokens,
        "token_room": None if room is None else asdict(room),
        "kv_capacity_tokens": instance.spec.kv_capacity_tokens,
        "paused_sessions": sessions.paused_count(instance.instance_id, now_s),
        "paused_tokens": round(sessions.paused_tokens(instance.instance_id, now_s)),
        "prompt_tokens": {
            "total": instance.prompt_tokens_total,
            "cached": instance.cached_tokens_total,
            "expected_cached": round(instance.expected_cached_total),
        },
    }


def _instance(coordinator: Coordinator, instance: Instance, now_s: float) -> Mapping[str, object]:
    waiting = [coordinator.calls[c.spec.call_id] for c in instance.queue or ()]
    attempts = list(instance.attempts.values())
    return {
        "available": instance.available,
        "seats": instance.seats,
        "seats_in_use": instance.seats_in_use,
        "backlog_s": coordinator.fleet.backlog_s(instance),
        **cache_state(coordinator, instance, now_s),
        "waiting_calls": len(waiting),
        "waiting": _listed(coordinator, waiting, now_s),
        "in_flight": [_in_flight(coordinator, attempt, now_s) for attempt in attempts],
    }


def _listed(coordinator: Coordinator, calls: list[Call], now_s: float) -> list[object]:
    """Most pressing first; at most `LISTED_CALLS_MAX`, the longest there where there are more."""
    calls = sorted(calls, key=lambda call: call.sequence)[:LISTED_CALLS_MAX]
    keyed = [
        (coordinator.policy.ordering.key(call, call.instance, coordinator.fleet, now_s), call)
        for call in calls
    ]
    keyed.sort(key=lambda item: (*item[0], item[1].sequence))
    return [{**_waiting(coordinator, call, now_s), "key": list(key)} for key, call in keyed]


def _waiting(coordinator: Coordinator, call: Call, now_s: float) -> Mapping[str, object]:
    compute_s = (
        coordinator.fleet.mean_compute_s(call)
        if call.instance is None
        else coordinator.fleet.compute_s(call, call.instance)
    )
    return {
        "call_id": call.call_id,
        "workflow_id": call.placement.workflow_id,
        "stage": call.placement.stage,
        "class": call.spec.call_class.value,
        "waited_s": now_s - call.arrived_s,
        "compute_s": compute_s,
        "urgency_s": compute_s - (call.budget.stage_deadline_s - now_s),
        "slack_s": call.budget.deadline_s - now_s - call.budget.remaining_work_s,
    }


def _in_flight(coordinator: Coordinator, attempt: Attempt, now_s: float) -> Mapping[str, object]:
    call = attempt.call
    return {
        "call_id": call.call_id,
        "workflow_id": call.placement.workflow_id,
        "stage": call.placement.stage,
        "class": call.spec.call_class.value,
        "attempt": call.attempts_made,
        "running_s": now_s - attempt.dispatched_s,
        "output_tokens": attempt.output_tokens,
        "remaining_s": coordinator.fleet.remaining_s(attempt, attempt.instance),
        "urgency_at_dispatch_s": call.urgency_s,
    }


def explain_call(
    coordinator: Coordinator, call_id: CallId, now_s: float
) -> Mapping[str, object] | None:
    """One decision, live or of late; `None` when unknown or forgotten."""
    call = coordinator.calls.get(call_id)
    if call is None:
        record = coordinator.archive.get(call_id)
        if record is None:
            return None
        return {**asdict(record), "state": "ended"}
    where = None if call.instance is None else call.instance.instance_id
    return {
        **_waiting(coordinator, call, now_s),
        "state": call.place.value,
        "instance_id": where,
        "candidates": sorted(call.candidates),
        "avoid": sorted(call.avoid),
        "backlog_at_routing_s": call.backlog_s,
        "predicted_output_tokens": call.length.expected_tokens,
        "prediction_source": call.length.source,
        "prompt_tokens": call.spec.prompt_tokens,
        "attempts": call.attempts_made,
        "streaming": call.spec.streaming,
        "generated_tokens": call.generated_tokens,
        "urgency_at_dispatch_s": call.urgency_s,
        "budget": asdict(call.budget),
        "placement": asdict(call.placement),
    }


def counts(coordinator: Coordinator) -> Mapping[str, int]:
    """Calls by where they are."""
    return {
        "waiting": len(coordinator.placing),
        "held": coordinator.placing.held,
        "in_flight": len(coordinator.attempts),
        "live": len(coordinator.calls),
    }


def quote(coordinator: Coordinator, declaration: WorkflowDeclaration) -> Quote:
    """What a declared workflow may expect: its work, after the least backlog it would meet.

    Its work is the mean of what its application's model says is left, where there is one; `details`
    then have the 5 and 95 % quantiles of the finish, too. Else it is what budgets go by. Of a
    workflow whose structure is unknown, one call of the usual length is counted: the least that it
    can be.
    """
    fleet = coordinator.fleet
    up = [instance for instance in fleet if instance.available]
    if not up:
        return Quote(feasible=False, earliest_finish_s=float("inf"))
    work = fleet.work_s(frozenset(instance.instance_id for instance in up))
    known = coordinator.tracker.remaining(declaration.workflow_id, work)
    modelled = known if known is not None and known.known else None
    if modelled is not None:
        work_s = modelled.mean_s
    else:
        work_s = coordinator.tracker.remaining_work_s(declaration.workflow_id, work)
    if work_s <= 0.0 and modelled is None:
        usual = CallSpec(
            call_id=CallId(""),
            workflow_id=declaration.workflow_id,
            model=min(up[0].spec.models),
            prompt_tokens=1,
            application=declaration.application,
        )
        work_s = work(1.0, coordinator.lengths.predict(usual).expected_tokens)
    backlog_s = coordinator.placing.wait_s(up)
    finish_s = work_s + backlog_s
    details = {"work_s": work_s, "backlog_s": backlog_s}
    if modelled is not None:
        details["finish_low_s"] = modelled.low_s + backlog_s
        details["finish_high_s"] = modelled.high_s + backlog_s
    left_s = _left_s(coordinator, declaration)
    return Quote(
        feasible=left_s is None or finish_s <= left_s,
        earliest_finish_s=finish_s,
        details=details,
    )


def _left_s(coordinator: Coordinator, declaration: WorkflowDeclaration) -> float | None:
    """Until its deadline: the tracker's, which knows defaults and workflows that run already."""
    known = coordinator.tracker.explain(declaration.workflow_id) or {}
    slo_s, elapsed_s = known.get("slo_s"), known.get("elapsed_s")
    if isinstance(slo_s, float) and isinstance(elapsed_s, float):
        return slo_s - elapsed_s
    return declaration.slo_s
