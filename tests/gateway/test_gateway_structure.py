"""How structure is predicted, as configured and as shown."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dispatcher.config.settings import Settings
from dispatcher.gateway.tracking import tracker_settings
from workflows.settings import Structure, TrackerSettings
from workflows.tracker import Tracker


def test_templates_unless_asked_otherwise() -> None:
    settings = tracker_settings(Settings())
    assert settings.structure is Structure.TEMPLATES
    assert settings.graph_matches == TrackerSettings().graph_matches == 1


def test_graphs_are_configured() -> None:
    predictors = {"structure": "graphs", "graph_matches": 5}
    settings = tracker_settings(Settings.model_validate({"predictors": predictors}))
    assert (settings.structure, settings.graph_matches) == (Structure.GRAPHS, 5)
    assert Tracker(settings).stats()["structure"] == "graphs"


@pytest.mark.parametrize("predictors", [{"structure": "oracle"}, {"graph_matches": 0}])
def test_what_is_no_structure_is_refused(predictors: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"predictors": predictors})
