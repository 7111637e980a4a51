"""Where a running workflow stands in its application's model: evidence, and what is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dispatcher.core.workflow_types import StageKind
from workflows.model import Visit, Workflow, dispatched_s
from workflows.names import base_name
from workflows.spans import Part, Posterior
from workflows.stage_candidates import Step
from workflows.stage_network import NetworkError
from workflows.stage_profile import Evidence, Question, StageProfile
from workflows.stage_rows import (
    GAP,
    Cell,
    Declared,
    candidate_name,
    dynamic_cell,
    shown,
    visit_cell,
    with_gaps,
)
from workflows.stage_variable import Running


class Planned(NamedTuple):
    """A stage of a plan that is not over."""

    name: str
    step: Step
    visit: Visit | None
    """Of which calls wait or run."""
    at_client: bool
    """It runs at the client now, if anything does."""


Plans = tuple[tuple[int, tuple[Planned, ...]], ...]


class Standing(NamedTuple):
    """What holds until a stage ends, a call comes or a plan is posted."""

    key: tuple[object, ...]
    profile: StageProfile
    evidence: Evidence
    gone: tuple[int, ...]
    must: tuple[int, ...]
    plans: Plans
    """What dynamic stages turned out to be made of, as far as it is not over."""
    under_way: tuple[tuple[int, Visit], ...]
    """Stages of which calls wait or run."""
    unscheduled: frozenset[int]
    part_run: tuple[Running, ...]
    """Dynamic stages of which something has ended, and how far they are."""
    quiet_since_s: float | None
    """When the latest call, or report, ended, where nothing is under way here."""
    gap: int | None
    """What runs at the client between two calls, where that can only be one."""


def standing_of(workflow: Workflow, profile: StageProfile, declared: Declared) -> Standing:
    """Where it stands, kept with the workflow until something changes."""
    key = (workflow.version, workflow.calls_total, len(workflow.live))
    known = workflow.standing
    if known is None or known.profile is not profile or known.key != key:
        known = workflow.standing = _Reading(workflow, profile, declared).standing(key)
    return known


def question_of(
    workflow: Workflow, standing: Standing, tpot_s: float, now_s: float, *, exact: bool = False
) -> Question:
    """What to ask of the model now: how long stages have been under way counts, too."""
    profile = standing.profile
    began_s = dispatched_s(workflow)
    running, must = list(standing.part_run), list(standing.must)
    for variable, visit in standing.under_way:
        own = profile.variables[variable]
        since_s = began_s.get(id(visit))
        if since_s is None:
            must.append(variable)
            continue
        value = max(0.0, now_s - since_s) / profile.scale(own.share, tpot_s)
        running.append(Running(variable, *own.running_for(value, exact=exact)))
    quiet_s = standing.quiet_since_s
    if standing.gap is not None and quiet_s is not None:
        own = profile.variables[standing.gap]
        value = max(0.0, now_s - quiet_s)
        running.append(Running(standing.gap, *own.running_for(value, exact=exact)))

    def step(planned: Planned) -> Step:
        since_s = quiet_s if planned.at_client else began_s.get(id(planned.visit))
        if since_s is None:
            return planned.step
        candidate, seconds = planned.step.candidate, max(0.0, now_s - since_s)
        over_s = profile.candidates.over_s(candidate, seconds, tpot_s, exact=exact)
        return planned.step._replace(over_s=over_s)

    plans = tuple((v, tuple(step(each) for each in steps)) for v, steps in standing.plans)
    return Question(standing.evidence, standing.gone, tuple(running), tuple(must), plans)


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
    plans = {variable: [each.name for each in steps] for variable, steps in standing.plans}
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
        if variable in plans and status == "to come":
            row["status"] = "planned"
            row["planned"] = plans[variable]
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
        self._inside_live: list[Visit] = []

    def standing(self, key: tuple[object, ...]) -> Standing:
        for visit, gaps in with_gaps(self._workflow.visits, self._declared):
            self._read(visit, gaps)
        self._pass_over()
        plans, must = self._planned()
        self._part_run = [each for each in self._part_run if each.variable not in self._known]
        everything = range(len(self._profile.variables))
        over = {*self._known, *self._gone}
        return Standing(
            key=key,
            profile=self._profile,
            evidence=tuple(sorted(self._known.items())),
            gone=tuple(sorted(self._gone - self._known.keys())),
            must=must,
            plans=plans,
            under_way=tuple(self._under_way),
            unscheduled=frozenset(v for v in everything if v not in over | self._begun),
            part_run=tuple(self._part_run),
            gap=self._gap(),
            quiet_since_s=self._quiet_since_s(),
        )

    def _read(self, visit: Visit, gaps: list[Cell]) -> None:
        cell = visit_cell(visit, self._declared)
        dynamic = self._declared.inside_of(visit.stage.name)
        if dynamic is not None:
            cells = self._inside.setdefault(dynamic, [])
            cells += [*([] if cell is None else [cell]), *gaps]
            if visit.ended_s is None:
                self._inside_live.append(visit)
            return
        for each in gaps:
            self._note(each)
        variable = self._profile.index.get(visit.name)
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

    def _planned(self) -> tuple[Plans, tuple[int, ...]]:
        """What the posted plan says: of dynamic stages, else of all that may follow."""
        planned, resolution = self._workflow.planned, self._workflow.resolution
        if planned is None:
            return (), ()
        if resolution is None:
            return (), self._bound_by(planned)
        plans = []
        for dynamic in resolution.parts:
            variable = self._profile.index.get(dynamic)
            over = self._known.keys() | self._gone
            if variable is not None and variable not in over:
                steps = self._resolved(variable, dynamic, resolution.names(dynamic) or ())
                if steps:
                    plans.append((variable, steps))
        return tuple(plans), ()

    def _resolved(
        self, variable: int, dynamic: str, planned: tuple[str, ...]
    ) -> tuple[Planned, ...]:
        """What of a plan is not over; none: all of it is, and that is noted."""
        cells = self._inside.get(dynamic, [])
        ran = [cell.name for cell in cells if not cell.name.startswith(GAP)]
        left = _without(planned, ran)
        if not left:
            if cells:
                self._note(dynamic_cell(dynamic, cells, self._profile.tpot_s))
            else:
                self._leave_out(variable)  # the planner wants none of it
            return ()
        live = {_due(left, visit.name): visit for visit in self._inside_live}
        quiet = not self._workflow.live and not self._under_way and not live
        place = {name: number for number, name in enumerate(left)}
        waits: dict[str, list[int]] = {name: [] for name in left}
        for before, after in self._workflow.planned_edges:
            if before in place and after in place:
                waits[after].append(place[before])
        steps = []
        for name in left:
            candidate = candidate_name(dynamic, self._candidate(name))
            at_client = quiet and not waits[name]
            steps.append(
                Planned(
                    name,
                    Step(candidate, tuple(waits[name])),
                    live.get(name),
                    at_client and self._profile.candidates.run_at_client(candidate),
                )
            )
        return tuple(steps)

    def _candidate(self, name: str) -> str:
        return name if name in self._declared.dynamic_of else base_name(name)

    def _bound_by(self, planned: tuple[str, ...]) -> tuple[int, ...]:
        """The plan is all that follows: the rest is not executed."""
        names = {base_name(name) for name in planned} | set(planned)
        must = []
        over = self._known.keys() | self._gone | self._begun
        for variable, own in enumerate(self._profile.variables):
            if variable in over:
                continue
            stage = own.name.removeprefix(GAP)
            if names.isdisjoint({stage, base_name(stage)}):
                self._leave_out(variable)
            elif own.name in names:
                must.append(variable)
        return tuple(must)

    def _quiet_since_s(self) -> float | None:
        """When the latest call or report ended."""
        if self._workflow.live:
            return None
        moments = [self._workflow.last_ended_s]
        moments += [visit.ended_s for visit in self._workflow.visits if visit.at_client]
        return max((moment for moment in moments if moment is not None), default=None)

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


def _due(planned: Sequence[str], name: str) -> str | None:
    """The planned visit that is meant by a name: itself, else the first to that stage."""
    if name in planned:
        return name
    return next((each for each in planned if base_name(each) == base_name(name)), None)


def _without(planned: Sequence[str], ran: Sequence[str]) -> tuple[str, ...]:
    """Planned visits that are left: those named, and for each other visit one to that stage."""
    left = [name for name in planned if name not in ran]
    for name in ran:
        due = None if name in planned else _due(left, name)
        if due is not None:
            left.remove(due)
    return tuple(left)
