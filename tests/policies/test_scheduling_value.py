"""What bringing tokens in, decoding and pauses cost, and which handling wastes least."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.context_waste import Handling, Waste, least_waste, waste
from policies.scheduling_value import (
    Pace,
    Pause,
    Return,
    SchedulingValue,
    decode,
    printed_ramp,
    ramp,
)

PACE = Pace(iteration_s=0.02, batch_tokens=2048.0, swap_tokens=1024.0)
NO_PAUSE = Pause(0.0, Handling.DISCARD, 0.0)

tokens_of = st.integers(0, 30_000)
widths = st.integers(1, 4_096)


# --- bringing tokens in ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "exact", "printed"),
    [
        (100, 100.0, 2.441),  # one iteration holds them all: 41 times what is printed
        (2_048, 2_048.0, 1_024.0),
        (8_192, 20_480.0, 16_384.0),  # 2048 + 4096 + 6144 + 8192
        (8_193, 20_480.0 + 8_193.0, 16_388.0),
        (0, 0.0, 0.0),
    ],
)
def test_a_prompt_holds_what_it_has_brought_in_so_far(tokens, exact, printed):
    assert ramp(tokens, 2_048, 1.0) == exact
    assert printed_ramp(tokens, 2_048, 1.0) == pytest.approx(printed, rel=1e-3)


@given(tokens_of, widths, tokens_of)
def test_the_exact_form_is_iteration_by_iteration(tokens, width, resident):
    held, total = 0, 0
    while held < tokens:
        held = min(tokens, held + width)
        total += resident + held
    assert ramp(tokens, width, 1.0, resident) == pytest.approx(total)


@given(tokens_of, widths, tokens_of)
def test_the_printed_form_is_never_more_and_meets_it_over_many_iterations(tokens, width, resident):
    printed, exact = (f(tokens, width, 1.0, resident) for f in (printed_ramp, ramp))
    assert printed <= exact * (1.0 + 1e-9)
    # linear against quadratic: over many iterations the difference is nothing
    assert exact - printed <= resident + 1.5 * tokens + width + 1e-6


@given(tokens_of, tokens_of, st.integers(1, 30), widths)
def test_a_prompt_in_two_parts_costs_what_it_does_in_one(rest, resident, iterations, width):
    first = iterations * width
    whole = ramp(first + rest, width, 0.5, resident)
    parts = ramp(first, width, 0.5, resident) + ramp(rest, width, 0.5, resident + first)
    assert whole == pytest.approx(parts)


def test_decoding_holds_the_context_and_half_of_the_answer():
    assert decode(PACE, 1_000.0, 200.0) == pytest.approx(0.02 * (200_000 + 20_000))


# --- stage I --------------------------------------------------------------------------------------


def test_stage_one_adds_what_the_pause_holds():
    value = SchedulingValue()
    prompt, output, gap_s = 3_000.0, 100.0, 2.0
    served = 0.02 * (2_048 + 3_000) + 0.02 * (300_000 + 5_000)
    found = {
        handling: value.stage_one(PACE, prompt, output, Pause(gap_s, handling))
        for handling in Handling
    }
    assert found[Handling.DISCARD] == pytest.approx(served)
    assert found[Handling.PRESERVE] == pytest.approx(served + 3_100 * 2.0)
    # 3,100 tokens in four iterations of 1,024
    assert found[Handling.SWAP] == pytest.approx(served + 0.02 * (1_024 + 2_048 + 3_072 + 3_100))


def test_discarding_can_be_charged_with_what_it_makes_the_session_do():
    pause = Pause(2.0, Handling.DISCARD)
    free = SchedulingValue().stage_one(PACE, 3_000.0, 100.0, pause)
    charged = SchedulingValue(recompute=True).stage_one(PACE, 3_000.0, 100.0, pause)
    assert charged - free == pytest.approx(0.02 * (2_048 + 3_100))


def test_a_pause_counts_as_often_as_it_comes():
    value = SchedulingValue()
    never = value.stage_one(PACE, 500.0, 100.0, Pause(4.0, Handling.PRESERVE, 0.0))
    half = value.stage_one(PACE, 500.0, 100.0, Pause(4.0, Handling.PRESERVE, 0.5))
    assert half - never == pytest.approx(0.5 * 600 * 4.0)


def test_the_printed_costs_can_be_had():
    printed = SchedulingValue(form="printed")
    found = printed.stage_one(PACE, 100.0, 50.0, Pause(1.0, Handling.SWAP))
    assert found == pytest.approx(0.02 * (100**2 / 4_096 + 6_250 + 150**2 / 2_048))


# --- stage II -------------------------------------------------------------------------------------


def test_stage_two_restores_what_was_not_kept():
    value = SchedulingValue()
    base = 0.02 * (4_000 + 300) + 0.02 * (50 * 4_300 + 1_250)
    found = {
        handling: value.stage_two(
            PACE,
            Return(4_000.0, 300.0, handling, 4_000.0 * (handling is Handling.PRESERVE)),
            50.0,
            NO_PAUSE,
        )
        for handling in Handling
    }
    assert found[Handling.PRESERVE] == pytest.approx(base)
    assert found[Handling.DISCARD] == pytest.approx(base + 0.02 * (2_048 + 4_000))
    swapped_in = 0.02 * (1_024 + 2_048 + 3_072 + 4_000)
    assert found[Handling.SWAP] == pytest.approx(base + swapped_in)


def test_a_context_that_is_kept_in_part_is_completed():
    value = SchedulingValue()
    kept, part = (
        value.stage_two(PACE, Return(4_000.0, 0.0, Handling.PRESERVE, found), 50.0, NO_PAUSE)
        for found in (4_000.0, 3_000.0)
    )
    assert part - kept == pytest.approx(0.02 * (3_000 + 1_000))


def test_the_last_value_looks_ahead_to_the_next_pause():
    value = SchedulingValue()
    back = Return(1_000.0, 200.0, Handling.PRESERVE, 1_000.0)
    none, kept, swapped = (
        value.stage_two(PACE, back, 100.0, Pause(3.0, planned)) for planned in
        (Handling.DISCARD, Handling.PRESERVE, Handling.SWAP)
    )  # fmt: skip
    assert kept - none == pytest.approx(1_300 * 3.0)
    assert swapped - none == pytest.approx(0.02 * (1_024 + 1_300))


@given(
    st.floats(0, 20_000), st.floats(0, 5_000), st.floats(0, 1_000), st.sampled_from(Handling),
    st.floats(0, 60), st.sampled_from(Handling), st.sampled_from(["exact", "printed"]),
)  # fmt: skip
def test_more_of_anything_never_costs_less(total, returned, output, handled, gap, planned, form):
    value = SchedulingValue(form=form, recompute=True)

    def of(total, returned, output, gap):
        back = Return(total, returned, handled)
        return value.stage_two(PACE, back, output, Pause(gap, planned))

    here = of(total, returned, output, gap)
    assert math.isfinite(here) and here >= 0.0
    more = [
        of(total + 100, returned, output, gap),
        of(total, returned + 100, output, gap),
        of(total, returned, output + 10, gap),
        of(total, returned, output, gap + 1),
    ]
    assert min(more) >= here - 1e-6


# --- waste ----------------------------------------------------------------------------------------


def test_waste_is_memory_times_the_time_it_lies_idle():
    wasted = waste(1_000.0, 20_000.0, 2.0, recompute_s=0.1, swap_s=0.02)
    assert wasted == Waste(preserve=2_000.0, discard=0.1 * 21_000, swap=2 * 0.02 * 20_000)
    assert waste(1_000.0, 20_000.0, 2.0, recompute_s=0.1, swap_s=None).swap is None


@pytest.mark.parametrize(
    ("gap_s", "swap_s", "expected"),
    [
        (0.5, None, Handling.PRESERVE),
        (2.1, None, Handling.PRESERVE),  # a tie keeps
        (2.2, None, Handling.DISCARD),
        (0.5, 0.02, Handling.PRESERVE),
        (2.2, 0.02, Handling.SWAP),
        (2.2, 0.06, Handling.DISCARD),
    ],
)
def test_the_least_waste_wins(gap_s, swap_s, expected):
    wasted = waste(1_000.0, 20_000.0, gap_s, recompute_s=0.1, swap_s=swap_s)
    assert least_waste(wasted) is expected


@given(
    st.floats(1, 1e5), st.floats(0, 1e6), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e2)
)
def test_no_handling_wastes_less_than_the_one_chosen(context, other, gap_s, recompute_s, swap_s):
    wasted = waste(context, other, gap_s, recompute_s=recompute_s, swap_s=swap_s)
    assert getattr(wasted, least_waste(wasted).value) == min(wasted)
    # longer tools are never a reason to keep
    if least_waste(wasted) is not Handling.PRESERVE:
        longer = waste(context, other, gap_s + 1.0, recompute_s=recompute_s, swap_s=swap_s)
        assert least_waste(longer) is not Handling.PRESERVE
