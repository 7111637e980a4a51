"""Plays one engine model in virtual time, from one change of its batch to the next.

Iterations that differ only in the length of contexts are played at once. A call that comes in the
middle of such a run cuts it at the end of the iteration that is under way, as an engine would let
it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from dispatcher.core.types import AttemptId, EngineGauges
from dispatcher.engine_model import (
    AlikeRun,
    EngineConfig,
    EngineModel,
    EngineRequest,
    RequestState,
    StepResult,
)
from dispatcher.simulator.kernel import Kernel
from dispatcher.traces import PlayedInstance


class Timeline(NamedTuple):
    """When the tokens of a stream are due (Tempo, Eq. 3)."""

    first_s: float
    """Moment at which the first is."""
    tpot_s: float
    """From one to the next."""


class Attempt(EngineRequest):
    """One attempt of a call, inside an engine.

    `spared_tokens` of its prompt are in a cache and are not computed: they are not part of
    `prompt_tokens` here. `token_lag_s` is the worst delay so far of its tokens against `timeline`,
    negative where all were early; `None` without one, and before the first token.
    """

    __slots__ = (
        "attempt_id",
        "first_token_s",
        "spared_tokens",
        "streaming",
        "timeline",
        "token_lag_s",
    )

    def __init__(
        self,
        attempt_id: AttemptId,
        *,
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float,
        priority: int,
        block_hashes: Sequence[int],
        streaming: bool,
        spared_tokens: int = 0,
        timeline: Timeline | None = None,
        session: str | None = None,
    ) -> None:
        super().__init__(
            str(attempt_id),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            arrival_s=arrival_s,
            priority=priority,
            block_hashes=block_hashes,
            session=session,
        )
        self.attempt_id = attempt_id
        self.streaming = streaming
        self.spared_tokens = spared_tokens
        self.first_token_s: float | None = None
        self.timeline = timeline
        self.token_lag_s: float | None = None

    def came(self, token: int, at_s: float) -> None:
        """Its token of that number, from 0, came at that moment."""
        if self.timeline is not None:
            lag_s = at_s - self.timeline.first_s - token * self.timeline.tpot_s
            if self.token_lag_s is None or lag_s > self.token_lag_s:
                self.token_lag_s = lag_s


class EngineControl(Protocol):
    """What an engine made for tools decides by itself, beyond vLLM's scheduler.

    It acts by its player: `preserve`, `offload`, `discard`, `set_token_limit`. One for each engine
    of a play, made by `SimulatedEngine.control`.
    """

    tick_s: float
    """How often `tick` is called, seconds; infinite: never."""

    def ended(self, attempt: Attempt, tool: str | None, now_s: float) -> None:
        """An answer is complete, and asks for that tool; `None`: for none, or nobody says.

        `attempt.block_hashes` are those of its prompt and answer, `attempt.session` is its
        workflow, which will take over what is preserved for it by that name.
        """

    def tick(self, now_s: float) -> None:
        """Time has passed."""


class EnginePlayer:
    """One engine. Tells of first tokens (of streams) and ends at the moment they exist."""

    def __init__(
        self,
        config: EngineConfig,
        kernel: Kernel,
        *,
        on_first_token: Callable[[Attempt], None],
        on_end: Callable[[Attempt], None],
    ) -> None:
        self.model = EngineModel(config)
        self.busy_s = 0.0
        """Time computed so far, up to the end of what is under way."""
        self.output_tokens = 0
        """Tokens of requests that have ended here, or were stopped."""
        self._kernel = kernel
        self._on_first_token = on_first_token
        self._on_end = on_end
        #: how many times as long as they should its iterations take
        self._slowness = 1.0
        self._asleep = True
        #: raised whenever the moment of the next wake-up changes, so that the old one is ignored
        self._version = 0
        #: a run of alike iterations that has not been played yet, and when it began
        self._run: AlikeRun | None = None
        self._run_began_s = 0.0
        self._run_slowness = 1.0
        #: what is under way otherwise; its tokens exist at the next wake-up
        self._under_way = StepResult()
        #: requests here whose tokens are due at moments
        self._timed: dict[AttemptId, Attempt] = {}

    def add(self, attempt: Attempt) -> None:
        """A request reaches the engine."""
        self.model.add(attempt)
        if attempt.timeline is not None:
            self._timed[attempt.attempt_id] = attempt
        if self._asleep:
            self._asleep = False
            # whatever else comes at this moment joins the same iteration
            self._wake_at(self._kernel.now_s)
        elif self._run and self.model.running_count < self.model.config.max_num_seqs:
            self._cut()

    def abort(self, attempt: Attempt) -> None:
        """Stop a request; nothing more is told of it."""
        self.output_tokens += self.generated(attempt)
        self._cut()
        self._timed.pop(attempt.attempt_id, None)
        self.model.abort(attempt.request_id)
        # its token of the iteration under way, maybe its last one, never comes to be
        result = self._under_way
        result.emitted = [one for one in result.emitted if one is not attempt]
        result.finished = [one for one in result.finished if one is not attempt]

    def slow_down(self, factor: float) -> None:
        """Let iterations take so many times as long as they should, from the next one on."""
        self._cut()
        self._slowness = factor

    # --- what only engines made for tools can be told ---

    def set_token_limit(self, tokens: int) -> None:
        """Let iterations compute so many tokens at most; see `EngineModel.set_token_limit`."""
        model = self.model
        if tokens == model.token_limit:
            return
        # requests that decode alone go on alike where all fit into the new limit, too
        if model.waiting_count or model.running_count > min(tokens, model.token_limit):
            self._cut()
        model.set_token_limit(tokens)

    def preserve(self, session: str, hashes: Sequence[int], until_s: float) -> int:
        """Keep a paused session's blocks; return how many. See `EngineModel.preserve`."""
        self._interrupt()
        kept = self.model.preserve(session, hashes, until_s)
        if kept and until_s < math.inf:
            self._kernel.at(until_s, self._expire)
        return kept

    def release(self, session: str) -> bool:
        """Give up what is preserved for a session; False where nothing is."""
        self._interrupt()
        return self.model.release(session)

    def offload(self, hashes: Sequence[int]) -> int:
        """Move a paused session's blocks to host memory; see `EngineModel.offload`."""
        self._interrupt()
        return self.model.offload(hashes)

    def discard(self, hashes: Sequence[int]) -> int:
        """Evict a session's blocks, those that nobody holds; return how many."""
        self._interrupt()
        return self.model.discard(hashes)

    def _expire(self) -> None:
        now_s = self._kernel.now_s
        if self.model.next_expiry_s <= now_s:
            self._interrupt()
            self.model.expire(now_s)

    def _interrupt(self) -> None:
        """Let the model be where its requests are: free blocks are counted on until a run ends."""
        self._cut()
        run, self._run = self._run, None
        if run is not None:
            self._under_way = self._glide(run, run.count)

    # --- what has come of it ---

    def generated(self, attempt: Attempt) -> int:
        """Return the tokens that exist of a request, at least those of the iterations over."""
        if self._run:
            waits = attempt.state is not RequestState.RUNNING
            return attempt.generated + (0 if waits else self._iterations_over(self._run))
        under_way = any(one is attempt for one in self._under_way.emitted)
        return attempt.generated - under_way

    def gauges(self, running_tokens: int) -> EngineGauges:
        """Return what its metrics page says now; `running_tokens`: generated of requests here."""
        model = self.model
        return EngineGauges(
            running=model.running_count,
            waiting=model.waiting_count,
            kv_usage=model.kv_usage,
            preemptions_total=model.preemptions,
            output_tokens_total=self.output_tokens + running_tokens,
        )

    def played(self, *, seats: int, seat_s: float) -> PlayedInstance:
        """Return what it has done so far; seats are the scheduler's."""
        model = self.model
        return PlayedInstance(
            busy_s=self.busy_s,
            seat_s=seat_s,
            seats=seats,
            prefix_queries_tokens=model.prefix_queries_tokens,
            prefix_hits_tokens=model.prefix_hits_tokens,
            preemptions=model.preemptions,
            offload_hits_tokens=model.offload_hits_tokens,
            swapped_in_tokens=model.swapped_in_tokens,
            swapped_out_tokens=model.swapped_out_tokens,
            recomputed_tokens=model.recomputed_tokens,
            preserves_dropped=model.preserves_dropped,
        )

    # --- time ---

    def _wake_at(self, at_s: float) -> None:
        self._version += 1
        self._kernel.at(at_s, self._wake, self._version)

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        run, self._run = self._run, None
        result = self._glide(run, run.count) if run else self._under_way
        self._under_way = StepResult()
        self._tell(result)
        self._go_on()

    def _tell(self, result: StepResult) -> None:
        now_s = self._kernel.now_s
        if self._timed:
            self._note_tokens(result.emitted)
        for attempt in result.emitted:
            assert isinstance(attempt, Attempt)  # noqa: S101 - the player adds nothing else
            if attempt.first_token_s is None:
                attempt.first_token_s = now_s
                if attempt.streaming:
                    self._on_first_token(attempt)
        for attempt in result.finished:
            assert isinstance(attempt, Attempt)  # noqa: S101
            if attempt.timeline is not None:
                del self._timed[attempt.attempt_id]
            self.output_tokens += attempt.generated
            self._on_end(attempt)

    def _go_on(self) -> None:
        model, now_s = self.model, self._kernel.now_s
        if not model.has_work:
            self._asleep = True
            return
        self._run = model.alike_run()
        if self._run:
            self._run_began_s, self._run_slowness = now_s, self._slowness
            duration_s = self._run.duration_s(self._run.count) * self._slowness
        else:
            self._under_way = model.step(now_s)
            duration_s = self._under_way.duration_s * self._slowness
        self.busy_s += duration_s
        self._wake_at(now_s + duration_s)

    # --- runs of alike iterations ---

    def _iterations_over(self, run: AlikeRun) -> int:
        """Return how many iterations of the run are over by now."""
        spent_s = (self._kernel.now_s - self._run_began_s) / self._run_slowness
        over, most = 0, run.count
        while over < most:
            middle = (over + most + 1) // 2
            if run.duration_s(middle) <= spent_s:
                over = middle
            else:
                most = middle - 1
        return over

    def _cut(self) -> None:
        """Let the run end with the iteration that is under way."""
        run = self._run
        if run is None:
            return
        count = self._iterations_over(run)
        spent_s = (self._kernel.now_s - self._run_began_s) / self._run_slowness
        if count == 0 or run.duration_s(count) < spent_s:
            count += 1
        if count >= run.count:
            return
        cut_s = run.duration_s(count) * self._run_slowness
        self.busy_s -= run.duration_s(run.count) * self._run_slowness - cut_s
        self._under_way = self._glide(run, count)
        self._run = None
        self._wake_at(self._run_began_s + cut_s)

    def _glide(self, run: AlikeRun, count: int) -> StepResult:
        """Let the first iterations of the run be played.

        Each takes at least as long as the one before, as contexts grow, and tokens are due evenly:
        none lags further behind than the first or the last.
        """
        if self._timed:
            began_s, slowness = self._run_began_s, self._run_slowness
            first_s = began_s + run.duration_s(1) * slowness
            last_s = began_s + run.duration_s(count) * slowness
            for attempt in self._timed.values():
                if attempt.state is RequestState.RUNNING:
                    attempt.came(attempt.generated, first_s)
                    attempt.came(attempt.generated + count - 1, last_s)
        return self.model.glide(run, count)

    def _note_tokens(self, emitted: Iterable[EngineRequest]) -> None:
        """They have got a token each, now."""
        now_s = self._kernel.now_s
        for attempt in emitted:
            assert isinstance(attempt, Attempt)  # noqa: S101 - the player adds nothing else
            attempt.came(attempt.generated - 1, now_s)
