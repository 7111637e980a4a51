"""A mix of chats, batch work and text-to-SQL workflows under `tempo`, and who attains what."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from gateway_harness import Running, emulated, gateway

CHATS, BATCH, FLEX, WORKFLOWS, CANDIDATES = 12, 8, 4, 6, 3
#: nothing here takes so long, or is so quick: who keeps an SLO is known beforehand
EASY_MS, HARD_MS = "1e6", "0.001"
CLASSES = ("latency", "throughput", "collective", "best-effort")


@dataclass
class Mix:
    """Sends the mix; every other one of a kind has an SLO that nobody can keep."""

    running: Running
    #: prompt and output tokens, by class and by whether the SLO can be kept
    tokens: Counter[tuple[str, bool, str]] = field(default_factory=Counter)

    async def chat(self, number: int) -> None:
        pace = EASY_MS if number % 2 else HARD_MS
        headers = {"x-headway-slo-ttft-ms": pace, "x-headway-slo-tpot-ms": pace}
        body = {"stream": True, "stream_options": {"include_usage": True}}
        await self._send("latency", pace, headers, 40, **body)

    async def batch(self, number: int) -> None:
        slo_ms = EASY_MS if number % 2 else HARD_MS
        await self._send("throughput", slo_ms, {"x-headway-slo-ms": slo_ms}, 80)

    async def flex(self, number: int) -> None:
        await self._send("best-effort", EASY_MS, {}, 60, service_tier="flex")

    async def text_to_sql(self, number: int) -> None:
        """Link the schema, write candidates side by side, choose one."""
        slo_ms = EASY_MS if number % 2 else HARD_MS
        job = {
            "x-headway-workflow-id": f"sql-{number}",
            "x-headway-workflow": "text2sql",
            "x-headway-slo-ms": slo_ms,
        }
        link = {**job, "x-headway-stage": "link"}
        await self._send("collective", slo_ms, link, 20)
        write = {**job, "x-headway-stage": "write", "x-headway-stage-width": str(CANDIDATES)}
        async with asyncio.TaskGroup() as group:
            for _ in range(CANDIDATES):
                group.create_task(self._send("collective", slo_ms, write, 30))
        choose = {**job, "x-headway-stage": "choose", "x-headway-final": "1"}
        await self._send("collective", slo_ms, choose, 10)

    async def _send(
        self, call_class: str, slo_ms: str, headers: dict[str, str], most: int, **more: Any
    ) -> None:
        text = f"{call_class} " + "word " * most
        answer = await self.running.chat(
            text, headers=headers, max_tokens=most, ignore_eos=True, **more
        )
        assert answer.status_code == 200, answer.text
        lines = answer.text.splitlines() if more.get("stream") else [answer.text]
        (told,) = [json.loads(x.removeprefix("data: ")) for x in lines if '"usage":{' in x]
        for kind in ("prompt_tokens", "completion_tokens"):
            self.tokens[call_class, slo_ms == EASY_MS, kind] += told["usage"][kind]

    def worth(self, call_class: str) -> int:
        """All tokens of what can keep its SLO, by the paper's weights."""
        prompt, output = (
            self.tokens[call_class, True, kind] for kind in ("prompt_tokens", "completion_tokens")
        )
        return prompt + 2 * output


