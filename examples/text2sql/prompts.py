"""The prompts of every stage. What all questions share stands first, so that a prefix cache helps.

Each system message begins with `Task: <name>` and each user message with `Question id: <id>`:
that is how scripted replies (`make_replies.py`) find their place without reading the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

Messages = list[dict[str, str]]

KEYWORDS = """Task: keywords
You prepare questions about a database for an analyst. Extract from the question, and from the \
hint if there is one, every keyword, key phrase and named entity that is needed to find the right \
tables, columns and values. Keep numbers, dates and names exactly as they are written. Say in one \
sentence what kind of answer is wanted (a number, a list, one row per group), then list the \
keywords, one a line, each after a dash.

Example
Question: Which three authors wrote the most books that were lent out in 2019?
Hint: lent out in 2019 means loan_date LIKE '2019-%'
Answer: The question wants three rows, each naming an author, ranked by a count.
- authors
- books
- lent out in 2019
- loan_date
- most
- three

Example
Question: What is the average weight of cows at Hill Farm that were born after 2015?
Answer: The question wants one number, an average over animals of one farm.
- average weight
- cows
- Hill Farm
- born after 2015"""

TABLES = """Task: tables
You are an expert in databases. Given a schema, a question and its keywords, choose the tables \
that are needed to answer the question: those that hold what is asked for, those that hold what \
is filtered on, and those that connect them. Prefer a table too many to a table too few, but \
leave out what has nothing to do with the question. For each table that you choose, say in one \
sentence why. End with one line 'Tables: ' and the names, separated by commas.

Schema
{schema}"""

COLUMNS = """Task: columns
You are an expert in databases. Given a schema, a question, its keywords and the tables chosen, \
choose the columns that are needed: those in the answer, those in conditions, those for grouping \
and sorting, and those that join the tables. Pay attention to the comments: they say which values \
a column has and in which unit. Explain your choice table by table. End with one line for each \
table, 'table: column, column, ...'.

Schema
{schema}"""

CANDIDATE = """Task: candidate
You are an expert in SQLite. Write one query that answers the question on the given schema.

Rules
- Use only tables and columns of the schema. Qualify columns when more than one table is used.
- Return exactly the columns that are asked for, in the order in which they are asked for.
- Compare text with the values that the comments name, in the same spelling.
- Dates are text, 'YYYY-MM-DD'; use strftime, julianday or plain comparison.
- Multiply by 1.0 or 100.0 before dividing whole numbers.
- If only the first or the best are wanted, use ORDER BY with LIMIT.
- If something may be counted twice through a join, use DISTINCT or a subquery.

{strategy}

{examples}

Explain your way in a few sentences, then give the query in a block that begins with ```sql."""

STRATEGIES = (
    "Way of working: divide and conquer. Split the question into smaller questions, write a query "
    "for each, and put them together into one.",
    "Way of working: query plan. Say step by step how a database would find the answer: which "
    "tables it reads, how it joins and filters them, what it groups and sorts. Then write the "
    "query that does so.",
    "Way of working: examples first. Imagine two rows of the right answer and say where each of "
    "their values comes from. Then write the query that produces such rows.",
    "Way of working: directly. Write the shortest query that is right, then check each rule above "
    "against it.",
)

EXAMPLES = (
    """Example
Question: How many loans of each member in 2019 were returned late?
Way: Loans carry the member and both dates. A loan is late if it came back after it was due. One \
row for each member, so group by member.
```sql
SELECT m.name, COUNT(*) FROM loans AS l JOIN members AS m ON m.member_id = l.member_id \
WHERE l.loan_date LIKE '2019-%' AND l.returned_on > l.due_on GROUP BY m.member_id
```""",
    """Example
Question: Which farm has the heaviest cow, and how heavy is it?
Way: The weight is in animals, the name in farms. Sort by weight and keep the first row.
```sql
SELECT f.name, a.weight_kg FROM animals AS a JOIN farms AS f ON f.farm_id = a.farm_id \
WHERE a.species = 'cow' ORDER BY a.weight_kg DESC LIMIT 1
```""",
    """Example
Question: What percentage of the orders of each shop was paid by card?
Way: Count the orders paid by card with a CASE inside COUNT, divide by all, one row for each shop.
```sql
SELECT s.name, 100.0 * COUNT(CASE WHEN o.paid_by = 'card' THEN 1 END) / COUNT(*) \
FROM orders AS o JOIN shops AS s ON s.shop_id = o.shop_id GROUP BY s.shop_id
```""",
    """Example
Question: Which members borrowed more books in 2019 than the average member did that year?
Way: First count the loans of each member in 2019, as a table of its own. Then compare each count \
with the average of all counts. Members without a loan in 2019 are not in the average.
```sql
WITH counted AS (SELECT member_id, COUNT(*) AS loans FROM loans WHERE loan_date LIKE '2019-%' \
GROUP BY member_id) SELECT m.name FROM counted AS c JOIN members AS m ON m.member_id = c.member_id \
WHERE c.loans > (SELECT AVG(loans) FROM counted)
```""",
)

CORRECTION = """Task: correction
You are an expert in SQLite. A query that should answer a question failed. Find out why and write \
it anew.

Rules
- Read the error first. 'no such column' and 'no such table' mean a name that is not in the \
schema: look the right one up, with its spelling.
- A syntax error is near the word that is quoted, or just before it.
- A function that SQLite lacks must be written otherwise (strftime for parts of dates).
- A query that ran but returned no rows compares with a value that does not occur: look at the \
values that the comments name.
- Do not change what was right.

Example
Question: How many loans were returned late in May 2019?
Error: no such function: MONTH
Query: SELECT COUNT(*) FROM loans WHERE MONTH(returned_on) = 5 AND returned_on > due_on
Answer: SQLite has no MONTH; dates are text, so compare the beginning. The year was missing too.
```sql
SELECT COUNT(*) FROM loans WHERE returned_on LIKE '2019-05-%' AND returned_on > due_on
```

Example
Question: Which farms keep more than ten sheep?
Error: misuse of aggregate: COUNT()
Query: SELECT f.name FROM farms AS f JOIN animals AS a ON a.farm_id = f.farm_id \
WHERE COUNT(*) > 10 AND a.species = 'sheep' GROUP BY f.farm_id
Answer: A condition on a group stands in HAVING, not in WHERE.
```sql
SELECT f.name FROM farms AS f JOIN animals AS a ON a.farm_id = f.farm_id \
WHERE a.species = 'sheep' GROUP BY f.farm_id HAVING COUNT(*) > 10
```

Say in a few sentences what was wrong, then give the whole query in a block that begins with \
```sql."""

UNIT_TESTS = """Task: unit tests
You check queries written by others. Several candidates answer the same question and give \
different results. Write {count} unit tests in plain language that tell a right candidate from a \
wrong one. A good test names one property that follows from the question alone (which rows must \
be counted, which must not, what the columns mean, how many rows there can be, in which order), \
and can be decided by reading a query and the first rows of its result. Do not test what all \
candidates have in common.

