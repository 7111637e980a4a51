"""Relaying: bodies, headers and streams between a client and an engine."""

from dispatcher.gateway.relay.body_edit import edit_body, wants_usage
from dispatcher.gateway.relay.dialects import (
    CHAT,
    COMPLETIONS,
    DIALECTS,
    MESSAGES,
    RESPONSES,
    Dialect,
)
from dispatcher.gateway.relay.error_event import error_event
from dispatcher.gateway.relay.headers import is_event_stream, request_headers, response_headers
from dispatcher.gateway.relay.observer import StreamObserver
from dispatcher.gateway.relay.outcome import Finish, RelayOutcome
from dispatcher.gateway.relay.pump import StreamPump
from dispatcher.gateway.relay.stream import relay_stream
from dispatcher.gateway.relay.watch import ClientGoneError, ClientWatch
from dispatcher.gateway.relay.whole import relay_whole

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DIALECTS",
    "MESSAGES",
    "RESPONSES",
    "ClientGoneError",
    "ClientWatch",
    "Dialect",
    "Finish",
    "RelayOutcome",
    "StreamObserver",
    "StreamPump",
    "edit_body",
    "error_event",
    "is_event_stream",
    "relay_stream",
    "relay_whole",
    "request_headers",
    "response_headers",
    "wants_usage",
]
