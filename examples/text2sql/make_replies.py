r"""Writes the scripted replies with which emulated engines play a model for this agent.

    python examples/text2sql/make_replies.py            # write the file
    python examples/text2sql/make_replies.py --check    # fail if it is not what this would write

The file is a list of entries, each a pattern and some texts; the first entry whose pattern is
found in the prompt answers, with one of its texts. So an answer may be right, wrong or broken, as
a model's is: which one follows from the call's body. Patterns begin with the first line of a
prompt (`\A`) and look only at the line that names the question: a call costs microseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import database as db
import mutations
import questions as qs

REPLIES_PATH = Path(__file__).parents[2] / "dispatcher" / "emulator" / "replies" / "text2sql.json"

Entry = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Mix:
    """Of how many texts of each kind a scripted model chooses, all equally likely."""

    broken: int
    wrong: int
    right: int


#: difficulty -> (candidates, corrections). Where there are several pairs, the questions
#: take them in turn.
MIXES = {
    "simple": [(Mix(2, 1, 2), Mix(1, 0, 2))],
    "moderate": [
        (Mix(3, 1, 1), Mix(3, 1, 1)),
        (Mix(4, 1, 1), Mix(4, 1, 1)),
        (Mix(5, 1, 0), Mix(5, 1, 1)),
    ],
    "challenging": [(Mix(5, 1, 0), Mix(5, 1, 1)), (Mix(5, 1, 1), Mix(4, 1, 0))],
}

#: Fewest and most tokens that an answer of a stage has at least; where between them depends on
#: the question. The emulator puts neutral words in front of a shorter text.
MIN_TOKENS = {
    "keywords": (90, 160),
    "tables": (180, 340),
    "columns": (220, 420),
    "candidate": (220, 400),
    "correction": (150, 280),
    "unit tests": (300, 480),
    "evaluation": (50, 140),
    "selection": (60, 60),
}
SMALL_WORDS = {"each", "from", "give", "have", "list", "than", "that", "them", "there", "those"}
SMALL_WORDS |= {"they", "what", "when", "were", "which", "while", "with"}


class Writer:
    """Makes the entries of one question."""

    def __init__(self, question: qs.Question, database: db.Database, turn: int) -> None:
        self._q = question
        self._db = database
        mixes = MIXES[question.difficulty]
        self._candidates, self._corrections = mixes[turn % len(mixes)]
        #: where in the ranges of MIN_TOKENS this question lies, 0 to 1
        self._length = zlib.crc32(question.question.encode()) / 0xFFFFFFFF
        self._broken = mutations.failing(question.sql, database, 5)
        self._wrong = mutations.wrong(question.sql, database, 1)
        words = set(re.findall(r"[a-z_]+", question.sql))
        #: table -> the columns that the right query uses
        self._used = {
            table: [name for name in database.columns_of(table) if name in words]
            for table in database.tables
            if re.search(rf"\b(?:FROM|JOIN) {table}\b", question.sql)
        }

    def entries(self) -> list[Entry]:
        """One entry for each stage that depends on the question."""
        return [
            self._entry("keywords", [self._keywords()]),
            self._entry("tables", [self._tables()]),
            self._entry("columns", [self._columns()]),
            self._entry("candidate", self._candidate_texts()),
            self._entry(
                "correction", self._correction_texts(), r"Attempt: \d+\nError: (?P<error>[^\n]*)"
            ),
            self._entry("unit tests", [self._unit_tests()]),
            self._entry("evaluation", self._evaluation_texts(), self._right_candidate()),
        ]

    def _entry(self, task: str, texts: list[str], then: str = "") -> Entry:
        pattern = rf"\ATask: {task}\n(?>.*\nQuestion id: ){self._q.id}\n"
        if then:
            pattern += f".*?\n{then}"
        low, high = MIN_TOKENS[task]
        least = round(low + (high - low) * self._length)
        return {"pattern": pattern, "texts": texts, "min_tokens": least}

    def _keywords(self) -> str:
        found = re.findall(r"[A-Z]\w+(?: [A-Z]\w+)*|\d[\d:-]*|\w{4,}", self._q.question)
        words = [word for word in found if word.lower() not in SMALL_WORDS]
        words += re.findall(r"\b[a-z]+_[a-z_]+\b", self._q.hint)
        listed = "\n".join(f"- {word}" for word in dict.fromkeys(words))
        return f"The question wants {self._shape()}.\n{listed}"

    def _shape(self) -> str:
        result = self._db.run(self._q.sql)
        if len(result.rows) == 1 and len(result.columns) == 1:
            return "one number or name, so a single row with a single column"
        if "GROUP BY" in self._q.sql:
            return f"one row for each group, with {len(result.columns)} columns"
        return f"a list of rows with {len(result.columns)} columns"

    def _tables(self) -> str:
        reasons = []
        for table, sql in self._db.tables.items():
            comment = sql.splitlines()[0].partition("-- ")[2]
            if table in self._used:
                reasons.append(f"{table}: needed, it holds {comment}, and the question asks there.")
        return (
            "Going through the schema with the keywords in hand:\n"
            + "\n".join(reasons)
            + "\nThe other tables hold nothing that is asked for and connect nothing.\n"
            + f"Tables: {', '.join(self._used)}"
        )

    def _columns(self) -> str:
        lines = [f"{table}: {', '.join(names)}" for table, names in self._used.items()]
        return "\n".join(["Table by table:", *self._column_reasons(), "", *lines])

    def _column_reasons(self) -> list[str]:
        reasons = []
        for table, names in self._used.items():
            for name in names:
                comment = re.search(rf"^  {name} .*?-- (.*)$", self._db.tables[table], re.M)
                reasons.append(f"{table}.{name} is needed ({comment[1] if comment else 'key'}).")
        return reasons

    def _candidate_texts(self) -> list[str]:
        mix = self._candidates
        queries = self._queries(self._broken[: mix.broken], mix)
        return [
            f"{self._way(place % 3)}\nPut together:\n{_fenced(sql)}"
            for place, sql in enumerate(queries)
        ]

    def _correction_texts(self) -> list[str]:
        mix = self._corrections
        reasons = (
            "The database says: {error}. That name or form is not in the schema; I have replaced "
            "it and left the rest as it was.",
            "The error, {error}, comes from the part just before the condition. The tables and "
            "joins are right, so only that part changes. To be sure, once more from the start.\n"
            + self._way(1),
            "Read against the schema, {error} has one cause: the query was not written for SQLite "
            "and for these names. Here it is with the names as they stand in the schema.\n"
            + self._way(0),
        )
        queries = self._queries(self._broken[-mix.broken :], mix)
        return [
            f"{reasons[place % len(reasons)]}\n{_fenced(sql)}" for place, sql in enumerate(queries)
        ]

    def _queries(self, broken: list[str], mix: Mix) -> list[str]:
        right = [self._q.sql, _spread(self._q.sql)]
        return [*broken, *self._wrong[: mix.wrong], *right[: mix.right]]

    def _way(self, detail: int) -> str:
        """The reasoning before a query; `detail` 0 is terse, 1 names joins, 2 columns too."""
        steps = [f"The question asks for {self._shape()}: {self._q.question}"]
        if self._q.hint:
            steps.append(f"The hint settles the wording: {self._q.hint}.")
        steps.append(f"The rows come from {' and '.join(self._used)}.")
        if detail >= 1:
            for condition in re.findall(r" ON ([a-z._]+ = [a-z._]+)", self._q.sql):
                steps.append(f"They are joined where {condition}.")
            grouped = re.search(r" GROUP BY ([a-z._]+)", self._q.sql)
            if grouped is not None:
                steps.append(f"There is one result for each {grouped[1]}: that is the grouping.")
            steps.append("Nothing else in the schema restricts or repeats these rows.")
        if detail >= 2:
            steps += self._column_reasons()
            steps.append("Checked against the rules: names, order of columns, dates, division.")
        return "\n".join(steps)

    def _unit_tests(self) -> str:
        columns = len(self._db.run(self._q.sql).columns)
        filters = re.findall(
            r"(?:WHERE|AND|HAVING) ([a-z_.]+ (?:=|<|>|>=|<=|<>|LIKE) \S+)", self._q.sql
        )
        kept = filters[0] if filters else "every row that belongs to the question"
        return (
            "The candidates read the same tables. They differ in which rows they keep, in what "
            "they count, and in how many rows they give back. A reader can see each of these in "
            "the query and in the first rows of the result.\n"
            f"Test 1: The result has the columns that the question names, {columns} in all, in "
            "the order in which it names them.\n"
            f"Test 2: Only rows with {kept} take part, no matter how many others there are, and "
            "no such row is left out by a join.\n"
            "Test 3: What is counted, summed or averaged is counted once: a join must not "
            "multiply rows, and a row without a partner is treated as the question says."
        )

    def _right_candidate(self) -> str:
        """Finds the first candidate whose result is the right one."""
        right = re.escape(self._db.run(self._q.sql).preview()).replace("\\\n", "\\n")
        return rf"Candidate (?P<right>\d+)\nResult: {right}\n"

    def _evaluation_texts(self) -> list[str]:
        return [
            "Only one way of reading the question satisfies this test.\nCandidate {right}: pass",
            "The query of candidate {right} keeps the rows that the test names and counts each "
            "once; the others lose or repeat some.\nCandidate {right}: pass",
            "By its first rows every candidate could pass this test, since it says little about "
            "what tells them apart.\nCandidate 1: pass\nCandidate 2: pass\nCandidate {right}: pass",
        ]


def general_entries() -> list[Entry]:
    """What does not depend on the question: no candidate is right, and the choice at the end."""
    return [
        {
            "pattern": r"\ATask: evaluation\n.*?\nCandidate (?P<first>\d+)\n",
            "texts": [
                "The rows shown do not contradict the test.\nCandidate {first}: pass",
                "None of the results fits the test.\nCandidate {first}: fail",
            ],
            "min_tokens": MIN_TOKENS["evaluation"][0],
        },
        {
            "pattern": r"\ATask: selection\n.*?\nCandidate (?P<top>\d+) passed",
            "texts": [
                "It passed the most tests, and its result has the form asked for.\nBest: {top}",
                "Read against the question, the first listed answers it; the tests agree.\n"
                "Best: {top}",
            ],
            "min_tokens": MIN_TOKENS["selection"][0],
        },
    ]


def make() -> str:
    """The text of the replies file."""
    with tempfile.TemporaryDirectory(prefix="text2sql-") as folder:
        database = db.build(Path(folder) / "railway.sqlite")
        entries = [
            entry
            for turn, question in enumerate(qs.load())
            for entry in Writer(question, database, turn).entries()
        ]
    document = {"replies": entries + general_entries()}
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _spread(sql: str) -> str:
    return re.sub(r" (FROM|JOIN|LEFT JOIN|WHERE|GROUP BY|HAVING|ORDER BY) ", r"\n\1 ", sql)


def _fenced(sql: str) -> str:
    return f"```sql\n{sql}\n```"


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    check = parser.parse_args().check
    text = make()
    if not check:
        REPLIES_PATH.parent.mkdir(parents=True, exist_ok=True)
        REPLIES_PATH.write_text(text, encoding="utf-8")
        print(f"{REPLIES_PATH}: {len(text)} bytes")
        return 0
    if REPLIES_PATH.read_text(encoding="utf-8") == text:
        return 0
    print(f"{REPLIES_PATH} is out of date: run {Path(__file__).name}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
