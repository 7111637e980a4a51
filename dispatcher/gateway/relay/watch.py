"""Notices that a client has hung up, whatever the call is waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from dispatcher.core.errors import HeadwayError
from dispatcher.gateway.relay.asgi import Receive


class ClientGoneError(HeadwayError):
    """The client closed its connection; nobody is there to be answered."""


class ClientWatch:
    """Watches ASGI `receive` for the client's hang-up; one task for as long as it is entered.

    Enter it when the request's body has been read: it swallows what else comes. A server tells a
    finished response as a disconnect too, so what it says after the response's end means nothing.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[], None]] = []
        #: Whether the client has hung up.
        self.gone = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._callbacks.clear()
        task, self._task = self._task, None
        if task is None:
            return
        if task.done():
            task.result()  # A server whose `receive` fails is not kept quiet.
        else:
            task.cancel()

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client hangs up; at once if it has."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def discard(self, callback: Callable[[], None]) -> None:
        """Forget a callback; nothing happens if it is not there."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def guard(self) -> ClientGuard:
        """Return a context whose body is interrupted, with `ClientGoneError`, by a hang-up."""
        return ClientGuard(self)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class ClientGuard:
    """Cancels its body when the client hangs up, in the manner of `asyncio.timeout`."""

    def __init__(self, watch: ClientWatch) -> None:
        self._watch = watch
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._fired = False

    async def __aenter__(self) -> None:
        if self._watch.gone:
            raise ClientGoneError("the client has hung up")
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a guard needs a task to interrupt")
        self._cancelling = self._task.cancelling()
        self._watch.add(self._fire)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.discard(self._fire)
        if not self._fired or self._task is None:
            return
        if self._task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError:
            raise ClientGoneError("the client has hung up") from exc

    def _fire(self) -> None:
        self._fired = True
        if self._task is not None:
            self._task.cancel()
