"""How long a job still takes, as far as a policy may know: what LLMSched and its baselines go by.

LLMSched, section IV-D: "the mean of job's duration distribution"; its ablation without a Bayesian
network "uses the average historical job duration", as SJF does (section V).

`network`   what the application's model says, given what has ended of the job
            (`FleetView.remaining`); where there is no model, what its budgets predict
`stages`    the mean durations of the stages that are left, whatever those took that have ended
`mean`      the mean duration of the application's jobs, however far this one is

Of these, either the time along the critical path counts, or (`by_work`) the work: what runs side by
side added up, and the interval in proportion.

Settled: a workflow whose application has not finished one yet has no mean; what `stages` says
stands in.
"""

from __future__ import annotations

from typing import Literal

from dispatcher.core.views import CallView, FleetView
from dispatcher.core.workflow_types import Remaining

Profile = Literal["network", "stages", "mean"]

Measure = Literal["path", "work"]


def estimate(call: CallView, fleet: FleetView, profile: Profile) -> Remaining:
    """What is left of the call's workflow.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> call = Fake(spec=Fake(workflow_id="w"), placement=Fake(application="a"))
        >>> fleet = Fake(application_mean_s=lambda application: 12.0)
        >>> estimate(call, fleet, "mean").mean_s
        12.0
    """
    if profile == "network":
        known = fleet.remaining(call.spec.workflow_id)
        if known is not None:
            return known
    if profile == "mean":
        mean_s = fleet.application_mean_s(call.placement.application)
        if mean_s is not None:
            return Remaining(mean_s, mean_s, mean_s, mean_s, known=False)
    left_s = max(0.0, call.budget.remaining_work_s)
    return Remaining(left_s, left_s, left_s, left_s, known=False)


def by_work(left: Remaining) -> Remaining:
    """The same with work for time.

    Example:
        >>> by_work(Remaining(mean_s=4.0, low_s=2.0, high_s=9.0, work_s=12.0, known=True))
        Remaining(mean_s=12.0, low_s=6.0, high_s=27.0, work_s=12.0, known=True)
    """
    ratio = left.work_s / left.mean_s if left.mean_s > 0.0 else 1.0
    low_s, high_s = left.low_s * ratio, left.high_s * ratio
    return Remaining(left.mean_s * ratio, low_s, high_s, left.work_s, left.known)
