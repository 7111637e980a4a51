from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.graph_history import MAX_NODES
from workflows.graph_index import GraphIndex
from workflows.graph_match import Graph, Match, Weights, bounded_graph, similarity
from workflows.structure import mean_over, share_over

TOKENS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=12)


def weights(*nodes: tuple[float, float]) -> Weights:
    """(input, output) tokens each."""
    return Weights.of([i for i, _ in nodes], [o for _, o in nodes])


def chain(*outputs: float, prompt: float = 0.0) -> Graph:
    names = tuple(f"s{n}" for n in range(len(outputs)))
    prompts = (prompt,) * len(outputs)
    return Graph(names, prompts, outputs, prompts, outputs)


def output_s(prompt_tokens: float, output_tokens: float) -> float:
    return prompt_tokens + output_tokens / 10


@given(TOKENS)
def test_a_graph_is_like_itself_and_like_what_goes_on_after_it(
    nodes: list[tuple[int, int]],
) -> None:
    graph, longer = weights(*nodes), weights(*nodes, (7, 7), (1, 9))
    assert similarity(graph, graph) == 1.0
    assert similarity(graph, longer) == similarity(longer, graph) == 1.0


@given(TOKENS, TOKENS)
def test_similarity_is_symmetric_and_in_bounds(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    alike = similarity(weights(*one), weights(*other))
    assert 0.0 <= alike <= 1.0
    assert alike == similarity(weights(*other), weights(*one))


def test_the_kernel_in_figures() -> None:
    # One sigma apart in one of two nodes: (1 + exp(-1/2)) / 2; edges equal.
    one = Weights((1.0, 2.0), (3.0, 3.0))
    other = Weights((1.0, 3.0), (3.0, 3.0))
    assert similarity(one, other) == pytest.approx(0.5 * (1 + math.exp(-0.5)) / 2 + 0.5)
    # Two sigma in every edge, nodes equal.
    assert similarity(one, Weights(one.nodes, (1.0, 5.0))) == pytest.approx(
        0.5 + 0.5 * math.exp(-2.0)
    )


def test_nearer_lengths_are_more_alike_by_factor_not_by_difference() -> None:
    running = weights((1000, 1000))
    scores = [similarity(running, weights((1000, o))) for o in (1000, 1100, 2000, 8000, 10**5)]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
    doubled = similarity(weights((10, 10)), weights((10, 21)))
    assert doubled == pytest.approx(similarity(running, weights((1000, 2001))), abs=1e-9)


def test_the_edge_into_the_present_stage_counts_before_it_has_put_anything_out() -> None:
    running = Weights.of([100, 5000], [50])
    near, far = weights((100, 50), (5000, 9)), weights((100, 50), (50, 9))
    assert similarity(running, near) == 1.0
    assert 0.5 < similarity(running, far) < 0.8
    first_call = Weights.of([100], [])
    assert similarity(first_call, near) == 1.0


def test_without_anything_to_compare_nothing_is_alike() -> None:
    assert similarity(Weights.of([], []), weights((1, 1))) == 0.0


@given(
    st.lists(TOKENS, min_size=1, max_size=20),
    st.lists(st.integers(0, 10**6), max_size=15),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=1),
    st.integers(0, 40),
)
def test_the_index_says_what_one_by_one_comparison_says(
    graphs: list[list[tuple[int, int]]], outputs: list[int], edge: list[int], longer: int
) -> None:
    index = GraphIndex(len(graphs) + 1)
    known = [weights(*nodes) for nodes in [*graphs, [(5, 5)] * longer] if nodes]
    for slot, each in enumerate(known):
        index.put(slot, weights(*[(1, 1)] * 3))  # what was there before leaves no trace
        index.put(slot, each)
    running = Weights.of([*outputs, *edge], outputs)
    at_least = len(outputs) + 1
    expected = [similarity(running, k) if len(k.nodes) >= at_least else -1.0 for k in known]
    assert index.similarities(running, at_least) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 19))
def test_ratios_sum_to_one_and_shares_follow_from_them(outputs: list[float], at: int) -> None:
    match = Match(chain(*outputs), 1.0, min(at, len(outputs) - 1), 1)
    ratios = match.ratios(output_s)
    assert sum(ratios) == pytest.approx(1.0)
    left = ratios[match.position :]
    if sum(left) > 1e-6:
        assert match.share(output_s) == pytest.approx(left[0] / sum(left), rel=1e-6)
    assert 0.0 <= match.share(output_s) <= 1.0
    assert match.tail_s(output_s) == pytest.approx(sum(outputs[match.position + 1 :]) / 10)


def test_several_matches_are_averaged_by_likeness() -> None:
    one = Match(chain(10, 10), 0.9, 0, 2)
    other = Match(chain(10, 10, 10, 10), 0.3, 0, 2)
    assert mean_over([one], lambda m: m.tail_s(output_s)) == 1.0
    assert mean_over([one, other], lambda m: m.tail_s(output_s)) == pytest.approx(1.5)
    assert share_over([one], output_s) == pytest.approx(1 / 2)
    assert share_over([one, other], output_s) == pytest.approx(1 / 2.5)
    unlike = [Match(chain(10, 10), 0.0, 0, 2), Match(chain(10, 30), 0.0, 0, 2)]
    assert mean_over(unlike, lambda m: m.tail_s(output_s)) == pytest.approx(2.0)


def test_a_stage_without_work_shares_evenly() -> None:
    nothing = Match(chain(0, 0, 0, 0), 1.0, 1, 1)
    assert nothing.share(output_s) == pytest.approx(1 / 3)
    assert nothing.ratios(output_s) == (0.25,) * 4
    assert share_over([nothing, nothing], output_s) == pytest.approx(1 / 3)


def test_a_long_graph_is_cut_and_loses_no_work() -> None:
    rng = random.Random(1)
    long = chain(*[float(rng.randrange(1000)) for _ in range(3 * MAX_NODES)], prompt=2.0)
    short = bounded_graph(long, MAX_NODES)
    assert len(short) == MAX_NODES
    assert bounded_graph(short, MAX_NODES) is short
    whole, cut = Match(long, 1.0, 0, 1), Match(short, 1.0, 0, 1)
    assert cut.tail_s(output_s) == pytest.approx(whole.tail_s(output_s))
    assert cut.share(output_s) == pytest.approx(whole.share(output_s))
