"""What serving a call costs in memory and time: the scheduling values of AugServe.

AugServe, section 4.3, Eqs. 9-25. Memory that is held, times how long: token x seconds, the less the
sooner a call should go. The paper's factor M (KV bytes per token) cancels within one model
(`policies.context_waste`). With T the time of an iteration, N the most prompt tokens that it
computes, S the most that it swaps, L tokens on top of R that are resident already:

    ramp(L | N, R) = T (n R + N n (n - 1) / 2 + L),   n = ceil(L / N)
    prefill        ramp(L_in | N, 0)                                                    (Eqs. 9, 17)
    swap           ramp(L | S, 0)                                                      (Eqs. 12, 16)
    pro-api        ramp(L_ret | N, L_total)                                                (Eq. 18)
    decode         T (L_in L_out + L_out^2 / 2)                                        (Eqs. 10, 19)
    api            (L_in + L_out) T_api                                                    (Eq. 11)

Stage I, for a call that no session of this workflow came before:
    V1 = prefill + decode + {api | 0 | swap}     to preserve, discard, swap          (Eqs. 13-15)
Stage II, for one that returns with L_ret tokens to a session of L_total, as it was handled:
    V2 = {0 | recompute | swap} + pro-api + decode                                   (Eqs. 20-22)
    V_final = V2 + {api | 0 | swap} of L_total + L_ret + L_out, as it will be        (Eqs. 23-25)

Settled:

1. The paper prints T L^2 / (2 N) for the ramps: what a prompt of very many iterations costs. One
   that fits into one iteration holds L tokens for T, not L^2 / (2 N): of 100 tokens at N = 2048 the
   printed form sees 2.4 T, the exact one 100 T; of 8,192 it sees 16.4k T, the exact one 20.5k T.
   `form="printed"` computes what is printed.
2. To discard costs nothing in V1 and V_final, though it makes the session compute its context
   anew: `recompute` adds that.
3. Of a context that is in the cache in part, what is missing is computed: ramp(missing | N, found),
   which is Eq. 17 where nothing is found and 0 where all is.
4. Not every answer asks for a tool: what the pause costs is multiplied by how often it comes.
"""

from __future__ import annotations

from math import ceil
from typing import Literal, NamedTuple

from policies.context_waste import Handling

CostForm = Literal["exact", "printed"]


class Pace(NamedTuple):
    """What an instance gets done; see the module for the letters."""

    iteration_s: float
    """T, seconds; above 0."""
    batch_tokens: float
    """N; at least 1."""
    swap_tokens: float
    """S; at least 1."""


class Pause(NamedTuple):
    """What is expected after a call's answer."""

    gap_s: float
    """T_api, seconds; at least 0."""
    planned: Handling
    """What is to become of the context then."""
    asks: float = 1.0
    """How likely it is that the answer asks for a tool at all, 0 to 1."""


class Return(NamedTuple):
    """The session that a call goes on from."""

    total_tokens: float
    """L_total, its context before the tool ran; at least 0."""
    returned_tokens: float
    """L_ret, what has been added since; at least 0."""
    handled: Handling
    """What has become of the context meanwhile."""
    found_tokens: float = 0.0
    """How much of `total_tokens` is still there, where it was not swapped out."""


def ramp(tokens: float, per_iteration: float, iteration_s: float, resident: float = 0.0) -> float:
    """Token x seconds of bringing tokens in, so many per iteration, beside what is resident.

    Example:
        >>> ramp(100.0, 2048.0, 1.0), ramp(8192.0, 2048.0, 1.0)
        (100.0, 20480.0)
    """
    iterations = ceil(tokens / per_iteration)
    earlier = per_iteration * iterations * (iterations - 1) / 2.0
    return iteration_s * (iterations * resident + earlier + tokens)


def printed_ramp(
    tokens: float, per_iteration: float, iteration_s: float, resident: float = 0.0
) -> float:
    """The same as Eqs. 9, 12, 16, 17 and 18 print it.

    Example:
        >>> round(printed_ramp(100.0, 2048.0, 1.0), 1), printed_ramp(8192.0, 2048.0, 1.0)
        (2.4, 16384.0)
    """
    return iteration_s / per_iteration * (resident * tokens + tokens * tokens / 2.0)


class SchedulingValue:
    """V1 and V_final, token x seconds; O(1).

    Args:
        form: Of the ramps.
        recompute: Count what a context that is to be discarded costs to compute again.

    Example:
        >>> pace = Pace(iteration_s=0.02, batch_tokens=2048.0, swap_tokens=1024.0)
        >>> value = SchedulingValue()
        >>> round(value.stage_one(pace, 100.0, 50.0, Pause(2.0, Handling.PRESERVE)))
        427
        >>> back = Return(150.0, 60.0, Handling.PRESERVE, found_tokens=150.0)
        >>> round(value.stage_two(pace, back, 50.0, Pause(2.0, Handling.DISCARD)))
        239
    """

    def __init__(self, *, form: CostForm = "exact", recompute: bool = False) -> None:
        self.form = form
        self.recompute = recompute
        self._ramp = ramp if form == "exact" else printed_ramp

    def stage_one(
        self, pace: Pace, prompt_tokens: float, output_tokens: float, pause: Pause
    ) -> float:
        """V1 of a call with that prompt (L_in) and, as predicted, that answer (L_out)."""
        return (
            self._ramp(prompt_tokens, pace.batch_tokens, pace.iteration_s)
            + decode(pace, prompt_tokens, output_tokens)
            + self._pause(pace, prompt_tokens + output_tokens, pause)
        )

    def stage_two(self, pace: Pace, back: Return, output_tokens: float, pause: Pause) -> float:
        """V_final of a call that goes on from a session, with that answer (L_out) predicted."""
        total, returned = back.total_tokens, back.returned_tokens
        if back.handled is Handling.SWAP:
            restored = self._ramp(total, pace.swap_tokens, pace.iteration_s)
        else:
            found = min(back.found_tokens, total)
            restored = self._ramp(total - found, pace.batch_tokens, pace.iteration_s, found)
        return (
            restored
            + self._ramp(returned, pace.batch_tokens, pace.iteration_s, total)
            + decode(pace, total + returned, output_tokens)
            + self._pause(pace, total + returned + output_tokens, pause)
        )

    def _pause(self, pace: Pace, context: float, pause: Pause) -> float:
        """What the context costs once a tool is asked for: Eqs. 11, 12, 23, 24."""
        cost = 0.0
        if pause.planned is Handling.PRESERVE:
            cost = context * pause.gap_s
        elif pause.planned is Handling.SWAP:
            cost = self._ramp(context, pace.swap_tokens, pace.iteration_s)
        elif self.recompute:
            cost = self._ramp(context, pace.batch_tokens, pace.iteration_s)
        return pause.asks * cost


def decode(pace: Pace, context: float, output_tokens: float) -> float:
    """Eqs. 10 and 19: the context, and half of the answer on average, for the answer's time."""
    return pace.iteration_s * output_tokens * (context + output_tokens / 2.0)
