"""Tunes alpha, then plays every case under every policy from every seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.over_seeds import Measured
from dispatcher.bench.papers.hexgen_flow.cases import (
    ALPHA,
    ALPHA_CASES,
    ALPHAS,
    EVERY,
    HETERO_CASES,
    HOMO_CASES,
    MAC_SQL_CASES,
    OURS,
    SCALE,
    SEATS_CASES,
    TENANT_CASES,
    THROUGHPUT,
    TUNE_SEED_AFTER,
    WB_FCFS,
    Case,
)
from dispatcher.bench.policies import PolicyChoice
from dispatcher.bench.report import Figures
from dispatcher.bench.run import in_workers, play, results_of
from dispatcher.bench.work import prepared
from dispatcher.simulator.replay import replay
from dispatcher.traces import PlayedInstance
from dispatcher.tuning import ReplayInstance, ReplayRequest, TuningRules, choose


def with_alpha(name: str, alpha: float) -> PolicyChoice:
    """A policy whose alpha is fixed."""
    return PolicyChoice(f"{name}:alpha={alpha:g}", name, (("alpha", alpha),))


def policy_named(name: str) -> PolicyChoice:
    """A policy as it is compared."""
    return with_alpha(name, ALPHA) if name in (OURS, WB_FCFS) else PolicyChoice(name, name)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What one tune came to."""

    alpha: float
    gain: float
    taken_s: float
    """Process time of the replay."""
    calls: int


def tune(task: tuple[Case, int]) -> Tuned:
    """Tune alpha on a case's trace of that seed, as the gateway would with it as its window.

    A tune knows of prefix caches what the gateway would: the share that each engine has reported.
    """
    case, seed = task
    setting = case.setting(with_alpha(OURS, 0.0), seed)
    played = play(setting)
    fleet = setting.fleet
    instances = tuple(
        ReplayInstance(
            engine.spec,
            engine.spec.profile,
            case.seats,
            _hits(played.instances[str(engine.instance_id)]),
        )
        for engine in fleet.engines()
        if engine.spec.profile is not None
    )
    trace = tuple(prepared(setting.work, fleet, case.rate_per_s, seed).trace)
    began_s = time.process_time()
    result = replay(ReplayRequest(trace, instances, OURS, {}))
    taken_s = time.process_time() - began_s
    choice = choose(result, 0.0, TuningRules().min_gain)
    return Tuned(choice.after, choice.gain, taken_s, len(played.calls))


def _hits(instance: PlayedInstance) -> float:
    queries = instance.prefix_queries_tokens
    return instance.prefix_hits_tokens / queries if queries else 0.0


def _asked() -> tuple[tuple[Case, PolicyChoice], ...]:
    pairs = [
        *((case, policy_named(n)) for case in HETERO_CASES for n in (*EVERY, "rr-pq", WB_FCFS)),
        *(
            (case, policy_named(name))
            for case in (*HOMO_CASES, *MAC_SQL_CASES, *TENANT_CASES)
            for name in EVERY
        ),
        *((case, with_alpha(OURS, alpha)) for case in ALPHA_CASES for alpha in ALPHAS),
        *((case, policy_named(name)) for case in SEATS_CASES for name in (*EVERY, WB_FCFS)),
    ]
    return tuple(dict.fromkeys(pairs))


class Results:
    """Figures of every play, by case, policy and seed."""

    def __init__(self, options: ExperimentOptions) -> None:
        self.seeds = options.seeds
        self.pairs = _asked()
        plays = [(case, policy, seed) for case, policy in self.pairs for seed in self.seeds]
        options.on_steps(len(ALPHA_CASES) + len(plays))
        tasks = [(case, self.seeds[0] + TUNE_SEED_AFTER) for case in ALPHA_CASES]
        tuned = in_workers(tune, tasks, jobs=options.jobs, on_result=options.on_step)
        self.tuned = dict(zip(ALPHA_CASES, tuned, strict=True))
        settings = [case.setting(policy, seed) for case, policy, seed in plays]
        figures = results_of(settings, jobs=options.jobs, on_result=options.on_step)
        self._of = dict(zip(plays, figures, strict=True))

    def figures(self, case: Case, policy: str | PolicyChoice) -> list[Figures]:
        """One for each seed."""
        choice = policy_named(policy) if isinstance(policy, str) else policy
        return [self._of[case, choice, seed] for seed in self.seeds]

    def mean(self, case: Case, policy: str | PolicyChoice, figure: str) -> float:
        """Over seeds."""
        return mean([found[figure] for found in self.figures(case, policy)])

    def ratio(self, case: Case, over: str, under: str, of: Callable[[Figures], float]) -> Measured:
        """One policy's figure over another's on the same traces."""
        pairs = zip(self.figures(case, over), self.figures(case, under), strict=True)
        return Measured([of(a) / of(b) for a, b in pairs])

    def scales(self, case: Case, baseline: str) -> Measured:
        """P95 ratio: the baseline's least SLO scale over HexGen-Flow's."""
        return self.ratio(case, baseline, OURS, lambda found: float(found[SCALE]))

    def throughputs(self, case: Case, baseline: str) -> Measured:
        """Throughput ratio: HexGen-Flow's over the baseline's."""
        return self.ratio(case, OURS, baseline, lambda found: float(found[THROUGHPUT]))


def mean(values: Sequence[float]) -> float:
    """Arithmetic, of at least one value."""
    return sum(values) / len(values)
