"""Sessions: what each workflow did last, and what engines probably keep of it.

The next call of a workflow mostly goes on from its last one: its prompt begins with what the
engine that served that one may still have in its prefix cache. What is left there is an estimate:
engines evict least recently used blocks first, so it is gone once more has been written since than
fits beside it into their KV cache, or their offload tier where that holds more. How much of it
helps is learned from what engines say they found, per application.

Between two calls a workflow may wait for a tool that its last answer asked for (AugServe, section
4.2; InferCept): such a session is *paused* until its next call, or until the tool has taken longer
than nine times out of ten. Only calls that generate go on from one another: a tool may embed or
rank while its session is paused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice

from dispatcher.core.instance import Instance
from dispatcher.core.types import CallId, CallSpec, InstanceId, Task, Usage, WorkflowId

GapSeconds = Callable[[str | None, float], float | None]
"""Quantile of a tool's time: see `WorkflowTracker.gap_s`."""

MAX_SESSIONS = 20_000
"""Remembered; the one heard of least recently is forgotten first."""
_MAX_APPLICATIONS = 1_000
_MAX_PLACES = 4
"""Instances remembered of a session, those it left last."""
_MAX_LISTED = 256
_SHARE_WEIGHT = 0.05
_LONG_GAP = 0.9
"""Quantile of the tool's time within which its session is waited for."""


_NOWHERE = InstanceId("")


@dataclass(slots=True)
class _Place:
    """What a session left at an instance."""

    tokens: int
    """Context that was there when its last call ended."""
    written_tokens: int
    """Of that instance, by then."""
    life: int


@dataclass(slots=True, eq=False)
class Session:
    """A workflow of which a call has ended well; see `SessionView`."""

    workflow_id: WorkflowId
    #: calls that have neither been turned away on arrival nor ended
    calls: set[CallId] = field(default_factory=set)
    instance_id: InstanceId = _NOWHERE
    context_tokens: int = 0
    ended_s: float = 0.0
    tool: str | None = None
    gap_s: float | None = None
    ttl_s: float | None = None
    #: least recently left first
    places: OrderedDict[InstanceId, _Place] = field(default_factory=OrderedDict)
    #: until when it counts as paused; `None`: it is not
    paused_until_s: float | None = None

    @property
    def live(self) -> int:
        """How many of its calls that is."""
        return len(self.calls)


@dataclass(slots=True)
class _Cache:
    """What is known of one instance's prefix cache."""

    written_tokens: int = 0
    """Computed there so far, by calls that have ended."""
    life: int = 0
    """Grows whenever the engine has lost what it kept."""
    #: longest paused first
    paused: dict[WorkflowId, Session] = field(default_factory=dict)
    paused_tokens: int = 0


