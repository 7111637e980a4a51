"""A policy that preempts: the stopped call is served later, and `/metrics` counts it once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gateway_harness import Gate, Running, gateway, scripted
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.core.events import PolicySwitched
from dispatcher.core.types import AttemptId
from dispatcher.core.views import FleetView


class OnceAt:
    """Stops all that runs at one instance, once."""

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id
        self.stopped = 0

    def preempt(self, fleet: FleetView, now_s: float) -> Sequence[AttemptId]:
        chosen = [
            attempt_id
            for instance_id, instance in fleet.instances.items()
            if instance_id == self.instance_id and not self.stopped
            for attempt_id in instance.in_flight
        ]
        self.stopped += len(chosen)
        return chosen


async def preemptions(running: Running) -> dict[str, float]:
    page = (await running.http.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    family = families["headway_preemptions"]
    assert family.type == "counter"
    assert {sample.name for sample in family.samples} <= {"headway_preemptions_total"}
    return {sample.labels["instance"]: sample.value for sample in family.samples}


async def test_calls_that_were_stopped_are_counted_where_they_ran() -> None:
    gates = [Gate(), Gate()]
    async with scripted(*gates) as engines, gateway([e.url for e in engines]) as running:
        assert await preemptions(running) == {}
        calls = [asyncio.create_task(running.chat()) for _ in range(4)]
        await running.until(lambda: sum(gate.waiting for gate in gates) == 4)
        at_first = gates[0].waiting
        assert 0 < at_first < 4
        stopping = OnceAt("e0")
        policy = running.gateway.coordinator.policy
        running.gateway.driver.handle(
            PolicySwitched(replace(policy, preemption=stopping, tick_s=0.005))
        )
        await running.until(lambda: gates[0].gone == at_first)
        for gate in gates:
            gate.open.set()
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
        await running.until_empty()
        assert stopping.stopped == at_first
        assert await preemptions(running) == {"e0": float(at_first)}


async def test_a_call_that_its_client_gives_up_is_none() -> None:
    gate = Gate()
    async with scripted(gate) as (engine,), gateway([engine.url]) as running:
        call = asyncio.create_task(running.chat())
        await running.until(lambda: gate.waiting == 1)
        call.cancel()
        await running.until(lambda: gate.gone == 1)
        await running.until_empty()
        assert await preemptions(running) == {}
