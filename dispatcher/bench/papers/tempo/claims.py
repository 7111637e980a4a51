"""The claims of Tempo's section 6, each beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dispatcher.bench.claims import Better, Claim
from dispatcher.bench.measured_claims import claim_of_one, claim_of_several
from dispatcher.bench.over_seeds import Measured, noise, span
from dispatcher.bench.papers.tempo import experiments as of
from dispatcher.bench.papers.tempo import reasons
from dispatcher.bench.papers.tempo.cases import Case, Contender
from dispatcher.bench.papers.tempo.results import GAIN, GOODPUT, TOKENS, Results, drop
from dispatcher.bench.report import Figures

CROWDED = 0.5
"""Attainment below which vLLM counts as overrun: floors are asked for there."""
GOODPUT_FLOOR, GAIN_FLOOR = 2.0, 1.3


def claims_of(results: Results) -> list[Claim]:
    """All of them, in the paper's order."""
    return [
        *_over_time(results),
        *_goodput(results),
        *_throughput(results),
        *_oracle(results),
        *_loads(results),
        *floors(results),
        *_classes(results),
        *_parts(results),
        *_robustness(results),
    ]


def attained(results: Results, case: Case, contender: Contender) -> float:
    """Share of requests that kept their SLO, mean over seeds."""
    return results.measured(case, contender, "attainment").mean


# --- section 6.2 --------------------------------------------------------------------------------

_HOUR = "one hour, 8B on an A100, batch 16, load 1.1, Poisson; chatbot and long answers"


def _over_time(results: Results) -> Iterable[Claim]:
    gains = [results.ratio(case, of.TEMPO, of.VLLM, GAIN) for case in of.HOUR_CASES]
    yield claim_of_several(
        "gain-vllm",
        "service gain, Tempo's over vLLM's",
        _HOUR,
        (1.3, 8.3),
        gains,
        note=_told(results, of.HOUR_CASES, GAIN, "{:.0f}") + reasons.GAIN,
    )
    for contender, claimed, better in (
        (of.TEMPO, (0.0236, 0.2195), Better.LOWER),
        (of.VLLM, (0.4337, 0.9429), Better.HIGHER),
    ):
        drops = [results.measured(case, contender, drop) for case in of.HOUR_CASES]
        yield claim_of_several(
            f"decay-{contender.policy}",
            f"service gain that {contender.label} loses from the first ten minutes to the last",
            _HOUR,
            claimed,
            drops,
            unit="share",
            better=better,
            note=reasons.DECAY[contender.policy],
        )


def _told(results: Results, cases: Sequence[Case], figure: str, how: str) -> str:
    parts = []
    for case in cases:
        ours = results.measured(case, of.TEMPO, figure).mean
        theirs = results.measured(case, of.VLLM, figure).mean
        parts.append(f"{how.format(ours)} against {how.format(theirs)}")
    return f"{', '.join(parts)}; "


def _goodput(results: Results) -> Iterable[Claim]:
    ratios = [results.ratio(case, of.TEMPO, of.VLLM, GOODPUT) for case in of.BATCH_CASES]
    met = [attained(results, case, of.VLLM) for case in of.BATCH_CASES]
    yield claim_of_several(
        "goodput-vllm",
        "SLO goodput, Tempo's over vLLM's",
        "8B with batch 8, 16, 32; 13B and 70B with 16; load 1.1, Poisson, one hour",
        (4.0, 10.3),
        ratios,
        note=f"vLLM attains {min(met):.0%} to {max(met):.0%}; {reasons.GOODPUT}",
    )


def _throughput(results: Results) -> Iterable[Claim]:
    # on one engine Sarathi-FCFS does what vLLM does
    ratios = [results.ratio(case, of.TEMPO, of.VLLM, TOKENS) for case in of.HOUR_CASES]
    requests = [results.ratio(case, of.TEMPO, of.VLLM, "requests_per_s") for case in of.HOUR_CASES]
    low, high = span(requests)
    yield claim_of_several(
        "throughput-sarathi",
        "output tokens per second, Tempo's over Sarathi-FCFS's",
        _HOUR,
        (0.96, 0.98),
        ratios,
        note=f"in requests per second {low} to {high}; {reasons.THROUGHPUT}",
    )


