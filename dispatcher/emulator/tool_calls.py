"""Tool calls: which of the tools on offer an answer asks for, and with which arguments.

A model that was trained to call tools decides by itself; an emulated one asks for a tool where the
request leaves no choice (`tool_choice`), or a scripted reply says so. Arguments that nobody wrote
are made up to fit the tool's JSON schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dispatcher.emulator import errors

_DEPTH_MAX = 8
"""Of made-up arguments; what is nested deeper in a schema is left out."""
_EXACT = 2**53
"""Whole numbers below it are written by everybody alike."""
_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_SIMPLE: Mapping[str, object] = {"boolean": True, "null": None, "array": [], "string": "example"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool call before it is spoken.

    Attributes:
        name: The function's.
        arguments: Its arguments, JSON.
        named: Whether the request named the function: then an answer just ends ("stop").
        forced: Whether the request left no choice but to call one.
    """

    name: str
    arguments: str
    named: bool = False
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one request.

    Attributes:
        tools: Parameter schemas by function name.
        required: Whether the answer has to call one.
        named: The only one that it may call.
    """

    tools: Mapping[str, Any]
    required: bool = False
    named: str | None = None

    def takes(self, name: str) -> bool:
        """Whether an answer may ask for this one."""
        return name in self.tools and self.named in (None, name)

    def forced(self, digest: int) -> Asked | None:
        """The call that an answer has to make up; `None`: it need not call."""
        if not self.required or not self.tools:
            return None
        names = list(self.tools)
        name = names[digest % len(names)] if self.named is None else self.named
        return self.ask(name, made_up(self.tools[name], digest))

    def ask(self, name: str, arguments: object) -> Asked:
        """The call of one of them."""
        text = orjson.dumps(arguments).decode()
        return Asked(name, text, named=self.named is not None, forced=self.required)


def read_offer(tools: list[Any] | None, choice: object) -> Offer | None:
    """What a chat's `tools` and `tool_choice` come to; `None`: nothing is to be called.

    Raises:
        EngineApiError: They do not go together; vLLM 0.32's words.
    """
    if tools == []:
        raise errors.invalid(
            "`tools` must not be an empty array. Either provide at least one tool or omit the"
            " field entirely.",
            "tools",
        )
    if choice == "none" or (choice is None and tools is None):
        return None
    if tools is None:
        raise errors.invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    offered = {}
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            offered[function["name"]] = function.get("parameters")
    if isinstance(choice, dict):
        return Offer(offered, required=True, named=_named(choice, offered))
    if choice not in (None, "auto", "required"):
        raise errors.invalid(
            f"Invalid value for `tool_choice`: {choice}! Only named tools,"
            ' "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    return Offer(offered, required=choice == "required")


def messages_offer(tools: list[Any] | None, choice: object) -> Offer | None:
    """What `tools` and `tool_choice` of /v1/messages come to, by way of a chat's."""
    if not tools:
        return None
    asked: object = None
    if isinstance(choice, dict):
        asked = {"any": "required", "auto": "auto", "none": "none"}.get(str(choice.get("type")))
        if asked is None:
            asked = {"function": {"name": choice.get("name")}}
    return read_offer([_as_of_chat(tool, "input_schema") for tool in tools], asked)


def responses_offer(tools: list[Any], choice: object) -> Offer | None:
    """What `tools` and `tool_choice` of /v1/responses come to, by way of a chat's.

    Only functions: other tools would run at the engine, which has none.
    """
    functions = [tool for tool in tools if isinstance(tool, dict) and tool.get("name")]
    if not functions:
        return None
    if isinstance(choice, dict):
        choice = {"function": {"name": choice.get("name")}}
    return read_offer([_as_of_chat(tool, "parameters") for tool in functions], choice)


def _as_of_chat(tool: object, schema: str) -> object:
    if not isinstance(tool, dict):
        return tool
    return {"function": {"name": tool.get("name"), "parameters": tool.get(schema)}}


def _named(choice: dict[str, Any], offered: Mapping[str, Any]) -> str:
    function = choice.get("function")
    if not isinstance(function, dict):
        raise errors.invalid(
            f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}",
            "tool_choice.function",
        )
    if "name" not in function:
        raise errors.invalid(
            f"Expected field `name` in `function` in `tool_choice`! {_USAGE}",
            "tool_choice.function.name",
        )
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise errors.invalid(
            f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}",
            "tool_choice.function.name",
        )
    if name not in offered:
        raise errors.invalid(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "tool_choice",
        )
    return name


def made_up(schema: object, digest: int, depth: int = 0) -> object:
    """A value that fits a JSON schema, as far as its types, choices and required keys go.

    Example:
        >>> made_up({"type": "object", "properties": {"n": {"type": "integer"}}}, 7)
        {'n': 7}
    """
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return {}
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[digest % len(choices)]
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        return made_up(options[0], digest, depth + 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list) and kind:
        kind = kind[0]
    if kind in ("integer", "number"):
        low = schema.get("minimum", 0)
        least = low if isinstance(low, int) else 0
        return least + (digest % 10 if least < _EXACT else 0)
    properties = schema.get("properties")
    if kind != "object" or not isinstance(properties, dict):
        return _SIMPLE.get(str(kind), {})
    return {key: made_up(part, digest, depth + 1) for key, part in properties.items()}


def opening_mark(name: str) -> str:
    """What a model says before the arguments; no client sees it.

    Line ends around it keep its tokens apart from those before and after: an earlier turn is the
    same tokens again, and is found in the prefix cache.
    """
    return f"\n<tool_call>{name}\n"


CLOSING_MARK = "\n</tool_call>"


def rendered(call: object) -> str:
    """A call of an earlier turn as the chat template shows it: as it was spoken."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return orjson.dumps(call).decode()
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return f"{opening_mark(str(function.get('name')))}{text}{CLOSING_MARK}"
