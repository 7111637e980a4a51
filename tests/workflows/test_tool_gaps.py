from __future__ import annotations

import json
import random

import pytest
from workflow_world import World

from dispatcher.core.types import WorkflowId
from workflows.tools import ENOUGH, UNNAMED, WINDOW, ToolGaps


def test_quantiles_of_a_known_distribution() -> None:
    gaps, rng = ToolGaps(10), random.Random(1)
    for _ in range(5 * WINDOW):
        gaps.learn("uniform", rng.random())
    for p in (0.0, 0.5, 0.9, 1.0):
        assert gaps.quantile_s("uniform", p) == pytest.approx(p, abs=0.1)


def test_quantiles_ascend() -> None:
    gaps, rng = ToolGaps(10), random.Random(2)
    for _ in range(50):
        gaps.learn("sql", rng.expovariate(1.0))
    quantiles = [gaps.quantile_s("sql", p / 20) for p in range(21)]
    assert quantiles == sorted(q for q in quantiles if q is not None)


def test_a_tool_that_changed_is_followed() -> None:
    gaps = ToolGaps(10)
    for gap_s in [1.0] * 1000 + [9.0] * WINDOW:
        gaps.learn("sql", gap_s)
    assert gaps.quantile_s("sql", 0.0) == 9.0


def test_a_tool_of_which_too_little_is_known_is_like_the_others() -> None:
    gaps = ToolGaps(10)
    assert gaps.quantile_s("sql", 0.5) is None
    gaps.learn("sql", 3.0)
    assert gaps.quantile_s("sql", 0.5) == 3.0  # nothing better is known
    assert gaps.quantile_s("python", 0.5) == 3.0
    for _ in range(100):
        gaps.learn("python", 1.0)
    assert gaps.quantile_s("sql", 0.5) == 1.0
    assert gaps.quantile_s("never seen", 0.5) == 1.0
    assert gaps.quantile_s(None, 0.5) == 1.0
    for _ in range(ENOUGH - 1):
        gaps.learn("sql", 3.0)
    assert gaps.quantile_s("sql", 0.5) == 3.0


def test_unnamed_gaps_have_quantiles_of_their_own() -> None:
    gaps = ToolGaps(10)
    for _ in range(ENOUGH):
        gaps.learn(None, 5.0)
        gaps.learn("sql", 1.0)
    assert gaps.quantile_s(None, 0.5) == 5.0


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        ToolGaps(10).quantile_s("sql", p)


def test_memory_is_bounded() -> None:
    gaps, rng = ToolGaps(20), random.Random(3)
    for number in range(20_000):
        gaps.learn(f"tool{number % 50 if number % 2 else rng.randrange(10**6)}", rng.random())
    assert len(gaps) == 20
    windows = gaps.dump_windows()
    kept = windows["tools"]
    assert isinstance(kept, dict)
    assert set(kept) == set(gaps.dump())
    assert max(map(len, kept.values())) <= WINDOW
    assert len(gaps.stats(limit=5)) == 5


def test_stats_show_the_latest_first() -> None:
    gaps = ToolGaps(10)
    for tenths in range(11):
        gaps.learn("sql", tenths / 10)
    gaps.learn("python", 2.0)
    python, sql = gaps.stats()
    assert (python["tool"], python["own_quantiles"]) == ("python", False)
    assert sql == {
        "tool": "sql",
        "samples": 11,
        "mean_s": pytest.approx(0.5),
        "p50_s": pytest.approx(0.5),
        "p90_s": pytest.approx(0.9),
        "p95_s": pytest.approx(0.95),
        "own_quantiles": True,
    }


def test_dump_and_load_give_the_same_answers() -> None:
    gaps, again, rng = ToolGaps(10), ToolGaps(10), random.Random(4)
    for _ in range(500):
        gaps.learn(rng.choice(["a", "b", None]), rng.random())
    again.load(*json.loads(json.dumps([gaps.dump(), gaps.dump_windows()])))
    assert again.stats() == gaps.stats()
    for p in (0.1, 0.5, 0.9):
        assert again.quantile_s("new", p) == gaps.quantile_s("new", p)


