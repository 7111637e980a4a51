"""Virtual token counter: the workflow that has been served least goes first.

Sheng et al., "Fairness in Serving Large Language Models", OSDI '24, Algorithm 2; a baseline of
HexGen-Flow (section 5.1), which takes one workflow for one client. Each client u has a counter

    c_u += w_p * L_in     when a call of it is admitted, w_p = 1
    c_u += w_q            for every output token, w_q = 2

and the next call is the earliest one of the client with the least counter among those that wait. A
client that begins to wait anew does not bring the credit of its absence along:

    c_u = max(c_u, min of c over the clients that wait)     or, when nobody waits,
    c_u = max(c_u, c of the client that was the last to wait)

Exact at a gateway that keeps its engines just full and counts tokens as they stream.

Settled, and deviations:

1. The paper has one server with one queue. Here counters and the clients that wait are those of the
   whole fleet, and every engine picks the least counter among the calls queued there. The lift with
   nobody waiting is the paper's; the authors' code (Ying1123/VTC-artifact) leaves it out.
2. HexGen-Flow says nothing of routing under VTC; the only dispatcher it names for a baseline is
   round robin, which is the default. Routing by least backlog is offered.
3. The counters (`policies.token_counters`) are an observer: they run whatever policy is active, so
   that a switch starts warm.
4. The engine's own count of tokens replaces the estimate that a call was charged. A counter that
   would fall while calls of its client wait falls as soon as none does, so that a queue needs to
   look at a counter only when its client comes up.
5. A call whose attempt failed before anything reached its client, or was stopped by us, gets its
   prompt back, and its tokens unless they are gone on from: it pays again when it goes out again.
6. Clients come and go. Those with no live call are kept while they are among the 10,000 that left
   last, since most workflows are between two calls; forgotten, they begin with the lift alone.
7. Among calls of one client its own priority goes before arrival, as under first come, first
   served. Equal counters: the client whose next call came first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from dispatcher.core.ports import CallQueue
from dispatcher.core.types import CallId, Key, SeatTag, WorkflowId
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.token_counters import TokenCounters

_REBUILD_FLOOR = 64


class Vtc:
    """Order by the counters, fleet-wide; O(log clients) per selection.

    Args:
        counters: What each client has been served; must observe the coordinator.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> def call(name, sequence):
        ...     spec = Fake(call_id=name, workflow_id=name[0], client_priority=0)
        ...     return Fake(spec=spec, sequence=sequence)
        >>> served = {"a": 700.0, "b": 300.0}
        >>> waiting = Vtc(Fake(of=served.__getitem__)).queue(None, Fake())
        >>> for arrival in (call("a1", 1), call("b1", 2), call("b2", 3)):
        ...     waiting.push(arrival, 0.0)
        >>> waiting.select("", 0.0).spec.call_id
        'b1'
        >>> served["b"] = 900.0
        >>> waiting.select("", 0.0).spec.call_id
        'a1'
    """

    def __init__(self, counters: TokenCounters) -> None:
        self.counters = counters

    def queue(self, instance: InstanceView | None, fleet: FleetView) -> CallQueue:
        """The calls that wait here, by client."""
        return ClientQueue(self.counters.of)

    def key(
        self, call: CallView, instance: InstanceView | None, fleet: FleetView, now_s: float
    ) -> Key:
        """(the client's counter in weighted tokens, client priority)."""
        spec = call.spec
        return (self.counters.of(spec.workflow_id), float(spec.client_priority))

    def latest_start_s(
        self, call: CallView, instance: InstanceView, fleet: FleetView, now_s: float
    ) -> float | None:
        """None: fairness has no deadline; the engine keeps the order in which calls reach it."""
        return None


_Place = tuple[int, int, CallId]
"""Client priority, arrival sequence, call id."""


class ClientQueue:
    """Calls of several clients: the client with the least counter, its earliest call.

    A heap holds each client's counter as it was when it was last looked at. Counters of waiting
    clients never fall, so that the true least is at the top once the top is up to date.

    Args:
        served: The present counter of a client; must not fall while the client has calls here.
    """

    def __init__(self, served: Callable[[WorkflowId], float]) -> None:
        self._served = served
        self._calls: dict[CallId, CallView] = {}
        #: client -> its calls, ascending
        self._lines: dict[WorkflowId, list[_Place]] = {}
        #: (counter when last looked at, the client's first call, client)
        self._heap: list[tuple[float, _Place, WorkflowId]] = []

    def push(self, call: CallView, now_s: float) -> None:
        """Add a call; it must not be here yet."""
        call_id, client = call.spec.call_id, call.spec.workflow_id
        if call_id in self._calls:
            raise KeyError(f"call {call_id} is queued here already")
        place = _place(call)
        self._calls[call_id] = call
        line = self._lines.setdefault(client, [])
        insort(line, place)
        if line[0] is place:
            self._enter(client, line)

    def remove(self, call_id: CallId) -> None:
        """Take a call out. Raises `KeyError` when it is not here."""
        call = self._calls.pop(call_id)
        client = call.spec.workflow_id
        line = self._lines[client]
        at = bisect_left(line, _place(call))
        del line[at]
        if not line:
            del self._lines[client]
        elif at == 0:
            self._enter(client, line)

    def refresh(self, call: CallView, now_s: float) -> None:
        """Nothing that orders it can have changed. Raises `KeyError` when it is not here."""
        if call.spec.call_id not in self._calls:
            raise KeyError(f"call {call.spec.call_id} is not queued here")

    def select(self, seat: SeatTag, now_s: float) -> CallView | None:
        """The earliest call of the client with the least counter; ties: the earlier call."""
        heap = self._heap
        while heap:
            served, place, client = heap[0]
            line = self._lines.get(client)
            if line is None or line[0] != place:
                heapq.heappop(heap)
            elif (counter := self._served(client)) != served:
                heapq.heapreplace(heap, (counter, place, client))
            else:
                return self._calls[place[2]]
        return None

    def rescore(self, now_s: float, limit: int) -> bool:
        """Nothing to do: counters move with tokens, not with time."""
        return False

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[CallView]:
        return iter(self._calls.values())

    def _enter(self, client: WorkflowId, line: list[_Place]) -> None:
        """The client has another first call than before."""
        heapq.heappush(self._heap, (self._served(client), line[0], client))
        if len(self._heap) > _REBUILD_FLOOR and len(self._heap) > 2 * len(self._lines):
            self._heap = [(self._served(one), calls[0], one) for one, calls in self._lines.items()]
            heapq.heapify(self._heap)


def _place(call: CallView) -> _Place:
    return (call.spec.client_priority, call.sequence, call.spec.call_id)
