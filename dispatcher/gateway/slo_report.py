"""What an explanation says of calls' classes and SLOs, JSON-ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from dispatcher.core.call import Call
from dispatcher.core.coordinator import Coordinator
from dispatcher.core.types import CallClass, CallId
from dispatcher.core.workflow_types import CallRecord
from dispatcher.gateway.attainment import call_met, promised, ttft_s

_SAME_S = 1e-6
"""Within so little two moments are one."""
_FORGOTTEN: Mapping[str, object] = {
    "class": None,
    "slo": None,
    "ttft_s": None,
    "token_lag_s": None,
    "slo_met": None,
}


def of_call(coordinator: Coordinator, call_id: CallId) -> dict[str, object]:
    """Class, SLO, time to first token, worst token delay and verdict of one call.

    Every value is `None` where the call is known no more. `slo_met` of a call that lives, or of a
    collective one whose workflow does, is `None`; so is that of one that was promised nothing.
    """
    known = coordinator.calls.get(call_id) or coordinator.archive.get(call_id)
    workflow: Mapping[str, object] = {}
    if isinstance(known, CallRecord) and known.call_class is CallClass.COLLECTIVE:
        workflow = coordinator.tracker.explain(known.placement.workflow_id) or {}
    return _told(known, workflow.get("met_slo"))


def of_workflow(coordinator: Coordinator, explained: Mapping[str, object]) -> dict[str, object]:
    """A workflow's explanation, as the tracker gives it, with the same of each of its calls."""
    stages = explained["stages"]
    if not isinstance(stages, list):
        raise TypeError("a workflow's explanation lists its stages")
    met = explained["met_slo"]
    told = [
        {
            **stage,
            "calls": [{**call, **_told(_find(coordinator, call), met)} for call in stage["calls"]],
        }
        for stage in stages
    ]
    return {**explained, "stages": told}


def _find(coordinator: Coordinator, call: Mapping[str, object]) -> Call | CallRecord | None:
    """The call meant: of two with one id, the one that arrived at that moment."""
    call_id, arrived_s = call["call_id"], call["arrived_s"]
    if not isinstance(call_id, str) or not isinstance(arrived_s, float):
        raise TypeError("a workflow's explanation names its calls and when they arrived")
    for known in (
        coordinator.calls.get(CallId(call_id)),
        coordinator.archive.get(CallId(call_id)),
    ):
        if known is not None:
            own_s = known.arrived_s - known.placement.workflow_started_s
            if abs(own_s - arrived_s) < _SAME_S:
                return known
    return None


def _told(known: Call | CallRecord | None, workflow_met: object) -> dict[str, object]:
    if known is None:
        return dict(_FORGOTTEN)
    if isinstance(known, Call):
        return {
            **_FORGOTTEN,
            "class": known.spec.call_class.value,
            "slo": asdict(promised(known.spec.slo, known.placement)),
            "ttft_s": ttft_s(known),
        }
    collective = known.call_class is CallClass.COLLECTIVE
    return {
        "class": known.call_class.value,
        "slo": asdict(promised(known.slo, known.placement)),
        "ttft_s": ttft_s(known),
        "token_lag_s": known.token_lag_s,
        "slo_met": workflow_met if collective else call_met(known),
    }
