"""Templates: what finished workflows of an application say about the next one.

Each finished workflow is a sequence of visits to stages on levels: a visit is one level deeper
than the deepest that had ended when it began, so visits on one level ran side by side. Per level
the longest visit counts (critical path). From these a template keeps, with forgetting:

- per stage: how often it occurs, how many visits it then gets, width, level, prompt and output
  tokens of its longest member;
- per stage and how many visits it has had: what came after, as a number of levels and their
  summed tokens. Since time is taken to be linear in tokens (as in HexGen-Flow, Eq. 2), that sum is
  worth exactly what the expectation over all continuations seen is worth, repetitions and
  branches included.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatcher.core.ports import WorkSeconds
from workflows.bounds import MAX_TOKENS, stored
from workflows.names import base_name, split_name

MEMORY = 50.0
"""Workflows over which a mean is taken."""
MAX_VISITS_TOLD_APART = 4
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class VisitSummary:
    """One visit to a stage in a finished workflow; tokens of its longest member."""

    stage: str
    level: int
    width: int
    prompt_tokens: float
    output_tokens: float


@dataclass(slots=True)
class Mean:
    """Arithmetic at first, then with forgetting."""

    value: float = 0.0
    samples: int = 0

    def add(self, value: float) -> None:
        """Take one sample."""
        self.samples += 1
        self.value += (value - self.value) / min(self.samples, MEMORY)


class Tail:
    """Work to come, expected: levels and their tokens."""

    __slots__ = ("levels", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.levels, self.prompt_tokens, self.output_tokens = Mean(), Mean(), Mean()

    def add(self, levels: float, prompt_tokens: float, output_tokens: float) -> None:
        """One workflow went on like this."""
        self.levels.add(levels)
        self.prompt_tokens.add(prompt_tokens)
        self.output_tokens.add(output_tokens)

    def work_s(self, work_s: WorkSeconds, levels: float | None = None) -> float:
        """Seconds of it; of `levels` average levels of it where given."""
        expected = self.levels.value
        if expected <= 0:
            return 0.0
        mean_s = work_s(self.prompt_tokens.value / expected, self.output_tokens.value / expected)
        return mean_s * (expected if levels is None else levels)


class StageTemplate:
    """One stage of an application."""

    __slots__ = ("after", "level", "occurs", "output_tokens", "prompt_tokens", "visits", "width")

    def __init__(self) -> None:
        self.occurs = Mean()
        """Share of workflows that have it."""
        self.visits = Mean()
        """Visits in those that have it."""
        self.level, self.width = Mean(), Mean()
        self.prompt_tokens, self.output_tokens = Mean(), Mean()
        self.after = [Tail() for _ in range(MAX_VISITS_TOLD_APART)]

    def tail(self, visit: int) -> Tail | None:
        """What follows its visit of that number (from 1); fewer visits speak where it is new."""
        told_apart = self.after[: min(visit, MAX_VISITS_TOLD_APART)]
        for enough in (_ENOUGH, 1):
            for tail in reversed(told_apart):
                if tail.levels.samples >= enough:
                    return tail
        return None


class ApplicationTemplate:
    """All stages of one application."""

    def __init__(self, max_stages: int) -> None:
        self._max_stages = max_stages
        self.workflows = 0
        #: a workflow that has not begun
        self.whole = Tail()
        #: seen least recently first
        self.stages: OrderedDict[str, StageTemplate] = OrderedDict()

    def learn(self, visits: Sequence[VisitSummary]) -> None:
        """Take one finished workflow, visits in order of their beginning. O(visits + stages)."""
        self.workflows += 1
        longest: dict[int, VisitSummary] = {}
        counts: dict[str, int] = {}
        numbered: list[tuple[int, VisitSummary]] = []
        for visit in visits:
            known = longest.get(visit.level)
            if known is None or _length(visit) > _length(known):
                longest[visit.level] = visit
            counts[visit.stage] = counts.get(visit.stage, 0) + 1
            numbered.append((counts[visit.stage], visit))

        tails: dict[int, tuple[float, float, float]] = {}
        levels = prompt = output = 0.0
        for level in sorted(longest, reverse=True):
            tails[level] = (levels, prompt, output)
            levels += 1
            prompt += longest[level].prompt_tokens
            output += longest[level].output_tokens
        self.whole.add(levels, prompt, output)

        for number, visit in numbered:
            stage = self._stage(visit.stage)
            stage.level.add(visit.level)
            stage.width.add(visit.width)
            stage.prompt_tokens.add(visit.prompt_tokens)
            stage.output_tokens.add(visit.output_tokens)
            stage.after[min(number, MAX_VISITS_TOLD_APART) - 1].add(*tails[visit.level])
        for name, stage in self.stages.items():
            stage.occurs.add(1.0 if name in counts else 0.0)
            if name in counts:
                stage.visits.add(counts[name])

    def _stage(self, name: str) -> StageTemplate:
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = StageTemplate()
            # All workflows before this one went without it.
            stage.occurs.samples = min(self.workflows - 1, round(MEMORY))
            if len(self.stages) > self._max_stages:
                self.stages.popitem(last=False)
        else:
            self.stages.move_to_end(name)
        return stage

    def stage(self, name: str) -> StageTemplate | None:
        """What is known of a stage, or of the one that a name is one more visit to."""
        return self.stages.get(name) or self.stages.get(base_name(name))

    def tail_work_s(self, stage: str, visit: int, level: int, work_s: WorkSeconds) -> float:
        """Seconds of what follows a visit to a stage; of a new stage: what is left by level."""
        known = self.stages.get(stage)
        if known is None:
            stage, first = split_name(stage)
            known, visit = self.stages.get(stage), first + visit - 1
        tail = None if known is None else known.tail(visit)
        if tail is not None:
            return tail.work_s(work_s)
        return self.whole.work_s(work_s, max(0.0, self.whole.levels.value - level - 1))

    def summary(self) -> list[dict[str, object]]:
        """Stages by level: what is known of each; JSON-ready."""
        rows = sorted(self.stages.items(), key=lambda item: item[1].level.value)
        return [
            {
                "stage": name,
                "occurs": stage.occurs.value,
                "visits": stage.visits.value,
                "level": stage.level.value,
                "width": stage.width.value,
                "prompt_tokens": stage.prompt_tokens.value,
                "output_tokens": stage.output_tokens.value,
                "levels_after": stage.after[0].levels.value,
            }
            for name, stage in rows
        ]


class Templates:
    """Applications, bounded; the one that learned least recently goes first.

    Example:
        >>> templates = Templates()
        >>> templates.learn("sql", [VisitSummary("draft", 0, 1, 100, 50),
        ...                         VisitSummary("fix", 1, 1, 200, 30)])
        >>> sql = templates.get("sql")
        >>> sql.tail_work_s("draft", 1, 0, lambda prompt, output: output / 10)
        3.0
    """

    def __init__(self, *, max_applications: int = 1_000, max_stages: int = 200) -> None:
        self._max_applications = max_applications
        self._max_stages = max_stages
        self._applications: OrderedDict[str, ApplicationTemplate] = OrderedDict()

    def get(self, application: str) -> ApplicationTemplate | None:
        """What is known of an application; `None`: nothing."""
        return self._applications.get(application)

    def learn(self, application: str, visits: Sequence[VisitSummary]) -> None:
        """Take one workflow that finished well; one without visits teaches nothing."""
        if not visits:
            return
        template = self._applications.get(application)
        if template is None:
            template = ApplicationTemplate(self._max_stages)
            self._applications[application] = template
            if len(self._applications) > self._max_applications:
                self._applications.popitem(last=False)
        self._applications.move_to_end(application)
        template.learn(visits)

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {
            name: {
                "workflows": template.workflows,
                "whole": _dump_tail(template.whole),
                "stages": [[key, _dump_stage(s)] for key, s in template.stages.items()],
            }
            for name, template in self._applications.items()
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave.

        Raises:
            KeyError, ValueError: The state does not have the shape that `dump` gives; nothing has
                changed then.
        """
        applications: OrderedDict[str, ApplicationTemplate] = OrderedDict()
        for name, entry in list(state.items())[-self._max_applications :]:
            if not isinstance(entry, dict):
                raise ValueError(f"{name}: expected an object")
            template = applications[name] = ApplicationTemplate(self._max_stages)
            template.workflows = int(stored(entry["workflows"], "workflows", 0, 2**53))
            template.whole = _load_tail(entry["whole"])
            for key, stage in entry["stages"][-self._max_stages :]:
                template.stages[str(key)] = _load_stage(stage)
        self._applications = applications


