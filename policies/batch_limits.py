"""How much an engine may hold in flight: batch sizes by memory, as admission.

HeteroServe, section 3.5: each engine has the largest batch that its memory holds safely,

    B_i = ((1 - delta) M_i - W_model) / C_token                                          (Eq. 6)

and section 4.1: the baseline `Uniform` gives every engine the smallest of these, the baseline
`Capacity-proportional` gives each one in proportion to its memory M_i.

Settled:

1. Bytes over bytes per token are tokens: Eq. 6 is a limit on tokens in flight, B_tok. A limit on
   calls follows by the mean length of the calls that ended at the engine lately, B_req = B_tok /
   mean, as an option: tokens alone (default) let more of the short calls run side by side and no
   more memory be used. The seats of the engine stay a limit, too.
2. No limit passes what the engine itself says it holds (`InstanceSpec.kv_capacity_tokens`): more
   would make it preempt. Where memory, weights or KV bytes are unknown, that alone is the limit;
   where it is unknown, too, seats are. Figures of a model that the engine gives the lie to count
   for nothing: those by which it could not run, or would hold less than half of what it says.
3. In proportion to memory: the limit of the engine with the least, times M_i over its M.

At a gateway these are caps on what is sent, not launch flags: the same batch as long as the
engine's own limits are not lower. A call larger than the limit goes when the engine is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dispatcher.core.events import Dispatched, Event, InstanceDown, InstanceDraining, InstanceUp
from dispatcher.core.ports import Admit, Defer, TokenRoom
from dispatcher.core.types import PLAIN_SEAT, InstanceId, InstanceSpec, SeatTag
from dispatcher.core.views import CallView, FleetView, InstanceView
from policies.context_footprints import ContextFootprints

BatchScope = Literal["own", "weakest", "proportional"]
BatchUnit = Literal["both", "tokens", "requests", "none"]

_ONE_KIND = (PLAIN_SEAT,)
_CREDIBLE = 0.5
"""Of what the engine says it holds."""


def token_limit(spec: InstanceSpec, delta: float = 0.1) -> int | None:
    """B_tok: tokens that an engine keeps safely, at least 1; `None` where nothing tells.

    Args:
        spec: Of the engine.
        delta: Share of its memory to leave free, in [0, 1).

    Example:
        >>> from dispatcher.core.gpu_profiles import Capability
        >>> l40s = InstanceSpec(
        ...     InstanceId("l40s-0"),
        ...     frozenset({"13b"}),
        ...     capability=Capability(362.05, 48.0, 0.864),
        ...     weight_bytes=26_031_728_640,
        ...     kv_bytes_per_token=819_200,
        ... )
        >>> token_limit(l40s)
        20957
    """
    told = spec.kv_capacity_tokens
    if spec.capability is None or spec.weight_bytes is None or spec.kv_bytes_per_token is None:
        return told
    room_bytes = (1.0 - delta) * spec.capability.hbm_gb * 1e9 - spec.weight_bytes
    tokens = int(room_bytes // spec.kv_bytes_per_token)
    if tokens < 1 or (told is not None and tokens < told * _CREDIBLE):
        return told
    return tokens if told is None else min(tokens, told)


class FleetSpecs:
    """What the engines of the fleet are, for ports that are shown one at a time: an `Observer`.

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> spec = InstanceSpec(InstanceId("i"), frozenset({"m"}))
        >>> specs = FleetSpecs()
        >>> specs.observe(InstanceUp(spec), Fake(instances={"i": Fake(spec=spec)}), 0.0)
        >>> specs.all == (spec,), specs.version
        (True, 1)
    """

    def __init__(self) -> None:
        self.all: tuple[InstanceSpec, ...] = ()
        #: grows with every change
        self.version = 0

    def observe(self, event: Event | Dispatched, fleet: FleetView, now_s: float) -> None:
        """Look again where engines may have come, gone or changed; else O(1)."""
        changed = isinstance(event, InstanceUp | InstanceDown | InstanceDraining)
        if changed or len(fleet.instances) != len(self.all):
            self.all = tuple(instance.spec for instance in fleet.instances.values())
            self.version += 1


class BatchLimits:
    """Tokens that each engine may have in flight, by scope; O(N) when the fleet changes, else O(1).

    Args:
        specs: The engines; must observe the coordinator.
        scope: `own`: Eq. 6; `weakest`: the least of all; `proportional`: to memory.
        delta: Share of memory left free, in [0, 1).

    Example:
        >>> specs = FleetSpecs()
        >>> large, small = (
        ...     InstanceSpec(InstanceId(name), frozenset({"m"}), kv_capacity_tokens=tokens)
        ...     for name, tokens in (("large", 9000), ("small", 3000))
        ... )
        >>> specs.all = (large, small)
        >>> BatchLimits(specs, "own").tokens(large), BatchLimits(specs, "weakest").tokens(large)
        (9000, 3000)
    """

    def __init__(self, specs: FleetSpecs, scope: BatchScope = "own", *, delta: float = 0.1) -> None:
        self._specs = specs
        self._scope = scope
        self._delta = delta
        self._version = -1
        #: of the engine that holds least; `None` where no limit is known
        self._least: int | None = None
        self._least_gb: float | None = None
        #: of engines that events have told of: what they are, and their limit
        self._known: dict[InstanceId, tuple[InstanceSpec, int | None]] = {}

    def tokens(self, spec: InstanceSpec) -> int | None:
        """The engine's limit, at least 1; `None`: none."""
        # asked for every candidate of every call
        if self._version != self._specs.version:
            self._look()
        known = self._known.get(spec.instance_id)
        if known is not None and known[0] is spec:
            return known[1]
        # an engine that no event has told of yet is judged by itself
        return self._scoped(spec)

    def _scoped(self, spec: InstanceSpec) -> int | None:
        own, least = token_limit(spec, self._delta), self._least
        if self._scope == "own" or own is None or least is None:
            return own
        if self._scope == "weakest":
            return min(own, least)
        if spec.capability is None or self._least_gb is None:
            return own
        return min(own, max(1, int(least * spec.capability.hbm_gb / self._least_gb)))

    def _look(self) -> None:
        """Work out all limits anew."""
        self._version = self._specs.version
        found = ((token_limit(spec, self._delta), spec) for spec in self._specs.all)
        told = [(limit, spec) for limit, spec in found if limit is not None]
        self._least, weakest = min(told, key=lambda one: one[0]) if told else (None, None)
        capability = weakest.capability if weakest is not None else None
        self._least_gb = None if capability is None else capability.hbm_gb
        self._known = {s.instance_id: (s, self._scoped(s)) for s in self._specs.all}


