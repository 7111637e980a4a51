"""Checks that every predictor passes; `test_predictor_checks.py` fails each on a broken fake.

A check takes a case: how to make the predictor, teach it the n-th of many samples, ask it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    #: teach one sample under the key of that number
    teach: Callable[[Any, int, random.Random], None]
    #: everything that the predictor says of the key of that number, comparable
    ask: Callable[[Any, int], object]
    #: size of what is kept, in keys
    size: Callable[[Any], int]
    max_size: int


def taught(case: Case, samples: int, keys: int, seed: int = 0) -> Any:
    rng = random.Random(seed)
    predictor = case.make()
    for _ in range(samples):
        case.teach(predictor, rng.randrange(keys), rng)
    return predictor


def check_prediction_is_pure(case: Case) -> None:
    predictor = taught(case, 300, 5)
    before = json.dumps(predictor.dump())
    first = [case.ask(predictor, key) for key in range(6)]
    assert [case.ask(predictor, key) for key in range(6)] == first
    assert json.dumps(predictor.dump()) == before


def check_memory_is_bounded(case: Case) -> None:
    predictor = taught(case, 100_000, 100_000)
    assert 0 < case.size(predictor) <= case.max_size


def check_dump_round_trip(case: Case) -> None:
    predictor = taught(case, 300, 5)
    again = case.make()
    again.load(json.loads(json.dumps(predictor.dump())))
    for key in range(6):
        assert case.ask(again, key) == case.ask(predictor, key)
    # and learning goes on from there alike
    for one in (predictor, again):
        rng = random.Random(1)
        for _ in range(100):
            case.teach(one, rng.randrange(5), rng)
    for key in range(6):
        assert case.ask(again, key) == case.ask(predictor, key)


def check_learning_changes_the_answer(case: Case) -> None:
    assert case.ask(taught(case, 300, 1), 0) != case.ask(case.make(), 0)


CHECKS = (
    check_prediction_is_pure,
    check_memory_is_bounded,
    check_dump_round_trip,
    check_learning_changes_the_answer,
)
