"""The catalog: complete, honest about bad input, and the same as its documentation."""

from __future__ import annotations

import doctest
import importlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import policies
import predictors
from dispatcher import catalog
from dispatcher.catalog import build_policy, policy_entries, policy_table
from dispatcher.core.errors import BadParameterError, ConfigurationError, UnknownNameError
from dispatcher.core.types import CallId, CallSpec, InstanceId, InstanceSpec, WorkflowId
from dispatcher.registry import Params, PolicyServices, Registry, entry
from policies.augserve import AugServe
from policies.least_backlog import LeastBacklog
from policies.round_robin import RoundRobin
from policies.session_fcfs import SessionFcfs
from policies.token_budget import TokenBudget

ROOT = Path(catalog.__file__).parents[2]
SERVICES = PolicyServices(random.Random(0))


def algorithm_modules(package) -> set[str]:
    """Every module file of a package of algorithms."""
    folder = Path(package.__file__).parent
    files = folder.rglob("*.py")
    names = {".".join(f.relative_to(folder.parent).with_suffix("").parts) for f in files}
    return {name for name in names if not name.endswith("__init__")}


TRAINERS = """
import pkgutil, random
from dispatcher.registry import PolicyServices
services = PolicyServices(random.Random(0))
for one in dispatcher.catalog.trained_lengths().entries.values():
    pkgutil.resolve_name(one.factory({}, services).train)
for one in dispatcher.catalog.trained_stages().entries.values():
    pkgutil.resolve_name(one.factory({}, services).learn)
"""


def reached_by_the_catalog(also: str = "") -> set[str]:
    """What a fresh interpreter has loaded after importing the catalog (and doing more)."""
    code = f"import sys, dispatcher.catalog\n{also}\nprint(*sys.modules, sep='\\n')"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


def test_no_algorithm_file_is_missed():
    modules = algorithm_modules(policies) | algorithm_modules(predictors)
    assert "policies.urgency" in modules
    assert modules - reached_by_the_catalog(TRAINERS) == set()


def test_what_only_a_worker_needs_is_not_loaded_with_the_catalog():
    assert reached_by_the_catalog() & {"numpy", "sklearn", "quantile_forest"} == set()


def test_the_search_for_algorithm_files_sees_a_new_one(tmp_path):
    (tmp_path / "pkg").mkdir()
    for name in ("__init__", "known", "forgotten"):
        (tmp_path / "pkg" / f"{name}.py").touch()
    package = type(sys)("pkg")
    package.__file__ = str(tmp_path / "pkg" / "__init__.py")
    assert algorithm_modules(package) == {"pkg.known", "pkg.forgotten"}


