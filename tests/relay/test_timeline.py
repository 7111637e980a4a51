from __future__ import annotations

import asyncio
import itertools
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_kit import HandFed

from dispatcher.core.types import Slo
from dispatcher.gateway.relay import CHAT, ClientWatch, relay_stream
from dispatcher.gateway.relay.timeline import _MARKS_MAX, Timeline

ARRIVED_S = 100.0
SLO = Slo(ttft_s=2.0, tpot_s=0.1)


def told(
    timeline: Timeline, moments: list[float], output_tokens: int | None = None
) -> float | None:
    for now_s in moments:
        timeline.saw(now_s, 1)
    return timeline.lag_s(output_tokens, moments[-1] if moments else None)


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=60),
    st.sampled_from([SLO, Slo(tpot_s=0.1)]),
    st.sampled_from([None, 0, 1]),
)
def test_the_lag_is_the_worst_of_all_tokens(
    gaps_s: list[float], slo: Slo, more: int | None
) -> None:
    moments = [ARRIVED_S + s for s in itertools.accumulate(gaps_s)]
    first_due_s = moments[0] if slo.ttft_s is None else ARRIVED_S + slo.ttft_s
    worst_s = max(now_s - first_due_s - 0.1 * k for k, now_s in enumerate(moments))
    # the mark of the end is a token, for engines, that no event carries
    counted = None if more is None else len(moments) + more
    assert told(Timeline(ARRIVED_S, slo), moments, counted) == pytest.approx(worst_s)


def test_early_tokens_make_no_later_one_late() -> None:
    burst = [101.0] * 20
    assert told(Timeline(ARRIVED_S, SLO), [*burst, 104.0]) == pytest.approx(0.0)
    assert told(Timeline(ARRIVED_S, SLO), burst) == pytest.approx(-1.0)


def test_without_a_token_nothing_was_seen() -> None:
    assert told(Timeline(ARRIVED_S, SLO), []) is None


def test_a_read_of_several_events_is_as_late_as_its_first() -> None:
    one, other = Timeline(ARRIVED_S, SLO), Timeline(ARRIVED_S, SLO)
    for now_s, events in ((101.0, 1), (103.0, 5), (103.1, 1)):
        one.saw(now_s, events)
        for _ in range(events):
            other.saw(now_s, 1)
    assert one.lag_s(7, 103.1) == other.lag_s(7, 103.1) == pytest.approx(0.9)


