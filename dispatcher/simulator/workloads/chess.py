"""CHESS text-to-SQL on BIRD: traces 1 to 3 of HexGen-Flow.

Sources: HexGen-Flow (arXiv:2505.05286), section 5.1 (calls per query; zero to ten rounds of
revision); its authors' recorded lengths and stages, of which figures alone are kept here; the
public prompt templates of CHESS (arXiv:2405.16755) for what prompts share.

Fitted on the record (102 queries on BIRD's `financial`; a sample of those on `formula1`):

- stages and their order, one call after another but for candidates and evaluations: four agent
  steps around a keyword extraction (left out by 17 % of queries), two candidates by two prompt
  templates, a chain of revisions, agent steps around a unit-test generation and one evaluation
  per unit test (0, 2 to 8; mean 4.4). 7 % of queries skip the tests;
- lengths by stage, and what ties them: both candidates see one schema (their prompts differ by
  3,866 tokens exactly), a revision sees the schema too and the SQL that came before it, an
  evaluation what the unit tests were made from. A candidate that runs into its output limit has
  no SQL: its whole text is revised.

Fitted on the paper: the number of revisions, by mean and variance, so that calls per query have
means 19.4, 20.7, 21.1 and variances 12.1, 14.7, 16.3 (all but revisions: 15.2 and 3.25). In the
record, revisions are one chain per query, at most ten; so here.

Assumed: that revisions are beta-binomial (some queries are hopeless, others fine: the record has
both ends), and independent of lengths; which share of a prompt is template (from its characters);
that a schema, filled with values found for the question, is shared by the calls of its query
only; tool times (SQL on SQLite 50 ms, retrieval 0.2 s at the median), none being recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from random import Random

from dispatcher.simulator.workloads.draws import BetaBinomial, clipped, lognormal
from dispatcher.traces import PrefixPart, TraceCall, TraceWorkflow

PAPER_STAGES: Mapping[str, int] = {
    "information-retriever": 1,
    "extract-keywords": 1,
    "generate-candidate": 2,
    "revise": 3,
    "unit-tester": 4,
    "generate-unit-test": 4,
    "evaluate": 4,
}
"""Stage to the paper's stage (section 2.1): schema linking, candidates, correction, evaluation."""

MOST_REVISIONS = 10

# All calls but revisions, by the record: 4 + keywords + 2 + 3 + tests x (1 + evaluations).
_CALLS_BUT_REVISIONS_MEAN = 15.196
_CALLS_BUT_REVISIONS_VARIANCE = 3.25

_KEYWORDS_SHARE = 85 / 102
_TESTS_SHARE = 95 / 102
_EVALUATIONS = ((2, 1), (3, 7), (4, 32), (5, 34), (6, 17), (7, 3), (8, 1))
"""(unit tests, queries of the record that had so many)."""

_RETRIEVER_PROMPTS = (301, 304, 308, 312)
_TESTER_PROMPTS = (271, 275, 278)
_SECOND_CANDIDATE_SHORTER_BY = 3866
_REVISION_SHORTER_BY = 6110
"""A revision's prompt without SQL, below the first candidate's."""
_NO_SQL_FROM = 1000
"""Candidates this long ran into their limit before they came to their SQL."""

# Tokens of prompt templates that come before what is the query's own.
_CANDIDATE_OPENING = 180
_FIRST_TEMPLATE = 9300
_SECOND_TEMPLATE = 5450
_REVISION_TEMPLATE = 3140
_KEYWORDS_TEMPLATE = 570
_UNIT_TESTS_TEMPLATE = 370
_EVALUATION_TEMPLATE = 250
_EVALUATION_OWN = 70
"""A unit test and the words after it: what evaluations of one query do not share."""


@dataclass(frozen=True, slots=True)
class _Database:
    """Figures of queries on one database; tokens."""

    first_prompt: tuple[float, float, float, float]
    """Of the first candidate: mean, deviation, least, most."""
    first_output: tuple[float, float, float, float]
    second_output_median: float
    question_median: float
    question_sigma: float
    keywords_median: float
    unit_tests_prompt_median: float
    revision_median: float
    endless_revisions: float
    """Share of revisions that run into their output limit."""


_FINANCIAL = _Database(
    first_prompt=(11972, 139, 11735, 12290),
    first_output=(712, 157, 380, 1012),
    second_output_median=472,
    question_median=40,
    question_sigma=0.42,
    keywords_median=37.5,
    unit_tests_prompt_median=985,
    revision_median=85,
    endless_revisions=0.06,
)
_FORMULA1 = _Database(
    first_prompt=(13905, 115, 13700, 14150),
    first_output=(975, 215, 500, 1025),
    second_output_median=555,
    question_median=62,
    question_sigma=0.36,
    keywords_median=50,
    unit_tests_prompt_median=1250,
    revision_median=118,
    endless_revisions=0.02,
)


