"""The questions of this example: loading them and making as many as a run asks for."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

QUESTIONS_PATH = Path(__file__).parent / "data" / "questions.json"

#: Wordings for the second, third, ... time that a question is asked in one run.
WORDINGS = (
    "{question}",
    "For the monthly report: {question}",
    "{question} Please answer with one query.",
    "A colleague at the control centre asks: {question}",
    "{question} Only the requested columns, please.",
    "We need this before noon. {question}",
)


@dataclasses.dataclass(frozen=True)
class Question:
    """One question with the SQL that answers it."""

    id: str
    difficulty: str  # 'simple', 'moderate' or 'challenging'
    question: str
    hint: str  # what words of the question mean in the data, '' if nothing needs saying
    sql: str  # never shown to the model


def load(path: Path = QUESTIONS_PATH) -> list[Question]:
    """The committed questions, in order."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return [Question(**item) for item in document["questions"]]


def draw(questions: list[Question], count: int, seed: int) -> list[Question]:
    """`count` questions in an order given by `seed`.

    Every question is asked once before any is asked again; a repeated one is worded otherwise.
    """
    rng = random.Random(seed)
    drawn: list[Question] = []
    while len(drawn) < count:
        wording = WORDINGS[len(drawn) // len(questions) % len(WORDINGS)]
        for item in rng.sample(questions, len(questions)):
            text = wording.format(question=item.question)
            drawn.append(dataclasses.replace(item, question=text))
    return drawn[:count]
