"""Every policy of the catalog keeps what the ports promise; every check can fail."""

from __future__ import annotations

import random
from functools import partial

import pytest
from broken_policies import BROKEN, sound
from conformance_error import ConformanceError
from policy_kit import POLICY_CHECKS

from dispatcher.catalog import PolicyServices, build_policy, policy_entries

VARIANTS = [
    *((name, {}) for name in policy_entries()),
    ("hexgen-flow", {"alpha": 0.3, "scope": "workflow"}),
    ("hexgen-flow", {"alpha": 1.0, "shed_doomed": True}),
    ("hexgen-flow", {"scope": "workflow", "shed_doomed": True}),
    ("wb-fcfs", {"alpha": 0.4, "mode": "paper", "beta": 2.0}),
    ("wb-fcfs", {"alpha": 0.4, "mode": "repo"}),
    ("vtc", {"routing": "least-backlog"}),
    ("qlm", {"routing": "least-backlog", "slo_ratio": 4.0}),
    ("least-backlog", {"binding": "early"}),
    ("tempo", {"reading": "printed", "scope": "workflow", "accrued": True, "quantile": None}),
    ("tempo", {"reading": "slack", "reserve": 0.5, "overdue_s": 5.0, "preemption": True}),
    ("tempo", {"reserve": 0.0, "window": 2, "routing": "round-robin"}),
    ("tempo", {"fairness": 0.4, "routing": "least-backlog-late"}),
    ("tempo", {"fairness": 1.0, "window": 1}),
    ("plas", {"routing": "least-backlog", "promote_ratio": None}),
    ("sjf", {"routing": "least-backlog", "quantile": None}),
    ("augserve", {"costs": "printed", "aging": "linear", "strict": False, "quantile": 0.9}),
    ("augserve", {"two_stage": False, "token_budget": False, "routing": "round-robin"}),
    ("augserve", {"promote_s": None, "recompute": True, "kv_share": None, "affinity": 0.0}),
    ("infercept", {"kv_share": None}),
    ("llmsched", {"form": "paper", "epsilon": 1.0, "sample_ratio": 0.1}),
    ("llmsched", {"uncertainty": False, "order": "gittins", "overdue_s": 5.0}),
    ("llmsched", {"profile": "mean", "overdue_share": 0.5, "measure": "work"}),
    ("llmsched", {"profile": "stages", "epsilon": 0.5, "affinity": 1.0, "kv_share": 0.9}),
    ("argus", {"level": "height", "placement": "count"}),
    ("carbyne", {"profile": "network"}),
    ("vllm", {"kv_share": 0.9, "affinity": 1.0}),
    ("hexgen-flow", {"kv_share": 0.5, "affinity": 2.0}),
]


def make(name, params):
    return build_policy(name, params, PolicyServices(random.Random(0)))


@pytest.mark.parametrize("check", POLICY_CHECKS.values(), ids=POLICY_CHECKS)
@pytest.mark.parametrize(("name", "params"), VARIANTS, ids=str)
def test_a_catalog_policy_conforms(name, params, check):
    check(partial(make, name, params))


@pytest.mark.parametrize("check", POLICY_CHECKS.values(), ids=POLICY_CHECKS)
def test_the_policy_that_is_spoiled_below_is_sound(check):
    check(sound)


@pytest.mark.parametrize(
    ("name", "broken"),
    [(name, broken) for name, all_broken in BROKEN.items() for broken in all_broken],
)
def test_a_check_refuses_what_is_broken(name, broken):
    with pytest.raises(ConformanceError):
        POLICY_CHECKS[name](broken)


def test_every_check_is_known_to_refuse_something():
    assert set(BROKEN) == set(POLICY_CHECKS)
    assert all(BROKEN.values())