@dataclass(frozen=True, slots=True)
class Chess:
    """One trace of CHESS queries.

    Raises:
        ValueError: No numbers of revisions in 0..10 give that mean and variance.
    """

    name: str
    summary: str
    databases: tuple[_Database, ...]
    """Each query is on one of them, all alike often."""
    calls_mean: float
    """Calls per query."""
    calls_variance: float
    _revisions: BetaBinomial = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mean = self.calls_mean - _CALLS_BUT_REVISIONS_MEAN
        variance = self.calls_variance - _CALLS_BUT_REVISIONS_VARIANCE
        object.__setattr__(self, "_revisions", BetaBinomial(MOST_REVISIONS, mean, variance))

    def workflow(self, number: int, arrival_s: float, random: Random) -> TraceWorkflow:
        """See `Workload`."""
        database = random.choice(self.databases)
        query = _Query(f"{self.name}-{number}", database, random)
        query.link_schema()
        query.generate_candidates()
        query.revise(self._revisions.draw(random))
        query.evaluate()
        return TraceWorkflow(query.workflow_id, self.name, arrival_s, tuple(query.calls))


class _Query:
    """One query while its calls are drawn, in their order."""

    def __init__(self, workflow_id: str, database: _Database, random: Random) -> None:
        self.workflow_id = workflow_id
        self.calls: list[TraceCall] = []
        self._database = database
        self._random = random
        self._before: tuple[str, ...] = ()
        self._length = random.gauss(0.0, 1.0)
        """Of the question, in deviations; it shows in the keywords and in the schema."""
        mean, deviation, least, most = database.first_prompt
        drawn = 0.45 * self._length + 0.89 * random.gauss(0.0, 1.0)
        self._first_prompt = clipped(mean + deviation * drawn, least, most)
        self._sql_tokens = 0

    def _call(
        self,
        stage: str,
        prompt_tokens: int,
        output_tokens: int,
        prefix: tuple[PrefixPart, ...],
        *,
        gap_s: float = 0.0,
        tool: str | None = None,
    ) -> str:
        call = TraceCall(
            call_id=f"c{len(self.calls)}",
            stage=stage,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            parents=self._before,
            gap_s=gap_s,
            tool=tool,
            prefix=prefix,
        )
        self.calls.append(call)
        return call.call_id

    def _then(self, *calls: str) -> None:
        self._before = calls

    def _own(self, content: str, end_tokens: int) -> PrefixPart:
        return PrefixPart(f"{self.workflow_id}/{content}", end_tokens)

    def _sql_s(self) -> float:
        return min(lognormal(self._random, 0.05, 0.8), 5.0)

    def link_schema(self) -> None:
        """The paper's stage 1: agent steps, and keywords after the first of them."""
        random = self._random
        tools = (None, None, "retrieve-entity", "retrieve-context")
        outputs = (5 if random.random() < 0.588 else random.randint(25, 39), 5, 5, 4)
        for step, prompt_tokens in enumerate(_RETRIEVER_PROMPTS):
            gap_s = 0.0 if tools[step] is None else min(lognormal(random, 0.2, 0.5), 5.0)
            prefix = (PrefixPart("chess/information-retriever", prompt_tokens),)
            call = self._call(
                "information-retriever",
                prompt_tokens,
                outputs[step],
                prefix,
                gap_s=gap_s,
                tool=tools[step],
            )
            self._then(call)
            if step == 0 and random.random() < _KEYWORDS_SHARE:
                self._then(self._extract_keywords())

    def _extract_keywords(self) -> str:
        random, database = self._random, self._database
        question = database.question_median * exp(database.question_sigma * self._length)
        drawn = 0.7 * self._length + 0.71 * random.gauss(0.0, 1.0)
        output_tokens = clipped(database.keywords_median * exp(0.38 * drawn), 12, 160)
        prompt_tokens = clipped(620 + question, 634, 900)
        prefix = (PrefixPart("chess/extract-keywords", _KEYWORDS_TEMPLATE),)
        return self._call("extract-keywords", prompt_tokens, output_tokens, prefix)

    def generate_candidates(self) -> None:
        """The paper's stage 2: two candidates side by side."""
        random, database = self._random, self._database
        alike = random.gauss(0.0, 1.0)
        mean, deviation, least, most = database.first_output
        first_output = clipped(mean + deviation * alike, least, most)
        drawn = 0.66 * alike + 0.75 * random.gauss(0.0, 1.0)
        second_output = clipped(database.second_output_median * exp(0.18 * drawn), 300, 1012)
        second_prompt = self._first_prompt - _SECOND_CANDIDATE_SHORTER_BY
        opening = PrefixPart("chess/candidate", _CANDIDATE_OPENING)
        self._then(
            self._call(
                "generate-candidate",
                self._first_prompt,
                first_output,
                (
                    opening,
                    PrefixPart("chess/candidate-one", _FIRST_TEMPLATE),
                    self._own("candidate-one", self._first_prompt),
                ),
            ),
            self._call(
                "generate-candidate",
                second_prompt,
                second_output,
                (
                    opening,
                    PrefixPart("chess/candidate-two", _SECOND_TEMPLATE),
                    self._own("candidate-two", second_prompt),
                ),
            ),
        )
        self._sql_tokens = (
            first_output
            if first_output >= _NO_SQL_FROM
            else round(lognormal(random, 0.88 * database.revision_median, 0.3))
        )

    def revise(self, rounds: int) -> None:
        """The paper's stage 3: a chain, each round sees what the one before came to."""
        random = self._random
        without_sql = self._first_prompt - _REVISION_SHORTER_BY
        for _ in range(rounds):
            output_tokens, has_sql = self._revision()
            call = self._call(
                "revise",
                without_sql + self._sql_tokens + random.randint(0, 20),
                output_tokens,
                (
                    PrefixPart("chess/revise", _REVISION_TEMPLATE),
                    self._own("revise", without_sql),
                ),
                gap_s=self._sql_s(),
                tool="execute-sql",
            )
            self._then(call)
            if has_sql:
                self._sql_tokens = output_tokens

    def _revision(self) -> tuple[int, bool]:
        """Output, and whether there is new SQL in it."""
        random, kind = self._random, self._random.random()
        if kind < self._database.endless_revisions:
            return random.randint(988, 1078), False
        if kind < self._database.endless_revisions + 0.13:
            return random.randint(10, 24), False
        return clipped(lognormal(random, self._database.revision_median, 0.32), 25, 400), True

    def evaluate(self) -> None:
        """The paper's stage 4: unit tests, each evaluated by a call of its own, and the verdict."""
        self._tester(0, 6, gap_s=self._sql_s(), tool="execute-sql")
        tests = self._random.random() < _TESTS_SHARE
        evaluations = 0
        if tests:
            numbers, weights = zip(*_EVALUATIONS, strict=True)
            evaluations = self._random.choices(numbers, weights)[0]
            seen = self._generate_unit_tests(evaluations)
        self._tester(1, 4)
        if tests:
            self._then(*[self._evaluation(seen) for _ in range(evaluations)])
        self._tester(2, 4)

    def _tester(
        self, step: int, output_tokens: int, *, gap_s: float = 0.0, tool: str | None = None
    ) -> None:
        prompt_tokens = _TESTER_PROMPTS[step]
        prefix = (PrefixPart("chess/unit-tester", prompt_tokens),)
        self._then(
            self._call("unit-tester", prompt_tokens, output_tokens, prefix, gap_s=gap_s, tool=tool)
        )

    def _generate_unit_tests(self, number: int) -> float:
        """Return about how long the prompts of evaluations are."""
        random = self._random
        prompt_tokens = clipped(
            lognormal(random, self._database.unit_tests_prompt_median, 0.2), 600, 3300
        )
        output_tokens = clipped(19.4 * number + random.gauss(0.0, 13.7), 20, 400)
        prefix = (PrefixPart("chess/generate-unit-test", _UNIT_TESTS_TEMPLATE),)
        self._then(self._call("generate-unit-test", prompt_tokens, output_tokens, prefix))
        results = random.uniform(150, 800) if random.random() < 0.04 else 0.0
        return prompt_tokens - 145 + random.gauss(0.0, 20.0) + results

    def _evaluation(self, about_tokens: float) -> str:
        random = self._random
        prompt_tokens = clipped(about_tokens + random.gauss(0.0, 5.4), 400, 4000)
        short = random.random() < 420 / 452
        output_tokens = 22 if short else clipped(lognormal(random, 95, 0.5), 30, 400)
        prefix = (
            PrefixPart("chess/evaluate", _EVALUATION_TEMPLATE),
            self._own("evaluate", prompt_tokens - _EVALUATION_OWN),
        )
        return self._call("evaluate", prompt_tokens, output_tokens, prefix)


CHESS_1 = Chess(
    name="chess-1",
    summary="Text-to-SQL by CHESS on BIRD's financial (HexGen-Flow, trace 1)",
    databases=(_FINANCIAL,),
    calls_mean=19.4,
    calls_variance=12.1,
)
CHESS_2 = Chess(
    name="chess-2",
    summary="Text-to-SQL by CHESS on BIRD's formula1 (HexGen-Flow, trace 2)",
    databases=(_FORMULA1,),
    calls_mean=20.7,
    calls_variance=14.7,
)
CHESS_3 = Chess(
    name="chess-3",
    summary="Text-to-SQL by CHESS on both databases (HexGen-Flow, trace 3)",
    databases=(_FINANCIAL, _FORMULA1),
    calls_mean=21.1,
    calls_variance=16.3,
)
