"""Tokens served to each workflow over the whole fleet: the counters of VTC (`policies.vtc`).

An observer, so that the counters are warm when the policy is switched in. The numbered deviations
that are spoken of here are those of `policies.vtc`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from dispatcher.core.events import (
    AttemptEnded,
    CallArrived,
    CallCancelled,
    Dispatched,
    Event,
    Progress,
)
from dispatcher.core.types import AttemptId, CallId, Outcome, WorkflowId
from dispatcher.core.views import FleetView

INPUT_WEIGHT = 1.0
"""w_p, per prompt token."""
OUTPUT_WEIGHT = 2.0
"""w_q, per output token."""
GONE_BOUND = 10_000
"""Clients without a live call that are remembered, the latest to leave."""
_CHECKS_PER_ARRIVAL = 2
"""Waiting calls looked at whether they are alive; two keep what is tracked within twice what is."""
_REBUILD_FLOOR = 64


@dataclass(slots=True, eq=False)
class _Account:
    """What is known of one client."""

    served: float = 0.0
    #: at most 0: what the counter falls by as soon as none of its calls waits
    surplus: float = 0.0
    #: its waiting calls in order; some may have ended meanwhile
    waiting: dict[CallId, None] = field(default_factory=dict)
    out: int = 0


@dataclass(slots=True, eq=False)
class _Out:
    """What an attempt in flight has been charged, tokens."""

    client: WorkflowId
    call_id: CallId
    account: _Account
    prompt_tokens: int
    output_tokens: int
    resumed: bool


class TokenCounters:
    """Weighted tokens served to each client (workflow) over the whole fleet: an `Observer`.

    Calls that end while they wait without an event of their own (their wait was too long, their
    workflow was cancelled) are noticed when it matters who waits, or in passing.

    O(1) per event, O(log clients) when a client begins to wait.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> spec = Fake(call_id="c", workflow_id="w", prompt_tokens=100, prompts=1)
        >>> call = Fake(spec=spec, generated_tokens=0)
        >>> fleet = Fake(call=lambda call_id: call)
        >>> counters = TokenCounters()
        >>> counters.observe(CallArrived(spec), fleet, 0.0)
        >>> counters.observe(Dispatched(call, AttemptId(1), "engine"), fleet, 0.0)
        >>> counters.observe(Progress(AttemptId(1), 30), fleet, 1.0)
        >>> counters.of("w")
        160.0
    """

    def __init__(self) -> None:
        #: clients with a live call
        self._live: dict[WorkflowId, _Account] = {}
        #: clients without, oldest departure first
        self._gone: OrderedDict[WorkflowId, _Account] = OrderedDict()
        self._out: dict[AttemptId, _Out] = {}
        #: waiting calls -> client; those that were looked at longest ago come first
        self._waiting: OrderedDict[CallId, WorkflowId] = OrderedDict()
        #: clients that wait
        self._active: dict[WorkflowId, _Account] = {}
        #: (counter as of some moment, client): every active client at least once
        self._heap: list[tuple[float, WorkflowId]] = []
        #: the client that was the last to wait
        self._last: _Account | None = None

    def __len__(self) -> int:
        """Clients remembered."""
        return len(self._live) + len(self._gone)

    def of(self, client: WorkflowId) -> float:
        """The client's counter, weighted tokens; 0 for one that is not known."""
        account = self._live.get(client) or self._gone.get(client)
        return 0.0 if account is None else account.served

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Follow arrivals, dispatches, tokens and ends."""
        match event:
            case Progress():
                out = self._out.get(event.attempt_id)
                if out is not None and event.output_tokens > out.output_tokens:
                    new_tokens = event.output_tokens - out.output_tokens
                    out.output_tokens = event.output_tokens
                    _charge(out.account, OUTPUT_WEIGHT * new_tokens)
            case CallArrived():
                self._check_some(fleet)
                spec = event.spec
                if fleet.call(spec.call_id) is not None:
                    self._waits(spec.workflow_id, spec.call_id, fleet)
            case Dispatched():
                self._dispatched(event)
            case AttemptEnded():
                self._ended(event, fleet)
            case CallCancelled():
                if fleet.call(event.call_id) is None:
                    self._leaves(event.call_id)
            case _:
                pass

    # --- calls ---

    def _dispatched(self, event: Dispatched) -> None:
        spec = event.call.spec
        account = self._account(spec.workflow_id)
        account.out += 1
        self._leaves(spec.call_id)
        prompt_tokens = spec.prompt_tokens * spec.prompts
        self._out[event.attempt_id] = _Out(
            client=spec.workflow_id,
            call_id=spec.call_id,
            account=account,
            prompt_tokens=prompt_tokens,
            output_tokens=0,
            resumed=event.call.generated_tokens > 0,
        )
        _charge(account, INPUT_WEIGHT * prompt_tokens)

    def _ended(self, event: AttemptEnded, fleet: FleetView) -> None:
        out = self._out.pop(event.attempt_id, None)
        if out is None:
            return
        again = fleet.call(out.call_id) is not None
        prompt_tokens, output_tokens = _served(event, out, again)
        _charge(
            out.account,
            INPUT_WEIGHT * (prompt_tokens - out.prompt_tokens)
            + OUTPUT_WEIGHT * (output_tokens - out.output_tokens),
        )
        out.account.out -= 1
        if again:
            self._waits(out.client, out.call_id, fleet)
        self._forget_idle(out.client, out.account)

    # --- who waits ---

    def _waits(self, client: WorkflowId, call_id: CallId, fleet: FleetView) -> None:
        account = self._live.get(client)
        if account is None or not self._still_waits(account, fleet):
            account = self._account(client)
            account.served = max(account.served, self._floor(fleet))
            self._active[client] = account
            self._remember_active(client, account)
        account.waiting[call_id] = None
        self._waiting[call_id] = client

    def _leaves(self, call_id: CallId, *, long_gone: bool = False) -> None:
        """The call waits no longer; `long_gone`: since some earlier event."""
        client = self._waiting.pop(call_id, None)
        if client is None:
            return
        account = self._live[client]
        del account.waiting[call_id]
        if not account.waiting:
            del self._active[client]
            self._last = self._last if long_gone else account
            account.served += account.surplus
            account.surplus = 0.0
            self._forget_idle(client, account)

    def _floor(self, fleet: FleetView) -> float:
        """Least counter of those that wait, else the counter of the last that did."""
        heap = self._heap
        while heap:
            served, client = heap[0]
            account = self._active.get(client)
            if account is None or not self._still_waits(account, fleet):
                heapq.heappop(heap)
            elif account.served != served:
                heapq.heapreplace(heap, (account.served, client))
            else:
                return served
        return 0.0 if self._last is None else self._last.served

    def _remember_active(self, client: WorkflowId, account: _Account) -> None:
        heapq.heappush(self._heap, (account.served, client))
        if len(self._heap) > _REBUILD_FLOOR and len(self._heap) > 2 * len(self._active):
            self._heap = [(one.served, name) for name, one in self._active.items()]
            heapq.heapify(self._heap)

    def _still_waits(self, account: _Account, fleet: FleetView) -> bool:
        """Whether any of its calls does; drops those that have ended without going out."""
        while account.waiting:
            call_id = next(iter(account.waiting))
            if fleet.call(call_id) is not None:
                return True
            self._leaves(call_id, long_gone=True)
        return False

    def _check_some(self, fleet: FleetView) -> None:
        """Drop those of a few calls that ended while they waited."""
        for _ in range(min(_CHECKS_PER_ARRIVAL, len(self._waiting))):
            call_id = next(iter(self._waiting))
            if fleet.call(call_id) is None:
                self._leaves(call_id, long_gone=True)
            else:
                self._waiting.move_to_end(call_id)

    # --- clients ---

    def _account(self, client: WorkflowId) -> _Account:
        account = self._live.get(client)
        if account is None:
            account = self._gone.pop(client) if client in self._gone else _Account()
            self._live[client] = account
        return account

    def _forget_idle(self, client: WorkflowId, account: _Account) -> None:
        if account.out or account.waiting:
            return
        self._gone[client] = self._live.pop(client)
        if len(self._gone) > GONE_BOUND:
            self._gone.popitem(last=False)


def _charge(account: _Account, tokens: float) -> None:
    """Add weighted tokens, or take some off; see deviation 4."""
    change = tokens + account.surplus
    if change < 0.0 and account.waiting:
        account.surplus = change
    else:
        account.surplus = 0.0
        account.served += change


def _served(event: AttemptEnded, out: _Out, again: bool) -> tuple[int, int]:
    """Prompt and output tokens that an ended attempt is charged; see deviations 4 and 5."""
    usage = event.usage
    seen = max(out.output_tokens, event.output_tokens)
    output_tokens = seen if usage is None else usage.output_tokens
    if again or (event.retryable and event.outcome is Outcome.ENGINE_ERROR):
        return 0, output_tokens if event.resumable else 0
    if usage is None or usage.prompt_tokens <= 0 or out.resumed:
        # what an earlier attempt had generated is part of a resumed prompt, and paid for
        return out.prompt_tokens, output_tokens
    return usage.prompt_tokens, output_tokens