_STAGE_MEANS = ("occurs", "visits", "level", "width", "prompt_tokens", "output_tokens")
_TAIL_MEANS = ("levels", "prompt_tokens", "output_tokens")


def _length(visit: VisitSummary) -> tuple[float, float]:
    """Decoding takes most of a call's time, so the longest output is the longest visit."""
    return visit.output_tokens, visit.prompt_tokens


def _dump_tail(tail: Tail) -> list[list[float]]:
    means: list[Mean] = [getattr(tail, name) for name in _TAIL_MEANS]
    return [[mean.value, mean.samples] for mean in means]


def _load_mean(name: str, state: Sequence[float]) -> Mean:
    value, samples = state
    # A sum over every level of the longest workflow is the most that `learn` can give.
    mean = stored(value, name, 0.0, 1_000.0 * MAX_TOKENS)
    return Mean(mean, int(stored(samples, name, 0, 2**53)))


def _load_tail(state: Sequence[Sequence[float]]) -> Tail:
    tail = Tail()
    for name, mean in zip(_TAIL_MEANS, state, strict=True):
        setattr(tail, name, _load_mean(name, mean))
    return tail


def _dump_stage(stage: StageTemplate) -> dict[str, object]:
    means: list[Mean] = [getattr(stage, name) for name in _STAGE_MEANS]
    return {
        "means": [[mean.value, mean.samples] for mean in means],
        "after": [_dump_tail(tail) for tail in stage.after],
    }


def _load_stage(state: Mapping[str, Sequence[Sequence[float]]]) -> StageTemplate:
    stage = StageTemplate()
    for name, mean in zip(_STAGE_MEANS, state["means"], strict=True):
        setattr(stage, name, _load_mean(name, mean))
    tails: list[Tail] = []
    for tail in state["after"]:
        tails.append(_load_tail(tail))  # type: ignore[arg-type]
    if len(tails) != MAX_VISITS_TOLD_APART:
        raise ValueError(f"after: expected {MAX_VISITS_TOLD_APART} entries")
    stage.after = tails
    return stage
