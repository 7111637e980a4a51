"""What cannot be played is said before anything is, in words of the trace and the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dispatcher.core.errors import ConfigurationError
from dispatcher.simulator.fleet import Fault, SimulatedEngine
from dispatcher.traces import Trace


def check_inputs(
    trace: Trace, fleet: Sequence[SimulatedEngine], faults: Sequence[Fault] = ()
) -> None:
    """Make sure that all can be played.

    Raises:
        ConfigurationError: No engine, or two of one id; a trace that is not by ascending arrival,
            has two workflows of one id, or a prompt that no engine has room for; a fault of an
            engine that is not there, or with a number out of range.
    """
    if not fleet or len({engine.instance_id for engine in fleet}) < len(fleet):
        raise ConfigurationError("a simulated fleet needs engines, each with an id of its own")
    _check_trace(trace, max(engine.config.max_model_len for engine in fleet))
    known = {str(engine.instance_id) for engine in fleet}
    for fault in faults:
        if fault.instance_id not in known:
            raise ConfigurationError(f"{fault}: no such engine; there are {sorted(known)}")
        if not (0.0 <= fault.at_s < float("inf") and 0.0 < fault.factor < float("inf")):
            raise ConfigurationError(f"{fault}: expected a moment from 0 on and a factor above 0")


def _check_trace(trace: Trace, longest_tokens: int) -> None:
    for before, after in pairwise(trace):
        if after.arrival_s < before.arrival_s:
            raise ConfigurationError(
                f"workflow {after.workflow_id} arrives before {before.workflow_id}, which stands"
                " before it; expected a trace by ascending arrival"
            )
    names: set[str] = set()
    for workflow in trace:
        if workflow.workflow_id in names:
            raise ConfigurationError(f"two workflows are {workflow.workflow_id!r}")
        names.add(workflow.workflow_id)
        for call in workflow.calls:
            if call.prompt_tokens >= longest_tokens:
                raise ConfigurationError(
                    f"workflow {workflow.workflow_id}, call {call.call_id}: a prompt of"
                    f" {call.prompt_tokens} tokens; the longest context in the fleet has"
                    f" {longest_tokens}"
                )
