"""LLMSched's six compound applications, in three kinds, and its four mixes.

Source: LLMSched ("Uncertainty-Aware Workload Scheduling for Compound LLM Applications"), sections
II-A, III-A, IV-B and V. Published: what stages there are (its Fig. 4); how long jobs take alone,
one call at a time, with a 7B model on an H800: sequence sorting 10 to 300 s for 16 to 64 numbers,
code generation 2 to 50 s in 3 to 15 stages, task automation 1 to 116 s with 1 to 8 planned stages;
stages of a job correlate with 0.7 (split and sort) to 0.9 (code and code again). What it ran on
says nothing of the time per token; a list of 32 numbers has about a hundred of them, and so few fit
the published times at 25 ms each (`ALONE_S_PER_TOKEN`), a 7B model run eagerly, one call at a time.
Here lengths are such that jobs take as long at that pace, and correlate so: each job has its own
size (numbers to sort, documents to merge, a program, a question, tools) and its own verbosity, and
a stage's tokens are these times noise. Engines of today are four times as fast, and so jobs take a
quarter of that.

Sorting, merging: Graph of Thoughts (arXiv:2308.09687), its examples of 32 numbers and of document
merging: one split, two sorts with five candidates each, ten merges, ten corrections; five drafts,
five aggregations of the best three, ten corrections, each candidate valued by a call where
documents are merged, by a program where numbers are sorted. Code: Reflexion (arXiv:2303.11366) on
MBPP: tests, code, its execution, and up to four times reflection, code, execution. Search: ReAct
(arXiv:2210.03629) on HotpotQA, at most seven thoughts, with a search after each but the last. Task
automation: HuggingGPT's plan, tools and answer on TaskBench (arXiv:2311.18760): of the requests of
its Hugging Face part 40 % ask for one tool, 41 % for a chain, 18 % for a graph. LLMCompiler
(arXiv:2312.04511) on HotpotQA: a plan, one to four searches side by side, an answer, and one time
in five a second round.

Assumed: all lengths beyond these; that six in ten tools run at the client (models for images, audio
and video) and the others are text tasks that the same LLM does.

Regular stages run at clients, as many at a time as there are jobs: they are gaps between calls. A
regular tool between two others becomes part of the gap before what follows it: where tools wait for
each other in several ways, for the longest one. What would run after a job's last call (the last
execution of code, the choice of the best merge) is left out: it is the same for every scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random

from dispatcher.core.workflow_types import StageKind, StagePlan
from dispatcher.simulator.workloads.compound import Application, Job
from dispatcher.simulator.workloads.draws import lognormal
from dispatcher.simulator.workloads.mixed import Mixed, Part, mixed

ALONE_S_PER_TOKEN = 0.025
"""At which the published durations are those of these lengths."""
CANDIDATES, MERGES = 5, 10
"""Of a Graph of Thoughts: calls of one sort or draft, and of one merge or correction."""
MOST_ITERATIONS = 4
"""Of code, after its first version: 15 stages with tests and executions."""
MOST_THOUGHTS = 7
MOST_TOOLS = 8

_SHAPES = ("single", "chain", "graph")
_SHAPE_COUNTS = (3059, 3108, 1379)
"""Requests of TaskBench, Hugging Face."""
_TOOL_COUNTS = {"chain": (2, 0.45), "graph": (3, 0.5)}
"""Least tools, and chance of each further one, up to eight."""
_SECOND_ROUND = 0.2
_AT_CLIENT = 0.6
_REGULAR_TOOLS = {
    "object-detection": 0.8,
    "image-classification": 0.5,
    "speech-recognition": 2.5,
    "text-to-speech": 3.0,
    "image-generation": 4.0,
    "video-generation": 9.0,
}
"""Median seconds."""
_TEXT_TOOLS = {
    "question-answering": 70.0,
    "translation": 140.0,
    "summarization": 170.0,
    "text-generation": 320.0,
}
"""Median output tokens."""


def _draw_sequence_sorting(job: Job) -> None:
    """Numbers split in two, sorted, merged, corrected; scores are programs."""
    random = job.random
    numbers = random.randint(16, 64)
    verbosity = lognormal(random, 1.0, 0.35)
    listed = 0.8 * numbers
    split = job.stage(
        "split", 1, 350 + listed, (8 + listed * 1.5) * verbosity, sigma=0.15, after=()
    )
    sorts: tuple[str, ...] = ()
    for name in ("sort-1", "sort-2"):
        half = (7 + listed * 1.6) * verbosity * lognormal(random, 1.0, 0.15)
        sorts += job.stage(name, CANDIDATES, 500 + listed / 2, half, sigma=0.2, after=split)
    whole = (8 + listed * 2.2) * verbosity * lognormal(random, 1.0, 0.15)
    merged = job.stage(
        "merge",
        MERGES,
        650 + 2 * listed,
        whole,
        sigma=0.2,
        after=sorts,
        gap_s=random.uniform(0.05, 0.2),
    )
    job.stage(
        "correct",
        MERGES,
        750 + 2 * listed,
        0.9 * whole * lognormal(random, 1.0, 0.15),
        sigma=0.2,
        after=merged,
        gap_s=random.uniform(0.05, 0.2),
    )


SEQUENCE_SORTING = Application(
    "sequence-sorting",
    "Graph of Thoughts sorts 16 to 64 numbers (LLMSched)",
    (
        StagePlan("split"),
        StagePlan("sort-1", width=CANDIDATES, after=("split",)),
        StagePlan("sort-2", width=CANDIDATES, after=("split",)),
        StagePlan("score", kind=StageKind.REGULAR, after=("sort-1", "sort-2")),
        StagePlan("merge", width=MERGES, after=("score",)),
        StagePlan("score-merge", kind=StageKind.REGULAR, after=("merge",)),
        StagePlan("correct", width=MERGES, after=("score-merge",)),
    ),
    _draw_sequence_sorting,
)


def _draw_document_merging(job: Job) -> None:
    """Documents merged: drafts, aggregations of the best, corrections, each valued by a call."""
    random = job.random
    documents = lognormal(random, 1000.0, 0.35)
    kept = lognormal(random, 0.12, 0.3) * documents
    before: tuple[str, ...] = ()
    for name, width, share, prompt in (
        ("draft", CANDIDATES, 1.0, documents),
        ("aggregate", CANDIDATES, 1.1, documents + 3 * kept),
        ("improve", MERGES, 1.0, documents + kept),
    ):
        tokens = share * kept * lognormal(random, 1.0, 0.12)
        written = job.stage(name, width, 250 + prompt, tokens, sigma=0.15, after=before)
        before = job.stage(
            f"value-{name}", width, 300 + documents + tokens, 12.0, sigma=0.3, after=written
        )


DOCUMENT_MERGING = Application(
    "document-merging",
    "Graph of Thoughts merges four documents (LLMSched)",
    (
        StagePlan("draft", width=CANDIDATES),
        StagePlan("value-draft", width=CANDIDATES, after=("draft",)),
        StagePlan("aggregate", width=CANDIDATES, after=("value-draft",)),
        StagePlan("value-aggregate", width=CANDIDATES, after=("aggregate",)),
        StagePlan("improve", width=MERGES, after=("value-aggregate",)),
        StagePlan("value-improve", width=MERGES, after=("improve",)),
    ),
    _draw_document_merging,
)


def _draw_code_generation(job: Job) -> None:
    """Tests, code, its execution; reflection and code again until tests pass.

    The longer a program, the likelier it fails.
    """
    random = job.random
    program = min(max(lognormal(random, 1.2, 0.5), 0.5), 4.0)
    fails = min(0.9, 0.55 * program**0.5)
    iterations = 0
    while iterations < MOST_ITERATIONS and random.random() < fails:
        iterations += 1
        fails = min(0.95, fails * 1.15)
    prompt = 420.0
    last = job.stage("tests", 1, prompt, 45.0 * program**0.6, sigma=0.2, after=())
    tokens = 80.0 * program
    for version in range(iterations + 1):
        if version:
            last = job.stage(
                "reflect",
                1,
                prompt,
                40.0 * program**0.4,
                sigma=0.2,
                after=last,
                gap_s=random.uniform(0.1, 0.6),
            )
        tokens *= lognormal(random, 1.0, 0.1)
        last = job.stage("code", 1, prompt + 150, tokens, sigma=0.08, after=last)
        prompt += tokens + 130


CODE_GENERATION = Application(
    "code-generation",
    "Reflexion writes programs in up to five versions (LLMSched)",
    (
        StagePlan("tests"),
        StagePlan("code", after=("tests",)),
        StagePlan("execute", kind=StageKind.REGULAR, after=("code",)),
        StagePlan("reflect", after=("execute",)),
    ),
    _draw_code_generation,
)


def _draw_web_search(job: Job) -> None:
    """Thoughts in turn with searches, until a question is answered.

    Who thinks long also thinks often.
    """
    random = job.random
    verbosity = lognormal(random, 1.0, 0.35)
    going_on = min(0.92, 0.72 * verbosity**0.5)
    thoughts = 2
    while thoughts < MOST_THOUGHTS and random.random() < going_on:
        thoughts += 1
    prompt = 1250.0
    last: tuple[str, ...] = ()
    for step in range(thoughts):
        gap_s = min(4.0, lognormal(random, 0.7, 0.5)) if step else 0.0
        tool = "search" if step else None
        last = job.stage(
            "think",
            1,
            prompt,
            55.0 * verbosity,
            sigma=0.25,
            after=last,
            gap_s=gap_s,
            tool=tool,
        )
        prompt += 55.0 * verbosity + random.uniform(60, 200)


WEB_SEARCH = Application(
    "web-search",
    "ReAct answers questions with searches between thoughts (LLMSched)",
    (StagePlan("think"),),
    _draw_web_search,
)


def _draw_task_automation(job: Job) -> None:
    """A plan, the tools it names, and an answer from what they gave."""
    random = job.random
    (shape,) = random.choices(_SHAPES, _SHAPE_COUNTS)
    count = 1
    if shape in _TOOL_COUNTS:
        count, more = _TOOL_COUNTS[shape]
        while count < MOST_TOOLS and random.random() < more:
            count += 1
    waits_for = planned_parents(shape, count, random)
    material = lognormal(random, 1.0, 0.7)
    links = sum(map(len, waits_for))
    plan = job.stage("plan", 1, 1100, 10.0 + 40.0 * count + 20.0 * links, sigma=0.12, after=())
    #: of each tool: calls that must have ended, and seconds at the client after them
    ends: list[tuple[tuple[str, ...], float]] = []
    for parents in waits_for:
        after, gap_s = _joined([ends[parent] for parent in parents], plan)
        if random.random() < _AT_CLIENT:
            tool = random.choice(tuple(_REGULAR_TOOLS))
            median_s = _REGULAR_TOOLS[tool]
            ends.append((after, gap_s + min(40.0, lognormal(random, median_s, 0.5))))
            continue
        tool = random.choice(tuple(_TEXT_TOOLS))
        tokens = _TEXT_TOOLS[tool] * material
        prompt = 250.0 + 300.0 * material
        ends.append((job.stage(tool, 1, prompt, tokens, sigma=0.35, after=after, gap_s=gap_s), 0.0))
    used = {parent for parents in waits_for for parent in parents}
    after, gap_s = _joined([end for n, end in enumerate(ends) if n not in used], plan)
    job.stage(
        "answer", 1, 500 + 160.0 * count, 15 + 20.0 * count, sigma=0.3, after=after, gap_s=gap_s
    )


TASK_AUTOMATION = Application(
    "task-automation",
    "HuggingGPT plans one to eight tools, of which some are LLM calls (LLMSched)",
    (
        StagePlan("plan"),
        StagePlan("tools", kind=StageKind.DYNAMIC, after=("plan",), candidates=tuple(_TEXT_TOOLS)),
        StagePlan("answer", after=("tools",)),
    ),
    _draw_task_automation,
)


def planned_parents(shape: str, count: int, random: Random) -> list[tuple[int, ...]]:
    """For each tool of a plan the earlier ones that it waits for."""
    if shape == "single":
        return [()]
    if shape == "chain":
        return [(), *((one,) for one, _ in pairwise(range(count)))]
    found: list[tuple[int, ...]] = [(), ()]
    for number in range(2, count):
        found.append(tuple(sorted(random.sample(range(number), random.randint(1, 2)))))
    return found


def _joined(
    ends: list[tuple[tuple[str, ...], float]], plan: tuple[str, ...]
) -> tuple[tuple[str, ...], float]:
    """Calls to wait for, and the longest that a client then needs; no ends: the plan's."""
    if not ends:
        return plan, 0.0
    after = tuple(dict.fromkeys(call for calls, _ in ends for call in calls))
    return after, max(gap_s for _, gap_s in ends)


