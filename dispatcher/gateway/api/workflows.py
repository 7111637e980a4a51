"""Workflows: declare one and get a quote, have one explained, cancel one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from dispatcher.core import reports
from dispatcher.core.events import PlanPosted, StageReported, WorkflowCancelled, WorkflowDeclared
from dispatcher.core.types import WorkflowId
from dispatcher.core.workflow_types import StageKind, StagePlan, WorkflowDeclaration
from dispatcher.gateway import slo_report
from dispatcher.gateway.api.guarded import guarded
from dispatcher.gateway.calls import new_id
from dispatcher.gateway.errors import ApiError
from dispatcher.gateway.parsing.fields import ID_MAX, MS_MAX
from dispatcher.gateway.parsing.hints import WIDTH_MAX, HeaderBag
from dispatcher.gateway.parsing.spec import TenantTerms
from dispatcher.gateway.runtime import Gateway
from workflows.plan import PlanError
from workflows.stage_application import remaining_told

WORKFLOWS = "/v1/workflows"

#: what a header can carry, since calls name their workflow and stage in headers
Name = Annotated[str, Field(min_length=1, max_length=ID_MAX, pattern=r"^[\x20-\x7e]+$")]


TOKENS_MAX = 1 << 31
"""Most tokens that a stage may declare."""


class StageBody(BaseModel):
    """One stage, as far as it is known."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    width: int = Field(default=1, ge=1, le=WIDTH_MAX, description="calls side by side")
    prompt_tokens: int | None = Field(default=None, ge=0, le=TOKENS_MAX)
    output_tokens: int | None = Field(default=None, ge=0, le=TOKENS_MAX)
    after: list[Name] = Field(default=[], max_length=200, description="stages it waits for")
    kind: StageKind = Field(
        default=StageKind.LLM,
        strict=False,
        description="llm: calls; regular: runs at the client; dynamic: what a planner decides",
    )
    candidates: list[Name] = Field(
        default=[], max_length=200, description="what a dynamic stage may be made of"
    )

    def plan(self) -> StagePlan:
        """The same for the scheduler."""
        return StagePlan(
            self.name,
            self.width,
            self.prompt_tokens,
            self.output_tokens,
            tuple(self.after),
            self.kind,
            tuple(self.candidates),
        )


class PlanBody(BaseModel):
    """What a planner has decided: what a dynamic stage is made of, else all that follows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stages: list[StageBody] = Field(max_length=200)


class StageEndBody(BaseModel):
    """A stage that ran at the client has ended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stage: Name
    duration_ms: float = Field(ge=0, le=MS_MAX, description="how long it ran")