@pytest.mark.parametrize(
    "module", sorted(algorithm_modules(policies) | {"dispatcher.catalog"}), ids=str
)
def test_every_policy_file_has_an_example_that_runs(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_policies_are_there():
    hexgen = ["vllm", "hexgen-flow", "rr-pq", "wb-fcfs", "vtc", "qlm"]
    tempo = ["tempo", "sarathi-fcfs", "plas", "sjf"]
    heteroserve = ["heteroserve", "uniform", "capacity-proportional", "latency-aware"]
    rest = ["length-oracle", "augserve", "infercept"]
    llmsched = ["llmsched", "fcfs-jobs", "fair", "sjf-jobs", "argus", "carbyne", "least-backlog"]
    assert list(policy_entries()) == [*hexgen, *tempo, *heteroserve, *rest, *llmsched]
    assert catalog.DEFAULT_POLICY in policy_entries()


@pytest.mark.parametrize("name", policy_entries())
def test_a_policy_says_what_it_is(name):
    known = policy_entries()[name]
    policy = build_policy(name, {}, SERVICES)
    assert policy.name == known.name == name
    assert known.summary.endswith(".")
    schema = known.params.model_json_schema()
    assert schema["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema
    assert set(policy.params) == set(schema["properties"])
    assert all(field.description for field in known.params.model_fields.values())
    # what a policy says of itself builds it again
    assert build_policy(name, policy.params, SERVICES).params == policy.params


@pytest.mark.parametrize("name", policy_entries())
def test_what_holds_is_what_is_built_however_it_was_asked_for(name):
    params = policy_entries()[name].params
    for form in ("settled", "paper") if "form" in params.model_fields else (None,):
        asked = {} if form is None else {"form": form}
        effective = params.model_validate(asked).effective()
        # said in full, whatever the form, it is the same
        again = params.model_validate(effective)
        assert again.effective() == effective
        assert set(effective) == set(params.model_fields)
        if form is not None:
            named = [n for n in params.model_fields if n in params.model_fields["form"].description]
            assert len(named) >= 3
            assert [n for n in named if effective[n] is None] == []


def test_the_forms_of_llmsched_and_heteroserve():
    def effective(name, **asked):
        return policy_entries()[name].params.model_validate(asked).effective()

    settled, paper = effective("llmsched"), effective("llmsched", form="paper", placement="speed")
    assert (settled["placement"], settled["measure"], settled["overdue_share"]) == (
        "speed",
        "work",
        0.02,
    )
    assert (paper["placement"], paper["measure"], paper["overdue_share"]) == ("speed", "path", 0.0)
    published = effective("heteroserve", form="paper")
    assert (published["feedback"], published["dampening"], published["memory"]) == (
        "requests",
        2.0,
        0.0,
    )


@pytest.mark.parametrize("name", policy_entries())
def test_policies_share_nothing_that_changes(name):
    one, two = build_policy(name, {}, SERVICES), build_policy(name, {}, SERVICES)
    assert one.routing is not two.routing


@pytest.mark.parametrize("module", ["dispatcher.registry", "dispatcher.wording"])
def test_examples_of_what_the_catalog_is_made_of_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(UnknownNameError, match=r"'hexgen'.*hexgen-flow.*least-backlog"):
        build_policy("hexgen", {}, SERVICES)


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("hexgen-flow", {"alpha": 1.5}, "alpha = 1.5.*less than or equal to 1"),
        ("hexgen-flow", {"alpha": "fast"}, "alpha = 'fast'.*'auto'"),
        ("hexgen-flow", {"alpha": float("nan")}, "alpha = nan"),
        ("hexgen-flow", {"alpha": True}, "alpha = True"),
        ("hexgen-flow", {"mode": "exact"}, "mode = 'exact'.*'settled', 'paper' or 'repo'"),
        ("hexgen-flow", {"scope": "call"}, "scope = 'call'"),
        ("rr-pq", {"shed_doomed": "yes"}, "shed_doomed = 'yes'.*boolean"),
        ("rr-pq", {"alpha": 0.5}, "alpha = 0.5.*no such parameter.*scope, shed_doomed"),
        ("vllm", {"alpha": 0.5}, "no such parameter.*affinity"),
        ("wb-fcfs", {"beta": 0}, "beta = 0.*greater than 0"),
        ("least-backlog", {"binding": 3}, "binding = 3"),
        ("vtc", {"routing": "random"}, "routing = 'random'.*'round-robin' or 'least-backlog'"),
        ("qlm", {"slo_ratio": 1.0}, "slo_ratio = 1.0.*greater than 1"),
        ("tempo", {"reading": "both"}, "reading = 'both'.*'definition', 'printed' or 'slack'"),
        ("tempo", {"quantile": 1.0}, "quantile = 1.0.*less than 1"),
        ("tempo", {"reserve": 1.0}, "reserve = 1.0.*less than 1"),
        ("tempo", {"window": 0}, "window = 0.*greater than or equal to 1"),
        ("tempo", {"routing": "late"}, "routing = 'late'.*'least-backlog-late'"),
        ("plas", {"level_tokens": 0.0}, "level_tokens = 0.0.*greater than 0"),
        ("sjf", {"quantile": 0.0}, "quantile = 0.0.*greater than 0"),
        ("vllm", {"kv_share": 1.5}, "kv_share = 1.5.*less than or equal to 1"),
        ("augserve", {"aging": "none"}, "aging = 'none'.*'ratio' or 'linear'"),
        ("augserve", {"costs": "paper"}, "costs = 'paper'.*'exact' or 'printed'"),
        ("augserve", {"promote_share": 0.0}, "promote_share = 0.0.*greater than 0"),
        ("augserve", {"beta_low": 2.0}, "beta_low = 2.0 is above beta_high = 1.25"),
        ("infercept", {"two_stage": False}, "no such parameter.*most_reserved"),
    ],
)
def test_a_bad_parameter_says_what_where_and_what_was_expected(name, params, says):
    with pytest.raises(BadParameterError, match=f"^{name}: .*{says}"):
        build_policy(name, params, SERVICES)


def test_all_bad_parameters_are_named_at_once():
    with pytest.raises(BadParameterError, match=r"alpha = 2.*mode = 'x'.*gamma = 1"):
        build_policy("hexgen-flow", {"alpha": 2, "mode": "x", "gamma": 1}, SERVICES)