def _oracle(results: Results) -> Iterable[Claim]:
    for figure, what in ((GOODPUT, "goodput"), (GAIN, "gain")):
        ratios = [results.ratio(case, of.TEMPO, of.PRECISE, figure) for case in of.HOUR_CASES]
        yield claim_of_several(
            f"oracle-{what}",
            f"{'SLO goodput' if what == 'goodput' else 'service gain'}, Tempo's over that of"
            " Tempo with true lengths",
            _HOUR,
            1.0,
            ratios,
            note=f'claimed in words: "close to"; {reasons.ORACLE}',
        )


def floors(results: Results) -> Iterable[Claim]:
    """Wherever vLLM is overrun, of all cases that it plays."""
    cases = [case for case, contender in results.pairs if contender == of.VLLM]
    crowded = [case for case in cases if attained(results, case, of.VLLM) < CROWDED]
    told = f"a floor, not the paper's number; {len(crowded)} of {len(cases)} cases"
    goodputs = [(case, results.ratio(case, of.TEMPO, of.VLLM, GOODPUT)) for case in crowded]
    yield _floor("goodput", "SLO goodput", GOODPUT_FLOOR, goodputs, told)
    gains = [(case, results.ratio(case, of.TEMPO, of.VLLM, GAIN)) for case in crowded]
    below = [
        f"{case.brief}: {gain.mean:.2f} of {results.measured(case, of.VLLM, _ceiling).mean:.2f}"
        for case, gain in gains
        if gain.mean < GAIN_FLOOR
    ]
    missed = f"below in {len(below)} ({'; '.join(below)}); {reasons.FLOOR}" if below else "in all"
    yield _floor("gain", "service gain", GAIN_FLOOR, gains, f"{told}; {missed}")


def _floor(
    name: str,
    what: str,
    floor: float,
    found: Sequence[tuple[Case, Measured]],
    note: str,
) -> Claim:
    ratios = [ratio for _, ratio in found]
    least = min(found, key=lambda one: one[1].mean, default=None)
    where = "" if least is None else f"; least at {least[0].brief}"
    return Claim(
        f"floor-{name}",
        f"{what}, Tempo's over vLLM's wherever vLLM attains less than half",
        "every case of every experiment in which both play",
        "ratio",
        floor,
        span(ratios) if ratios else None,
        spread=noise(ratios) if ratios else None,
        note=note + where,
    )


def _ceiling(found: Figures) -> float:
    """What gain would be, over what it is, had all that was done been done in time."""
    return float(found["worth_per_s"] / found[GAIN])


def _loads(results: Results) -> Iterable[Claim]:
    rivals = (of.TEMPO, *of.BASELINES)
    firsts = [_first(results, case, rivals, GOODPUT) for case in of.LOAD_CASES]
    gains = [_first(results, case, rivals, GAIN) for case in of.LOAD_CASES]
    by_slack = [_first(results, case, (of.SLACK, *of.BASELINES), GOODPUT) for case in of.LOAD_CASES]
    told = ", ".join(
        f"{case.load:g} {name}" for case, name in zip(of.LOAD_CASES, firsts, strict=True)
    )
    yield Claim(
        "load-best",
        "loads at which Tempo has the highest SLO goodput of all",
        "load 0.6 to 1.6; 8B, batch 16, 15 minutes",
        "share",
        1.0,
        round(firsts.count(of.TEMPO.label) / len(firsts), 3),
        note=f"highest at load {told}; the highest service gain at"
        f" {gains.count(of.TEMPO.label)} of {len(gains)}; by slack Tempo's goodput is the highest"
        f" at {by_slack.count(of.SLACK.label)}; {reasons.BEST}",
    )


def _first(results: Results, case: Case, among: Sequence[Contender], figure: str) -> str:
    return max(among, key=lambda one: results.measured(case, one, figure).mean).label


# --- section 6.3 --------------------------------------------------------------------------------


