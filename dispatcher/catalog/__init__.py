"""The one registry: every algorithm by name, with its parameters and its paper.

Only the modules of this package import algorithms: one per paper with its policies, `policies`,
which joins them, and `predictors`. An entry is a line in a table there, not a decorator that runs
on import: what is registered can be read in one place, and a name given twice raises.

`python -m dispatcher.catalog` prints the table of docs/policies.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.catalog.policies import OBSERVERS, POLICIES
from dispatcher.catalog.predictors import (
    DEFAULT_COST_MODEL,
    DEFAULT_LENGTH_PREDICTOR,
    DEFAULT_PROMPT_COUNTER,
    DEFAULT_TRAINED_LENGTHS,
    DEFAULT_TRAINED_STAGES,
    cost_models,
    length_predictors,
    prompt_counters,
    trained_lengths,
    trained_stages,
)
from dispatcher.core.ports import Observer, Policy
from dispatcher.registry import Entry, PolicyServices, allowed

__all__ = [
    "DEFAULT_COST_MODEL",
    "DEFAULT_LENGTH_PREDICTOR",
    "DEFAULT_POLICY",
    "DEFAULT_PROMPT_COUNTER",
    "DEFAULT_TRAINED_LENGTHS",
    "DEFAULT_TRAINED_STAGES",
    "build_policy",
    "cost_models",
    "length_predictors",
    "observers",
    "parameters",
    "policy_entries",
    "policy_table",
    "prompt_counters",
    "trained_lengths",
    "trained_stages",
]

DEFAULT_POLICY = "hexgen-flow"

PolicyEntry = Entry[Policy]

# --- policies -----------------------------------------------------------------------------------


def policy_entries() -> Mapping[str, PolicyEntry]:
    """All policies by name, in the order in which to show them."""
    return POLICIES.entries


def build_policy(name: str, params: Mapping[str, object], services: PolicyServices) -> Policy:
    """A new policy.

    Args:
        name: As in `policy_entries()`.
        params: Raw, as configuration or a request body gives them; what is absent has a default.
        services: What it may draw on.

    Raises:
        UnknownNameError: no such policy; the message lists those there are.
        BadParameterError: an unknown parameter, or a value outside its schema.

    Example:
        >>> import random
        >>> services = PolicyServices(random=random.Random(0))
        >>> build_policy("hexgen-flow", {"alpha": 0.2}, services).params["alpha"]
        0.2
        >>> build_policy("vllm", {"alpha": 2.0}, services)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        dispatcher.core.errors.BadParameterError: vllm: alpha = 2.0: no such parameter (known: ...)
    """
    return POLICIES.build(name, params, services)


def observers(services: PolicyServices) -> tuple[Observer, ...]:
    """State that policies built with these services read: for the coordinator, which feeds it.

    It runs whatever policy is active, so that a switch starts warm.

    Example:
        >>> import random
        >>> services = PolicyServices(random=random.Random(0))
        >>> policy = build_policy("vtc", {}, services)
        >>> policy.ordering.counters in observers(services)
        True
    """
    return tuple(services.observer(kind) for kind in OBSERVERS)


# --- as a table ---------------------------------------------------------------------------------


def parameters(policy: PolicyEntry, quote: str = "") -> list[str]:
    """Each parameter: its default, what else it may be where that is a choice, what it is.

    Example:
        >>> parameters(policy_entries()["argus"])[-1]  # doctest: +ELLIPSIS
        'level = depth (or height): what ranks first: ... the longest path after it'
    """
    told = []
    for name, field in policy.params.model_fields.items():
        others = [value for value in allowed(field) if value != field.default]
        choice = " (or " + ", ".join(f"{quote}{each}{quote}" for each in others) + ")"
        default = f"{quote}{name}{quote} = {quote}{field.default}{quote}"
        told.append(f"{default}{choice if others else ''}: {field.description}")
    return told


def policy_table() -> str:
    """The policies as a Markdown table, one line each, ending with a newline."""
    lines = ["| policy | does | from | parameters |", "|---|---|---|---|"]
    for policy in policy_entries().values():
        params = "<br>".join(parameters(policy, "`"))
        cells = (f"`{policy.name}`", policy.summary, policy.paper or "-", params or "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
