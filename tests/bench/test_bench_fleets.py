"""Fleets by name and as they are written down."""

import pytest

from dispatcher.bench.fleets import FLEETS, FleetError, Hardware, fleet_named


def test_named_fleets_are_the_papers_setups():
    assert FLEETS["embedded"].counted() == {"A100-80G:tp1": 2, "L40:tp1": 1, "A6000:tp1": 1}
    assert FLEETS["hetero-1"].counted() == {"A100-80G:tp4": 2, "A6000:tp4": 2}
    assert FLEETS["hetero-2"].counted() == {"A100-80G:tp4": 2, "L40:tp4": 1, "A6000:tp4": 1}
    assert FLEETS["homogeneous"].counted() == {"A100-80G:tp4": 4}
    assert {name: fleet.model for name, fleet in FLEETS.items()} == {
        "embedded": "Llama-3.1-8B",
        "hetero-1": "Llama-3.1-70B",
        "hetero-2": "Llama-3.1-70B",
        "homogeneous": "Llama-3.1-70B",
        "mac-sql": "Llama-3.1-8B",
    }
    assert "Qwen3-30B" in FLEETS["mac-sql"].note


def test_a_written_fleet_is_what_it_says():
    fleet = fleet_named("A100x2, L40,A6000x1:tp4", size="8b", seats=16)
    assert fleet.hardware == (
        Hardware("A100"),
        Hardware("A100"),
        Hardware("L40"),
        Hardware("A6000", 4),
    )
    assert fleet.engine_ids == ("a100-0", "a100-1", "l40-0", "a6000-0")
    engines = fleet.engines()
    assert [str(engine.instance_id) for engine in engines] == list(fleet.engine_ids)
    assert {engine.spec.seats for engine in engines} == {16}
    assert {engine.config.max_num_seqs for engine in engines} == {16}
    # four A6000 together decode faster than one L40
    assert engines[3].spec.profile.tpot_base_s < engines[2].spec.profile.tpot_base_s


def test_a_named_fleet_takes_another_size_and_other_seats():
    fleet = fleet_named("hetero-1", size="8b", seats=4)
    assert (fleet.model, fleet.seats, len(fleet.hardware)) == ("Llama-3.1-8B", 4, 4)
    assert fleet_named("hetero-1").seats == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hetero-9", "expected one of embedded, hetero-1"),
        ("A100x2,B200", "unknown GPU 'B200'"),
        ("A100x0", "1 to 10000 engines"),
        ("A100:tp0", "1 or more GPUs"),
        ("", "no such fleet"),
        ("A100,,L40", "cannot read ''"),
        ("A100x20000", "1 to 10000 engines"),
        ("A100x9999,L40x9999", "1 to 10000 engines"),
    ],
)
def test_a_fleet_that_cannot_be_read_says_what_was_expected(text, said):
    with pytest.raises(FleetError, match=said):
        fleet_named(text)


def test_a_model_that_does_not_fit_is_told():
    with pytest.raises(FleetError, match="use more GPUs"):
        fleet_named("A100", size="70b")
    with pytest.raises(FleetError, match="unknown model size"):
        fleet_named("A100", size="9000b")
    with pytest.raises(FleetError, match="at least 1 seat"):
        fleet_named("A100", seats=0)
