"""From a YAML file and the environment to settings, with errors that say where and what."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from dispatcher.catalog import build_policy
from dispatcher.config.mistakes import explain
from dispatcher.config.settings import PolicySettings, Settings
from dispatcher.config.sources import Sources
from dispatcher.core.errors import BadParameterError, ConfigurationError, UnknownNameError
from dispatcher.registry import PolicyServices

RELOADABLE = frozenset({"engines", "policy", "tenants"})
"""Sections that may change while the gateway runs."""


def load_settings(
    path: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Read settings.

    Args:
        path: YAML file; none: defaults and the environment.
        overrides: Keys by section that win over file and environment (command-line options).

    Raises:
        ConfigurationError: The file cannot be read, or a key or a value is wrong; says which, and
            shows no key or token.
    """
    sources = Sources(path)
    sources.add_environment(os.environ, list(Settings.model_fields))
    sources.add_options(overrides or {})
    mistakes = _policy_mistakes(sources)
    try:
        settings = Settings.model_validate(sources.data)
    except ValidationError as error:
        # not chained: it holds the whole input, keys included
        raise ConfigurationError("\n".join([explain(error, sources), *mistakes])) from None
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    return settings


def _policy_mistakes(sources: Sources) -> list[str]:
    """Build it once: its name and parameters are the catalog's to judge."""
    try:
        policy = PolicySettings.model_validate(sources.data.get("policy", {}))
    except ValidationError:
        return []  # told with the rest of what does not fit
    try:
        services = PolicyServices(random=random.Random(0))  # noqa: S311 - nothing is drawn to last
        build_policy(policy.name, policy.params, services)
    except UnknownNameError as error:
        at = ("policy", "name")
        return [f"{sources.origin(at)}: policy.name: {error}"]
    except BadParameterError as error:
        at = ("policy", "params")
        if not error.mistakes:
            return [f"{sources.origin(at)}: policy.params: {error}"]
        return [
            f"{sources.origin((*at, name))}: policy.params.{name}: {policy.name}: {what}"
            for name, what in error.mistakes.items()
        ]
    return []


def reload_settings(
    path: Path | None, running: Settings, overrides: Mapping[str, object] | None = None
) -> tuple[Settings, tuple[str, ...]]:
    """Read settings again while the gateway runs.

    Returns:
        The running settings with the reloadable sections taken from the file, and the names of
        the sections that changed but cannot be taken up without a restart.

    Raises:
        ConfigurationError: As `load_settings`; nothing has changed then.
    """
    fresh = load_settings(path, overrides)
    refused = tuple(
        name
        for name in Settings.model_fields
        if name not in RELOADABLE and getattr(fresh, name) != getattr(running, name)
    )
    return running.model_copy(update={n: getattr(fresh, n) for n in RELOADABLE}), refused
