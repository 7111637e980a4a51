"""`headway bench predictors`: what it reads, how it splits, what it writes and shows."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dispatcher.bench.predictors import command, timing
from dispatcher.bench.predictors.contest import BY_BOTH, FOREST, GLOBAL, NO_TEXT, PREDICTORS, Said
from dispatcher.bench.predictors.corpus import SHIPPED, CorpusError, corpus
from dispatcher.bench.predictors.document import floors
from dispatcher.bench.predictors.figures import Results
from dispatcher.bench.predictors.splits import FOLDS, Split, by_application, by_group
from dispatcher.bench.predictors.tables import tables
from dispatcher.bench.shown import Console
from dispatcher.cli import app
from dispatcher.core.errors import ConfigurationError
from predictors.quantile_forest import ForestSettings
from predictors.text_features import text_features

SMALL = ForestSettings(trees=5, most_rows=500)


def line(**changed):
    return {"application": "qa", "prompt": "Why?", "prompt_tokens": 3, "model": "m",
            "output_tokens": 40} | changed  # fmt: skip


def written(path, lines):
    text = "\n".join(json.dumps(one) for one in lines) + "\n"
    packed = {".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(packed(text.encode()))
    return path


def made_up(prompts=120):
    """Two applications whose answers are as long as is asked for, by two models."""
    rng = random.Random(0)
    for number in range(prompts):
        words = rng.choice((20, 100, 400))
        for model, times in (("brief", 1.0), ("wordy", 2.0)):
            tokens = max(1, round(times * words * math.exp(rng.gauss(0.0, 0.2))))
            yield line(
                application=("essay", "note")[number % 2], model=model, output_tokens=tokens,
                prompt=f"Write on topic {number} in {words} words.", prompt_tokens=12,
            )  # fmt: skip


# --- the corpus ---------------------------------------------------------------------------------


def test_the_shipped_corpus_is_whole():
    found = corpus(None)
    assert found.name == SHIPPED
    assert len(found.answers) > 80_000
    names = {answer.spec.application for answer in found.answers}
    assert names == {
        "arena-hard", "crux", "gsm", "magagent", "math-l5", "miniswe", "numersense-v2",
        "tau-airline", "zebra-grid",
    }  # fmt: skip
    assert min(answer.tokens for answer in found.answers) >= 1
    assert all(np.isfinite(answer.row).all() for answer in found.answers[::500])


@pytest.mark.parametrize("name", ["some.jsonl", "some.jsonl.gz", "some.jsonl.xz"])
def test_a_corpus_of_ones_own(tmp_path, name):
    given = [
        line(),
        line(output_tokens=60, model="n"),
        {"task": "sql", "features": text_features("Select."), "prompt_tokens": 9, "group": "g",
         "answers": {"m": [5, 6]}, "tool": "grep", "max_tokens": 7, "last_role": "tool"},
    ]  # fmt: skip
    first, second, third, fourth = corpus(written(tmp_path / name, given)).answers
    assert (first.tokens, first.spec.model, second.spec.model) == (40, "m", "n")
    assert first.group == second.group  # the same prompt
    assert first.row[1:] == second.row[1:]
    assert first.row[0] != second.row[0]
    assert (third.group, third.tokens, fourth.tokens) == ("g", 5, 6)
    assert (third.spec.application, third.spec.tool, third.spec.max_tokens) == ("sql", "grep", 7)
    assert third.spec.features["last_role"] == 2.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"application": None}, "line 1: application: expected a text"),
        ({"prompt": 7}, "line 1: prompt: expected a text"),
        ({"output_tokens": 0}, "output_tokens: expected a whole number from 1 on, not 0"),
        ({"output_tokens": 2.5}, "output_tokens: expected a whole number"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
    ],
)
def test_a_corpus_in_another_form_is_refused(tmp_path, wrong, said):
    with pytest.raises(CorpusError, match=said):
        corpus(written(tmp_path / "bad.jsonl", [line(**wrong)]))


def test_what_is_no_corpus_at_all(tmp_path):
    missing = {key: value for key, value in line().items() if key != "output_tokens"}
    with pytest.raises(CorpusError, match="'output_tokens' is missing"):
        corpus(written(tmp_path / "a.jsonl", [missing]))
    with pytest.raises(CorpusError, match="no answers"):
        corpus(written(tmp_path / "b.jsonl", []))
    broken = tmp_path / "c.jsonl.xz"
    broken.write_bytes(b"not packed")
    with pytest.raises(CorpusError, match="cannot be unpacked"):
        corpus(broken)


# --- splits -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def essays(tmp_path_factory):
    return written(tmp_path_factory.mktemp("corpus") / "essays.jsonl", made_up())


def test_every_answer_is_tested_once_and_groups_are_apart(essays):
    answers = corpus(essays).answers
    splits = by_group(answers, seed=3)
    assert len(splits) == FOLDS
    assert sorted(at for split in splits for at in split.test) == list(range(len(answers)))
    for split in splits:
        assert split.overlaps(answers) == 0
        assert sorted((*split.train, *split.calibration, *split.test)) == list(range(len(answers)))
        # both applications are in every part, in proportion
        for part in split.parts:
            notes = sum(answers[at].spec.application == "note" for at in part)
            assert 0.35 < notes / len(part) < 0.65
    assert by_group(answers, seed=3) == splits
    assert by_group(answers, seed=4) != splits


def test_an_overlap_is_counted(essays):
    answers = corpus(essays).answers
    assert answers[0].group == answers[1].group
    assert Split("bad", (0,), (1,), (2,)).overlaps(answers) == 1


def test_an_application_left_out_is_nowhere_else(essays):
    answers = corpus(essays).answers
    splits = by_application(answers, seed=0, least=10)
    assert [split.name for split in splits] == ["without essay", "without note"]
    for split in splits:
        left_out = split.name.removeprefix("without ")
        assert {answers[at].spec.application for at in split.test} == {left_out}
        others = (*split.train, *split.calibration)
        assert left_out not in {answers[at].spec.application for at in others}
        assert split.overlaps(answers) == 0
    assert by_application(answers, seed=0, least=10_000) == []


def test_too_few_groups_to_split(tmp_path):
    few = corpus(written(tmp_path / "few.jsonl", [line()] * 30)).answers
    with pytest.raises(ConfigurationError, match="1 groups"):
        by_group(few, seed=0)


# --- figures ------------------------------------------------------------------------------------


def test_figures_by_hand(tmp_path):
    lines = [line(output_tokens=tokens, prompt=str(tokens)) for tokens in (10, 20, 30, 40)]
    answers = corpus(written(tmp_path / "four.jsonl", lines)).answers
    split = Split("fold 1", (), (), (0, 1, 2, 3))
    ours = np.tile([5.0, 20.0, 40.0, 50.0], (4, 1))
    worse = ours + 100.0
    found = Results(answers, [Said(split, {FOREST: ours, NO_TEXT: worse}, 0.0)])
    figures = found.figures()["predictors"][FOREST]
    assert figures["coverage"] == {"0.5": 0.5, "0.9": 1.0, "0.95": 1.0}
    # of the median: (5 + 0 + 5 + 10) / 4
    assert figures["pinball_by_quantile"]["0.5"] == pytest.approx(5.0)
    assert figures["pinball_by_quantile"]["0.9"] == pytest.approx(0.1 * (30 + 20 + 10) / 4)
    assert (figures["width_tokens"], figures["upper_tokens"]) == (35.0, 50.0)
    assert found.difference(FOREST, NO_TEXT)["relative"] < -0.5
    assert found.difference(FOREST, FOREST) == {"relative": 0.0, "error": 0.0}


# --- the whole ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(essays):
    return command.judge(essays, 0, SMALL, jobs=1)


def test_the_document_names_what_it_is_of(found):
    assert {"version", "commit", "seed", "configuration", "corpus", "timing"} <= set(found)
    assert found["configuration"]["forest"]["trees"] == 5
    assert found["corpus"]["answers"] == 240
    assert [split["overlaps"] for split in found["splits"]] == [0] * 7
    assert set(found["by_prompt"]["all"]["predictors"]) == set(PREDICTORS)
    assert set(found["by_application"]["applications"]) == {"essay", "note"}
    assert json.loads(json.dumps(found)) == found


def test_text_helps_where_the_text_says_how_long(found):
    losses = {
        name: figures["pinball"]
        for name, figures in found["by_prompt"]["all"]["predictors"].items()
    }
    assert losses[FOREST] < 0.85 * losses[NO_TEXT]
    assert losses[FOREST] < 0.85 * losses[BY_BOTH] < losses[GLOBAL]
    assert found["text"][0]["text"] == "helps"


def test_what_is_promised_can_be_missed(found):
    assert len(found["floors"]) == 12
    wrong = json.loads(json.dumps(found))
    wrong["by_prompt"]["all"]["predictors"][FOREST]["coverage"]["0.9"] = 0.85
    wrong["timing"]["alone"]["median_s"] = 0.02
    wrong["splits"][0]["overlaps"] = 1
    missed = [row["what"] for row in floors(wrong) if not row["met"]]
    for what in ("groups on two sides", "coverage of 0.9", "seconds, alone"):
        assert any(row.startswith(what) for row in missed), what


def test_everything_timed_was_done(found):
    assert all(of_one["median_s"] > 0 for of_one in found["timing"].values())
    graphs, running = timing._graphs(random.Random(0))
    assert graphs.match("a", running[0])[0].candidates == 200


def test_an_application_with_few_answers_is_not_judged(found):
    few = json.loads(json.dumps(found))
    few["by_prompt"]["applications"]["note"]["judged"] = False
    assert not any("in note" in row["what"] for row in floors(few))
    console = Console(width=160, record=True)
    for table in tables(few):
        console.print(table)
    shown = console.export_text()
    assert "note (too few to judge)" in shown
    assert "rolling by model and application" in shown


def test_the_command_writes_and_shows(essays, tmp_path, monkeypatch):
    whole = command.judge

    def small(file, seed, **told):
        return whole(file, seed, SMALL, **(told | {"jobs": 1}))

    monkeypatch.setattr(command, "judge", small)
    out = tmp_path / "found.json"
    arguments = ["bench", "predictors", "--corpus", str(essays), "--json", str(out), "--seed", "2"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_bytes())["seed"] == 2
    assert "what was promised" in done.output
    done = CliRunner().invoke(app, ["bench", "predictors", "--json", str(tmp_path / "no/where")])
    assert done.exit_code == 2
    assert "no such directory" in done.output


def test_the_same_seed_says_the_same(essays, found):
    again = command.judge(essays, 0, replace(SMALL), jobs=1)
    for part in ("by_prompt", "by_application", "text"):
        assert again[part] == found[part]
