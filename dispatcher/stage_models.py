"""Application models fitted whole: finished workflows in, a model out, with a library or without.

A gateway runs `fit_stages` in its worker process; a simulation, in between (`stage_fitter`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from workflows.stage_profiles import Fitter, StageModel

if TYPE_CHECKING:
    from workflows.fitting import FitJob, LearnNetwork


class StageFit(NamedTuple):
    """What to fit, and how."""

    job: FitJob
    learner: str | None
    """Where what learns networks is found, `package.module:function`: imported only where one is
    learned. `None`: stages tell nothing of each other."""


def fit_stages(asked: StageFit) -> Mapping[str, Any]:
    """A model, as `workflows.fitting.fit` gives it.

    Where the library is not installed, or its network is too large to ask, stages are taken as
    independent of each other, and the model says so (`why`).

    Raises:
        ValueError: Nothing can be learned from that.
    """
    # arrays, only where a model is fitted
    from workflows.fitting import fit  # noqa: PLC0415
    from workflows.stage_network import NetworkError  # noqa: PLC0415
    from workflows.stage_profile import check_model  # noqa: PLC0415

    independent = StageModel.INDEPENDENT.value
    if asked.learner is None:
        return fit(asked.job, None, independent)
    learn = cast("LearnNetwork", pkgutil.resolve_name(asked.learner))
    try:
        model = fit(asked.job, learn, StageModel.BAYES.value)
        check_model(model)
        return model
    except (NetworkError, RuntimeError) as error:
        return {**fit(asked.job, None, independent), "why": str(error)}


def stage_fitter(learner: str | None) -> Fitter:
    """Fits at once, where it is asked: for simulations.

    Args:
        learner: As in `StageFit`.
    """

    def fitter(job: FitJob) -> Mapping[str, Any]:
        return fit_stages(StageFit(job, learner))

    return fitter
