"""The live forest before a worker process: what it says, when it is believed, what goes wrong."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import forest_fakes
import pytest
from forest_fakes import REAL, probation_of, retry_at_once, rig
from tuner_fakes import alive

from dispatcher.gateway.forest.evidence import PROBATION_CALLS
from dispatcher.gateway.forest.inside import Trained
from dispatcher.gateway.forest.live import BATCH_CALLS


async def test_nothing_is_started_before_enough_calls_have_ended() -> None:
    async with rig("latest") as forest:
        forest.teach(19)
        told = forest.told
        assert (told["speaks"], told["state"]) == ("fallback", "collecting")
        assert told["why"] == "19 calls have ended; 20 are needed"
        assert told["worker"]["pid"] is None
        forest.arrive(forest.spec())
        assert forest.outcomes() == 0
        forest.teach(1)
        assert forest.told["state"] == "training"
        told = await forest.until_state("in_use")
        assert told["speaks"] == "forest"
        assert told["training"]["number"] == 1
        assert told["training"]["forest"]["rows"] == 20
        assert told["worker"]["pid"] != os.getpid()
        assert told["worker"]["memory_bytes"] > 1e6


async def test_a_call_has_the_fallbacks_estimate_at_once_and_the_forests_a_little_later() -> None:
    async with rig("latest") as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        spec = forest.spec()
        assert forest.forest.predict(spec).source == "rolling:stage"
        call_id = forest.arrive(spec)
        assert call_id not in forest.handed
        await forest.until(lambda: call_id in forest.handed)
        assert forest.handed[call_id].source == "fake of 20"
        assert forest.handed[call_id].expected_tokens == 100.0
        assert forest.told["estimates"]["used"] == 1


async def test_estimates_stay_within_a_calls_own_limits() -> None:
    async with rig("latest") as forest:
        forest.teach(20, tokens=1_000)
        await forest.until_state("in_use")
        low = await forest.ask(max_tokens=300)
        assert low.expected_tokens == low.quantile_tokens(0.95) == 300
        high = await forest.ask(features={"min_tokens": 4_000.0})
        assert high.expected_tokens == high.quantile_tokens(0.05) == 4_000
        asked = forest.outcomes()
        exact = forest.spec(max_tokens=7, features={"ignore_eos": 1.0})
        rows = forest.told["calls"]
        forest.arrive(exact)
        forest.end(exact, 7)
        assert forest.outcomes() == asked
        assert forest.told["calls"] == rows


async def test_calls_that_come_together_are_predicted_together() -> None:
    async with rig("sized") as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        ids = [forest.arrive(forest.spec()) for _ in range(3 * BATCH_CALLS + 1)]
        await forest.until(lambda: len(forest.handed) == len(ids))
        sizes = sorted(estimate.expected_tokens for estimate in forest.handed.values())
        assert sizes == [1.0, *[float(BATCH_CALLS)] * (3 * BATCH_CALLS)]


async def test_a_call_that_has_ended_gets_nothing() -> None:
    async with rig("latest") as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        spec = forest.spec()
        forest.arrive(spec)
        forest.end(spec, 100)
        await forest.until(lambda: forest.told["estimates"]["gone"] == 1)
        assert forest.handed == {}


async def test_a_forest_is_trained_anew_as_calls_end_and_swapped_whole() -> None:
    async with rig("latest", train_after_calls=50) as forest:
        forest.teach(20, tokens=100)
        await forest.until_state("in_use")
        assert (await forest.ask()).expected_tokens == 100.0
        forest.teach(49, tokens=200)
        assert forest.told["training"]["due_in_s"] is None
        forest.teach(1, tokens=200)
        await forest.until(lambda: forest.told["training"]["number"] == 2)
        assert (await forest.ask()).expected_tokens == 200.0
        assert forest.told["training"]["calls_since"] == 0


async def test_trainings_keep_their_distance() -> None:
    async with rig("latest", train_after_calls=10, train_interval_s=1_000.0) as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        forest.teach(30)
        assert 900 < forest.told["training"]["due_in_s"] <= 1_000
        forest.clock.ahead_s += 1_000
        assert forest.told["training"]["due_in_s"] == 0.0


async def test_of_many_calls_a_first_forest_comes_from_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dispatcher.gateway.forest.training.QUICK_CALLS", 100)
    async with rig("latest", start=False, window=400) as forest:
        seen: list[int] = []
        hear = forest.forest.trained

        def trained(result: Trained, *, again: bool) -> None:
            seen.append(result.rows)
            hear(result, again=again)

        monkeypatch.setattr(forest.forest, "trained", trained)
        forest.teach(300)
        forest.forest.start(forest.calls, forest.hand)
        await forest.until(lambda: len(seen) == 2)
        assert 100 <= seen[0] <= 110
        assert seen[1] == 300


async def test_a_killed_worker_is_told_of_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.gateway.forest.training.RETRY_S", (1_000.0, 1_000.0))
    async with rig("latest") as forest:
        forest.teach(20)
        told = await forest.until_state("in_use")
        pid = told["worker"]["pid"]
        os.kill(pid, signal.SIGKILL)
        told = await forest.until_state("failed")
        assert told["speaks"] == "fallback"
        assert told["why"] == "the worker process ended with exit code -9"
        assert told["worker"] == {"pid": None, "memory_bytes": None}
        assert 0.0 <= told["for_s"] < 100
        assert 900 < told["training"]["due_in_s"] <= 1_000
        # calls go on
        spec = forest.spec()
        assert forest.forest.predict(spec).source == "rolling:stage"
        forest.arrive(spec)
        forest.end(spec, 100)
        assert forest.handed == {}
        assert forest.told["calls"] == 21


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ("raises", "predicting failed: ArithmeticError: lost in the woods"),
        ("stuck", "predicting failed: it took longer than 0.2 s and was stopped"),
    ],
)
async def test_a_forest_that_cannot_predict_is_given_up(train: str, why: str) -> None:
    async with rig(train, late_s=0.02) as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        forest.arrive(forest.spec())
        told = await forest.until_state("failed")
        assert told["why"] == why
        assert told["estimates"]["failed"] == 1
        assert told["training"]["failures"] == 1


async def test_a_forest_that_answers_nonsense_is_given_up_and_the_next_one_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    retry_at_once(monkeypatch)
    async with rig("silent") as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        forest.arrive(forest.spec())
        await forest.until(lambda: forest.told["training"]["number"] == 2)
        forest.arrive(forest.spec())
        await forest.until(lambda: forest.told["training"]["number"] == 3)
        assert forest.handed == {}


async def test_a_training_that_takes_too_long_takes_its_forest_along_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dispatcher.gateway.forest.training.RETRY_S", (1_000.0, 1_000.0))
    async with rig("hangs_later", train_after_calls=10, train_timeout_s=5.0) as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        forest.teach(10)
        told = await forest.until_state("failed")
        assert told["why"] == "training failed: it took longer than 5 s and was stopped"
        assert (told["speaks"], told["worker"]["pid"]) == ("fallback", None)


async def test_a_lost_forest_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_at_once(monkeypatch)
    async with rig("latest") as forest:
        forest.teach(20)
        pid = (await forest.until_state("in_use"))["worker"]["pid"]
        before = await forest.ask()
        os.kill(pid, signal.SIGKILL)
        await forest.until(lambda: forest.told["training"]["number"] == 2)
        told = await forest.until_state("in_use")
        assert told["worker"]["pid"] != pid
        assert await forest.ask() == before
        assert forest.told["training"]["failures"] == 0


async def test_training_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv(forest_fakes.BROKEN, str(broken))
    monkeypatch.setattr("dispatcher.gateway.forest.training.RETRY_S", (0.01, 0.02))
    async with rig("breakable", train_after_calls=10) as forest:
        forest.teach(20)
        told = await forest.until_state("failed")
        assert told["why"] == "training failed: RuntimeError: no forest today"
        await forest.until(lambda: forest.told["training"]["failures"] > 2)
        broken.unlink()
        told = await forest.until_state("in_use")
        assert told["training"]["error"] is None
        # once there is a forest, it stays while a further training fails
        broken.touch()
        forest.teach(10)
        await forest.until(lambda: forest.told["training"]["error"] is not None)
        told = forest.told
        assert (told["state"], told["training"]["number"]) == ("in_use", 1)
        assert (await forest.ask()).expected_tokens == 100.0


async def test_training_that_ends_the_process_is_told() -> None:
    async with rig("dies") as forest:
        forest.teach(20)
        told = await forest.until_state("failed")
        assert told["why"] == "training failed: the worker process ended with exit code -9"


async def test_a_first_forest_speaks_once_enough_calls_have_shown_that_it_is_no_worse() -> None:
    async with rig("latest", probation=PROBATION_CALLS, train_after_calls=50) as forest:
        forest.teach(20)
        told = await forest.until_state("probation")
        assert told["speaks"] == "fallback"
        assert told["why"] == "0 of 200 calls have ended that a new forest is judged by first"
        await asyncio.gather(*(forest.guess(60 + 8 * n) for n in range(10)))
        assert forest.told["estimates"]["unused"] == 10
        assert forest.handed == {}
        # none takes its place meanwhile, to be judged anew
        assert forest.told["training"]["due_in_s"] is None
        while forest.told["state"] == "probation":
            await asyncio.gather(*(forest.guess(60 + 8 * n) for n in range(10)))
        told = forest.told
        assert (told["state"], told["speaks"]) == ("in_use", "forest")
        # calls that end together are judged together
        assert told["against_fallback"]["calls"] >= PROBATION_CALLS
        assert told["training"]["due_in_s"] is not None


async def test_a_first_forest_that_is_worse_is_never_believed() -> None:
    rng = random.Random(7)
    async with rig("latest", probation=PROBATION_CALLS, train_after_calls=100_000) as forest:
        forest.teach(40)
        await forest.until_state("probation")
        while forest.told["state"] == "probation":
            calls = [rng.choice((("check", 65), ("write", 135))) for _ in range(10)]
            spread = [(stage, tokens + rng.randint(-5, 5)) for stage, tokens in calls]
            await asyncio.gather(*(forest.guess(tokens, stage=stage) for stage, tokens in spread))
        assert forest.told["state"] == "worse"
        assert forest.told["estimates"]["used"] == 0


async def test_a_successor_that_is_worse_on_calls_held_out_is_not_taken() -> None:
    async with rig("half_fading", train_after_calls=600) as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        before = await forest.ask()
        forest.teach(600)
        await forest.until(lambda: forest.told["training"]["trial"] is not None)
        told = forest.told
        assert (told["state"], told["training"]["number"]) == ("in_use", 1)
        trial = told["training"]["trial"]
        assert trial["passed"] is False
        assert trial["pinball_tokens"] > trial["present_pinball_tokens"]
        assert 200 <= trial["calls"] < 600
        assert await forest.ask() == before
        # as after any training, it is tried again once more calls have ended
        assert told["training"]["due_in_s"] is None
        assert told["training"]["failures"] == 0
        # the rows that are kept would give the worse one now: it would have to show itself
        assert forest.forest.dump()["trained"] is False


async def test_a_successor_that_is_no_worse_is_believed_at_once_and_any_other_has_to_show() -> None:
    for train, state in (("half", "in_use"), ("latest", "probation")):
        async with rig(train, train_after_calls=600) as forest:
            forest.teach(20)
            await forest.until_state("in_use")
            with probation_of(PROBATION_CALLS):
                forest.teach(600)
                await forest.until(lambda it=forest: it.told["training"]["number"] == 2)
                assert forest.told["state"] == state
                assert (forest.told["training"]["trial"] is None) is (train == "latest")
                assert forest.forest.dump()["trained"] is True


async def test_a_forest_that_answers_nonsense_is_no_measure_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    retry_at_once(monkeypatch)
    async with rig("half_raises_first", window=5_000) as forest:
        forest.teach(600)
        await forest.until_state("in_use")
        forest.arrive(forest.spec())
        await forest.until(lambda: forest.told["training"]["number"] == 2)
        assert forest.told["training"]["trial"] is None
        assert (await forest.ask()).expected_tokens == 100.0


async def test_lengths_that_drift_take_the_forest_out_until_a_new_one_has_proved_itself() -> None:
    async with rig("latest", train_after_calls=1_200) as forest:
        forest.teach(60, tokens=100)
        await forest.until_state("in_use")
        while forest.told["state"] == "in_use":
            await asyncio.gather(*(forest.guess(1_000) for _ in range(10)))
        told = forest.told
        assert (told["state"], told["speaks"]) == ("drifted", "fallback")
        assert "quantile covers" in told["why"] or "pinball" in told["why"]
        spec, unused = forest.spec(), told["estimates"]["unused"]
        forest.arrive(spec)
        await forest.until(lambda: forest.told["estimates"]["unused"] > unused)
        assert spec.call_id not in forest.handed
        forest.end(spec, 1_000)
        with probation_of(PROBATION_CALLS):
            while forest.told["training"]["number"] == 1:
                await asyncio.gather(*(forest.guess(1_000) for _ in range(10)))
            assert (forest.told["state"], forest.told["speaks"]) == ("probation", "fallback")
            while forest.told["state"] != "in_use":
                await asyncio.gather(*(forest.guess(550 + 100 * n) for n in range(10)))
        assert (await forest.ask()).expected_tokens > 800


async def test_a_forest_that_is_worse_than_the_fallback_is_taken_out_of_use_and_called_worse() -> (
    None
):
    rng = random.Random(6)

    def ended() -> tuple[int, str]:
        # the fallback goes by stage; this forest knows the mean of all
        stage = rng.choice(("check", "write"))
        return rng.randint(50, 70) + 80 * (stage == "write"), stage

    async with rig("latest", train_after_calls=4_000) as forest:
        for _ in range(60):
            tokens, stage = ended()
            forest.forest.learn(forest.spec(stage=stage), tokens)
        await forest.until_state("in_use")
        while forest.told["state"] == "in_use":
            calls = [ended() for _ in range(10)]
            await asyncio.gather(*(forest.guess(tokens, stage=stage) for tokens, stage in calls))
        told = forest.told
        assert (told["state"], told["speaks"]) == ("worse", "fallback")
        assert re.fullmatch(
            r"over \d+ calls its pinball loss was \d+% above that of the fallback", told["why"]
        )
        assert told["calibration"]["drifted"] is False
        assert told["against_fallback"]["worse"] is True
        # another one is wanted after a quarter of the usual calls
        assert told["training"]["number"] == 1
        forest.teach(1_000)
        await forest.until(lambda: forest.told["training"]["number"] == 2)


async def test_features_that_drift_are_noticed_and_learned() -> None:
    rng = random.Random(5)

    def old() -> tuple[int, dict[str, Any]]:
        return round(100 * rng.lognormvariate(0, 0.4)) + 1, {"prompt_tokens": 100}

    def new() -> tuple[int, dict[str, Any]]:
        more = {"model": "other", "prompt_tokens": 20_000, "application": "reports"}
        return round(3_000 * rng.lognormvariate(0, 0.4)) + 1, more

    async with rig(REAL, train_after_calls=400) as forest:
        for _ in range(300):
            tokens, more = old()
            forest.forest.learn(forest.spec(**more), tokens)
        await forest.until_state("in_use")

        async def ten() -> None:
            calls = [new() for _ in range(10)]
            await asyncio.gather(*(forest.guess(tokens, **more) for tokens, more in calls))

        while forest.told["state"] == "in_use":
            await ten()
        assert forest.told["state"] == "drifted"
        assert forest.told["speaks"] == "fallback"
        while forest.told["state"] == "drifted":
            await ten()
        assert forest.told["state"] == "in_use"
        assert forest.told["training"]["number"] > 1
        assert 2_000 < (await forest.ask(**new()[1])).quantile_tokens(0.5) < 4_500


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gate that is shut."""
    path = tmp_path / "gate"
    path.touch()
    monkeypatch.setenv(forest_fakes.GATE, str(path))
    return path


