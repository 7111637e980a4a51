"""Who is being served: what a shutdown waits for, and ends when its grace is over."""

from __future__ import annotations

import asyncio
from types import TracebackType

from dispatcher.core.types import RejectReason
from dispatcher.gateway.errors import rejection


class Guests:
    """Requests that have been let in and have not been answered to their end.

    Example:
        >>> async def serve(guests: Guests) -> int:
        ...     with guests.visit():
        ...         async with guests.until_cut_off():
        ...             return guests.count
        >>> asyncio.run(serve(Guests()))
        1
    """

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()
        self._limits: set[asyncio.Timeout] = set()
        self._cut_off = False

    def visit(self) -> _Visit:
        """A context for the whole of a request."""
        return _Visit(self)

    def until_cut_off(self) -> _Stay:
        """A context that a shutdown ends with its 503 (`ApiError`) when its grace is over."""
        return _Stay(self)

    async def wait_none(self) -> None:
        """Return when nobody is being served."""
        await self._none.wait()

    def cut_off(self) -> None:
        """The grace is over: whatever runs `until_cut_off`, now or later, ends."""
        self._cut_off = True
        now_s = asyncio.get_running_loop().time()
        limits, self._limits = self._limits, set()
        for limit in limits:
            limit.reschedule(now_s)

    # The contexts' side.

    def come(self) -> None:
        """One more is served."""
        self.count += 1
        self._none.clear()

    def go(self) -> None:
        """One has been served."""
        self.count -= 1
        if not self.count:
            self._none.set()

    def limit(self) -> asyncio.Timeout:
        """A timeout that comes with the cut-off."""
        limit = asyncio.timeout(0 if self._cut_off else None)
        self._limits.add(limit)
        return limit

    def forget(self, limit: asyncio.Timeout) -> None:
        """Its context has been left."""
        self._limits.discard(limit)


class _Visit:
    __slots__ = ("_guests",)

    def __init__(self, guests: Guests) -> None:
        self._guests = guests

    def __enter__(self) -> None:
        self._guests.come()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._guests.go()


class _Stay:
    """`asyncio.timeout`, but for when and as what it ends; by hand, since every call is in one."""

    __slots__ = ("_guests", "_limit")

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._limit: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        self._limit = self._guests.limit()
        await self._limit.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        limit = self._limit
        if limit is None:
            return
        self._guests.forget(limit)
        try:
            await limit.__aexit__(exc_type, exc, traceback)
        except TimeoutError:
            raise rejection(RejectReason.SHUTDOWN, 1.0) from exc
