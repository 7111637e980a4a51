"""Endpoints that take no seat: routed to a fit engine, the one with the least in flight."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import orjson

from dispatcher.core.types import RejectReason
from dispatcher.gateway.api.intake import send_error
from dispatcher.gateway.api.passage import Passage
from dispatcher.gateway.calls import Receive
from dispatcher.gateway.errors import ApiError, Send, rejection, response_not_found
from dispatcher.gateway.parsing.body import parse_json, read_model
from dispatcher.gateway.relay import ClientGoneError
from dispatcher.gateway.runtime import Gateway

ROUTED = (
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)


class RoutedEndpoint:
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        self._gateway = gateway
        self._path = path

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        passage = Passage(self._gateway, scope, receive, send)
        model, outcome = "unknown", "client_error"
        try:
            tenant = passage.identify()
            raw = await passage.body()
            parsed = parse_json(raw)
            named = read_model(parsed)
            served = None if named is None else self._gateway.resolve_model(named)
            if served is not None:
                model = served
                if served != named:
                    raw = orjson.dumps({**parsed, "model": served})
            with passage.quota(tenant):
                ended = await passage.through(passage.candidates(served), raw, tenant)
            outcome = ended or "client_error"
        except ApiError as error:
            outcome = error.outcome
            await send_error(send, error, passage.request_id)
        except (OSError, ClientGoneError):
            outcome = "cancelled"
        except Exception as error:  # noqa: BLE001 - answered, logged, counted
            outcome = await passage.defect(error)
        finally:
            self._gateway.metrics.request(self._path, model, outcome)


class StoredResponseEndpoint:
    """`GET /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`: to the engine that holds it.

    Where that is not known (a restart), the engines are asked in turn. Looking at what is there
    computes nothing, so no quota is asked for.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        gateway = self._gateway
        passage = Passage(gateway, scope, receive, send)
        outcome = "client_error"
        try:
            tenant = passage.identify()
            response_id = scope["path_params"]["response_id"]
            body = await passage.body()
            engines = [e for e in gateway.fleet.engines if e.up]
            terms = gateway.tenants.terms_for(tenant, passage.bag)
            holder = gateway.holder_of(response_id, terms.scope)
            if holder is not None and gateway.fleet.engine(holder) is not None:
                engines = [e for e in engines if e.settings.id == holder]
            if not engines:
                raise rejection(RejectReason.NO_ENGINE, 1.0)
            ended = await passage.through(engines, body, tenant, pass_404=False)
            if ended is None:
                raise response_not_found(response_id)
            outcome = ended
        except ApiError as error:
            outcome = error.outcome
            await send_error(send, error, passage.request_id)
        except (OSError, ClientGoneError):
            outcome = "cancelled"
        except Exception as error:  # noqa: BLE001 - answered, logged, counted
            outcome = await passage.defect(error)
        finally:
            gateway.metrics.request("/v1/responses/{id}", "unknown", outcome)
