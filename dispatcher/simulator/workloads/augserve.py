"""Augmented requests as AugServe serves them: one model that stops for tools, and goes on.

A workflow is one request of the paper. Each of its calls generates until a tool is asked for, the
gap before the next one is the tool's time, and that one's prompt is all the context so far and what
the tool returned. Nothing is shared between requests: the paper's engines would not notice it.

Merge. The six tasks of InferCept's workload (arXiv:2402.01869, ICML 2024), equally often, as the
name of its file says (`merged_exp_uniform.json`; WukLab/InferCept, f9b2195). Times of tools, calls
of them, and contexts at these calls: mean and deviation by task after the paper's Table 1, quoted
from memory. What its authors say elsewhere agrees: 3 to 28 interceptions a request, calculators
below a second, speech and images near twenty. Gaps, counts, prompts and rounds are gamma
distributed [assumed]. What a round adds is not in the table, but in its deviations: contexts that
grow by equal rounds from a small prompt scatter as those of dialogues do there, and those of the
virtual environment scatter so little that its rounds must be a few tokens. How much of a round is
generated is assumed. Requests that outgrow the context window end before.

ToolBench (Qin et al., ToolLLM, ICLR 2024). Prompts: instructions of 450 tokens [assumed: the
length of ToolLLaMA's], and documentation and question as in StableToolBench (Apache-2.0; 580 test
questions with 5.2 APIs in the mean; four characters a token), cut where they would leave no room
for eight rounds. Calls: 2.94 a request (37,204 calls of 12,657 instances, as ToolBench's page says
of its release), geometric from one on [assumed]. Returned: at most 1,024 characters, as its
evaluation cuts them; lengths below that [assumed]. Generated between calls: 30 to 90 tokens, the
last answer 80 to 250 [assumed]. Gaps: a median of 0.6 s, nine tenths below 2 s, for each of its
49 categories of tools another [assumed: web requests].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from dispatcher.simulator.workloads.draws import Quantiles, clipped, lognormal
from dispatcher.simulator.workloads.mixed import Part, mixed
from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow

MOST_CONTEXT_TOKENS = 3_900
"""Of a request: it fits into the 4,096 of a 13B engine, the longest answer included. (OPT's own
window has 2,048, less than the mean context of the table's longest task.)"""

Moments = tuple[float, float]
"""Mean and standard deviation."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one stop for a tool comes to."""

    output_tokens: int
    """Generated before it."""
    tool: str
    gap_s: float
    returned_tokens: int


class Arrival(NamedTuple):
    """Which request comes, and when."""

    workflow_id: str
    """Unique."""
    application: str
    """Whose history it belongs to."""
    at_s: float


def request(
    arrival: Arrival, prompt_tokens: int, rounds: Sequence[Round], last_tokens: int
) -> TraceWorkflow:
    """One augmented request as a chain of calls.

    Args:
        arrival: Which one it is.
        prompt_tokens: Of its first call.
        rounds: Its stops for tools, in order.
        last_tokens: Generated after the last of them.
    """
    calls: list[TraceCall] = []
    context, gap_s, tool = prompt_tokens, 0.0, None
    for number in range(len(rounds) + 1):
        stop = rounds[number] if number < len(rounds) else None
        output_tokens = last_tokens if stop is None else stop.output_tokens
        calls.append(
            TraceCall(
                call_id=f"c{number}",
                stage="generate",
                prompt_tokens=context,
                output_tokens=output_tokens,
                parents=(calls[-1].call_id,) if calls else (),
                gap_s=gap_s,
                tool=tool,
                prefix=(PrefixPart(arrival.workflow_id, context + output_tokens),),
                streaming=True,
            )
        )
        context += output_tokens
        if stop is not None:
            context += stop.returned_tokens
            gap_s, tool = stop.gap_s, stop.tool
    return TraceWorkflow(arrival.workflow_id, arrival.application, arrival.at_s, tuple(calls))


def gamma(random: Random, moments: Moments) -> float:
    """Draw from the gamma distribution of that mean and deviation, both above 0."""
    mean, deviation = moments
    shape = (mean / deviation) ** 2
    return random.gammavariate(shape, mean / shape)


_LEAST_PROMPT = 16
_MOST_PROMPT = 3_500
_MOST_STOPS = 64
_MOST_OUTPUT = 900
"""Tokens of one round."""


@dataclass(frozen=True, slots=True)
class AugmentedTask:
    """One of InferCept's tasks."""

    name: str
    tool: str
    gap_s: Moments
    """Of the tool."""
    stops: Moments
    """Calls of the tool, at least 1."""
    prompt_tokens: Moments
    """Of the first call."""
    round_tokens: Moments
    """Of a request: what each of its rounds adds to the context, in the mean."""
    generated: float
    """The share of that which is generated; the tool returns the rest."""
    summary: str = "Augmented requests of one task (InferCept)"

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        stops = clipped(gamma(random, self.stops), 1, _MOST_STOPS)
        prompt_tokens = clipped(gamma(random, self.prompt_tokens), _LEAST_PROMPT, _MOST_PROMPT)
        added = gamma(random, self.round_tokens)
        output, returned = self.generated * added, (1.0 - self.generated) * added
        rounds = [
            Round(
                output_tokens=_around(random, output),
                tool=self.tool,
                gap_s=gamma(random, self.gap_s),
                returned_tokens=_around(random, returned),
            )
            for _ in range(stops)
        ]
        return _fitting(
            Arrival(f"{self.name}-{number}", self.name, arrival_s),
            prompt_tokens,
            rounds,
            _around(random, output),
        )


def _around(random: Random, mean: float) -> int:
    """Draw a length: half to one and a half times the mean."""
    return clipped(random.uniform(0.5, 1.5) * mean, 1, _MOST_OUTPUT)


def _fitting(
    arrival: Arrival, prompt_tokens: int, rounds: Sequence[Round], last_tokens: int
) -> TraceWorkflow:
    """The request with as many of its rounds as fit."""
    last_tokens = min(last_tokens, MOST_CONTEXT_TOKENS - prompt_tokens - 1)
    context = prompt_tokens + last_tokens
    kept: list[Round] = []
    for one in rounds:
        context += one.output_tokens + one.returned_tokens
        if context > MOST_CONTEXT_TOKENS:
            break
        kept.append(one)
    return request(arrival, prompt_tokens, kept, last_tokens)


ARITHMETIC = AugmentedTask(
    "arithmetic",
    "calculator",
    gap_s=(9e-5, 6e-5),
    stops=(3.75, 1.3),
    prompt_tokens=(1375.0, 775.0),
    round_tokens=(34.0, 8.0),
    generated=0.88,
)
KNOWLEDGE = AugmentedTask(
    "knowledge-qa",
    "wikipedia",
    gap_s=(0.69, 0.17),
    stops=(2.52, 1.73),
    prompt_tokens=(1610.0, 370.0),
    round_tokens=(150.0, 30.0),
    generated=0.33,
)
ENVIRONMENT = AugmentedTask(
    "virtual-environment",
    "environment",
    gap_s=(0.09, 0.014),
    stops=(28.18, 15.2),
    prompt_tokens=(2017.0, 30.0),
    round_tokens=(9.0, 1.0),
    generated=0.55,
)
CHATBOT = AugmentedTask(
    "chatbot",
    "human",
    gap_s=(28.6, 15.6),
    stops=(4.45, 1.96),
    prompt_tokens=(130.0, 100.0),
    round_tokens=(240.0, 215.0),
    generated=0.8,
)
IMAGE = AugmentedTask(
    "image",
    "diffusion",
    gap_s=(20.03, 7.8),
    stops=(6.91, 3.93),
    prompt_tokens=(260.0, 150.0),
    round_tokens=(222.0, 85.0),
    generated=0.8,
)
SPEECH = AugmentedTask(
    "speech",
    "text-to-speech",
    gap_s=(17.24, 7.6),
    stops=(6.91, 3.93),
    prompt_tokens=(260.0, 150.0),
    round_tokens=(222.0, 85.0),
    generated=0.8,
)
TASKS = (ARITHMETIC, KNOWLEDGE, ENVIRONMENT, CHATBOT, IMAGE, SPEECH)
MERGE = mixed(
    "merge",
    [Part(task) for task in TASKS],
    "Augmented requests: arithmetic, search, a virtual environment, chat, images, speech"
    " (InferCept, AugServe)",
)


_INSTRUCTIONS = 450
_DOCUMENTED = Quantiles.parse(
    "0:99 0.01:127 0.05:215 0.1:245 0.2:317 0.3:406 0.4:504 0.5:636 0.6:778 0.7:1006 0.8:1213 "
    "0.9:1580 0.95:1983 1:2400"
)
"""Tokens of question and documentation."""
_MEAN_CALLS = 2.94
_MOST_CALLS = 8
_STEP_TOKENS = Quantiles.parse("0:20 0.1:30 0.5:55 0.9:90 1:160")
_ANSWER_TOKENS = Quantiles.parse("0:30 0.1:80 0.5:140 0.9:250 1:400")
_RETURNED_TOKENS = Quantiles.parse("0:10 0.1:20 0.5:110 0.7:255 1:256")
_CATEGORIES = 49
_GAP_MEDIAN_S = 0.6
_GAP_SIGMA_BETWEEN, _GAP_SIGMA_WITHIN = 0.6, 0.6
_LONGEST_GAP_S = 10.0


@dataclass(frozen=True, slots=True)
class ToolBench:
    """Questions that are answered with web APIs out of thousands."""

    name: str = "toolbench"
    summary: str = "Questions answered with web APIs (ToolLLM's ToolBench, AugServe)"

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        prompt_tokens = _INSTRUCTIONS + _DOCUMENTED.tokens(random)
        calls = 1
        # geometric from 1 on
        while calls < _MOST_CALLS and random.random() > 1.0 / _MEAN_CALLS:
            calls += 1
        category = random.randrange(_CATEGORIES)
        # a question's APIs are of one category, as most are in the data
        median_s = lognormal(
            Random(f"toolbench-{category}"),  # noqa: S311 - a model, no secret
            _GAP_MEDIAN_S,
            _GAP_SIGMA_BETWEEN,
        )
        rounds = [
            Round(
                output_tokens=_STEP_TOKENS.tokens(random),
                tool=f"category-{category}",
                gap_s=min(lognormal(random, median_s, _GAP_SIGMA_WITHIN), _LONGEST_GAP_S),
                returned_tokens=_RETURNED_TOKENS.tokens(random),
            )
            for _ in range(calls)
        ]
        return _fitting(
            Arrival(f"{self.name}-{number}", self.name, arrival_s),
            prompt_tokens,
            rounds,
            _ANSWER_TOKENS.tokens(random),
        )


TOOLBENCH = ToolBench()
