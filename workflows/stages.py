"""Which stage a call belongs to, and when stages begin and end."""

from __future__ import annotations

from dispatcher.core.types import CallSpec, Outcome
from dispatcher.core.workflow_types import CallResult, StagePlan
from workflows import bounds
from workflows.model import Call, Stage, Visit, Workflow
from workflows.names import split_name

OVERFLOW = "later-stages"
"""Where a workflow with too many stages puts the rest."""


def resent(workflow: Workflow, spec: CallSpec) -> Call | None:
    """The earlier call that this one is, sent again by an SDK.

    One that has ended well is not: a client that had its answer does not ask again, but some send
    one trace id with every call of a job.
    """
    if spec.dedupe_key is None:
        return None
    earlier = workflow.by_key.get(spec.dedupe_key)
    if earlier is None or earlier.outcome is Outcome.OK:
        return None
    same_stage = spec.stage in {None, earlier.visit.stage.name, earlier.visit.name}
    return earlier if same_stage else None


def tool_ran(workflow: Workflow, now_s: float) -> float | None:
    """Seconds since its last call ended, now that the next one comes; `None`: none has."""
    if workflow.last_ended_s is None:
        return None
    gap_s = now_s - workflow.last_ended_s
    workflow.tool_gap_s += gap_s
    return gap_s


def tool_named(workflow: Workflow, spec: CallSpec) -> str | None:
    """What ran before this call, where anybody says.

    Who comes back knows better what ran than the answer that asked for it.
    """
    asked, workflow.asked_tool = workflow.asked_tool, None
    return spec.tool or asked


def enter(
    workflow: Workflow, spec: CallSpec, earlier: Call | None, now_s: float, max_stages: int
) -> Visit:
    """Put a call into its visit, in place of an earlier one where it is that one sent again."""
    if earlier is not None:
        visit = supersede(earlier)
    else:
        visit = visit_for(workflow, spec, now_s, max_stages)
    join(visit, spec)
    close_abandoned(workflow, now_s)
    return visit


def supersede(earlier: Call) -> Visit:
    """Take a call out of its stage's tally, so that the one sent again can take its place."""
    visit = earlier.visit
    earlier.superseded = True
    visit.members -= 1
    visit.asked_tokens -= earlier.asked_tokens
    if earlier.ended_s is None:
        visit.live -= 1
    else:
        visit.ended -= 1
    visit.ended_s = None
    if visit.stage.open is None:
        visit.stage.open = visit
    return visit


def visit_for(workflow: Workflow, spec: CallSpec, now_s: float, max_stages: int) -> Visit:
    """The visit to a stage that a new call joins, begun where none is open."""
    name = spec.stage
    if name is None and workflow.plan is not None:
        name = workflow.plan.ready(lambda stage: _has_room(workflow, stage))
    if name is None:
        name = f"stage-{workflow.deepest_depth + 1}"
    return visit_named(workflow, name, now_s, max_stages)


def stage_named(workflow: Workflow, name: str) -> Stage | None:
    """The stage that a name means; `None`: it has not been seen.

    `search#2` is a visit to `search` where that one is as far; beside a first visit that goes on
    it is a stage of its own.
    """
    stage = workflow.stages.get(name)
    if stage is not None:
        return stage
    base, number = split_name(name)
    of = workflow.stages.get(base) if number > 1 else None
    if of is None:
        return None
    as_far = of.visits + 1 >= number if of.open is None else of.visits >= number
    return of if as_far else None


def visit_named(workflow: Workflow, name: str, now_s: float, max_stages: int) -> Visit:
    """The open visit to a stage, begun where there is none."""
    stage = stage_named(workflow, name)
    if stage is None:
        if len(workflow.stages) >= max_stages:
            name = OVERFLOW
        stage = workflow.stages.setdefault(name, Stage(name, workflow.deepest_depth + 1))
    if stage.open is None:
        stage.visits += 1
        stage.open = Visit(stage, stage.visits, workflow.deepest_level + 1, now_s)
        if stage.name == OVERFLOW:
            stage.depth = workflow.deepest_depth + 1
        workflow.visits.append(stage.open)
    return stage.open


