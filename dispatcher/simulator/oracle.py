"""A length predictor that knows the truth, for simulations alone (Tempo, section 6.2)."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.types import CallSpec, LengthEstimate
from dispatcher.simulator.clients import call_id_of
from dispatcher.traces import Trace

_PROBABILITIES = (0.05, 0.95)


class Oracle:
    """Length predictor: `dispatcher.core.ports.LengthPredictor`.

    Every quantile of a call is what it will generate. It knows the calls of one trace only.

    Example:
        >>> from dispatcher.core.types import CallId, WorkflowId
        >>> from dispatcher.traces import TraceCall, TraceWorkflow
        >>> oracle = Oracle([TraceWorkflow("w", "app", 0.0, (TraceCall("c", "s", 10, 70),))])
        >>> oracle.predict(CallSpec(CallId("w/c"), WorkflowId("w"), "m", 10)).quantile_tokens(0.9)
        70.0
    """

    def __init__(self, trace: Trace) -> None:
        self._lengths: Mapping[str, float] = {
            call_id_of(workflow, call): float(call.output_tokens)
            for workflow in trace
            for call in workflow.calls
        }

    def predict(self, spec: CallSpec) -> LengthEstimate:
        """What it will generate.

        Raises:
            KeyError: The call is not of the trace.
        """
        tokens = self._lengths[spec.call_id]
        return LengthEstimate(tokens, tuple((p, tokens) for p in _PROBABILITIES), "oracle")

    def learn(self, spec: CallSpec, output_tokens: int) -> None:
        """There is nothing to learn."""
