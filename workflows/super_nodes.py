"""Workflows as chains of super-nodes: visits on one level side by side are one (Tempo, 4.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from workflows.graph_match import Graph, Weights
from workflows.model import Visit, Workflow

_MAX_NAMES = 4


class _SuperNode(NamedTuple):
    input_tokens: int
    output_tokens: int
    longest: Visit
    names: tuple[str, ...]


def graph_of(workflow: Workflow) -> Graph | None:
    """What a workflow that ended well was; `None` where not all of it was seen or remembered."""
    if not _whole(workflow):
        return None
    nodes = _super_nodes(visit for visit in workflow.visits if visit.succeeded)
    if not nodes:
        return None
    return Graph(
        stages=tuple(_name(node.names) for node in nodes),
        input_tokens=tuple(float(node.input_tokens) for node in nodes),
        output_tokens=tuple(float(node.output_tokens) for node in nodes),
        prompt_tokens=tuple(float(node.longest.prompt_tokens) for node in nodes),
        longest_output_tokens=tuple(float(node.longest.output_tokens) for node in nodes),
    )


def weights_so_far(workflow: Workflow, present: Visit | None) -> Weights | None:
    """What is known of a running workflow, to match it with finished ones.

    Args:
        workflow: It runs.
        present: A visit that runs: what ended on earlier levels, and the edge into this one.
            `None`: between two stages, what has ended.

    Returns:
        `None` where not all of it was seen or remembered.
    """
    if not _whole(workflow):
        return None
    before = [
        visit
        for visit in workflow.visits
        if visit.succeeded and (present is None or visit.level < present.level)
    ]
    nodes = _super_nodes(before)
    edges = [node.input_tokens for node in nodes]
    if present is not None:
        beside = (v for v in workflow.visits if v.level == present.level and v.members)
        edges.append(sum(_input_tokens_expected(visit) for visit in beside))
    return Weights.of(edges, [node.output_tokens for node in nodes])


def _whole(workflow: Workflow) -> bool:
    return not workflow.restored and len(workflow.visits) != workflow.visits.maxlen


def _super_nodes(visits: Iterable[Visit]) -> list[_SuperNode]:
    by_level: dict[int, _SuperNode] = {}
    for visit in visits:
        input_tokens, output_tokens = visit.total_input_tokens, visit.total_output_tokens
        longest = visit
        names: tuple[str, ...] = (visit.stage.name,)
        known = by_level.get(visit.level)
        if known is not None:
            input_tokens += known.input_tokens
            output_tokens += known.output_tokens
            longest = max(known.longest, visit, key=_length)
            names = known.names + names
        by_level[visit.level] = _SuperNode(input_tokens, output_tokens, longest, names)
    return [by_level[level] for level in sorted(by_level)]


def _length(visit: Visit) -> tuple[int, int]:
    return visit.output_tokens, visit.prompt_tokens


def _input_tokens_expected(visit: Visit) -> int:
    """What its members read together; those announced but not here yet read as much as the rest."""
    if visit.declared_width > visit.members:
        return visit.asked_tokens * visit.declared_width // visit.members
    return visit.asked_tokens


def _name(names: tuple[str, ...]) -> str:
    several = sorted(set(names))
    more = "+..." if len(several) > _MAX_NAMES else ""
    return "+".join(several[:_MAX_NAMES]) + more
