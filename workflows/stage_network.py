"""A Bayesian network over binned stage durations: exact inference on tables.

Small networks only: some dozens of variables of at most seven states, few parents each. Inference
is variable elimination, with variables that say nothing of the question left out (Koller and
Friedman, Probabilistic Graphical Models, chapter 9; sampling from the elimination's own factors,
section 12.3). Who learned the tables does not matter here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_VARIABLES = 64
MAX_STATES = 16
MAX_CELLS = 200_000
"""Of one table, learned or met on the way: beyond it the network is refused."""

Array = NDArray[np.float64]
_SUM = 1e-6


class NetworkError(ValueError):
    """Tables that are no network, or one too large to ask."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A table over variables, ascending; axis k is variable `variables[k]`."""

    variables: tuple[int, ...]
    table: Array

    def times(self, other: Factor) -> Factor:
        """Their product, over the variables of both."""
        if self.variables == other.variables:
            return Factor(self.variables, self.table * other.table)
        union = tuple(sorted({*self.variables, *other.variables}))
        return Factor(union, _spread(self, union) * _spread(other, union))

    def without(self, variable: int) -> Factor:
        """A variable summed out."""
        axis = self.variables.index(variable)
        rest = self.variables[:axis] + self.variables[axis + 1 :]
        return Factor(rest, self.table.sum(axis=axis))


def _spread(factor: Factor, union: tuple[int, ...]) -> Array:
    sizes = dict(zip(factor.variables, factor.table.shape, strict=True))
    return factor.table.reshape([sizes.get(variable, 1) for variable in union])


