"""HeteroServe's requests have the lengths that its section 4.1 names."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median

import pytest

from dispatcher.bench.report import percentile
from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads import Poisson, make_trace
from dispatcher.simulator.workloads.heteroserve import (
    CONTEXT_TOKENS,
    HETEROSERVE,
    HETEROSERVE_BIMODAL,
    MixedLengths,
)
from dispatcher.traces import TraceCall

COUNT = 20_000


def calls(workload: MixedLengths, *, seed: int = 0, count: int = COUNT) -> list[TraceCall]:
    trace = make_trace(workload, Poisson(), rate_per_s=20.0, seed=seed, count=count)
    return [workflow.calls[0] for workflow in trace]


@pytest.fixture(scope="module")
def usual() -> list[TraceCall]:
    return calls(HETEROSERVE)


def test_prompts_are_lognormal_up_to_the_ceiling(usual: list[TraceCall]) -> None:
    """Of median 512 and sigma 1.2 the 90th percentile is 2,383; 2,048, as printed, is not."""
    prompts = [call.prompt_tokens for call in usual]
    assert median(prompts) == pytest.approx(512, rel=0.03)
    assert percentile(prompts, 0.9) == pytest.approx(2383, rel=0.04)
    assert percentile(prompts, 0.25) == pytest.approx(512 / 2.247, rel=0.04)
    # what the paper says of bins: a share of 12.4 % lies beyond 2,048
    assert fmean(tokens > 2048 for tokens in prompts) == pytest.approx(0.124, abs=0.01)


def test_answers_are_exponential(usual: list[TraceCall]) -> None:
    answers = [call.output_tokens for call in usual]
    assert fmean(answers) == pytest.approx(256, rel=0.03)
    assert median(answers) == pytest.approx(256 * 0.6931, rel=0.04)
    assert percentile(answers, 0.95) == pytest.approx(256 * 2.9957, rel=0.04)


def test_prompt_and_answer_are_independent_below_the_ceiling(usual: list[TraceCall]) -> None:
    short = [c.output_tokens for c in usual if c.prompt_tokens < 256]
    longer = [c.output_tokens for c in usual if 512 < c.prompt_tokens < 2048]
    assert fmean(short) == pytest.approx(fmean(longer), rel=0.06)


@pytest.mark.parametrize(
    "workload",
    [
        HETEROSERVE,
        HETEROSERVE_BIMODAL,
        replace(HETEROSERVE, median_prompt_tokens=1024.0, mean_output_tokens=512.0),
    ],
)
def test_what_comes_fits_the_context(workload: MixedLengths) -> None:
    some = calls(workload, count=5_000)
    assert all(call.prompt_tokens + call.output_tokens <= CONTEXT_TOKENS for call in some)
    assert all(call.streaming and call.call_class is CallClass.LATENCY for call in some)


def test_the_ceiling_shortens_few(usual: list[TraceCall]) -> None:
    full = [c for c in usual if c.prompt_tokens + c.output_tokens == CONTEXT_TOKENS]
    assert 0.03 < len(full) / len(usual) < 0.08
    # answers keep their law: it is prompts that lose tokens
    assert fmean(call.output_tokens for call in full) > 200


def test_other_medians_and_means_scale_the_laws() -> None:
    some = calls(replace(HETEROSERVE, median_prompt_tokens=128.0, mean_output_tokens=64.0))
    assert median(call.prompt_tokens for call in some) == pytest.approx(128, rel=0.03)
    assert fmean(call.output_tokens for call in some) == pytest.approx(64.5, rel=0.03)


def test_half_of_the_bimodal_prompts_is_short_and_half_is_long() -> None:
    some = calls(HETEROSERVE_BIMODAL)
    short = [call for call in some if call.prompt_tokens < 128]
    assert len(short) / len(some) == pytest.approx(0.5, abs=0.02)
    assert all(call.prompt_tokens > 2048 for call in some if call.prompt_tokens >= 128)
    assert fmean(call.prompt_tokens for call in short) == pytest.approx(64, rel=0.03)


def test_same_seed_same_requests_at_any_rate() -> None:
    slow, fast = (
        make_trace(HETEROSERVE, Poisson(), rate_per_s=rate, seed=3, count=50)
        for rate in (1.0, 40.0)
    )
    assert [w.calls for w in slow] == [w.calls for w in fast]
    assert [w.calls for w in slow] != [
        w.calls for w in make_trace(HETEROSERVE, Poisson(), rate_per_s=1.0, seed=4, count=50)
    ]