async def test_each_class_attains_what_can_be_attained() -> None:
    async with (
        emulated(2, max_num_seqs=4) as urls,
        gateway(urls, seats=4, policy={"name": "tempo"}) as running,
    ):
        mix = Mix(running)
        async with asyncio.TaskGroup() as group:
            for send, count in (
                (mix.chat, CHATS),
                (mix.batch, BATCH),
                (mix.flex, FLEX),
                (mix.text_to_sql, WORKFLOWS),
            ):
                for number in range(count):
                    group.create_task(send(number))
        await running.until_empty()
        slo = await running.samples_by_class("headway_slo_total")
        gain = await running.samples_by_class("headway_service_gain_total")
        goodput = await running.samples_by_class("headway_goodput_tokens_total")
        lags = await running.samples_by_class("headway_token_lag_seconds_count")
        streams = await running.samples_by_class("headway_class_time_to_first_token_seconds_count")
        calls = await running.samples_by_class("headway_class_request_duration_seconds_count")
        policy = (await running.http.get("/admin/policy")).json()
        job = (await running.http.get("/v1/workflows/sql-1")).json()
    assert policy["name"] == "tempo"
    judged = {"latency": CHATS, "throughput": BATCH, "collective": WORKFLOWS, "best-effort": 0}
    assert slo == {(c, o): judged[c] / 2 for c in CLASSES for o in ("met", "missed")}
    for each in CLASSES:
        # what cannot be kept is worth next to nothing
        assert gain[each,] == pytest.approx(mix.worth(each), rel=0.01)
        assert goodput[each,] == mix.tokens[each, True, "completion_tokens"] > 0
    sent = {"latency": CHATS, "throughput": BATCH, "best-effort": FLEX}
    assert calls == {(c,): sent.get(c, WORKFLOWS * (CANDIDATES + 2)) for c in CLASSES}
    assert lags == streams == {(c,): CHATS * (c == "latency") for c in CLASSES}
    told = [call for stage in job["stages"] for call in stage["calls"]]
    assert [call["class"] for call in told] == ["collective"] * (CANDIDATES + 2)
    assert {call["slo_met"] for call in told} == {job["met_slo"]} == {True}


@dataclass
class Overload:
    """Chats that come as fast as others end: more of them wait than there are seats."""

    running: Running
    clients: int = 12
    ended: int = 0
    least_waiting: float = float("inf")
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.clients):
                group.create_task(self._chat_on())

    async def _chat_on(self) -> None:
        """Long prompts and short answers: as dense as calls can be."""
        while not self.over.is_set():
            await self.running.chat("word " * 400, max_tokens=4, ignore_eos=True, stream=True)
            if not self.over.is_set():
                self.ended += 1
                waiting = len(self.running.gateway.coordinator.placing)
                self.least_waiting = min(self.least_waiting, waiting)


@pytest.mark.parametrize("seats", [1, 2, 4])
async def test_a_best_effort_call_ends_though_the_overload_never_does(seats: int) -> None:
    async with (
        emulated(1, max_num_seqs=seats) as urls,
        gateway(urls, seats=seats, policy={"name": "tempo"}) as running,
    ):
        overload = Overload(running)
        async with asyncio.TaskGroup() as group:
            group.create_task(overload.keep_up())
            await running.until(lambda: overload.ended > 2 * overload.clients)
            overload.least_waiting = float("inf")
            answer = await running.chat("hi", max_tokens=64, ignore_eos=True, service_tier="flex")
            waiting = overload.least_waiting
            overload.over.set()
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 64
        # besides it there was always a denser one that could have gone
        assert waiting >= 2
        await running.until_empty()
        assert (await running.samples_by_class("headway_goodput_tokens_total"))[
            "best-effort",
        ] == 64


async def test_without_the_reserve_it_would_wait_as_long_as_the_overload_lasts() -> None:
    """What the test above would see, were there no reserve."""
    policy = {"name": "tempo", "params": {"reserve": 0}}
    async with (
        emulated(1, max_num_seqs=2) as urls,
        gateway(urls, seats=2, policy=policy) as running,
    ):
        overload = Overload(running)
        async with asyncio.TaskGroup() as group:
            group.create_task(overload.keep_up())
            await running.until(lambda: overload.ended > 2 * overload.clients)
            flex = group.create_task(
                running.chat("hi", max_tokens=64, ignore_eos=True, service_tier="flex")
            )
            since = overload.ended
            await running.until(lambda: overload.ended > since + 10 * overload.clients)
            starved = not flex.done()
            overload.over.set()
        assert starved
        assert flex.result().status_code == 200
