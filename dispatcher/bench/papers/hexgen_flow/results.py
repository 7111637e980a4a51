"""Tunes alpha, then plays every case under every policy from every seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatcher.bench.claims import ExperimentOptions
from dispatcher.bench.papers.hexgen_flow.cases import (
    ALPHA_CASES,
    ALPHAS,
    EVERY,
    HETERO_CASES,
    HOMO_CASES,
    MAC_SQL_CASES,
    OURS,
    RATES,
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


def _asked(policy: Callable[[Case, str], PolicyChoice]) -> tuple[tuple[Case, PolicyChoice], ...]:
    pairs = [
        *((case, policy(case, n)) for case in HETERO_CASES for n in (*EVERY, "rr-pq", WB_FCFS)),
        *(
            (case, policy(case, name))
            for case in (*HOMO_CASES, *MAC_SQL_CASES, *TENANT_CASES)
            for name in EVERY
        ),
        *((case, with_alpha(OURS, alpha)) for case in ALPHA_CASES for alpha in ALPHAS),
        *((case, policy(case, name)) for case in SEATS_CASES for name in (*EVERY, WB_FCFS)),
    ]
    return tuple(dict.fromkeys(pairs))


class Results:
    """Figures of every play, by case, policy and seed."""

    def __init__(self, options: ExperimentOptions) -> None:
        self.seeds = options.seeds
        tuned_on = [*ALPHA_CASES, *(c for c in (*HOMO_CASES, *MAC_SQL_CASES) if _slower(c))]
        most = len(_asked(lambda case, name: PolicyChoice(name, name)))
        options.on_steps(len(tuned_on) + most * len(self.seeds))
        seed = self.seeds[0] + TUNE_SEED_AFTER
        tasks = [(case, seed) for case in tuned_on]
        found = in_workers(tune, tasks, jobs=options.jobs, on_result=options.on_step)
        self.tuned = dict(zip(tuned_on, found, strict=True))
        self._alpha_of = {(c.trace, c.fleet): t.alpha for c, t in self.tuned.items()}
        pairs = _asked(self.policy)
        plays = [(case, policy, seed) for case, policy in pairs for seed in self.seeds]
        settings = [case.setting(policy, seed) for case, policy, seed in plays]
        figures = results_of(settings, jobs=options.jobs, on_result=options.on_step)
        self._of = dict(zip(plays, figures, strict=True))
        self.pairs = pairs
        for _ in range(most * len(self.seeds) - len(plays)):
            options.on_step()  # a curve has the alpha that was found in it already

    def policy(self, case: Case, name: str) -> PolicyChoice:
        """A policy by name, with the alpha that was found for the case where it has one."""
        if name not in (OURS, WB_FCFS):
            return PolicyChoice(name, name)
        return with_alpha(name, self._alpha_of[case.trace, case.fleet])

    def figures(self, case: Case, policy: str | PolicyChoice) -> list[Figures]:
        """One for each seed."""
        choice = self.policy(case, policy) if isinstance(policy, str) else policy
        return [self._of[case, choice, seed] for seed in self.seeds]

    def mean(self, case: Case, policy: str | PolicyChoice, figure: str) -> float:
        """Over seeds."""
        return mean([found[figure] for found in self.figures(case, policy)])

    def ratio(self, case: Case, over: str, under: str, of: Callable[[Figures], float]) -> float:
        """Mean over seeds of one policy's figure over another's."""
        pairs = zip(self.figures(case, over), self.figures(case, under), strict=True)
        return mean([of(a) / of(b) for a, b in pairs])

    def scales(self, case: Case, baseline: str) -> float:
        """P95 ratio: the baseline's least SLO scale over HexGen-Flow's."""
        return self.ratio(case, baseline, OURS, lambda found: float(found[SCALE]))

    def throughputs(self, case: Case, baseline: str) -> float:
        """Throughput ratio: HexGen-Flow's over the baseline's."""
        return self.ratio(case, OURS, baseline, lambda found: float(found[THROUGHPUT]))


def _slower(case: Case) -> bool:
    return case.rate_per_s == min(RATES) or case is MAC_SQL_CASES[0]


def mean(values: Sequence[float]) -> float:
    """Arithmetic, of at least one value."""
    return sum(values) / len(values)