def _draw_llm_compiler(job: Job) -> None:
    """A plan of searches side by side, and what joins them; sometimes a second round."""
    random = job.random
    searches = random.choices((1, 2, 3, 4), (1, 5, 2, 1))[0]
    rounds = 2 if random.random() < _SECOND_ROUND else 1
    last: tuple[str, ...] = ()
    for number_of in range(rounds):
        prompt = 900.0 + 500.0 * number_of
        last = job.stage("plan", 1, prompt, 15.0 + 25.0 * searches, sigma=0.15, after=last)
        gap_s = max(min(5.0, lognormal(random, 0.8, 0.5)) for _ in range(searches))
        last = job.stage(
            "join",
            1,
            500.0 + 250.0 * searches,
            35.0 + 15.0 * searches,
            sigma=0.25,
            after=last,
            gap_s=gap_s,
            tool="search",
        )


LLM_COMPILER = Application(
    "llm-compiler",
    "LLMCompiler plans searches side by side and joins them (LLMSched)",
    (
        StagePlan("plan"),
        StagePlan("search", kind=StageKind.REGULAR, after=("plan",)),
        StagePlan("join", after=("search",)),
    ),
    _draw_llm_compiler,
)


PREDEFINED = (SEQUENCE_SORTING, DOCUMENT_MERGING)
CHAIN_LIKE = (CODE_GENERATION, WEB_SEARCH)
PLANNING = (TASK_AUTOMATION, LLM_COMPILER)
APPLICATIONS: Mapping[str, Application] = {
    one.name: one for one in (*PREDEFINED, *CHAIN_LIKE, *PLANNING)
}


def _mix(name: str, applications: tuple[Application, ...], summary: str) -> Mixed:
    return mixed(name, [Part(one) for one in applications], f"{summary} (LLMSched)")


LLMSCHED = _mix("llmsched", tuple(APPLICATIONS.values()), "Six compound applications alike")
LLMSCHED_PREDEFINED = _mix("llmsched-predefined", PREDEFINED, "Sorting and merging with thoughts")
LLMSCHED_CHAINS = _mix("llmsched-chains", CHAIN_LIKE, "Code in versions, searches between thoughts")
LLMSCHED_PLANNING = _mix("llmsched-planning", PLANNING, "Plans of tools, and of searches")
LLMSCHED_MIXES = (LLMSCHED, LLMSCHED_PREDEFINED, LLMSCHED_CHAINS, LLMSCHED_PLANNING)
