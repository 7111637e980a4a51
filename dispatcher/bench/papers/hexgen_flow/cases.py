"""Where policies are compared in HexGen-Flow's section 5, and with what."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.bench.fleets import FLEETS
from dispatcher.bench.policies import PolicyChoice
from dispatcher.bench.run import Setting
from dispatcher.bench.work import Work

SEATS = 8
"""Of each engine: few enough that calls wait where their order is decided (see `SEATS_CASES`)."""
QUERIES = 100
TRACES = ("chess-1", "chess-2", "chess-3")
HETERO = ("hetero-1", "hetero-2")
RATES = (0.5, 1.0)
ALPHA = 0.2
"""Within the paper's optimum of 0.1 to 0.4 (section 5.4)."""
ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""Of the curves; the paper's Fig. 10 ends at 0.5."""
SEATS_TRIED = (4, 8, 16, 32, 64)
TUNE_SEED_AFTER = 2_000_003
"""Alpha is tuned on the trace of the first seed + this."""
TENANTS = (("user-1", 4.0), ("user-2", 8.0))
"""SLO scales of the two users; the paper does not give its own."""

BASELINES = ("vllm", "vtc", "qlm")
OURS, WB_FCFS = "hexgen-flow", "wb-fcfs"
"""Both with `ALPHA`."""
EVERY = (OURS, *BASELINES)

SCALE = "slo_scale_at_95"
THROUGHPUT = "throughput_per_s"


@dataclass(frozen=True, slots=True)
class Case:
    """Where policies are compared."""

    trace: str
    fleet: str
    rate_per_s: float
    tenants: tuple[tuple[str, float], ...] = ()
    seats: int = SEATS

    @property
    def label(self) -> str:
        """For tables and settings."""
        return f"{self.trace}, {self.fleet}, {self.rate_per_s:g} queries/s"

    def setting(self, policy: PolicyChoice, seed: int) -> Setting:
        """One play of it."""
        work = Work(scenario=self.trace, count=QUERIES, tenants=self.tenants)
        fleet = FLEETS[self.fleet].with_seats(self.seats)
        return Setting(work, fleet, policy, self.rate_per_s, seed)


HETERO_CASES = tuple(Case(t, f, r) for t in TRACES for f in HETERO for r in RATES)
HOMO_CASES = tuple(Case(t, "homogeneous", r) for t in TRACES for r in RATES)
MAC_SQL_CASES = tuple(Case("mac-sql", "mac-sql", r) for r in (4.0, 8.0))
TENANT_CASES = tuple(Case("chess-3", f, r, TENANTS) for f in HETERO for r in RATES)
ALPHA_CASES = tuple(Case(t, f, 0.5) for t in TRACES for f in HETERO)
SEATS_CASES = tuple(Case("chess-3", "hetero-2", 0.5, seats=seats) for seats in SEATS_TRIED)