def test_means_of_before_there_were_windows_are_taken() -> None:
    gaps = ToolGaps(10)
    gaps.load({"sql": [2.0, 7]}, {})
    assert gaps.mean_s("sql") == 2.0
    assert gaps.quantile_s("sql", 0.5) is None
    assert gaps.stats()[0]["p50_s"] is None


@pytest.mark.parametrize(
    "windows", [{"tools": 1}, {"tools": {"sql": 1}}, {"tools": {"sql": [-1]}}, {"all": ["x"]}]
)
def test_windows_of_another_shape_change_nothing(windows: dict[str, object]) -> None:
    gaps = ToolGaps(10)
    gaps.learn("sql", 1.0)
    before = gaps.dump(), gaps.dump_windows()
    with pytest.raises(ValueError, match="tool"):
        gaps.load({"sql": [2.0, 7]}, windows)
    assert (gaps.dump(), gaps.dump_windows()) == before


def test_a_workflow_shows_its_gaps_and_teaches_the_tracker() -> None:
    world = World()
    world.arrive("a", stage="draft")
    world.at(1).end("a")
    world.at(3.5).arrive("b", stage="fix", tool="sql")
    first, second = world.explain()["stages"]
    assert (first["gap_s"], first["tool"]) == (None, None)
    assert (second["gap_s"], second["tool"]) == (2.5, "sql")
    assert world.tracker.tools.quantile_s("sql", 0.9) == 2.5
    tools = world.tracker.stats()["tools"]
    assert [row["tool"] for row in tools] == ["sql"]  # type: ignore[attr-defined]
    restarted = World()
    restarted.tracker.restore(json.loads(json.dumps(world.tracker.snapshot(4.0))), 0.0)
    assert restarted.tracker.tools.quantile_s("sql", 0.9) == 2.5
    assert restarted.tracker.live_calls(WorkflowId("w")) == ()


def test_the_answer_names_the_gap_where_the_next_call_does_not() -> None:
    world = World()
    world.arrive("a")
    world.at(1).end("a", tool="run_sql")
    world.at(4).arrive("b")
    assert (world.explain()["stages"][1]["gap_s"], world.explain()["stages"][1]["tool"]) == (
        3.0,
        "run_sql",
    )
    assert world.tracker.tools.quantile_s("run_sql", 0.5) == 3.0
    assert [row["tool"] for row in world.tracker.tools.stats()] == ["run_sql"]


def test_who_comes_back_knows_better_what_ran() -> None:
    world = World()
    world.arrive("a")
    world.at(1).end("a", tool="run_sql")
    world.at(4).arrive("b", tool="sqlite")
    assert [row["tool"] for row in world.tracker.tools.stats()] == ["sqlite"]


@pytest.mark.parametrize("tool", [None, ""])
def test_a_gap_after_an_answer_that_names_no_tool_has_no_name(tool: str | None) -> None:
    world = World()
    world.arrive("a")
    world.at(1).end("a", tool=tool)
    world.at(4).arrive("b")
    assert world.explain()["stages"][1]["tool"] is None
    assert [row["tool"] for row in world.tracker.tools.stats()] == [UNNAMED]


def test_a_tool_names_one_gap_only() -> None:
    world = World()
    world.arrive("a")
    world.at(1).end("a", tool="run_sql")
    world.at(2).arrive("b")
    world.at(3).end("b")
    world.at(9).arrive("c")
    assert [(row["tool"], row["mean_s"]) for row in world.tracker.tools.stats()] == [
        (UNNAMED, 6.0),
        ("run_sql", 1.0),
    ]


def test_of_calls_side_by_side_one_that_asked_for_a_tool_names_the_gap() -> None:
    world = World()
    world.arrive("a", stage="s")
    world.arrive("b", stage="s")
    world.at(1).end("a", tool="run_sql")
    world.at(2).end("b")
    world.at(4).arrive("c")
    assert [(row["tool"], row["mean_s"]) for row in world.tracker.tools.stats()] == [
        ("run_sql", 2.0)
    ]


def test_a_call_that_was_sent_again_names_no_gap() -> None:
    world = World()
    world.arrive("a", dedupe_key="k")
    world.arrive("a2", dedupe_key="k")
    world.at(1).end("a", tool="run_sql")
    world.at(2).end("a2")
    world.at(4).arrive("c")
    assert [row["tool"] for row in world.tracker.tools.stats()] == [UNNAMED]
