"""A server tells the end of a response as a disconnect; the scheduler must not hear of it."""

from __future__ import annotations

import pytest
from gateway_harness import gateway, ok, scripted

from dispatcher.core.events import AttemptEnded, Event


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answered_call_is_not_cancelled(stream: bool, monkeypatch) -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        driver = running.gateway.driver
        heard: list[Event] = []
        handle = driver.handle

        def noting(event: Event) -> None:
            heard.append(event)
            handle(event)

        monkeypatch.setattr(driver, "handle", noting)
        for _ in range(5):
            assert (await running.chat(stream=stream)).status_code == 200
        await running.until_empty()
        names = [type(event).__name__ for event in heard]
        assert "CallCancelled" not in names
        assert names.count(AttemptEnded.__name__) == 5
