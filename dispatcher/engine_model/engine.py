"""One engine's scheduler, iteration by iteration, as vLLM's V1 scheduler goes about it.

Running requests come first, in the order they were admitted; then, if nobody had to be preempted,
waiting ones while seats, tokens and KV blocks last. A running request that finds no KV block takes
them from a victim, which loses everything it computed (recompute, no swap) and waits again. A
waiting request is admitted only when all of its tokens so far would fit, and never evicts one
that runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.engine_model.blocks import BlockPool
from dispatcher.engine_model.config import EngineConfig
from dispatcher.engine_model.requests import EngineRequest, RequestState
from dispatcher.engine_model.runs import AlikeRun
from dispatcher.engine_model.waiting import WaitingHeap


@dataclass(slots=True)
class StepResult:
    """What one iteration did; its tokens exist once `duration_s` has passed.

    Attributes:
        duration_s: Virtual time the iteration takes.
        emitted: Requests that got one more token each, in batch order.
        finished: Those of `emitted` whose token was their last.
        admitted: Requests that got a seat, the ones coming back from preemption included.
        preempted: Requests that lost their blocks and wait again.
        prefill_tokens: Tokens computed that were no request's newest one.
        decode_tokens: Tokens computed one at a time, from the second token of a request on.
    """

    duration_s: float = 0.0
    emitted: list[EngineRequest] = field(default_factory=list)
    finished: list[EngineRequest] = field(default_factory=list)
    admitted: list[EngineRequest] = field(default_factory=list)
    preempted: list[EngineRequest] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0


class EngineModel:
    """An engine in virtual time. Deterministic: equal calls give equal results.

    Attributes:
        config: Launch parameters.
        preemptions: Preemptions so far.
        prefix_queries_tokens: Tokens looked up in the prefix cache, re-admissions aside.
        prefix_hits_tokens: Those of them that were found.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self._by_priority = config.scheduling_policy == "priority"
        self._timing = config.timing
        self._pool = BlockPool(config.num_blocks, caching=config.enable_prefix_caching)
        self._requests: dict[str, EngineRequest] = {}
        self._running: list[EngineRequest] = []
        self._waiting = WaitingHeap(by_priority=self._by_priority)
        self._sequence = 0

    @property
    def running_count(self) -> int:
        """Requests that hold a seat."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a seat, preempted ones included."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests)

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests hold, in [0, 1]; idle cached ones count as free."""
        return 1.0 - self._pool.free_blocks / self._pool.num_blocks

    @property
    def running(self) -> tuple[EngineRequest, ...]:
        """Requests that hold a seat, in batch order."""
        return tuple(self._running)

    def add(self, request: EngineRequest) -> None:
        """Put a request into the waiting queue.

        Raises:
            ValueError: Its id is in use, or its prompt leaves no room for a token.
        """
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id} is in use")
        if request.prompt_tokens >= self.config.max_model_len:
            raise ValueError(
                f"request {request.request_id}: a prompt of {request.prompt_tokens} tokens leaves"
                f" no room for output within {self.config.max_model_len}"
            )
        request.sequence = self._sequence
        self._sequence += 1
        self._requests[request.request_id] = request
        self._waiting.push(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free what it holds; False when it is not here (any more)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request.state is RequestState.RUNNING:
            self._running.remove(request)
            self._free(request)
        else:
            request.state = RequestState.ABORTED
            self._waiting.note_aborted()
        request.state = RequestState.ABORTED
        return True

    def reset_prefix_cache(self) -> None:
        """Forget cached content that no request holds."""
        self._pool.clear_cache()

    def step(self, now_s: float) -> StepResult:
        """Play one iteration that starts at `now_s`; without work it takes no time."""
        result = StepResult()
        if not self._requests:
            return result
        batch: list[tuple[EngineRequest, int]] = []
        budget = self._schedule_running(batch, result)
        if not result.preempted:
            self._schedule_waiting(now_s, batch, budget, result)
        self._execute(batch, result)
        return result

    def alike_run(self) -> AlikeRun | None:
        """Return the iterations from now on that differ only in their contexts' length.

        In those every running request decodes one token, nobody joins, is preempted or runs out of
        blocks, and only the last of them may finish any. None: the next one must be stepped. Stays
        right while nothing joins or is aborted.
        """
        running = self._running
        if not running or self._somebody_may_join():
            return None
        longest = self.config.max_model_len - 1
        count, context = longest, 0
        for request in running:
            generated, computed = request.generated, request.computed
            # without a token yet, even the last one of its prompt is priced as a prompt
            if not generated or request.prompt_tokens + generated - computed > 1:
                return None
            left = request.output_tokens - generated
            count = min(count, left)
            count = min(count, longest - computed)
            context += computed
        # every request takes up to a block more than its tokens fill
        spare = self._pool.free_blocks - len(running)
        if spare < 0 or count * len(running) > spare * self.config.block_size:
            while count and self._blocks_for(count) > self._pool.free_blocks:
                count //= 2
        return AlikeRun(self._timing, count, len(running), context) if count else None

    def _somebody_may_join(self) -> bool:
        if len(self._running) >= self.config.max_num_seqs:
            return False
        head = self._waiting.peek()
        if head is None:
            return False
        # one that can share blocks may fit as soon as others have filled them
        return bool(head.block_hashes) or self._shared_if_it_fits(head) is not None

    def _blocks_for(self, count: int) -> int:
        """Return how many more blocks running requests need for so many tokens each."""
        block_size = self.config.block_size
        return sum(
            max(0, -(-(request.computed + count) // block_size) - request.blocks)
            for request in self._running
        )

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

    # -- scheduling ------------------------------------------------------------------------

    def _schedule_running(self, batch: list[tuple[EngineRequest, int]], result: StepResult) -> int:
        """Give running requests their tokens; return what is left of the token budget."""
        budget = self.config.max_num_batched_tokens
        block_size = self.config.block_size
        running = self._running
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed = request.computed
            new = min(request.prompt_tokens + request.generated - computed, budget)
            if computed + new <= request.blocks * block_size:
                batch.append((request, new))
                budget -= new
                index += 1
                continue
            while not self._grow(request, computed + new):
                victim = self._victim()
                position = running.index(victim)
                if position < index:
                    index -= 1
                    budget += self._unschedule(batch, victim)
                self._preempt(victim, position, result)
                if victim is request:
                    return budget  # it was its own victim: whoever follows is no better off
            batch.append((request, new))
            budget -= new
            index += 1
        return budget

    def _schedule_waiting(
        self,
        now_s: float,
        batch: list[tuple[EngineRequest, int]],
        budget: int,
        result: StepResult,
    ) -> None:
        block_size = self.config.block_size
        pool = self._pool
        while budget > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._waiting.peek()
            shared = None if request is None else self._shared_if_it_fits(request)
            if request is None or shared is None:
                return
            total, hits = request.total_tokens, len(shared)
            self._waiting.pop()
            pool.take_shared(shared)
            request.shared = shared
            request.blocks = hits
            request.computed = hits * block_size
            new = min(total - request.computed, budget)
            self._grow(request, request.computed + new)
            request.state = RequestState.RUNNING
            if request.preemptions == 0:
                request.cached_tokens = request.computed
                request.scheduled_s = now_s
                self.prefix_queries_tokens += total
                self.prefix_hits_tokens += request.computed
            self._running.append(request)
            result.admitted.append(request)
            batch.append((request, new))
            budget -= new

    def _shared_if_it_fits(self, request: EngineRequest) -> list[int] | None:
        """Return the kept blocks that spare it prefill, where all it needs is free; else None."""
        block_size = self.config.block_size
        total = request.total_tokens
        # The newest token is always computed: its output is what is wanted.
        hits = self._pool.longest_hit(request.block_hashes, (total - 1) // block_size)
        shared = list(request.block_hashes[:hits])
        spare = self._pool.free_blocks + hits - -(-total // block_size)
        # counting which of them nobody holds is dear, and seldom needed
        fits = spare >= hits or spare >= self._pool.idle_among(shared)
        return shared if fits else None

    def _victim(self) -> EngineRequest:
        """Whom a running request without a block takes blocks from; may be itself."""
        if self._by_priority:
            return max(self._running, key=lambda r: (r.priority, r.arrival_s, r.sequence))
        return self._running[-1]

    def _preempt(self, victim: EngineRequest, position: int, result: StepResult) -> None:
        del self._running[position]
        self._free(victim)
        victim.state = RequestState.WAITING
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        result.preempted.append(victim)
        self._waiting.push(victim)

    @staticmethod
    def _unschedule(batch: list[tuple[EngineRequest, int]], victim: EngineRequest) -> int:
        for position, (request, new) in enumerate(batch):
            if request is victim:
                del batch[position]
                return new
        raise AssertionError(f"{victim} was passed over but not scheduled")

    # -- execution -------------------------------------------------------------------------

    def _execute(self, batch: list[tuple[EngineRequest, int]], result: StepResult) -> None:
        """Advance the batch and price the iteration."""
        block_size = self.config.block_size
        max_model_len = self.config.max_model_len
        tokens = 0
        prompts = 0
        context_tokens = 0
        score_pairs = 0.0
        finished = result.finished
        for request, new in batch:
            before = request.computed
            after = before + new
            request.computed = after
            tokens += new
            context_tokens += after
            score_pairs += after if new == 1 else new * (before + 0.5 * new)
            if request.block_hashes and after // block_size != before // block_size:
                self._publish(request, before // block_size, after // block_size)
            if after < request.prompt_tokens + request.generated:
                result.prefill_tokens += new
                prompts += 1
                continue
            if request.generated and new == 1:
                result.decode_tokens += 1
            else:
                result.prefill_tokens += new
                prompts += 1
            request.generated += 1
            result.emitted.append(request)
            if request.generated >= request.output_tokens or after + 1 >= max_model_len:
                finished.append(request)
        result.duration_s = self._timing.iteration_s(
            len(batch), tokens, context_tokens, score_pairs, prompts
        )
        self._leave(finished)

    def _leave(self, finished: list[EngineRequest]) -> None:
        for request in finished:
            self._free(request)
            request.state = RequestState.FINISHED
            del self._requests[request.request_id]
        if finished:
            self._running = [r for r in self._running if r.state is RequestState.RUNNING]

    def _grow(self, request: EngineRequest, tokens: int) -> bool:
        """Make sure that `request` has blocks for `tokens` tokens; False when none is left."""
        missing = -(-tokens // self.config.block_size) - request.blocks
        if missing <= 0:
            return True
        if not self._pool.take(missing):
            return False
        request.blocks += missing
        return True

    def _publish(self, request: EngineRequest, first: int, last: int) -> None:
        """Index the blocks of `request` in [first, last), which have become full."""
        request.shared += self._pool.publish(request.block_hashes[first:last])

    def _free(self, request: EngineRequest) -> None:
        self._pool.release(private=request.blocks - len(request.shared), shared=request.shared)
        request.blocks = 0
        request.shared = []