@pytest.mark.parametrize("name", ["hexgen-flow", "wb-fcfs"])
def test_alpha_auto_starts_at_zero_and_is_the_tuners(name):
    policy = build_policy(name, {"alpha": "auto"}, SERVICES)
    assert policy.routing.alpha == 0.0
    assert policy.tunable.tune("alpha", 0.4)
    assert policy.routing.alpha == 0.4


@pytest.mark.parametrize("name", ["hexgen-flow", "wb-fcfs"])
def test_an_alpha_asked_for_by_value_is_nobodys_to_tune(name):
    policy = build_policy(name, {"alpha": 0.25}, SERVICES)
    assert policy.routing.alpha == 0.25
    assert policy.tunable is None


def test_parameters_reach_the_parts():
    params = {"mode": "paper", "beta": 3.0, "scope": "workflow", "shed_doomed": True}
    policy = build_policy("hexgen-flow", params, SERVICES)
    assert (policy.routing.mode, policy.routing.beta) == ("paper", 3.0)
    assert (policy.ordering.scope, policy.ordering.shed_doomed) == ("workflow", True)
    assert not build_policy("least-backlog", {"binding": "early"}, SERVICES).routing.late_binding
    assert build_policy("qlm", {"slo_ratio": 2.0}, SERVICES).ordering.slo_ratio == 2.0
    assert build_policy("sjf", {"quantile": None}, SERVICES).ordering.quantile is None
    plas = build_policy("plas", {"level_tokens": 100.0, "promote_ratio": None}, SERVICES)
    assert (plas.ordering.level_tokens, plas.ordering.promote_ratio) == (100.0, None)


def test_parameters_reach_the_parts_of_tempo():
    params = {
        "reading": "slack", "quantile": 0.9, "scope": "workflow", "output_weight": 8.0,
        "penalty": 2.0, "accrued": True, "window": 3, "reserve": 0.25, "overdue_s": 5.0,
        "overdue_share": 0.02,
        "fairness": 0.5, "preemption": True, "routing": "least-backlog-late", "tick_s": 1.0,
    }  # fmt: skip
    policy = build_policy("tempo", params, SERVICES)
    ordering = policy.ordering
    assert (ordering.reading, ordering.quantile, ordering.scope) == ("slack", 0.9, "workflow")
    assert (ordering.weights.output, ordering.penalty, ordering.accrued) == (8.0, 2.0, True)
    assert (ordering.window, ordering.overdue_s, ordering.fairness) == (3, 5.0, 0.5)
    admission = policy.admission
    assert (admission.share, admission.overdue_share, policy.tick_s) == (0.25, 0.02, 1.0)
    assert policy.preemption is not None
    assert policy.routing.late_binding
    plain = build_policy("tempo", {"reserve": 0.0, "routing": "round-robin"}, SERVICES)
    assert plain.admission.reserved(64) == 0
    assert plain.preemption is None
    assert isinstance(plain.routing, RoundRobin)


def test_parameters_reach_the_parts_of_augserve():
    params = {
        "affinity": 0.0, "swap_tokens": 300.0, "kv_share": 0.8, "most_reserved": 0.1,
        "batch_tokens": 512.0, "beta_low": 0.5, "beta_high": 2.0, "gamma": 0.5,
        "costs": "printed", "recompute": True, "strict": True, "quantile": 0.9, "aging": "linear",
        "tau_s": 7.0, "alpha": 3.0, "promote_s": 9.0, "promote_share": 0.5, "tick_s": 1.0,
    }  # fmt: skip
    policy = build_policy("augserve", params, SERVICES)
    ordering, admission = policy.ordering, policy.admission
    assert (ordering.value.form, ordering.value.recompute, ordering.strict) == (
        "printed", True, True,
    )  # fmt: skip
    assert (ordering.quantile, ordering.aging, ordering.batch_tokens) == (0.9, "linear", 512.0)
    assert (ordering.tau_s, ordering.alpha, ordering.promote_s) == (7.0, 3.0, 9.0)
    assert (ordering.promote_share, policy.tick_s) == (0.5, 1.0)
    assert (admission.share, admission.most_reserved, admission.target_tokens) == (0.8, 0.1, 512.0)
    assert (admission.beta_low, admission.beta_high, admission.gamma) == (0.5, 2.0, 0.5)
    # one choice of handling for order, room and way
    assert ordering.handling is admission.handling
    assert ordering.handling.swap_tokens == 300.0
    assert policy.reads_gauges


