"""The stages of a workflow as its client declared them: a graph with lengths where known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dispatcher.core.workflow_types import StageKind, StagePlan
from workflows.bounds import MAX_S, MAX_TOKENS, MAX_WIDTH
from workflows.names import base_name, split_name

MAX_PLAN_STAGES = 200


class PlanError(ValueError):
    """A declared plan that is no graph of stages; the message names the stage."""


def check_slo_s(slo_s: float | None) -> None:
    """Refuse a declared end-to-end SLO that is no time.

    Raises:
        PlanError: It is not in (0, `MAX_S`] seconds.
    """
    if slo_s is not None and not 0 < slo_s <= MAX_S:
        raise PlanError(f"slo_s: expected seconds above 0 and at most {MAX_S:.0f}, not {slo_s}")


def _check(stage: StagePlan) -> None:
    where = f"stage {stage.name!r}"
    if not 1 <= stage.width <= MAX_WIDTH:
        raise PlanError(f"{where}: width must be at least 1 and at most {MAX_WIDTH}")
    for name, value in (
        ("prompt_tokens", stage.prompt_tokens),
        ("output_tokens", stage.output_tokens),
    ):
        if value is not None and not 0 <= value <= MAX_TOKENS:
            raise PlanError(f"{where}: {name} must be at least 0 and at most {MAX_TOKENS}")
    if len(stage.after) > MAX_PLAN_STAGES:
        raise PlanError(f"{where}: after: expected at most {MAX_PLAN_STAGES} stages")
    if stage.candidates and stage.kind is not StageKind.DYNAMIC:
        raise PlanError(f"{where}: only a dynamic stage has candidates")


class Plan:
    """Declared stages, and which of them have ended.

    Args:
        stages: In the client's order. `after` empty: after the one before it in the list.
        ended: Stages that ended before the plan was made; `after` may name them.
        before: What each stage waits for, where that is settled already: `after` does not count.

    Where a name is asked for, the plan's visit is meant that is due under it: of `search` and
    `search#2` the first that is not done, whether the client says `search` twice or as planned.

    Raises:
        PlanError: A name twice, an `after` that names no stage, a circle, too many stages, a
            width or a length out of bounds, candidates of a stage that is not dynamic.

    Example:
        >>> plan = Plan([StagePlan("draft"), StagePlan("a", after=("draft",)),
        ...              StagePlan("b", after=("draft",)), StagePlan("vote", after=("a", "b"))])
        >>> plan.work_after("draft", lambda stage: 3.0 if stage.name == "b" else 1.0)
        4.0
    """

    def __init__(
        self,
        stages: Sequence[StagePlan],
        ended: Collection[str] = (),
        before: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if len(stages) > MAX_PLAN_STAGES:
            raise PlanError(f"stages: expected at most {MAX_PLAN_STAGES}, not {len(stages)}")
        self._stages: dict[str, StagePlan] = {}
        for stage in stages:
            if stage.name in self._stages:
                raise PlanError(f"stage {stage.name!r} is declared twice")
            _check(stage)
            self._stages[stage.name] = stage
        self._before: dict[str, tuple[str, ...]] = {}
        previous: tuple[str, ...] = ()
        for stage in stages:
            after = stage.after if before is None else before[stage.name]
            listed = before is not None or stage.after
            known = self._known(stage.name, after, ended) if listed else previous
            self._before[stage.name] = known
            previous = (stage.name,)
        #: stage -> planned visits to it, in order of their numbers
        self._visits: dict[str, list[str]] = {}
        for name in sorted(self._stages, key=lambda name: split_name(name)[1]):
            self._visits.setdefault(base_name(name), []).append(name)
        self._order = self._sorted()
        self._after: dict[str, list[str]] = {name: [] for name in self._stages}
        for name, earlier_ones in self._before.items():
            for earlier in earlier_ones:
                self._after[earlier].append(name)
        self.done: set[str] = set()

    @property
    def stages(self) -> Mapping[str, StagePlan]:
        """By name, in the client's order."""
        return self._stages

    def before(self, name: str) -> tuple[str, ...]:
        """Stages that one of its own waits for."""
        return self._before[name]

    def due(self, name: str) -> str | None:
        """The planned visit that is meant by a name; `None`: the plan has none of it."""
        base = base_name(name)
        if name != base and (name in self._stages or base not in self._stages):
            return name if name in self._stages else None
        visits = self._visits.get(base, [])
        due = (visit for visit in visits if visit not in self.done)
        return next(due, visits[-1] if visits else None)

    def visits(self, name: str) -> int:
        """Planned visits to a stage."""
        return (
            1
            if name in self._stages and name != base_name(name)
            else len(self._visits.get(name, ()))
        )

    def get(self, name: str) -> StagePlan | None:
        """The declared stage of that name."""
        due = self.due(name)
        return None if due is None else self._stages[due]

    def mark_done(self, name: str) -> None:
        """The stage has ended; one that was not declared is ignored."""
        due = self.due(name)
        if due is not None:
            self.done.add(due)

    def ready(self, has_room: Callable[[StagePlan], bool]) -> str | None:
        """First stage, in the client's order, that may run now and has room for a call."""
        over = set(self.done)
        for name in self._order:
            # nobody has to report what runs at clients: whoever calls is past it
            if self._stages[name].kind is not StageKind.LLM and over.issuperset(self._before[name]):
                over.add(name)
        for name, stage in self._stages.items():
            waits = stage.kind is StageKind.LLM and name not in over
            if waits and over.issuperset(self._before[name]) and has_room(stage):
                return name
        return None

    def work_after(self, name: str | None, work_s: Callable[[StagePlan], float]) -> float:
        """Critical path over stages still to come: those after `name`, or all.

        Args:
            name: The present stage, not counted; `None` or undeclared: the whole plan.
            work_s: Seconds of one stage.
        """
        tails: dict[str, float] = {}
        for stage_name in reversed(self._order):
            stage = self._stages[stage_name]
            counts = stage.kind is StageKind.LLM and stage_name not in self.done
            own_s = work_s(stage) if counts else 0.0
            tails[stage_name] = own_s + max((tails[n] for n in self._after[stage_name]), default=0)
        due = None if name is None else self.due(name)
        if due is None:
            return max(tails.values(), default=0.0)
        return max((tails[n] for n in self._after[due]), default=0.0)

    @property
    def order(self) -> tuple[str, ...]:
        """Its stages, none before what it waits for."""
        return tuple(self._order)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Which stage waits for which: (earlier, later)."""
        return tuple((b, name) for name in self._order for b in self._before[name])

    def children(self, name: str) -> int:
        """Stages that wait for a declared one."""
        return len(self._after[self.due(name) or name])

    def height(self, name: str) -> int:
        """Stages on the longest path after a declared one."""
        heights: dict[str, int] = {}
        for stage in reversed(self._order):
            heights[stage] = max((heights[n] + 1 for n in self._after[stage]), default=0)
        return heights[self.due(name) or name]

    def _known(self, stage: str, after: Sequence[str], ended: Collection[str]) -> tuple[str, ...]:
        before = []
        for name in dict.fromkeys(after):
            if name in self._stages:
                before.append(name)
            elif name not in ended and base_name(name) not in ended:
                raise PlanError(f"stage {stage!r} comes after {name!r}, which is no stage")
        return tuple(before)

    def _sorted(self) -> list[str]:
        order: list[str] = []
        placed: set[str] = set()
        waiting = list(self._stages)
        while waiting:
            ready = [name for name in waiting if placed.issuperset(self._before[name])]
            if not ready:
                raise PlanError(f"stages wait for each other in a circle: {', '.join(waiting)}")
            order += ready
            placed.update(ready)
            waiting = [name for name in waiting if name not in placed]
        return order
