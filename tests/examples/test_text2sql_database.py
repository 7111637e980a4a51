from __future__ import annotations

from collections import Counter
from pathlib import Path

import database as db
import parsing
import pytest
import questions as qs


def test_same_seed_gives_the_same_database(database: db.Database, tmp_path: Path) -> None:
    again = db.build(tmp_path / "again.sqlite")
    other = db.build(tmp_path / "other.sqlite", seed=db.DATA_SEED + 1)
    query = "SELECT * FROM tickets ORDER BY ticket_id"
    assert database.run(query) == again.run(query)
    assert database.run(query) != other.run(query)


def test_tables_hold_a_few_thousand_rows_and_keep_their_references(database: db.Database) -> None:
    rows = sum(int(str(database.run(f"SELECT COUNT(*) FROM {t}").rows[0][0])) for t in TABLES)
    assert set(database.tables) == TABLES
    assert 3000 < rows < 10_000
    for table, sql in database.tables.items():
        for line in sql.splitlines():
            if "REFERENCES" in line:
                column = line.split()[0]
                target, key = line.split("REFERENCES ")[1].split(")")[0].split("(")
                orphans = database.run(
                    f"SELECT COUNT(*) FROM {table} WHERE {column} IS NOT NULL AND {column} "
                    f"NOT IN (SELECT {key} FROM {target})"
                )
                assert orphans.rows == ((0,),), (table, column)


TABLES = {
    "lines",
    "stations",
    "line_stops",
    "units",
    "staff",
    "services",
    "delays",
    "customers",
    "tickets",
    "repairs",
    "complaints",
}


def test_every_gold_query_runs_and_returns_rows(
    database: db.Database, asked: list[qs.Question]
) -> None:
    troubles = {item.id: database.run(item.sql).trouble for item in asked}
    assert {name: trouble for name, trouble in troubles.items() if trouble} == {}


def test_questions_are_of_three_difficulties_with_ids_of_their_own(
    asked: list[qs.Question],
) -> None:
    assert Counter(item.difficulty for item in asked) == {
        "simple": 6,
        "moderate": 30,
        "challenging": 6,
    }
    assert len({item.id for item in asked}) == len({item.sql for item in asked}) == len(asked)


def test_more_questions_than_there_are_come_again_in_other_words(asked: list[qs.Question]) -> None:
    drawn = qs.draw(asked, 100, seed=3)
    assert len(drawn) == 100
    assert {item.id for item in drawn[:42]} == {item.id for item in asked}
    assert len({item.question for item in drawn}) == 100
    assert drawn == qs.draw(asked, 100, seed=3)
    assert drawn != qs.draw(asked, 100, seed=4)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM tickets",
        "ATTACH DATABASE '/tmp/other.sqlite' AS other",
        "SELECT 1; SELECT 2",
        "PRAGMA journal_mode = WAL",
        "SELEC name FROM lines",
    ],
)
def test_a_query_may_only_read(database: db.Database, sql: str) -> None:
    assert database.run(sql).error is not None


def test_a_query_without_end_is_stopped(
    database: db.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "MAX_QUERY_S", 0.02)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    assert database.run(endless).trouble == "interrupted"


def test_results_are_compared_without_order_and_with_counts(database: db.Database) -> None:
    up = database.run("SELECT name FROM lines ORDER BY name")
    down = database.run("SELECT name FROM lines ORDER BY name DESC")
    twice = database.run("SELECT name FROM lines UNION ALL SELECT name FROM lines")
    assert up.same_as(down)
    assert not up.same_as(twice)
    assert not up.same_as(db.QueryResult(error="x"))


def test_linked_schema_keeps_chosen_columns_and_keys(database: db.Database) -> None:
    text = database.describe({"delays": ["minutes"]})
    assert "minutes INTEGER" in text
    assert "REFERENCES services(service_id)" in text
    assert "cause" not in text
    assert "CREATE TABLE lines" not in text


def test_answers_in_unexpected_form_are_read_in_the_widest_sense() -> None:
    known = ["lines", "stations"]
    assert parsing.tables("I would read stations only.", known) == ["stations"]
    assert parsing.tables("no idea", known) == known
    assert parsing.columns("?", {"lines": ["name"]}) == {"lines": ["name"]}
    assert parsing.sql("Sure.\nSELECT 1;\n") == "SELECT 1"
    assert parsing.sql("```\nSELECT 1\n```\nbetter:\n```sql\nSELECT 2;\n```") == "SELECT 2"
    assert parsing.sql("I cannot.") == ""
    assert parsing.unit_tests("1. one row\n2) two columns\nTest 3: sorted", 2) == [
        "one row",
        "two columns",
    ]
    assert len(parsing.unit_tests("nothing", 3)) == 1
    assert parsing.verdicts("Candidate 1: fail\n**Candidate 2**: PASS", [1, 2]) == {2}
    assert parsing.best("Best: 7", [1, 2]) is None
    assert parsing.best("Best: candidate 2", [1, 2]) == 2