def test_sequences_side_by_side_share_the_stream() -> None:
    moments = [ARRIVED_S + 2.0 + 0.1 * (k // 4) for k in range(40)]
    alone, four = Timeline(ARRIVED_S, SLO), Timeline(ARRIVED_S, SLO, sequences=4)
    assert told(four, moments, 40) == pytest.approx(0.0)
    # each is due once in 0.1 s: as one sequence, they come four times too fast
    assert told(alone, moments, 40) == pytest.approx(0.0)
    late = [ARRIVED_S + 2.0 + 0.2 * (k // 4) for k in range(40)]
    four = Timeline(ARRIVED_S, SLO, sequences=4)
    assert told(four, late, 40) == pytest.approx(0.2 * 9 - 0.1 * 9, abs=0.1)


def packed(interval: int, events: int, tpot_s: float, *, pause_s: float = 0.0) -> list[float]:
    """vLLM with `--stream-interval`: one token, then so many at a time; a pause in the middle."""
    return [
        ARRIVED_S + 1.0 + tpot_s * interval * event + (pause_s if event >= events // 2 else 0.0)
        for event in range(events)
    ]


def test_several_tokens_in_each_event_are_counted_by_what_the_engine_says() -> None:
    """Ten tokens of 0.05 s each make an event of 0.5 s: as one token that would be late."""
    moments = packed(10, 40, 0.05)
    output_tokens = 1 + 10 * 39
    naive = told(Timeline(ARRIVED_S, SLO), moments)
    assert naive is not None
    assert naive > 10.0
    assert told(Timeline(ARRIVED_S, SLO), moments, output_tokens) == pytest.approx(-0.6)


@pytest.mark.parametrize("pause_s", [12.0, 30.0])
def test_a_pause_is_seen_though_events_hold_many_tokens(pause_s: float) -> None:
    moments = packed(10, 40, 0.05, pause_s=pause_s)
    first_of_event = [0, *(1 + 10 * n for n in range(39))]
    worst_s = max(
        now_s - ARRIVED_S - 2.0 - 0.1 * k for k, now_s in zip(first_of_event, moments, strict=True)
    )
    assert worst_s > 0.5
    assert told(Timeline(ARRIVED_S, SLO), moments, 1 + 10 * 39) == pytest.approx(worst_s)


def test_a_whole_answer_in_one_event_has_a_first_token_only() -> None:
    assert told(Timeline(ARRIVED_S, SLO), [105.0], 200) == pytest.approx(3.0)


def test_a_resume_goes_on_with_the_timeline_of_the_call() -> None:
    timeline = Timeline(ARRIVED_S, SLO)
    for now_s in (101.0, 101.1, 104.0, 104.1):
        timeline.saw(now_s, 1)
    assert timeline.lag_s(None, 104.1) == pytest.approx(104.0 - 102.2)


@pytest.mark.parametrize("duration_s", [40, 600, 3_000])
def test_a_pause_is_not_forgotten_however_long_the_stream_goes_on(duration_s: int) -> None:
    """Four tokens an event, ahead of their time but for one pause early on."""
    moments = [ARRIVED_S + 1.9]
    paused = False
    while moments[-1] < ARRIVED_S + duration_s:
        paused, gap_s = (True, 12.0) if not paused and len(moments) > 60 else (paused, 0.3)
        moments.append(moments[-1] + gap_s)
    # behind by the pause, less the lead until then
    worst_s = (1.9 + 60 * 0.3 + 12.0) - (2.0 + (1 + 60 * 4) * 0.1)
    found = told(Timeline(ARRIVED_S, SLO), moments, output_tokens=1 + 4 * (len(moments) - 1))
    assert found == pytest.approx(worst_s)


def test_memory_is_bounded_however_long_a_stream_is() -> None:
    timeline = Timeline(0.0, Slo(tpot_s=0.5))
    for second in range(10 * _MARKS_MAX):
        timeline.saw(float(second), 1)
        timeline.saw(second + 0.5, 1)
    assert len(timeline._marks) <= _MARKS_MAX
    assert timeline.lag_s(None, None) == pytest.approx(0.0)


def test_a_timeline_needs_a_pace() -> None:
    with pytest.raises(ValueError, match="pace"):
        Timeline(0.0, Slo(ttft_s=1.0))


def token(text: int) -> bytes:
    return b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % text


async def test_the_pump_tells_every_token_once_however_they_come() -> None:
    """The clock ticks once a read; two tokens share a read, one is cut in two."""
    tokens = [token(n) for n in range(6)]
    cut = len(tokens[4]) // 2
    reads = [tokens[0], tokens[1] + tokens[2], tokens[3]]
    reads += [tokens[4][:cut], tokens[4][cut:] + tokens[5], b"data: [DONE]\n\n", b""]
    seen: list[tuple[float, int]] = []

    class Noting(Timeline):
        __slots__ = ()

        def saw(self, now_s: float, events: int) -> None:
            seen.append((now_s, events))
            super().saw(now_s, events)

    timeline = Noting(0.0, Slo(tpot_s=0.5))
    ticks = itertools.count(1)
    fed = HandFed()

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    async def receive() -> dict[str, Any]:
        return await asyncio.Event().wait() or {}

    async with ClientWatch(receive) as watch:
        relaying = asyncio.create_task(
            relay_stream(
                fed.response,
                send,
                CHAT,
                headers=[],
                watch=watch,
                clock=lambda: float(next(ticks)),
                timeline=timeline,
            )
        )
        for read in reads:
            await asyncio.sleep(0)
            fed.feed(read, last=not read)
        outcome = await relaying
    assert sum(events for _, events in seen) == outcome.output_tokens == 6
    assert (seen[0][0], seen[-1][0]) == (outcome.first_token_s, outcome.last_token_s)
    before = itertools.accumulate((events for _, events in seen), initial=0)
    late_s = [now_s - seen[0][0] - 0.5 * k for (now_s, _), k in zip(seen, before, strict=False)]
    assert timeline.lag_s(6, outcome.last_token_s) == max(late_s) > 0.0
