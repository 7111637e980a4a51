"""An engine in virtual time: its scheduler, what it keeps, and runs of alike iterations."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.engine_model.blocks import Residency
from dispatcher.engine_model.requests import EngineRequest, RequestState
from dispatcher.engine_model.runs import AlikeRun, run_of
from dispatcher.engine_model.scheduler import Scheduler
from dispatcher.engine_model.steps import StepResult


class EngineModel(Scheduler):
    """A scheduler that can be looked into, told of paused sessions, and played in runs."""

    @property
    def running(self) -> tuple[EngineRequest, ...]:
        """Requests that hold a seat, in batch order."""
        return tuple(self._running)

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests and paused sessions hold, in [0, 1]; others are free."""
        return 1.0 - self._pool.free_blocks / self._pool.num_blocks

    # -- what is kept ----------------------------------------------------------------------

    def residency(self, hashes: Sequence[int]) -> Residency:
        """Return how many of these leading blocks are kept, and where in eviction order."""
        return self._pool.residency(hashes)

    @property
    def preserved_blocks(self) -> int:
        """KV blocks that are held for paused sessions."""
        return self._paused.blocks()

    @property
    def preserves_dropped(self) -> int:
        """Paused sessions that were given up for want of blocks, so far."""
        return self._paused.dropped

    @property
    def next_expiry_s(self) -> float:
        """Moment at which the first paused session expires; infinite without any."""
        return self._paused.next_expiry_s

    def preserve(self, session: str, hashes: Sequence[int], until_s: float) -> int:
        """Keep a paused session's blocks from eviction; return how many were there to keep.

        Until a request of this session gets a seat, until `release`, until the first iteration
        that begins at `until_s` or later, or until a running request would have to be preempted or
        nothing could run: the session with the most blocks is dropped first then. Content that is
        given up goes to the end of the eviction order. A second call takes the place of the first.

        Raises:
            ValueError: The engine was launched without `enable_preserve`.
        """
        if not self.config.enable_preserve:
            raise ValueError("this engine was launched without enable_preserve")
        return self._paused.keep(session, hashes, until_s)

    def release(self, session: str) -> bool:
        """Give up what is preserved for a session; False where nothing is."""
        return self._paused.release(session)

    def expire(self, now_s: float) -> int:
        """Give up what was preserved until now; return for how many sessions. Each step does."""
        return self._paused.expire(now_s)

    def discard(self, hashes: Sequence[int]) -> int:
        """Evict those of these blocks that nobody holds, for good; return how many."""
        return len(self._pool.discard(hashes))

    def offload(self, hashes: Sequence[int]) -> int:
        """Move those of these blocks that nobody holds to the offload tier; return how many.

        It takes no time, as evictions do not: copying out goes on beside what is computed.

        Raises:
            ValueError: The engine was launched without `offload_blocks`.
        """
        if self._tier is None:
            raise ValueError("this engine was launched without offload_blocks")
        return self._tier.offload(hashes)

    def reset_prefix_cache(self) -> None:
        """Forget cached content that no request holds, in host memory too."""
        self._paused.clear()
        self._pool.clear_cache()

    # -- runs of alike iterations ----------------------------------------------------------

    def alike_run(self) -> AlikeRun | None:
        """Return the iterations from now on that differ only in their contexts' length.

        In those every running request decodes one token, nobody joins, is preempted or runs out of
        blocks, and only the last of them may finish any. None: the next one must be stepped. Stays
        right while nothing joins or is aborted, preserved or released, and none of them begins at
        `next_expiry_s` or later.
        """
        running = self._running
        if not running or len(running) > self.token_limit or self._somebody_may_join():
            return None
        return run_of(running, self.config, self._pool.free_blocks)

    def _somebody_may_join(self) -> bool:
        if len(self._running) >= self._full_at:
            return False
        head = self._waiting.peek()
        if head is None:
            return False
        # one that can share blocks may fit as soon as others have filled them
        return bool(head.block_hashes) or self._shared_if_it_fits(head) is not None

    def glide(self, run: AlikeRun, count: int) -> StepResult:
        """Play the first `count` iterations of `alike_run()` at once, as that many steps would.

        Of `emitted` only those that finish are named. Where outputs share blocks and cached content
        is evicted at the same time, which of two equal blocks is kept may differ from steps.
        """
        result = StepResult(run.duration_s(count))
        block_size = self.config.block_size
        longest = self.config.max_model_len - 1
        for request in self._running:
            before = request.computed
            after = request.computed = before + count
            if after > request.blocks * block_size:
                self._grow(request, after)
            if request.block_hashes and after // block_size != before // block_size:
                self._publish(request, before // block_size, after // block_size)
            request.generated += count
            if request.generated >= request.output_tokens or after >= longest:
                result.finished.append(request)
        result.decode_tokens = count * len(self._running)
        result.emitted = result.finished
        self._leave(result.finished)
        return result

    def validate(self) -> None:
        """Check the engine's invariants; for tests.

        Raises:
            AssertionError: One does not hold; the message names it.
        """
        private = sum(request.blocks - len(request.shared) for request in self._running)
        self._pool.validate(private)
        held = self._paused.holds()
        held.update(content for request in self._running for content in request.shared)
        self._pool.validate_holders(held)
        if len(self._running) > self.config.max_num_seqs:
            raise AssertionError("more requests run than there are seats")
        waiting = [r for r in self._requests.values() if r.state is RequestState.WAITING]
        if len(waiting) != len(self._waiting):
            raise AssertionError("waiting count and waiting requests disagree")
        if len(waiting) + len(self._running) != len(self._requests):
            raise AssertionError("a request neither waits nor runs")
        if any(request.blocks or request.shared for request in waiting):
            raise AssertionError("a waiting request holds blocks")
        for request in self._running:
            if request.blocks * self.config.block_size < request.computed:
                raise AssertionError(f"{request} computed more tokens than it has blocks for")
