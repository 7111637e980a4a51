"""Where values come from: a YAML file, the environment, options; later ones win."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dispatcher.core.errors import ConfigurationError

log = logging.getLogger("headway.config")

ENV_PREFIX = "HEADWAY_"
ENV_DELIMITER = "__"
ENVIRONMENT = "environment"
"""How the origin of a value begins that a variable set."""

At = tuple[str, ...]
"""A place in the settings: section, key, ...; the position within a list as a decimal."""

_QUOTED = re.compile(r"(['\"])(?!<|.{1,2}\1).+\1")
_OPTIONS: Mapping[str, str] = {"engines": "--engine", "policy": "--policy"}


class Sources:
    """Raw settings from all sources, and for each value the place to correct it.

    Attributes:
        data: By section and key, to be validated.
        file: What to call the file, or the settings where there is none.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.data: dict[str, Any] = {}
        self.file = "settings" if file is None else str(file)
        self._origins: dict[At, str] = {}
        if file is not None:
            self._read(file)

    def origin(self, at: Sequence[str]) -> str:
        """The line, variable or option that set a value; what holds it, where it is missing."""
        for depth in range(len(at), 0, -1):
            origin = self._origins.get(tuple(at[:depth]))
            if origin is not None:
                return origin
        return self.file

    def add_environment(self, environment: Mapping[str, str], sections: Sequence[str]) -> None:
        """Take `HEADWAY_<SECTION>__<KEY>`; lists and objects, which are merged, are JSON.

        Other names with the prefix are passed over with a warning: Kubernetes gives every pod
        beside a service named `headway` a `HEADWAY_PORT` and the like.

        Raises:
            ConfigurationError: A variable of that form names no section.
        """
        others = []
        for name in sorted(environment):
            if not name.upper().startswith(ENV_PREFIX):
                continue
            at = tuple(name[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER))
            if len(at) == 1 and at[0] not in sections:
                others.append(name)
                continue
            if at[0] not in sections:
                raise ConfigurationError(
                    f"{ENVIRONMENT}: {name}: unknown section {at[0]!r}; expected"
                    f" {ENV_PREFIX}<SECTION>{ENV_DELIMITER}<KEY> with one of {', '.join(sections)}"
                )
            self._merge(at, _parsed(environment[name]), f"{ENVIRONMENT}: {name}")
        if others:
            log.warning("%s: no settings, passed over: %s", ENVIRONMENT, ", ".join(others))

    def add_options(self, options: Mapping[str, object]) -> None:
        """Take what the command line says, by section; each key of a section is replaced."""
        for section, value in options.items():
            if isinstance(value, Mapping):
                for key, item in value.items():
                    option = _OPTIONS.get(section, f"--{key}")
                    self._put((section, key), item, f"command line: {option}")
            else:
                self._put((section,), value, f"command line: {_OPTIONS.get(section, section)}")

    def _merge(self, at: At, value: object, origin: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                self._merge((*at, str(key)), item, origin)
        else:
            self._put(at, value, origin)

    def _put(self, at: At, value: object, origin: str) -> None:
        node = self.data
        for depth, part in enumerate(at[:-1], 1):
            if not isinstance(node.get(part), dict):
                self._claim(at[:depth], origin)
                node[part] = {}
            node = node[part]
        self._claim(at, origin)
        node[at[-1]] = value

    def _claim(self, at: At, origin: str) -> None:
        """From here on, all that is at or below a place has this origin."""
        for other in [other for other in self._origins if other[: len(at)] == at]:
            del self._origins[other]
        self._origins[at] = origin

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: cannot be read: {error}") from error
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            data = yaml.safe_load(text)
            self._note(node, ())
        except yaml.YAMLError as error:
            # not chained: its text quotes the file, which may hold keys
            raise ConfigurationError(f"{path}: not YAML: {_no_yaml(error)}") from None
        except ValueError:
            raise ConfigurationError(f"{path}: it holds a date or a number that is none") from None
        except RecursionError:
            raise ConfigurationError(f"{path}: nested too deep, or within itself") from None
        if data is None:
            return
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise ConfigurationError(f"{path}: expected sections (server, engines, ...) at the top")
        self.data = data

    def _note(self, node: yaml.Node | None, at: At) -> None:
        """Note the line of every key; a key given twice is an error."""
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                here = (*at, str(key_node.value))
                origin = f"{self.file}, line {key_node.start_mark.line + 1}"
                if here in self._origins:
                    first = self._origins[here].removeprefix(f"{self.file}, ")
                    raise ConfigurationError(f"{origin}: {dotted(here)}: given twice ({first} too)")
                self._origins[here] = origin
                self._note(value_node, here)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                here = (*at, str(index))
                self._origins[here] = f"{self.file}, line {item.start_mark.line + 1}"
                self._note(item, here)


def dotted(at: Sequence[str]) -> str:
    """A place for people; `api_key:...` without its blank is a key of YAML that holds a secret."""
    return ".".join(re.sub(r"(?s)(api_key|admin_token).+", r"\1...", part) for part in at)


def _parsed(text: str) -> object:
    """A variable's value: a list, an object, nothing (`null`), or else a text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if value is None or isinstance(value, list | dict) else text


def _no_yaml(error: yaml.YAMLError) -> str:
    """Where a file stops being YAML and why, without the text around it (it may be a key)."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it holds a character that YAML does not allow"
    mark = error.problem_mark
    problem = _QUOTED.sub("'...'", error.problem or "it cannot be read")
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