class WorkflowBody(BaseModel):
    """A workflow that is about to begin."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Name | None = Field(default=None, description="made up where absent")
    workflow: Name = Field(default="default", description="the application or template")
    slo_ms: float | None = Field(default=None, gt=0, le=MS_MAX, description="end to end")
    stages: list[StageBody] = Field(default=[], max_length=200)


def workflow_routes(gateway: Gateway) -> APIRouter:
    """The routes. An id is its tenant's own: another tenant's of that name is another workflow."""

    def terms_of(request: Request) -> TenantTerms:
        bag = HeaderBag(request.scope["headers"])
        return gateway.tenants.terms_for(gateway.tenants.identify(bag), bag)

    def live(workflow_id: str, request: Request) -> WorkflowId:
        """Raises the 404 of one that is over, or was never there."""
        inside = WorkflowId(terms_of(request).own(workflow_id))
        found = gateway.tracker.explain(inside)
        if found is None:
            raise _unknown(workflow_id)
        if found["state"] != "live":
            raise ApiError(
                404,
                f"The workflow {workflow_id[:200]!r} is over: {found['state']}.",
                param="workflow_id",
                code="workflow_ended",
            )
        return inside

    router = APIRouter(prefix=WORKFLOWS, tags=["workflows"], route_class=guarded(gateway, terms_of))

    @router.post("", summary="Declare a workflow; answers its id and a quote", status_code=201)
    async def declare(body: WorkflowBody, request: Request) -> dict[str, Any]:
        return _declare(gateway, body, terms_of(request))

    @router.post("/{workflow_id:path}/plan", summary="Post what a planner has decided")
    async def plan(workflow_id: str, body: PlanBody, request: Request) -> dict[str, Any]:
        inside = live(workflow_id, request)
        event = PlanPosted(inside, tuple(stage.plan() for stage in body.stages))
        _handle(gateway, event, "stages")
        return {
            "id": workflow_id,
            "stages": len(body.stages),
            "remaining": _remaining(gateway, inside),
        }

    @router.post("/{workflow_id:path}/stages", summary="Report a stage that ran at the client")
    async def report(workflow_id: str, body: StageEndBody, request: Request) -> dict[str, Any]:
        inside = live(workflow_id, request)
        event = StageReported(inside, body.stage, body.duration_ms / 1000.0)
        _handle(gateway, event, "stage")
        return {"id": workflow_id, "stage": body.stage, "remaining": _remaining(gateway, inside)}

    @router.get("/{workflow_id:path}", summary="Explain a workflow, live or ended of late")
    async def explain(workflow_id: str, request: Request) -> dict[str, Any]:
        inside = WorkflowId(terms_of(request).own(workflow_id))
        found = gateway.tracker.explain(inside, gateway.clock())
        if found is None:
            raise _unknown(workflow_id)
        told = {**slo_report.of_workflow(gateway.coordinator, found), "id": workflow_id}
        return {**told, "remaining": _remaining(gateway, inside)}

    @router.delete("/{workflow_id:path}", summary="Cancel a workflow and all its calls")
    async def cancel(workflow_id: str, request: Request) -> dict[str, Any]:
        inside = terms_of(request).own(workflow_id)
        if gateway.tracker.explain(inside) is None:
            raise _unknown(workflow_id)
        calls = gateway.driver.calls_of(inside)
        for call in calls:
            call.error = ApiError(
                410, f"The workflow {workflow_id} was cancelled.", code="workflow_cancelled"
            )
        gateway.driver.handle(WorkflowCancelled(inside))
        return {"id": workflow_id, "cancelled_calls": len(calls)}

    return router


def _declare(gateway: Gateway, body: WorkflowBody, terms: TenantTerms) -> dict[str, Any]:
    """Its id, and whether its SLO can be kept now."""
    gateway.refuse_if_closing()
    workflow_id = body.id or new_id("wf")
    slo_s = None if body.slo_ms is None else body.slo_ms / 1000.0
    declaration = WorkflowDeclaration(
        workflow_id=terms.own(workflow_id),
        application=body.workflow,
        tenant=terms.name,
        slo_s=terms.end_to_end_s(slo_s, gateway.usual_slo_s(body.workflow)),
        stages=tuple(stage.plan() for stage in body.stages),
    )
    _handle(gateway, WorkflowDeclared(declaration), "stages")
    quote = reports.quote(gateway.coordinator, declaration)
    finish_s = quote.earliest_finish_s
    return {
        "id": workflow_id,
        "workflow": declaration.application,
        "quote": {
            "feasible": quote.feasible,
            # JSON knows no infinity: nothing is up
            "earliest_finish_s": finish_s if finish_s < float("inf") else None,
            # nobody knows, where no model speaks
            "finish_low_s": None,
            "finish_high_s": None,
            **quote.details,
        },
    }


def _handle(
    gateway: Gateway, event: WorkflowDeclared | PlanPosted | StageReported, param: str
) -> None:
    """Raises the 400 of stages that are no graph, or none of the application's."""
    try:
        gateway.driver.handle(event)
    except PlanError as error:
        code = "invalid_stages" if param == "stages" else "unknown_stage"
        raise ApiError(400, f"{param}: {error}", param=param, code=code) from error


def _remaining(gateway: Gateway, inside: WorkflowId) -> dict[str, object] | None:
    """To this very moment, at the load of the fleet now."""
    fleet, calls = gateway.coordinator.fleet, gateway.coordinator.calls
    live = (calls[call] for call in gateway.tracker.live_calls(inside) if call in calls)
    among = next((call.candidates for call in live), None)
    if among is None:
        among = frozenset(instance.instance_id for instance in fleet)
    left = gateway.tracker.remaining(inside, fleet.work_s(among), gateway.clock())
    return None if left is None else remaining_told(left)


def _unknown(workflow_id: str) -> ApiError:
    return ApiError(
        404,
        f"The workflow {workflow_id[:200]!r} is not known: it never was, or it ended and has been"
        " forgotten since.",
        param="workflow_id",
        code="workflow_not_found",
    )
