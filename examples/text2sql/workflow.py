"""The agent: one question through all stages, most of them calls to a language model.

The stages follow CHESS as HexGen-Flow describes it (HexGen-Flow paper, section 2.1): schema
linking, parallel candidates, self-correction against the database, unit tests and selection.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any, TypeVar

import parsing
import prompts
from database import Database, QueryResult
from llm import CallFailedError, CallRecord, Endpoint, Stage, WorkflowClient
from questions import Question

SQL_TOOL = "sqlite"

#: How much of the SLO a question gets, by difficulty: a hard one needs more corrections.
SLO_FACTORS = {"simple": 0.75, "moderate": 1.0, "challenging": 1.25}

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much work goes into one question."""

    candidates: int = 4
    corrections: int = 4  # rounds at most, per candidate
    unit_tests: int = 3


@dataclasses.dataclass
class Candidate:
    """One attempt at the question: the query as it stands and what running it gave."""

    number: int
    sql: str
    result: QueryResult
    corrections: int = 0
    passed: int = 0

    def shown(self) -> prompts.Shown:
        """As the checking stages see it."""
        return prompts.Shown(self.number, self.sql, self.result.preview(), self.passed)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one workflow went."""

    workflow_id: str
    question: Question
    slo_s: float
    latency_s: float
    calls: tuple[CallRecord, ...]
    corrections: int
    sql: str  # '' if the workflow failed
    correct: bool  # the result equals that of the gold query
    error: str | None = None

    @property
    def failed(self) -> bool:
        """True if a call failed for good."""
        return self.error is not None


class Text2SqlWorkflow:
    """Answers one question; make one for each question."""

    def __init__(
        self, client: WorkflowClient, database: Database, question: Question, settings: Settings
    ) -> None:
        self._client = client
        self._database = database
        self._question = question
        self._settings = settings
        self._asked = prompts.Asked(question.id, question.question, question.hint)
        self.corrections = 0

    async def run(self) -> str:
        """All stages.

        Returns:
            The chosen query.

        Raises:
            CallFailedError: a call failed for good; calls beside it are cancelled.
        """
        schema = await self._link_schema()
        candidates = await self._generate(schema)
        for attempt in range(1, self._settings.corrections + 1):
            failing = [item for item in candidates if not item.result.usable]
            if not failing:
                break
            await self._correct(failing, schema, attempt)
        # Candidates that still fail are left out, unless there is nothing else.
        finished = [item for item in candidates if item.result.usable] or candidates
        tests = await self._evaluate(finished, schema)
        return await self._select(finished, tests)

    async def _link_schema(self) -> str:
        """Keywords, tables, columns: the part of the schema that matters, as text."""
        whole = self._database.describe()
        text = await self._client.ask(Stage("keywords"), prompts.keywords(self._asked))
        words = parsing.keywords(text)
        text = await self._client.ask(Stage("tables"), prompts.tables(self._asked, whole, words))
        chosen = parsing.tables(text, list(self._database.tables))
        messages = prompts.columns(self._asked, whole, words, chosen)
        text = await self._client.ask(Stage("columns"), messages)
        allowed = {table: self._database.columns_of(table) for table in chosen}
        linked = parsing.columns(text, allowed)
        samples = await asyncio.to_thread(self._database.samples, linked)
        return f"{self._database.describe(linked)}\n\nFirst rows\n{samples}"

    async def _generate(self, schema: str) -> list[Candidate]:
        stage = Stage("candidates", width=self._settings.candidates)

        async def one(index: int) -> Candidate:
            messages = prompts.candidate(self._asked, schema, index)
            sql = parsing.sql(await self._client.ask(stage, messages, index))
            return Candidate(index + 1, sql, await self._execute(sql))

        return await _side_by_side([one(index) for index in range(stage.width)])

    async def _correct(self, failing: list[Candidate], schema: str, attempt: int) -> None:
        stage = Stage(f"correction-{attempt}", width=len(failing), tool=SQL_TOOL)

        async def one(item: Candidate) -> None:
            trouble = item.result.trouble
            messages = prompts.correction(self._asked, schema, item.sql, trouble, attempt)
            item.sql = parsing.sql(await self._client.ask(stage, messages, item.number))
            item.result = await self._execute(item.sql)
            item.corrections += 1
            self.corrections += 1

        await _side_by_side([one(item) for item in failing])

    async def _evaluate(self, candidates: list[Candidate], schema: str) -> int:
        """Make unit tests and hold the candidates against them; returns how many tests."""
        shown = [item.shown() for item in candidates]
        count = self._settings.unit_tests
        messages = prompts.unit_tests(self._asked, schema, shown, count)
        text = await self._client.ask(Stage("unit-tests", tool=SQL_TOOL), messages)
        tests = parsing.unit_tests(text, count)
        stage = Stage("evaluation", width=len(tests))
        answers = await _side_by_side(
            [
                self._client.ask(stage, prompts.evaluation(self._asked, schema, shown, test), index)
                for index, test in enumerate(tests)
            ]
        )
        numbers = [item.number for item in candidates]
        for answer in answers:
            passing = parsing.verdicts(answer, numbers)
            for item in candidates:
                item.passed += item.number in passing
        return len(tests)

    async def _select(self, candidates: list[Candidate], tests: int) -> str:
        shown = [item.shown() for item in candidates]
        messages = prompts.selection(self._asked, shown, tests)
        text = await self._client.ask(Stage("selection", final=True), messages)
        best = parsing.best(text, [item.number for item in candidates])
        ranked = sorted(candidates, key=lambda item: (item.number != best, -item.passed))
        return ranked[0].sql

    async def _execute(self, sql: str) -> QueryResult:
        if not sql:
            return QueryResult(error="the answer held no query")
        return await asyncio.to_thread(self._database.run, sql)


async def answer(
    endpoint: Endpoint,
    database: Database,
    question: Question,
    settings: Settings,
    *,
    workflow_id: str,
    slo_s: float,
    seed: int,
) -> Outcome:
    """Run the workflow of one question and say how it went; a failed call is in the outcome."""
    client = WorkflowClient(endpoint, workflow_id, slo_s, seed)
    workflow = Text2SqlWorkflow(client, database, question, settings)
    sql, error = "", None
    try:
        sql = await workflow.run()
    except CallFailedError as failure:
        error = str(failure)
    latency_s = client.elapsed_s
    correct = False
    if sql:
        gold = await asyncio.to_thread(database.run, question.sql)
        correct = (await asyncio.to_thread(database.run, sql)).same_as(gold)
    return Outcome(
        workflow_id=workflow_id,
        question=question,
        slo_s=slo_s,
        latency_s=latency_s,
        calls=tuple(client.calls),
        corrections=workflow.corrections,
        sql=sql,
        correct=correct,
        error=error,
    )


async def _side_by_side(jobs: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once; when one fails the others are cancelled and its error is raised bare."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except* CallFailedError as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return [task.result() for task in tasks]
