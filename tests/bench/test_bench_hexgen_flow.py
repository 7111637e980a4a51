"""HexGen-Flow's experiments, on a few queries: every claim is measured, from the plays it names."""

from __future__ import annotations

import pytest
from paper_documents import claims_by_id, document_of

from dispatcher.bench.papers import PAPERS
from dispatcher.bench.papers.hexgen_flow import cases
from dispatcher.bench.papers.hexgen_flow.results import policy_named


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "QUERIES", 4)
        return document_of(PAPERS["hexgen-flow"](), seeds=(0,))


def test_every_claim_of_the_evaluation_has_a_measurement(document) -> None:
    claims = claims_by_id(document)
    for baseline in cases.BASELINES:
        for kind in ("p95-ratio", "throughput-ratio", "example", "homogeneous"):
            assert f"{kind}-{baseline}" in claims
    assert {"mac-sql", "two-tenants-user-1", "two-tenants-user-2"} <= claims.keys()
    assert {"balance-against-round-robin", "queue-against-fcfs"} <= claims.keys()
    assert {"alpha-optimum", "alpha-gain", "tuning-cost"} <= claims.keys()
    assert sum(name.startswith("placement-") for name in claims) == 4
    for claim in claims.values():
        assert claim["measured"] is not None, claim["id"]
        assert claim["note"], claim["id"]


def test_the_file_says_how_it_was_measured(document) -> None:
    setting = document["setting"]
    assert (setting["seats"], setting["slo_scale"], setting["arrivals"]) == (8, 5.0, "poisson")
    assert setting["tune_seed"] == cases.TUNE_SEED_AFTER
    assert "played under vllm" in setting["warm_up"]
    fleets = {fleet["name"]: fleet["engines"] for fleet in setting["fleets"]}
    assert fleets.keys() == {"hetero-1", "hetero-2", "homogeneous", "mac-sql"}
    assert fleets["hetero-1"] == {"A100-80G:tp4": 2, "A6000:tp4": 2}


def test_ratios_are_those_of_the_plays(document) -> None:
    plays = {(p["case"], p["seats"], p["tenants"], p["policy"]): p for p in document["plays"]}
    ours = policy_named("hexgen-flow").label
    ratios = []
    for case in cases.HETERO_CASES:
        scales = [
            plays[case.label, case.seats, False, name]["slo_scale_at_95"] for name in ("vtc", ours)
        ]
        ratios.append(scales[0] / scales[1])
    claim = claims_by_id(document)["p95-ratio-vtc"]
    assert claim["measured"] == pytest.approx([min(ratios), max(ratios)], abs=2e-3)


def test_seats_have_a_figure_of_their_own(document) -> None:
    (case,) = {(c.trace, c.fleet, c.rate_per_s) for c in cases.SEATS_CASES}
    assert case == ("chess-3", "hetero-2", 0.5)
    found = {p["seats"] for p in document["plays"] if p["case"] == cases.SEATS_CASES[0].label}
    assert found == set(cases.SEATS_TRIED)
