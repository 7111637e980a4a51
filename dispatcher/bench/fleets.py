"""Fleets to measure on: by name, or written down as `A100x2,L40,A6000x1:tp4`.

Sources of the named ones: HexGen-Flow (arXiv:2505.05286), section 5.1. Its text gives each
instance four GPUs and speaks of "tensor parallelism eight"; only four fits every count of GPUs, so
each has TP 4 here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dispatcher.core.errors import ConfigurationError, UnknownNameError
from dispatcher.core.gpu_profiles import gpu_profile, model_profile
from dispatcher.simulator import SimulatedEngine, simulated_engine

DEFAULT_SEATS = 8
MOST_ENGINES = 10_000
"""Of one fleet that is written down."""


class FleetError(ConfigurationError):
    """A fleet that cannot be understood or built; says what was expected."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one engine runs on."""

    gpu: str
    """As `gpu_profile` knows it."""
    tp: int = 1
    """GPUs that share the model."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that serve one model.

    Raises:
        FleetError: No engine, or the model does not fit on one.
    """

    name: str
    size: str
    """Of the model, as `model_profile` knows it."""
    hardware: tuple[Hardware, ...]
    seats: int = DEFAULT_SEATS
    """Of each engine: calls in flight there, and its `max_num_seqs`."""
    note: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.hardware) <= MOST_ENGINES:
            raise FleetError(f"fleet {self.name}: expected 1 to {MOST_ENGINES} engines")
        if self.seats < 1:
            raise FleetError(f"fleet {self.name}: expected at least 1 seat, not {self.seats}")
        try:
            for kind in dict.fromkeys(self.hardware):
                _engine("probe", kind, self)
        except ConfigurationError as error:
            raise FleetError(f"fleet {self.name}: {error}") from error

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """Names of its engines in order: `a100-0`, `a100-1`, `l40-0`.

        Example:
            >>> fleet_named("embedded").engine_ids
            ('a100-0', 'a100-1', 'l40-0', 'a6000-0')
        """
        seen: Counter[str] = Counter()
        ids = []
        for kind in self.hardware:
            short = gpu_profile(kind.gpu).name.lower().partition("-")[0]
            ids.append(f"{short}-{seen[short]}")
            seen[short] += 1
        return tuple(ids)

    def engines(self) -> list[SimulatedEngine]:
        """All of it, as a simulation takes it."""
        return [
            _engine(engine_id, kind, self)
            for engine_id, kind in zip(self.engine_ids, self.hardware, strict=True)
        ]

    def kinds(self) -> list[SimulatedEngine]:
        """One engine of each kind."""
        return [_engine(f"{k.gpu}:{k.tp}", k, self) for k in dict.fromkeys(self.hardware)]

    def with_seats(self, seats: int) -> Fleet:
        """Return the same with other seats."""
        return replace(self, seats=seats)

    @property
    def model(self) -> str:
        """Title of the model it serves."""
        return model_profile(self.size).title

    def counted(self) -> dict[str, int]:
        """How many engines of each kind: `{"A100-80G:tp4": 2}`."""
        kinds = (f"{gpu_profile(kind.gpu).name}:tp{kind.tp}" for kind in self.hardware)
        return dict(Counter(kinds))

    def described(self) -> dict[str, object]:
        """What it is, as plain JSON values."""
        return {
            "name": self.name,
            "model": self.model,
            "engines": self.counted(),
            "seats": self.seats,
            "note": self.note,
        }


def _engine(engine_id: str, kind: Hardware, fleet: Fleet) -> SimulatedEngine:
    return simulated_engine(engine_id, kind.gpu, size=fleet.size, tp=kind.tp, seats=fleet.seats)


def _four(*gpus: str, tp: int = 1) -> tuple[Hardware, ...]:
    return tuple(Hardware(gpu, tp) for gpu in gpus)


_MIXED = ("A100-80G", "A100-80G", "L40", "A6000")

FLEETS: Mapping[str, Fleet] = {
    fleet.name: fleet
    for fleet in (
        Fleet("embedded", "8b", _four(*_MIXED), note="what `headway serve` starts by itself"),
        Fleet("hetero-1", "70b", _four("A100-80G", "A100-80G", "A6000", "A6000", tp=4)),
        Fleet("hetero-2", "70b", _four(*_MIXED, tp=4)),
        Fleet("homogeneous", "70b", _four(*["A100-80G"] * 4, tp=4)),
        Fleet(
            "mac-sql",
            "8b",
            _four(*_MIXED),
            note="HexGen-Flow runs Qwen3-30B here, a mixture of experts that computes with 3.3 of"
            " 30.5 billion weights a token; Llama-3.1-8B is the nearest dense profile: its decoding"
            " and prefill are slower than 3.3 billion weights', its memory smaller than 30.5's",
        ),
    )
}
"""Fleets by name."""

_ENGINES = re.compile(r"(?P<gpu>[A-Za-z][\w -]*?)(?:x(?P<count>\d{1,5}))?(?::tp(?P<tp>\d{1,3}))?")


def fleet_named(text: str, *, size: str | None = None, seats: int | None = None) -> Fleet:
    """A fleet by its name, or as written: GPUs, how many of each, and GPUs per engine.

    Args:
        text: A name in `FLEETS`, or `GPU[xCOUNT][:tpN],...`.
        size: Of the model; `None`: the named fleet's, else 8b.
        seats: Of each engine; `None`: 8.

    Raises:
        FleetError: Neither; or a GPU, size or number in it that cannot be.

    Example:
        >>> fleet = fleet_named("A100x2,L40,A6000:tp4", size="8b", seats=16)
        >>> [(kind.gpu, kind.tp) for kind in fleet.hardware]
        [('A100', 1), ('A100', 1), ('L40', 1), ('A6000', 4)]
    """
    known = FLEETS.get(text)
    if known is not None:
        return replace(
            known, size=size or known.size, seats=known.seats if seats is None else seats
        )
    return Fleet(text, size or "8b", _written(text), DEFAULT_SEATS if seats is None else seats)


def _written(text: str) -> tuple[Hardware, ...]:
    hardware: list[Hardware] = []
    for part in text.split(","):
        found = _ENGINES.fullmatch(part.strip())
        try:
            if found is None:
                raise UnknownNameError(f"cannot read {part.strip()!r}")
            gpu_profile(found["gpu"])
        except ConfigurationError as error:
            names = ", ".join(FLEETS)
            raise FleetError(
                f"no such fleet: {text!r} ({error}); expected one of {names}, or engines such as"
                " A100x2,L40,A6000x1:tp4"
            ) from error
        count, tp = int(found["count"] or 1), int(found["tp"] or 1)
        if count < 1 or tp < 1 or count > MOST_ENGINES:
            raise FleetError(
                f"fleet {text!r}: expected 1 to {MOST_ENGINES} engines of 1 or more GPUs"
            )
        hardware += [Hardware(found["gpu"], tp)] * count
    return tuple(hardware)
