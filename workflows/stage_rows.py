"""What one finished workflow says of its application: a duration for each of its stages.

Variables are visits: a stage's first is called as the stage is, its next ones `stage#2`,
`stage#3` (chains are padded to the longest seen: who has no such visit has a duration of 0).
A gap between calls is the regular stage that was declared there, else `before STAGE`. What runs
inside of a dynamic stage counts as that, and each of its candidates is noted besides.

A duration has two parts. Decoding is in *steps*: its seconds over the time per output token of
its instance as loaded as it was then (LLMSched, Eq. 2: d_t = d_r l(b_t) / l(b_r), with l(b_t)
multiplied in when asked). What runs at clients is in seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.core.workflow_types import StageKind, StagePlan
from workflows.bounds import MAX_S, MAX_TOKENS, cut
from workflows.model import Visit, Workflow
from workflows.names import base_name, visit_name

MAX_CELLS = 96
"""Variables that one workflow may speak of."""
MAX_EDGES = 64
MAX_LEARNED = 200
"""Candidates of one application beyond which none is learned."""
MIN_GAP_S = 0.01
"""Clients always take a moment between two calls: less is no stage."""
GAP, INSIDE = "\x1fbefore ", "\x1e"
"""In names that this package makes up; no client's stage can have these characters."""
_CELL = struct.Struct("<Hffff")
_EDGE = struct.Struct("<HH")


class Cell(NamedTuple):
    """One variable in one workflow."""

    name: str
    kind: StageKind
    level: float
    steps: float
    seconds: float
    tasks: float
    """Work over duration: its calls, as many as they would be if all ran as long as the longest."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workflow."""

    cells: tuple[Cell, ...]
    edges: tuple[tuple[str, str], ...] = ()
    """Dependencies between candidates of a dynamic stage, as its plan had them."""


def gap_name(variable: str) -> str:
    """Of the gap before a stage, where nobody says what it is."""
    return GAP + variable


class Declared:
    """An application's declared stages, by what is asked of them.

    Args:
        stages: As declared, a graph (see `plan.Plan`); empty: nothing was declared.
    """

    def __init__(self, stages: Sequence[StagePlan] = ()) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self.before: dict[str, tuple[str, ...]] = {}
        previous: tuple[str, ...] = ()
        for stage in stages:
            self.before[stage.name] = stage.after or previous
            previous = (stage.name,)
        #: candidate -> the dynamic stage that it is of
        self.dynamic_of: dict[str, str] = {}
        for stage in stages:
            for candidate in stage.candidates:
                self.dynamic_of.setdefault(candidate, stage.name)

    def kind(self, name: str) -> StageKind:
        """Of a variable; what nobody declared is an LLM stage."""
        stage = self.stages.get(name) or self.stages.get(base_name(name))
        return StageKind.LLM if stage is None else stage.kind

    def inside_of(self, name: str) -> str | None:
        """The dynamic stage that a stage, or one more visit to it, is a candidate of."""
        return self.dynamic_of.get(name) or self.dynamic_of.get(base_name(name))

    def learn(self, candidate: str, dynamic: str) -> None:
        """A planner has put it into a dynamic stage that was declared without candidates."""
        known = self.stages.get(dynamic)
        learned = len(self.dynamic_of) < MAX_LEARNED
        if known is not None and not known.candidates and learned and candidate not in self.stages:
            self.dynamic_of.setdefault(candidate, dynamic)

    @property
    def learned(self) -> dict[str, str]:
        """Candidates that nobody declared, and the dynamic stage of each."""
        declared = {name for stage in self.stages.values() for name in stage.candidates}
        return {name: of for name, of in self.dynamic_of.items() if name not in declared}

    def gap_before(self, visit: Visit) -> list[str]:
        """Stages declared to run at clients right before a visit, as variables."""
        before = self.before.get(visit.stage.name, ())
        return [
            visit_name(name, visit.number)
            for name in before
            if name in self.stages and self.stages[name].kind is not StageKind.LLM
        ]

    def planner_of(self, dynamic: str) -> tuple[str, ...]:
        """Stages whose end tells what is in a dynamic one."""
        return self.before.get(dynamic, ())


def row_of(workflow: Workflow, declared: Declared, tpot_s: float) -> Row:
    """What a finished workflow says.

    Args:
        workflow: It went well and was seen whole.
        declared: Its application's stages.
        tpot_s: Usual time per output token, to tell which of a level's visits was longest.
    """
    cells: dict[str, Cell] = {}
    inside: dict[str, list[Cell]] = {}
    for visit, gaps in with_gaps(workflow.visits, declared):
        own = visit_cell(visit, declared)
        dynamic = declared.inside_of(visit.stage.name)
        if dynamic is not None:
            # of one that failed nothing may be known
            if parts := [*([own] if own is not None else []), *gaps]:
                inside.setdefault(dynamic, []).extend(parts)
            continue
        for cell in (*gaps, *([own] if own is not None else [])):
            if cell.name not in cells and len(cells) < MAX_CELLS:
                cells[cell.name] = cell
    for dynamic, parts in inside.items():
        whole = dynamic_cell(dynamic, parts, tpot_s)
        cells[dynamic] = whole
        for cell in _candidate_cells(dynamic, parts, declared):
            if len(cells) < MAX_CELLS:
                cells[cell.name] = cell
    return Row(tuple(cells.values()), tuple(_edges(workflow, declared))[:MAX_EDGES])


