"""From a YAML file and the environment to settings, with errors that say where and what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_settings import SettingsError

from dispatcher.config.settings import (
    ENV_DELIMITER,
    ENV_PREFIX,
    EmbeddedSettings,
    EngineSettings,
    FleetSettings,
    ModelSettings,
    PolicySettings,
    QueueSettings,
    Section,
    ServerSettings,
    Settings,
    StoreSettings,
    TenantSettings,
    WorkflowSettings,
)
from dispatcher.core.errors import ConfigurationError

RELOADABLE = frozenset({"engines", "policy", "tenants"})
"""Sections that may change while the gateway runs."""

Lines = Mapping[tuple[str, ...], int]


def load_settings(
    path: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Read settings.

    Args:
        path: YAML file; none: defaults and the environment.
        overrides: Keys by section that win over file and environment (command-line options).

    Raises:
        ConfigurationError: The file cannot be read, or a key or a value is wrong; says which.
    """
    data, lines = ({}, {}) if path is None else _read(path)
    where = "settings" if path is None else str(path)
    _refuse_unknown_environment()
    try:
        settings = Settings(**data)
        return _override(settings, overrides) if overrides else settings
    except ValidationError as error:
        raise ConfigurationError(_explain(error, where, lines)) from error
    except SettingsError as error:
        raise ConfigurationError(f"environment: {error}") from error


def _override(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """Options of the command line: keys of a section are merged, lists are replaced."""
    update: dict[str, object] = {}
    for name, value in overrides.items():
        section = getattr(settings, name)
        if isinstance(section, Section) and isinstance(value, Mapping):
            given = {**section.model_dump(exclude_unset=True), **value}
            update[name] = type(section).model_validate(given)
        else:
            adapter: TypeAdapter[Any] = TypeAdapter(
                Settings.model_fields[name].annotation or object
            )
            update[name] = adapter.validate_python(value)
    return settings.model_copy(update=update)


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


def _read(path: Path) -> tuple[dict[str, Any], Lines]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from error
    if data is None:
        return {}, {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigurationError(f"{path}: expected sections (server, engines, ...) at the top")
    lines: dict[tuple[str, ...], int] = {}
    _walk(node, (), lines, path)
    return data, lines


def _walk(
    node: yaml.Node | None, at: tuple[str, ...], lines: dict[tuple[str, ...], int], path: Path
) -> None:
    """Note the line of every key; a key given twice is an error."""
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            here = (*at, str(key_node.value))
            line = key_node.start_mark.line + 1
            if here in lines:
                raise ConfigurationError(
                    f"{path}, line {line}: {'.'.join(here)}: given twice (first in line"
                    f" {lines[here]})"
                )
            lines[here] = line
            _walk(value_node, here, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = (*at, str(index))
            lines[here] = item.start_mark.line + 1
            _walk(item, here, lines, path)


def _explain(error: ValidationError, where: str, lines: Lines) -> str:
    """One line for each mistake: file, line, dotted key, what was expected, what was there."""
    out = []
    for mistake in error.errors(include_url=False):
        at = [str(part) for part in mistake["loc"]]
        line = _line_of(at, lines)
        # a union (`seats: auto | int`) reports each of its branches under the key
        key = ".".join(part for part in at if part not in _UNION_BRANCHES)
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            message = f"unknown key; expected one of {', '.join(_siblings(at))}"
        elif mistake["type"] != "missing" and "api_key" not in key and "token" not in key:
            message = f"{message}, not {mistake['input']!r}"
        prefix = f"{where}, line {line}" if line else where
        out.append(f"{prefix}: {key}: {message}" if key else f"{prefix}: {message}")
    return "\n".join(dict.fromkeys(out))


_SECTIONS: Mapping[str, type[Section]] = {
    "server": ServerSettings,
    "tenants": TenantSettings,
    "policy": PolicySettings,
    "queue": QueueSettings,
    "engines": EngineSettings,
    "fleet": FleetSettings,
    "models": ModelSettings,
    "workflows": WorkflowSettings,
    "store": StoreSettings,
    "embedded": EmbeddedSettings,
}
_UNION_BRANCHES = frozenset({"literal['auto']", "constrained-int", "int", "bool"})


def _line_of(at: Sequence[str], lines: Lines) -> int | None:
    for depth in range(len(at), 0, -1):
        if tuple(at[:depth]) in lines:
            return lines[tuple(at[:depth])]
    return None


def _siblings(at: Sequence[str]) -> list[str]:
    """Keys that are known where an unknown one was found."""
    if len(at) == 1:
        return list(Settings.model_fields)
    return list(_SECTIONS[at[0]].model_fields)


def _refuse_unknown_environment() -> None:
    """A misspelt section in the environment would otherwise be passed over in silence."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            section = name[len(ENV_PREFIX) :].split(ENV_DELIMITER)[0].lower()
            if section not in Settings.model_fields:
                raise ConfigurationError(
                    f"environment: {name}: unknown section {section!r}; expected"
                    f" {ENV_PREFIX}<SECTION>{ENV_DELIMITER}<KEY> with one of"
                    f" {', '.join(Settings.model_fields)}"
                )
