"""Finds finished workflows like a running one, and hears what they say (Tempo, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatcher.core.ports import WorkSeconds
from workflows.graph_history import GraphHistory
from workflows.graph_match import Match
from workflows.model import Visit, Workflow
from workflows.super_nodes import weights_so_far


def mean_over(matches: Sequence[Match], value: Callable[[Match], float]) -> float:
    """What the matches say on average, each as loud as it is alike; at least one match."""
    if len(matches) == 1:
        return value(matches[0])
    loudness = [match.similarity for match in matches]
    if not any(loudness):
        loudness = [1.0] * len(matches)
    said = sum(w * value(match) for w, match in zip(loudness, matches, strict=True))
    return said / sum(loudness)


def share_over(matches: Sequence[Match], work_s: WorkSeconds) -> float:
    """The present stage's part of what remains, in [0, 1]; at least one match.

    Of one match it is `Match.share`. Of several it is their mean stage over their mean remainder.
    The mean of their shares is further off where workflows differ in length: of a short one every
    stage is a large share.
    """
    if len(matches) == 1:
        return matches[0].share(work_s)
    present_s = mean_over(matches, lambda match: match.present_s(work_s))
    remaining_s = present_s + mean_over(matches, lambda match: match.tail_s(work_s))
    if remaining_s <= 0:
        return mean_over(matches, lambda match: match.share(work_s))
    return present_s / remaining_s


class GraphStructure:
    """Matches of running workflows.

    Args:
        history: What to match with.
        best: Matches over which a prediction is averaged, at least 1; the paper takes 1.
    """

    def __init__(self, history: GraphHistory, best: int = 1) -> None:
        self._history = history
        self._best = best

    def at(self, workflow: Workflow, visit: Visit) -> Sequence[Match]:
        """Matches at a visit that runs, kept there until something new is known of it."""
        asked = (workflow.version, visit.members, visit.asked_tokens, visit.declared_width)
        if visit.matched_for != asked:
            visit.matched_for, visit.matches = asked, self._find(workflow, visit)
        return visit.matches

    def next(self, workflow: Workflow) -> Sequence[Match]:
        """Matches between two stages: their present stage is the one to come."""
        return self._find(workflow, None)

    def _find(self, workflow: Workflow, visit: Visit | None) -> Sequence[Match]:
        running = weights_so_far(workflow, visit)
        if running is None:
            return ()
        return tuple(self._history.match(workflow.application, running, self._best))
