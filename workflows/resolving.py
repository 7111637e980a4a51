"""What planners have decided, put into the place of the dynamic stages that were declared.

LLMSched, section IV-A: a dynamic stage stands for stages that are not known before the planner
ahead of it has run. A plan takes the place of that stage alone: it begins when what the stage
waited for has ended, and what waited for the stage waits for the plan's last stages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dispatcher.core.workflow_types import StageKind, StagePlan
from workflows.names import base_name, listed
from workflows.plan import Plan, PlanError

Parts = Mapping[str, tuple[StagePlan, ...]]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Declared stages of one workflow, and what is known of the dynamic ones.

    Example:
        >>> tools = StagePlan("tools", kind=StageKind.DYNAMIC, candidates=("search", "read"))
        >>> declared = Plan([StagePlan("plan"), tools, StagePlan("answer", after=("tools",))])
        >>> known = Resolution(declared).take([StagePlan("search"), StagePlan("read")], ())
        >>> known.plan(()).edges
        (('plan', 'search'), ('search', 'read'), ('read', 'answer'))
    """

    declared: Plan
    parts: Parts = field(default_factory=dict)
    """Dynamic stage -> what it is made of, each `after` settled; no entry: not known yet."""
    said: Mapping[str, StagePlan] = field(default_factory=dict)
    """Declared stages that a plan has said more of."""

    def take(self, stages: Sequence[StagePlan], over: Collection[str]) -> Resolution:
        """With one more plan; of a dynamic stage that has one already it replaces that one.

        Args:
            stages: As posted. A declared one among them is that one, with what is said of it here.
            over: Declared stages that have ended: what came before these is not planned any more.

        Raises:
            PlanError: A stage twice, or one that is a candidate of no dynamic stage.
        """
        Plan([replace(stage, after=()) for stage in stages])  # names and numbers
        declared = self.declared.stages
        own = [stage for stage in stages if stage.name not in declared]
        said = {stage.name: stage for stage in stages if stage.name in declared}
        dynamic = self._dynamic(over)
        parts: dict[str, list[StagePlan]] = {}
        previous: str | None = None
        first = self._to_plan(dynamic)
        for stage in stages:
            if stage.name not in declared:
                into = first if base_name(stage.name) in declared else self._into(stage, dynamic)
                after = stage.after or ((previous,) if previous is not None else ())
                parts.setdefault(into, []).append(replace(stage, after=after))
            previous = stage.name
        if not own and first not in said:
            parts[first] = []  # the planner wants none of it
        settled = {name: tuple(part) for name, part in parts.items()}
        return Resolution(self.declared, {**self.parts, **settled}, {**self.said, **said})

    def plan(self, ended: Collection[str]) -> Plan:
        """All of it as one graph.

        Args:
            ended: Stages that ended before; `after` may name them.

        Raises:
            PlanError: It is no graph, or too large.
        """
        stages: list[StagePlan] = []
        before: dict[str, Sequence[str]] = {}
        for name, stage in self.declared.stages.items():
            if name in self.parts:
                for each in self.parts[name]:
                    # inside of a stage its own name is what came before it
                    named = [earlier for earlier in each.after if earlier != name]
                    first = () if named == list(each.after) != [] else self.declared.before(name)
                    before[each.name] = self._ends((*first, *named))
                    stages.append(each)
                continue
            more = self.said.get(name)
            after = (*self.declared.before(name), *(() if more is None else more.after))
            before[name] = self._ends(after)
            stages.append(stage if more is None else _with(stage, more))
        return Plan(stages, ended, before)

    def names(self, dynamic: str) -> tuple[str, ...] | None:
        """What a dynamic stage is made of; `None`: not known yet."""
        part = self.parts.get(dynamic)
        return None if part is None else tuple(stage.name for stage in part)

    # --- inside ---

    def _ends(self, names: Sequence[str]) -> tuple[str, ...]:
        """Stages of the whole graph whose end is the end of these."""
        ends: list[str] = []
        for name in names:
            part = self.parts.get(name)
            if part is None:
                ends.append(name)
                continue
            waited_for = {earlier for stage in part for earlier in stage.after}
            last = [stage.name for stage in part if stage.name not in waited_for]
            ends += last or self._ends(self.declared.before(name))
        return tuple(dict.fromkeys(ends))

    def _dynamic(self, over: Collection[str]) -> list[str]:
        """Dynamic stages that may still be planned, in order; all of them where all are past."""
        past: set[str] = set()
        for name in reversed(self.declared.order):
            if name in over or name in past:
                past.update(self.declared.before(name))
        found = [
            name
            for name in self.declared.order
            if self.declared.stages[name].kind is StageKind.DYNAMIC
        ]
        return [name for name in found if name not in past] or found

    def _to_plan(self, dynamic: Sequence[str]) -> str:
        """What a plan is of that has no stage of its own: the first that is not known yet."""
        return next((name for name in dynamic if name not in self.parts), dynamic[0])

    def _into(self, stage: StagePlan, dynamic: Sequence[str]) -> str:
        """The dynamic stage that a planned one is in."""
        unlisted = []
        for name in dynamic:
            candidates = self.declared.stages[name].candidates
            if stage.name in candidates or base_name(stage.name) in candidates:
                return name
            if not candidates:
                unlisted.append(name)
        if unlisted:
            return self._to_plan(unlisted)
        of = " or ".join(repr(name) for name in dynamic)
        names = dict.fromkeys(c for name in dynamic for c in self.declared.stages[name].candidates)
        raise PlanError(f"stage {stage.name!r} is no candidate of {of}; expected: {listed(names)}")


def resolvable(stages: Sequence[StagePlan]) -> bool:
    """Whether there is a dynamic stage among them."""
    return any(stage.kind is StageKind.DYNAMIC for stage in stages)


def _with(stage: StagePlan, said: StagePlan) -> StagePlan:
    """A declared stage with what a plan says of it."""
    return replace(
        stage,
        width=max(stage.width, said.width),
        prompt_tokens=stage.prompt_tokens if said.prompt_tokens is None else said.prompt_tokens,
        output_tokens=stage.output_tokens if said.output_tokens is None else said.output_tokens,
    )