def open_up(gate: Path) -> None:
    gate.unlink()


async def test_overload_drops_requests_for_estimates_and_no_calls(gate: Path) -> None:
    async with rig("gated", max_waiting=5) as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        first = forest.arrive(forest.spec())
        await forest.until(lambda: forest.told["waiting"] == 0)
        specs = [forest.spec() for _ in range(30)]
        for spec in specs:
            forest.arrive(spec)
        told = forest.told
        assert told["waiting"] == 5
        assert told["estimates"]["dropped"] == 25
        for spec in specs[10:]:
            forest.end(spec, 100)
        assert forest.told["calls"] == 40
        open_up(gate)
        await forest.until(lambda: len(forest.handed) == 6)
        assert set(forest.handed) == {first, *(spec.call_id for spec in specs[:5])}
        assert forest.told["state"] == "in_use"


async def test_estimates_that_come_too_late_are_not_used_and_the_forest_waits_in_line(
    gate: Path,
) -> None:
    async with rig("gated", late_s=10.0) as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        forest.arrive(forest.spec())
        await forest.until(lambda: forest.told["waiting"] == 0)
        forest.clock.ahead_s += 11.0
        open_up(gate)
        told = await forest.until_state("slow")
        assert told["speaks"] == "fallback"
        assert "10 s is too late" in told["why"]
        assert forest.handed == {}
        assert told["estimates"]["late"] == 1
        assert (await forest.ask()).expected_tokens == 100.0
        assert forest.told["state"] == "in_use"


async def test_features_that_cannot_be_made_cost_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig("latest") as forest:
        forest.teach(20)
        await forest.until_state("in_use")
        spec = forest.spec(features={"messages": "many"})
        forest.arrive(spec)
        forest.end(spec, 100)
        assert forest.told["estimates"]["failed"] == 1
        assert "cannot learn from call" in caplog.text
        assert (await forest.ask()).expected_tokens == 100.0


async def test_stopping_takes_the_worker_along_also_in_the_midst_of_a_batch(gate: Path) -> None:
    async with rig("gated") as forest:
        forest.teach(20)
        pid = (await forest.until_state("in_use"))["worker"]["pid"]
        forest.arrive(forest.spec())
        await forest.until(lambda: forest.told["waiting"] == 0)
        await forest.forest.stop()
        assert not alive(pid)