def _of_class(name: str, figure: str, part: str) -> Callable[[Figures], float]:
    def found(figures: Figures) -> float:
        value = figures["classes"][name][figure][part]
        return float("inf") if value is None else float(value)

    return found


def _classes(results: Results) -> Iterable[Claim]:
    case = of.HOUR_CASES[0]
    for name, figure, what in (
        ("latency", "ttft_s", "TTFT of chat"),
        ("throughput", "latency_s", "TTLT of whole answers"),
        ("collective", "latency_s", "TTLT of collective requests"),
    ):
        for part, claimed_of in (("p50", of.VLLM), ("p95", of.SJF), ("p95", of.AUTELLIX)):
            ratio = results.ratio(case, of.TEMPO, claimed_of, _of_class(name, figure, part))
            ours = results.measured(case, of.TEMPO, _of_class(name, figure, part)).mean
            yield claim_of_one(
                f"class-{name}-{part}-{claimed_of.policy}",
                f"{part.upper()} {what}, Tempo's over {claimed_of.label}'s",
                "chatbot, one hour, 8B, batch 16, load 1.1",
                1.0,
                ratio,
                better=Better.LOWER,
                note=f"claimed in words; Tempo's is {ours:.1f} s; {reasons.CLASSES[name]}",
            )


def _parts(results: Results) -> Iterable[Claim]:
    for contender, name in ((of.NO_GRAPHS, "graphs"), (of.NO_LENGTHS, "lengths")):
        for figure, what in ((GOODPUT, "goodput"), (GAIN, "gain")):
            ratio = results.ratio(of.MAIN, of.TEMPO, contender, figure)
            yield claim_of_one(
                f"without-{name}-{what}",
                f"{'SLO goodput' if what == 'goodput' else 'service gain'}, Tempo's over that of"
                f" {contender.label}",
                "8B, batch 16, load 1.1, 15 minutes",
                1.0,
                ratio,
                note=f"claimed in words; {reasons.PARTS[name]}",
            )


# --- section 6.4 --------------------------------------------------------------------------------


def _worst(
    results: Results, cases: Sequence[Case], figure: str | Callable[[Figures], float]
) -> tuple[list[Measured], str]:
    """Tempo's figure over the best baseline's in every case, and who that was."""
    ratios, told = [], []
    for case in cases:
        best = max(
            (one for one in of.BASELINES if (case, one) in results.pairs),
            key=lambda one: results.measured(case, one, figure).mean,
        )
        ratios.append(results.ratio(case, of.TEMPO, best, figure))
        told.append(best.label)
    return ratios, ", ".join(told)


def _by_penalty(penalty: float) -> Callable[[Figures], float]:
    if penalty == 1.0:
        return lambda found: float(found[GAIN])
    return lambda found: float(found["gain_by_penalty"][f"{penalty:g}"])


def _robustness(results: Results) -> Iterable[Claim]:
    by_penalty = [_worst(results, [of.MAIN], _by_penalty(p))[0][0] for p in of.PENALTIES]
    yield claim_of_several(
        "penalty",
        "service gain under other penalties, Tempo's over the best baseline's",
        f"a = {', '.join(f'{penalty:g}' for penalty in of.PENALTIES)}; 8B, batch 16, load 1.1",
        1.0,
        by_penalty,
        note=f"claimed in words; {reasons.PENALTY}",
    )
    for name, what, cases, figure, claimed_of in (
        ("slo-scale", "SLO goodput at other SLO scales", of.SCALE_CASES, GOODPUT, ""),
        ("mix", "service gain in other mixes", of.MIX_CASES, GAIN, ""),
        ("bursts", "service gain under bursts", of.BURST_CASES, GAIN, ""),
    ):
        ratios, best = _worst(results, cases, figure)
        against = [results.ratio(case, of.TEMPO, of.VLLM, figure) for case in cases]
        low, high = span(against)
        yield claim_of_several(
            name,
            f"{what}, Tempo's over the best baseline's{claimed_of}",
            reasons.SETTINGS[name],
            1.0,
            ratios,
            note=f"claimed in words; best baselines: {best}; against vLLM {low} to {high};"
            f" {reasons.ROBUST[name]}",
        )
