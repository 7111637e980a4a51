from __future__ import annotations

from pathlib import Path

import database as db
import make_replies
import mutations
import parsing
import pytest
import questions as qs

from dispatcher.emulator.scripting import ReplyScript


def test_committed_replies_are_what_the_script_makes() -> None:
    committed = make_replies.REPLIES_PATH.read_text(encoding="utf-8")
    assert committed == make_replies.make(), "run python examples/text2sql/make_replies.py"
    assert len(committed) < 1_000_000


def test_emulator_reads_the_file() -> None:
    script = ReplyScript.load(Path(make_replies.REPLIES_PATH))
    # Other applications on the same engines must not be answered with SQL.
    assert script.default is None
    assert all(entry.pattern.startswith(r"\ATask: ") for entry in script.replies)


def test_every_question_has_right_and_broken_texts(
    database: db.Database, asked: list[qs.Question]
) -> None:
    script = ReplyScript.load(Path(make_replies.REPLIES_PATH))
    for item in asked:
        gold = database.run(item.sql)
        texts = [
            text
            for entry in script.replies
            if f"Question id: ){item.id}\n" in entry.pattern.replace(r"\n", "\n")
            and entry.pattern.startswith((r"\ATask: candidate", r"\ATask: correction"))
            for text in entry.texts
        ]
        results = [database.run(parsing.sql(text)) for text in texts]
        assert any(result.same_as(gold) for result in results), item.id
        assert any(not result.usable for result in results), item.id


def test_mutations_are_checked_on_the_database(database: db.Database) -> None:
    sql = "SELECT name FROM lines WHERE kind = 'express' AND electrified = 1"
    assert all(database.run(made).trouble for made in mutations.failing(sql, database, 4))
    wrong = mutations.wrong(sql, database, 1)[0]
    assert database.run(wrong).usable
    assert not database.run(wrong).same_as(database.run(sql))
    with pytest.raises(ValueError, match="variants fit"):
        mutations.wrong("SELECT COUNT(*) FROM lines", database, 3)
