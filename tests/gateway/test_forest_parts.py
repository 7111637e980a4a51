"""The parts of the live forest that need no process: rows, evidence, comparison, who asks."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dispatcher.core.types import CallId, CallSpec, LengthEstimate, WorkflowId
from dispatcher.gateway.forest.allowance import Allowance
from dispatcher.gateway.forest.comparison import LEAST_CALLS, WINDOW, Comparison, pinball
from dispatcher.gateway.forest.evidence import (
    OBSERVED_AT_ONCE,
    OPEN_MAX,
    PAIRS_MAX,
    PROBATION_CALLS,
    Evidence,
    Guess,
)
from dispatcher.gateway.forest.health import State
from dispatcher.gateway.forest.inside import _arrays
from dispatcher.gateway.forest.limits import known_exactly, limits_decide, within_limits
from dispatcher.gateway.forest.rows import RowWindow, packed, to_json
from dispatcher.gateway.forest.trial import MOST_CALLS, Judged, Trial, held
from dispatcher.gateway.parsing.asking import asking_message, asking_prompt
from dispatcher.gateway.parsing.body import CHAT, COMPLETIONS, RESPONSES, read_body
from predictors.coverage import Coverage
from predictors.text_features import TEXT_FEATURES

# --- rows ---------------------------------------------------------------------------------------


def filled(count: int, most: int) -> RowWindow:
    window = RowWindow(width=2, most=most)
    for number in range(count):
        window.add(packed([0.5, number]), f"w{number // 2}", number + 1)
    return window


def lengths(window: RowWindow) -> list[float]:
    found: list[float] = _arrays(window.rows())[2].tolist()
    return found


def test_the_latest_rows_are_kept_and_never_more_than_asked_for() -> None:
    window = RowWindow(width=2, most=100)
    for number in range(1_000):
        window.add(packed([0.5, number]), "w", number + 1)
        assert len(window) <= 100
        assert len(window) >= min(number + 1, 98)
    assert window.total == 1_000
    kept = lengths(window)
    assert kept == list(range(1_001 - len(kept), 1_001))


def test_rows_travel_as_features_workflows_and_lengths() -> None:
    features, groups, tokens = _arrays(filled(5, most=100).rows())
    assert features.tolist() == [[0.5, float(n)] for n in range(5)]
    assert tokens.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert all(0 <= group < 1 << 24 for group in groups)


def test_rows_that_were_taken_do_not_change_when_more_come() -> None:
    window = filled(3, most=100)
    taken = window.rows()
    window.add(packed([9.0, 9.0]), "w", 9)
    assert len(_arrays(taken)[2]) == 3


def test_about_as_many_of_the_latest_rows_as_asked_for() -> None:
    tokens = _arrays(filled(1_000, most=1_000).rows(latest=100))[2].tolist()
    assert 100 <= len(tokens) <= 125
    assert tokens[-1] == 1_000.0


def test_saved_rows_come_back_and_the_oldest_go_first_where_fewer_are_kept() -> None:
    window = filled(250, most=1_000)
    state = json.loads(json.dumps(to_json(window.rows())))
    same = RowWindow(width=2, most=1_000)
    same.take(state)
    assert lengths(same) == lengths(window)
    less = RowWindow(width=2, most=100)
    less.take(state)
    assert lengths(less)[-1] == 250.0
    assert 98 <= len(less) <= 100


def test_twenty_thousand_calls_are_a_few_megabytes_in_the_store() -> None:
    rng = random.Random(0)
    window = RowWindow(width=65, most=20_000)
    for number in range(20_000):
        # half of what is known of a call is the same for all of its application
        row = [3.0] * 32 + [float(rng.randrange(40)) / 7 for _ in range(33)]
        window.add(packed(row), f"w{number}", 100)
    assert len(json.dumps(to_json(window.rows()))) < 5e6


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("blocks"),
        lambda state: state.update(width=3),
        lambda state: state.update(byteorder="middle"),
        lambda state: state.update(blocks="text"),
        lambda state: state.update(blocks=["AAAA"]),
        lambda state: state.update(blocks=["no base64!"]),
        lambda state: state.update(blocks=[7]),
        lambda state: state.update(blocks=[CUT]),
    ],
)
def test_rows_of_another_shape_change_nothing(spoil: Callable[[dict[str, Any]], object]) -> None:
    state = to_json(filled(3, most=100).rows())
    spoil(state)
    window = filled(5, most=100)
    with pytest.raises((KeyError, ValueError)):
        window.take(state)
    assert lengths(window) == [1.0, 2.0, 3.0, 4.0, 5.0]


#: seven bytes, compressed: no whole row
CUT = "eAFLTEpOSU1LBwAK2wK9"


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes of features"):
        RowWindow(width=2, most=100).add(packed([1.0]), "w", 5)


# --- evidence -----------------------------------------------------------------------------------


def law(middle: float) -> LengthEstimate:
    return LengthEstimate(middle, tuple((p / 20, middle * p / 10) for p in range(1, 20)), "forest")


def guess(said: float, *, limited: bool = False) -> Guess:
    return Guess(law(said), law(said), law(100.0), b"", limited)


def gone(call_id: CallId) -> float | None:
    """All have failed."""
    return None


def begun(call_id: CallId) -> float | None:
    """All live, and have generated little."""
    return 1.0


def observe(evidence: Evidence, said: float, came: int) -> None:
    evidence.said(CallId("c"), guess(said))
    evidence.ended(CallId("c"), came)
    evidence.catch_up(gone)


def seen(evidence: Evidence) -> Any:
    return evidence.stats()["calibration"]["calls"]  # type: ignore[index]


def test_guesses_are_kept_until_their_calls_end_and_no_more_than_so_many() -> None:
    evidence = Evidence(Coverage)
    for number in range(OPEN_MAX + 1):
        evidence.said(CallId(f"c{number}"), guess(100.0))
    assert evidence.ended(CallId("c0"), 5) is None
    assert evidence.ended(CallId("c1"), 5) == guess(100.0)
    assert evidence.ended(CallId("c1"), 5) is None
    evidence.new_forest(on_probation=False)
    assert evidence.ended(CallId("c2"), 5) is None


def test_lengths_count_in_the_order_in_which_the_forest_was_asked() -> None:
    evidence = Evidence(Coverage)
    for name in "abcd":
        evidence.said(CallId(name), guess(100.0))
    evidence.ended(CallId("b"), 50)
    evidence.ended(CallId("c"), None)
    evidence.catch_up(begun)
    assert seen(evidence) == 0
    evidence.ended(CallId("a"), 900)
    evidence.catch_up(begun)
    assert seen(evidence) == 2
    # whoever failed is not waited for
    evidence.said(CallId("e"), guess(100.0))
    evidence.ended(CallId("e"), 70)
    evidence.catch_up(lambda call_id: None if call_id == "d" else 1.0)
    assert seen(evidence) == 3


def test_a_call_longer_than_held_possible_is_not_waited_for() -> None:
    evidence = Evidence(Coverage)
    for name in "ab":
        evidence.said(CallId(name), guess(100.0))
    evidence.ended(CallId("b"), 50)
    evidence.catch_up(lambda call_id: 190.0)
    assert seen(evidence) == 0
    evidence.catch_up(lambda call_id: 191.0)
    assert seen(evidence) == 2
    assert evidence.ended(CallId("a"), 400) is None


def test_what_waited_behind_a_long_call_counts_bit_by_bit() -> None:
    evidence = Evidence(Coverage)
    for number in range(3 * OBSERVED_AT_ONCE):
        evidence.said(CallId(f"c{number}"), guess(100.0))
        evidence.ended(CallId(f"c{number}"), 50)
    evidence.catch_up(begun)
    assert seen(evidence) == OBSERVED_AT_ONCE
    evidence.catch_up(begun)
    assert seen(evidence) == 2 * OBSERVED_AT_ONCE


def test_a_forest_that_is_right_stays_in_use_while_its_long_calls_go_on() -> None:
    """Hundreds in flight, as long as they are: those that end first are the short ones."""
    evidence = Evidence(Coverage)
    evidence.new_forest(on_probation=False)
    rng = random.Random(11)
    flying: list[tuple[float, str, int]] = []
    ended = 0
    for number in range(4_000):
        while flying and flying[0][0] <= number:
            _, name, tokens = heapq.heappop(flying)
            evidence.ended(CallId(name), tokens)
            evidence.catch_up(begun)
            ended += 1
            assert evidence.complaint() is None, f"{ended} calls have ended"
            if seen(evidence) >= 200:
                middle = evidence.corrected(law(100.0)).quantile_tokens(0.5)
                assert middle == pytest.approx(100.0, rel=0.3)
        tokens = rng.randint(1, 200)
        evidence.said(CallId(f"c{number}"), guess(100.0))
        heapq.heappush(flying, (number + 3.0 * tokens, f"c{number}", tokens))
    assert seen(evidence) == 500


def test_calls_that_their_own_limits_end_are_no_drift() -> None:
    """Many stop at 80 tokens; the forest knows how long each would get, and where it stops."""
    evidence = Evidence(Coverage)
    evidence.new_forest(on_probation=False)
    rng = random.Random(13)
    for number in range(2_000):
        spec = CallSpec(
            CallId("c"), WorkflowId("w"), "m", 10, max_tokens=80 if number % 3 else None
        )
        raw = within_limits(law(100.0), spec)
        tokens = min(spec.max_tokens or 1_000, rng.randint(1, 200))
        limited = limits_decide(raw, spec)
        assert limited == (spec.max_tokens is not None)
        evidence.said(CallId("c"), Guess(raw, raw, law(100.0), b"", limited))
        evidence.ended(CallId("c"), tokens)
        evidence.catch_up(gone)
        assert evidence.complaint() is None, number
    middle = evidence.corrected(law(100.0)).quantile_tokens(0.9)
    assert middle == pytest.approx(180.0, rel=0.1)


@pytest.mark.parametrize(
    ("most", "least", "decide"),
    [
        (None, 0.0, False),
        (500, 0.0, False),
        (150, 0.0, True),
        (500, 5.0, False),
        (None, 60.0, True),
    ],
)
def test_limits_decide_where_the_law_reaches_them(
    most: int | None, least: float, decide: bool
) -> None:
    spec = CallSpec(
        CallId("c"), WorkflowId("w"), "m", 10, max_tokens=most, features={"min_tokens": least}
    )
    assert limits_decide(law(100.0), spec) is decide
    assert limits_decide(within_limits(law(100.0), spec), spec) is decide


def test_a_forest_on_probation_is_told_from_one_that_is_known_to_be_off() -> None:
    evidence = Evidence(Coverage)
    complaint = evidence.complaint()
    assert complaint is not None
    assert complaint.state is State.PROBATION
    for _ in range(PROBATION_CALLS - 1):
        observe(evidence, said=100.0, came=5_000)
    complaint = evidence.complaint()
    assert complaint is not None
    assert complaint.state is State.DRIFTED
    assert "quantile covers" in complaint.why


def test_a_forest_is_not_believed_before_it_can_be_told_from_the_fallback() -> None:
    evidence = Evidence(Coverage)
    evidence.new_forest(on_probation=True)
    rng = random.Random(12)
    for _ in range(WINDOW):
        # calls are of one length or the other; the fallback knows which, the forest the mix only
        tokens = rng.choice((60, 140))
        exact = LengthEstimate(float(tokens), ((0.05, tokens - 1.0), (0.95, tokens + 1.0)))
        evidence.said(CallId("c"), Guess(law(100.0), law(100.0), exact, b"", limited=False))
        evidence.ended(CallId("c"), tokens)
        evidence.catch_up(gone)
        assert evidence.complaint() is not None


def test_so_much_at_once_and_so_much_a_second() -> None:
    allowance = Allowance(per_s=10.0, at_once=5.0, now_s=100.0)
    assert [allowance.take(100.0) for _ in range(6)] == [True] * 5 + [False]
    assert [allowance.take(100.15) for _ in range(2)] == [True, False]
    assert [allowance.take(1e9) for _ in range(6)] == [True] * 5 + [False]
    assert not allowance.take(1.0)


def test_quantiles_are_moved_to_where_lengths_come() -> None:
    evidence = Evidence(Coverage)
    rng = random.Random(1)
    for _ in range(400):
        # twice what is said
        observe(evidence, said=100.0, came=max(1, round(400 * rng.random())))
    assert evidence.corrected(law(100.0)).quantile_tokens(0.5) == pytest.approx(200, rel=0.15)


def test_a_forest_of_which_nothing_is_known_is_on_probation() -> None:
    evidence = Evidence(Coverage)
    rng = random.Random(2)
    for number in range(PROBATION_CALLS):
        assert f"{number} of {PROBATION_CALLS} calls" in str(evidence.complaint())
        observe(evidence, said=100.0, came=max(1, round(200 * rng.random())))
    assert evidence.complaint() is None
    evidence.new_forest(on_probation=False)
    assert evidence.complaint() is None


def test_evidence_comes_back_with_its_corrections() -> None:
    evidence = Evidence(Coverage)
    rng = random.Random(3)
    for _ in range(PAIRS_MAX + 50):
        observe(evidence, said=100.0, came=max(1, round(300 * rng.random())))
    again = Evidence(Coverage)
    again.load(json.loads(json.dumps(evidence.dump())))
    mine, other = evidence.corrected(law(100.0)), again.corrected(law(100.0))
    assert other.expected_tokens == pytest.approx(mine.expected_tokens, rel=0.05)
    for (_, tokens), (_, same) in zip(mine.quantiles, other.quantiles, strict=True):
        assert same == pytest.approx(tokens, rel=0.05, abs=1.0)
    bent = [[100.0, "forest", [0.5, 0.5, 0.2], [9.0, 3.0, 3.0]], 5]
    for spoilt in (
        {},
        {"pairs": 1, "probation": 0},
        {"pairs": [[1, 2]], "probation": 0},
        {"pairs": [bent] * 120, "probation": 0},
    ):
        before = again.dump()
        with pytest.raises((KeyError, ValueError, TypeError)):
            again.load(spoilt)
        assert again.dump() == before


# --- comparison ---------------------------------------------------------------------------------


def test_a_forest_that_loses_to_the_fallback_is_complained_of_until_it_does_not() -> None:
    comparison = Comparison()
    for _ in range(LEAST_CALLS - 1):
        comparison.learn(law(500.0), law(100.0), 100)
    assert comparison.complaint() is None
    comparison.learn(law(500.0), law(100.0), 100)
    assert "above that of the fallback" in str(comparison.complaint())
    for _ in range(WINDOW):
        comparison.learn(law(100.0), law(500.0), 100)
    assert comparison.complaint() is None
    stats = comparison.stats()
    assert stats["calls"] == WINDOW
    assert stats["pinball_tokens"] == pytest.approx(pinball(law(100.0), 100))
    assert stats["fallback_pinball_tokens"] == pytest.approx(pinball(law(500.0), 100))


def test_a_little_worse_is_no_complaint() -> None:
    comparison = Comparison()
    rng = random.Random(4)
    for _ in range(2 * LEAST_CALLS):
        comparison.learn(law(102.0), law(100.0), max(1, round(200 * rng.random())))
    stats = comparison.stats()
    assert stats["pinball_tokens"] != stats["fallback_pinball_tokens"]
    assert comparison.complaint() is None


# --- trial --------------------------------------------------------------------------------------


class Saying:
    """A forest that says the same of every call, and whose groups up to some have taught it."""

    def __init__(self, middle: float, taught: int) -> None:
        self.middle = middle
        self.taught = frozenset[int](range(taught))
        self.asked: list[list[float]] = []

    def predict(self, rows: Any) -> list[LengthEstimate]:
        self.asked += rows
        return [law(self.middle) for _ in rows]

    def stats(self) -> dict[str, object]:
        return {}


def tried(present: Saying, successor: Saying, calls: int) -> Trial | None:
    features = np.arange(2 * calls, dtype=np.float32).reshape(calls, 2)
    tokens = np.full(calls, 100.0)
    judged = [Judged(forest, forest.taught) for forest in (present, successor)]
    return held(*judged, features, list(range(calls)), tokens)


@pytest.mark.parametrize(("said", "passed"), [(100.0, True), (101.0, False)])
def test_a_successor_passes_where_it_is_no_worse(said: float, passed: bool) -> None:
    trial = tried(Saying(100.0, 10), Saying(said, 50), 400)
    assert trial is not None
    assert trial.calls == 350
    assert trial.passed is passed
    assert trial.pinball_tokens == pytest.approx(pinball(law(said), 100))
    assert trial.present_pinball_tokens == pytest.approx(pinball(law(100.0), 100))


def test_only_calls_that_taught_neither_judge_and_of_many_the_latest() -> None:
    present, successor = Saying(100.0, 300), Saying(100.0, 20)
    assert tried(present, successor, 300 + LEAST_CALLS - 1) is None
    assert present.asked == []
    trial = tried(present, successor, 300 + MOST_CALLS + 1)
    assert trial is not None
    assert trial.calls == MOST_CALLS
    assert present.asked == successor.asked
    assert present.asked[0] == [602.0, 603.0]


# --- limits -------------------------------------------------------------------------------------


def spec(**more: Any) -> CallSpec:
    return CallSpec(CallId("c"), WorkflowId("w"), "m", 10, **more)


def test_the_most_a_call_may_have_wins_over_the_least() -> None:
    found = within_limits(law(100.0), spec(max_tokens=50, features={"min_tokens": 400.0}))
    assert found.expected_tokens == 50
    assert {tokens for _, tokens in found.quantiles} == {50}
    assert within_limits(law(100.0), spec()) == law(100.0)


def test_a_length_is_known_where_an_engine_may_not_end_early() -> None:
    assert known_exactly(spec(max_tokens=9, features={"ignore_eos": 1.0}))
    assert not known_exactly(spec(max_tokens=9))
    assert not known_exactly(spec(features={"ignore_eos": 1.0}))


# --- who asks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conversation", "role", "text"),
    [
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
            1,
            "Why?",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}], 1, "a\nb"),
        ([{"role": "tool", "content": "42"}], 2, "42"),
        ([{"role": "function", "content": None}], 2, ""),
        ([{"type": "function_call_output", "output": "rows"}], 2, "rows"),
        (
            [{"role": "user", "content": [{"type": "tool_result", "content": [{"text": "x"}]}]}],
            2,
            "x",
        ),
        ([{"role": "assistant", "content": "Once"}], 3, "Once"),
        ([{"role": "developer", "content": 7}], 4, ""),
        (
            [{"role": ["odd"], "content": {"content": {"content": {"content": {"text": "deep"}}}}}],
            0,
            "",
        ),
        (["plain"], 1, "plain"),
    ],
)
def test_the_last_message_asks(conversation: list[Any], role: float, text: str) -> None:
    assert asking_message(conversation) == (role, text)


def test_prompts_ask_too_but_for_those_of_token_ids() -> None:
    assert asking_prompt("Once upon").text == "Once upon"
    assert asking_prompt(["one", "two"]).text == "one"
    assert asking_prompt([1, 2]).text == ""
    assert asking_prompt([]).text == asking_prompt(None).text == ""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "List 3 SECRET ideas."}]}),
        (COMPLETIONS, {"prompt": "List 3 SECRET ideas."}),
        (RESPONSES, {"input": "List 3 SECRET ideas."}),
    ],
)
def test_what_is_kept_of_a_text_is_a_few_numbers(path: str, body: dict[str, Any]) -> None:
    features = read_body(path, {"model": "m", **body}, None).features
    assert set(TEXT_FEATURES) < set(features)
    assert all(type(value) is float and abs(value) < 100 for value in features.values())
    without = read_body(path, {"model": "m", **body}, None, with_text=False).features
    assert set(features) - set(without) == set(TEXT_FEATURES)


def test_a_very_long_text_costs_no_more_numbers() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "ä🙂\x00" * 1_000_000}]}
    features = read_body(CHAT, body, None).features
    assert all(abs(value) < 1e4 for value in features.values())
