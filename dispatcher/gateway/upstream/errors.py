"""What can go wrong between the gateway and an engine.

UpstreamError
├── UpstreamConnectError    no connection: refused, unreachable, TLS failed, name unknown
├── UpstreamTimeoutError    connecting, or the wait for the response's head, took too long
└── UpstreamClosedError     the connection ended before the response did
    └── UpstreamProtocolError   the engine spoke something that is not HTTP/1.1
"""

from __future__ import annotations

from dispatcher.core.errors import HeadwayError


class UpstreamError(HeadwayError):
    """Root of everything an engine's connection can raise."""


class UpstreamConnectError(UpstreamError):
    """The engine was never reached, so it has done nothing for the request."""


class UpstreamTimeoutError(UpstreamError):
    """A bounded wait ran out; the connection was closed, which stops the engine's work."""


class UpstreamClosedError(UpstreamError):
    """The connection ended while a response was owed.

    Attributes:
        headers_seen: whether the response's head had arrived; if not, the client cannot have
            been told anything yet.
    """

    def __init__(self, message: str, *, headers_seen: bool) -> None:
        super().__init__(message)
        self.headers_seen = headers_seen


class UpstreamProtocolError(UpstreamClosedError):
    """The engine broke HTTP; the connection was closed at once."""
