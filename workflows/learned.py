"""What finished workflows and tools have taught, whatever uses it: a switch begins warm."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.workflow_types import WorkflowRecord
from workflows.budgets import Budgets
from workflows.durations import Durations
from workflows.ending import lessons
from workflows.graph_history import GraphHistory, NewIndex
from workflows.model import Workflow
from workflows.settings import Structure, TrackerSettings
from workflows.stage_profiles import StageProfiles
from workflows.structure import GraphStructure
from workflows.super_nodes import graph_of
from workflows.templates import Templates
from workflows.tools import ToolGaps


class LearnedStructure:
    """Templates, graphs and tool gaps; all of them learn, whichever is asked.

    Args:
        settings: Bounds, and which structure is asked.
        templates: To learn on with; `None`: anew.
    """

    def __init__(self, settings: TrackerSettings, templates: Templates | None = None) -> None:
        self._settings = settings
        self.templates = templates or Templates(max_stages=settings.max_stages)
        self.graphs = GraphHistory(settings.graphs, _index(settings.structure))
        self.tools = ToolGaps(settings.max_tools)
        self.durations = Durations()
        self.profiles = StageProfiles(settings.stage_models)

    def budgets(self) -> Budgets:
        """Budgets by the structure that is asked."""
        settings, graphs = self._settings, None
        if settings.structure is Structure.GRAPHS:
            graphs = GraphStructure(self.graphs, settings.graph_matches)
        return Budgets(
            self.templates,
            settings.prior_output_tokens,
            graphs,
            foresee=settings.structure is not Structure.NONE,
        )

    def learn(self, workflow: Workflow, record: WorkflowRecord, now_s: float) -> None:
        """Take one that has ended; it teaches where it went well and was seen whole."""
        visits = lessons(workflow)
        if visits:
            self.durations.learn(workflow.application, record.duration_s)
            self.profiles.learn(workflow, now_s)
        self.templates.learn(workflow.application, visits)
        graph = graph_of(workflow) if visits else None
        if graph is not None:
            self.graphs.learn(workflow.application, graph)

    def stats(self) -> dict[str, object]:
        """What is asked and how much is known; JSON-ready."""
        return {
            "structure": self._settings.structure.value,
            "graphs": self.graphs.stats(),
            "tools": self.tools.stats(),
            "stage_models": self.profiles.stats(),
        }

    def dump(self) -> dict[str, object]:
        """What was learned, as plain JSON values."""
        return {
            "templates": self.templates.dump(),
            "graphs": self.graphs.dump(),
            "tools": self.tools.dump(),
            "tool_windows": self.tools.dump_windows(),
            "durations": self.durations.dump(),
            "stage_models": self.profiles.dump(),
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Replace what was learned by what `dump` gave, now or before there were graphs.

        Raises:
            KeyError, ValueError: The state does not have the shape that `dump` gives; nothing has
                changed then.
        """
        templates, tools = _objects(state["templates"], state["tools"])
        graphs, windows = _objects(state.get("graphs", {}), state.get("tool_windows", {}))
        durations, models = _objects(state.get("durations", {}), state.get("stage_models", {}))
        fresh = GraphHistory(self._settings.graphs, _index(self._settings.structure))
        fresh_durations = Durations()
        fresh_profiles = StageProfiles(self._settings.stage_models)
        try:
            fresh.load(graphs)
            fresh_durations.load(durations)
            fresh_profiles.load(models)
            ToolGaps(self._settings.max_tools).load(tools, windows)
            self.templates.load(templates)
        except TypeError as error:
            raise ValueError(f"snapshot: not as expected ({error})") from error
        self.tools.load(tools, windows)
        self.graphs.adopt(fresh)
        self.durations = fresh_durations
        self.profiles.adopt(fresh_profiles)


def _objects(*states: object) -> list[dict[str, object]]:
    objects = []
    for state in states:
        if not isinstance(state, dict):
            raise ValueError("snapshot: expected objects of what was learned")
        objects.append(state)
    return objects


def _index(structure: Structure) -> NewIndex | None:
    """Arrays are loaded only where graphs are asked: most gateways go without."""
    if structure is not Structure.GRAPHS:
        return None
    from workflows.graph_index import GraphIndex  # noqa: PLC0415

    return GraphIndex
