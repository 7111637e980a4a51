"""Capability scores: the published table, and what may not change them."""

from __future__ import annotations

import math
import random

import pytest
from hetero_fleet import PAPER_FLEET, engine, paper_engines
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core import events as ev
from dispatcher.core.gpu_profiles import GPUS, Capability, gpu_profile
from dispatcher.core.types import CallId, CallSpec, Task, WorkflowId
from policies.capability_score import (
    EXPONENTS,
    WINDOW_CALLS,
    CapabilityScore,
    PromptWindow,
    kappa,
    regime_of,
    shares,
)

DATASHEETS = [gpu_profile(gpu).capability for gpu in PAPER_FLEET]
PAPER = 2 * [Capability(989, 80, 3.35)] + 4 * [Capability(312, 80, 2.0)]
PAPER += 2 * [Capability(362, 48, 0.864)]
"""As its section 4.1 has them."""

figures = st.floats(0.01, 1e4)
capabilities = st.builds(Capability, figures, figures, figures)
exponents = st.sampled_from(list(EXPONENTS.values()))


def fill(window, prompts):
    for tokens in prompts:
        window.add(tokens)


# --- the score ---


@pytest.mark.parametrize(
    ("regime", "h100", "a100", "l40s"),
    [
        ("short", 0.221, 0.100, 0.078),
        ("medium", 0.203, 0.110, 0.078),
        ("long", 0.180, 0.122, 0.076),
    ],
)
def test_shares_of_the_papers_fleet(regime, h100, a100, l40s):
    found = shares(PAPER, EXPONENTS[regime])
    assert [round(share, 3) for share in found] == [h100] * 2 + [a100] * 4 + [l40s] * 2


@pytest.mark.parametrize("weights", EXPONENTS.values())
def test_our_datasheets_say_the_same(weights):
    for ours, theirs in zip(shares(DATASHEETS, weights), shares(PAPER, weights), strict=True):
        assert abs(ours - theirs) < 0.0012


@pytest.mark.parametrize("regime", EXPONENTS)
def test_exponents_make_a_mean(regime):
    assert math.isclose(sum(EXPONENTS[regime]), 1.0)


@given(st.lists(st.none() | capabilities, min_size=1, max_size=40), exponents)
def test_shares_add_up_to_one(fleet, weights):
    found = shares(fleet, weights)
    assert math.isclose(sum(found), 1.0)
    assert all(share > 0.0 for share in found)


@given(
    st.lists(capabilities, min_size=1, max_size=8),
    exponents,
    st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
)
def test_units_do_not_matter(fleet, weights, units):
    f, m, b = units
    other = [Capability(c.tflops * f, c.hbm_gb * m, c.tb_per_s * b) for c in fleet]
    for one, same in zip(shares(fleet, weights), shares(other, weights), strict=True):
        assert math.isclose(one, same, rel_tol=1e-9)


@given(capabilities, exponents, st.floats(1.01, 10.0), st.sampled_from([0, 1, 2]))
def test_more_of_anything_is_worth_more(capability, weights, factor, which):
    old = (capability.tflops, capability.hbm_gb, capability.tb_per_s)
    better = Capability(*(v * factor if at == which else v for at, v in enumerate(old)))
    assert kappa(better, weights) > kappa(capability, weights)


def test_unknown_hardware_counts_as_the_mean_of_the_known():
    found = shares([PAPER[0], PAPER[2], None], EXPONENTS["medium"])
    assert math.isclose(found[2], (found[0] + found[1]) / 2)
    assert shares([None, None], EXPONENTS["long"]) == [0.5, 0.5]


def test_routing_sees_the_same_unknown():
    score = CapabilityScore(PromptWindow())
    known = [engine("h", "H100"), engine("a", "A100")]
    logs = score.log_kappas([*known, engine("?")], 400)
    assert math.isclose(math.exp(logs[2]), (math.exp(logs[0]) + math.exp(logs[1])) / 2)
    assert score.log_kappas([engine("?"), engine("??")], 400) == [0.0, 0.0]