Explain first in what the candidates differ. Then write each test on a line of its own, as \
'Test 1: ...', 'Test 2: ...'."""

EVALUATION = """Task: evaluation
You check queries written by others. You get a question, candidates with the first rows of their \
results, and one unit test. Decide for each candidate whether it passes the test. Say in a \
sentence what decides it. Then write one line for each candidate: 'Candidate 1: pass' or \
'Candidate 1: fail'."""

SELECTION = """Task: selection
You choose between queries written by others. You get a question and candidates with the first \
rows of their results and the number of unit tests that each has passed, best first. Choose the \
one that answers the question. Prefer the one that passed more tests unless it is plainly wrong. \
Give your reason in a sentence or two, then end with one line 'Best: ' and the number of the \
candidate."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What every user message repeats about the question."""

    id: str
    question: str
    hint: str

    def text(self) -> str:
        """The head of a user message."""
        hint = f"\nHint: {self.hint}" if self.hint else ""
        return f"Question id: {self.id}\nQuestion: {self.question}{hint}"


@dataclasses.dataclass(frozen=True)
class Shown:
    """A candidate as the checking stages see it."""

    number: int
    sql: str
    result: str
    passed: int = 0


def keywords(asked: Asked) -> Messages:
    """Stage 1: the keywords of the question."""
    return _messages(KEYWORDS, asked.text())


def tables(asked: Asked, schema: str, words: Sequence[str]) -> Messages:
    """Stage 2: the tables needed."""
    user = f"{asked.text()}\nKeywords: {', '.join(words)}"
    return _messages(TABLES.format(schema=schema), user)


def columns(asked: Asked, schema: str, words: Sequence[str], chosen: Sequence[str]) -> Messages:
    """Stage 3: the columns needed."""
    user = f"{asked.text()}\nKeywords: {', '.join(words)}\nTables: {', '.join(chosen)}"
    return _messages(COLUMNS.format(schema=schema), user)


def candidate(asked: Asked, linked_schema: str, number: int) -> Messages:
    """Stage 4: one candidate; `number` (from 0) picks the way of working and the examples."""
    turn = number % len(EXAMPLES)
    examples = "\n\n".join([*EXAMPLES[turn:], *EXAMPLES[:turn]])
    strategy = STRATEGIES[number % len(STRATEGIES)]
    user = f"{asked.text()}\nVariant: {number + 1}\n\nSchema\n{linked_schema}"
    return _messages(CANDIDATE.format(strategy=strategy, examples=examples), user)


def correction(asked: Asked, linked_schema: str, sql: str, error: str, attempt: int) -> Messages:
    """Stage 5: one candidate that failed, with the database's error."""
    user = (
        f"{asked.text()}\nAttempt: {attempt}\nError: {error}\n\nQuery\n```sql\n{sql}\n```\n\n"
        f"Schema\n{linked_schema}"
    )
    return _messages(CORRECTION, user)


def unit_tests(asked: Asked, linked_schema: str, shown: Sequence[Shown], count: int) -> Messages:
    """Stage 6: tests that tell the candidates apart."""
    user = f"{asked.text()}\n\n{_listing(shown)}\n\nSchema\n{linked_schema}"
    return _messages(UNIT_TESTS.format(count=count), user)


def evaluation(asked: Asked, linked_schema: str, shown: Sequence[Shown], test: str) -> Messages:
    """Stage 7: all candidates against one test."""
    user = f"{asked.text()}\n\n{_listing(shown)}\n\nUnit test: {test}\n\nSchema\n{linked_schema}"
    return _messages(EVALUATION, user)


def selection(asked: Asked, shown: Sequence[Shown], tests: int) -> Messages:
    """Stage 8, the last: the best candidate, those with more tests passed first."""
    ranked = sorted(shown, key=lambda item: (-item.passed, item.number))
    verdicts = "\n".join(
        f"Candidate {item.number} passed {item.passed} of {tests} tests" for item in ranked
    )
    return _messages(SELECTION, f"{asked.text()}\n\n{verdicts}\n\n{_listing(ranked)}")


def _listing(shown: Sequence[Shown]) -> str:
    return "\n\n".join(
        f"Candidate {item.number}\nResult: {item.result}\nQuery:\n{item.sql}" for item in shown
    )


def _messages(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
