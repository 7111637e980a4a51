"""Admission by tokens: what an engine's KV cache holds, and how fast it takes prompts in.

AugServe's dynamic token batching (section 4.4, Eqs. 27-32) sets, at each iteration, how many tokens
the next one may have, from the KV memory that is free. A gateway does not make the batches; it can
keep back what they are made of. Per instance, with B its KV capacity in tokens, U what calls in
flight keep of it, and P the contexts of paused sessions,

Budget    a call goes out where U + what it will need <= share B - reserved, with `reserved` the
          contexts that are preserved there (`policies.context_handling`) until their sessions
          return or their tools have taken longer than nine times out of ten
Bucket    prompts go out at N(t) / T tokens per second, with
              N(t) = min(max(free, low target), high target)
              free = B - U - (1 - gamma) P                                           (Eqs. 27-32)
          and T the time of an iteration that computes N(t) prompt tokens beside its decodes

so that the engine neither runs out of blocks and preempts, nor queues prompts that would be ordered
better here. With U our count of contexts times how much of it the engine's own gauge has been
seeing: prompts that share their beginning keep it once.

Settled, and deviations:

1. The paper gives neither betas nor target: 0.25 and 1.25, and the engine's limit per iteration.
   KV capacity is tens of thousands of tokens, so that N(t) is at its upper end until memory is
   nearly full; the budget is what holds then.
2. A gateway's limit per iteration is approximate: two iterations' worth of prompts may be out
   before the bucket holds the next one back, so that an engine never waits for it.
3. A call that waits is counted with its whole expected answer, those in flight with what they have
   of it or half of it: so many neither begin nor end together.
4. At most `most_reserved` of the budget is kept for sessions that are away. gamma = 1 counts their
   contexts as free for N(t), since an engine evicts them where it must.
5. An empty instance takes any call, however large. So nothing is kept out for good; what is
   deferred is looked at again within `_LOOK_AGAIN_S`.
6. Without a known capacity there is no budget, and N(t) is at its upper end.
"""

from __future__ import annotations

from dispatcher.core.ports import Admit, Defer, TokenRoom
from dispatcher.core.types import InstanceId, SeatTag
from dispatcher.core.views import CallView, InstanceView
from policies.context_handling import ContextHandling
from policies.kv_books import KvBooks
from policies.seats import SeatAdmission

_LOOK_AGAIN_S = 0.25
_BURST_ITERATIONS = 2.0


class TokenBudget(SeatAdmission):
    """Seats, and what tokens allow; O(1), with reservations as `ContextHandling` has it.

    Args:
        books: What is out, as the engines see it; must observe the coordinator.
        share: Of the KV capacity that calls in flight may take, above 0, at most 1; `None`: no
            budget.
        target_tokens: N(t)'s reference, at least 1; `None`: no bucket.
        beta_low: Lower end of N(t) over the reference.
        beta_high: Upper end; at least `beta_low`.
        gamma: Part of the paused contexts that counts as free for N(t), 0 to 1.
        handling: Keeps room for what is preserved; `None`: nothing is kept.
        most_reserved: Part of the budget that may be kept so, 0 to 1.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> from dispatcher.core.types import LengthEstimate
        >>> spec = Fake(instance_id="i", kv_capacity_tokens=10_000)
        >>> there = Fake(spec=spec, seats=8, seats_in_use=2, in_flight_tokens=7_000)
        >>> def call(prompt_tokens):
        ...     of = Fake(prompt_tokens=prompt_tokens, prompts=1, seats=1)
        ...     return Fake(spec=of, length=LengthEstimate(400.0), generated_tokens=0)
        >>> admission = TokenBudget(KvBooks(), share=0.9)
        >>> admission.admit(call(1_600), "", there, 5.0)
        Admit(seat='')
        >>> admission.admit(call(1_601), "", there, 5.0)
        Defer(until_s=5.25)
    """

    def __init__(
        self,
        books: KvBooks,
        *,
        share: float | None = 0.9,
        target_tokens: float | None = None,
        beta_low: float = 0.25,
        beta_high: float = 1.25,
        gamma: float = 1.0,
        handling: ContextHandling | None = None,
        most_reserved: float = 0.5,
    ) -> None:
        self.books = books
        self.share = share
        self.target_tokens = target_tokens
        self.beta_low = beta_low
        self.beta_high = beta_high
        self.gamma = gamma
        self.handling = handling
        self.most_reserved = most_reserved

    def admit(
        self, call: CallView, seat: SeatTag, instance: InstanceView, now_s: float
    ) -> Admit | Defer:
        """Yes where seats, budget and bucket allow, or the instance is empty."""
        verdict = super().admit(call, seat, instance, now_s)
        if isinstance(verdict, Defer) or not instance.seats_in_use:
            return verdict
        if not self._fits(call, instance, now_s):
            return Defer(now_s + _LOOK_AGAIN_S)
        wait_s = self._bucket_s(instance, now_s)
        return verdict if wait_s <= 0.0 else Defer(now_s + min(wait_s, _LOOK_AGAIN_S))

    def reserved_tokens(self, instance: InstanceView, now_s: float) -> float:
        """Kept there for sessions that are away, before it is bounded by `most_reserved`."""
        fleet = self.books.fleet
        if self.handling is None or fleet is None:
            return 0.0
        if instance.spec.instance_id not in fleet.instances:
            return 0.0
        return self.handling.reserved_tokens(instance, fleet, now_s)

    def batch_tokens(self, instance: InstanceView) -> float:
        """N(t); only where there is a reference."""
        target = self.target_tokens or 0.0
        low, high = self.beta_low * target, self.beta_high * target
        capacity = instance.spec.kv_capacity_tokens
        if capacity is None:
            return high
        free = capacity - self.books.used_tokens(instance)
        if self.gamma < 1.0 and self.books.fleet is not None:
            free -= (1.0 - self.gamma) * self.books.fleet.paused_tokens(instance)
        return min(max(free, low), high)

    def token_room(self, instance: InstanceView, now_s: float) -> TokenRoom | None:
        """The budget, where one is set and the capacity known."""
        capacity = instance.spec.kv_capacity_tokens
        if capacity is None or self.share is None:
            return None
        budget = self.share * self.books.margin(instance) * capacity
        reserved = min(self.reserved_tokens(instance, now_s), self.most_reserved * budget)
        return TokenRoom(budget, self.books.used_tokens(instance), reserved)

    def _fits(self, call: CallView, instance: InstanceView, now_s: float) -> bool:
        room = self.token_room(instance, now_s)
        if room is None:
            return True
        return room.used_tokens + needed_tokens(call) <= room.budget_tokens - room.reserved_tokens

    def _bucket_s(self, instance: InstanceView, now_s: float) -> float:
        """Seconds until the bucket has room; at most 0: it has."""
        fleet = self.books.fleet
        if self.target_tokens is None or fleet is None:
            return 0.0
        instance_id: InstanceId = instance.spec.instance_id
        if instance_id not in fleet.instances:
            return 0.0
        tokens = self.batch_tokens(instance)
        rate = tokens / fleet.prompt_s(tokens, instance)
        level = self.books.level(instance_id, rate, now_s)
        return (level - _BURST_ITERATIONS * tokens) / rate


def needed_tokens(call: CallView) -> float:
    """KV tokens that a call will keep at its end, as predicted, over all of its sequences."""
    spec = call.spec
    output_tokens = max(call.generated_tokens / spec.seats, call.length.expected_tokens)
    return spec.prompt_tokens * spec.prompts + output_tokens * spec.seats
