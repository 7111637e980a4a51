"""Connections to engines: asyncio protocols over httptools, pooled per engine."""

from dispatcher.gateway.upstream.errors import (
    UpstreamClosedError,
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
)
from dispatcher.gateway.upstream.pool import EnginePool
from dispatcher.gateway.upstream.response import BodySink, EngineResponse

__all__ = [
    "BodySink",
    "EnginePool",
    "EngineResponse",
    "UpstreamClosedError",
    "UpstreamConnectError",
    "UpstreamError",
    "UpstreamProtocolError",
    "UpstreamTimeoutError",
]