def join(visit: Visit, spec: CallSpec) -> None:
    """A call is one of the visit's members from now on."""
    visit.members += 1
    visit.live += 1
    width = min(spec.stage_width or 0, bounds.MAX_WIDTH)
    visit.declared_width = max(visit.declared_width, width)
    prompt_tokens = bounds.tokens(spec.prompt_tokens)
    visit.prompt_tokens = max(visit.prompt_tokens, prompt_tokens)
    visit.asked_tokens += prompt_tokens
    limit = None if spec.max_tokens is None else bounds.tokens(spec.max_tokens)
    if limit is None or visit.max_tokens is None:
        visit.max_tokens = None
    else:
        visit.max_tokens = max(visit.max_tokens, limit)
    if limit is not None and spec.features.get("ignore_eos") == 1.0:
        visit.exact_output_tokens = max(visit.exact_output_tokens, limit)
    else:
        visit.all_exact = False


def leave(workflow: Workflow, call: Call, result: CallResult, now_s: float) -> bool:
    """A call has ended; True where its stage has ended with it."""
    visit = call.visit
    visit.live -= 1
    visit.ended += 1
    workflow.deepest_depth = max(workflow.deepest_depth, visit.stage.depth)
    workflow.deepest_level = max(workflow.deepest_level, visit.level)
    workflow.last_ended_s = now_s
    workflow.asked_tool = result.tool or workflow.asked_tool
    if result.outcome is Outcome.OK:
        visit.succeeded += 1
        visit.prompt_tokens = max(visit.prompt_tokens, bounds.tokens(result.prompt_tokens))
        visit.output_tokens = max(visit.output_tokens, bounds.tokens(result.output_tokens))
        visit.total_input_tokens += call.prompt_tokens
        visit.total_output_tokens += bounds.tokens(result.output_tokens)
        steps = _steps(call, result, now_s)
        visit.steps = max(visit.steps, steps)
        visit.work_steps += steps
    # A sibling that the client dropped after another had answered (a hedge) is no failure.
    if result.outcome is not Outcome.CANCELLED or not visit.succeeded:
        workflow.last_outcome = result.outcome
    # Of two final calls the one that went well counts, whichever ends first.
    if call.final and workflow.final_outcome is not Outcome.OK:
        workflow.final_outcome = result.outcome
    visit.ended_s = now_s
    if not visit.complete:
        visit.ended_s = None
        return False
    close(workflow, visit)
    return True


def _steps(call: Call, result: CallResult, now_s: float) -> float:
    """How long it ran in output tokens at its instance's pace (LLMSched, Eq. 2)."""
    if call.dispatched_s is None or not result.tpot_s:
        return float(bounds.tokens(result.output_tokens))
    return bounds.cut((now_s - call.dispatched_s) / result.tpot_s, 0.0, bounds.MAX_TOKENS)


def close(workflow: Workflow, visit: Visit) -> None:
    """The visit is over; what remains of the workflow has changed."""
    if visit.stage.open is visit:
        visit.stage.open = None
    workflow.version += 1
    # A stage of which every call failed is still to be done: its client may try again.
    if (visit.succeeded or visit.at_client) and not visit.counted:
        visit.counted = True
        visit.stage.done += 1
        if workflow.plan is not None:
            workflow.plan.mark_done(visit.stage.name)


def close_abandoned(workflow: Workflow, now_s: float) -> None:
    """Close visits of which members were announced that did not come, once others moved on."""
    for visit in [s.open for s in workflow.stages.values() if s.open is not None]:
        if visit.live == 0 and visit.level < workflow.visits[-1].level:
            visit.ended_s = workflow.last_ended_s if workflow.last_ended_s is not None else now_s
            close(workflow, visit)


def _has_room(workflow: Workflow, stage: StagePlan) -> bool:
    known = stage_named(workflow, stage.name)
    return known is None or known.open is None or known.open.members < stage.width
