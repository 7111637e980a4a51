"""Bayesian networks learned with pyAgrum: which stages tell of which, and by how much.

Source: LLMSched, section IV-B, which learns its networks with the same library. The structure is
found by greedy hill climbing under the BIC score, at most two parents a variable (a table stays
small, and a few hundred workflows fill it), arcs only from a stage to one that does not come
before it: what has ended is then evidence for what follows, as the paper's Eq. 1 wants it. The
score counts rows alone: a prior would drown what a hundred of them say. Tables do have one, the
variables as they are on their own.

pyAgrum is optional and is imported only where a network is learned: in a worker process of the
gateway, or in a simulation. Nothing that decides imports it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_PARENTS = 2
PSEUDO_COUNT = 1.0
"""Of each state of a variable on its own."""
PRIOR_WORKFLOWS = 10.0
"""What variables are on their own counts as much as so many workflows, all parents' states
together: where few were seen, nothing is taken to depend on anything. The likelihood of workflows
held back is flat from 5 to 20; fewer leave tails thinner."""

_DIGITS = 9

Network = tuple[list[list[int]], list[list[float]]]
"""Parents of each variable, and P(variable | parents), the variable's own state running fastest."""


class LibraryMissingError(RuntimeError):
    """pyAgrum is not installed here."""


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            # its binding warns of itself on import, and takes a warning that raises for a crash
            warnings.simplefilter("ignore")
            import pyagrum  # noqa: PLC0415 - optional, and heavy
    except ImportError as error:
        raise LibraryMissingError(f"pyAgrum cannot be imported ({error})") from error
    return pyagrum


def learn_network(
    data: Sequence[Sequence[int]], cards: Sequence[int], slices: Sequence[int]
) -> Network:
    """Structure and tables from complete rows; the same input gives the same network.

    Args:
        data: A row for each workflow, a state for each variable.
        cards: States of each variable, at least 2.
        slices: Where each variable stands in time: arcs go to the same or a later slice.

    Raises:
        LibraryMissingError: pyAgrum is not installed.
        ValueError: No rows, or one that is not as said.
    """
    if not data:
        raise ValueError("nothing to learn a network from")
    for row in data:
        in_range = all(0 <= s < card for s, card in zip(row, cards, strict=True))
        if not in_range:
            raise ValueError(f"expected states below {list(cards)}, not {list(row)}")
    gum = _library()
    names = [f"v{number}" for number in range(len(cards))]
    domain = gum.BayesNet()
    for name, card in zip(names, cards, strict=True):
        domain.add(gum.RangeVariable(name, "", 0, card - 1))
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        file = Path(folder) / "rows.csv"
        lines = [",".join(names), *(",".join(map(str, row)) for row in data)]
        file.write_text("\n".join(lines) + "\n", encoding="ascii")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arcs = _learner(gum, file, domain)
            arcs.useGreedyHillClimbing()
            arcs.useScoreBIC()
            arcs.useNoPrior()
            arcs.setMaxIndegree(MAX_PARENTS)
            arcs.setSliceOrder(_in_slices(names, slices))
            graph = arcs.learnDAG()
            alone = _learner(gum, file, domain)
            alone.useSmoothingPrior(PSEUDO_COUNT)
            prior = alone.learnParameters(domain.dag())
            tables_of = _learner(gum, file, domain)
            tables_of.useDirichletPrior(prior, PRIOR_WORKFLOWS)
            network = tables_of.learnParameters(graph)
    parents: list[list[int]] = []
    tables: list[list[float]] = []
    for name in names:
        table = network.cpt(name)
        # axes of the array are the names backwards: its own comes last
        before = list(table.names)[:0:-1]
        parents.append([names.index(each) for each in before])
        # the library's last digits are not always the same
        tables.append([round(float(p), _DIGITS) for p in table.toarray().ravel()])
    return parents, tables


def _learner(gum: Any, file: Path, domain: Any) -> Any:
    learner = gum.BNLearner(str(file), domain)
    learner.setNumberOfThreads(1)
    return learner


def _in_slices(names: Sequence[str], slices: Sequence[int]) -> list[list[str]]:
    moments = sorted(set(slices))
    return [[n for n, s in zip(names, slices, strict=True) if s == moment] for moment in moments]
