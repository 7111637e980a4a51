"""Who asks last in a request, and in which words: what tells most of how long the answer gets."""

from __future__ import annotations

from typing import Any, NamedTuple

USER, TOOL, ASSISTANT, SYSTEM = 1.0, 2.0, 3.0, 4.0
"""Roles as features; 0 where none is known."""

_ROLES = {
    "user": USER,
    "tool": TOOL,
    "function": TOOL,
    "assistant": ASSISTANT,
    "system": SYSTEM,
    "developer": SYSTEM,
}
_TOOL_ITEMS = ("function_call_output", "custom_tool_call_output", "computer_call_output")
_PARTS_MAX = 16
"""Parts of a message that are looked at, from its end."""


class Asking(NamedTuple):
    """The last message."""

    role: float
    text: str
    """Empty where it has none."""


def asking_message(conversation: list[Any]) -> Asking:
    """That of a conversation, whose items are objects or texts of any shape.

    Example:
        >>> asking_message([{"role": "system", "content": "Be kind."}, "Hello"])
        Asking(role=1.0, text='Hello')
    """
    last = conversation[-1]
    if isinstance(last, str):
        return Asking(USER, last)
    content = last.get("content")
    if last.get("type") in _TOOL_ITEMS:
        return Asking(TOOL, _text(last.get("output")))
    role = _ROLES.get(str(last.get("role")), 0.0)
    if isinstance(content, list) and any(_is_tool_result(part) for part in content[-_PARTS_MAX:]):
        role = TOOL
    return Asking(role, _text(content))


def asking_prompt(prompt: object) -> Asking:
    """That of a prompt: a text, or the first of several; token ids have none."""
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    return Asking(0.0, first if isinstance(first, str) else "")


def _is_tool_result(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _text(content: object, depth: int = 2) -> str:
    """The texts of a content, one after the other."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        # a part: its text, or what a tool gave
        inner = content.get("text")
        if inner is None and depth:
            inner = content.get("content")
        return _text(inner, depth - 1) if depth or isinstance(inner, str) else ""
    if not isinstance(content, list):
        return ""
    texts = [_text(part, depth) for part in content[-_PARTS_MAX:]]
    return "\n".join(text for text in texts if text)
