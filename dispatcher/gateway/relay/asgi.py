"""The ASGI side: its types, and a coroutine that changes hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Resumed:
    """Awaits a coroutine that was stepped by hand up to its first suspension."""

    __slots__ = ("_coroutine", "_yielded")

    def __init__(self, coroutine: Coroutine[Any, Any, None], yielded: Any) -> None:
        self._coroutine = coroutine
        self._yielded = yielded

    def __await__(self) -> Generator[Any, Any, None]:
        yielded = self._yielded
        try:
            while True:
                try:
                    value = yield yielded
                except BaseException as exc:  # noqa: BLE001 - whatever it is, it is the coroutine's
                    yielded = self._coroutine.throw(exc)
                else:
                    yielded = self._coroutine.send(value)
        except StopIteration:
            return

    def close(self) -> None:
        """Give the coroutine up."""
        self._coroutine.close()
