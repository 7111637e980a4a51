"""The shared checks on every predictor, and each check on a fake that must fail it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from predictor_checks import (
    CHECKS,
    Case,
    check_dump_round_trip,
    check_learning_changes_the_answer,
    check_memory_is_bounded,
    check_prediction_is_pure,
)

from dispatcher.core.ports import AttemptTiming
from dispatcher.core.types import CallId, CallSpec, InstanceId, InstanceSpec, WorkflowId
from predictors.linear_cost import LinearCost, LinearCostSettings
from predictors.prompt_tokens import PromptTokens
from predictors.rolling_quantiles import RollingQuantiles, RollingQuantilesSettings


def spec(key: int) -> CallSpec:
    return CallSpec(
        CallId("c"), WorkflowId("w"), f"m{key % 3}", 100, application=f"a{key}", stage=f"s{key}"
    )


def teach_length(predictor: RollingQuantiles, key: int, rng: random.Random) -> None:
    predictor.learn(spec(key), rng.randint(1, 1000))


class Fleet(LinearCost):
    """Of at most ten instances: whoever joins takes the place of the one that joined first."""

    def __init__(self) -> None:
        super().__init__(LinearCostSettings(max_departed=40))
        self.live: dict[InstanceId, None] = {}

    def add_instance(self, spec: InstanceSpec) -> None:
        super().add_instance(spec)
        self.live[spec.instance_id] = None
        if len(self.live) > 10:
            leaving = next(iter(self.live))
            del self.live[leaving]
            self.remove_instance(leaving)


def teach_cost(predictor: LinearCost, key: int, rng: random.Random) -> None:
    instance_id = InstanceId(f"i{key}")
    predictor.add_instance(InstanceSpec(instance_id, frozenset({"m"})))
    output = rng.randint(1, 500)
    ttft_s, decode_s = rng.uniform(0.05, 0.5), 0.02 * output
    predictor.learn(
        AttemptTiming(
            instance_id,
            rng.randint(1, 4000),
            0,
            output,
            ttft_s if key % 2 else None,
            decode_s if key % 2 else None,
            ttft_s + decode_s,
            rng.uniform(1, 16),
            rng.uniform(100, 50_000),
        )
    )


def ask_cost(predictor: LinearCost, key: int) -> object:
    instance_id = InstanceId(f"i{key}")
    if key > 4:
        return None
    predictor.add_instance(InstanceSpec(instance_id, frozenset({"m"})))
    return predictor.prefill_s(instance_id, 700), predictor.tpot_s(instance_id, 4, 9_000)


CASES = {
    "rolling_quantiles": Case(
        lambda: RollingQuantiles(RollingQuantilesSettings(max_keys=500)),
        teach_length,
        lambda p, key: p.predict(spec(key)),
        lambda p: int(p.stats()["keys"]),
        500,
    ),
    "linear_cost": Case(
        Fleet,
        teach_cost,
        ask_cost,
        lambda p: len(p.stats()) + p.departed,
        50,
    ),
    "prompt_tokens": Case(
        lambda: PromptTokens(max_models=50),
        lambda p, key, rng: p.learn(f"m{key}", rng.randint(100, 9000), rng.randint(50, 3000)),
        lambda p, key: p.estimate(f"m{key}", 5_000),
        lambda p: len(p.stats()),
        50,
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", CASES)
def test_predictor_passes(name: str, check: Any) -> None:
    check(CASES[name])


class Broken:
    """Passes every check, until told which promise to break."""

    def __init__(self, flaw: str) -> None:
        self.flaw = flaw
        self.known: dict[int, float] = {}

    def learn(self, key: int, value: float) -> None:
        if self.flaw == "deaf":
            return
        if len(self.known) >= 50 and self.flaw != "hoards":
            self.known.pop(next(iter(self.known)))
        self.known[key] = value

    def ask(self, key: int) -> float:
        if self.flaw == "impure":
            self.known[key] = self.known.get(key, 0.0) + 1
        return self.known.get(key, 0.0)

    def dump(self) -> dict[str, float]:
        return {str(key): value for key, value in self.known.items()}

    def load(self, state: dict[str, float]) -> None:
        if self.flaw != "forgets":
            self.known = {int(key): value for key, value in state.items()}


def broken_case(flaw: str) -> Case:
    return Case(
        lambda: Broken(flaw),
        lambda p, key, rng: p.learn(key, rng.random()),
        lambda p, key: p.ask(key),
        lambda p: len(p.known),
        50,
    )


@pytest.mark.parametrize("check", CHECKS)
def test_a_fake_without_a_flaw_passes(check: Any) -> None:
    check(broken_case("none"))


@pytest.mark.parametrize(
    ("flaw", "check"),
    [
        ("impure", check_prediction_is_pure),
        ("hoards", check_memory_is_bounded),
        ("forgets", check_dump_round_trip),
        ("deaf", check_learning_changes_the_answer),
    ],
)
def test_each_check_fails_on_its_broken_fake(flaw: str, check: Any) -> None:
    with pytest.raises(AssertionError):
        check(broken_case(flaw))
