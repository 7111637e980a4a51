from __future__ import annotations

import json
import random

import pytest

from workflows.templates import Templates, VisitSummary


def visit(stage: str, level: int, output: float, width: int = 1) -> VisitSummary:
    return VisitSummary(stage, level, width, 0.0, output)


def output_s(prompt_tokens: float, output_tokens: float) -> float:
    return prompt_tokens + output_tokens


def test_converges_to_the_expected_rest() -> None:
    rng, templates = random.Random(1), Templates()
    for _ in range(2000):
        fixes = 1 if rng.random() < 0.4 else 0
        visits = [visit("draft", 0, rng.gauss(100, 10), width=3)]
        visits += [visit("fix", 1, rng.gauss(200, 20)) for _ in range(fixes)]
        visits += [visit("vote", 1 + fixes, rng.gauss(50, 5))]
        templates.learn("app", visits)
    app = templates.get("app")
    assert app is not None
    assert app.tail_work_s("draft", 1, 0, output_s) == pytest.approx(0.4 * 200 + 50, rel=0.25)
    assert app.stages["fix"].occurs.value == pytest.approx(0.4, abs=0.2)
    assert app.stages["draft"].width.value == pytest.approx(3)
    assert [row["stage"] for row in app.summary()] == ["draft", "fix", "vote"]


def test_an_application_that_changed_is_followed() -> None:
    templates = Templates()
    for output in [100.0] * 300 + [500.0] * 200:
        templates.learn("app", [visit("draft", 0, 1.0), visit("vote", 1, output)])
    app = templates.get("app")
    assert app is not None
    assert app.tail_work_s("draft", 1, 0, output_s) == pytest.approx(500, rel=0.05)


def test_memory_is_bounded() -> None:
    templates = Templates(max_applications=20, max_stages=10)
    rng = random.Random(2)
    for number in range(20_000):
        stage = f"s{rng.randrange(10**5)}"
        templates.learn(f"app{rng.randrange(10**5) if number % 2 else 0}", [visit(stage, 0, 1.0)])
    state = templates.dump()
    assert len(state) == 20
    assert max(len(entry["stages"]) for entry in state.values()) == 10  # type: ignore[index]


def test_dump_and_load_give_the_same_answers() -> None:
    templates, again = Templates(), Templates()
    for number in range(30):
        levels = range(number % 4 + 1)
        templates.learn("app", [visit(f"s{level}", level, number) for level in levels])
    again.load(json.loads(json.dumps(templates.dump())))
    assert again.dump() == templates.dump()
    for one in (templates, again):
        one.learn("app", [visit("s0", 0, 7.0)])
    assert again.dump() == templates.dump()
