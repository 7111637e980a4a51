"""One engine's scheduler, iteration by iteration, as vLLM's V1 scheduler goes about it.

Running requests come first, in the order they were admitted; then, if nobody had to be preempted,
waiting ones while seats, tokens and KV blocks last. A running request that finds no KV block takes
them from a victim, which loses everything it computed, or has it copied to host memory, and waits
again. A waiting request is admitted only when all of its tokens so far would fit, and never evicts
one that runs.
"""

from __future__ import annotations

from dispatcher.engine_model.blocks import BlockPool, TieredBlockPool
from dispatcher.engine_model.config import EngineConfig
from dispatcher.engine_model.paused import PausedSessions
from dispatcher.engine_model.requests import EngineRequest, RequestState
from dispatcher.engine_model.steps import StepResult
from dispatcher.engine_model.waiting import WaitingHeap


class Scheduler:
    """Who runs and who waits. Deterministic: equal calls give equal results.

    Attributes:
        config: Launch parameters.
        preemptions: Preemptions so far.
        prefix_queries_tokens: Tokens looked up in the prefix cache, re-admissions aside.
        prefix_hits_tokens: Those of them that were found.
        offload_queries_tokens: Those that were not, looked up in the offload tier.
        offload_hits_tokens: Those of these that were found there.
        swapped_in_tokens: Tokens whose KV came back from host memory.
        swapped_out_tokens: Tokens whose KV went there with a preempted request.
        recomputed_tokens: Tokens computed again after preemptions, counted as seats are left.
        token_limit: Tokens one iteration may compute, now.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.offload_queries_tokens = 0
        self.offload_hits_tokens = 0
        self.swapped_in_tokens = 0
        self.swapped_out_tokens = 0
        self.recomputed_tokens = 0
        self.token_limit = config.max_num_batched_tokens
        self._by_priority = config.scheduling_policy == "priority"
        self._timing = config.timing
        self._tier: TieredBlockPool | None = None
        if config.offload_blocks:
            self._tier = TieredBlockPool(config.num_blocks, offload_blocks=config.offload_blocks)
        self._pool = self._tier or BlockPool(
            config.num_blocks, caching=config.enable_prefix_caching
        )
        self._swaps = config.preemption == "swap"
        self._may_be_out = self._swaps or self._tier is not None
        self._paused = PausedSessions(self._pool)
        #: with so many running, nobody joins
        self._full_at = config.max_num_seqs
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

    def set_token_limit(self, tokens: int) -> None:
        """Let each iteration from the next one on compute so many tokens at most.

        With fewer than running requests, those admitted last wait for a token.

        Raises:
            ValueError: Less than 1, or more than the engine was launched with.
        """
        most = self.config.max_num_batched_tokens
        if not 1 <= tokens <= most:
            raise ValueError(f"the token limit must be from 1 to {most}, not {tokens}")
        self.token_limit = tokens
        self._full_at = min(self.config.max_num_seqs, tokens)

    def step(self, now_s: float) -> StepResult:
        """Play one iteration that starts at `now_s`; without work it takes no time."""
        result = StepResult()
        if not self._requests:
            return result
        if self._paused.next_expiry_s <= now_s:
            self._paused.expire(now_s)
        batch: list[tuple[EngineRequest, int]] = []
        budget = self._schedule_running(batch, result)
        if not result.preempted:
            self._schedule_waiting(now_s, batch, budget, result)
        self._execute(batch, result)
        return result

    # -- scheduling ------------------------------------------------------------------------

    def _schedule_running(self, batch: list[tuple[EngineRequest, int]], result: StepResult) -> int:
        """Give running requests their tokens; return what is left of the token budget."""
        budget = self.token_limit
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
                if self._paused.drop_largest():
                    continue
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
            if request is None:
                return
            shared = self._shared_if_it_fits(request)
            if shared is None:
                # where nothing runs, only paused sessions can be in its way
                if self._running or not self._paused.drop_largest():
                    return
                continue
            total, hits = request.total_tokens, len(shared)
            self._waiting.pop()
            pool.take_shared(shared)
            request.shared = shared
            request.blocks = hits
            request.computed = hits * block_size
            if request.session is not None:
                self._paused.release(request.session)
            if self._may_be_out:
                self._swap_in(request, result)
            new = min(total - request.computed, budget)
            self._grow(request, request.computed + new)
            request.state = RequestState.RUNNING
            if request.preemptions == 0:
                request.cached_tokens = request.computed
                request.scheduled_s = now_s
                self.prefix_queries_tokens += total
                self.prefix_hits_tokens += hits * block_size
            else:
                request.resumed = request.computed
            self._running.append(request)
            result.admitted.append(request)
            batch.append((request, new))
            budget -= new

    def _swap_in(self, request: EngineRequest, result: StepResult) -> None:
        """Bring back what host memory has of it beyond the blocks that it has found."""
        block_size, hits = self.config.block_size, len(request.shared)
        hashes = request.block_hashes
        there = request.lost if self._swaps else 0
        if self._tier is not None and there <= request.computed:
            # as in the prefix cache, the newest token is always computed
            asked = hashes[hits : (request.total_tokens - 1) // block_size]
            found = self._tier.offloaded_hit(asked)
            self._tier.touch_offloaded(asked[:found])
            there = (hits + found) * block_size
            if request.preemptions == 0:
                self.offload_queries_tokens += request.total_tokens - request.computed
                self.offload_hits_tokens += found * block_size
        if there > request.computed:
            result.swapped_in_tokens += there - request.computed
            self._grow(request, there)
            request.computed = there
            request.shared += self._pool.publish(hashes[hits : there // block_size])

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
        if self._swaps:
            result.swapped_out_tokens += victim.computed
        victim.state = RequestState.WAITING
        victim.lost = max(victim.lost, victim.computed)
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
        if result.swapped_in_tokens or result.swapped_out_tokens:
            self._price_swaps(result)
        self._leave(finished)

    def _price_swaps(self, result: StepResult) -> None:
        self.swapped_in_tokens += result.swapped_in_tokens
        self.swapped_out_tokens += result.swapped_out_tokens
        swapped = result.swapped_in_tokens + result.swapped_out_tokens
        result.duration_s += swapped * self.config.swap_s_per_token

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
        if request.preemptions:
            again = min(request.lost, request.computed) - request.resumed
            self.recomputed_tokens += max(0, again)
        request.blocks = 0
        request.shared = []