def in_order(before: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Numbers of a graph, each after those before it. Raises `ValueError` for a circle."""
    order: list[int] = []
    left = set(range(len(before)))
    while left:
        ready = [v for v in sorted(left) if not left.intersection(before[v])]
        if not ready:
            raise ValueError("a graph that goes round in a circle")
        order += ready
        left.difference_update(ready)
    return tuple(order)


def _reached(starts: Iterable[int], leads_to: Sequence[Sequence[int]]) -> set[int]:
    """The starts, and all that a directed path leads to from them."""
    found: set[int] = set()
    left = list(starts)
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += leads_to[one]
    return found


def entropy_bits(table: Array) -> float:
    """Of a distribution, whatever its shape (LLMSched, Eq. 3)."""
    p = table[table > 0.0]
    return max(0.0, float(-(p * np.log2(p)).sum()))


class StageNetwork:
    """P(variables), one table each.

    Args:
        cards: States of each variable.
        parents: Of each variable: others, in the order of its table's axes.
        tables: P(variable | parents), one number for each state of the variable for each state of
            the parents, the variable's own running fastest.

    Raises:
        NetworkError: Not as said, a circle, or too large.

    Example:
        >>> rain = StageNetwork([2, 2], [[], [0]], [[0.8, 0.2], [0.9, 0.1, 0.25, 0.75]])
        >>> [round(float(p), 3) for p in rain.marginal(0, {1: 1})]
        [0.348, 0.652]
    """

    def __init__(
        self,
        cards: Sequence[int],
        parents: Sequence[Sequence[int]],
        tables: Sequence[Sequence[float]],
    ) -> None:
        count = len(cards)
        if not count == len(parents) == len(tables) or count > MAX_VARIABLES:
            raise NetworkError(f"expected parents and a table for each of {count} variables")
        if any(not 1 <= card <= MAX_STATES for card in cards):
            raise NetworkError(f"expected 1 to {MAX_STATES} states a variable")
        self.cards = tuple(cards)
        self.parents = tuple(tuple(each) for each in parents)
        self._factors = [self._factor(v, tables[v]) for v in range(count)]
        self.children: tuple[tuple[int, ...], ...] = tuple(
            tuple(w for w in range(count) if v in self.parents[w]) for v in range(count)
        )
        try:
            self.order = in_order(self.parents)
        except ValueError:
            raise NetworkError("variables depend on each other in a circle") from None

    def __len__(self) -> int:
        return len(self.cards)

    def descendants(self, variable: int) -> frozenset[int]:
        """Variables that a directed path leads to: what the paper calls correlated (Eq. 1)."""
        return frozenset(_reached(self.children[variable], self.children))

    # --- questions ---

    def joint(
        self,
        variables: Iterable[int],
        evidence: Mapping[int, int],
        at_least: Mapping[int, int] | None = None,
    ) -> Array:
        """P(variables | evidence), axes in the order of the variables; sums to 1.

        Args:
            variables: Asked, each once; none of them in the evidence.
            evidence: Known states.
            at_least: Variables known to be in this state or a later one.

        Raises:
            NetworkError: The table would be too large.
        """
        asked = tuple(variables)
        if prod(self.cards[v] for v in asked) > MAX_CELLS:
            raise NetworkError("a question with too many answers")
        factors = self._relevant(asked, evidence, at_least or {})
        keep = frozenset(asked)
        for variable in self._elimination(factors, keep):
            factors, _ = _eliminate(factors, variable)
        result = _product(factors)
        sizes = {v: self.cards[v] for v in asked}
        # what nothing speaks of (barren, or cut off by evidence) is in no factor
        ascending = tuple(sorted(asked))
        table = np.broadcast_to(_spread(result, ascending), [sizes[v] for v in ascending])
        table = np.transpose(table, [ascending.index(v) for v in asked])
        return _normal(table)

    def marginal(
        self,
        variable: int,
        evidence: Mapping[int, int],
        at_least: Mapping[int, int] | None = None,
    ) -> Array:
        """P(variable | evidence)."""
        return self.joint((variable,), evidence, at_least)

    def information_bits(
        self, about: Sequence[int], variable: int, evidence: Mapping[int, int]
    ) -> float:
        """I(about; variable | evidence) = H(about | E) - H(about | variable, E), at least 0.

        The paper's Eq. 5 has a leading minus that would make it negative.
        """
        return self.told_by(about, variable, evidence)[0]

    def told_by(
        self, about: Sequence[int], variable: int, evidence: Mapping[int, int]
    ) -> tuple[float, list[Array]]:
        """The same, and P(each of `about` | evidence)."""
        if not about:
            return 0.0, []
        joint = self.joint((*about, variable), evidence)
        axes = range(len(about))
        of_variable = entropy_bits(joint.sum(axis=tuple(axes)))
        table = joint.sum(axis=-1)
        bits = max(0.0, entropy_bits(table) + of_variable - entropy_bits(joint))
        return bits, [table.sum(axis=tuple(a for a in axes if a != axis)) for axis in axes]

    def sample(
        self,
        variables: Sequence[int],
        evidence: Mapping[int, int],
        at_least: Mapping[int, int],
        uniforms: Array,
    ) -> NDArray[np.intp]:
        """Draws from P(variables | evidence), exactly.

        Args:
            variables: Asked; none of them in the evidence.
            evidence: Known states.
            at_least: Variables known to be in this state or a later one.
            uniforms: Numbers in [0, 1), a row for each draw, a column for each variable of the
                network.

        Returns:
            States, a row for each draw, a column for each variable asked.
        """
        states: dict[int, NDArray[np.intp]] = {}
        if self._looks_ahead(evidence, at_least):
            wanted = self._and_before(variables)
            for variable in self.order:
                if variable in wanted and variable not in evidence:
                    factor = _at(self._factors[variable], evidence)
                    if variable in at_least:
                        factor = factor.times(self._mask(variable, at_least[variable]))
                    states[variable] = _draw(factor, variable, states, uniforms[:, variable])
            return np.stack([states[v] for v in variables], axis=1)
        factors = self._relevant(tuple(variables), evidence, at_least)
        eliminated: list[tuple[int, Factor]] = []
        for variable in self._elimination(factors, frozenset()):
            factors, factor = _eliminate(factors, variable)
            eliminated.append((variable, factor))
        for variable, factor in reversed(eliminated):
            states[variable] = _draw(factor, variable, states, uniforms[:, variable])
        return np.stack([states[v] for v in variables], axis=1)

    # --- inside ---

    def _factor(self, variable: int, numbers: Sequence[float]) -> Factor:
        parents, count = self.parents[variable], len(self.cards)
        if len({*parents, variable}) != len(parents) + 1:
            raise NetworkError(f"variable {variable}: a parent twice, or its own")
        if any(not 0 <= parent < count for parent in parents):
            raise NetworkError(f"variable {variable}: a parent that is none")
        shape = [self.cards[p] for p in parents] + [self.cards[variable]]
        if prod(shape) > MAX_CELLS or len(numbers) != prod(shape):
            raise NetworkError(f"variable {variable}: expected {prod(shape)} probabilities")
        table = np.asarray(numbers, dtype=np.float64).reshape(shape)
        if not np.isfinite(table).all() or (table < 0.0).any():
            raise NetworkError(f"variable {variable}: expected probabilities")
        sums = table.sum(axis=-1, keepdims=True)
        if (abs(sums - 1.0) > _SUM).any():
            raise NetworkError(f"variable {variable}: probabilities that do not sum to 1")
        names = (*parents, variable)
        axes = sorted(range(len(names)), key=names.__getitem__)
        return Factor(tuple(names[a] for a in axes), np.transpose(table / sums, axes).copy())

    def _relevant(
        self, asked: Sequence[int], evidence: Mapping[int, int], at_least: Mapping[int, int]
    ) -> list[Factor]:
        """Tables of what is asked or known and all before it, at the evidence; others sum to 1."""
        wanted = self._and_before([*asked, *evidence, *at_least])
        factors = []
        for variable in sorted(wanted):
            if variable in at_least and variable not in evidence:
                factors.append(self._mask(variable, at_least[variable]))
            scope = self._factors[variable].variables
            if any(v not in evidence for v in scope):
                factors.append(_at(self._factors[variable], evidence))
        return _connected(factors, asked)

    def _and_before(self, variables: Iterable[int]) -> set[int]:
        """Variables, and all that they depend on."""
        return _reached(variables, self.parents)

    def _looks_ahead(self, evidence: Mapping[int, int], at_least: Mapping[int, int]) -> bool:
        """Whether all that is known comes before all that is not: then draws go forward."""
        return all(p in evidence for v in (*evidence, *at_least) for p in self.parents[v])

    def _mask(self, variable: int, state: int) -> Factor:
        mask = np.zeros(self.cards[variable])
        mask[min(state, self.cards[variable] - 1) :] = 1.0
        return Factor((variable,), mask)

    def _elimination(self, factors: Sequence[Factor], keep: frozenset[int]) -> list[int]:
        """Variables to sum out, the one that makes the smallest table next. Greedy."""
        beside: dict[int, set[int]] = {}
        for factor in factors:
            for variable in factor.variables:
                beside.setdefault(variable, set()).update(factor.variables)
        cells = {v: prod(self.cards[w] for w in near) for v, near in beside.items()}
        left = beside.keys() - keep
        order = []
        while left:
            best = min(left, key=lambda v: (cells[v], v))
            if cells[best] > MAX_CELLS:
                raise NetworkError("a question that needs too large a table")
            near = beside.pop(best) - {best}
            left.remove(best)
            order.append(best)
            for variable in near:
                joined = beside[variable]
                joined |= near
                joined.discard(best)
                cells[variable] = prod(self.cards[w] for w in joined)
        return order


def _at(factor: Factor, evidence: Mapping[int, int]) -> Factor:
    where: list[Any] = [evidence.get(variable, slice(None)) for variable in factor.variables]
    rest = tuple(variable for variable in factor.variables if variable not in evidence)
    return Factor(rest, factor.table[tuple(where)])


def _connected(factors: Sequence[Factor], asked: Sequence[int]) -> list[Factor]:
    """Those that share variables with what is asked, however indirectly: others are constants."""
    reached, left, found = set(asked), list(factors), []
    grown = True
    while grown and left:
        grown, rest = False, []
        for factor in left:
            if reached.isdisjoint(factor.variables):
                rest.append(factor)
            else:
                found.append(factor)
                grown = grown or not reached.issuperset(factor.variables)
                reached.update(factor.variables)
        left = rest
    return found


def _product(factors: Sequence[Factor]) -> Factor:
    result = Factor((), np.ones(()))
    for factor in factors:
        result = result.times(factor)
    return result


def _eliminate(factors: Sequence[Factor], variable: int) -> tuple[list[Factor], Factor]:
    """What is left once a variable is summed out, and the product that it was summed out of."""
    rest = [f for f in factors if variable not in f.variables]
    product = _product([f for f in factors if variable in f.variables])
    return [*rest, product.without(variable)], product


def _normal(table: Array) -> Array:
    total = float(table.sum())
    if total <= 0.0:
        # evidence that cannot be: nothing is known, so everything is as likely
        return np.full(table.shape, 1.0 / table.size)
    return table / total


def _draw(
    factor: Factor, variable: int, states: Mapping[int, NDArray[np.intp]], uniforms: Array
) -> NDArray[np.intp]:
    """States of a variable, given those drawn of the others in its factor."""
    axis = factor.variables.index(variable)
    card = factor.table.shape[axis]
    rows = np.moveaxis(factor.table, axis, -1).reshape(-1, card)
    row: NDArray[np.intp] | int = 0
    for other, size in zip(factor.variables, factor.table.shape, strict=True):
        if other != variable:
            row = row * size + states[other]
    heaped = rows.cumsum(axis=-1)
    totals = heaped[:, -1:]
    # where nothing is possible, the first state stands
    heaped = np.where(totals > 0.0, heaped / np.where(totals > 0.0, totals, 1.0), 1.0)
    # all rows end to end, each one further up: one search finds row and state at once
    heaped += np.arange(len(rows))[:, np.newaxis]
    found = np.searchsorted(heaped.ravel(), uniforms + row, side="right") - row * card
    return np.asarray(np.clip(found, 0, card - 1), dtype=np.intp)
