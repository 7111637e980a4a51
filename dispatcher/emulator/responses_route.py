"""/v1/responses: one answer, and conversations that go on from a stored one."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers

from dispatcher.emulator import errors, tokens
from dispatcher.emulator.driver import Call
from dispatcher.emulator.engine import Engine, Limits, Prompt, content_text
from dispatcher.emulator.generation import Generation, Shape, priority_of
from dispatcher.emulator.responses_shape import ResponsesShape, ResponseStore, StoredResponse
from dispatcher.emulator.schema import Message, ResponsesRequest
from dispatcher.emulator.tool_calls import rendered, responses_offer


class Responses(Generation):
    """/v1/responses."""

    def __init__(self, engine: Engine, store: ResponseStore) -> None:
        super().__init__(engine)
        self.store = store

    def prepare(self, body: bytes, headers: Headers) -> tuple[Call, Shape, bool | None]:
        """Hand an input, and the conversation before it, to the engine."""
        raw, request = self.engine.parse(body, ResponsesRequest)
        keeps = self.engine.settings.enable_responses_store
        if request.background and not keeps:
            raise errors.response_error(
                400, "This engine does not store responses: no background mode.", "background"
            )
        previous = self._previous(request)
        prompt = self.engine.chat_prompt(
            input_messages(request.input),
            tools=request.tools or None,
            system=request.instructions,
            before=previous.context_ids if previous else (),
        )
        if previous:
            prompt = Prompt(prompt.ids, f"{previous.text}\n{prompt.text}")
        limits = Limits(request.max_output_tokens, request.min_tokens, request.ignore_eos)
        priority = priority_of(headers, request.priority)
        offer = responses_offer(request.tools, request.tool_choice)
        call = self.engine.build_call(raw, [prompt], limits, priority=priority, offer=offer)
        room = self.engine.config.max_model_len - len(prompt.ids)
        head = self.head("resp_", Headers(), [prompt], model=request.model)
        shape = ResponsesShape(
            head,
            call,
            request,
            f"msg_{self.engine.fresh_id()}",
            min(request.max_output_tokens or room, room),
        )
        detached = bool(request.background) and not request.stream
        if keeps and request.store is not False:
            stored = StoredResponse(shape, call, "queued" if detached else "in_progress")
            self._keep(head.response_id, stored, prompt)
        self.submit(call)
        if detached:
            return call, _Queued(shape), None
        return call, shape, bool(request.stream)

    def _previous(self, request: ResponsesRequest) -> StoredResponse | None:
        if request.previous_response_id is None:
            return None
        previous = self.store.get(request.previous_response_id)
        if previous is None:
            raise not_stored(request.previous_response_id)
        return previous

    def _keep(self, response_id: str, stored: StoredResponse, prompt: Prompt) -> None:
        """Store a response once it is complete; one in the background at once."""
        if stored.status == "queued":
            self.store.put(response_id, stored)
        stored.call.on_settled = lambda: self._settle(response_id, stored, prompt)

    def _settle(self, response_id: str, stored: StoredResponse, prompt: Prompt) -> None:
        if stored.call.closed:
            stored.status = "cancelled"
            return
        plan = stored.call.sequences[0].plan
        stored.status = stored.shape.final_status()
        stored.context_ids = [*prompt.ids, *plan.ids]
        if plan.finish_reason == "length":
            stored.context_ids.append(tokens.END_OF_TURN_ID)
        stored.text = f"{prompt.text}\n{plan.text()}"
        self.store.put(response_id, stored)


class _Queued:
    """A response in the background, as it is answered at once."""

    def __init__(self, shape: ResponsesShape) -> None:
        self._shape = shape

    def opening(self) -> bytes:
        """Return nothing: it is not streamed."""
        return b""

    events = closing = opening

    def body(self) -> bytes:
        """Return the response object, queued."""
        return StoredResponse(self._shape, Call(), "queued").body()


def input_messages(given: str | list[Any]) -> list[Message]:
    """Return the turns of a Responses input; items that are no message keep their text."""
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    turns = []
    for item in given:
        if isinstance(item, dict) and item.get("type") == "function_call":
            turns.append(Message(role="assistant", content=rendered({"function": item})))
        elif isinstance(item, dict):
            content = item.get("content", item.get("output", item.get("arguments")))
            text = content_text(content) if isinstance(content, str | list) else ""
            turns.append(Message(role=str(item.get("role", "tool")), content=text))
        else:
            turns.append(Message(role="user", content=str(item)))
    return turns


def not_stored(response_id: str) -> errors.EngineApiError:
    """Nothing is stored under this id."""
    return errors.response_error(404, f"Response with id '{response_id}' not found.")
