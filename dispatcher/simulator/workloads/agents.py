"""Agents that call tools and go on from what these answer.

Tool agents. Source: tau-bench's airline domain (MIT; arXiv:2406.12045), 120 recorded dialogues,
tokens counted with cl100k_base. Fitted: calls per dialogue (4 to 30, mean 14.2, variance 36),
whether a user or a tool spoke before a call (after a user a tool follows 44 % of the time, after a
tool 56 %), what either adds to the context by tool, output lengths by what follows them. Gaps
are not in the record. Tools: the median of 0.3 s and the 90th percentile of 13.6 s that
TraceLab (CC BY 4.0) found, longest a minute. Users (played by a model in the benchmark): assumed,
8 s at the median.

Coding agents. Source: 421 anonymised coding-agent sessions by WEKA (Apache-2.0), the one set with
true tool gaps. A workflow here is one turn of the user: what the agent does until it needs the user
again (1 to 164 calls, mean 6.7, median 1). Fitted: calls per turn, context at a turn's begin
(median 102k tokens), growth per call beside the output (median 0.3k, mean 1.5k), outputs, gaps
after tools (median 9 s; a hundredth above 15 minutes is cut there), gaps of the user, and contexts
that are compacted (0.6 % of calls; what remains of them). Assumed: that turns, contexts and growth
are independent; that a third remains of a context that outgrows the model's window; that 12k tokens
of instructions and tools are shared by all (the shortest first prompt of a later turn has 12.8k). A
workflow's first call finds no more than these in a cache: earlier turns are not in its trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dispatcher.simulator.workloads.draws import Quantiles, lognormal
from dispatcher.simulator.workloads.scaling import scaled
from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow

_TOOL_AGENT_SYSTEM = 1245
_DIALOGUE_CALLS = Quantiles.parse(
    "0:3.6 0.05:5.2 0.1:6.6 0.2:8.5 0.3:10.7 0.4:12.3 0.5:13.8 0.6:15.3 0.7:16.8 0.8:18.6 "
    "0.9:22.1 0.95:25.1 0.99:29.9 1:30.4"
)
_TOOL_AFTER_USER = 0.444
_TOOL_AFTER_TOOL = 0.565
_USER_TOKENS = Quantiles.parse(
    "0:4 0.05:11 0.1:13 0.2:16 0.3:19 0.4:21 0.5:23 0.6:26 0.7:29 0.8:33 0.9:40 0.95:47 "
    "0.99:58 1:83"
)
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_TOOLS = {
    "get-reservation-details": (211, (195, 259, 263, 308, 368)),
    "search-direct-flight": (106, (1, 109, 214, 323, 971)),
    "update-reservation-flights": (97, (6, 10, 252, 280, 382)),
    "calculate": (86, (3, 3, 3, 4, 5)),
    "get-user-details": (78, (192, 257, 279, 347, 405)),
    "think": (74, (0, 0, 0, 0, 0)),
    "book-reservation": (43, (11, 19, 21, 246, 260)),
    "cancel-reservation": (40, (253, 283, 290, 307, 353)),
    "search-onestop-flight": (35, (1, 828, 1171, 1772, 2837)),
    "update-reservation-baggages": (14, (8, 251, 271, 280, 345)),
}
"""Tool to (uses in the record, quartiles of the tokens it adds)."""
_TOOL_NAMES = tuple(_TOOLS)
_TOOL_USES = tuple(uses for uses, _ in _TOOLS.values())
_TOOL_TOKENS = {
    tool: Quantiles(zip(_QUARTERS, tokens, strict=True)) for tool, (_, tokens) in _TOOLS.items()
}
_OUTPUT_BEFORE_TOOL = Quantiles.parse(
    "0:16 0.05:23 0.2:24 0.3:25 0.4:27 0.5:34 0.6:36 0.7:51 0.8:81 0.9:118 0.95:157 0.99:231 1:328"
)
_OUTPUT_BEFORE_USER = Quantiles.parse(
    "0:10 0.05:25 0.1:27 0.2:34 0.3:40 0.4:48 0.5:57 0.6:67 0.7:83 0.8:120 0.9:176 "
    "0.95:218 0.99:332 1:399"
)
_TOOL_GAP_S = Quantiles.parse("0:0.02 0.5:0.3 0.9:13.6 1:60")


@dataclass(frozen=True, slots=True)
class ToolAgent:
    """Dialogues of a user with an agent that looks things up and changes them."""

    name: str = "tool-agent"
    summary: str = "Dialogues of an agent with tools and a user (tau-bench, airline)"
    user_gap_s: float = 8.0
    """Median time in which a user answers."""

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        workflow_id = f"{self.name}-{number}"
        calls: list[TraceCall] = []
        context = _TOOL_AGENT_SYSTEM + _USER_TOKENS.tokens(random)
        gap_s, tool = 0.0, None
        last = _DIALOGUE_CALLS.tokens(random) - 1
        for step in range(last + 1):
            likely = _TOOL_AFTER_USER if tool is None else _TOOL_AFTER_TOOL
            tool_next = step < last and random.random() < likely
            output_tokens = (_OUTPUT_BEFORE_TOOL if tool_next else _OUTPUT_BEFORE_USER).tokens(
                random
            )
            calls.append(
                TraceCall(
                    call_id=f"c{step}",
                    stage="agent",
                    prompt_tokens=context,
                    output_tokens=output_tokens,
                    parents=(calls[-1].call_id,) if calls else (),
                    gap_s=gap_s,
                    tool=tool,
                    prefix=(
                        PrefixPart("tool-agent/system", _TOOL_AGENT_SYSTEM),
                        PrefixPart(f"{workflow_id}/session", context + output_tokens),
                    ),
                )
            )
            context += output_tokens
            if tool_next:
                (tool,) = random.choices(_TOOL_NAMES, _TOOL_USES)
                gap_s = _TOOL_GAP_S.draw(random)
                context += round(_TOOL_TOKENS[tool].draw(random))
            else:
                tool = None
                gap_s = min(lognormal(random, self.user_gap_s, 0.6), 120.0)
                context += _USER_TOKENS.tokens(random)
        return TraceWorkflow(workflow_id, self.name, arrival_s, tuple(calls))


_CODING_SYSTEM = 12_000
_TURN_CALLS = Quantiles.parse(
    "0:0.6 0.5:1.5 0.648:2.5 0.723:3.5 0.76:4.5 0.804:6.5 0.858:10.5 0.902:17.5 "
    "0.95:34 0.99:79 0.995:97 0.999:130 1:164"
)
_TURN_CONTEXT = Quantiles.parse(
    "0:12812 0.01:18300 0.05:30400 0.1:43400 0.2:58000 0.3:72100 0.4:85300 0.5:102100 "
    "0.6:117200 0.7:131800 0.8:151600 0.9:262300 0.95:354000 0.99:545600 1:881800"
)
_GROWTH = Quantiles.parse(
    "0:0 0.1:0 0.2:27 0.3:77 0.4:176 0.5:299 0.6:479 0.7:811 0.8:1447 0.9:3110 0.95:5911 "
    "0.97:8639 0.99:16787 0.995:25576 0.999:87030 1:100000"
)
_CODING_OUTPUT = Quantiles.parse(
    "0:1 0.01:57 0.05:89 0.1:105 0.2:127 0.3:150 0.4:178 0.5:215 0.6:272 0.7:362 0.8:513 "
    "0.9:882 0.95:1492 0.99:3557 0.995:4910 0.999:7628 1:18195"
)
_COMPACTED = 0.006
_COMPACTED_TO = Quantiles.parse("0:0.1 0.05:0.154 0.25:0.446 0.5:0.797 1:0.98")
_KEPT_AT_WINDOW = 1 / 3
_CODING_TOOL_GAP_S = Quantiles.parse(
    "0:0 0.01:2 0.05:3 0.1:4 0.2:5 0.3:6 0.4:7 0.5:9 0.6:11 0.7:16 0.8:27 0.9:78 0.95:170 "
    "0.99:900 1:900"
)
_CODING_USER_GAP_S = Quantiles.parse("0:0 0.05:7 0.25:42 0.5:131 0.75:410 0.9:1335 1:3600")


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """Turns of coding sessions: long contexts, of which each call adds a little.

    Raises:
        ValueError: `user_turns` is below 1, or no context fits.
    """

    name: str = "coding-agent"
    summary: str = "Turns of coding agents: contexts near 100k tokens, tool gaps (WEKA sessions)"
    window_tokens: int = 131_072
    """The model's context window, at least 65,536. The record goes to 890k tokens: turns that would
    begin above nine tenths of the window are left out, contexts that outgrow it are compacted."""
    max_context_tokens: int | None = None
    """For engines with less: workflows with a longer call have all their lengths scaled down until
    it fits (see `scaled`)."""
    user_turns: int = 1
    """Turns of one session that make a workflow, with the user's gaps between them; at least 1."""

    def __post_init__(self) -> None:
        if self.user_turns < 1 or self.window_tokens < 65_536 or (self.max_context_tokens or 2) < 2:
            raise ValueError(f"out of range: {self}")

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        session = _Session(f"{self.name}-{number}", self.window_tokens, random)
        for turn in range(self.user_turns):
            gap_s = _CODING_USER_GAP_S.draw(random) if turn else 0.0
            session.call(gap_s, None)
            for _ in range(_TURN_CALLS.tokens(random) - 1):
                session.call(_CODING_TOOL_GAP_S.draw(random), "tool")
        whole = TraceWorkflow(session.workflow_id, self.name, arrival_s, tuple(session.calls))
        return scaled([whole], max_context_tokens=self.max_context_tokens)[0]


