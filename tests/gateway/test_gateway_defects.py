"""A defect in a policy costs the call that met it, and no other."""

from __future__ import annotations

from gateway_harness import gateway, ok, scripted


async def test_a_policy_that_raises_fails_one_call_and_loses_none(monkeypatch) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url], seats=1) as running:
        coordinator = running.gateway.coordinator
        routing = coordinator.policy.routing
        route = type(routing).route

        def fail_once(self, *args):
            monkeypatch.setattr(type(routing), "route", route)
            raise RuntimeError("a defect in a policy")

        monkeypatch.setattr(type(routing), "route", fail_once)
        failed = await running.chat()
        assert failed.status_code == 500
        assert failed.json()["error"]["code"] == "internal_error"
        assert not coordinator.calls, "nothing of it stays behind"
        assert (await running.chat()).status_code == 200
        await running.until_empty()
