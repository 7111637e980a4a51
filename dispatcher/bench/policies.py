"""Policies to compare, as they are written: `vllm,hexgen-flow:alpha=0.2:scope=workflow`."""

from __future__ import annotations

import random
from dataclasses import dataclass

import yaml

from dispatcher import catalog
from dispatcher.core.errors import ConfigurationError
from dispatcher.registry import PolicyServices


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """One policy with its parameters.

    Raises:
        UnknownNameError: No such policy.
        BadParameterError: No such parameter, or a value it cannot have.
    """

    label: str
    """How it was written."""
    name: str
    """In the catalog."""
    params: tuple[tuple[str, str | float | bool], ...] = ()

    def __post_init__(self) -> None:
        services = PolicyServices(random=random.Random(0))  # noqa: S311 - only tried
        catalog.build_policy(self.name, dict(self.params), services)


def policies_named(text: str) -> list[PolicyChoice]:
    """Read a list of policies.

    Raises:
        ConfigurationError: It names none, one twice, or what is in no catalog.

    Example:
        >>> [choice.params for choice in policies_named("vllm,wb-fcfs:alpha=0.2")]
        [(), (('alpha', 0.2),)]
    """
    choices = [_choice(part.strip()) for part in text.split(",") if part.strip()]
    labels = [choice.label for choice in choices]
    if not choices or len(set(labels)) < len(labels):
        raise ConfigurationError(f"policies: expected different names, not {text!r}")
    return choices


def _choice(label: str) -> PolicyChoice:
    name, *settings = label.split(":")
    params: list[tuple[str, str | float | bool]] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigurationError(
                f"policy {label!r}: expected NAME:PARAMETER=VALUE, found {setting!r}"
            )
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = value
        params.append((key, _as_number(parsed) if not isinstance(parsed, str) else parsed))
    return PolicyChoice(label, name, tuple(params))


def _as_number(value: object) -> str | float | bool:
    if isinstance(value, bool | float | int):
        return value
    return str(value)
