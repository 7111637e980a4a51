"""Where a running workflow stands in its application's model: evidence, and what is under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dispatcher.core.workflow_types import StageKind
from workflows.model import Visit, Workflow
from workflows.spans import Part, Posterior
from workflows.stage_network import NetworkError
from workflows.stage_profile import Evidence, Question, StageProfile
from workflows.stage_rows import (
    GAP,
    Cell,
    Declared,
    base_name,
    candidate_name,
    dynamic_cell,
    shown,
    variable_name,
    visit_cell,
    with_gaps,
)
from workflows.stage_variable import Running

Plan = tuple[tuple[str, tuple[int, ...]], ...]


class Standing(NamedTuple):
    """What holds until a stage ends, a call comes or a plan is posted."""

    key: tuple[object, ...]
    profile: StageProfile
    evidence: Evidence
    gone: tuple[int, ...]
    must: tuple[int, ...]
    plan: Plan
    under_way: tuple[tuple[int, Visit], ...]
    """Stages of which calls wait or run."""
    unscheduled: frozenset[int]
    part_run: tuple[Running, ...]
    """Dynamic stages of which something has ended, and how far they are."""
    gap: int | None
    """What runs at the client between two calls, where that can only be one."""


def standing_of(workflow: Workflow, profile: StageProfile, declared: Declared) -> Standing:
    """Where it stands, kept with the workflow until something changes."""
    key = (workflow.version, workflow.calls_total, len(workflow.live))
    known = workflow.standing
    if known is None or known.profile is not profile or known.key != key:
        known = workflow.standing = _Reading(workflow, profile, declared).standing(key)
    return known


def question_of(workflow: Workflow, standing: Standing, tpot_s: float, now_s: float) -> Question:
    """What to ask of the model now: how long stages have been under way counts, too."""
    profile = standing.profile
    dispatched_s: dict[int, float] = {}
    for call in workflow.live.values():
        if call.dispatched_s is not None:
            began_s = dispatched_s.get(id(call.visit), call.dispatched_s)
            dispatched_s[id(call.visit)] = min(began_s, call.dispatched_s)
    running, must = list(standing.part_run), list(standing.must)
    for variable, visit in standing.under_way:
        own = profile.variables[variable]
        since_s = dispatched_s.get(id(visit))
        if since_s is None:
            must.append(variable)
            continue
        value = max(0.0, now_s - since_s) / profile.scale(own.share, tpot_s)
        running.append(Running(variable, *own.running_for(value)))
    if standing.gap is not None and workflow.last_ended_s is not None:
        own = profile.variables[standing.gap]
        value = max(0.0, now_s - workflow.last_ended_s)
        running.append(Running(standing.gap, *own.running_for(value)))
    return Question(standing.evidence, standing.gone, tuple(running), tuple(must), standing.plan)


def posterior(profile: StageProfile, question: Question, tpot_s: float) -> Posterior | None:
    """What is left; `None`: the network is too large for this question."""
    try:
        return profile.remaining(question, tpot_s)
    except NetworkError:
        return None


def reduction(standing: Standing, variable: int) -> Part | None:
    """R(X) of a stage; `None`: the network is too large for this question."""
    try:
        return standing.profile.reduction(variable, standing.evidence, standing.unscheduled)
    except NetworkError:
        return None


def told(standing: Standing) -> list[dict[str, object]]:
    """Stages in order of their levels, and what is known of each; JSON-ready.

    `expected_s` is at the pace at which the model was fitted.
    """
    states = dict(standing.evidence)
    under_way = {variable for variable, _ in standing.under_way}
    rows: list[dict[str, object]] = []
    for variable, own in enumerate(standing.profile.variables):
        expected_s: float | None = None
        if variable in standing.gone or (variable in states and states[variable] > 0):
            status = "ended"
        elif variable in states:
            status = "not executed" if own.may_not_run else "ended"
        else:
            status = "under way" if variable in under_way else "to come"
            expected_s = standing.profile.expected_s(variable, standing.evidence)
        row: dict[str, object] = {
            "stage": shown(own.name),
            "kind": own.kind.value,
            "status": status,
            "expected_s": expected_s,
        }
        if own.kind is StageKind.DYNAMIC and standing.plan and status == "to come":
            row["status"] = "planned"
            row["planned"] = [shown(name) for name, _ in standing.plan]
        rows.append(row)
    return rows


class _Reading:
    """Reads one workflow against one model."""

    def __init__(self, workflow: Workflow, profile: StageProfile, declared: Declared) -> None:
        self._workflow = workflow
        self._profile = profile
        self._declared = declared
        #: variable -> state
        self._known: dict[int, int] = {}
        self._gone: set[int] = set()
        self._begun: set[int] = set()
        self._under_way: list[tuple[int, Visit]] = []
        self._part_run: list[Running] = []
        #: dynamic stage -> what of it has run
        self._inside: dict[str, list[Cell]] = {}
        self._inside_live: set[str] = set()

    def standing(self, key: tuple[object, ...]) -> Standing:
        for visit, gaps in with_gaps(self._workflow.visits, self._declared):
            self._read(visit, gaps)
        self._pass_over()
        plan, must = self._planned()
        self._part_run = [each for each in self._part_run if each.variable not in self._known]
        everything = range(len(self._profile.variables))
        over = {*self._known, *self._gone}
        return Standing(
            key=key,
            profile=self._profile,
            evidence=tuple(sorted(self._known.items())),
            gone=tuple(sorted(self._gone - self._known.keys())),
            must=must,
            plan=plan,
            under_way=tuple(self._under_way),
            unscheduled=frozenset(v for v in everything if v not in over | self._begun),
            part_run=tuple(self._part_run),
            gap=self._gap(),
        )

    def _read(self, visit: Visit, gaps: list[Cell]) -> None:
        cell = visit_cell(visit, self._declared)
        dynamic = self._declared.dynamic_of.get(base_name(visit.stage.name))
        if dynamic is not None:
            cells = self._inside.setdefault(dynamic, [])
            cells += [*([] if cell is None else [cell]), *gaps]
            if visit.ended_s is None:
                self._inside_live.add(visit.stage.name)
            return
        for each in gaps:
            self._note(each)
        variable = self._profile.index.get(variable_name(visit.stage.name, visit.number))
        if variable is None:
            return
        if cell is not None:
            self._note(cell)
        elif visit.ended_s is None:
            self._begun.add(variable)
            self._under_way.append((variable, visit))

    def _note(self, cell: Cell) -> None:
        variable = self._profile.index.get(cell.name)
        if variable is None:
            return
        self._begun.add(variable)
        state = self._profile.variables[variable].state_of(self._value(cell))
        self._known[variable] = state

    def _value(self, cell: Cell) -> float:
        """At the pace of the fit."""
        return cell.steps * self._profile.tpot_s + cell.seconds

    def _pass_over(self) -> None:
        """What comes before a stage that has begun is over, or was never executed."""
        passed = set().union(*(self._profile.ancestors(v) for v in self._begun))
        under_way = {variable for variable, _ in self._under_way}
        for dynamic, cells in self._inside.items():
            variable = self._profile.index.get(dynamic)
            if variable is None:
                continue
            if variable not in passed:
                passed |= self._profile.ancestors(variable)
                self._begun.add(variable)
                if cells and variable not in self._known:
                    value = self._value(dynamic_cell(dynamic, cells, self._profile.tpot_s))
                    own = self._profile.variables[variable]
                    self._part_run.append(Running(variable, *own.running_for(value)))
            elif cells:
                # what came after it has begun: all of it has run
                self._note(dynamic_cell(dynamic, cells, self._profile.tpot_s))
        if self._workflow.restored:
            passed |= self._before_restart()
        for variable in passed - self._known.keys() - under_way:
            self._leave_out(variable)

    def _before_restart(self) -> set[int]:
        """Stages that must have run before this process did."""
        visits = self._workflow.visits
        level = visits[0].level if visits else self._workflow.deepest_level + 1
        return {v for v, own in enumerate(self._profile.variables) if own.level < level - 0.5}

    def _leave_out(self, variable: int) -> None:
        """It will not be executed; or was, before anybody looked."""
        if self._profile.variables[variable].may_not_run and not self._workflow.restored:
            self._known[variable] = 0
        else:
            self._gone.add(variable)

    def _planned(self) -> tuple[Plan, tuple[int, ...]]:
        """What the posted plan says: of a dynamic stage, else of all that may follow."""
        planned = self._workflow.planned
        if planned is None:
            return (), ()
        for name, own in self._declared.stages.items():
            if own.kind is StageKind.DYNAMIC:
                return self._resolved(name, planned), ()
        if not self._declared.stages:
            return (), self._bound_by(planned)
        return (), ()

    def _resolved(self, dynamic: str, planned: tuple[str, ...]) -> Plan:
        """The part of a plan that is inside of a dynamic stage and not over."""
        variable = self._profile.index.get(dynamic)
        if variable is None or variable in self._known or variable in self._gone:
            return ()
        inside = [n for n in planned if self._declared.dynamic_of.get(base_name(n)) == dynamic]
        cells = self._inside.get(dynamic, [])
        ran = {cell.name for cell in cells}
        left = [name for name in inside if name not in ran]
        if not left:
            if cells:
                self._note(dynamic_cell(dynamic, cells, self._profile.tpot_s))
            else:
                self._leave_out(variable)  # the planner wants none of it
            return ()
        place = {name: number for number, name in enumerate(left)}
        waits: dict[str, list[int]] = {name: [] for name in left}
        for before, after in self._workflow.planned_edges:
            if before in place and after in place:
                waits[after].append(place[before])
        return tuple(
            (candidate_name(dynamic, base_name(name)), tuple(waits[name])) for name in left
        )

    def _bound_by(self, planned: tuple[str, ...]) -> tuple[int, ...]:
        """The plan is all that follows: the rest is not executed."""
        names = {base_name(name) for name in planned}
        must = []
        over = self._known.keys() | self._gone | self._begun
        for variable, own in enumerate(self._profile.variables):
            if variable in over:
                continue
            stage = base_name(own.name.removeprefix(GAP))
            if stage not in names:
                self._leave_out(variable)
            elif own.name in names:
                must.append(variable)
        return tuple(must)

    def _gap(self) -> int | None:
        """The one stage at the client that may run now."""
        if self._workflow.live or self._under_way or self._inside_live:
            return None
        over: Mapping[int, int] | set[int] = {*self._known, *self._gone}
        found = [
            v
            for v, own in enumerate(self._profile.variables)
            if own.kind is StageKind.REGULAR
            and v not in over
            and all(before in over for before in self._profile.before[v])
        ]
        return found[0] if len(found) == 1 and self._known else None
