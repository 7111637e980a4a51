"""Least squares with forgetting, for a handful of coefficients that must stay above zero.

The recursive form keeps the information matrix (decayed sums of products) instead of its inverse,
so there is no covariance to wind up when the input stops varying, and nothing is ever inverted:
the minimiser is tracked by coordinate descent from where it stood, which stays feasible after
every single step. A ridge pulls each coefficient to a centre, so one that the data does not
determine (collinear or constant inputs) stays near it.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictors._numbers import number

_SWEEPS = 4
"""Passes of coordinate descent after each sample; later samples go on from there."""
_LARGEST = 1e100
"""No sum of what is fitted comes near it; its products are still finite."""


class NonNegativeRidge:
    """Fits `target ~ sum(coefficient[j] * row[j])` with every coefficient above 0.

    Rows should be scaled so that a well-predicted target is about 1: then `ridge` counts in
    samples. One update is O(size^2).

    Example:
        >>> fit = NonNegativeRidge(2, memory_samples=100.0, ridge=0.01)
        >>> for x in range(1, 200):
        ...     fit.add((float(x) / 100, 1.0), 2.0 * x / 100 + 1.0, 1.0, centre=(1.0, 1.0))
        >>> [round(c, 2) for c in fit.coefficients]
        [2.0, 1.0]
    """

    def __init__(self, size: int, *, memory_samples: float, ridge: float) -> None:
        self._size = size
        self._keep = 1.0 - 1.0 / memory_samples
        self._ridge = ridge
        self._gram = [[0.0] * size for _ in range(size)]
        self._moment = [0.0] * size
        #: current minimiser; starts at the centre 1
        self.coefficients = [1.0] * size

    def add(
        self, row: Sequence[float], target: float, weight: float, *, centre: Sequence[float]
    ) -> None:
        """Take one sample.

        Args:
            row: Inputs, at least 0 each.
            target: What was observed.
            weight: Trust in the sample, at least 0; 1 is ordinary.
            centre: Where each coefficient goes without evidence; above 0.
        """
        keep = self._keep
        for j, x_j in enumerate(row):
            gram = self._gram[j]
            for k, x_k in enumerate(row):
                gram[k] = gram[k] * keep + weight * x_j * x_k
            self._moment[j] = self._moment[j] * keep + weight * x_j * target
        self._descend(centre)

    def discount(self, share: float) -> None:
        """Trust everything seen so far only `share` as much, in [0, 1]."""
        for j in range(self._size):
            self._gram[j] = [value * share for value in self._gram[j]]
            self._moment[j] *= share

    def _descend(self, centre: Sequence[float]) -> None:
        coefficients = self.coefficients
        for _ in range(_SWEEPS):
            for j, middle in enumerate(centre):
                gram = self._gram[j]
                # The ridge is relative: being off by the centre itself costs `ridge` samples.
                ridge = self._ridge / (middle * middle)
                pull = self._moment[j] + ridge * middle
                for k, coefficient in enumerate(coefficients):
                    if k != j:
                        pull -= gram[k] * coefficient
                coefficients[j] = max(pull / (gram[j] + ridge), 1e-3 * middle)

    def dump(self) -> dict[str, object]:
        """State as plain JSON values."""
        return {
            "gram": [list(row) for row in self._gram],
            "moment": list(self._moment),
            "coefficients": list(self.coefficients),
        }

    def load(self, state: dict[str, object]) -> None:
        """Take over what `dump` gave.

        Raises:
            KeyError, ValueError: The state is of another size or not numbers that `add` can give.
        """
        gram = _matrix(state["gram"], self._size)
        moment, coefficients = _matrix([state["moment"], state["coefficients"]], self._size, rows=2)
        if not all(value > 0 for value in coefficients):
            raise ValueError("coefficients: expected numbers above 0")
        self._gram, self._moment, self.coefficients = gram, moment, coefficients


def _matrix(value: object, columns: int, rows: int | None = None) -> list[list[float]]:
    rows = columns if rows is None else rows
    if not isinstance(value, list) or len(value) != rows:
        raise ValueError(f"expected {rows} rows of {columns} numbers")
    result = []
    for row in value:
        if not isinstance(row, list) or len(row) != columns:
            raise ValueError(f"expected {rows} rows of {columns} numbers")
        result.append([number(item, "fit", 0.0, _LARGEST) for item in row])
    return result
