"""`NonNegativeRidge` for the five coefficients of two phases, written out.

It computes the same, to the last bit, in a fifth of the time: it runs once or twice for every
call that ends, and loops over short lists are what that would be spent on. The matrix is
symmetric, so half of it is kept; what lies between the phases is left out while it is all zero.
"""

from __future__ import annotations

from predictors._numbers import number

_SWEEPS = 4
"""Passes of coordinate descent after each sample; later samples go on from there."""
_LEAST = 1e-3
"""No coefficient falls below this share of its centre."""
_LARGEST = 1e100
"""No sum of what is fitted comes near it; its products are still finite."""

Five = tuple[float, float, float, float, float]
"""One number per coefficient: two of the first phase, three of the second."""

_Six = tuple[float, float, float, float, float, float]

_NOTHING: _Six = (0.0,) * 6


class PhaseRidge:
    """Fits `target ~ sum(coefficient[j] * row[j])` with all five coefficients above 0.

    Rows should be scaled so that a well-predicted target is about 1: then `ridge` counts in
    samples. A row may speak of one phase only (zeros for the other) or of both.

    Example:
        >>> fit = PhaseRidge(memory_samples=100.0, ridge=0.01)
        >>> for x in range(1, 200):
        ...     fit.add((x / 100, 1.0, 0.0, 0.0, 0.0), 2.0 * x / 100 + 1.0, centres=(1.0, 1.0))
        >>> [round(c, 2) for c in fit.coefficients]
        [2.0, 1.0, 1.0, 1.0, 1.0]
    """

    __slots__ = ("_cross", "_first", "_keep", "_moment", "_ridge", "_second", "coefficients")

    def __init__(self, *, memory_samples: float, ridge: float) -> None:
        self._keep = 1.0 - 1.0 / memory_samples
        self._ridge = ridge
        #: the matrix within each phase: 00 01 11, and 22 23 24 33 34 44
        self._first = (0.0, 0.0, 0.0)
        self._second = _NOTHING
        #: between the phases: 02 03 04 12 13 14; `None` while no row has spoken of both
        self._cross: _Six | None = None
        self._moment: Five = (0.0,) * 5
        #: current minimiser; starts at the centre 1
        self.coefficients: Five = (1.0,) * 5

    def add(self, row: Five, target: float, *, centres: tuple[float, float]) -> None:
        """Take one sample.

        Args:
            row: Inputs, at least 0 each.
            target: What was observed.
            centres: Where the coefficients of each phase go without evidence; above 0.
        """
        keep = self._keep
        x0, x1, x2, x3, x4 = row
        g00, g01, g11 = self._first
        g22, g23, g24, g33, g34, g44 = self._second
        m0, m1, m2, m3, m4 = self._moment
        self._first = (g00 * keep + x0 * x0, g01 * keep + x0 * x1, g11 * keep + x1 * x1)
        self._second = (
            g22 * keep + x2 * x2,
            g23 * keep + x2 * x3,
            g24 * keep + x2 * x4,
            g33 * keep + x3 * x3,
            g34 * keep + x3 * x4,
            g44 * keep + x4 * x4,
        )
        self._moment = (
            m0 * keep + x0 * target,
            m1 * keep + x1 * target,
            m2 * keep + x2 * target,
            m3 * keep + x3 * target,
            m4 * keep + x4 * target,
        )
        if self._cross is not None or ((x0 or x1) and (x2 or x3 or x4)):
            g02, g03, g04, g12, g13, g14 = self._cross or _NOTHING
            self._cross = (
                g02 * keep + x0 * x2,
                g03 * keep + x0 * x3,
                g04 * keep + x0 * x4,
                g12 * keep + x1 * x2,
                g13 * keep + x1 * x3,
                g14 * keep + x1 * x4,
            )
        self._descend(*centres)

    def discount(self, share: float) -> None:
        """Trust everything seen so far only `share` as much, in [0, 1]."""
        g00, g01, g11 = self._first
        self._first = (g00 * share, g01 * share, g11 * share)
        self._second = _times(self._second, share)
        if self._cross is not None:
            self._cross = _times(self._cross, share)
        m0, m1, m2, m3, m4 = self._moment
        self._moment = (m0 * share, m1 * share, m2 * share, m3 * share, m4 * share)

    def _descend(self, first: float, second: float) -> None:
        """Coordinate descent; `first` and `second` are the centres of the phases."""
        # The ridge is relative: being off by the centre itself costs `ridge` samples.
        ridge_1 = self._ridge / (first * first)
        ridge_2 = self._ridge / (second * second)
        g00, g01, g11 = self._first
        g22, g23, g24, g33, g34, g44 = self._second
        m0, m1, m2, m3, m4 = self._moment
        m0, m1 = m0 + ridge_1 * first, m1 + ridge_1 * first
        m2, m3, m4 = m2 + ridge_2 * second, m3 + ridge_2 * second, m4 + ridge_2 * second
        h0, h1 = g00 + ridge_1, g11 + ridge_1
        h2, h3, h4 = g22 + ridge_2, g33 + ridge_2, g44 + ridge_2
        least_1, least_2 = _LEAST * first, _LEAST * second
        # Not `max(...)`: a call costs as much as the whole step.
        a, b, c, d, e = self.coefficients
        if self._cross is None:
            for _ in range(_SWEEPS):
                a = (m0 - g01 * b) / h0
                a = a if a >= least_1 else least_1
                b = (m1 - g01 * a) / h1
                b = b if b >= least_1 else least_1
                c = (m2 - g23 * d - g24 * e) / h2
                c = c if c >= least_2 else least_2
                d = (m3 - g23 * c - g34 * e) / h3
                d = d if d >= least_2 else least_2
                e = (m4 - g24 * c - g34 * d) / h4
                e = e if e >= least_2 else least_2
        else:
            g02, g03, g04, g12, g13, g14 = self._cross
            for _ in range(_SWEEPS):
                a = (m0 - g01 * b - g02 * c - g03 * d - g04 * e) / h0
                a = a if a >= least_1 else least_1
                b = (m1 - g01 * a - g12 * c - g13 * d - g14 * e) / h1
                b = b if b >= least_1 else least_1
                c = (m2 - g02 * a - g12 * b - g23 * d - g24 * e) / h2
                c = c if c >= least_2 else least_2
                d = (m3 - g03 * a - g13 * b - g23 * c - g34 * e) / h3
                d = d if d >= least_2 else least_2
                e = (m4 - g04 * a - g14 * b - g24 * c - g34 * d) / h4
                e = e if e >= least_2 else least_2
        self.coefficients = (a, b, c, d, e)

    def dump(self) -> dict[str, object]:
        """State as plain JSON values; the matrix in full."""
        g00, g01, g11 = self._first
        g22, g23, g24, g33, g34, g44 = self._second
        g02, g03, g04, g12, g13, g14 = self._cross or _NOTHING
        return {
            "gram": [
                [g00, g01, g02, g03, g04],
                [g01, g11, g12, g13, g14],
                [g02, g12, g22, g23, g24],
                [g03, g13, g23, g33, g34],
                [g04, g14, g24, g34, g44],
            ],
            "moment": list(self._moment),
            "coefficients": list(self.coefficients),
        }

    def load(self, state: dict[str, object]) -> None:
        """Take over what `dump` gave.

        Raises:
            KeyError, ValueError: The state is of another size or not numbers that `add` can give.
        """
        gram = _matrix(state["gram"], 5)
        moment, coefficients = _matrix([state["moment"], state["coefficients"]], 2)
        if not all(value > 0 for value in coefficients):
            raise ValueError("coefficients: expected numbers above 0")
        if any(gram[j][k] != gram[k][j] for j in range(5) for k in range(j)):
            raise ValueError("gram: expected a symmetric matrix")
        (g00, g01, g02, g03, g04), (_, g11, g12, g13, g14) = gram[:2]
        (_, _, g22, g23, g24), (_, _, _, g33, g34), (_, _, _, _, g44) = gram[2:]
        cross = (g02, g03, g04, g12, g13, g14)
        self._first = (g00, g01, g11)
        self._second = (g22, g23, g24, g33, g34, g44)
        self._cross = cross if any(cross) else None
        self._moment, self.coefficients = moment, coefficients


def _times(values: _Six, share: float) -> _Six:
    u, v, w, x, y, z = values
    return u * share, v * share, w * share, x * share, y * share, z * share


def _matrix(value: object, rows: int) -> list[Five]:
    if not isinstance(value, list) or len(value) != rows:
        raise ValueError(f"expected {rows} rows of 5 numbers")
    result = []
    for row in value:
        if not isinstance(row, list) or len(row) != 5:
            raise ValueError(f"expected {rows} rows of 5 numbers")
        a, b, c, d, e = (number(item, "fit", 0.0, _LARGEST) for item in row)
        result.append((a, b, c, d, e))
    return result
