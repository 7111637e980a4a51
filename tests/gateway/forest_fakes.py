"""Forests that a worker process can find by their names, and a live one without a gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Container, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from dispatcher.config import PredictorSettings
from dispatcher.core.events import CallArrived
from dispatcher.core.types import CallId, CallSpec, LengthEstimate, WorkflowId
from dispatcher.gateway.forest import evidence, training
from dispatcher.gateway.forest.live import LiveForest
from dispatcher.gateway.forest.metrics import Counters
from dispatcher.trained import TrainedLengths
from predictors.coverage import Coverage
from predictors.length_features import FEATURES, length_features
from predictors.rolling_quantiles import RollingQuantiles

REAL = "predictors.quantile_forest:train"

GATE = "FOREST_FAKES_GATE"
"""Names the file that batches wait at while it is there."""
BROKEN = "FOREST_FAKES_BROKEN"
"""Names the file that keeps training from working while it is there."""


def method(train: str) -> TrainedLengths:
    found = train if ":" in train else f"forest_fakes:{train}"
    return TrainedLengths(found, length_features, FEATURES, Coverage)


# --- in the worker ---


class Everybody:
    """All groups."""

    def __contains__(self, group: object) -> bool:
        return True


class Even:
    """Groups of an even number."""

    def __contains__(self, group: object) -> bool:
        return isinstance(group, int) and group % 2 == 0


@dataclass
class Latest:
    """Says that a length is even between 0.5 and 1.5 times the mean of the latest 50.

    Nobody is left to judge it in the worker.
    """

    mean: float
    rows: int
    taught: Container[Hashable] = field(default_factory=Everybody)

    def predict(self, rows: list[list[float]]) -> list[LengthEstimate]:
        quantiles = tuple((p / 20, self.mean * (0.5 + p / 20)) for p in range(1, 20))
        return [LengthEstimate(self.mean, quantiles, f"fake of {self.rows}") for _ in rows]

    def stats(self) -> dict[str, object]:
        return {"rows": self.rows, "mean": self.mean}


def latest(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    return Latest(float(lengths[-50:].mean()), len(rows))


def half(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    """One that half of the groups can judge."""
    return Latest(float(lengths[-50:].mean()), len(rows), Even())


def half_fading(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    """The more it has seen, the worse it gets."""
    grown = half(rows, lengths, seed=seed)
    return replace(grown, mean=grown.mean * (1.0 + len(rows) / 1_000))


def breakable(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    if Path(os.environ[BROKEN]).exists():
        raise RuntimeError("no forest today")
    return latest(rows, lengths, seed=seed)


class Gated(Latest):
    """Waits at the gate."""

    def predict(self, rows: list[list[float]]) -> list[LengthEstimate]:
        while Path(os.environ[GATE]).exists():
            time.sleep(0.005)
        return super().predict(rows)


def gated(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Gated:
    return Gated(float(lengths[-50:].mean()), len(rows))


class Sized(Latest):
    """Its expected length is the size of the batch."""

    def predict(self, rows: list[list[float]]) -> list[LengthEstimate]:
        return [LengthEstimate(float(len(rows)), e.quantiles) for e in super().predict(rows)]


def sized(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Sized:
    return Sized(float(lengths.mean()), len(rows))


class Stuck(Latest):
    def predict(self, rows: list[list[float]]) -> list[LengthEstimate]:
        threading.Event().wait()
        raise AssertionError


def stuck(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Stuck:
    return Stuck(float(lengths.mean()), len(rows))


class Raises(Latest):
    def predict(self, rows: list[list[float]]) -> list[LengthEstimate]:
        raise ArithmeticError("lost in the woods")


def half_raises_first(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    """The first one of a process cannot predict."""
    global _grown  # noqa: PLW0603 - a process grows them one after another
    _grown += 1
    kind = Raises if _grown == 1 else Latest
    return kind(float(lengths[-50:].mean()), len(rows), Even())


_grown = 0


def raises(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Raises:
    return Raises(float(lengths.mean()), len(rows))


class Silent(Latest):
    """Has nothing to say of any call."""

    def predict(self, rows: list[list[float]]) -> list[LengthEstimate]:
        return []


def silent(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Silent:
    return Silent(float(lengths.mean()), len(rows))


def hangs_later(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    """Trains on a few calls, and never ends on more."""
    if len(rows) > 20:
        threading.Event().wait()
    return latest(rows, lengths, seed=seed)


def dies(rows: Any, lengths: Any, *, seed: int, groups: Any = None) -> Latest:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


# --- at the gateway ---


class Clock:
    """Real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s


