"""The times of an engine, fitted to the calls of a trace that it served.

What `headway calibrate` measures is an engine under loads of its own making. Where a gateway has
played a trace on it, the calls themselves tell how long iterations take under such work, with all
that the machine did meanwhile: an engine model is given the same calls at the same moments, and
its times are chosen so that calls take as long there as they took.

Levenberg-Marquardt with differences for derivatives (Marquardt, "An algorithm for least-squares
estimation of nonlinear parameters", 1963), nothing below zero. Squared errors count relative to the
time predicted, not to its square, and in the end all times are brought to add up to what was taken:
the engine of the fit is as fast as the real one over the whole of the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from dispatcher.calibration.fit import TooFewSamplesError, non_negative_least_squares
from dispatcher.core.types import AttemptId
from dispatcher.engine_model import EngineConfig, Measured
from dispatcher.simulator.engines import Attempt, EnginePlayer
from dispatcher.simulator.kernel import Kernel
from dispatcher.simulator.prefixes import block_hashes
from dispatcher.traces import TraceCall

LEAST_CALLS = 30
"""Without which nothing is fitted."""

_ROUNDS = 12
_STEP, _LEAST_STEP = 0.05, 0.02
"""By which share of itself, or of its start, a coefficient is changed to see what that does."""
_ENOUGH = 1e-3
"""A round that saves less of the error, as a share, is the last one."""
_DAMPINGS = (1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Tried one after another until the error falls."""
_CAREFUL = 0.7
"""Of a step towards times that add up; a whole one goes too far where calls meet."""
_SEATS_AT_LEAST = 64
"""Calls run from the moment they were sent: times that are still too long make no queue."""


@dataclass(frozen=True, slots=True)
class ServedCall:
    """One call that an engine served.

    Attributes:
        call: As the trace has it; its output length is that which was served.
        sent_s: When it was sent to the engine; any clock, the same for all calls.
        taken_s: Until its answer was whole, seconds.
    """

    call: TraceCall
    sent_s: float
    taken_s: float


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """What was fitted.

    Attributes:
        timing: Of the engine's iterations.
        request_s: What a call takes outside of the engine's iterations.
        calls: How many it was fitted to.
        bias: Time predicted of all calls over the time they took, less one.
        relative_rms: Root of the mean squared error of a call's time, relative to the mean time.
    """

    timing: Measured
    request_s: float
    calls: int
    bias: float
    relative_rms: float


def fit_served(plays: Sequence[Sequence[ServedCall]], config: EngineConfig) -> ServedTimes:
    """Fit times to the calls that one engine served.

    Args:
        plays: Of each trace that was played all calls that the engine served, from when it was
            idle and its prefix cache held nothing of theirs.
        config: What it was launched with; its `timing` is not looked at.

    Raises:
        TooFewSamplesError: Fewer than 30 calls.
    """
    served = _Served(plays, config)
    now, predicted = served.in_proportion(served.start())
    error = served.error(predicted)
    for _ in range(_ROUNDS):
        slopes = served.slopes(now, predicted)
        for damping in _DAMPINGS:
            tried = served.solved(now, predicted, slopes, damping)
            outcome = served.predicted(tried)
            tried_error = served.error(outcome)
            if tried_error < error:
                break
        else:
            break
        saved = 1.0 - tried_error / error
        now, predicted, error = tried, outcome, tried_error
        if saved < _ENOUGH:
            break
    return served.result(*served.in_proportion(now))