class BatchAdmission:
    """Seats, and tokens and calls within the batch limits; O(1).

    Args:
        limits: Tokens that each engine may have in flight.
        footprints: Mean length of calls, which makes tokens a number of calls.
        unit: What is limited: tokens, calls (`requests`), both, or nothing (`none`).

    Example:
        >>> from types import SimpleNamespace as Fake
        >>> spec = InstanceSpec(InstanceId("i"), frozenset({"m"}), kv_capacity_tokens=1000)
        >>> instance = Fake(spec=spec, seats=8, seats_in_use=2, in_flight_tokens=700)
        >>> admission = BatchAdmission(BatchLimits(FleetSpecs()), ContextFootprints())
        >>> def call(prompt_tokens):
        ...     sizes = Fake(prompt_tokens=prompt_tokens, prompts=1, seats=1)
        ...     return Fake(spec=sizes, length=Fake(expected_tokens=100.0), generated_tokens=0)
        >>> admission.admit(call(200), "", instance, 0.0)
        Admit(seat='')
        >>> admission.admit(call(201), "", instance, 0.0)
        Defer(until_s=None)
    """

    def __init__(
        self, limits: BatchLimits, footprints: ContextFootprints, unit: BatchUnit = "tokens"
    ) -> None:
        self._limits = limits
        self._footprints = footprints
        self._unit = unit

    def seats(self, instance: InstanceView) -> int:
        """Sequences that it may have in flight: its seats, or B_req where that is less."""
        seats = instance.seats
        if self._unit in ("both", "requests"):
            tokens = self._limits.tokens(instance.spec)
            mean = self._footprints.mean_tokens(instance.spec.instance_id)
            if tokens is not None and mean is not None:
                return min(seats, max(1, int(tokens / mean)))
        return seats

    def open_seats(self, instance: InstanceView, now_s: float) -> Sequence[SeatTag]:
        """The one kind there is, while calls and tokens are below their limits."""
        in_use = instance.seats_in_use
        if in_use == 0:
            return _ONE_KIND
        if in_use >= self.seats(instance):
            return ()
        tokens = self._token_limit(instance)
        return _ONE_KIND if tokens is None or instance.in_flight_tokens < tokens else ()

    def admit(
        self, call: CallView, seat: SeatTag, instance: InstanceView, now_s: float
    ) -> Admit | Defer:
        """Yes where its sequences and tokens fit, or the instance is empty; else later."""
        in_use = instance.seats_in_use
        if in_use == 0:
            return Admit(seat)
        if in_use + call.spec.seats > self.seats(instance):
            return Defer()
        tokens = self._token_limit(instance)
        if tokens is not None and instance.in_flight_tokens + _context_tokens(call) > tokens:
            return Defer()
        return Admit(seat)

    def token_room(self, instance: InstanceView, now_s: float) -> TokenRoom | None:
        """The limit on tokens, where there is one."""
        tokens = self._token_limit(instance)
        if tokens is None:
            return None
        return TokenRoom(float(tokens), float(instance.in_flight_tokens), 0.0)

    def _token_limit(self, instance: InstanceView) -> int | None:
        return self._limits.tokens(instance.spec) if self._unit in ("both", "tokens") else None


def _context_tokens(call: CallView) -> float:
    """What the call will keep by its end, as far as is known."""
    spec = call.spec
    output = max(call.length.expected_tokens, call.generated_tokens / spec.seats)
    return spec.prompt_tokens * spec.prompts + output * spec.seats
