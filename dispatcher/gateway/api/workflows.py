"""Workflows: declare one and get a quote, have one explained, cancel one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from dispatcher.core import reports
from dispatcher.core.events import WorkflowCancelled, WorkflowDeclared
from dispatcher.core.types import WorkflowId
from dispatcher.core.workflow_types import StagePlan, WorkflowDeclaration
from dispatcher.gateway.api.intake import new_id
from dispatcher.gateway.errors import ApiError
from dispatcher.gateway.parsing.fields import ID_MAX, MS_MAX
from dispatcher.gateway.parsing.hints import WIDTH_MAX, HeaderBag
from dispatcher.gateway.runtime import Gateway

#: what a header can carry, since calls name their workflow and stage in headers
Name = Annotated[str, Field(min_length=1, max_length=ID_MAX, pattern=r"^[\x20-\x7e]+$")]


class StageBody(BaseModel):
    """One stage, as far as it is known."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    width: int = Field(default=1, ge=1, le=WIDTH_MAX, description="calls side by side")
    prompt_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    after: list[Name] = Field(default=[], max_length=200, description="stages it waits for")


class WorkflowBody(BaseModel):
    """A workflow that is about to begin."""

    model_config = ConfigDict(extra="forbid")

    id: Name | None = Field(default=None, description="made up where absent")
    workflow: Name = Field(default="default", description="the application or template")
    slo_ms: float | None = Field(default=None, gt=0, le=MS_MAX, description="end to end")
    stages: list[StageBody] = Field(default=[], max_length=200)


def workflow_routes(gateway: Gateway) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1/workflows", tags=["workflows"])

    @router.post("", summary="Declare a workflow; answers its id and a quote", status_code=201)
    async def declare(body: WorkflowBody, request: Request) -> dict[str, Any]:
        gateway.refuse_if_closing()
        bag = HeaderBag(request.scope["headers"])
        terms = gateway.tenants.terms_for(gateway.tenants.identify(bag), bag)
        declaration = WorkflowDeclaration(
            workflow_id=WorkflowId(body.id or new_id("wf")),
            application=body.workflow,
            tenant=terms.name,
            slo_s=None if body.slo_ms is None else body.slo_ms / 1000.0,
            stages=tuple(
                StagePlan(s.name, s.width, s.prompt_tokens, s.output_tokens, tuple(s.after))
                for s in body.stages
            ),
        )
        try:
            gateway.driver.handle(WorkflowDeclared(declaration))
        except ValueError as error:
            raise ApiError(400, f"stages: {error}", param="stages") from error
        quote = reports.quote(gateway.coordinator, declaration)
        finish_s = quote.earliest_finish_s
        return {
            "id": declaration.workflow_id,
            "workflow": declaration.application,
            "quote": {
                "feasible": quote.feasible,
                # JSON knows no infinity: nothing is up
                "earliest_finish_s": finish_s if finish_s < float("inf") else None,
                **quote.details,
            },
        }

    @router.get("/{workflow_id}", summary="Explain a workflow, live or ended of late")
    async def explain(workflow_id: str, request: Request) -> dict[str, Any]:
        gateway.tenants.identify(HeaderBag(request.scope["headers"]))
        found = gateway.tracker.explain(WorkflowId(workflow_id))
        if found is None:
            raise _unknown(workflow_id)
        return dict(found)

    @router.delete("/{workflow_id}", summary="Cancel a workflow and all its calls")
    async def cancel(workflow_id: str, request: Request) -> dict[str, Any]:
        gateway.tenants.identify(HeaderBag(request.scope["headers"]))
        if gateway.tracker.explain(WorkflowId(workflow_id)) is None:
            raise _unknown(workflow_id)
        calls = gateway.driver.calls_of(workflow_id)
        for call in calls:
            call.error = ApiError(
                410, f"The workflow {workflow_id} was cancelled.", code="workflow_cancelled"
            )
        gateway.driver.handle(WorkflowCancelled(WorkflowId(workflow_id)))
        return {"id": workflow_id, "cancelled_calls": len(calls)}

    return router


def _unknown(workflow_id: str) -> ApiError:
    return ApiError(
        404,
        f"The workflow {workflow_id[:200]!r} is not known.",
        param="workflow_id",
        code="workflow_not_found",
    )