class Sessions:
    """Books of sessions. Only the coordinator writes them, and questions change nothing; bounded.

    Pauses that are over are taken off with the next call that comes or ends; until then questions
    pass over them.
    """

    def __init__(self, gap_s: GapSeconds) -> None:
        self._tool_gap_s = gap_s
        #: heard of least recently first
        self._sessions: OrderedDict[WorkflowId, Session] = OrderedDict()
        self._caches: dict[InstanceId, _Cache] = {}
        self._paused = 0
        #: heap of (when the pause is over, session); some are over otherwise
        self._ends: list[tuple[float, WorkflowId]] = []
        #: application -> part of what a session has left that its next call finds
        self._shares: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    # --- questions ---

    def get(self, workflow_id: WorkflowId) -> Session | None:
        """The session, where a call of it has ended well."""
        session = self._sessions.get(workflow_id)
        return session if session is not None and session.places else None

    def left_tokens(self, spec: CallSpec, instance: Instance) -> float:
        """Tokens of one prompt that the call's session may have left there; 0: none, or gone."""
        session = self._sessions.get(spec.workflow_id)
        if session is None or spec.task is not Task.GENERATE:
            return 0.0
        place = session.places.get(instance.instance_id)
        if place is None:
            return 0.0
        cache = self._caches[instance.instance_id]
        if place.life != cache.life:
            return 0.0
        capacity_tokens = instance.spec.kv_capacity_tokens
        if capacity_tokens is not None:
            # an offload tier gets what is written as it is written: the larger one keeps it longer
            capacity_tokens = max(capacity_tokens, instance.spec.offload_tokens or 0)
            since = cache.written_tokens - place.written_tokens + instance.in_flight_tokens
            if since + place.tokens > capacity_tokens:
                return 0.0
        return float(min(spec.prompt_tokens, place.tokens))

    def cached_tokens(self, spec: CallSpec, instance: Instance) -> float:
        """Tokens of one prompt that its prefix cache should hold, at least 0.

        What others leave there (a common beginning) helps every call; what the session itself has
        left, as far as that has helped calls of its application.
        """
        of_others = instance.cold_share * spec.prompt_tokens
        # asked for every candidate of every call: most instances keep nothing of a session
        session = self._sessions.get(spec.workflow_id)
        if session is None or instance.instance_id not in session.places:
            return of_others
        own = self._shares.get(spec.application, 0.0) * self.left_tokens(spec, instance)
        return own if own > of_others else of_others

    def paused(self, instance_id: InstanceId, now_s: float) -> Sequence[Session]:
        """Sessions paused there, longest first, at most `_MAX_LISTED`."""
        cache = self._caches.get(instance_id)
        if cache is None:
            return ()
        over = self._over(instance_id, now_s)
        listed = (s for s in cache.paused.values() if s.workflow_id not in over)
        return list(islice(listed, _MAX_LISTED))

    def paused_count(self, instance_id: InstanceId, now_s: float) -> int:
        """How many they are, listed or not."""
        cache = self._caches.get(instance_id)
        return 0 if cache is None else len(cache.paused) - len(self._over(instance_id, now_s))

    def paused_tokens(self, instance_id: InstanceId, now_s: float) -> float:
        """Their context, all together."""
        cache = self._caches.get(instance_id)
        if cache is None:
            return 0.0
        over = self._over(instance_id, now_s)
        return float(cache.paused_tokens - sum(s.context_tokens for s in over.values()))

    # --- what happens ---

    def arrived(self, spec: CallSpec, now_s: float) -> None:
        """A call has come, and will be served: its workflow is not paused any more."""
        self._settle(now_s)
        if spec.task is not Task.GENERATE:
            return
        session = self._sessions.get(spec.workflow_id)
        if session is None:
            session = self._sessions[spec.workflow_id] = Session(spec.workflow_id)
            if len(self._sessions) > MAX_SESSIONS:
                self._forget(next(iter(self._sessions)))
        else:
            self._sessions.move_to_end(spec.workflow_id)
            self._go_on(session)
        session.calls.add(spec.call_id)

    def ended(
        self,
        spec: CallSpec,
        instance: Instance | None,
        usage: Usage | None,
        tool: str | None,
        now_s: float,
    ) -> None:
        """A call is over; one that was turned away on arrival, and never told of, changes nothing.

        Args:
            spec: Its specification.
            instance: Where it ended well; `None`: it did not.
            usage: Its tokens; `None`: unknown.
            tool: What its answer asks for.
            now_s: The clock.
        """
        self._settle(now_s)
        session = self._sessions.get(spec.workflow_id)
        if session is None or spec.task is not Task.GENERATE:
            return  # pushed out by newer ones, or none of it
        session.calls.discard(spec.call_id)
        if instance is not None and usage is not None:
            self._go_on(session)  # one that was pushed out and came back may have paused meanwhile
            self._leave(session, spec, instance, usage, now_s)
            session.tool = tool
            session.gap_s = session.ttl_s = None
            if tool is not None:
                self._pause(session, now_s)
        elif not session.live and not session.places:
            del self._sessions[spec.workflow_id]

    def learn(self, spec: CallSpec, left_tokens: float, usage: Usage) -> None:
        """An engine said what it found, where the session had left so many tokens of a prompt."""
        share = min(1.0, usage.cached_tokens / (left_tokens * spec.prompts))
        known = self._shares.get(spec.application)
        self._shares[spec.application] = (
            share if known is None else known + _SHARE_WEIGHT * (share - known)
        )
        self._shares.move_to_end(spec.application)
        if len(self._shares) > _MAX_APPLICATIONS:
            self._shares.popitem(last=False)

    def finished(self, workflow_id: WorkflowId) -> None:
        """Nothing more comes of a workflow."""
        if workflow_id in self._sessions:
            self._forget(workflow_id)

    def emptied(self, instance_id: InstanceId) -> None:
        """An engine has begun anew: its cache is empty."""
        cache = self._caches.get(instance_id)
        if cache is not None:
            for session in list(cache.paused.values()):
                self._go_on(session)
            cache.life += 1

    def lost(self, instance_id: InstanceId) -> None:
        """An engine is gone for good."""
        self.emptied(instance_id)
        if self._caches.pop(instance_id, None) is not None:
            for session in self._sessions.values():
                session.places.pop(instance_id, None)

    # --- inside ---

    def _leave(
        self, session: Session, spec: CallSpec, instance: Instance, usage: Usage, now_s: float
    ) -> None:
        cache = self._caches.setdefault(instance.instance_id, _Cache())
        cache.written_tokens += max(0, usage.prompt_tokens - usage.cached_tokens)
        cache.written_tokens += usage.output_tokens
        context = usage.prompt_tokens // spec.prompts
        if spec.seats == 1:
            context += usage.output_tokens
        session.instance_id, session.context_tokens = instance.instance_id, context
        session.ended_s = now_s
        session.places[instance.instance_id] = _Place(context, cache.written_tokens, cache.life)
        session.places.move_to_end(instance.instance_id)
        if len(session.places) > _MAX_PLACES:
            session.places.popitem(last=False)

    def _pause(self, session: Session, now_s: float) -> None:
        session.gap_s = self._tool_gap_s(session.tool, 0.5)
        session.ttl_s = self._tool_gap_s(session.tool, _LONG_GAP)
        if session.live or session.ttl_s is None:
            return
        until_s = session.paused_until_s = now_s + session.ttl_s
        cache = self._caches[session.instance_id]
        cache.paused[session.workflow_id] = session
        cache.paused_tokens += session.context_tokens
        self._paused += 1
        heappush(self._ends, (until_s, session.workflow_id))

    def _go_on(self, session: Session) -> None:
        """It is not paused any more."""
        if session.paused_until_s is not None:
            session.paused_until_s = None
            cache = self._caches[session.instance_id]
            del cache.paused[session.workflow_id]
            cache.paused_tokens -= session.context_tokens
            self._paused -= 1
            if len(self._ends) > 2 * self._paused + _MAX_LISTED:
                # most of them are over: those that are not are the heap
                self._ends = [end for end in self._ends if self._ending(end) is not None]
                heapify(self._ends)

    def _forget(self, workflow_id: WorkflowId) -> None:
        self._go_on(self._sessions[workflow_id])
        del self._sessions[workflow_id]

    def _ending(self, end: tuple[float, WorkflowId]) -> Session | None:
        """Whose pause that is the end of; `None`: it was over before."""
        until_s, workflow_id = end
        session = self._sessions.get(workflow_id)
        return session if session is not None and session.paused_until_s == until_s else None

    def _settle(self, now_s: float) -> None:
        """Pauses that are over by now have ended."""
        while self._ends and self._ends[0][0] <= now_s:
            session = self._ending(heappop(self._ends))
            if session is not None:
                self._go_on(session)

    def _over(self, instance_id: InstanceId, now_s: float) -> Mapping[WorkflowId, Session]:
        """Sessions that count as paused there, and whose pauses are over by now; mostly none."""
        ends = self._ends
        over: dict[WorkflowId, Session] = {}
        if not ends or ends[0][0] > now_s:
            return over
        # of a heap, only what is early and the two below each of that
        ahead = [0]
        while ahead:
            at = ahead.pop()
            if at < len(ends) and ends[at][0] <= now_s:
                session = self._ending(ends[at])
                if session is not None and session.instance_id == instance_id:
                    over[session.workflow_id] = session
                ahead += (2 * at + 1, 2 * at + 2)
        return over