def visit_cell(visit: Visit, declared: Declared) -> Cell | None:
    """A visit that has ended well, as a variable's value; `None`: it has not."""
    if visit.ended_s is None or not (visit.succeeded or visit.at_client):
        return None
    name = visit_name(visit.stage.name, visit.number)
    tasks = float(max(1, visit.members, visit.declared_width))
    if visit.at_client:
        kind = declared.kind(name)
        kind = StageKind.REGULAR if kind is StageKind.LLM else kind
        seconds = cut(visit.ended_s - visit.started_s, 0.0, MAX_S)
        return Cell(name, kind, visit.level, 0.0, seconds, tasks)
    steps = cut(visit.steps, 0.0, MAX_TOKENS)
    if steps > 0.0:
        tasks = max(1.0, visit.work_steps / steps)
    return Cell(name, StageKind.LLM, visit.level, steps, 0.0, tasks)


def with_gaps(visits: Iterable[Visit], declared: Declared) -> Iterator[tuple[Visit, list[Cell]]]:
    """Visits in order, each with what ran at the client before it and was not reported."""
    reported = False
    for visit in visits:
        yield visit, [] if reported else gap_cells(visit, declared)
        # what was reported is what filled the silence up to the next call
        reported = visit.at_client or (reported and visit.gap_s is None)


def gap_cells(visit: Visit, declared: Declared) -> list[Cell]:
    """What ran at the client before a visit, where nobody reported it."""
    if visit.gap_s is None:
        return []
    seconds, level = cut(visit.gap_s, 0.0, MAX_S), visit.level - 0.5
    names = declared.gap_before(visit)
    if not names:
        if seconds < MIN_GAP_S:
            return []
        names = [gap_name(visit_name(visit.stage.name, visit.number))]
    kinds = {n: declared.kind(n) if n in declared.stages else StageKind.REGULAR for n in names}
    return [Cell(name, kinds[name], level, 0.0, seconds, 1) for name in names]


def shown(name: str) -> str:
    """A variable's name for a reader."""
    return name.removeprefix(GAP[0]).replace(INSIDE, ": ")


def candidate_name(dynamic: str, candidate: str) -> str:
    """Of the variable that notes a candidate."""
    return f"{dynamic}{INSIDE}{candidate}"


def dynamic_cell(dynamic: str, parts: Sequence[Cell], tpot_s: float) -> Cell:
    """All of it along its critical path: the longest on each level."""
    longest: dict[float, Cell] = {}
    for part in parts:
        known = longest.get(part.level)
        if known is None or _length_s(part, tpot_s) > _length_s(known, tpot_s):
            longest[part.level] = part
    steps = sum(part.steps for part in longest.values())
    seconds = sum(part.seconds for part in longest.values())
    work_steps = sum(part.steps * part.tasks for part in parts)
    tasks = max(1.0, work_steps / steps) if steps > 0.0 else 1.0
    return Cell(dynamic, StageKind.DYNAMIC, min(longest), steps, seconds, tasks)


def _length_s(cell: Cell, tpot_s: float) -> float:
    return cell.steps * tpot_s + cell.seconds


def _candidate_cells(dynamic: str, parts: Iterable[Cell], declared: Declared) -> Iterable[Cell]:
    longest: dict[str, Cell] = {}
    for part in parts:
        base = part.name if part.name in declared.dynamic_of else base_name(part.name)
        if declared.dynamic_of.get(base) == dynamic:
            known = longest.get(base)
            if known is None or (part.steps, part.seconds) > (known.steps, known.seconds):
                longest[base] = part
    for base, cell in longest.items():
        yield cell._replace(name=candidate_name(dynamic, base))


def _edges(workflow: Workflow, declared: Declared) -> Iterable[tuple[str, str]]:
    seen = dict.fromkeys((base_name(a), base_name(b)) for a, b in workflow.planned_edges)
    for before, after in seen:
        dynamic = declared.dynamic_of.get(before)
        if dynamic is not None and declared.dynamic_of.get(after) == dynamic:
            yield candidate_name(dynamic, before), candidate_name(dynamic, after)


# --- kept small: as bytes, by the numbers of columns ---


def pack(row: Row, columns: Mapping[str, int]) -> tuple[bytes, bytes]:
    """A row as bytes; what has no column is left out."""
    cells = b"".join(
        _CELL.pack(columns[c.name], c.level, c.steps, c.seconds, min(c.tasks, MAX_TOKENS))
        for c in row.cells
        if c.name in columns
    )
    edges = b"".join(
        _EDGE.pack(columns[a], columns[b]) for a, b in row.edges if a in columns and b in columns
    )
    return cells, edges


def unpack_cells(packed: bytes) -> list[tuple[int, float, float, float, float]]:
    """Column, level, steps, seconds, tasks of each. Raises `ValueError`."""
    try:
        return list(_CELL.iter_unpack(packed))
    except struct.error as error:
        raise ValueError(f"row: {error}") from error


def unpack_edges(packed: bytes) -> list[tuple[int, int]]:
    """Columns of each. Raises `ValueError`."""
    try:
        return list(_EDGE.iter_unpack(packed))
    except struct.error as error:
        raise ValueError(f"edges: {error}") from error