class _Session:
    """A coding session while its calls are drawn."""

    def __init__(self, workflow_id: str, window_tokens: int, random: Random) -> None:
        self.workflow_id = workflow_id
        self.calls: list[TraceCall] = []
        self._window = window_tokens
        self._random = random
        self._text = 0
        """Counts how often the context was replaced: what is shared begins anew."""
        self._context = _TURN_CONTEXT.tokens(random)
        while self._context > 0.9 * window_tokens:
            self._context = _TURN_CONTEXT.tokens(random)

    def call(self, gap_s: float, tool: str | None) -> None:
        """Draw one more call."""
        random = self._random
        output_tokens = _CODING_OUTPUT.tokens(random)
        if self._context + output_tokens > self._window:
            self._compact(_KEPT_AT_WINDOW * self._window)
        text = f"{self.workflow_id}/session-{self._text}"
        self.calls.append(
            TraceCall(
                call_id=f"c{len(self.calls)}",
                stage="agent",
                prompt_tokens=self._context,
                output_tokens=output_tokens,
                parents=(self.calls[-1].call_id,) if self.calls else (),
                gap_s=gap_s,
                tool=tool,
                prefix=(
                    PrefixPart("coding-agent/system", _CODING_SYSTEM),
                    PrefixPart(text, self._context + output_tokens),
                ),
            )
        )
        self._context += output_tokens + round(_GROWTH.draw(random))
        if random.random() < _COMPACTED:
            self._compact(self._context * _COMPACTED_TO.draw(random))

    def _compact(self, tokens: float) -> None:
        self._context = max(round(tokens), _CODING_SYSTEM + 1)
        self._text += 1


TOOL_AGENT = ToolAgent()
CODING_AGENT = CodingAgent()