def test_either_half_of_augserve_can_be_left_out():
    batching = build_policy("augserve", {"two_stage": False}, SERVICES)
    ordering = build_policy("augserve", {"token_budget": False}, SERVICES)
    assert isinstance(batching.ordering, SessionFcfs)
    assert isinstance(batching.admission, TokenBudget)
    assert isinstance(ordering.ordering, AugServe)
    assert not isinstance(ordering.admission, TokenBudget)
    assert not ordering.reads_gauges


SEATED = [
    "vllm", "hexgen-flow", "rr-pq", "wb-fcfs", "vtc", "qlm", "sarathi-fcfs", "plas", "sjf",
    "least-backlog",
]  # fmt: skip


@pytest.mark.parametrize("name", SEATED)
def test_policies_that_admit_by_seats_can_have_a_token_budget(name):
    budget = build_policy(name, {"kv_share": 0.7}, SERVICES)
    assert isinstance(budget.admission, TokenBudget)
    assert (budget.admission.share, budget.admission.target_tokens) == (0.7, None)
    assert budget.reads_gauges
    seats = build_policy(name, {}, SERVICES)
    assert not isinstance(seats.admission, TokenBudget)
    assert not seats.reads_gauges
    assert budget.tick_s == seats.tick_s
    assert (budget.tunable is None) == (seats.tunable is None)


@pytest.mark.parametrize("name", ["vtc", "qlm", "sarathi-fcfs", "plas", "sjf"])
def test_a_baseline_can_be_compared_under_either_dispatcher(name):
    assert isinstance(build_policy(name, {}, SERVICES).routing, RoundRobin)
    balanced = build_policy(name, {"routing": "least-backlog"}, SERVICES).routing
    assert isinstance(balanced, LeastBacklog)
    assert not balanced.late_binding


def test_what_policies_observe_is_shared_by_those_of_one_driver():
    services = PolicyServices(random.Random(0))
    seen = catalog.observers(services)
    first, second = (build_policy("vtc", {}, services).ordering.counters for _ in range(2))
    assert first is second
    assert first in seen
    assert catalog.observers(services) == seen
    assert first not in catalog.observers(PolicyServices(random.Random(0)))


def test_every_observer_of_a_policy_is_fed():
    services = PolicyServices(random.Random(0))
    fed = catalog.observers(services)
    for name in policy_entries():
        build_policy(name, {}, services)
    assert set(services.observers) == set(fed)


def test_a_name_given_twice_raises():
    class Nothing(Params):
        pass

    one = entry("twin", "One.", None, Nothing, lambda params, services: 1)
    two = entry("twin", "Two.", None, Nothing, lambda params, services: 2)
    assert Registry("thing", [one]).build("twin", {}, SERVICES) == 1
    with pytest.raises(ConfigurationError, match="'twin'"):
        Registry("thing", [one, two])


def test_the_default_predictors_answer():
    spec = CallSpec(CallId("c"), WorkflowId("w"), "m", prompt_tokens=10)
    lengths = catalog.length_predictors().build(catalog.DEFAULT_LENGTH_PREDICTOR, {}, SERVICES)
    assert lengths.predict(spec).expected_tokens == 256.0
    costs = catalog.cost_models().build(catalog.DEFAULT_COST_MODEL, {}, SERVICES)
    costs.add_instance(InstanceSpec(InstanceId("i"), frozenset({"m"})))
    assert costs.tpot_s(InstanceId("i"), 1.0, 100.0) > 0.0
    prompts = catalog.prompt_counters().build(catalog.DEFAULT_PROMPT_COUNTER, {}, SERVICES)
    assert prompts.estimate("m", 4_000) > 1


@pytest.mark.parametrize(
    ("kind", "name", "params"),
    [
        (catalog.length_predictors, "rolling-quantiles", {"window": 0}),
        (catalog.cost_models, "linear", {"memory_samples": 1.0}),
        (catalog.prompt_counters, "bytes", {"unknown": 1}),
    ],
)
def test_predictors_refuse_bad_parameters_too(kind, name, params):
    with pytest.raises(BadParameterError, match=f"^{name}: "):
        kind().build(name, params, SERVICES)
    with pytest.raises(UnknownNameError):
        kind().build("no such name", {}, SERVICES)


def test_the_table_in_the_documentation_is_the_catalogs():
    assert policy_table() in (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_table_tells_what_a_choice_may_be():
    table = policy_table()
    assert "`placement` = `None` (or `speed`, `count`): a call goes" in table
    assert "`alpha` = `auto`: " in table
    assert "`uncertainty` = `True`: take" in table


def test_the_table_can_be_printed():
    command = [sys.executable, "-m", "dispatcher.catalog"]
    assert subprocess.check_output(command, text=True, cwd=ROOT) == policy_table()
