"""What one iteration of an engine did."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.engine_model.requests import EngineRequest


@dataclass(slots=True)
class StepResult:
    """What one iteration did; its tokens exist once `duration_s` has passed.

    Attributes:
        duration_s: Virtual time the iteration takes.
        emitted: Requests that got one more token each, in batch order.
        finished: Those of `emitted` whose token was their last.
        admitted: Requests that got a seat, the ones coming back from preemption included.
        preempted: Requests that lost their blocks and wait again.
        prefill_tokens: Tokens computed that were no request's newest one.
        decode_tokens: Tokens computed one at a time, from the second token of a request on.
        swapped_in_tokens: Tokens whose KV came back from host memory.
        swapped_out_tokens: Tokens whose KV went there with a preempted request.
    """

    duration_s: float = 0.0
    emitted: list[EngineRequest] = field(default_factory=list)
    finished: list[EngineRequest] = field(default_factory=list)
    admitted: list[EngineRequest] = field(default_factory=list)
    preempted: list[EngineRequest] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    swapped_in_tokens: int = 0
    swapped_out_tokens: int = 0
