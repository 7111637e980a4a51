"""Prompt tokens from the bytes of a request body, calibrated by the usage that engines report.

`tokens = ratio * bytes + overhead` per model (tokenisers differ), fitted by least squares with
forgetting on relative errors. The overhead takes up what does not grow with the text: the chat
template's tokens less the JSON around the messages, never below zero.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

from predictors._nonnegative_ridge import NonNegativeRidge
from predictors._numbers import count, number

PRIOR_TOKENS_PER_BYTE = 0.23
"""English text at a little over four bytes a token."""
PRIOR_OVERHEAD_TOKENS = 4.0

_CUT = math.log(3.0)
_FREE_SAMPLES = 5
_MOST_BYTES, _MOST_TOKENS = 2**40, 2**31 - 1
_MOST_LOG_FACTOR = 100.0


class PromptTokens:
    """Estimates prompt lengths before any engine has tokenised them.

    Example:
        >>> tokens = PromptTokens()
        >>> tokens.estimate("m", 4_000)
        924
        >>> for kilobytes in range(1, 60):
        ...     tokens.learn("m", 1_000 * kilobytes, 500 * kilobytes)
        >>> 1_950 < tokens.estimate("m", 4_000) < 2_050
        True
    """

    def __init__(self, *, max_models: int = 1_000, memory_samples: float = 300.0) -> None:
        self._max_models = max_models
        self._memory_samples = memory_samples
        #: least recently taught first
        self._models: OrderedDict[str, _ModelFit] = OrderedDict()

    def estimate(self, model: str, body_bytes: int) -> int:
        """Prompt tokens of a body of so many bytes; at least 1, below 2^31."""
        body_bytes = min(max(body_bytes, 0), _MOST_BYTES)
        fit = self._models.get(model)
        tokens = _predict((1.0, 1.0), body_bytes) if fit is None else fit.estimate(body_bytes)
        return round(min(max(1.0, tokens), _MOST_TOKENS))

    def learn(self, model: str, body_bytes: int, prompt_tokens: int) -> None:
        """An engine counted so many; nothing is learned from counts below 1."""
        if body_bytes < 1 or prompt_tokens < 1:
            return
        fit = self._models.get(model)
        if fit is None:
            fit = self._models[model] = _ModelFit(self._memory_samples)
            if len(self._models) > self._max_models:
                self._models.popitem(last=False)
        self._models.move_to_end(model)
        fit.learn(min(body_bytes, _MOST_BYTES), min(prompt_tokens, _MOST_TOKENS))

    def stats(self) -> dict[str, object]:
        """Per model: samples, tokens per byte, overhead; JSON-ready."""
        return {model: fit.stats() for model, fit in self._models.items()}

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {model: fit.dump() for model, fit in self._models.items()}

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        Raises:
            KeyError, ValueError: The state does not have the shape that `dump` gives; nothing has
                changed then.
        """
        models: OrderedDict[str, _ModelFit] = OrderedDict()
        for model, entry in list(state.items())[-self._max_models :]:
            if not isinstance(entry, dict):
                raise ValueError(f"{model}: expected an object")
            fit = models[model] = _ModelFit(self._memory_samples)
            fit.load(entry)
        self._models = models


class _ModelFit:
    __slots__ = ("_log_factor", "_ridge", "_samples")

    def __init__(self, memory_samples: float) -> None:
        self._ridge = NonNegativeRidge(2, memory_samples=memory_samples, ridge=0.02)
        self._log_factor = 0.0
        self._samples = 0

    def estimate(self, body_bytes: int) -> float:
        return _predict(self._ridge.coefficients, body_bytes)

    def learn(self, body_bytes: int, prompt_tokens: int) -> None:
        predicted = self.estimate(body_bytes)
        log_error = math.log(prompt_tokens / predicted)
        if self._samples >= _FREE_SAMPLES:
            # A picture or a cached conversation tells nothing about text.
            log_error = max(-_CUT, min(_CUT, log_error))
        self._samples += 1
        observed = predicted * math.exp(log_error)
        log_ratio = math.log(observed / _predict((1.0, 1.0), body_bytes))
        self._log_factor += max(1.0 / self._samples, 0.02) * (log_ratio - self._log_factor)
        unit = max(observed, predicted)
        row = (PRIOR_TOKENS_PER_BYTE * body_bytes / unit, PRIOR_OVERHEAD_TOKENS / unit)
        factor = math.exp(self._log_factor)
        self._ridge.add(row, observed / unit, 1.0, centre=(factor, 1.0))

    def stats(self) -> dict[str, object]:
        ratio, overhead = self._ridge.coefficients
        return {
            "samples": self._samples,
            "tokens_per_byte": ratio * PRIOR_TOKENS_PER_BYTE,
            "overhead_tokens": overhead * PRIOR_OVERHEAD_TOKENS,
        }

    def dump(self) -> dict[str, object]:
        return {
            "samples": self._samples,
            "log_factor": self._log_factor,
            "ridge": self._ridge.dump(),
        }

    def load(self, state: dict[str, object]) -> None:
        ridge = state["ridge"]
        if not isinstance(ridge, dict):
            raise ValueError("ridge: expected an object")
        self._ridge.load(ridge)
        self._samples = count(state["samples"], "samples")
        self._log_factor = number(
            state["log_factor"], "log_factor", -_MOST_LOG_FACTOR, _MOST_LOG_FACTOR
        )


def _predict(coefficients: tuple[float, float] | list[float], body_bytes: int) -> float:
    ratio, overhead = coefficients
    return ratio * PRIOR_TOKENS_PER_BYTE * body_bytes + overhead * PRIOR_OVERHEAD_TOKENS
