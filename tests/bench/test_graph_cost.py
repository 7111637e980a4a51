from __future__ import annotations

import pytest

from dispatcher.bench.graph_cost import graph_match_cost


@pytest.mark.parametrize("graphs", [1, 3, 40])
def test_cost_of_a_match_is_that_of_its_pairs(graphs: int) -> None:
    cost = graph_match_cost(graphs, stages=6, matches=12)
    assert (cost.graphs, cost.stages) == (graphs, 6)
    assert cost.pair_us > 0
    assert cost.learn_us > 0
    assert cost.match_us == pytest.approx(cost.pair_us * graphs)
    assert cost.described()["pair_us"] == cost.pair_us
