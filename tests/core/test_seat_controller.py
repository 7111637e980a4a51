"""Seats found by themselves, against a simple engine whose throughput stops rising at its knee."""

from __future__ import annotations

import pytest

from dispatcher.core.seats import INITIAL_SEATS, MAX_SEATS, MIN_SEATS, SeatController
from dispatcher.core.types import EngineGauges


def drive(controller, *, knee, cap, scrapes, backlog=True):
    """Scrape once a second an engine that runs `cap` at most and gains nothing beyond `knee`."""
    tokens = 0
    for second in range(scrapes):
        in_use = controller.seats if backlog else 1
        running = min(in_use, cap)
        tokens += 100 * min(running, knee)
        gauges = EngineGauges(running=running, waiting=in_use - running)
        controller.observe(
            float(second), gauges, in_use=in_use, backlog=backlog, tokens_total=tokens
        )
    return controller.seats


def test_seats_grow_to_the_knee_and_stop_there():
    seats = drive(SeatController(), knee=48, cap=512, scrapes=400)
    assert 44 <= seats <= 60


def test_seats_shrink_to_what_the_engine_runs_at_once():
    assert drive(SeatController(), knee=64, cap=8, scrapes=10) == 8


def test_what_was_sent_before_seats_shrank_does_not_shrink_them_again():
    """Calls that are out run to their end: it takes many scrapes until so few are out."""
    controller, out = SeatController(), INITIAL_SEATS
    for second in range(30):
        running = min(out, 4)
        gauges = EngineGauges(running=running, waiting=out - running)
        controller.observe(float(second), gauges, in_use=out, backlog=True, tokens_total=100)
        out = max(controller.seats, out - 1)
    assert controller.seats == 4
    assert out == 4


@pytest.mark.parametrize(("running", "waiting"), [(4, 13), (2, 12), (4, 12)])
def test_gauges_that_lag_behind_do_not_cost_a_seat(running, waiting):
    controller = SeatController()
    gauges = EngineGauges(running=running, waiting=waiting)
    for second in range(2):
        controller.observe(float(second), gauges, in_use=16, backlog=True, tokens_total=0)
    assert controller.seats == 4


def test_where_others_crowd_the_engine_seats_shrink_one_by_one():
    controller = SeatController(seats=4)
    gauges = EngineGauges(running=8, waiting=6)
    seen = []
    for second in range(12):
        in_use = controller.seats
        seen.append(
            controller.observe(float(second), gauges, in_use=in_use, backlog=True, tokens_total=0)
        )
    assert seen[:6] == [4, 3, 3, 2, 2, 1]
    assert seen[-1] == MIN_SEATS


def test_one_crowded_scrape_is_not_enough():
    controller = SeatController()
    controller.observe(
        0.0, EngineGauges(running=8, waiting=8), in_use=16, backlog=True, tokens_total=0
    )
    assert controller.seats == INITIAL_SEATS


def test_without_a_backlog_nothing_is_tried():
    assert drive(SeatController(), knee=64, cap=512, scrapes=60, backlog=False) == INITIAL_SEATS


@pytest.mark.parametrize("cap", [1, 3, 2000])
def test_seats_stay_within_bounds(cap):
    seats = drive(SeatController(), knee=4000, cap=cap, scrapes=2000)
    assert MIN_SEATS <= seats <= min(MAX_SEATS, max(1, cap) * 2)
