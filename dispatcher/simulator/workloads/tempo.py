"""Tempo's mix: chat, whole answers, and requests of many calls side by side.

Source: Tempo ("Application-aware LLM Serving with Mixed SLO Requirements"), section 6.1: three
latency-sensitive requests to one throughput-intensive and one collective; lengths by its Table 2
(Alpaca and LMSYS-Chat for the chatbot workload, lighteval-math for the long one), whose means,
deviations, medians and 95th percentiles are fitted; outputs end at 1,024 tokens. Prompt and output
are drawn independently, and alike for chat and whole answers: the table does not tell them apart.

Collective requests: its sums are those of 14 such calls (means 14.0 times, deviations 3.7 times
those of single ones). 14 is what its tree of thoughts has, of depth two and with three thoughts a
step: three thoughts, their valuation, nine thoughts, their valuation. So each call has the lengths
of a single one here, and what earlier calls answered is not in later prompts, as it is not in the
table's. The other collective application, agentic code generation, is a chain: plan, code, and 3 to
9 rounds of review and revision, 14 calls in the mean; of it the paper says no more than "chain".

Assumed: half of the collective requests are either; no gaps; nothing is shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dispatcher.core.types import CallClass
from dispatcher.simulator.workloads.draws import Quantiles
from dispatcher.simulator.workloads.mixed import Mixed, Part, mixed
from dispatcher.simulator.workloads.single import SingleCalls
from dispatcher.traces import TraceCall, TraceWorkflow

THOUGHTS = 3
"""Per step, and steps from each of the first ones."""
ROUNDS = (3, 9)
"""Of review and revision: least, most."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of one call of the mix (Table 2, single)."""

    name: str
    prompt_tokens: Quantiles
    output_tokens: Quantiles

    def call(
        self, random: Random, call_id: str, stage: str, parents: tuple[str, ...] = ()
    ) -> TraceCall:
        """Draw a call of a collective request."""
        return TraceCall(
            call_id,
            stage,
            self.prompt_tokens.tokens(random),
            self.output_tokens.tokens(random),
            parents,
            call_class=CallClass.COLLECTIVE,
        )


CHATBOT = Lengths(
    "tempo",
    Quantiles.parse("0:4 0.05:9 0.25:15 0.5:27 0.75:58 0.9:185 0.95:391 0.99:1000 1:3100"),
    Quantiles.parse("0:1 0.05:8 0.25:64 0.5:225 0.75:470 0.9:880 0.95:1024 1:1024"),
)
LONG = Lengths(
    "tempo-long",
    Quantiles.parse("0:8 0.05:16 0.25:30 0.5:49 0.75:79 0.9:134 0.95:229 0.99:500 1:1040"),
    Quantiles.parse("0:50 0.05:195 0.25:315 0.5:422 0.75:605 0.9:860 0.95:1024 1:1024"),
)


@dataclass(frozen=True, slots=True)
class TreeOfThoughts:
    """Math questions: three thoughts, valued, three more from each, valued; 14 calls, 4 stages."""

    name: str
    lengths: Lengths
    summary: str = "Tree of thoughts of depth two (Tempo)"

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        calls: list[TraceCall] = []
        before: tuple[str, ...] = ()
        for depth, width in ((1, THOUGHTS), (2, THOUGHTS * THOUGHTS)):
            thoughts = tuple(f"thought-{depth}-{n}" for n in range(width))
            calls += [
                self.lengths.call(random, name, f"thoughts-{depth}", before) for name in thoughts
            ]
            calls.append(self.lengths.call(random, f"value-{depth}", f"value-{depth}", thoughts))
            before = (f"value-{depth}",)
        return TraceWorkflow(f"{self.name}-{number}", self.name, arrival_s, tuple(calls))


@dataclass(frozen=True, slots=True)
class CodeGeneration:
    """Agents in turn: plan, code, then rounds of review and revision."""

    name: str
    lengths: Lengths
    summary: str = "Agents that write code in rounds (Tempo)"

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        rounds = random.randint(*ROUNDS)
        stages = ["plan", "code", *["review", "revise"] * rounds]
        calls: list[TraceCall] = []
        for stage in stages:
            parents = (calls[-1].call_id,) if calls else ()
            calls.append(self.lengths.call(random, f"c{len(calls)}", stage, parents))
        return TraceWorkflow(f"{self.name}-{number}", self.name, arrival_s, tuple(calls))


def tempo_mix(
    lengths: Lengths = CHATBOT,
    *,
    latency: float = 3.0,
    throughput: float = 1.0,
    collective: float = 1.0,
    best_effort: float = 0.0,
) -> Mixed:
    """A mix of the paper's kinds of requests, by their weights; 0 leaves a kind out.

    Raises:
        ValueError: Nothing is left.
    """
    name = lengths.name

    def single(kind: str, call_class: CallClass) -> SingleCalls:
        return SingleCalls(
            name=f"{name}-{kind}",
            summary=f"Single calls (Tempo, {kind})",
            prompt_tokens=lengths.prompt_tokens,
            output_tokens=lengths.output_tokens,
            call_class=call_class,
            streaming=call_class is CallClass.LATENCY,
        )

    parts = [
        Part(single("chat", CallClass.LATENCY), latency),
        Part(single("task", CallClass.THROUGHPUT), throughput),
        Part(TreeOfThoughts(f"{name}-thoughts", lengths), collective / 2.0),
        Part(CodeGeneration(f"{name}-coding", lengths), collective / 2.0),
        Part(single("batch", CallClass.BEST_EFFORT), best_effort),
    ]
    summary = "Chat, whole answers, thoughts and code agents, 6 : 2 : 1 : 1 (Tempo"
    told = f"{summary}, chatbot)" if lengths is CHATBOT else f"{summary}, long answers)"
    return mixed(name, [part for part in parts if part.weight > 0.0], told)


TEMPO = tempo_mix(CHATBOT)
TEMPO_LONG = tempo_mix(LONG)