def test_a_capability_counts_every_gpu():
    two = gpu_profile("A100").capability.times(2)
    one = gpu_profile("A100").capability
    assert (two.tflops, two.hbm_gb, two.tb_per_s) == (624.0, 160.0, 2 * one.tb_per_s)


@pytest.mark.parametrize("bad", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, math.nan)])
def test_a_figure_that_is_not_above_0_is_refused(bad):
    with pytest.raises(ValueError, match="above 0"):
        Capability(*bad)


def test_every_known_gpu_has_one():
    assert all(gpu.capability.tflops == gpu.bf16_dense_tflops for gpu in GPUS.values())


# --- the regime ---


@pytest.mark.parametrize(
    ("tokens", "regime"),
    [(1, "short"), (192, "short"), (193, "medium"), (768, "medium"), (769, "long")],
)
def test_thresholds_are_on_the_median(tokens, regime):
    window = PromptWindow()
    fill(window, [tokens] * (2 * WINDOW_CALLS))
    assert window.regime == regime == regime_of(tokens)


def test_one_odd_window_changes_nothing_two_do():
    window = PromptWindow()
    fill(window, [400] * WINDOW_CALLS)
    fill(window, [3000] * WINDOW_CALLS)
    assert window.regime == "medium"
    fill(window, [400] * WINDOW_CALLS)
    assert window.regime == "medium"
    fill(window, [3000] * (2 * WINDOW_CALLS - 1))
    assert window.regime == "medium"
    fill(window, [3000])
    assert window.regime == "long"


@given(st.lists(st.integers(1, 8000), min_size=1, max_size=9))
def test_the_regime_never_changes_without_two_windows_that_agree(medians):
    window = PromptWindow()
    said = []
    for median in medians:
        before = window.regime
        fill(window, [median] * WINDOW_CALLS)
        said.append(window._before)  # what this window said
        if window.regime != before:
            assert len(said) >= 1 and said[-1] == window.regime
            assert (said[-2] if len(said) > 1 else "medium") == window.regime


def test_half_short_half_long_is_bimodal_whatever_the_median_says():
    rng = random.Random(1)
    window = PromptWindow()
    fill(window, (rng.choice((60, 3000)) for _ in range(2 * WINDOW_CALLS)))
    assert window.regime == "bimodal"


def test_phases_of_short_and_long_are_bimodal():
    window = PromptWindow()
    for tokens in (60, 3000, 60, 3000):
        fill(window, [tokens] * WINDOW_CALLS)
    assert window.regime == "bimodal"


def test_bimodal_traffic_ends():
    rng = random.Random(2)
    window = PromptWindow()
    fill(window, (rng.choice((60, 3000)) for _ in range(4 * WINDOW_CALLS)))
    fill(window, [400] * (6 * WINDOW_CALLS))
    assert window.regime == "medium"


def test_in_bimodal_traffic_each_call_has_the_regime_of_its_length():
    window = PromptWindow()
    window.regime = "bimodal"
    score = CapabilityScore(window)
    assert [score.regime_for(tokens) for tokens in (60, 400, 3000)] == ["short", "medium", "long"]
    fixed = CapabilityScore(window, "medium")
    assert [fixed.regime_for(tokens) for tokens in (60, 3000)] == ["medium", "medium"]


def test_the_window_counts_calls_that_generate_once():
    def arrival(number, task):
        call = CallId(f"c{number}")
        return ev.CallArrived(CallSpec(call, WorkflowId("w"), "m", prompt_tokens=60, task=task))

    window = PromptWindow()
    for number in range(4 * WINDOW_CALLS):
        window.observe(arrival(number, Task.EMBED), None, 0.0)
    assert window.regime == "medium"
    for number in range(2 * WINDOW_CALLS):
        window.observe(arrival(number, Task.GENERATE), None, 0.0)
        window.observe(ev.Tick(), None, 0.0)
    assert window.regime == "short"


def test_scores_follow_the_regime():
    window = PromptWindow()
    score = CapabilityScore(window)

    def lead():
        h100, *_, l40s = score.log_kappas(paper_engines(), 400)
        return h100 - l40s

    medium = lead()
    fill(window, [64] * (2 * WINDOW_CALLS))
    assert lead() > medium  # short prompts want compute
