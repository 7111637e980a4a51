"""What `/docs` shows of the endpoints that are not FastAPI's own."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dispatcher.gateway.api.routed import ROUTED
from dispatcher.gateway.parsing.body import SCHEDULED

_HEADERS = {
    "x-headway-workflow-id": "groups the calls of one workflow",
    "x-headway-workflow": "the application or template",
    "x-headway-stage": "name of the stage",
    "x-headway-stage-width": "calls of this stage that run side by side",
    "x-headway-slo-ms": "end-to-end SLO of the workflow, from its first call",
    "x-headway-slo-ttft-ms": "time to first token of this call",
    "x-headway-slo-tpot-ms": "time per output token of this call",
    "x-headway-class": "latency, throughput, collective or best-effort",
    "x-headway-tool": "the tool that ran just before this call",
    "x-headway-final": "1: the last call of the workflow",
    "x-headway-tenant": "tenant, where the API key does not say",
    "x-headway-early-headers": "1: headers at once, comments while the call waits",
    "x-request-id": "echoed; made up when absent",
}
_SCHEDULED = {
    "/v1/chat/completions": "Chat completion, scheduled",
    "/v1/completions": "Completion, scheduled",
    "/v1/responses": "Response, scheduled",
    "/v1/messages": "Message (Anthropic's API), scheduled",
}


def describe(app: FastAPI) -> None:
    """Add the scheduled and routed endpoints to the application's OpenAPI document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            for path in SCHEDULED:
                schema["paths"][path] = {"post": _operation(_SCHEDULED[path], "scheduled", True)}
            for path in ROUTED:
                summary = "Passed to a fit engine"
                schema["paths"][path] = {"post": _operation(summary, "routed", False)}
            for path, method in (
                ("/v1/responses/{response_id}", "get"),
                ("/v1/responses/{response_id}/cancel", "post"),
            ):
                operation = _operation("Passed to the engine that holds it", "routed", False)
                operation.pop("requestBody")
                operation["parameters"] = [
                    {
                        "name": "response_id",
                        "in": "path",
                        "required": True,
                        "schema": {"type": "string"},
                    }
                ]
                schema["paths"][path] = {method: operation}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _operation(summary: str, tag: str, scheduled: bool) -> dict[str, Any]:
    body = {"type": "object", "properties": {"model": {"type": "string"}}}
    return {
        "summary": summary,
        "tags": [tag],
        "parameters": [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in (_HEADERS.items() if scheduled else ())
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "The engine's answer"},
            "4XX": {"description": "OpenAI's error shape"},
            "5XX": {"description": "OpenAI's error shape"},
        },
    }
