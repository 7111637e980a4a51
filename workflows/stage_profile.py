"""An application's model, ready to be asked: how long is left, and what would an end tell.

LLMSched, sections IV-B and IV-C. What has ended is evidence; what may follow is a posterior over
binned durations; the critical path through the stages left makes them one number. Where the
states of what is left are few, they are all gone through; else several hundred draws from the
posterior stand for them, always from the same uniforms, so that the same question has the same
answer and questions that differ little have answers that differ little.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from math import log2, prod
from typing import Any, NamedTuple

import numpy as np

from dispatcher.core.workflow_types import StageKind
from workflows.bounds import MAX_S, stored
from workflows.spans import Part, Posterior, Span, longest
from workflows.stage_candidates import Candidates, Step
from workflows.stage_network import MAX_VARIABLES, StageNetwork, in_order
from workflows.stage_rows import Declared, candidate_name, gap_name, shown
from workflows.stage_variable import Running, Values, read_variable

DRAWS = 384
ENUMERATED = 1_024
"""Joint states that are gone through one by one; of more, draws stand for them."""
LIKELY = 0.01
"""States above this posterior probability make a range."""
MAX_ABOUT = 4
"""Stages that the uncertainty reduction of one is taken over."""
LOW, HIGH = 0.05, 0.95

Evidence = tuple[tuple[int, int], ...]


@cache
def uniforms() -> Values:
    """A row for each draw, a column for each variable that a network may have; stratified."""
    chance = random.Random(0)  # noqa: S311 - the same for every question
    columns = []
    for _ in range(MAX_VARIABLES):
        strata = [(k + chance.random()) / DRAWS for k in range(DRAWS)]
        chance.shuffle(strata)
        columns.append(strata)
    return np.array(columns, dtype=np.float64).T


class Question(NamedTuple):
    """Where a workflow stands."""

    evidence: Evidence
    """States of stages that have ended, or never will begin; ascending."""
    gone: tuple[int, ...] = ()
    """Stages that are over, nobody knows how."""
    running: tuple[Running, ...] = ()
    must: tuple[int, ...] = ()
    """Stages that are to come for sure, since the plan says so."""
    plans: tuple[tuple[int, tuple[Step, ...]], ...] = ()
    """What dynamic stages turned out to be made of, as far as it is not over."""


class StageProfile:
    """Answers from what `fitting.fit` gave.

    Args:
        state: That.
        declared: The application's stages as declared, where they are.
        number: No other model has it: what answers are remembered by.

    Raises:
        KeyError, TypeError, ValueError: It is not what `fit` gives.
    """

    def __init__(self, state: Mapping[str, Any], declared: Declared, number: int = 0) -> None:
        self.state = state
        self.number = number
        self.method = str(state["method"])
        self.samples = int(stored(state["samples"], "samples", 1, 2**53))
        self.tpot_s = stored(state["tpot_s"], "tpot_s", 1e-9, MAX_S)
        self.variables = tuple(read_variable(each) for each in state["variables"])
        self.network = StageNetwork(
            [variable.card for variable in self.variables], state["parents"], state["tables"]
        )
        self.index = {variable.name: v for v, variable in enumerate(self.variables)}
        self.candidates = Candidates(state["candidates"], self.tpot_s)
        self._edges = [(str(a), str(b), stored(p, "edge", 0.0, 1.0)) for a, b, p in state["edges"]]
        self.before = self._graph(state["before"], declared)
        self._ancestors: list[frozenset[int]] = [frozenset()] * len(self.variables)
        for v in self._order:
            direct = self.before[v]
            self._ancestors[v] = frozenset(direct).union(*(self._ancestors[b] for b in direct))
        self._heights = [0] * len(self.variables)
        for v in reversed(self._order):
            for b in self.before[v]:
                self._heights[b] = max(self._heights[b], self._heights[v] + 1)

    def __len__(self) -> int:
        return len(self.variables)

    # --- how long is left ---

    def remaining(self, question: Question, tpot_s: float) -> Posterior:
        """The posterior of what is left.

        Args:
            question: Where the workflow stands.
            tpot_s: Time per output token now, mean over the fleet (Eq. 2, l(b_t)): it says which
                of several paths is critical.

        Raises:
            NetworkError: The network is too large for this question.
        """
        left = self._left(question)
        weights, spans = self._spans(left, question, tpot_s)
        nothing = Span.nothing(len(weights))
        ends: dict[int, Span] = {}
        path, work = nothing, Part(0.0, 0.0)
        for variable in (v for v in self._order if v in spans):
            before = [ends[b] for b in self._before_left(variable, spans)]
            ends[variable] = longest(before, nothing).then(spans[variable])
            path = longest([path, ends[variable]], nothing)
            work = work.plus(spans[variable].mean(weights, tpot_s), self.variables[variable].tasks)
        low, high = (path.part(case, tpot_s) for case in _quantiles(path.total, weights))
        return Posterior(path.mean(weights, tpot_s), low, high, work)

    def expected_s(self, variable: int, evidence: Evidence) -> float:
        """Mean duration of one stage, at the pace of the fit."""
        p = self.network.marginal(variable, dict(evidence))
        return float(p @ self.variables[variable].means)

    # --- what an end would tell ---

    def reduction(self, variable: int, evidence: Evidence, unscheduled: frozenset[int]) -> Part:
        """R(X) of a stage in its parts (Eq. 6, and Eq. 4 of a dynamic stage after a planner).

        Args:
            variable: X.
            evidence: States of what has ended.
            unscheduled: Stages that have not begun.
        """
        known = {v: s for v, s in evidence if v != variable}
        about = self._about(variable, known, unscheduled)
        bits, marginals = self.network.told_by(about, variable, known)
        steps, seconds = self._range(about, marginals)
        reach = Part(bits * steps, bits * seconds)
        for dynamic in self._planned_by(variable):
            if dynamic in unscheduled:
                marginal = self.network.marginal(dynamic, known)
                steps, seconds = self._range((dynamic,), (marginal,))
                bits = self.dynamic_bits(self.variables[dynamic].name)
                reach = reach.plus(Part(steps, seconds), bits)
        return reach

    def dynamic_bits(self, name: str) -> float:
        """H of a dynamic stage: of its candidates and of the edges between them (Eq. 4)."""
        nodes = sum(_binary_bits(ran) for ran in self.candidates.shares_of(name))
        edges = sum(
            _binary_bits(p) for a, _, p in self._edges if a.startswith(candidate_name(name, ""))
        )
        return nodes + edges

    def likely_range(self, variable: int, p: Values) -> float:
        """From the least to the most that it may take with these states, at the fit's pace."""
        own = self.variables[variable]
        likely = [s for s in range(own.card) if p[s] > LIKELY]
        if not likely:
            return 0.0
        return float(max(own.highs[s] for s in likely) - min(own.lows[s] for s in likely))

    def scale(self, share: float, tpot_s: float) -> float:
        """What a duration of the fit is worth at another pace."""
        return share * tpot_s / self.tpot_s + (1.0 - share)

    # --- inside ---

    def _about(
        self, variable: int, known: Mapping[int, int], unscheduled: frozenset[int]
    ) -> tuple[int, ...]:
        """Y_1..Y_M: unscheduled stages that X leads to, those of the widest range."""
        found = [v for v in self.network.descendants(variable) if v in unscheduled]
        found = [v for v in found if v not in known and v != variable]
        if len(found) > MAX_ABOUT:
            spread = {
                v: float(self.variables[v].highs[-1] - self.variables[v].lows[0]) for v in found
            }
            found = sorted(found, key=lambda v: (-spread[v], v))[:MAX_ABOUT]
        return tuple(sorted(found))

    def _range(self, about: Sequence[int], marginals: Sequence[Values]) -> tuple[float, float]:
        """Sum of ranges: decoding per second of TPOT, and what does not go with the load."""
        steps = seconds = 0.0
        for variable, p in zip(about, marginals, strict=True):
            width, share = self.likely_range(variable, p), self.variables[variable].share
            steps += width * share / self.tpot_s
            seconds += width * (1.0 - share)
        return steps, seconds

    def _planned_by(self, variable: int) -> list[int]:
        """Dynamic stages that come right after a stage."""
        return [
            v
            for v, own in enumerate(self.variables)
            if own.kind is StageKind.DYNAMIC and variable in self.before[v]
        ]

    def _left(self, question: Question) -> list[int]:
        over = {v for v, _ in question.evidence} | set(question.gone)
        return [v for v in range(len(self.variables)) if v not in over]

    def _spans(
        self, left: Sequence[int], question: Question, tpot_s: float
    ) -> tuple[Values, dict[int, Span]]:
        """Weights of cases, and how long each stage left takes in each case."""
        if not left:
            return np.ones(1), {}
        known = dict(question.evidence)
        at_least = {each.variable: each.state for each in question.running}
        for variable in question.must:
            if self.variables[variable].may_not_run:
                at_least.setdefault(variable, 1)
        few = prod(self.variables[v].card for v in left) <= ENUMERATED
        if few and not question.plans:
            joint = self.network.joint(left, known, at_least)
            weights = joint.ravel()
            states = np.stack(np.unravel_index(np.arange(joint.size), joint.shape), axis=1)
            states, weights = states[weights > 0.0], weights[weights > 0.0]
        else:
            states = self.network.sample(left, known, at_least, uniforms())
            weights = np.full(DRAWS, 1.0 / DRAWS)
        under_way = {each.variable: each for each in question.running}
        spans: dict[int, Span] = {}
        for column, variable in enumerate(left):
            own = self.variables[variable]
            running = under_way.get(variable)
            by_state = own.means if running is None else own.left(running)
            spans[variable] = Span.at_pace(
                by_state[states[:, column]], own.share, tpot_s, self.tpot_s
            )
        for variable, steps in question.plans:
            if variable in spans:
                spans[variable] = self.candidates.span(steps, len(weights), tpot_s)
        return weights, spans

    def _before_left(self, variable: int, spans: Mapping[int, Span]) -> list[int]:
        """Stages left that it waits for, through those that are over."""
        found, seen, ahead = [], set(), list(self.before[variable])
        while ahead:
            one = ahead.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in spans:
                found.append(one)
            else:
                ahead += self.before[one]
        return found

    def _graph(
        self, before: Sequence[Sequence[object]], declared: Declared
    ) -> tuple[tuple[int, ...], ...]:
        """What each stage waits for: as declared, else what it was seen to follow."""
        seen = [tuple(int(stored(b, "before", 0, len(self) - 1)) for b in each) for each in before]
        if len(seen) != len(self):
            raise ValueError("before: expected as many as variables")
        graph = list(seen)
        for number, variable in enumerate(self.variables):
            if variable.name not in declared.before:
                continue
            names = declared.before[variable.name]
            graph[number] = tuple(self.index[n] for n in names if n in self.index)
            gap = self.index.get(gap_name(variable.name))
            if gap is not None:
                graph[gap], graph[number] = graph[number], (gap,)
        try:
            self._order = in_order(graph)
        except ValueError:
            # what was seen is not what was declared
            graph = seen
            self._order = in_order(graph)
        return tuple(graph)

    def ancestors(self, variable: int) -> frozenset[int]:
        """Stages that are over, or never begin, once this one has begun."""
        return self._ancestors[variable]

    def height(self, variable: int) -> int:
        """Stages on the longest path after it."""
        return self._heights[variable]

    def children(self, variable: int) -> int:
        """Stages that wait for it."""
        return sum(variable in before for before in self.before)

    def told(self) -> list[dict[str, object]]:
        """Stages in order of their levels; JSON-ready."""
        return [
            {
                "stage": shown(own.name),
                "kind": own.kind.value,
                "executed": own.ran,
                "states": own.card,
                "mean_s": self.expected_s(v, ()),
                "tells_of": [
                    shown(self.variables[d].name) for d in sorted(self.network.descendants(v))
                ],
            }
            for v, own in enumerate(self.variables)
        ]


def check_model(state: Mapping[str, Any]) -> None:
    """Whether what `fitting.fit` gave can be asked the largest questions.

    Raises:
        NetworkError: It cannot.
    """
    profile = StageProfile(state, Declared())
    everything = frozenset(range(len(profile.variables)))
    profile.remaining(Question(()), profile.tpot_s)
    for variable in everything:
        profile.reduction(variable, (), everything - {variable})
        profile.network.marginal(variable, {max(everything): 0} if variable else {})


def _binary_bits(p: float) -> float:
    """H of what is so with probability p."""
    if not 0.0 < p < 1.0:
        return 0.0
    return -(p * log2(p) + (1.0 - p) * log2(1.0 - p))


def _quantiles(values: Values, weights: Values) -> tuple[int, int]:
    """Cases at which the 5 % and 95 % quantiles lie."""
    order = np.argsort(values, kind="stable")
    heaped = np.cumsum(weights[order])
    found = np.searchsorted(heaped, np.array([LOW, HIGH]) * heaped[-1] - 1e-12)
    low, high = order[np.minimum(found, len(values) - 1)]
    return int(low), int(high)
