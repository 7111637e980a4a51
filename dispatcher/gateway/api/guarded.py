"""Routes of FastAPI that ask who is calling before they read what is sent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from dispatcher.gateway.api.intake import read_request_body
from dispatcher.gateway.calls import Receive
from dispatcher.gateway.errors import bad_request
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.runtime import Gateway


def guarded(gateway: Gateway, check: Callable[[Request], object]) -> type[APIRoute]:
    """A class of routes, for `APIRouter(route_class=...)`.

    FastAPI itself reads and parses a body of any size before its first dependency is asked.

    Args:
        gateway: Its settings bound the body.
        check: Raises an `ApiError` for a caller who may not call.
    """

    class GuardedRoute(APIRoute):
        """Checks the caller, then reads a body of at most `server.max_body_mb`.

        It is taken for JSON whatever its content type, as the scheduled endpoints take theirs:
        what curl sends calls itself a form.
        """

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """FastAPI's own handler, with the guard before it."""
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                check(request)
                bag = HeaderBag(request.scope["headers"])
                limit_bytes = int(gateway.settings.server.max_body_mb * 1e6)
                try:
                    body = await read_request_body(request.receive, bag, limit_bytes)
                except ConnectionResetError as error:
                    raise bad_request(str(error)) from error  # heard by nobody
                return await handler(Request(_json(request.scope), _again(body, request.receive)))

            return handle

    return GuardedRoute


def _json(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The same request, whose body calls itself JSON: FastAPI parses no other."""
    headers = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with a body that has been read."""
    told = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
