"""Which tools an answer asks its client to run.

An answer that asks for one is not a workflow's last: its client runs the tool and comes back with
a prompt that begins with this one's. Nothing is parsed for it but what is parsed for usage anyway
and, of streams whose request offered tools, the events in which a tool call begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dispatcher.core.types import Usage
from dispatcher.gateway.relay.dialects import CHAT, MESSAGES, RESPONSES, Dialect, EventKind
from dispatcher.gateway.relay.dialects import event_payload as payload_of

NAMES_MAX = 4
"""Tools of one answer that are named; the rest go without saying."""
NAME_CHARS_MAX = 128
"""Characters of one name that are kept."""
_JOINT = "+"

_CUT = re.compile(rb'"finish_reason"\s*:\s*"(?:length|content_filter)"')
#: What a piece of a chat's tool call has inside that begins one, or ends the answer: its own id
#: looks like the event's, but comes with its type or name.
_TELLS = re.compile(rb'"name"|"type"|"finish_reason"\s*:\s*"')
_CUT_REASONS = frozenset({"length", "content_filter", "max_tokens", "refusal", "incomplete"})
_ASKING_REASONS = frozenset({"tool_calls", "tool_use"})
#: Items of `/v1/responses` that its client has to answer; other kinds of calls the server runs.
_NAMED_ITEMS = frozenset({"function_call", "custom_tool_call"})
_OWN_ITEMS = frozenset({"apply_patch_call", "computer_call", "local_shell_call", "shell_call"})
_MAY_CALL = frozenset({EventKind.TOKEN, EventKind.OTHER})
#: What every event that carries a tool call has inside, and hardly any other.
_MARKS: Mapping[str, bytes] = {
    CHAT.name: b'"tool_calls"',
    RESPONSES.name: b'_call"',
    MESSAGES.name: b'"tool_use"',
}


class ToolListener:
    """A dialect that notes, of one answer, what it is asked to tell apart.

    Example:
        >>> heard = ToolListener(CHAT)
        >>> call = {"function": {"name": "run_sql", "arguments": "{"}}
        >>> choice = {"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
        >>> heard.usage({"choices": [choice]})
        >>> heard.tool()
        'run_sql'
    """

    __slots__ = ("_asks", "_cut", "_inner", "_mark", "_named")

    def __init__(self, inner: Dialect) -> None:
        """Heard nothing yet; for one attempt at one call of this endpoint."""
        self._inner = inner
        self._mark = _MARKS.get(inner.name)
        #: in the order in which they came
        self._named: dict[str, None] = {}
        self._asks = False
        self._cut = False

    # --- the dialect ---

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self._inner.name

    @property
    def usage_on_request(self) -> bool:
        """See `Dialect`."""
        return self._inner.usage_on_request

    @property
    def priority_in_body(self) -> bool:
        """See `Dialect`."""
        return self._inner.priority_in_body

    @property
    def look_out(self) -> bytes | None:
        """See `Dialect`."""
        # elsewhere tool calls begin with events of another name than tokens have
        return self._mark if self._inner is CHAT else self._inner.look_out

    def classify(self, event: bytes) -> EventKind:
        """Tell what one event is; note the tool calls in it."""
        kind = self._inner.classify(event)
        # of what else carries usage, `usage` hears
        if kind in _MAY_CALL and self._may_tell(event):
            self._note(payload_of(event) or {})
        return kind

    def _may_tell(self, event: bytes) -> bool:
        """Whether a tool call may begin in it, or the answer end."""
        if self._mark is None or self._mark not in event:
            return False
        # a call's arguments come in as many pieces as they have tokens, and tell nothing more
        return self._inner is not CHAT or _TELLS.search(event) is not None

    def token_prefix(self, event: bytes, other: bytes = b"") -> bytes | None:
        """See `Dialect`."""
        return self._inner.token_prefix(event, other)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Read usage; note the tool calls beside it."""
        if self._mark is not None:
            self._note(payload)
        return self._inner.usage(payload)

    # --- what it has heard ---

    def tool(self, last_tokens: bytes = b"") -> str | None:
        """What the answer asks for, once it has ended well.

        Args:
            last_tokens: Of a stream, its last token events: a call that was cut off at the limit of
                the answer's length is none.

        Returns:
            `None`: no tool. Empty: one of unknown name. Else its name; of several asked for at once
            their names by the alphabet, joined by `+`: the workflow goes on when all have run.
        """
        cut = self._cut or (bool(self._named) and _CUT.search(last_tokens) is not None)
        if not self._asks and (cut or not self._named):
            return None
        return _JOINT.join(sorted(name for name in self._named if name))

    def _note(self, payload: Mapping[str, Any]) -> None:
        """Take in an event's payload, or a whole answer's."""
        if self._inner is CHAT:
            for choice in _objects(payload.get("choices")):
                self._ended(choice.get("finish_reason"))
                for part in (choice.get("delta"), choice.get("message")):
                    for call in _objects(_object(part).get("tool_calls")):
                        self._chat_call(call)
        elif self._inner is MESSAGES:
            self._ended(payload.get("stop_reason"))
            self._ended(_object(payload.get("delta")).get("stop_reason"))
            for block in (payload.get("content_block"), *_objects(payload.get("content"))):
                if _object(block).get("type") == "tool_use":
                    self._calls(_object(block).get("name"))
        else:
            response = _object(payload.get("response")) or payload
            self._ended(response.get("status"))
            for item in (payload.get("item"), *_objects(response.get("output"))):
                self._item(_object(item))

    def _chat_call(self, call: Mapping[str, Any]) -> None:
        """One call, or one more piece of it: later pieces have no name."""
        function = _object(call.get("function"))
        if function.get("name") or call.get("id"):
            self._calls(function.get("name"))

    def _item(self, item: Mapping[str, Any]) -> None:
        kind = item.get("type")
        if not isinstance(kind, str) or item.get("status") == "incomplete":
            return
        if kind in _NAMED_ITEMS:
            self._calls(item.get("name"))
        elif kind in _OWN_ITEMS:
            self._calls(kind.removesuffix("_call"))

    def _calls(self, name: object) -> None:
        """One of this name is asked for; what is no name counts as one without."""
        known = isinstance(name, str) and name.isprintable()
        kept = str(name)[:NAME_CHARS_MAX] if known else ""
        if len(self._named) < NAMES_MAX:
            self._named[kept] = None

    def _ended(self, reason: object) -> None:
        if isinstance(reason, str):
            self._asks = self._asks or reason in _ASKING_REASONS
            self._cut = self._cut or reason in _CUT_REASONS


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; what is none is passed over."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
