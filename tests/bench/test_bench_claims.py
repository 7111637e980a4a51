"""Claims of papers: when they are met, and what is written."""

import pytest

from dispatcher.bench.claims import Better, Claim, Findings, paper_document


def claim(claimed, measured, better=Better.HIGHER, name="c"):
    return Claim(name, "ratio", "trace 1", "x", claimed, measured, better)


@pytest.mark.parametrize(
    ("claimed", "measured", "better", "met"),
    [
        (1.5, 1.5, Better.HIGHER, True),
        (1.5, 1.49, Better.HIGHER, False),
        ((1.2, 1.6), 1.2, Better.HIGHER, True),
        ((1.2, 1.6), 9.0, Better.HIGHER, True),
        ((1.2, 1.6), (1.1, 2.0), Better.HIGHER, False),
        (7.0, 6.0, Better.LOWER, True),
        ((5.0, 7.0), 6.9, Better.LOWER, True),
        ((5.0, 7.0), 7.1, Better.LOWER, False),
        ((5.0, 7.0), (3.0, 7.1), Better.LOWER, False),
        (1.0, None, Better.LOWER, False),
    ],
)
def test_a_claim_is_met_where_its_weaker_end_is_reached(claimed, measured, better, met):
    assert claim(claimed, measured, better).met is met


def test_a_range_has_its_low_end_first():
    with pytest.raises(ValueError, match=r"claimed must be \(low, high\)"):
        claim((2.0, 1.0), 1.0)


def test_the_document_has_what_was_promised():
    findings = Findings([claim((1.2, 1.6), 1.3)], {"curves": {"0.1": [1.0, float("nan")]}})
    found = paper_document("some", findings, seeds=[0, 1], seconds=12.345)
    assert list(found) == ["paper", "version", "commit", "seeds", "seconds", "claims", "curves"]
    assert found["claims"] == [
        {
            "id": "c",
            "what": "ratio",
            "setting": "trace 1",
            "unit": "x",
            "claimed": [1.2, 1.6],
            "measured": 1.3,
            "spread": None,
            "met": True,
            "note": "",
        }
    ]
    assert (found["seeds"], found["seconds"]) == ([0, 1], 12.3)
    assert found["curves"] == {"0.1": [1.0, None]}


def test_two_claims_of_one_id_are_refused():
    with pytest.raises(ValueError, match="claims of one id: c"):
        paper_document("some", Findings([claim(1, 1), claim(2, 2)]), seeds=[0], seconds=1.0)
