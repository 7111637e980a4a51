"""Responses that engines keep: which of them holds one."""

from __future__ import annotations

import asyncio
import re

from dispatcher.gateway.fleet.engine import Engine
from dispatcher.gateway.relay import request_headers
from dispatcher.gateway.runtime import Gateway
from dispatcher.gateway.upstream import UpstreamError

#: What becomes part of a request line; engines give out no other ids.
_RESPONSE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")


async def find_holder(gateway: Gateway, response_id: str, scope: str) -> str | None:
    """The instance that holds a stored response; `None` where none says so.

    What is not known (the gateway was restarted) is asked of all engines at once, and remembered;
    with tenants it stays unknown, since to ask for something makes nobody its owner.

    Args:
        gateway: Whose fleet.
        response_id: As a client gave it.
        scope: Of its tenant.

    Raises:
        ApiError: 404 where it is another tenant's, or may be.
    """
    known = gateway.holder_of(response_id, scope)
    if known is not None and gateway.fleet.engine(known) is not None:
        return known
    engines = [engine for engine in gateway.fleet.engines if engine.up]
    if len(engines) < 2 or _RESPONSE_ID.fullmatch(response_id) is None:
        return None
    timeout_s = gateway.settings.fleet.poll_timeout_s
    answers = await asyncio.gather(*(_holds(e, response_id, timeout_s) for e in engines))
    for engine, holds in zip(engines, answers, strict=True):
        if holds:
            gateway.remember_response(response_id, engine.settings.id, scope)
            return engine.settings.id
    return None


async def _holds(engine: Engine, response_id: str, timeout_s: float) -> bool:
    headers = request_headers([], engine_key=engine.settings.api_key)
    target = b"/v1/responses/" + response_id.encode("ascii")
    try:
        async with asyncio.timeout(timeout_s):
            response = await engine.pool.request(b"GET", target, headers)
    except (UpstreamError, TimeoutError):
        return False
    # its head says all; a body that has come with it leaves the connection as it was
    response.abort()
    return 200 <= response.status < 300