@dataclass
class Rig:
    """A live forest before a coordinator that only has calls."""

    forest: LiveForest
    fallback: RollingQuantiles
    clock: Clock
    calls: dict[CallId, Any] = field(default_factory=dict)
    handed: dict[CallId, LengthEstimate] = field(default_factory=dict)
    number: int = 0

    def hand(self, call_id: CallId, length: LengthEstimate) -> None:
        self.handed[call_id] = length

    def spec(self, **more: Any) -> CallSpec:
        self.number += 1
        name = f"c{self.number}"
        own = {"model": "m", "prompt_tokens": 100, "stage": "write", **more}
        return CallSpec(CallId(name), WorkflowId(f"w{self.number // 2}"), **own)

    def arrive(self, spec: CallSpec) -> CallId:
        call = SimpleNamespace(
            spec=spec,
            call_id=spec.call_id,
            first_length=self.forest.predict(spec),
            generated_tokens=0,
        )
        self.calls[spec.call_id] = call
        self.forest.observe(CallArrived(spec), None, self.clock())  # type: ignore[arg-type]
        return spec.call_id

    def end(self, spec: CallSpec, tokens: int) -> None:
        self.calls.pop(spec.call_id, None)
        self.forest.learn(spec, tokens)

    def teach(self, count: int, tokens: int = 100) -> None:
        """Calls that came before anybody asked the forest."""
        for _ in range(count):
            self.forest.learn(self.spec(), tokens)

    async def ask(self, **more: Any) -> LengthEstimate:
        """What the forest says of a call, once it has."""
        spec = self.spec(**more)
        call_id = self.arrive(spec)
        await self.until(lambda: call_id in self.handed)
        del self.calls[call_id]
        return self.handed[call_id]

    async def guess(self, tokens: int, **more: Any) -> None:
        """A call that the forest has its say on, believed or not, and that ends then."""
        spec = self.spec(**more)
        before = self.outcomes()
        self.arrive(spec)
        await self.until(lambda: self.outcomes() > before)
        self.end(spec, tokens)

    def outcomes(self) -> int:
        estimates = self.told["estimates"]
        return sum(estimates.values())

    @property
    def told(self) -> dict[str, Any]:
        return self.forest.stats()

    async def until_state(self, state: str) -> dict[str, Any]:
        await self.until(lambda: self.told["state"] == state)
        return self.told

    async def until(self, condition: Any) -> None:
        """Return once the condition holds; the test's own timeout bounds it."""
        while not condition():  # noqa: ASYNC110 - any condition, of any thing
            await asyncio.sleep(0.002)


@contextmanager
def probation_of(calls: int) -> Iterator[None]:
    """New forests are judged by so many calls before they are believed."""
    with patch.object(evidence, "PROBATION_CALLS", calls):
        yield


@asynccontextmanager
async def rig(
    train: str, *, start: bool = True, probation: int = 0, **settings: Any
) -> AsyncIterator[Rig]:
    with probation_of(probation):
        async with _rig(train, start, settings) as made:
            yield made


@asynccontextmanager
async def _rig(train: str, start: bool, settings: dict[str, Any]) -> AsyncIterator[Rig]:
    own = {"min_calls": 20, "train_interval_s": 0.0, "late_s": 60.0, **settings}
    checked = PredictorSettings.model_validate(own)
    fallback, clock = RollingQuantiles(), Clock()
    forest = LiveForest(
        checked,
        method(train),
        fallback,
        counters=Counters(CollectorRegistry()),
        clock=clock,
    )
    made = Rig(forest, fallback, clock)
    if start:
        forest.start(made.calls, made.hand)
    try:
        yield made
    finally:
        await forest.stop()


def retry_at_once(monkeypatch: Any) -> None:
    """What failed is tried again without a rest."""
    monkeypatch.setattr(training, "RETRY_S", (0.0, 0.0))