class _Served:
    """The calls, and what an engine model makes of them.

    Coefficients are those of `Measured`, in its order, and `request_s` behind them.
    """

    def __init__(self, plays: Sequence[Sequence[ServedCall]], config: EngineConfig) -> None:
        self._plays = [sorted(play, key=lambda one: one.sent_s) for play in plays if play]
        self._taken = [one.taken_s for play in self._plays for one in play]
        if len(self._taken) < LEAST_CALLS:
            raise TooFewSamplesError(
                f"{len(self._taken)} calls were served; a fit needs {LEAST_CALLS}"
            )
        self._config = replace(config, max_num_seqs=max(config.max_num_seqs, _SEATS_AT_LEAST))
        self._least = [_LEAST_STEP * value for value in self.start()]

    def start(self) -> list[float]:
        """Something to begin from: all of it shares in the time that a token took, all told."""
        tokens = sum(one.call.output_tokens for play in self._plays for one in play)
        token_s = sum(self._taken) / tokens
        timing = Measured(
            base_s=0.5 * token_s,
            per_running_s=0.05 * token_s,
            per_kv_token_s=1e-5 * token_s,
            per_prompt_token_s=0.01 * token_s,
            per_prompt_s=0.5 * token_s,
            per_score_pair_s=1e-6 * token_s,
        )
        return [*astuple(timing), 0.5 * token_s]

    def predicted(self, coefficients: Sequence[float]) -> list[float]:
        """How long each call takes on an engine of these times, sent when it was sent."""
        config = replace(self._config, timing=_timing(coefficients))
        request_s = coefficients[-1]
        return [taken_s for play in self._plays for taken_s in _played(play, config, request_s)]

    def in_proportion(self, coefficients: Sequence[float]) -> tuple[list[float], list[float]]:
        """All coefficients times what makes the times of all calls add up, and those times.

        Longer times also make calls meet more others, so that times grow faster than coefficients.
        """
        now, whole_s = list(coefficients), sum(self._taken)
        predicted = self.predicted(now)
        for _ in range(_ROUNDS):
            share = whole_s / sum(predicted)
            if abs(share - 1.0) < _ENOUGH:
                break
            now = [value * share**_CAREFUL for value in now]
            predicted = self.predicted(now)
        return now, predicted

    def error(self, predicted: Sequence[float]) -> float:
        return sum((p - t) ** 2 / p for p, t in zip(predicted, self._taken, strict=True))

    def slopes(self, now: Sequence[float], predicted: Sequence[float]) -> list[list[float]]:
        """By how much each coefficient changes the time of each call."""
        slopes = []
        for index, value in enumerate(now):
            step = max(_STEP * value, self._least[index])
            after = self.predicted([*now[:index], value + step, *now[index + 1 :]])
            slopes.append([(a - b) / step for a, b in zip(after, predicted, strict=True)])
        return slopes

    def solved(
        self,
        now: Sequence[float],
        predicted: Sequence[float],
        slopes: Sequence[Sequence[float]],
        damping: float,
    ) -> list[float]:
        """The coefficients that would be best if times were linear in them around `now`.

        Damping holds each of them where it is, the more the more it changes.
        """
        rows = list(zip(*slopes, strict=True))
        targets = [
            t - p + sum(x * c for x, c in zip(row, now, strict=True))
            for row, p, t in zip(rows, predicted, self._taken, strict=True)
        ]
        weights = [1.0 / p for p in predicted]
        for index, own in enumerate(slopes):
            held = [0.0] * len(slopes)
            held[index] = 1.0
            rows.append(tuple(held))
            targets.append(now[index])
            weights.append(damping * sum(w * x * x for w, x in zip(weights, own, strict=False)))
        found = list(non_negative_least_squares(rows, targets, weights))
        if not sum(found[:3]):
            found[0] = self._least[0]  # an iteration takes time
        return found

    def result(self, now: Sequence[float], predicted: Sequence[float]) -> ServedTimes:
        taken = self._taken
        squares = sum((p - t) ** 2 for p, t in zip(predicted, taken, strict=True))
        return ServedTimes(
            timing=_timing(now),
            request_s=now[-1],
            calls=len(taken),
            bias=sum(predicted) / sum(taken) - 1.0,
            relative_rms=math.sqrt(squares * len(taken)) / sum(taken),
        )


def _timing(coefficients: Sequence[float]) -> Measured:
    *timing, _request_s = coefficients
    return Measured(*timing)


def _played(calls: Sequence[ServedCall], config: EngineConfig, request_s: float) -> Iterator[float]:
    kernel = Kernel()
    ends_s: dict[int, float] = {}

    def over(attempt: Attempt) -> None:
        ends_s[attempt.attempt_id] = kernel.now_s

    player = EnginePlayer(config, kernel, on_first_token=_ignore, on_end=over)
    first_s = calls[0].sent_s
    for number, one in enumerate(calls):
        arrival_s = one.sent_s - first_s + request_s
        attempt = Attempt(
            AttemptId(number),
            prompt_tokens=one.call.prompt_tokens,
            output_tokens=one.call.output_tokens,
            arrival_s=arrival_s,
            priority=0,
            block_hashes=block_hashes(one.call, config.block_size)
            if config.enable_prefix_caching
            else (),
            streaming=False,
        )
        kernel.at(arrival_s, player.add, attempt)
    kernel.run()
    for number, one in enumerate(calls):
        yield ends_s[number] - (one.sent_s - first_s)


def _ignore(_attempt: Attempt) -> None:
    """Nobody waits for it."""
